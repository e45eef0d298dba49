/* Contract, section Connecting: reading event queues. */
#include "conformance.h"

#include <pthread.h>
#include <stdatomic.h>

union buffer {
    struct fi_eq_cm_entry entry;
    uint8_t bytes[sizeof(struct fi_eq_cm_entry) + 64];
};

/* A listener whose event queue holds a connection request with 11 bytes of data. */
static void open_with_request(struct side *listener, struct side *client)
{
    side_listen(listener, IPV4, NULL);
    side_active(client, IPV4, fid_port(&listener->pep->fid), NULL);
    CHECK_OK(fi_connect(client->ep, client->info->dest_addr, "eleven data", 11));
    AWAIT(PATIENCE_MS, readable(wait_fd(&listener->eq->fid), 0));
}

/* Waits for the next event, and reads it without removing it. */
static ssize_t peek(struct fid_eq *eq, uint32_t *kind, void *buffer, size_t size)
{
    ssize_t got = -FI_EAGAIN;

    AWAIT(PATIENCE_MS, (got = fi_eq_read(eq, kind, buffer, size, FI_PEEK)) != -FI_EAGAIN);
    return got;
}

static void entry_too_short(void)
{
    struct side listener, client;
    union buffer buffer;
    uint32_t kind = 0;

    open_with_request(&listener, &client);
    CHECK_INT(peek(listener.eq, &kind, &buffer, sizeof buffer), sizeof buffer.entry + 11);
    CHECK_RET(fi_eq_read(listener.eq, &kind, &buffer, sizeof buffer.entry - 1, 0), -FI_ETOOSMALL);
    CHECK_RET(fi_eq_read(listener.eq, &kind, &buffer, 0, 0), -FI_ETOOSMALL);
    CHECK_RET(fi_eq_sread(listener.eq, &kind, &buffer, 1, 1000, 0), -FI_ETOOSMALL);
    fi_freeinfo(await_event(listener.eq, FI_CONNREQ).info);
    side_close(&client);
    side_close(&listener);
}

static void data_is_cut(void)
{
    struct side listener, client;
    union buffer buffer;
    uint32_t kind = 0;

    open_with_request(&listener, &client);
    CHECK_INT(peek(listener.eq, &kind, &buffer, sizeof buffer), sizeof buffer.entry + 11);
    memset(&buffer, 0xaa, sizeof buffer);
    CHECK_RET(fi_eq_read(listener.eq, &kind, &buffer, sizeof buffer.entry + 4, 0), sizeof buffer.entry + 4);
    CHECK_INT(kind, FI_CONNREQ);
    CHECK_BYTES(buffer.bytes + sizeof buffer.entry, "elev\xaa", 5);
    fi_freeinfo(buffer.entry.info);
    check_no_event(listener.eq);
    side_close(&client);
    side_close(&listener);
}

static void peek_leaves(void)
{
    struct side listener, client;
    union buffer first, second;
    uint32_t kind = 0;

    open_with_request(&listener, &client);
    for (unsigned i = 0; i < 3; i++) {
        CHECK_INT(peek(listener.eq, &kind, &first, sizeof first), sizeof first.entry + 11);
        CHECK_INT(kind, FI_CONNREQ);
    }
    CHECK_RET(fi_eq_read(listener.eq, &kind, &second, sizeof second, 0), sizeof second.entry + 11);
    CHECK(first.entry.fid == second.entry.fid);
    check_no_event(listener.eq);
    fi_freeinfo(second.entry.info);
    side_close(&client);
    side_close(&listener);
}

/* A client whose request was rejected. Its event queue holds an error with `length` bytes of data. */
static void open_with_error(struct side *listener, struct side *client, size_t length)
{
    struct event request;
    union buffer buffer;
    uint32_t kind;

    side_listen(listener, IPV4, NULL);
    side_active(client, IPV4, fid_port(&listener->pep->fid), NULL);
    CHECK_OK(fi_connect(client->ep, client->info->dest_addr, NULL, 0));
    request = await_event(listener->eq, FI_CONNREQ);
    CHECK_OK(fi_reject(listener->pep, request.info->handle, pattern(9, length), length));
    fi_freeinfo(request.info);
    CHECK_RET(peek(client->eq, &kind, &buffer, sizeof buffer), -FI_EAVAIL);
}

