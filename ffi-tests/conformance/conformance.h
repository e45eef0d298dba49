/*
 * The conformance program: one test for every line of the contract of stream and message endpoints, which
 * docs/fi_rstream.7.md publishes. Each section of the contract has a file with a table of its tests.
 */
#ifndef RSTREAM_TESTS_CONFORMANCE_H
#define RSTREAM_TESTS_CONFORMANCE_H

#include <pthread.h>

#include "../runner.h"

extern const struct section discovery_section;
extern const struct section addresses_section;
extern const struct section options_section;
extern const struct section connecting_section;
extern const struct section events_section;
extern const struct section refusals_section;
extern const struct section bytes_section;
extern const struct section unsupported_section;
extern const struct section states_section;
extern const struct section ending_section;
extern const struct section waiting_section;
extern const struct section idle_section;
extern const struct section patience_section;
extern const struct section threads_section;
extern const struct section event_threads_section;
extern const struct section cancelling_section;
extern const struct section forking_section;
extern const struct section bad_input_section;
extern const struct section footprint_section;
extern const struct section stats_section;
extern const struct section base_peer_section;
extern const struct section sharing_section;
extern const struct section moving_section;
extern const struct section rdma_section;
extern const struct section message_discovery_section;
extern const struct section message_life_section;
extern const struct section message_closing_section;
extern const struct section message_events_section;
extern const struct section message_ends_section;
extern const struct section message_reasons_section;
extern const struct section message_objects_section;
extern const struct section message_memory_section;
extern const struct section messages_section;
extern const struct section message_flags_section;
extern const struct section message_levels_section;
extern const struct section message_bindings_section;
extern const struct section message_rma_section;
extern const struct section message_rma_refused_section;
extern const struct section message_unread_section;
extern const struct section message_queues_section;
extern const struct section message_counters_section;
extern const struct section message_shared_section;
extern const struct section message_waits_section;
extern const struct section message_sleepers_section;
extern const struct section message_crowds_section;
extern const struct section message_descriptors_section;
extern const struct section message_threads_section;
extern const struct section message_cancelling_section;
extern const struct section message_orders_section;
extern const struct section message_series_section;
extern const struct section message_tags_section;
extern const struct section message_tag_queues_section;
extern const struct section message_unexpected_section;
extern const struct section message_tag_entries_section;
extern const struct section message_tag_held_section;
extern const struct section message_tag_waits_section;
extern const struct section message_tag_orders_section;
extern const struct section message_tag_strangers_section;
extern const struct section message_rdma_section;
extern const struct section message_rdma_ends_section;
extern const struct section message_rdma_shared_section;
extern const struct section message_rdma_drivers_section;
extern const struct section message_rxm_section;
extern const struct section message_rxm_tags_section;
extern const struct section headers_section;

/* The number of mappings of memory that this process shares with a peer. A connection with both ends in it has
 * two. */
unsigned shared_mappings(void);

/* Opens a TCP connection to a listener, on which the test makes the handshake. Only the embedded device's
 * handshake runs in this process. */
static inline int stranger_connect(unsigned port)
{
    needs_embedded_device();
    return tcp_connect(port);
}

/* Returns the result of a call that is made while a cancellation of this thread is pending and enabled.
 * Otherwise these threads run with cancellation disabled. */
#define PENDING(call)                                                                               \
    ({                                                                                              \
        int state_;                                                                                 \
        long long answer_;                                                                          \
        CHECK_INT(pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL), 0);                          \
        answer_ = (long long)(call);                                                                \
        CHECK_INT(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state_), 0);                      \
        CHECK_INT(state_, PTHREAD_CANCEL_ENABLE);                                                   \
        answer_;                                                                                    \
    })

#endif
