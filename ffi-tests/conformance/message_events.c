/* Contract, section Message endpoints: the events of connections, told to a sleeper and in their order,
 * and those that the application writes. */
#include "message.h"

#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

/* For attempts that have to time out, in ms. */
#define TIMEOUT_MS 300

/* Within this time each event ends a call that would wait for twice as long, in ms. */
#define WAKES_MS (PATIENCE_MS / 2)

#define LOOPBACK "127.0.0.1"

/* Connections that are made at once. */
#define CROWD 32

/* Whether sleepers sleep in fi_eq_sread instead of on the descriptor. */
static bool in_call;

/* The thread that sleeps in the call, and what the call returned. */
static struct {
    pthread_t thread;
    struct fid_eq *eq;
    ssize_t answer;
    atomic_bool awake;
} caller;

/* Looks for news, and leaves them in the queue. */
static ssize_t look(struct fid_eq *eq, int ms)
{
    uint8_t room[512];
    uint32_t kind;

    return ms ? fi_eq_sread(eq, &kind, room, sizeof room, ms, FI_PEEK)
              : fi_eq_read(eq, &kind, room, sizeof room, FI_PEEK);
}

static void *sleep_in_call(void *argument)
{
    caller.answer = look(caller.eq, PATIENCE_MS);
    atomic_store(&caller.awake, true);
    return argument;
}

/* Finds no news in an event queue, so that whoever sleeps on it now has to be woken. */
static void fall_asleep(struct side *side)
{
    settle(side, (struct fid *[]){&side->eq->fid}, 1);
    if (in_call) {
        caller.eq = side->eq;
        atomic_store(&caller.awake, false);
        CHECK_OK(pthread_create(&caller.thread, NULL, sleep_in_call, NULL));
    }
}

/* Whether the sleeper is awake now or in a moment. */
static bool is_awake(int fd)
{
    if (!in_call)
        return readable(fd, 1);
    if (!atomic_load(&caller.awake))
        sleep_ms(1);
    return atomic_load(&caller.awake);
}

/* Sleeps, and calls nothing else on this side, until the event queue has news. Only `other` is driven meanwhile
 * (NULL: nothing is). */
static void sleep_until_news(struct side *sleeper, struct side *other)
{
    struct fid *fids[] = {&sleeper->eq->fid};
    int fd = wait_fd(fids[0]);
    int64_t until = now_ms() + (in_call ? WAKES_MS : PATIENCE_MS);

    do {
        while (!is_awake(fd)) {
            if (now_ms() > until)
                fail_at(__FILE__, __LINE__, "a sleeper %s does not wake",
                        in_call ? "in fi_eq_sread" : "on the descriptor");
            if (other)
                (void)look(other->eq, 0);
        }
    } while (!in_call && fi_trywait(sleeper->fabric, fids, 1) == 0);
    if (in_call) {
        CHECK_OK(pthread_join(caller.thread, NULL));
        CHECK(caller.answer > 0 || caller.answer == -FI_EAVAIL);
    }
}

/* Opens a side that can connect to this port of `host`. */
static void client_of(struct side *client, const char *host, unsigned port)
{
    struct message_settings settings = {.host = host};

    message_client_to(client, port, &settings);
    message_endpoint(client, &settings);
}

static void start(struct side *client)
{
    CHECK_OK(fi_connect(client->ep, client->info->dest_addr, NULL, 0));
}

static void connect_to(struct side *client, const char *host, unsigned port)
{
    client_of(client, host, port);
    start(client);
}

/* `server_sleeps`: which side sleeps when the request is accepted. */
static void sleepers_of(bool server_sleeps, bool client_ends)
{
    struct side listener, client, server, *other;
    struct event request;

    message_listen(&listener, NULL);
    client_of(&client, IPV4, fid_port(&listener.pep->fid));
    fall_asleep(&listener);
    start(&client);
    sleep_until_news(&listener, &client);
    request = await_event(listener.eq, FI_CONNREQ);
    message_server(&listener, &server, &request, NULL);
    fall_asleep(server_sleeps ? &listener : &client);
    CHECK_OK(fi_accept(server.ep, NULL, 0));
    if (server_sleeps)
        sleep_until_news(&listener, &client);
    else
        sleep_until_news(&client, &listener);
    CHECK(await_event(client.eq, FI_CONNECTED).fid == &client.ep->fid);
    CHECK(await_event(listener.eq, FI_CONNECTED).fid == &server.ep->fid);
    other = client_ends ? &listener : &client;
    fall_asleep(other);
    if (client_ends) {
        close_fid(&client.ep->fid);
        client.ep = NULL;
    } else {
        CHECK_OK(fi_shutdown(server.ep, 0));
    }
    sleep_until_news(other, NULL);
    CHECK(await_event(other->eq, FI_SHUTDOWN).fid == (client_ends ? &server.ep->fid : &client.ep->fid));
    side_close(&client);
    side_close(&server);
    side_close(&listener);
}