static void error_blocks_reads(void)
{
    struct side listener, client;
    union buffer buffer;
    uint32_t kind;

    open_with_error(&listener, &client, 0);
    CHECK_RET(fi_eq_read(client.eq, &kind, &buffer, sizeof buffer, 0), -FI_EAVAIL);
    CHECK_RET(fi_eq_sread(client.eq, &kind, &buffer, sizeof buffer, 1000, 0), -FI_EAVAIL);
    CHECK_INT(await_error(client.eq, NULL, 0).err, FI_ECONNREFUSED);
    check_no_event(client.eq);
    side_close(&client);
    side_close(&listener);
}

static void error_into_own_buffer(void)
{
    struct side listener, client;
    uint8_t data[40];
    struct fi_eq_err_entry error;

    open_with_error(&listener, &client, 20);
    memset(data, 0xaa, sizeof data);
    error = await_error(client.eq, data, sizeof data);
    CHECK(error.fid == &client.ep->fid);
    CHECK(error.err_data == data);
    CHECK_INT(error.err_data_size, 20);
    CHECK_BYTES(data, pattern(9, 20), 20);
    CHECK_INT(data[20], 0xaa);
    side_close(&client);
    side_close(&listener);
}

static void error_cut_to_own_buffer(void)
{
    struct side listener, client;
    uint8_t data[8];
    struct fi_eq_err_entry error;

    open_with_error(&listener, &client, 20);
    memset(data, 0xaa, sizeof data);
    error = await_error(client.eq, data, 5);
    CHECK_INT(error.err_data_size, 5);
    CHECK_BYTES(data, pattern(9, 5), 5);
    CHECK_INT(data[5], 0xaa);
    side_close(&client);
    side_close(&listener);
}

static void error_into_library_buffer(void)
{
    struct side listener, client;
    struct fi_eq_err_entry error;

    open_with_error(&listener, &client, 20);
    error = await_error(client.eq, NULL, 0);
    CHECK(error.err_data != NULL);
    CHECK_INT(error.err_data_size, 20);
    CHECK_BYTES(error.err_data, pattern(9, 20), 20);
    side_close(&client);
    side_close(&listener);
}

static void no_error_queued(void)
{
    struct fi_eq_err_entry error = {0};
    struct side listener;

    side_listen(&listener, IPV4, NULL);
    CHECK_RET(fi_eq_readerr(listener.eq, &error, 0), -FI_EAGAIN);
    side_close(&listener);
}

static void sread_time_out(void)
{
    const int timeouts[] = {0, 1, 20, 150};
    struct side listener;
    union buffer buffer;
    uint32_t kind;

    side_listen(&listener, IPV4, NULL);
    for (unsigned i = 0; i < sizeof timeouts / sizeof timeouts[0]; i++) {
        int64_t best = INT64_MAX;

        /* Never too early. At most 5 ms too late on an idle machine: the best of several rounds counts,
         * because this machine may be busy. */
        for (unsigned round = 0; round < 5; round++) {
            int64_t start = now_us(), took;

            CHECK_RET(fi_eq_sread(listener.eq, &kind, &buffer, sizeof buffer, timeouts[i], 0), -FI_EAGAIN);
            took = now_us() - start;
            CHECK_AT_LEAST(took, (int64_t)timeouts[i] * 1000);
            if (took < best)
                best = took;
        }
        CHECK_BETWEEN(best, (int64_t)timeouts[i] * 1000, (int64_t)timeouts[i] * 1000 + 5000);
    }
    side_close(&listener);
}

/* A thread that connects to the port after some time, and then waits for the end of the stream. */
struct later {
    unsigned port;
    atomic_bool is_connected;
};

static void *connect_later(void *argument)
{
    struct later *later = argument;
    struct side client;

    sleep_ms(150);
    side_active(&client, IPV4, later->port, NULL);
    CHECK_OK(fi_connect(client.ep, client.info->dest_addr, NULL, 0));
    await_event(client.eq, FI_CONNECTED);
    later->is_connected = true;
    AWAIT(PATIENCE_MS, recv_once(client.ep, &(uint8_t){0}, 1) == 0);
    side_close(&client);
    return NULL;
}

