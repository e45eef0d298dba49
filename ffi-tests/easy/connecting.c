/* Devices, domains, and how connections are made. */
#include "easy.h"

#include <poll.h>
#include <unistd.h>

static void devices_have_names(void)
{
    char name[64];
    int count = 0;

    while (rdma_easy_device_name((size_t)count, name, sizeof name) == 0)
        count++;
    CHECK_AT_LEAST(count, 1);
    CHECK(strcmp(name, "iwarp") == 0);
    CHECK_RET(rdma_easy_device_name((size_t)count, name, sizeof name), -ENODEV);
    CHECK_RET(rdma_easy_device_name((size_t)count - 1, name, 5), -ENOSPC);
    check_text("6 bytes");
    CHECK_OK(rdma_easy_device_name((size_t)count - 1, name, 6));
}

static void domains_are_opened_by_name(void)
{
    struct rdma_easy_domain *domain;

    CHECK_OK(rdma_easy_open("iwarp", &domain));
    CHECK_OK(rdma_easy_close(domain));
    CHECK_RET(rdma_easy_open("none0", &domain), -ENODEV);
    check_text("none0");
    CHECK_RET(rdma_easy_open("\xff", &domain), -EINVAL);
    CHECK_RET(rdma_easy_open("iwarp", NULL), -EINVAL);
}

static void private_data_goes_both_ways(void)
{
    struct ends ends;
    struct attempt *attempt;
    struct rdma_easy_request *request;
    char data[256];
    int length;

    ends_open(&ends, NULL);
    attempt = attempt_start(ends.client, rdma_easy_listener_port(ends.listener), "from the client", 15);
    CHECK_OK(rdma_easy_get_request(ends.listener, SOON, &request));
    length = rdma_easy_request_data(request, data, sizeof data);
    check_data(length, data, "from the client");
    memset(data, 'x', sizeof data);
    CHECK_RET(rdma_easy_request_data(request, data, 4), length);
    CHECK_BYTES(data, "fromxxxx", 8);
    CHECK_RET(rdma_easy_request_data(request, NULL, 0), length);
    CHECK_OK(rdma_easy_accept(request, ends.server, "from the server", 15));
    CHECK_OK(attempt_join(attempt));
    check_data(rdma_easy_private_data(ends.client, data, sizeof data), data, "from the server");
    check_data(rdma_easy_private_data(ends.server, data, sizeof data), data, "from the client");
    CHECK_RET(rdma_easy_request_data(request, data, sizeof data), -EBADF);
    ends_close(&ends);
}

static void a_reject_brings_its_data(void)
{
    struct ends ends;
    struct attempt *attempt;
    struct rdma_easy_request *request;
    char data[256];

    ends_open(&ends, NULL);
    attempt = attempt_start(ends.client, rdma_easy_listener_port(ends.listener), NULL, 0);
    CHECK_OK(rdma_easy_get_request(ends.listener, SOON, &request));
    CHECK_OK(rdma_easy_reject(request, "not you", 7));
    CHECK_RET(attempt_join(attempt), -ECONNREFUSED);
    check_data(rdma_easy_private_data(ends.client, data, sizeof data), data, "not you");
    /* The context is spent, and says why. */
    CHECK_RET(rdma_easy_connect(ends.client, HOST, 1, NULL, 0), -ECONNREFUSED);
    check_text("rejected");
    CHECK_RET(rdma_easy_disconnect(ends.client), -ECONNREFUSED);
    CHECK_RET(rdma_easy_reject(request, NULL, 0), -EBADF);
    CHECK_RET(rdma_easy_accept(request, ends.server, NULL, 0), -EBADF);
    ends_close(&ends);
}

static void attempts_fail_with_a_reason(void)
{
    struct ends ends;
    unsigned port;
    char data[256] = {0};
    int socket = tcp_listen(&port);

    ends_open(&ends, NULL);
    close(socket);
    CHECK_RET(rdma_easy_connect(ends.client, "no.such.host.invalid", 1, NULL, 0), -EADDRNOTAVAIL);
    check_text("no.such.host.invalid");
    CHECK_RET(rdma_easy_listen(ends.domains[0], "192.0.2.1", 0, 1, &(struct rdma_easy_listener *){NULL}),
              -EADDRNOTAVAIL);
    /* Neither has begun an attempt. */
    CHECK_RET(rdma_easy_connect(ends.client, HOST, (uint16_t)port, NULL, 0), -ECONNREFUSED);
    check_text("nobody is listening");
    CHECK_OK(rdma_easy_connection_free(ends.client));
    CHECK_OK(rdma_easy_connection_create(ends.domains[0], NULL, &ends.client));
    CHECK_RET(rdma_easy_connect(ends.client, HOST, (uint16_t)rdma_easy_listener_port(ends.listener), data,
                                sizeof data), -EINVAL);
    check_text("256");
    ends_close(&ends);
}

