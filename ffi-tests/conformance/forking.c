/* Contract, section Processes: a child of fork has copies of its parent's objects, which it may close, and
 * can use its own objects. */
#include "conformance.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* The result of calls on the parent's objects in a child. */
#define REFUSED (-FI_EOPBADSTATE)

/* Ends the child, with exit() or with _exit(). */
_Noreturn static void leave(bool orderly)
{
    if (orderly)
        exit(0);
    _exit(0);
}

/* Waits for a child, which must end with status 0. Drives nothing meanwhile. */
static void join(pid_t child)
{
    int status;

    CHECK_SYS(waitpid(child, &status, 0));
    CHECK(WIFEXITED(status));
    CHECK_INT(WEXITSTATUS(status), 0);
}

/* ---- a parent's connection ---------------------------------------------------------------- */

/* Gets the descriptors of both ends of a pair, and makes calls until none of them is readable, like an
 * event loop before it sleeps. */
static void settle(struct pair *pair)
{
    struct fid *fids[] = {&pair->client.ep->fid, &pair->server.ep->fid, &pair->client.eq->fid, &pair->server.eq->fid};

    for (size_t i = 0; i < sizeof fids / sizeof fids[0]; i++)
        (void)wait_fd(fids[i]);
    CHECK_RET(recv_once(pair->client.ep, &(uint8_t){0}, 1), -FI_EAGAIN);
    CHECK_RET(recv_once(pair->server.ep, &(uint8_t){0}, 1), -FI_EAGAIN);
    /* A wake-up may be spurious. A call consumes it. */
    for (size_t i = 0; i < sizeof fids / sizeof fids[0]; i++)
        AWAIT(PATIENCE_MS, !readable(wait_fd(fids[i]), 20));
}

/* Checks that a send at one end wakes the other end. */
static void wakes(struct fid_ep *from, struct fid_ep *to)
{
    uint8_t got[100];
    ssize_t count = 0;

    CHECK_RET(recv_once(to, got, sizeof got), -FI_EAGAIN);
    CHECK_RET(send_once(from, pattern(0, sizeof got), sizeof got), (ssize_t)sizeof got);
    while (count < (ssize_t)sizeof got) {
        ssize_t more;

        CHECK(readable(wait_fd(&to->fid), PATIENCE_MS));
        more = recv_once(to, got + count, sizeof got - (size_t)count);
        if (more != -FI_EAGAIN) {
            CHECK_BETWEEN(more, 1, sizeof got - (size_t)count);
            count += more;
        }
    }
    CHECK_BYTES(got, pattern(0, sizeof got), sizeof got);
}

/* Checks that room wakes an end that waits for it. */
static void wakes_for_room(struct fid_ep *from, struct fid_ep *to)
{
    size_t sent = fill(from, 0);

    recv_pattern(to, 0, sent);
    CHECK(readable(wait_fd(&from->fid), PATIENCE_MS));
    CHECK_RET(send_once(from, pattern(sent, 1), 1), 1);
    recv_pattern(to, sent, 1);
}

/* Checks that the connection works as if there had been no child. */
static void check_whole(struct pair *pair)
{
    check_no_event(pair->client.eq);
    check_no_event(pair->server.eq);
    wakes(pair->client.ep, pair->server.ep);
    wakes(pair->server.ep, pair->client.ep);
    transfer(pair->client.ep, pair->server.ep, 300000);
    transfer(pair->server.ep, pair->client.ep, 300000);
    wakes_for_room(pair->client.ep, pair->server.ep);
    wakes_for_room(pair->server.ep, pair->client.ep);
}

/* Checks that the connection ends in an orderly way, and that the event queues are woken for that. */
static void check_end(struct pair *pair)
{
    CHECK_OK(fi_shutdown(pair->client.ep, 0));
    CHECK(readable(wait_fd(&pair->server.ep->fid), PATIENCE_MS));
    CHECK_RET(recv_wait(pair->server.ep, &(uint8_t){0}, 1), 0);
    await_event(pair->server.eq, FI_SHUTDOWN);
    CHECK(readable(wait_fd(&pair->client.eq->fid), PATIENCE_MS));
    await_event(pair->client.eq, FI_SHUTDOWN);
    pair_close(pair);
}

