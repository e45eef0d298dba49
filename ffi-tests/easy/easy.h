/*
 * Shared by the tests of librdma_easy: two connected contexts in one process, regions with content, and
 * completions that have to come.
 */
#ifndef RSTREAM_TESTS_EASY_H
#define RSTREAM_TESTS_EASY_H

#include "../runner.h"
#include "rdma_easy.h"

#include <errno.h>

/* The address to listen on. TEST_IPV4 names it, as for the other programs. */
#define HOST ipv4()
/* For waits that must succeed. */
#define SOON PATIENCE_MS

extern const struct section easy_connecting, easy_requests, easy_regions, easy_misuse, easy_ending;
extern const struct section easy_events;

/* The device of the side that connects (0) or listens (1): the embedded one, or those of the kind that
 * TEST_EASY names, "siw" or "rxe". */
const char *device(int side);
/* Skips the test unless the device is the embedded one: it reports every error where it arises. */
void needs_embedded(void);

/* Two contexts of one device, each with a domain of its own. */
struct ends {
    struct rdma_easy_domain *domains[2];
    struct rdma_easy_listener *listener;
    /* The one that connected, and the one that accepted. */
    struct rdma_easy_connection *client, *server;
};

#define ALL_RIGHTS                                                                                  \
    (RDMA_EASY_LOCAL_WRITE | RDMA_EASY_REMOTE_WRITE | RDMA_EASY_REMOTE_READ | RDMA_EASY_READ_TARGET)

/* Opens both, unconnected: receives can be posted. */
void ends_open(struct ends *ends, const struct rdma_easy_sizes *sizes);
/* Connects them. */
void ends_connect(struct ends *ends);
void ends_close(struct ends *ends);

/* A call of rdma_easy_connect to `port` in a thread of its own, and what it returned. */
struct attempt;
struct attempt *attempt_start(struct rdma_easy_connection *connection, int port, const void *data,
                              size_t length);
int attempt_join(struct attempt *attempt);

/* A region with all rights and this text, or zeros. */
struct rdma_easy_region *region_of(struct rdma_easy_domain *domain, size_t length, const char *text);
/* Checks bytes of a region. */
void check_region(struct rdma_easy_region *region, size_t offset, const char *wanted);

/* Posts one piece. The context is the number. */
void post_receive(struct rdma_easy_connection *connection, struct rdma_easy_region *region, size_t offset,
                  size_t length, intptr_t number);
void post_send(struct rdma_easy_connection *connection, struct rdma_easy_region *region, size_t offset,
               size_t length, intptr_t number);
/* Takes the next completion of a queue, which must have this context and error. Returns its length. */
uint32_t taken(struct rdma_easy_connection *connection, int queue, intptr_t number, int error);

/* Checks private data that has arrived: this text, and on InfiniBand zeros after it. */
void check_data(int length, const char *data, const char *wanted);

/* The text of the last error must contain this. */
void check_text(const char *wanted);

#endif