static void sleepers_are_told(void)
{
    sleepers_of(true, true);
    sleepers_of(false, false);
}

/* Sleeps until the attempt fails, and returns the error. Its data stays valid until the next one is read. */
static struct fi_eq_err_entry sleep_until_failure(struct side *client, struct side *other)
{
    struct fi_eq_err_entry error;

    sleep_until_news(client, other);
    error = await_error(client->eq, NULL, 0);
    CHECK(error.fid == &client->ep->fid);
    CHECK_AT_LEAST(strlen(fi_eq_strerror(client->eq, error.prov_errno, NULL, NULL, 0)), 5);
    check_no_event(client->eq);
    return error;
}

static void sleepers_are_told_of_failures(void)
{
    struct fi_eq_err_entry error;
    struct side listener, client;
    struct event request;
    unsigned port;
    int fd, peer;

    setenv("FI_RSTREAM_CONNECT_TIMEOUT_MS", "60000", 1);
    message_listen(&listener, NULL);
    connect_to(&client, IPV4, fid_port(&listener.pep->fid));
    request = await_event(listener.eq, FI_CONNREQ);
    fall_asleep(&client);
    CHECK_OK(fi_reject(listener.pep, request.info->handle, "no", 2));
    fi_freeinfo(request.info);
    error = sleep_until_failure(&client, &listener);
    CHECK_INT(error.err, FI_ECONNREFUSED);
    CHECK_INT(error.err_data_size, 2);
    CHECK_BYTES(error.err_data, "no", 2);
    side_close(&client);
    side_close(&listener);

    CHECK_SYS(close(tcp_listen(&port)));
    client_of(&client, IPV4, port);
    fall_asleep(&client);
    start(&client);
    CHECK_INT(sleep_until_failure(&client, NULL).err, FI_ECONNREFUSED);
    side_close(&client);

    /* Something else answers, or hangs up. */
    for (unsigned ends = 0; ends < 2; ends++) {
        fd = tcp_listen(&port);
        connect_to(&client, IPV4, port);
        peer = tcp_accept(fd);
        fall_asleep(&client);
        if (ends)
            CHECK_SYS(shutdown(peer, SHUT_WR));
        else
            CHECK_AT_LEAST(write(peer, pattern(0, 100), 100), 100);
        CHECK_INT(sleep_until_failure(&client, NULL).err, ends ? FI_ECONNRESET : EPROTO);
        side_close(&client);
        close(peer);
        close(fd);
    }
}

static void silent_listener(void)
{
    struct side client;
    unsigned port;
    int fd = tcp_listen(&port);
    int64_t begin;
    char text[16];

    snprintf(text, sizeof text, "%d", TIMEOUT_MS);
    CHECK_SYS(setenv("FI_RSTREAM_CONNECT_TIMEOUT_MS", text, 1));
    /* The first discovery of a process takes time of its own. */
    fi_freeinfo(find(IPV4, NULL, 0, NULL));
    begin = now_ms();
    connect_to(&client, IPV4, port);
    fall_asleep(&client);
    CHECK_INT(sleep_until_failure(&client, NULL).err, FI_ETIMEDOUT);
    CHECK_BETWEEN(now_ms() - begin, TIMEOUT_MS, TIMEOUT_MS + 1000);
    side_close(&client);
    close(fd);
}

static void waiters_are_told(void)
{
    in_call = true;
    sleepers_are_told();
    sleepers_are_told_of_failures();
}

static void silent_listener_waited_for(void)
{
    in_call = true;
    silent_listener();
}