static void with_child(bool closes, bool orderly)
{
    struct pair pair;
    pid_t child;

    pair_open(&pair, IPV4, NULL);
    settle(&pair);
    child = (pid_t)CHECK_SYS(fork());
    if (child == 0) {
        if (closes)
            pair_close(&pair);
        leave(orderly);
    }
    join(child);
    check_whole(&pair);
    check_end(&pair);
}

static void child_closes(void)
{
    with_child(true, true);
    with_child(true, false);
}

static void child_exits(void)
{
    with_child(false, true);
    with_child(false, false);
}

/* Bytes that a send took and the socket did not: neither the child's close nor the parent loses them. */
static void child_closes_full(void)
{
    struct pair pair;
    size_t sent;
    pid_t child;

    pair_open(&pair, IPV4, NULL);
    sent = fill(pair.client.ep, 0);
    child = (pid_t)CHECK_SYS(fork());
    if (child == 0) {
        int64_t start = now_ms();

        pair_close(&pair);
        /* The child's close has nothing to wait for. */
        CHECK_BETWEEN(now_ms() - start, 0, 2000);
        leave(false);
    }
    join(child);
    recv_pattern(pair.server.ep, 0, sent);
    check_whole(&pair);
    check_end(&pair);
}

static void child_closes_listener(void)
{
    struct side listener, client, server;
    struct event request;
    pid_t child;

    side_listen(&listener, IPV4, NULL);
    side_active(&client, IPV4, fid_port(&listener.pep->fid), NULL);
    CHECK_OK(fi_connect(client.ep, client.info->dest_addr, NULL, 0));
    request = await_event(listener.eq, FI_CONNREQ);
    for (unsigned round = 0; round < 2; round++) {
        child = (pid_t)CHECK_SYS(fork());
        if (child == 0) {
            side_close(&client);
            side_close(&listener);
            leave(round == 0);
        }
        join(child);
        if (round == 0) {
            accept_request(&listener, &server, &request, NULL, 0);
            await_event(listener.eq, FI_CONNECTED);
            await_event(client.eq, FI_CONNECTED);
            transfer(client.ep, server.ep, 50000);
            side_close(&server);
            side_close(&client);
            side_active(&client, IPV4, fid_port(&listener.pep->fid), NULL);
            CHECK_OK(fi_connect(client.ep, client.info->dest_addr, NULL, 0));
        }
    }
    /* A client on an RDMA device continues to connect only when it is driven. */
    AWAIT(PATIENCE_MS, readable(wait_fd(&listener.eq->fid), 10));
    request = await_event(listener.eq, FI_CONNREQ);
    accept_request(&listener, &server, &request, NULL, 0);
    await_event(listener.eq, FI_CONNECTED);
    await_event(client.eq, FI_CONNECTED);
    transfer(client.ep, server.ep, 50000);
    side_close(&server);
    side_close(&client);
    side_close(&listener);
}

/* ---- objects that a parent closes while a child lives ---------------------------------------- */

/* Leaves a child that does nothing until the test ends and has a copy of every descriptor. */
static void leave_behind(void)
{
    if (CHECK_SYS(fork()) == 0)
        for (;;)
            pause();
}

static void living_child_reset(void)
{
    const struct settings settings = {.send_ring = 16 << 20, .recv_ring = 16 << 20};
    const size_t part = 1 << 20;
    uint8_t *buffer = malloc(part);
    struct pair pair;
    ssize_t got;

    needs_embedded_device();
    CHECK(buffer != NULL);
    CHECK_SYS(setenv("FI_RSTREAM_SHM", "0", 1));
    CHECK_SYS(setenv("FI_RSTREAM_LINGER_MS", "100", 1));
    pair_open(&pair, IPV4, &settings);
    for (size_t sent = 0; (got = send_once(pair.client.ep, pattern(sent, part), part)) > 0; sent += (size_t)got)
        ;
    CHECK_RET(got, -FI_EAGAIN);
    leave_behind();
    close_fid(&pair.client.ep->fid);
    pair.client.ep = NULL;
    while ((got = recv_wait(pair.server.ep, buffer, part)) > 0)
        ;
    CHECK_RET(got, -FI_ECONNRESET);
    pair_close(&pair);
    free(buffer);
}

