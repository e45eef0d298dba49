/* Contract, section Connecting: connection attempts that fail. */
#include "conformance.h"

#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include "../iwarp_wire.h"

#define TIMEOUT_MS 600

/* Reads the error of a failed attempt: it names the endpoint, and a text says what happened. */
static int failure(struct side *side)
{
    struct fi_eq_err_entry error = await_error(side->eq, NULL, 0);
    char text[256] = "";
    const char *said = fi_eq_strerror(side->eq, error.prov_errno, error.err_data, text, sizeof text);

    CHECK(error.fid == &side->ep->fid);
    CHECK(said != NULL);
    CHECK_AT_LEAST(strlen(said), 5);
    check_no_event(side->eq);
    return error.err;
}

static void start_connect(struct side *client, unsigned port)
{
    side_active(client, IPV4, port, NULL);
    CHECK_OK(fi_connect(client->ep, client->info->dest_addr, NULL, 0));
}

static void set_time_out(void)
{
    char text[16];

    snprintf(text, sizeof text, "%d", TIMEOUT_MS);
    CHECK_SYS(setenv("FI_RSTREAM_CONNECT_TIMEOUT_MS", text, 1));
}

static void reject_with(size_t length)
{
    struct side listener, client;
    struct event request;
    struct fi_eq_err_entry error;

    side_listen(&listener, IPV4, NULL);
    start_connect(&client, fid_port(&listener.pep->fid));
    request = await_event(listener.eq, FI_CONNREQ);
    CHECK_OK(fi_reject(listener.pep, request.info->handle, pattern(3, length), length));
    fi_freeinfo(request.info);
    error = await_error(client.eq, NULL, 0);
    CHECK_INT(error.err, FI_ECONNREFUSED);
    CHECK(error.fid == &client.ep->fid);
    CHECK_INT(error.err_data_size, length);
    CHECK_BYTES(error.err_data, pattern(3, length), length);
    check_no_event(client.eq);
    CHECK_RET(send_once(client.ep, "x", 1), -FI_ENOTCONN);
    side_close(&client);
    /* The listener takes the next request. */
    start_connect(&client, fid_port(&listener.pep->fid));
    fi_freeinfo(await_event(listener.eq, FI_CONNREQ).info);
    side_close(&client);
    side_close(&listener);
}

static void reject(void)
{
    struct fi_info *hints = stream_hints();
    struct side side;
    size_t most = 0, length = sizeof most;

    side_open(&side, find(IPV4, "7471", 0, hints));
    side_endpoint(&side, NULL);
    CHECK_OK(fi_getopt(&side.ep->fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, &most, &length));
    side_close(&side);
    fi_freeinfo(hints);
    reject_with(0);
    reject_with(1);
    reject_with(most < 33 ? most - 1 : 33);
    reject_with(most);
}

static void nobody_listening(void)
{
    struct side client;
    unsigned port;

    /* No time-out ends the attempt while the test waits. */
    setenv("FI_RSTREAM_CONNECT_TIMEOUT_MS", "60000", 1);
    CHECK_SYS(close(tcp_listen(&port)));
    start_connect(&client, port);
    CHECK_INT(failure(&client), FI_ECONNREFUSED);
    side_close(&client);
}

static void nobody_listening_ipv6(void)
{
    struct side client;
    unsigned port;

    CHECK_SYS(close(tcp_listen(&port)));
    side_active(&client, IPV6, port, NULL);
    CHECK_OK(fi_connect(client.ep, client.info->dest_addr, NULL, 0));
    CHECK_INT(failure(&client), FI_ECONNREFUSED);
    side_close(&client);
}

static void no_route(void)
{
    struct side client;
    int error;

    /* A multicast address: the system refuses to connect to it, and sends nothing. */
    set_time_out();
    side_active(&client, "224.0.0.1", 7471, NULL);
    error = fi_connect(client.ep, client.info->dest_addr, NULL, 0);
    error = error ? -error : failure(&client);
    CHECK(error == FI_ENETUNREACH || error == FI_EHOSTUNREACH || error == FI_EINVAL || error == FI_ETIMEDOUT);
    side_close(&client);
}

static void silent_passive(void)
{
    struct side client;
    unsigned port;
    int64_t start, took;
    int fd = tcp_listen(&port);

    needs_embedded_device();
    set_time_out();
    side_active(&client, IPV4, port, NULL);
    /* What comes before, the first discovery of a process, has no time-out. */
    start = now_ms();
    CHECK_OK(fi_connect(client.ep, client.info->dest_addr, NULL, 0));
    CHECK_INT(failure(&client), FI_ETIMEDOUT);
    took = now_ms() - start;
    CHECK_BETWEEN(took, TIMEOUT_MS, TIMEOUT_MS + 1000);
    CHECK_SYS(close(fd));
    side_close(&client);
}