/* What arrived before the end is read after it was told, too, and receives that nothing reached are cancelled. */
static void entries_outlive_the_end(void)
{
    enum { SENT_MESSAGES = 5, POSTED = 8 };
    uint8_t got[POSTED][4];
    struct pair pair;

    messages_open(&pair, NULL);
    for (unsigned i = 0; i < POSTED; i++)
        post_recv(pair.server.ep, got[i], sizeof got[i], 10 + i);
    for (unsigned i = 0; i < SENT_MESSAGES; i++)
        post_send(pair.client.ep, pattern(i, 4), 4, i);
    for (unsigned i = 0; i < SENT_MESSAGES; i++)
        (void)await_done(pair.client.cq, i, SENT);
    close_fid(&pair.client.ep->fid);
    pair.client.ep = NULL;
    (void)await_event(pair.server.eq, FI_SHUTDOWN);
    for (unsigned i = 0; i < SENT_MESSAGES; i++) {
        CHECK_INT(await_done(pair.server.cq, 10 + i, RECEIVED).len, 4);
        CHECK_BYTES(got[i], pattern(i, 4), 4);
    }
    for (unsigned i = SENT_MESSAGES; i < POSTED; i++)
        (void)await_failed(pair.server.cq, 10 + i, RECEIVED, FI_ECANCELED);
    check_no_completion(pair.server.cq);
    check_no_event(pair.server.eq);
    pair_close(&pair);
}

/* Whether an info's address is this one. */
static void check_address(const void *got, const char *host, unsigned port)
{
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } address;
    char text[INET6_ADDRSTRLEN];

    memcpy(&address, got, ((const struct sockaddr *)got)->sa_family == AF_INET ? sizeof address.v4 : sizeof address.v6);
    if (address.any.sa_family == AF_INET)
        CHECK(inet_ntop(AF_INET, &address.v4.sin_addr, text, sizeof text) != NULL);
    else
        CHECK(inet_ntop(AF_INET6, &address.v6.sin6_addr, text, sizeof text) != NULL);
    note("address %s", text);
    CHECK_INT(strcmp(text, host), 0);
    CHECK_INT(address_port(&address), port);
}

/* A listener for all addresses tells those of each connection. */
static void wildcard_on(const char *host, uint32_t format)
{
    struct message_settings settings = {.host = host};
    struct fi_info *hints = message_hints(&settings);
    struct side listener, client, server;
    struct event request;
    uint8_t name[sizeof(struct sockaddr_in6)];
    size_t length = sizeof name;
    unsigned port;

    hints->addr_format = format;
    side_open(&listener, find(NULL, "0", FI_SOURCE, hints));
    fi_freeinfo(hints);
    CHECK_OK(fi_passive_ep(listener.fabric, listener.info, &listener.pep, NULL));
    CHECK_OK(fi_pep_bind(listener.pep, &listener.eq->fid, 0));
    CHECK_OK(fi_listen(listener.pep));
    port = fid_port(&listener.pep->fid);
    connect_to(&client, host, port);
    request = await_event(listener.eq, FI_CONNREQ);
    check_address(request.info->src_addr, host, port);
    CHECK_OK(fi_getname(&client.ep->fid, name, &length));
    check_address(request.info->dest_addr, host, address_port(name));
    message_server(&listener, &server, &request, &settings);
    message_accept(&client, &server);
    length = sizeof name;
    CHECK_OK(fi_getname(&server.ep->fid, name, &length));
    check_address(name, host, port);
    message_transfer(&client, &server, 100);
    side_close(&client);
    side_close(&server);
    side_close(&listener);
}

static void wildcard_listener(void)
{
    wildcard_on(IPV4, FI_SOCKADDR_IN);
    wildcard_on(IPV6, FI_SOCKADDR_IN6);
}

/* Many attempts at one listener before it answers any, and an attempt of its own side beside them. */
static void all_at_once(void)
{
    struct side listener, other, clients[CROWD + 1], servers[CROWD + 1];

    message_listen(&listener, NULL);
    message_listen(&other, NULL);
    for (unsigned i = 0; i < CROWD; i++)
        connect_to(&clients[i], IPV4, fid_port(&listener.pep->fid));
    connect_to(&clients[CROWD], IPV4, fid_port(&other.pep->fid));
    for (unsigned i = 0; i <= CROWD; i++) {
        struct side *from = i < CROWD ? &listener : &other;
        struct event request = await_event(from->eq, FI_CONNREQ);

        message_server(from, &servers[i], &request, NULL);
    }
    for (unsigned i = 0; i <= CROWD; i++)
        CHECK_OK(fi_accept(servers[i].ep, NULL, 0));
    for (unsigned i = 0; i <= CROWD; i++)
        CHECK(await_event(clients[i].eq, FI_CONNECTED).fid == &clients[i].ep->fid);
    for (unsigned i = 0; i <= CROWD; i++)
        (void)await_event(i < CROWD ? listener.eq : other.eq, FI_CONNECTED);
    /* Each client's messages reach the server whose peer it is. One port may have connections to both listeners. */
    for (unsigned i = 0; i <= CROWD; i++) {
        uint8_t name[sizeof(struct sockaddr_in)], peer[sizeof name];
        size_t length = sizeof name, peer_length = sizeof peer;
        bool found = false;

        CHECK_OK(fi_getname(&clients[i].ep->fid, name, &length));
        for (unsigned n = 0; n <= CROWD; n++) {
            CHECK_OK(fi_getpeer(servers[n].ep, peer, &peer_length));
            if (address_port(peer) == address_port(name) && (n == CROWD) == (i == CROWD)) {
                message_transfer(&clients[i], &servers[n], 100 + i);
                found = true;
            }
        }
        CHECK(found);
    }
    for (unsigned i = 0; i <= CROWD; i++) {
        side_close(&clients[i]);
        side_close(&servers[i]);
    }
    side_close(&other);
    side_close(&listener);
}

