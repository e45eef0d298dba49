/* How connections end: in order, by force, and with peers that vanish. */
#include "easy.h"

#include <pthread.h>
#include <unistd.h>

static int send_late(struct rdma_easy_connection *connection, struct rdma_easy_region *region)
{
    const struct rdma_easy_piece piece = {region, 0, 4};

    return rdma_easy_post_send(connection, &piece, 1, 0, NULL);
}

static void an_orderly_end_loses_nothing(void)
{
    struct ends ends;
    struct rdma_easy_region *source, *target;
    struct rdma_easy_completion done[8];
    int end;

    ends_open(&ends, NULL);
    source = region_of(ends.domains[0], 8, "last");
    target = region_of(ends.domains[1], 8, NULL);
    for (int i = 0; i < 8; i++)
        post_receive(ends.server, target, 0, 8, i);
    CHECK_RET(rdma_easy_disconnect(ends.client), -ENOTCONN);
    CHECK_RET(rdma_easy_await_disconnect(ends.client, 0), -ENOTCONN);
    ends_connect(&ends);
    for (int i = 0; i < 6; i++)
        post_send(ends.client, source, 0, 4, i);
    CHECK_OK(rdma_easy_disconnect(ends.client));
    CHECK_OK(rdma_easy_disconnect(ends.client));
    CHECK_RET(send_late(ends.client, source), -ENOTCONN);
    /* What was posted before is done. */
    CHECK_RET(rdma_easy_await(ends.client, RDMA_EASY_SENDS, done, 8, SOON), 6);
    /* The client's side has to be driven for it. */
    for (int64_t until = now_ms() + SOON; (end = rdma_easy_await_disconnect(ends.server, 5)) == -ETIMEDOUT;) {
        CHECK_AT_LEAST(until, now_ms());
        CHECK_AT_LEAST(rdma_easy_drive(ends.domains[0]), 0);
    }
    CHECK_RET(end, 0);
    CHECK_RET(rdma_easy_await(ends.server, RDMA_EASY_RECEIVES, done, 6, SOON), 6);
    for (int i = 0; i < 6; i++)
        CHECK_RET(done[i].error, 0);
    CHECK_OK(rdma_easy_disconnect(ends.server));
    CHECK_OK(rdma_easy_await_disconnect(ends.client, SOON));
    CHECK_OK(rdma_easy_await_disconnect(ends.server, SOON));
    /* The others never will be. */
    CHECK_RET(rdma_easy_await(ends.server, RDMA_EASY_RECEIVES, done, 8, SOON), 2);
    CHECK_RET(done[1].error, -ECANCELED);
    CHECK_RET(send_late(ends.server, target), -ENOTCONN);
    ends_close(&ends);
}

static void freeing_breaks_the_connection(void)
{
    struct ends ends;
    struct rdma_easy_region *target;

    ends_open(&ends, NULL);
    target = region_of(ends.domains[1], 8, NULL);
    post_receive(ends.server, target, 0, 8, 1);
    ends_connect(&ends);
    CHECK_OK(rdma_easy_connection_free(ends.client));
    CHECK_INT(taken(ends.server, RDMA_EASY_RECEIVES, 1, -ECANCELED), 0);
    /* Only the embedded device tells it from an orderly end. */
    CHECK_RET(rdma_easy_await_disconnect(ends.server, SOON), device(0) ? 0 : -EREMOTEIO);
    CHECK_OK(rdma_easy_connection_create(ends.domains[0], NULL, &ends.client));
    ends_close(&ends);
}

struct waiter {
    struct rdma_easy_connection *connection;
    int outcome;
    struct rdma_easy_completion done;
};

static void *wait_for_a_message(void *argument)
{
    struct waiter *waiter = argument;

    waiter->outcome = rdma_easy_await(waiter->connection, RDMA_EASY_RECEIVES, &waiter->done, 1, -1);
    return NULL;
}