static void silent_active(void)
{
    struct side listener, client, server;
    struct event request;
    uint8_t byte;
    int silent[8];
    int64_t start;
    unsigned port;

    set_time_out();
    side_listen(&listener, IPV4, NULL);
    port = fid_port(&listener.pep->fid);
    for (unsigned i = 0; i < 8; i++)
        silent[i] = stranger_connect(port);
    CHECK_INT(write(silent[7], "MPA ID", 6), 6);

    /* A peer that sends a request is served at once. */
    start = now_ms();
    start_connect(&client, port);
    request = await_event(listener.eq, FI_CONNREQ);
    accept_request(&listener, &server, &request, NULL, 0);
    await_event(client.eq, FI_CONNECTED);
    CHECK(now_ms() - start < TIMEOUT_MS / 2);

    /* Silent peers are dropped when their time-out has passed. */
    for (unsigned i = 0; i < 8; i++) {
        CHECK_INT(tcp_read_to_end(silent[i], &byte, 1, TIMEOUT_MS + 2000), 0);
        CHECK_SYS(close(silent[i]));
    }
    await_event(listener.eq, FI_CONNECTED);
    check_no_event(listener.eq);
    side_close(&client);
    side_close(&server);
    side_close(&listener);
}

static void garbage_from_passive(void)
{
    struct side client;
    unsigned port;
    int64_t start = now_ms();
    int fd = tcp_listen(&port), connection, error;

    start_connect(&client, port);
    connection = tcp_accept(fd);
    CHECK_SYS(write(connection, "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n", 46));
    error = failure(&client);
    CHECK_INT(error, EPROTO);
    CHECK(now_ms() - start < 3000);
    CHECK_SYS(close(connection));
    CHECK_SYS(close(fd));
    side_close(&client);
}

static void closed_in_handshake(void)
{
    struct side client;
    unsigned port;
    int64_t start = now_ms();
    int fd = tcp_listen(&port);

    start_connect(&client, port);
    CHECK_SYS(close(tcp_accept(fd)));
    CHECK_AT_LEAST(failure(&client), 1);
    CHECK(now_ms() - start < 3000);
    CHECK_SYS(close(fd));
    side_close(&client);
}