/* Connects from the address in the info, and returns the port that it has there. */
static unsigned connect_from(const char *host, unsigned port)
{
    struct message_settings settings = {.host = LOOPBACK};
    struct sockaddr_in source = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    struct side listener, client, server;
    uint8_t name[sizeof source];
    size_t length = sizeof name;
    struct event request;
    unsigned chosen;

    CHECK_INT(inet_pton(AF_INET, host, &source.sin_addr), 1);
    message_listen(&listener, &settings);
    message_client(&client, &listener, &settings);
    free(client.info->src_addr);
    client.info->src_addr = malloc(sizeof source);
    CHECK(client.info->src_addr != NULL);
    memcpy(client.info->src_addr, &source, sizeof source);
    client.info->src_addrlen = sizeof source;
    message_endpoint(&client, &settings);
    CHECK_OK(fi_getname(&client.ep->fid, name, &length));
    check_address(name, host, port);
    start(&client);
    request = await_event(listener.eq, FI_CONNREQ);
    CHECK_OK(fi_getname(&client.ep->fid, name, &length));
    chosen = address_port(name);
    check_address(name, host, port ? port : chosen);
    check_address(request.info->dest_addr, host, chosen);
    message_server(&listener, &server, &request, &settings);
    message_accept(&client, &server);
    CHECK_OK(fi_getpeer(server.ep, name, &length));
    check_address(name, host, chosen);
    message_transfer(&client, &server, 100);
    side_close(&server);
    side_close(&client);
    side_close(&listener);
    return chosen;
}

/* Every address of the loopback network is one of this host. */
static void source_of_info(void)
{
    unsigned port = connect_from("127.0.0.2", 0);

    CHECK(port != 0);
    (void)connect_from("127.0.0.3", port);
}

/* A listener, and an endpoint for each direction, which share an event queue. */
struct host {
    struct side listener, out, in;
};

/* Begins to connect to the other one. */
static void host_connect(struct host *host, const struct host *to)
{
    struct fi_info *hints = message_hints(NULL);
    char service[16];

    snprintf(service, sizeof service, "%u", fid_port(&to->listener.pep->fid));
    side_share(&host->out, &host->listener, find(IPV4, service, 0, hints));
    fi_freeinfo(hints);
    message_endpoint(&host->out, NULL);
    start(&host->out);
}

/* Both connect before either has read anything: two connections are made. */
static void towards_each_other(void)
{
    struct host hosts[2];
    struct event requests[2];

    for (unsigned i = 0; i < 2; i++)
        message_listen(&hosts[i].listener, NULL);
    for (unsigned i = 0; i < 2; i++)
        host_connect(&hosts[i], &hosts[1 - i]);
    for (unsigned i = 0; i < 2; i++)
        requests[i] = await_event(hosts[i].listener.eq, FI_CONNREQ);
    for (unsigned i = 0; i < 2; i++) {
        message_server(&hosts[i].listener, &hosts[i].in, &requests[i], NULL);
        CHECK_OK(fi_accept(hosts[i].in.ep, NULL, 0));
    }
    for (unsigned i = 0; i < 2; i++) {
        struct event one = await_event(hosts[i].listener.eq, FI_CONNECTED);
        struct event other = await_event(hosts[i].listener.eq, FI_CONNECTED);
        struct fid *out = &hosts[i].out.ep->fid, *in = &hosts[i].in.ep->fid;

        CHECK((one.fid == out && other.fid == in) || (one.fid == in && other.fid == out));
        check_no_event(hosts[i].listener.eq);
    }
    for (unsigned i = 0; i < 2; i++) {
        message_transfer(&hosts[i].out, &hosts[1 - i].in, 1000);
        message_transfer(&hosts[1 - i].in, &hosts[i].out, 2000);
    }
    for (unsigned i = 0; i < 2; i++) {
        side_close(&hosts[i].out);
        side_close(&hosts[i].in);
    }
    for (unsigned i = 0; i < 2; i++)
        side_close(&hosts[i].listener);
}