static void living_child_listener(void)
{
    struct side listener, client, again;
    struct fi_info *hints = stream_hints();
    struct event request;
    int64_t started;
    char port[8];

    needs_embedded_device();
    side_listen(&listener, IPV4, NULL);
    snprintf(port, sizeof port, "%u", fid_port(&listener.pep->fid));
    side_active(&client, IPV4, fid_port(&listener.pep->fid), NULL);
    CHECK_OK(fi_connect(client.ep, client.info->dest_addr, NULL, 0));
    request = await_event(listener.eq, FI_CONNREQ);
    leave_behind();
    started = now_ms();
    fi_freeinfo(request.info);
    side_close(&listener);
    CHECK_INT(await_error(client.eq, NULL, 0).err, FI_ECONNRESET);
    CHECK_BETWEEN(now_ms() - started, 0, 5000);
    side_close(&client);

    /* The address has no listener any more, and can be listened on again. */
    side_active(&client, IPV4, (unsigned)atoi(port), NULL);
    CHECK_OK(fi_connect(client.ep, client.info->dest_addr, NULL, 0));
    CHECK_INT(await_error(client.eq, NULL, 0).err, FI_ECONNREFUSED);
    side_open(&again, find(IPV4, port, FI_SOURCE, hints));
    CHECK_OK(fi_passive_ep(again.fabric, again.info, &again.pep, NULL));
    CHECK_OK(fi_pep_bind(again.pep, &again.eq->fid, 0));
    CHECK_OK(fi_listen(again.pep));
    side_close(&again);
    side_close(&client);
    fi_freeinfo(hints);
}

/* ---- what a child can do ------------------------------------------------------------------- */

static void child_is_refused(void)
{
    struct sockaddr_storage address;
    struct fi_eq_cm_entry entry;
    struct fid_ep *ep;
    struct fid_eq *eq;
    size_t length = sizeof address;
    struct pair pair;
    uint32_t kind;
    pid_t child;
    int fd;

    pair_open(&pair, IPV4, NULL);
    settle(&pair);
    child = (pid_t)CHECK_SYS(fork());
    if (child == 0) {
        struct fid *fid = &pair.client.ep->fid;
        struct fi_eq_attr attributes = {.wait_obj = FI_WAIT_FD};

        CHECK_RET(send_once(pair.client.ep, "x", 1), REFUSED);
        CHECK_RET(recv_once(pair.client.ep, &(uint8_t){0}, 1), REFUSED);
        CHECK_RET(fi_inject(pair.client.ep, "x", 1, FI_ADDR_UNSPEC), REFUSED);
        CHECK_RET(fi_shutdown(pair.client.ep, 0), REFUSED);
        CHECK_RET(fi_getname(fid, &address, &length), REFUSED);
        CHECK_RET(fi_control(fid, FI_GETWAIT, &fd), REFUSED);
        CHECK_RET(fi_trywait(pair.client.fabric, &fid, 1), REFUSED);
        CHECK_RET(fi_eq_read(pair.client.eq, &kind, &entry, sizeof entry, 0), REFUSED);
        CHECK_RET(fi_eq_sread(pair.client.eq, &kind, &entry, sizeof entry, -1, 0), REFUSED);
        CHECK_RET(fi_eq_open(pair.client.fabric, &attributes, &eq, NULL), REFUSED);
        CHECK_RET(fi_endpoint(pair.client.domain, pair.client.info, &ep, NULL), REFUSED);
        CHECK_RET(fi_listen(pair.listener.pep), REFUSED);
        leave(false);
    }
    join(child);
    check_whole(&pair);
    check_end(&pair);
}

/* Uses a stream from opening to closing, in the child and then in the parent. */
static void own_stream(void)
{
    struct pair pair;

    pair_open(&pair, IPV4, NULL);
    check_whole(&pair);
    check_end(&pair);
}