static void *wait_for_the_end(void *argument)
{
    struct waiter *waiter = argument;

    waiter->outcome = rdma_easy_await_disconnect(waiter->connection, -1);
    return NULL;
}

static void freeing_wakes_threads_that_wait(void)
{
    struct ends ends;
    struct waiter waiters[2];
    pthread_t threads[2];

    ends_open(&ends, NULL);
    post_receive(ends.client, region_of(ends.domains[0], 8, NULL), 0, 8, 1);
    ends_connect(&ends);
    for (int i = 0; i < 2; i++) {
        void *(*run)(void *) = i ? wait_for_the_end : wait_for_a_message;

        waiters[i] = (struct waiter){.connection = ends.client, .outcome = 99};
        CHECK_INT(pthread_create(&threads[i], NULL, run, &waiters[i]), 0);
    }
    sleep_ms(100);
    CHECK_INT(waiters[0].outcome, 99);
    CHECK_OK(rdma_easy_connection_free(ends.client));
    for (int i = 0; i < 2; i++)
        CHECK_INT(pthread_join(threads[i], NULL), 0);
    CHECK_RET(waiters[1].outcome, -ECONNABORTED);
    /* It has the end of the receive, or found that none was left. */
    if (waiters[0].outcome == 1)
        CHECK_RET(waiters[0].done.error, -ECANCELED);
    else
        CHECK_RET(waiters[0].outcome, -ENODATA);
    CHECK_OK(rdma_easy_connection_create(ends.domains[0], NULL, &ends.client));
    ends_close(&ends);
}

#define ROUNDS 2000

struct echo {
    struct rdma_easy_connection *connection;
    struct rdma_easy_region *region;
};

static void *run_echo(void *argument)
{
    struct echo *echo = argument;

    for (int i = 0; i < ROUNDS; i++) {
        CHECK_INT(taken(echo->connection, RDMA_EASY_RECEIVES, i, 0), 8);
        /* The peer sends again as soon as it has the answer. */
        post_receive(echo->connection, echo->region, 8 * (size_t)((i + 1) % 2), 8, i + 1);
        post_send(echo->connection, echo->region, 8 * (size_t)(i % 2), 8, i);
        CHECK_INT(taken(echo->connection, RDMA_EASY_SENDS, i, 0), 0);
    }
    return NULL;
}

/* One thread awaits receives, another one sends, on one connection, while a third echoes. */
static void threads_share_a_connection(void)
{
    struct ends ends;
    struct waiter waiter;
    struct rdma_easy_region *out, *in;
    struct echo echo;
    pthread_t echoing, waiting;

    ends_open(&ends, NULL);
    echo = (struct echo){ends.server, region_of(ends.domains[1], 16, NULL)};
    post_receive(echo.connection, echo.region, 0, 8, 0);
    in = region_of(ends.domains[0], 8, NULL);
    out = region_of(ends.domains[0], 8, NULL);
    ends_connect(&ends);
    CHECK_INT(pthread_create(&echoing, NULL, run_echo, &echo), 0);
    for (uint64_t i = 0; i < ROUNDS; i++) {
        post_receive(ends.client, in, 0, 8, (intptr_t)i);
        waiter = (struct waiter){.connection = ends.client};
        CHECK_INT(pthread_create(&waiting, NULL, wait_for_a_message, &waiter), 0);
        memcpy(rdma_easy_region_base(out), &i, sizeof i);
        post_send(ends.client, out, 0, 8, (intptr_t)i);
        CHECK_INT(taken(ends.client, RDMA_EASY_SENDS, (intptr_t)i, 0), 0);
        CHECK_INT(pthread_join(waiting, NULL), 0);
        CHECK_RET(waiter.outcome, 1);
        CHECK_RET(waiter.done.error, 0);
        CHECK_BYTES(rdma_easy_region_base(in), &i, sizeof i);
        still_moving();
    }
    CHECK_INT(pthread_join(echoing, NULL), 0);
    ends_close(&ends);
}