/* A server that reads no events after fi_accept: its queue alone makes progress. */
static void unread_connected(void)
{
    static const struct message_settings waiting = {.cq = {.wait_obj = FI_WAIT_FD}};

    for (unsigned way = 0; way < 3; way++) {
        struct side listener, client, server;
        struct fi_cq_data_entry entry;
        struct event request, event;
        struct fid *fids[1];
        int64_t end;
        uint8_t got[4];

        note("way %u", way);
        request = message_request(&listener, &client, NULL);
        message_server(&listener, &server, &request, &waiting);
        CHECK_OK(fi_enable(server.ep));
        post_recv(server.ep, got, sizeof got, 1);
        CHECK_OK(fi_accept(server.ep, NULL, 0));
        end = now_ms() + PATIENCE_MS;
        while (!read_event(client.eq, &event))
            CHECK(now_ms() < end);
        CHECK_INT(event.kind, FI_CONNECTED);
        fids[0] = &server.cq->fid;
        if (way == 0)
            CHECK_OK(fi_trywait(server.fabric, fids, 1));
        CHECK_OK(fi_inject(client.ep, "text", 4, FI_ADDR_UNSPEC));
        if (way == 0)
            CHECK(readable(wait_fd(fids[0]), PATIENCE_MS));
        if (way == 1) {
            CHECK_RET(fi_cq_sread(server.cq, &entry, 1, NULL, PATIENCE_MS), 1);
        } else {
            while (fi_cq_read(server.cq, &entry, 1) == -FI_EAGAIN)
                CHECK(now_ms() < end);
        }
        CHECK_INT(entry.flags, RECEIVED);
        CHECK_BYTES(got, "text", 4);
        post_recv(client.ep, got, sizeof got, 2);
        while (way == 2 && fi_inject(server.ep, "back", 4, FI_ADDR_UNSPEC) == -FI_EAGAIN)
            CHECK(now_ms() < end);
        /* The event is there for whoever reads it. */
        CHECK(readable(wait_fd(&listener.eq->fid), PATIENCE_MS));
        CHECK(await_event(listener.eq, FI_CONNECTED).fid == &server.ep->fid);
        if (way != 2)
            CHECK_OK(fi_inject(server.ep, "back", 4, FI_ADDR_UNSPEC));
        (void)await_done(client.cq, 2, RECEIVED);
        CHECK_BYTES(got, "back", 4);
        message_transfer(&server, &client, 1000);
        close_fid(&client.ep->fid);
        client.ep = NULL;
        (void)await_event(listener.eq, FI_SHUTDOWN);
        side_close(&server);
        side_close(&client);
        side_close(&listener);
    }
}

/* ---- fi_eq_write -------------------------------------------------------------------------- */

/* The longest event of an application. */
#define EQ_WRITE_MAX 272

static void eq_write(void)
{
    struct fi_eq_entry written = {.context = CONTEXT(3), .data = 77}, read = {0};
    struct side listener;
    uint8_t big[EQ_WRITE_MAX + 1], back[EQ_WRITE_MAX];
    uint32_t kind;

    message_listen(&listener, NULL);
    CHECK_RET(fi_eq_write(listener.eq, FI_NOTIFY, &written, sizeof written, 0), sizeof written);
    CHECK(readable(wait_fd(&listener.eq->fid), 0));
    CHECK_RET(fi_eq_read(listener.eq, &kind, &read, sizeof read, FI_PEEK), sizeof read);
    CHECK_RET(fi_eq_sread(listener.eq, &kind, &read, sizeof read, 1000, FI_PEEK), sizeof read);
    CHECK_RET(fi_eq_read(listener.eq, &kind, &read, 3, 0), -FI_ETOOSMALL);
    CHECK_RET(fi_eq_sread(listener.eq, &kind, &read, sizeof read, 1000, 0), sizeof read);
    CHECK_INT(kind, FI_NOTIFY);
    CHECK(read.context == CONTEXT(3));
    CHECK_INT(read.data, 77);
    check_no_event(listener.eq);
    CHECK_RET(fi_eq_write(listener.eq, FI_NOTIFY, NULL, 8, 0), -FI_EINVAL);
    CHECK_RET(fi_eq_write(listener.eq, FI_NOTIFY, &written, sizeof written, 1), -FI_EBADFLAGS);
    memcpy(big, pattern(0, sizeof big), sizeof big);
    CHECK_RET(fi_eq_write(listener.eq, FI_NOTIFY, big, EQ_WRITE_MAX + 1, 0), -FI_EINVAL);
    check_no_event(listener.eq);
    CHECK_RET(fi_eq_write(listener.eq, FI_NOTIFY, big, EQ_WRITE_MAX, 0), EQ_WRITE_MAX);
    CHECK_RET(fi_eq_read(listener.eq, &kind, back, sizeof back, 0), EQ_WRITE_MAX);
    CHECK_BYTES(back, big, EQ_WRITE_MAX);
    check_no_event(listener.eq);
    side_close(&listener);
}