static void sread_wakes(void)
{
    struct side listener, server;
    struct event request = {0};
    union buffer buffer;
    struct later later = {0};
    pthread_t thread;
    int64_t start = now_ms();
    const int limit = 60000;

    side_listen(&listener, IPV4, NULL);
    later.port = fid_port(&listener.pep->fid);
    CHECK_INT(pthread_create(&thread, NULL, connect_later, &later), 0);
    /* Without a limit, and with one. Each wait ends with the event, not with a time-out. */
    CHECK_RET(fi_eq_sread(listener.eq, &request.kind, &buffer, sizeof buffer, -1, 0), sizeof buffer.entry);
    CHECK_INT(request.kind, FI_CONNREQ);
    CHECK_AT_LEAST(now_ms() - start, 100);
    request.info = buffer.entry.info;
    accept_request(&listener, &server, &request, NULL, 0);
    CHECK_RET(fi_eq_sread(listener.eq, &request.kind, &buffer, sizeof buffer, limit, 0), sizeof buffer.entry);
    CHECK_INT(request.kind, FI_CONNECTED);
    CHECK(now_ms() - start < limit / 2);
    /* Soft iWARP fails an attempt whose reply is followed by bytes before it was read. */
    AWAIT(PATIENCE_MS, later.is_connected);
    CHECK_OK(fi_shutdown(server.ep, 0));
    CHECK_RET(fi_eq_sread(listener.eq, &request.kind, &buffer, sizeof buffer, PATIENCE_MS, 0), sizeof buffer.entry);
    CHECK_INT(request.kind, FI_SHUTDOWN);
    side_close(&server);
    CHECK_INT(pthread_join(thread, NULL), 0);
    side_close(&listener);
}

static void requests_never_taken(void)
{
    struct side listener, client;

    /* Closing the listener and its queue drops the request, and the client gets an error. AddressSanitizer
     * would report a leak. */
    open_with_request(&listener, &client);
    side_close(&listener);
    CHECK_INT(await_error(client.eq, NULL, 0).err > 0, true);
    side_close(&client);
}

static void close_drops_events(void)
{
    struct pair pair;

    pair_open(&pair, IPV4, NULL);
    CHECK_OK(fi_shutdown(pair.server.ep, 0));
    AWAIT(PATIENCE_MS, recv_once(pair.client.ep, &(uint8_t){0}, 1) == 0);
    AWAIT(PATIENCE_MS, fi_eq_read(pair.client.eq, &(uint32_t){0}, &(union buffer){0}, sizeof(union buffer), FI_PEEK) > 0);
    close_fid(&pair.client.ep->fid);
    pair.client.ep = NULL;
    check_no_event(pair.client.eq);
    pair_close(&pair);
}

static const struct test tests[] = {
    TEST(entry_too_short, "a buffer shorter than the entry: -FI_ETOOSMALL, the event stays"),
    TEST(data_is_cut, "long enough for the entry but not for its data: the data is cut"),
    TEST(peek_leaves, "FI_PEEK leaves the event"),
    TEST(error_blocks_reads, "a queued error makes reads answer -FI_EAVAIL until fi_eq_readerr"),
    TEST(error_into_own_buffer, "fi_eq_readerr honours a caller's err_data buffer"),
    TEST(error_cut_to_own_buffer, "a caller's err_data buffer that is too short is filled as far as it goes"),
    TEST(error_into_library_buffer, "without a buffer err_data is the provider's until the next read"),
    TEST(no_error_queued, "fi_eq_readerr without an error answers -FI_EAGAIN"),
    TEST(sread_time_out, "fi_eq_sread: never early, at most 5 ms late"),
    TEST(sread_wakes, "fi_eq_sread wakes for events of every endpoint bound"),
    TEST(requests_never_taken, "connection requests never taken are freed with the event queue"),
    TEST(close_drops_events, "fi_close drops the endpoint's events that were not read"),
};

const struct section events_section = SECTION("events", tests);
