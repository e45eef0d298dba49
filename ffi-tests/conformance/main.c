/* The sections, in the order of the contract. */
#include "conformance.h"

static const struct section *const sections[] = {
    &discovery_section,     &addresses_section,  &options_section,  &connecting_section,
    &events_section,        &refusals_section,   &bytes_section,    &unsupported_section,
    &states_section,        &ending_section,     &waiting_section,  &idle_section,     &patience_section,
    &threads_section,       &event_threads_section, &cancelling_section, &forking_section,
    &bad_input_section,     &footprint_section,  &stats_section,      &base_peer_section,
    &sharing_section,       &moving_section,     &rdma_section,     &message_discovery_section,
    &message_life_section, &message_closing_section, &message_objects_section,
    &message_events_section, &message_ends_section, &message_reasons_section,
    &message_memory_section, &messages_section, &message_flags_section, &message_levels_section,
    &message_bindings_section, &message_rma_section, &message_rma_refused_section,
    &message_unread_section, &message_queues_section, &message_counters_section,
    &message_shared_section, &message_waits_section, &message_sleepers_section,
    &message_crowds_section, &message_descriptors_section, &message_threads_section,
    &message_cancelling_section, &message_orders_section, &message_series_section,
    &message_tags_section, &message_tag_queues_section, &message_unexpected_section,
    &message_tag_entries_section, &message_tag_held_section, &message_tag_waits_section,
    &message_tag_orders_section, &message_tag_strangers_section,
    &message_rxm_section, &message_rxm_tags_section,
    &message_rdma_section, &message_rdma_ends_section, &message_rdma_shared_section,
    &message_rdma_drivers_section, &headers_section,
};

int main(int argc, char **argv)
{
    return run_sections(argc, argv, sections, sizeof sections / sizeof sections[0]);
}