/* A peer that connects, posts a receive, and then does nothing until it is killed. */
static void silent_peer(struct peer *self, void *argument)
{
    struct ends ends;

    (void)argument;
    ends_open(&ends, NULL);
    post_receive(ends.client, region_of(ends.domains[0], 8, NULL), 0, 8, 1);
    CHECK_OK(rdma_easy_connect(ends.client, HOST, (uint16_t)peer_hear(self), NULL, 0));
    peer_tell(self, 1);
    peer_hear(self);
}

static void a_killed_peer_is_noticed(void)
{
    struct ends ends;
    struct peer peer;
    struct rdma_easy_region *region;
    struct rdma_easy_request *request;
    struct rdma_easy_remote remote;

    peer_start(&peer, silent_peer, NULL);
    ends_open(&ends, NULL);
    region = region_of(ends.domains[1], 8, NULL);
    post_receive(ends.server, region, 0, 8, 1);
    CHECK_OK(rdma_easy_expect_advert(ends.server));
    peer_tell(&peer, (uint64_t)rdma_easy_listener_port(ends.listener));
    CHECK_OK(rdma_easy_get_request(ends.listener, SOON, &request));
    CHECK_OK(rdma_easy_accept(request, ends.server, NULL, 0));
    peer_hear(&peer);
    peer_kill(&peer);
    CHECK_INT(taken(ends.server, RDMA_EASY_RECEIVES, 1, -ECANCELED), 0);
    CHECK_AT_LEAST(-1, rdma_easy_await_advert(ends.server, SOON, &remote));
    CHECK_AT_LEAST(0, rdma_easy_await_disconnect(ends.server, SOON));
    CHECK_AT_LEAST(-1, send_late(ends.server, region));
    ends_close(&ends);
    CHECK_OK(rdma_easy_region_free(region));
}

static void a_request_whose_peer_left_fails(void)
{
    struct ends ends;
    struct rdma_easy_request *request;
    int socket;

    needs_embedded();
    ends_open(&ends, NULL);
    /* A request of MPA revision 1 without private data, and the end of the connection. */
    socket = tcp_connect((unsigned)rdma_easy_listener_port(ends.listener));
    CHECK_INT(write(socket, "MPA ID Req Frame\x00\x01\x00\x00", 20), 20);
    CHECK_OK(rdma_easy_get_request(ends.listener, SOON, &request));
    close(socket);
    sleep_ms(50);
    CHECK_AT_LEAST(-1, rdma_easy_accept(request, ends.server, NULL, 0));
    ends_close(&ends);
}

static void nothing_is_left(void)
{
    struct ends ends;
    size_t descriptors = 0, heap = 0;

    for (int round = 0; round < 320; round++) {
        struct rdma_easy_region *source, *target;

        if (round == 20) {
            descriptors = open_descriptors();
            heap = heap_in_use();
        }
        ends_open(&ends, NULL);
        source = region_of(ends.domains[0], 100, NULL);
        target = region_of(ends.domains[1], 100, NULL);
        for (int i = 0; i < 10; i++)
            post_receive(ends.server, target, 0, 8, i);
        CHECK_OK(rdma_easy_expect_advert(ends.server));
        ends_connect(&ends);
        for (int i = 0; i < 5; i++)
            post_send(ends.client, source, 0, 8, i);
        ends_close(&ends);
        CHECK_OK(rdma_easy_region_free(source));
        CHECK_OK(rdma_easy_region_free(target));
    }
    CHECK_INT(open_descriptors(), descriptors);
    CHECK_BETWEEN((long long)heap_in_use() - (long long)heap, -16384, 16384);
}

