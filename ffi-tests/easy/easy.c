#include "easy.h"

#include <pthread.h>
#include <stdlib.h>

const char *device(int side)
{
    static char name[2][32];
    const char *kind = getenv("TEST_EASY");

    if (kind == NULL)
        return NULL;
    snprintf(name[side], sizeof name[side], "%s%d", kind, side);
    return name[side];
}

void needs_embedded(void)
{
    if (device(0) != NULL)
        skip("%s reports it in its own way", device(0));
}

void ends_open(struct ends *ends, const struct rdma_easy_sizes *sizes)
{
    for (int i = 0; i < 2; i++)
        CHECK_OK(rdma_easy_open(device(i), &ends->domains[i]));
    CHECK_OK(rdma_easy_listen(ends->domains[1], HOST, 0, 4, &ends->listener));
    CHECK_OK(rdma_easy_connection_create(ends->domains[0], sizes, &ends->client));
    CHECK_OK(rdma_easy_connection_create(ends->domains[1], sizes, &ends->server));
}

void ends_connect(struct ends *ends)
{
    struct attempt *attempt = attempt_start(ends->client, rdma_easy_listener_port(ends->listener), NULL, 0);
    struct rdma_easy_request *request;

    CHECK_OK(rdma_easy_get_request(ends->listener, SOON, &request));
    CHECK_OK(rdma_easy_accept(request, ends->server, NULL, 0));
    CHECK_OK(attempt_join(attempt));
}

void ends_close(struct ends *ends)
{
    CHECK_OK(rdma_easy_connection_free(ends->client));
    CHECK_OK(rdma_easy_connection_free(ends->server));
    CHECK_OK(rdma_easy_listener_free(ends->listener));
    for (int i = 0; i < 2; i++)
        CHECK_OK(rdma_easy_close(ends->domains[i]));
}

struct attempt {
    struct rdma_easy_connection *connection;
    uint16_t port;
    const void *data;
    size_t length;
    int outcome;
    pthread_t thread;
};

static void *attempt_run(void *argument)
{
    struct attempt *attempt = argument;

    attempt->outcome =
        rdma_easy_connect(attempt->connection, HOST, attempt->port, attempt->data, attempt->length);
    return NULL;
}

struct attempt *attempt_start(struct rdma_easy_connection *connection, int port, const void *data,
                              size_t length)
{
    struct attempt *attempt = malloc(sizeof *attempt);

    CHECK(attempt != NULL);
    CHECK_BETWEEN(port, 1, UINT16_MAX);
    *attempt = (struct attempt){connection, (uint16_t)port, data, length, 1, 0};
    CHECK_INT(pthread_create(&attempt->thread, NULL, attempt_run, attempt), 0);
    return attempt;
}

int attempt_join(struct attempt *attempt)
{
    int outcome;

    CHECK_INT(pthread_join(attempt->thread, NULL), 0);
    outcome = attempt->outcome;
    free(attempt);
    return outcome;
}

struct rdma_easy_region *region_of(struct rdma_easy_domain *domain, size_t length, const char *text)
{
    struct rdma_easy_region *region;

    CHECK_OK(rdma_easy_region_create(domain, length, ALL_RIGHTS, &region));
    CHECK_INT(rdma_easy_region_length(region), length);
    if (text != NULL)
        memcpy(rdma_easy_region_base(region), text, strlen(text));
    return region;
}

void check_region(struct rdma_easy_region *region, size_t offset, const char *wanted)
{
    const char *base = rdma_easy_region_base(region);

    CHECK(base != NULL);
    CHECK_BYTES(base + offset, wanted, strlen(wanted));
}

void post_receive(struct rdma_easy_connection *connection, struct rdma_easy_region *region, size_t offset,
                  size_t length, intptr_t number)
{
    const struct rdma_easy_piece piece = {region, offset, length};

    CHECK_OK(rdma_easy_post_receive(connection, &piece, 1, (void *)number));
}

void post_send(struct rdma_easy_connection *connection, struct rdma_easy_region *region, size_t offset,
               size_t length, intptr_t number)
{
    const struct rdma_easy_piece piece = {region, offset, length};

    CHECK_OK(rdma_easy_post_send(connection, &piece, 1, RDMA_EASY_SIGNALED, (void *)number));
}

uint32_t taken(struct rdma_easy_connection *connection, int queue, intptr_t number, int error)
{
    struct rdma_easy_completion completion;

    CHECK_RET(rdma_easy_await(connection, queue, &completion, 1, SOON), 1);
    CHECK_INT((intptr_t)completion.context, number);
    CHECK_RET(completion.error, error);
    return completion.length;
}

void check_data(int length, const char *data, const char *wanted)
{
    size_t wanted_length = strlen(wanted);

    if (device(0) == NULL)
        CHECK_INT(length, wanted_length);
    CHECK_AT_LEAST(length, wanted_length);
    CHECK_BYTES(data, wanted, wanted_length);
    for (size_t at = wanted_length; at < (size_t)length; at++)
        CHECK_INT(data[at], 0);
}

void check_text(const char *wanted)
{
    const char *text = rdma_easy_last_error();

    if (strstr(text, wanted) == NULL)
        fail_at(__FILE__, __LINE__, "the text is \"%s\", should have \"%s\"", text, wanted);
}