static void own_stream_in_child(void)
{
    pid_t child = (pid_t)CHECK_SYS(fork());

    if (child == 0) {
        own_stream();
        leave(true);
    }
    join(child);
}

static void child_has_own(void)
{
    struct side side;
    struct pair pair;

    /* In a child forked before libfabric was used, after discovery, with open objects, and with a
     * connection. */
    own_stream_in_child();
    fi_freeinfo(find_peer(IPV4, 1, NULL));
    own_stream_in_child();
    side_open(&side, find_peer(IPV4, 1, NULL));
    own_stream_in_child();
    pair_open(&pair, IPV4, NULL);
    settle(&pair);
    own_stream_in_child();
    check_whole(&pair);
    check_end(&pair);
    side_close(&side);
    own_stream();
}

/* A child's child can do the same. */
static void grandchild(void)
{
    struct pair pair;
    pid_t child;

    pair_open(&pair, IPV4, NULL);
    settle(&pair);
    child = (pid_t)CHECK_SYS(fork());
    if (child == 0) {
        struct pair own;

        pair_open(&own, IPV4, NULL);
        settle(&own);
        child = (pid_t)CHECK_SYS(fork());
        if (child == 0) {
            CHECK_RET(send_once(own.client.ep, "x", 1), REFUSED);
            CHECK_RET(send_once(pair.client.ep, "x", 1), REFUSED);
            pair_close(&own);
            pair_close(&pair);
            own_stream();
            leave(true);
        }
        join(child);
        check_whole(&own);
        check_end(&own);
        pair_close(&pair);
        leave(true);
    }
    join(child);
    check_whole(&pair);
    check_end(&pair);
}

static atomic_bool stop;

/* fi_fabric is not called: libfabric itself has a lock there, which another thread may hold during the
 * fork, and then the child waits forever. */
static void *open_and_close(void *argument)
{
    struct side *side = argument;

    while (!stop) {
        struct fid_domain *domain;

        CHECK_OK(fi_close(&open_eq(side->fabric)->fid));
        CHECK_OK(fi_domain(side->fabric, side->info, &domain, NULL));
        CHECK_OK(fi_close(&domain->fid));
    }
    return NULL;
}

static void threads_of_parent(void)
{
    struct side side;
    pthread_t threads[2];

    side_open(&side, find_peer(IPV4, 1, NULL));

    for (unsigned i = 0; i < 2; i++)
        CHECK_INT(pthread_create(&threads[i], NULL, open_and_close, &side), 0);
    for (unsigned i = 0; i < 300; i++) {
        pid_t child = (pid_t)CHECK_SYS(fork());

        if (child == 0) {
            struct fid_fabric *fabric;

            alarm(5);
            CHECK_OK(fi_fabric(side.info->fabric_attr, &fabric, NULL));
            for (unsigned sets = 0; sets < 10; sets++)
                (void)open_eq(fabric);
            _exit(0);
        }
        join(child);
    }
    stop = true;
    for (unsigned i = 0; i < 2; i++)
        CHECK_INT(pthread_join(threads[i], NULL), 0);
    side_close(&side);
}

static const struct test tests[] = {
    TEST(child_closes, "a child that closes its copies and ends changes nothing of its parent's connection"),
    TEST(child_exits, "nor does a child that only ends"),
    TEST(child_closes_full, "nor one that closes while bytes wait: it waits for nothing, and they arrive"),
    TEST(child_closes_listener, "nor one that closes a listener, requests that wait and attempts under way"),
    TEST(living_child_reset, "what the parent ends is over for the peer while a child lives: a connection that is reset"),
    TEST(living_child_listener, "a connection request that nobody answers, and a listener"),
    TEST(child_is_refused, "every other call of a child on its parent's objects answers -FI_EOPBADSTATE"),
    TEST(child_has_own, "a child's own objects work, whatever its parent had open"),
    TEST(grandchild, "the same in a child of a child"),
    TEST(threads_of_parent, "also while threads of the parent opened and closed objects"),
};

const struct section forking_section = SECTION("forked processes", tests);