static void freeing_ends_an_attempt(void)
{
    struct ends ends;
    struct rdma_easy_region *region;
    struct attempt *attempt;
    int64_t start;

    needs_embedded();
    ends_open(&ends, NULL);
    region = region_of(ends.domains[0], 8, NULL);
    post_receive(ends.client, region, 0, 8, 1);
    attempt = attempt_start(ends.client, rdma_easy_listener_port(ends.listener), NULL, 0);
    usleep(50000);
    start = now_ms();
    CHECK_OK(rdma_easy_connection_free(ends.client));
    /* The receive does not use it any more. */
    CHECK_OK(rdma_easy_region_free(region));
    CHECK_RET(attempt_join(attempt), -EBADF);
    CHECK_BETWEEN(now_ms() - start, 0, 5000);
    CHECK_OK(rdma_easy_connection_create(ends.domains[0], NULL, &ends.client));
    ends_close(&ends);
}

static void *wait_for_request(void *listener)
{
    struct rdma_easy_request *request;

    return (void *)(intptr_t)rdma_easy_get_request(listener, -1, &request);
}

static void *wait_for_event(void *loop)
{
    return (void *)(intptr_t)rdma_easy_loop_dispatch(loop, -1);
}

/* Starts a thread that waits, and gives it time to. */
static pthread_t start_waiting(void *(*wait)(void *), void *handle)
{
    pthread_t thread;

    CHECK(pthread_create(&thread, NULL, wait, handle) == 0);
    usleep(50000);
    return thread;
}

/* Checks that it returns, with this error. */
static void check_returns(pthread_t thread, int error)
{
    void *returned;

    CHECK(pthread_join(thread, &returned) == 0);
    CHECK_INT((intptr_t)returned, error);
}

static void freeing_a_listener_wakes_threads(void)
{
    struct rdma_easy_domain *domain;
    struct rdma_easy_listener *listener;
    pthread_t threads[2];
    int port;

    CHECK_OK(rdma_easy_open(device(1), &domain));
    CHECK_OK(rdma_easy_listen(domain, HOST, 0, 1, &listener));
    port = rdma_easy_listener_port(listener);
    for (int i = 0; i < 2; i++)
        threads[i] = start_waiting(wait_for_request, listener);
    CHECK_OK(rdma_easy_listener_free(listener));
    /* Its port is free at once. */
    CHECK_OK(rdma_easy_listen(domain, HOST, (uint16_t)port, 1, &listener));
    for (int i = 0; i < 2; i++)
        check_returns(threads[i], -EBADF);
    CHECK_OK(rdma_easy_listener_free(listener));
    CHECK_OK(rdma_easy_close(domain));
}

static void freeing_a_loop_wakes_its_dispatcher(void)
{
    static const struct rdma_easy_callbacks none;
    struct rdma_easy_domain *domain;
    struct rdma_easy_loop *loop;
    pthread_t thread;

    CHECK_OK(rdma_easy_open(device(1), &domain));
    CHECK_OK(rdma_easy_loop_create(domain, NULL, &none, NULL, &loop));
    thread = start_waiting(wait_for_event, loop);
    CHECK_OK(rdma_easy_loop_free(loop));
    check_returns(thread, -EBADF);
    CHECK_OK(rdma_easy_close(domain));
}

static const struct test tests[] = {
    TEST(an_orderly_end_loses_nothing, "what was posted before an orderly end arrives"),
    TEST(freeing_breaks_the_connection, "freeing a connection breaks it"),
    TEST(freeing_wakes_threads_that_wait, "threads that wait for a freed connection return"),
    TEST(freeing_ends_an_attempt, "a freed connection ends its attempt, and its requests use no region"),
    TEST(freeing_a_listener_wakes_threads, "threads that wait for requests of a freed listener return"),
    TEST(freeing_a_loop_wakes_its_dispatcher, "a thread that dispatches a freed loop returns"),
    TEST(threads_share_a_connection, "threads wait for different things on one connection"),
    TEST(a_killed_peer_is_noticed, "a peer that is killed ends what waits for it"),
    TEST(a_request_whose_peer_left_fails, "a request whose peer has left cannot be accepted"),
    TEST(nothing_is_left, "freeing leaves no descriptor and no memory"),
};

const struct section easy_ending = SECTION("ending", tests);