static void garbage_from_active(void)
{
    struct side listener, client, server;
    struct event request;
    uint8_t answer[64];
    int64_t start = now_ms();
    int fd;

    side_listen(&listener, IPV4, NULL);
    fd = stranger_connect(fid_port(&listener.pep->fid));
    CHECK_SYS(write(fd, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", 35));
    CHECK_AT_LEAST(tcp_read_to_end(fd, answer, sizeof answer, 3000), 0);
    CHECK(now_ms() - start < 3000);
    CHECK_SYS(close(fd));
    check_no_event(listener.eq);

    start_connect(&client, fid_port(&listener.pep->fid));
    request = await_event(listener.eq, FI_CONNREQ);
    accept_request(&listener, &server, &request, NULL, 0);
    await_event(client.eq, FI_CONNECTED);
    side_close(&client);
    side_close(&server);
    side_close(&listener);
}

/* ---- a peer that speaks MPA but another stream protocol ------------------------------------- */

/* Offset of the version in the stream protocol's connection data. */
#define VERSION_OFFSET 23

/* Connection data of this protocol with a different version. */
static void stranger_data(uint8_t data[25])
{
    memset(data, 0, 25);
    data[0] = 24;
    data[16] = 1;
    data[19] = 0x80;
    data[21] = 1;
    data[VERSION_OFFSET] = 77;
}

static void wrong_version_from_passive(void)
{
    uint8_t frame[1024], reply[64], data[25];
    struct side client;
    unsigned port;
    int fd = tcp_listen(&port), connection, error;
    int64_t start = now_ms();
    size_t length;

    start_connect(&client, port);
    connection = tcp_accept(fd);
    CHECK_AT_LEAST(mpa_read(connection, frame, sizeof frame), MPA_HEADER);
    CHECK_BYTES(frame, MPA_REQUEST, 16);
    stranger_data(data);
    length = mpa_frame(reply, MPA_REPLY, frame[MPA_REVISION], 0, data, sizeof data);
    CHECK_INT(CHECK_SYS(write(connection, reply, length)), length);
    error = failure(&client);
    CHECK_INT(error, EPROTO);
    CHECK(now_ms() - start < 5000);
    CHECK_SYS(close(connection));
    CHECK_SYS(close(fd));
    side_close(&client);
}

static void wrong_version_from_active(void)
{
    uint8_t request[64], reply[1024], data[25];
    struct side listener;
    size_t length;
    int fd;

    side_listen(&listener, IPV4, NULL);
    fd = stranger_connect(fid_port(&listener.pep->fid));
    stranger_data(data);
    length = mpa_frame(request, MPA_REQUEST, 1, 0, data, sizeof data);
    CHECK_INT(CHECK_SYS(write(fd, request, length)), length);
    CHECK_AT_LEAST(mpa_read(fd, reply, sizeof reply), MPA_HEADER);
    CHECK_BYTES(reply, MPA_REPLY, 16);
    CHECK_INT(reply[MPA_FLAGS] & MPA_REJECT, MPA_REJECT);
    check_no_event(listener.eq);
    CHECK_SYS(close(fd));
    side_close(&listener);
}

static void refused_can_close(void)
{
    struct side client;
    unsigned port;
    int fd = tcp_listen(&port);

    /* Closing during a connection attempt does not wait for a time-out. */
    start_connect(&client, port);
    CHECK_INT(tcp_accept(fd) >= 0, true);
    sleep_ms(20);
    int64_t start = now_ms();
    side_close(&client);
    CHECK(now_ms() - start < 1000);
    CHECK_SYS(close(fd));
}

/* ---- a listener whose application does not accept or reject ---------------------------------- */

static void unanswered(void)
{
    struct side listener, client;
    struct event request;
    int64_t start;

    set_time_out();
    side_listen(&listener, IPV4, NULL);
    start = now_ms();
    start_connect(&client, fid_port(&listener.pep->fid));
    request = await_event(listener.eq, FI_CONNREQ);
    CHECK_INT(failure(&client), FI_ETIMEDOUT);
    CHECK_BETWEEN(now_ms() - start, TIMEOUT_MS, TIMEOUT_MS + 1000);
    fi_freeinfo(request.info);
    side_close(&client);
    side_close(&listener);
}

static void unanswered_can_close(void)
{
    struct side listener, client;
    struct event request;
    int64_t start;

    side_listen(&listener, IPV4, NULL);
    start_connect(&client, fid_port(&listener.pep->fid));
    request = await_event(listener.eq, FI_CONNREQ);
    start = now_ms();
    side_close(&client);
    CHECK(now_ms() - start < 1000);
    fi_freeinfo(request.info);
    side_close(&listener);
}

/* ---- requests that are dropped ---------------------------------------------------------------- */

static void endpoint_gives_up(void)
{
    struct side listener, client, server;
    struct event request;

    side_listen(&listener, IPV4, NULL);
    start_connect(&client, fid_port(&listener.pep->fid));
    request = await_event(listener.eq, FI_CONNREQ);
    side_for_request(&listener, &server, &request);
    side_close(&server);
    CHECK(failure(&client) != FI_ETIMEDOUT);
    side_close(&client);
    side_close(&listener);
}

/* A request whose event nobody has read. */
static void listener_gives_up(void)
{
    struct side listener, client;
    struct fi_eq_cm_entry entry;
    uint32_t event;

    side_listen(&listener, IPV4, NULL);
    start_connect(&client, fid_port(&listener.pep->fid));
    while (fi_eq_read(listener.eq, &event, &entry, 1, 0) != -FI_ETOOSMALL)
        drive();
    close_fid(&listener.pep->fid);
    listener.pep = NULL;
    CHECK(failure(&client) != FI_ETIMEDOUT);
    check_no_event(listener.eq);
    side_close(&client);
    side_close(&listener);
}

/* Begins to connect, and closes the passive endpoint once the request is read. */
static struct fi_info *orphaned_request(struct side *listener, struct side *client)
{
    struct event request;

    side_listen(listener, IPV4, NULL);
    start_connect(client, fid_port(&listener->pep->fid));
    request = await_event(listener->eq, FI_CONNREQ);
    close_fid(&listener->pep->fid);
    listener->pep = NULL;
    return request.info;
}

/* Accepts without a passive endpoint, transfers, and closes everything. */
static void accept_orphan(struct side *listener, struct side *client, struct side *server)
{
    CHECK(listener->pep == NULL);
    CHECK_OK(fi_accept(server->ep, NULL, 0));
    await_event(client->eq, FI_CONNECTED);
    await_event(server->eq, FI_CONNECTED);
    transfer(client->ep, server->ep, 1000);
    side_close(client);
    side_close(server);
    side_close(listener);
}

static void listener_leaves_requests(void)
{
    struct side listener, client, server;
    struct event request = {.kind = FI_CONNREQ, .info = orphaned_request(&listener, &client)};

    side_for_request(&listener, &server, &request);
    accept_orphan(&listener, &client, &server);
}

static void fabric_gives_up(void)
{
    struct side listener, client;
    struct fi_info *request = orphaned_request(&listener, &client);

    side_close(&listener);
    CHECK(failure(&client) != FI_ETIMEDOUT);
    fi_freeinfo(request);
    side_close(&client);
}

static void listener_gives_up_old(void)
{
    struct side listener, client;
    struct fi_info *request;

    set_time_out();
    request = orphaned_request(&listener, &client);
    CHECK_INT(failure(&client), FI_ETIMEDOUT);
    /* The request arrived after its peer's time had begun. */
    sleep_ms(TIMEOUT_MS);
    CHECK_OK(fi_passive_ep(listener.fabric, listener.info, &listener.pep, NULL));
    close_fid(&listener.pep->fid);
    listener.pep = NULL;
    CHECK_RET(fi_endpoint(listener.domain, request, &listener.ep, NULL), -FI_EINVAL);
    fi_freeinfo(request);
    side_close(&client);
    side_close(&listener);
}

static void listener_leaves_to_endpoint(void)
{
    struct side listener, client, server;
    struct event request;

    side_listen(&listener, IPV4, NULL);
    start_connect(&client, fid_port(&listener.pep->fid));
    request = await_event(listener.eq, FI_CONNREQ);
    side_for_request(&listener, &server, &request);
    close_fid(&listener.pep->fid);
    listener.pep = NULL;
    accept_orphan(&listener, &client, &server);
}

static void peer_has_left(void)
{
    struct side listener, client, server;
    struct event request;

    needs_embedded_device();
    side_listen(&listener, IPV4, NULL);
    for (unsigned refused = 0; refused < 2; refused++) {
        start_connect(&client, fid_port(&listener.pep->fid));
        request = await_event(listener.eq, FI_CONNREQ);
        side_close(&client);
        for (unsigned i = 0; i < 100; i++)
            drive();
        if (refused) {
            CHECK_OK(fi_reject(listener.pep, request.info->handle, NULL, 0));
            fi_freeinfo(request.info);
        } else {
            accept_request(&listener, &server, &request, NULL, 0);
            CHECK(readable(wait_fd(&server.eq->fid), PATIENCE_MS));
            CHECK_INT(failure(&server), FI_ECONNRESET);
            side_close(&server);
        }
    }
    side_close(&listener);
}

static const struct test tests[] = {
    TEST(reject, "fi_reject carries data; the active side reads FI_ECONNREFUSED with it in err_data"),
    TEST(nobody_listening, "nobody listening: one error entry, FI_ECONNREFUSED, with a text"),
    TEST(nobody_listening_ipv6, "nobody listening, over IPv6"),
    TEST(no_route, "no route: an error that says so, never a hang"),
    TEST(silent_passive, "a peer that stays silent: FI_RSTREAM_CONNECT_TIMEOUT_MS, FI_ETIMEDOUT"),
    TEST(silent_active, "a slow handshake costs one time-out and blocks nobody"),
    TEST(garbage_from_passive, "garbage instead of a handshake ends at once"),
    TEST(closed_in_handshake, "a peer that closes in the handshake: one error entry"),
    TEST(garbage_from_active, "garbage to a listener ends that connection and no other"),
    TEST(wrong_version_from_passive, "the wrong version in a reply: one error entry"),
    TEST(wrong_version_from_active, "the wrong version in a request is rejected"),
    TEST(refused_can_close, "fi_close in the middle of connecting"),
    TEST(unanswered, "a listener that does not answer: FI_RSTREAM_CONNECT_TIMEOUT_MS, FI_ETIMEDOUT"),
    TEST(unanswered_can_close, "fi_close while the listener does not answer"),
    TEST(endpoint_gives_up, "closing an endpoint that has not accepted its request gives the request up"),
    TEST(listener_gives_up, "closing a passive endpoint gives up its requests that were not read"),
    TEST(listener_leaves_requests, "but not those that were read: they can be accepted afterwards"),
    TEST(fabric_gives_up, "closing the fabric gives these up"),
    TEST(listener_gives_up_old, "closing a passive endpoint gives up those for which FI_RSTREAM_CONNECT_TIMEOUT_MS is over"),
    TEST(listener_leaves_to_endpoint, "but not those for which there is an endpoint"),
    TEST(peer_has_left, "a peer that has left: fi_reject and fi_accept answer 0, and one error entry follows the latter"),
};

const struct section refusals_section = SECTION("refusals", tests);