static void a_context_connects_once(void)
{
    struct ends ends;
    struct attempt *attempt;
    struct rdma_easy_connection *other;
    struct rdma_easy_request *request;
    int port;

    ends_open(&ends, NULL);
    port = rdma_easy_listener_port(ends.listener);
    attempt = attempt_start(ends.client, port, NULL, 0);
    CHECK_OK(rdma_easy_get_request(ends.listener, SOON, &request));
    CHECK_RET(rdma_easy_connect(ends.client, HOST, (uint16_t)port, NULL, 0), -EALREADY);
    CHECK_RET(rdma_easy_expect_advert(ends.client), -EALREADY);
    CHECK_OK(rdma_easy_accept(request, ends.server, NULL, 0));
    CHECK_OK(attempt_join(attempt));
    CHECK_RET(rdma_easy_connect(ends.client, HOST, (uint16_t)port, NULL, 0), -EISCONN);

    /* A request is not lost to a context that cannot accept it. */
    CHECK_OK(rdma_easy_connection_create(ends.domains[0], NULL, &other));
    attempt = attempt_start(other, port, NULL, 0);
    CHECK_OK(rdma_easy_get_request(ends.listener, SOON, &request));
    CHECK_RET(rdma_easy_accept(request, ends.server, NULL, 0), -EISCONN);
    CHECK_OK(rdma_easy_reject(request, NULL, 0));
    CHECK_RET(attempt_join(attempt), -ECONNREFUSED);
    CHECK_OK(rdma_easy_connection_free(other));
    ends_close(&ends);
}

static void waiting_for_a_request_has_an_end(void)
{
    struct ends ends;
    struct rdma_easy_request *request;
    int64_t begin;

    ends_open(&ends, NULL);
    CHECK_RET(rdma_easy_get_request(ends.listener, 0, &request), -ETIMEDOUT);
    begin = now_ms();
    CHECK_RET(rdma_easy_get_request(ends.listener, 100, &request), -ETIMEDOUT);
    CHECK_BETWEEN(now_ms() - begin, 95, SOON);
    ends_close(&ends);
}

static void one_thread_can_wait_by_the_descriptor(void)
{
    struct ends ends;
    struct rdma_easy_region *region;
    struct rdma_easy_completion completion;
    struct pollfd fd = {.events = POLLIN};
    int got;

    ends_open(&ends, NULL);
    region = region_of(ends.domains[1], 8, NULL);
    post_receive(ends.server, region, 0, 8, 1);
    ends_connect(&ends);
    fd.fd = rdma_easy_fd(ends.domains[1]);
    CHECK_AT_LEAST(fd.fd, 0);
    while (rdma_easy_drive(ends.domains[1]) == 1)
        continue;
    CHECK_INT(poll(&fd, 1, 0), 0);
    CHECK_RET(rdma_easy_await(ends.server, RDMA_EASY_RECEIVES, &completion, 1, 0), -ETIMEDOUT);
    post_send(ends.client, region_of(ends.domains[0], 8, "wake up"), 0, 8, 2);
    do {
        CHECK_INT(poll(&fd, 1, SOON), 1);
        got = rdma_easy_await(ends.server, RDMA_EASY_RECEIVES, &completion, 1, 0);
    } while (got == -ETIMEDOUT);
    CHECK_RET(got, 1);
    check_region(region, 0, "wake up");
    ends_close(&ends);
}

static const struct test tests[] = {
    TEST(devices_have_names, "the devices are listed by name, the embedded one last"),
    TEST(domains_are_opened_by_name, "a domain is opened on a device by its name"),
    TEST(private_data_goes_both_ways, "private data reaches the listener and the one who connects"),
    TEST(a_reject_brings_its_data, "a reject brings private data, and spends the context"),
    TEST(attempts_fail_with_a_reason, "an attempt that fails says why"),
    TEST(a_context_connects_once, "a context connects once, and a request is answered once"),
    TEST(waiting_for_a_request_has_an_end, "waiting for a request ends at its time"),
    TEST(one_thread_can_wait_by_the_descriptor, "a domain's descriptor is readable when there is work"),
};

const struct section easy_connecting = SECTION("connecting", tests);