/* A thread that reads an event queue without a time limit. */
struct eq_reader {
    struct fid_eq *eq;
    uint64_t flags;
    pthread_t thread;
};

static void *read_notice(void *argument)
{
    struct eq_reader *reader = argument;
    struct fi_eq_entry entry = {0};
    uint32_t kind = 0;

    CHECK_RET(fi_eq_sread(reader->eq, &kind, &entry, sizeof entry, -1, reader->flags), sizeof entry);
    CHECK_INT(kind, FI_NOTIFY);
    CHECK_INT(entry.data, 78);
    return NULL;
}

static void eq_write_wakes(void)
{
    const struct fi_eq_entry written = {.data = 78};
    struct side listener;

    message_listen(&listener, NULL);
    for (unsigned round = 0; round < 10; round++) {
        struct eq_reader readers[2] = {{listener.eq, 0, 0}, {listener.eq, FI_PEEK, 0}};
        int64_t start;

        note("round %u", round);
        for (unsigned i = 0; i < 2; i++)
            CHECK_OK(pthread_create(&readers[i].thread, NULL, read_notice, &readers[i]));
        /* They sleep, or are about to. */
        sleep_ms(round % 2 ? 30 : 0);
        start = now_ms();
        /* One takes an event. The other one looks at either, and takes none. */
        for (unsigned i = 0; i < 2; i++)
            CHECK_RET(fi_eq_write(listener.eq, FI_NOTIFY, &written, sizeof written, 0), sizeof written);
        for (unsigned i = 0; i < 2; i++)
            CHECK_OK(pthread_join(readers[i].thread, NULL));
        CHECK_BETWEEN(now_ms() - start, 0, 999);
        (void)read_notice(&(struct eq_reader){.eq = listener.eq});
        check_no_event(listener.eq);
    }
    side_close(&listener);
}

static const struct test tests[] = {
    TEST(sleepers_are_told, "FI_CONNREQ, FI_CONNECTED and FI_SHUTDOWN wake the event queue's descriptor"),
    TEST(sleepers_are_told_of_failures, "so do FI_ECONNREFUSED, EPROTO and FI_ECONNRESET of an attempt"),
    TEST(unread_connected, "messages go both ways although the passive side does not read FI_CONNECTED, which stays"),
    TEST(silent_listener, "FI_ETIMEDOUT after FI_RSTREAM_CONNECT_TIMEOUT_MS, for a sleeper too"),
    TEST(waiters_are_told, "all of these end fi_eq_sread"),
    TEST(silent_listener_waited_for, "FI_ETIMEDOUT ends fi_eq_sread"),
    TEST(entries_outlive_the_end, "messages that arrived are read after FI_SHUTDOWN was"),
    TEST(wildcard_listener, "a listener for all addresses: requests have those of the connection"),
    TEST(source_of_info, "an endpoint connects from the address and the port in src_addr of its info"),
    TEST(towards_each_other, "two sides that connect to each other at once: a connection for each attempt"),
    TEST(all_at_once, "many attempts at once, and listeners that connect: each meets its own peer"),
    TEST(eq_write, "fi_eq_write: read back, also by FI_PEEK; bad arguments, and at most 272 bytes"),
    TEST(eq_write_wakes, "fi_eq_write wakes threads in fi_eq_sread, also with FI_PEEK"),
};

const struct section message_events_section = SECTION("message events", tests);
