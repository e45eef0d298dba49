/* Contract, section Message endpoints: completion queues, counters and shared receive contexts. */
#include "message.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>

static const struct message_settings waiting = {.cq = {.wait_obj = FI_WAIT_FD}};

/* ---- reading ------------------------------------------------------------------------------ */

/* Connects two sides. The client's queue has this format, as fi_cq_open is told. */
static void open_with_format(struct pair *pair, enum fi_cq_format format)
{
    struct fi_cq_attr attr = {.format = format};
    struct event request;

    memset(pair, 0, sizeof *pair);
    message_listen(&pair->listener, NULL);
    message_client(&pair->client, &pair->listener, NULL);
    CHECK_OK(fi_cq_open(pair->client.domain, &attr, &pair->client.cq, NULL));
    message_endpoint(&pair->client, NULL);
    CHECK_OK(fi_connect(pair->client.ep, pair->client.info->dest_addr, NULL, 0));
    request = await_event(pair->listener.eq, FI_CONNREQ);
    message_server(&pair->listener, &pair->server, &request, NULL);
    message_accept(&pair->client, &pair->server);
}

static void formats(void)
{
    const struct {
        enum fi_cq_format format;
        size_t length;
    } cases[] = {
        /* Contexts, too. */
        {FI_CQ_FORMAT_UNSPEC, sizeof(struct fi_cq_entry)},
        {FI_CQ_FORMAT_CONTEXT, sizeof(struct fi_cq_entry)},
        {FI_CQ_FORMAT_MSG, sizeof(struct fi_cq_msg_entry)},
        {FI_CQ_FORMAT_DATA, sizeof(struct fi_cq_data_entry)},
        {FI_CQ_FORMAT_TAGGED, sizeof(struct fi_cq_tagged_entry)},
    };

    for (unsigned i = 0; i < 5; i++) {
        union {
            struct fi_cq_tagged_entry entry;
            uint8_t bytes[4 * sizeof(struct fi_cq_tagged_entry)];
        } buffer;
        struct fi_cq_tagged_entry *entry = &buffer.entry;
        uint8_t got[3][7] = {{0}};
        struct pair pair;
        ssize_t count = 0;

        note("format %d", cases[i].format);
        open_with_format(&pair, cases[i].format);
        for (unsigned n = 0; n < 3; n++)
            post_recv(pair.client.ep, got[n], sizeof got[n], 10 + n);
        for (unsigned n = 0; n < 3; n++)
            CHECK_OK(fi_injectdata(pair.server.ep, "hello", 5, 88, FI_ADDR_UNSPEC));
        memset(&buffer, 0xab, sizeof buffer);
        /* Wait without taking. */
        AWAIT(PATIENCE_MS, fi_cq_read(pair.client.cq, NULL, 0) != -FI_EAGAIN);
        drive();
        AWAIT(PATIENCE_MS, got[2][4] == 'o');
        drive();
        count = fi_cq_read(pair.client.cq, &buffer, 2);
        CHECK_RET(count, 2);
        CHECK_INT((uintptr_t)entry->op_context, 10);
        if (cases[i].length >= sizeof(struct fi_cq_msg_entry)) {
            CHECK_INT(entry->flags, RECEIVED | FI_REMOTE_CQ_DATA);
            CHECK_INT(entry->len, 5);
        }
        if (cases[i].length >= sizeof(struct fi_cq_data_entry)) {
            CHECK(entry->buf == NULL);
            CHECK_INT(entry->data, 88);
        }
        if (cases[i].length >= sizeof(struct fi_cq_tagged_entry))
            CHECK_INT(entry->tag, 0);
        entry = (void *)(buffer.bytes + cases[i].length);
        CHECK_INT((uintptr_t)entry->op_context, 11);
        for (size_t at = 2 * cases[i].length; at < sizeof buffer; at++)
            CHECK_INT(buffer.bytes[at], 0xab);
        CHECK_RET(fi_cq_read(pair.client.cq, &buffer, 4), 1);
        CHECK_RET(fi_cq_read(pair.client.cq, &buffer, 4), -FI_EAGAIN);
        pair_close(&pair);
    }
}

/* fi_cq_sreadfrom: as fi_cq_sread, with sources. */
static void reads_with_sources(void)
{
    struct fi_cq_data_entry entries[4];
    fi_addr_t sources[4] = {0};
    uint8_t got[2];
    struct pair pair, none;
    int64_t start;

    messages_open(&pair, &waiting);
    messages_open(&none, NULL);
    for (int ms = 0; ms <= 100; ms += 50) {
        start = now_us();
        CHECK_RET(fi_cq_sreadfrom(pair.server.cq, entries, 4, sources, NULL, ms), -FI_EAGAIN);
        CHECK_BETWEEN(now_us() - start, ms * 1000, ms * 1000 + 1000000);
    }
    CHECK_INT(sources[0], 0);
    for (unsigned i = 0; i < 2; i++) {
        post_recv(pair.server.ep, &got[i], 1, i);
        CHECK_OK(fi_inject(pair.client.ep, "x", 1, FI_ADDR_UNSPEC));
    }
    AWAIT(PATIENCE_MS, (drive(), fi_rx_size_left(pair.server.ep) == MESSAGE_QUEUE));
    CHECK_RET(fi_cq_sreadfrom(pair.server.cq, entries, 4, sources, NULL, -1), 2);
    for (unsigned i = 0; i < 2; i++) {
        CHECK_INT((uintptr_t)entries[i].op_context, i);
        CHECK_INT(sources[i], FI_ADDR_NOTAVAIL);
    }
    CHECK_INT(sources[2], 0);
    /* A failure has none. */
    post_recv(pair.server.ep, got, 0, 3);
    CHECK_OK(fi_inject(pair.client.ep, "x", 1, FI_ADDR_UNSPEC));
    sources[0] = 0;
    CHECK_RET(fi_cq_sreadfrom(pair.server.cq, entries, 4, sources, NULL, 5000), -FI_EAVAIL);
    CHECK_INT(sources[0], 0);
    CHECK_RET(fi_cq_sreadfrom(pair.server.cq, NULL, 1, sources, NULL, 10), -FI_EINVAL);
    CHECK_RET(fi_cq_sreadfrom(none.server.cq, entries, 4, sources, NULL, 10), -FI_ENOSYS);
    pair_close(&none);
    pair_close(&pair);
}

static void reads(void)
{
    struct fi_cq_data_entry entries[8];
    fi_addr_t sources[8];
    uint8_t got[4];
    struct pair pair;

    messages_open(&pair, NULL);
    CHECK_RET(fi_cq_read(pair.server.cq, NULL, 0), -FI_EAGAIN);
    CHECK_RET(fi_cq_read(pair.server.cq, entries, 8), -FI_EAGAIN);
    CHECK_RET(fi_cq_readerr(pair.server.cq, &(struct fi_cq_err_entry){0}, 0), -FI_EAGAIN);
    CHECK_RET(fi_cq_read(pair.server.cq, NULL, 1), -FI_EINVAL);
    CHECK_RET(fi_cq_read(pair.server.cq, entries, SIZE_MAX), -FI_EINVAL);
    CHECK_RET(fi_cq_readerr(pair.server.cq, NULL, 0), -FI_EINVAL);
    for (unsigned i = 0; i < 4; i++) {
        post_recv(pair.server.ep, &got[i], 1, i);
        CHECK_OK(fi_inject(pair.client.ep, "x", 1, FI_ADDR_UNSPEC));
    }
    memset(sources, 0, sizeof sources);
    AWAIT(PATIENCE_MS, (drive(), fi_rx_size_left(pair.server.ep) == MESSAGE_QUEUE));
    /* No room: nothing is taken. */
    CHECK_RET(fi_cq_read(pair.server.cq, NULL, 0), 0);
    CHECK_RET(fi_cq_readfrom(pair.server.cq, entries, 3, sources), 3);
    for (unsigned i = 0; i < 3; i++) {
        CHECK_INT((uintptr_t)entries[i].op_context, i);
        CHECK_INT(sources[i], FI_ADDR_NOTAVAIL);
    }
    CHECK_INT(sources[3], 0);
    CHECK_RET(fi_cq_readerr(pair.server.cq, &(struct fi_cq_err_entry){0}, 0), -FI_EAGAIN);
    CHECK_RET(fi_cq_readfrom(pair.server.cq, entries, 3, NULL), 1);
    pair_close(&pair);
}

/* The rest of a long message goes out while an entry stays unread. */
static void reads_for_progress(void)
{
    enum { LENGTH = 8 << 20 };
    uint8_t *sent = map_pages(LENGTH), *got = map_pages(LENGTH), byte;
    struct pair pair;

    messages_open(&pair, NULL);
    post_recv(pair.client.ep, &byte, 1, 1);
    CHECK_OK(fi_inject(pair.server.ep, "x", 1, FI_ADDR_UNSPEC));
    AWAIT(PATIENCE_MS, fi_cq_read(pair.client.cq, NULL, 0) != -FI_EAGAIN);
    memset(sent, 7, LENGTH);
    post_send(pair.client.ep, sent, LENGTH, 2);
    post_recv(pair.server.ep, got, LENGTH, 3);
    AWAIT(PATIENCE_MS, (fi_cq_read(pair.client.cq, NULL, 0), fi_cq_read(pair.server.cq, NULL, 0) != -FI_EAGAIN));
    CHECK_INT(await_done(pair.server.cq, 3, RECEIVED).len, LENGTH);
    CHECK_INT(got[LENGTH - 1], 7);
    (void)await_done(pair.client.cq, 1, RECEIVED);
    (void)await_done(pair.client.cq, 2, SENT);
    pair_close(&pair);
    unmap_pages(sent, LENGTH);
    unmap_pages(got, LENGTH);
}

static void errors_in_order(void)
{
    struct fi_cq_err_entry error;
    struct fi_cq_data_entry entries[8];
    uint8_t got[4], data[8], untouched[8];
    struct pair pair;

    /* A success, a failure, a success. */
    messages_open(&pair, NULL);
    for (unsigned i = 0; i < 3; i++) {
        post_recv(pair.server.ep, &got[i], 1, i);
        CHECK_OK(fi_inject(pair.client.ep, "xx", i == 1 ? 2 : 1, FI_ADDR_UNSPEC));
    }
    AWAIT(PATIENCE_MS, (drive(), fi_rx_size_left(pair.server.ep) == MESSAGE_QUEUE));
    CHECK_RET(fi_cq_read(pair.server.cq, entries, 8), 1);
    CHECK_RET(fi_cq_read(pair.server.cq, entries, 8), -FI_EAVAIL);
    CHECK_RET(fi_cq_read(pair.server.cq, NULL, 0), -FI_EAVAIL);
    memset(&error, 0xff, sizeof error);
    memset(data, 0xab, sizeof data);
    memcpy(untouched, data, sizeof data);
    error.err_data = data;
    error.err_data_size = sizeof data;
    CHECK_RET(fi_cq_readerr(pair.server.cq, &error, 1), -FI_EBADFLAGS);
    CHECK_RET(fi_cq_readerr(pair.server.cq, &error, 0), 1);
    CHECK_INT((uintptr_t)error.op_context, 1);
    CHECK_INT(error.flags, RECEIVED);
    CHECK_INT(error.err, FI_ETRUNC);
    CHECK_INT(error.len, 1);
    CHECK_INT(error.olen, 1);
    CHECK_INT(error.data, 0);
    CHECK_INT(error.tag, 0);
    CHECK(error.buf == NULL);
    /* There is no error data. */
    CHECK_INT(error.err_data_size, 0);
    CHECK_BYTES(data, untouched, sizeof data);
    CHECK_RET(fi_cq_readerr(pair.server.cq, &error, 0), -FI_EAGAIN);
    CHECK_RET(fi_cq_read(pair.server.cq, entries, 8), 1);
    CHECK_INT((uintptr_t)entries[0].op_context, 2);
    pair_close(&pair);
}

static void texts(void)
{
    char buffer[64], small[4];
    struct pair pair;

    messages_open(&pair, NULL);
    for (int code = -3; code < 300; code++) {
        const char *text = fi_cq_strerror(pair.client.cq, code, NULL, NULL, 0);

        CHECK(text != NULL);
        CHECK_AT_LEAST(strlen(text), 5);
        CHECK(fi_cq_strerror(pair.client.cq, code, NULL, buffer, sizeof buffer) == buffer);
        CHECK(strncmp(buffer, text, sizeof buffer - 1) == 0);
        memset(small, 'z', sizeof small);
        CHECK(fi_cq_strerror(pair.client.cq, code, NULL, small, 3) == small);
        CHECK(small[2] == '\0' && small[3] == 'z');
        CHECK(fi_cq_strerror(pair.client.cq, code, NULL, buffer, 0) != NULL);
    }
    CHECK(strcmp(fi_cq_strerror(pair.client.cq, 1, NULL, NULL, 0), fi_cq_strerror(pair.client.cq, 2, NULL, NULL, 0)));
    pair_close(&pair);
}

static void queue_attributes(void)
{
    const enum fi_wait_obj refused[] = {FI_WAIT_SET, FI_WAIT_MUTEX_COND, FI_WAIT_YIELD, FI_WAIT_POLLFD};
    const enum fi_wait_obj granted[] = {FI_WAIT_NONE, FI_WAIT_UNSPEC, FI_WAIT_FD};
    const size_t sizes[] = {0, 1, 1000, 262144, SIZE_MAX};
    static struct fid_cq *many[256];
    struct fi_cq_attr attr = {0};
    struct fid_cq *cq = NULL;
    struct pair pair;

    messages_open(&pair, NULL);
    for (unsigned i = 0; i < 4; i++) {
        attr.wait_obj = refused[i];
        CHECK_RET(fi_cq_open(pair.client.domain, &attr, &cq, NULL), -FI_ENOSYS);
    }
    for (unsigned i = 0; i < 3; i++) {
        attr.wait_obj = granted[i];
        for (unsigned s = 0; s < 5; s++) {
            attr.size = sizes[s];
            CHECK_OK(fi_cq_open(pair.client.domain, &attr, &cq, CONTEXT(7)));
            CHECK(cq->fid.context == CONTEXT(7));
            close_fid(&cq->fid);
        }
    }
    cq = NULL;
    attr = (struct fi_cq_attr){.flags = 1ULL << 45};
    CHECK_RET(fi_cq_open(pair.client.domain, &attr, &cq, NULL), -FI_EBADFLAGS);
    attr = (struct fi_cq_attr){.format = 99};
    CHECK_RET(fi_cq_open(pair.client.domain, &attr, &cq, NULL), -FI_EINVAL);
    attr = (struct fi_cq_attr){.wait_obj = FI_WAIT_FD, .wait_cond = 99};
    CHECK_RET(fi_cq_open(pair.client.domain, &attr, &cq, NULL), -FI_EINVAL);
    CHECK_RET(fi_cq_open(pair.client.domain, &attr, NULL, NULL), -FI_EINVAL);
    CHECK(cq == NULL);
    CHECK_OK(fi_cq_open(pair.client.domain, NULL, &cq, NULL));
    close_fid(&cq->fid);
    CHECK_INT(pair.client.info->domain_attr->cq_cnt, 256);
    attr = (struct fi_cq_attr){.size = 1 << 16};
    for (unsigned i = 0; i < 256; i++)
        CHECK_OK(fi_cq_open(pair.client.domain, &attr, &many[i], NULL));
    for (unsigned i = 0; i < 256; i++)
        close_fid(&many[i]->fid);
    messages_pass(&pair);
    pair_close(&pair);
}

/* A queue takes as many entries as there are operations, whatever its size. */
static void queue_grows(void)
{
    enum { MESSAGES = 1000 };
    struct message_settings settings = {.cq = {.size = 1}, .tx_size = MESSAGES, .rx_size = MESSAGES};
    static uint8_t got[MESSAGES];
    struct fi_cq_data_entry entries[7];
    struct pair pair;

    messages_open(&pair, &settings);
    for (unsigned i = 0; i < MESSAGES; i++)
        post_recv(pair.server.ep, &got[i], 1, i);
    for (unsigned i = 0; i < MESSAGES; i++)
        AWAIT(PATIENCE_MS, fi_send(pair.client.ep, pattern(i, 1), 1, NULL, FI_ADDR_UNSPEC, CONTEXT(i)) == 0);
    /* Nothing is read until all are complete. */
    AWAIT(PATIENCE_MS, (fi_cq_read(pair.client.cq, NULL, 0), fi_tx_size_left(pair.client.ep) == MESSAGES));
    AWAIT(PATIENCE_MS, (fi_cq_read(pair.server.cq, NULL, 0), fi_rx_size_left(pair.server.ep) == MESSAGES));
    for (unsigned i = 0; i < MESSAGES;) {
        ssize_t count = fi_cq_read(pair.server.cq, entries, 7);

        CHECK_BETWEEN(count, 1, 7);
        for (ssize_t n = 0; n < count; n++)
            CHECK_INT((uintptr_t)entries[n].op_context, i++);
    }
    CHECK_BYTES(got, pattern(0, MESSAGES), MESSAGES);
    for (unsigned i = 0; i < MESSAGES; i++)
        (void)await_done(pair.client.cq, i, SENT);
    check_no_completion(pair.server.cq);
    check_no_completion(pair.client.cq);
    messages_pass(&pair);
    pair_close(&pair);
}

static void separate_queues(void)
{
    struct separate open;
    struct fid_ep *client, *server;
    uint8_t got[2];

    separate_open(&open, NULL);
    client = open.client.ep;
    server = open.server.ep;
    for (unsigned i = 0; i < 2; i++) {
        post_recv(client, &got[0], 1, 1);
        post_recv(server, &got[1], 1, 2);
        post_send(client, "a", 1, 3);
        post_send(server, "b", 1, 4);
        (void)await_done(open.receives, 1, RECEIVED);
        (void)await_done(open.client.cq, 3, SENT);
        check_no_completion(open.receives);
        AWAIT(PATIENCE_MS, got[1] == 'a');
        for (unsigned n = 0; n < 2; n++)
            (void)next_completion(open.server.cq);
        CHECK_INT(got[0], 'b');
        got[0] = got[1] = 0;
    }
    CHECK_RET(fi_close(&open.client.cq->fid), -FI_EBUSY);
    CHECK_RET(fi_close(&open.receives->fid), -FI_EBUSY);
    separate_close(&open);
}

/* ---- waiting ------------------------------------------------------------------------------ */

static void waits_exactly(void)
{
    const int times[] = {0, 1, 20, 150};
    struct fi_cq_data_entry entry;
    struct pair pair, none;

    messages_open(&pair, &waiting);
    messages_open(&none, NULL);
    for (unsigned i = 0; i < 4; i++) {
        int64_t start = now_us();

        CHECK_RET(fi_cq_sread(pair.server.cq, &entry, 1, NULL, times[i]), -FI_EAGAIN);
        CHECK_BETWEEN(now_us() - start, times[i] * 1000, times[i] * 1000 + 60000);
    }
    CHECK_RET(fi_cq_sread(none.server.cq, &entry, 1, NULL, 10), -FI_ENOSYS);
    CHECK_RET(fi_cq_signal(none.server.cq), -FI_ENOSYS);
    pair_close(&none);
    pair_close(&pair);
}

/* Messages that arrive every millisecond and whose entries go to another queue of the domain. */
struct traffic {
    struct pair pair;
    /* The thread reads the entries. */
    bool reads;
    atomic_uint sent;
    atomic_bool over;
};

static void *arrive(void *argument)
{
    static uint8_t got[4096];
    struct traffic *traffic = argument;
    struct fi_cq_data_entry entry;

    while (!traffic->over) {
        /* Without a reader, receives run out. */
        (void)fi_recv(traffic->pair.server.ep, got, sizeof got, NULL, FI_ADDR_UNSPEC, NULL);
        traffic->sent += fi_inject(traffic->pair.client.ep, pattern(0, sizeof got), sizeof got, FI_ADDR_UNSPEC) == 0;
        while (traffic->reads && fi_cq_read(traffic->pair.server.cq, &entry, 1) == 1)
            ;
        sleep_ms(1);
    }
    return NULL;
}

static void waits_beside_traffic(void)
{
    enum { MS = 200 };
    struct fi_cq_attr attr = {.wait_obj = FI_WAIT_FD};
    struct fi_cq_data_entry entry;
    struct traffic traffic;
    struct fid_cq *quiet = NULL;
    pthread_t thread;
    int64_t start;

    for (unsigned i = 0; i < 4; i++) {
        note("round %u", i);
        messages_open(&traffic.pair, i < 2 ? &waiting : NULL);
        CHECK_OK(fi_cq_open(traffic.pair.server.domain, &attr, &quiet, NULL));
        traffic.reads = i % 2;
        traffic.sent = 0;
        traffic.over = false;
        CHECK_OK(pthread_create(&thread, NULL, arrive, &traffic));
        AWAIT(PATIENCE_MS, traffic.sent > 0);
        start = now_us();
        CHECK_RET(fi_cq_sread(quiet, &entry, 1, NULL, MS), -FI_EAGAIN);
        CHECK_BETWEEN(now_us() - start, MS * 1000, MS * 1000 + 1000000);
        traffic.over = true;
        CHECK_OK(pthread_join(thread, NULL));
        close_fid(&quiet->fid);
        pair_close(&traffic.pair);
    }
}

/* Another thread that makes one call after a while. */
struct later {
    void (*call)(void *argument);
    void *argument;
    int ms;
};

static void *run_later(void *argument)
{
    const struct later *later = argument;

    sleep_ms(later->ms);
    later->call(later->argument);
    return NULL;
}

static void send_one(void *argument)
{
    post_send(((struct pair *)argument)->client.ep, "x", 1, 5);
}

static void signal_server(void *argument)
{
    CHECK_OK(fi_cq_signal(((struct pair *)argument)->server.cq));
}

static void close_client(void *argument)
{
    struct pair *pair = argument;

    close_fid(&pair->client.ep->fid);
    pair->client.ep = NULL;
}

/* Waits while another thread makes a call after 50 ms. Answers the result; `us` gets how long it took. */
static ssize_t wait_for(struct pair *pair, void (*call)(void *), struct fi_cq_data_entry *entry, int timeout,
                        int64_t *us)
{
    struct later later = {call, pair, 50};
    int64_t start = now_us();
    pthread_t thread;
    ssize_t got;

    CHECK_OK(pthread_create(&thread, NULL, run_later, &later));
    got = fi_cq_sread(pair->server.cq, entry, 1, NULL, timeout);
    *us = now_us() - start;
    CHECK_OK(pthread_join(thread, NULL));
    return got;
}

static void wakes(void)
{
    struct fi_cq_data_entry entry;
    struct pair pair;
    uint8_t got;
    int64_t us;

    messages_open(&pair, &waiting);
    post_recv(pair.server.ep, &got, 1, 1);
    CHECK_RET(wait_for(&pair, send_one, &entry, -1, &us), 1);
    CHECK_INT((uintptr_t)entry.op_context, 1);
    CHECK_BETWEEN(us, 40000, 500000);
    /* A signal ends a wait without an entry, and only one. */
    CHECK_RET(wait_for(&pair, signal_server, &entry, -1, &us), -FI_EAGAIN);
    CHECK_BETWEEN(us, 40000, 500000);
    CHECK_RET(fi_cq_sread(pair.server.cq, &entry, 1, NULL, 30), -FI_EAGAIN);
    /* A signal before the wait is not lost. */
    CHECK_OK(fi_cq_signal(pair.server.cq));
    us = now_us();
    CHECK_RET(fi_cq_sread(pair.server.cq, &entry, 1, NULL, 3000), -FI_EAGAIN);
    CHECK_BETWEEN(now_us() - us, 0, 500000);
    /* The end of the connection cancels the receive. */
    post_recv(pair.server.ep, &got, 1, 2);
    CHECK_RET(wait_for(&pair, close_client, &entry, -1, &us), -FI_EAVAIL);
    CHECK_BETWEEN(us, 40000, 500000);
    (void)await_failed(pair.server.cq, 2, RECEIVED, FI_ECANCELED);
    pair_close(&pair);
}

static void threshold(void)
{
    struct message_settings settings = {.cq = {.wait_obj = FI_WAIT_UNSPEC, .wait_cond = FI_CQ_COND_THRESHOLD}};
    struct fi_cq_data_entry entries[4];
    uint8_t got[4];
    struct pair pair;
    int64_t start, cpu;

    messages_open(&pair, &settings);
    for (unsigned i = 0; i < 4; i++)
        post_recv(pair.server.ep, &got[i], 1, i);
    for (unsigned i = 0; i < 3; i++)
        CHECK_OK(fi_inject(pair.client.ep, "x", 1, FI_ADDR_UNSPEC));
    CHECK_RET(fi_cq_sread(pair.server.cq, entries, 4, CONTEXT(3), 1000), 3);
    /* Fewer when the time is over, which is spent asleep. */
    CHECK_OK(fi_inject(pair.client.ep, "x", 1, FI_ADDR_UNSPEC));
    start = now_ms();
    cpu = cpu_ms();
    CHECK_RET(fi_cq_sread(pair.server.cq, entries, 4, CONTEXT(2), 500), 1);
    CHECK_BETWEEN(now_ms() - start, 499, 600);
    CHECK_BETWEEN(cpu_ms() - cpu, 0, 20);
    /* A failure counts as enough. */
    post_recv(pair.server.ep, got, 0, 7);
    CHECK_OK(fi_inject(pair.client.ep, "x", 1, FI_ADDR_UNSPEC));
    start = now_ms();
    CHECK_RET(fi_cq_sread(pair.server.cq, entries, 4, CONTEXT(3), 5000), -FI_EAVAIL);
    CHECK_BETWEEN(now_ms() - start, 0, 500);
    /* More than there is room for is as much as there is room for. */
    (void)await_failed(pair.server.cq, 7, RECEIVED, FI_ETRUNC);
    post_recv(pair.server.ep, got, 1, 8);
    CHECK_OK(fi_inject(pair.client.ep, "x", 1, FI_ADDR_UNSPEC));
    CHECK_RET(fi_cq_sread(pair.server.cq, entries, 1, CONTEXT(100), 5000), 1);
    pair_close(&pair);
}

static void descriptors(void)
{
    enum fi_wait_obj object = FI_WAIT_NONE;
    struct fi_cq_data_entry entry;
    struct pair pair, none;
    struct fid *fids[2];
    uint8_t got;
    int fd;

    messages_open(&none, NULL);
    CHECK_RET(fi_control(&none.server.cq->fid, FI_GETWAIT, &fd), -FI_ENOSYS);
    messages_open(&pair, &waiting);
    fids[0] = &pair.server.cq->fid;
    fids[1] = &pair.server.eq->fid;
    CHECK_OK(fi_control(fids[0], FI_GETWAITOBJ, &object));
    CHECK_INT(object, FI_WAIT_FD);
    fd = wait_fd(fids[0]);
    CHECK_INT(wait_fd(fids[0]), fd);
    for (unsigned i = 0; i < 50; i++) {
        /* Nothing is there: the descriptor sleeps. A message comes: it wakes, until the entry is read. */
        post_recv(pair.server.ep, &got, 1, i);
        settle(&pair.server, fids, 2);
        CHECK(!readable(fd, i % 10 ? 0 : 20));
        CHECK_OK(fi_inject(pair.client.ep, "x", 1, FI_ADDR_UNSPEC));
        CHECK(readable(fd, PATIENCE_MS));
        AWAIT(PATIENCE_MS, fi_trywait(pair.server.fabric, fids, 2) == -FI_EAGAIN);
        CHECK(readable(fd, 0));
        CHECK_RET(fi_cq_read(pair.server.cq, &entry, 1), 1);
        CHECK_INT((uintptr_t)entry.op_context, i);
    }
    /* Also when the entry was reported by another call than a read. */
    post_recv(pair.server.ep, &got, 1, 1);
    settle(&pair.server, fids, 2);
    CHECK_OK(fi_cancel(&pair.server.ep->fid, CONTEXT(1)));
    CHECK(readable(fd, 0));
    CHECK_RET(fi_trywait(pair.server.fabric, fids, 2), -FI_EAGAIN);
    (void)await_failed(pair.server.cq, 1, RECEIVED, FI_ECANCELED);
    fids[0] = &pair.server.ep->fid;
    CHECK_RET(fi_trywait(pair.server.fabric, fids, 1), -FI_EINVAL);
    pair_close(&pair);
    pair_close(&none);
}

/* The queue of the sender is woken when its message can go on. */
static void wakes_for_sends(void)
{
    static uint8_t got[PATTERN_MAX];
    struct fi_cq_data_entry entry;
    struct fid *fids[1];
    struct pair pair;

    messages_open(&pair, &waiting);
    fids[0] = &pair.client.cq->fid;
    post_send(pair.client.ep, pattern(0, PATTERN_MAX), PATTERN_MAX, 1);
    post_send(pair.client.ep, pattern(0, PATTERN_MAX), PATTERN_MAX, 2);
    for (unsigned i = 1; i <= 2; i++) {
        post_recv(pair.server.ep, got, sizeof got, 5);
        while (fi_cq_read(pair.server.cq, &entry, 1) == -FI_EAGAIN) {
            if (fi_trywait(pair.client.fabric, fids, 1) == 0)
                (void)readable(wait_fd(fids[0]), 1);
            else
                while (fi_cq_read(pair.client.cq, &entry, 1) == 1)
                    CHECK(entry.op_context == CONTEXT(1) || entry.op_context == CONTEXT(2));
        }
        CHECK_BYTES(got, pattern(0, PATTERN_MAX), PATTERN_MAX);
    }
    pair_close(&pair);
}

/* ---- counters ----------------------------------------------------------------------------- */

enum { SENDS, RECEIVES, WRITES, READS, REMOTE_WRITES, ALL, COUNTERS };
static struct fid_cntr *counters[2][COUNTERS];
static unsigned counted_sides;

static struct fid_cntr *open_counter(struct side *side, enum fi_wait_obj wait)
{
    struct fi_cntr_attr attr = {.events = FI_CNTR_EVENTS_COMP, .wait_obj = wait};
    struct fid_cntr *counter = NULL;

    CHECK_OK(fi_cntr_open(side->domain, &attr, &counter, NULL));
    return counter;
}

static void bind_counters(struct side *side)
{
    const uint64_t flags[] = {FI_SEND, FI_RECV, FI_WRITE, FI_READ, FI_REMOTE_WRITE,
                              FI_SEND | FI_RECV | FI_WRITE | FI_READ};
    struct fid_cntr **mine = counters[counted_sides++];

    for (unsigned i = 0; i < COUNTERS; i++) {
        mine[i] = open_counter(side, FI_WAIT_UNSPEC);
        CHECK_OK(fi_ep_bind(side->ep, &mine[i]->fid, flags[i]));
    }
}

static void close_counters(void)
{
    for (unsigned s = 0; s < 2; s++)
        for (unsigned i = 0; i < COUNTERS; i++)
            close_fid(&counters[s][i]->fid);
}

/* Closes the endpoints, then the counters, then the rest. */
static void close_counted(struct pair *pair)
{
    CHECK_RET(fi_close(&counters[1][0]->fid), -FI_EBUSY);
    if (pair->client.ep)
        close_fid(&pair->client.ep->fid);
    close_fid(&pair->server.ep->fid);
    pair->client.ep = pair->server.ep = NULL;
    close_counters();
    pair_close(pair);
}

static void check_counters(unsigned side, const uint64_t *wanted)
{
    for (unsigned i = 0; i < COUNTERS; i++) {
        note("counter %u of side %u", i, side);
        AWAIT(PATIENCE_MS, fi_cntr_read(counters[side][i]) >= wanted[i]);
        CHECK_INT(fi_cntr_read(counters[side][i]), wanted[i]);
    }
}

static void counting(void)
{
    struct message_settings settings = {.prepare = bind_counters, .bind_flags = FI_SELECTIVE_COMPLETION};
    static uint8_t memory[100], local[100];
    struct fid_mr *region;
    struct pair pair;
    uint8_t got[10];

    counted_sides = 0;
    messages_open(&pair, &settings);
    region = message_region(&pair.server, memory, sizeof memory, 1);
    for (unsigned i = 0; i < 4; i++)
        post_recv(pair.server.ep, &got[i], 1, i);
    post_send(pair.client.ep, "a", 1, 1);
    CHECK_OK(fi_inject(pair.client.ep, "b", 1, FI_ADDR_UNSPEC));
    post_send(pair.client.ep, "cc", 2, 1);
    CHECK_OK(fi_write(pair.client.ep, local, 10, NULL, FI_ADDR_UNSPEC, 0, 1, NULL));
    CHECK_OK(fi_writedata(pair.client.ep, local, 10, NULL, 7, FI_ADDR_UNSPEC, 0, 1, NULL));
    CHECK_OK(fi_inject_write(pair.client.ep, local, 10, FI_ADDR_UNSPEC, 0, 1));
    CHECK_OK(fi_read(pair.client.ep, local, 10, NULL, FI_ADDR_UNSPEC, 0, 1, NULL));
    check_counters(0, (const uint64_t[]){3, 0, 3, 1, 0, 7});
    /* One receive was too short, and one waits. */
    check_counters(1, (const uint64_t[]){0, 2, 0, 0, 3, 2});
    CHECK_INT(fi_cntr_readerr(counters[1][RECEIVES]), 1);
    CHECK_INT(fi_cntr_readerr(counters[1][SENDS]), 0);
    CHECK_OK(fi_cancel(&pair.server.ep->fid, CONTEXT(3)));
    CHECK_INT(fi_cntr_readerr(counters[1][RECEIVES]), 2);
    post_recv(pair.server.ep, got, 1, 1);
    close_fid(&region->fid);
    close_fid(&pair.server.ep->fid);
    pair.server.ep = NULL;
    CHECK_INT(fi_cntr_readerr(counters[1][RECEIVES]), 3);
    CHECK_INT(fi_cntr_read(counters[1][RECEIVES]), 2);
    close_fid(&pair.client.ep->fid);
    pair.client.ep = NULL;
    close_counters();
    pair_close(&pair);
}

static void send_one_counted(void *argument)
{
    CHECK_OK(fi_inject(((struct pair *)argument)->client.ep, "x", 1, FI_ADDR_UNSPEC));
}

static void add_error(void *argument)
{
    (void)argument;
    CHECK_OK(fi_cntr_adderr(counters[1][RECEIVES], 1));
}

static void counter_waits(void)
{
    struct message_settings settings = {.prepare = bind_counters};
    struct later later = {send_one_counted, NULL, 50};
    struct fid_cntr *counter;
    struct pair pair;
    pthread_t thread;
    uint8_t got[4];
    int64_t start;

    counted_sides = 0;
    messages_open(&pair, &settings);
    counter = counters[1][RECEIVES];
    post_recv(pair.server.ep, got, 1, 1);
    for (int ms = 0; ms <= 100; ms += 50) {
        start = now_us();
        CHECK_RET(fi_cntr_wait(counter, 1, ms), -FI_ETIMEDOUT);
        CHECK_BETWEEN(now_us() - start, ms * 1000, ms * 1000 + 60000);
    }
    later.argument = &pair;
    start = now_ms();
    CHECK_OK(pthread_create(&thread, NULL, run_later, &later));
    CHECK_OK(fi_cntr_wait(counter, 1, -1));
    CHECK_BETWEEN(now_ms() - start, 40, 500);
    CHECK_OK(pthread_join(thread, NULL));
    later.call = add_error;
    CHECK_OK(pthread_create(&thread, NULL, run_later, &later));
    CHECK_RET(fi_cntr_wait(counter, 2, 5000), -FI_EAVAIL);
    CHECK_BETWEEN(now_ms() - start, 90, 1500);
    CHECK_OK(pthread_join(thread, NULL));
    CHECK_OK(fi_cntr_set(counter, 100));
    CHECK_OK(fi_cntr_add(counter, 11));
    CHECK_OK(fi_cntr_wait(counter, 111, 0));
    CHECK_INT(fi_cntr_read(counter), 111);
    CHECK_OK(fi_cntr_seterr(counter, 9));
    CHECK_OK(fi_cntr_adderr(counter, 2));
    CHECK_INT(fi_cntr_readerr(counter), 11);
    CHECK_INT(fi_cntr_read(counter), 111);
    close_counted(&pair);
}

/* Drives the server for a while, in another thread. */
static void drive_server(void *argument)
{
    for (int64_t until = now_ms() + 200; now_ms() < until;)
        (void)fi_cq_read(((struct pair *)argument)->server.cq, NULL, 0);
}

/* A wait ends with -FI_EAVAIL when an operation fails: a read that is refused, a receive that the end cancels. */
static void counter_wait_fails(void)
{
    struct message_settings settings = {.prepare = bind_counters};

    for (unsigned refused = 0; refused < 2; refused++) {
        struct fid_cntr *counter;
        struct later later;
        struct pair pair;
        pthread_t thread;
        uint8_t got;

        counted_sides = 0;
        messages_open(&pair, &settings);
        counter = refused ? counters[0][READS] : counters[1][RECEIVES];
        later = (struct later){refused ? drive_server : close_client, &pair, 50};
        if (refused)
            CHECK_OK(fi_read(pair.client.ep, &got, 1, NULL, FI_ADDR_UNSPEC, 0, 77, CONTEXT(1)));
        else
            post_recv(pair.server.ep, &got, 1, 1);
        CHECK_OK(pthread_create(&thread, NULL, run_later, &later));
        CHECK_RET(fi_cntr_wait(counter, 1, 5000), -FI_EAVAIL);
        CHECK_OK(pthread_join(thread, NULL));
        CHECK_INT(fi_cntr_read(counter), 0);
        CHECK_INT(fi_cntr_readerr(counter), 1);
        if (refused)
            (void)await_failed(pair.client.cq, 1, WAS_READ, FI_EACCES);
        else
            (void)await_failed(pair.server.cq, 1, RECEIVED, FI_ECANCELED);
        close_counted(&pair);
    }
}

static volatile sig_atomic_t handled;

static void handle(int number)
{
    (void)number;
    handled = 1;
}

static atomic_bool answered;

/* Sends signals until the call has returned: one that comes before the call begins does not end it. */
static void *interrupt(void *argument)
{
    while (!answered) {
        sleep_ms(20);
        CHECK_OK(pthread_kill(*(const pthread_t *)argument, SIGUSR1));
    }
    return NULL;
}

/* Makes a call while signals come, and checks that one of them ends it. */
#define CHECK_INTERRUPTED(call)                                                                     \
    do {                                                                                            \
        pthread_t self_ = pthread_self(), thread_;                                                  \
                                                                                                    \
        answered = false;                                                                           \
        CHECK_OK(pthread_create(&thread_, NULL, interrupt, &self_));                                \
        CHECK_RET(call, -FI_EINTR);                                                                 \
        answered = true;                                                                            \
        CHECK_OK(pthread_join(thread_, NULL));                                                      \
    } while (0)

/* A program that is told by a signal to stop waiting can do so. */
static void signals_end_waits(void)
{
    struct message_settings settings = {
        .prepare = bind_counters,
        .cq = {.wait_obj = FI_WAIT_FD, .wait_cond = FI_CQ_COND_THRESHOLD},
    };
    struct sigaction action = {.sa_handler = handle};
    struct fi_cq_data_entry entries[2];
    struct fi_eq_cm_entry event;
    struct fid_cntr *counter;
    struct pair pair;
    uint32_t kind;

    counted_sides = 0;
    messages_open(&pair, &settings);
    counter = counters[1][RECEIVES];
    CHECK_OK(sigaction(SIGUSR1, &action, NULL));
    for (int limit = -1; limit <= PATIENCE_MS; limit += PATIENCE_MS + 1) {
        CHECK_INTERRUPTED(fi_cq_sread(pair.server.cq, entries, 2, (void *)(intptr_t)1, limit));
        CHECK_INTERRUPTED(fi_cq_sread(pair.server.cq, entries, 2, (void *)(intptr_t)2, limit));
        CHECK_INTERRUPTED(fi_eq_sread(pair.server.eq, &kind, &event, sizeof event, limit, 0));
        CHECK_INTERRUPTED(fi_cntr_wait(counter, 1, limit));
    }
    CHECK(handled);
    close_counted(&pair);
}

static void counter_attributes(void)
{
    const enum fi_wait_obj granted[] = {FI_WAIT_NONE, FI_WAIT_UNSPEC, FI_WAIT_FD, FI_WAIT_MUTEX_COND};
    struct fi_cntr_attr attr = {.events = FI_CNTR_EVENTS_COMP};
    struct fid_cntr *counter = NULL;
    struct pair pair;
    struct fid *fid;

    messages_open(&pair, NULL);
    attr.events = 99;
    CHECK_RET(fi_cntr_open(pair.client.domain, &attr, &counter, NULL), -FI_ENOSYS);
    attr = (struct fi_cntr_attr){.flags = 1};
    CHECK_RET(fi_cntr_open(pair.client.domain, &attr, &counter, NULL), -FI_EBADFLAGS);
    attr = (struct fi_cntr_attr){.wait_obj = FI_WAIT_SET};
    CHECK_RET(fi_cntr_open(pair.client.domain, &attr, &counter, NULL), -FI_ENOSYS);
    CHECK_RET(fi_cntr_open(pair.client.domain, &attr, NULL, NULL), -FI_EINVAL);
    CHECK(counter == NULL);
    for (unsigned i = 0; i < 4; i++) {
        counter = open_counter(&pair.client, granted[i]);
        CHECK_RET(fi_cntr_wait(counter, 0, 0), 0);
        CHECK_RET(fi_cntr_wait(counter, 1, 5), -FI_ETIMEDOUT);
        fid = &counter->fid;
        AWAIT(PATIENCE_MS, fi_trywait(pair.client.fabric, &fid, 1) == 0);
        if (granted[i] == FI_WAIT_FD)
            CHECK_AT_LEAST(wait_fd(fid), 0);
        /* It is in use by endpoints that are bound to it only. */
        close_fid(&counter->fid);
    }
    pair_close(&pair);
}

/* ---- shared receive contexts -------------------------------------------------------------- */

static struct fid_ep *shared;

/* A listener with one domain and queue for all that it accepts, with a shared receive context. */
static void open_shared(struct side *listener, const struct fi_rx_attr *attr)
{
    struct fi_rx_attr given = attr ? *attr : (struct fi_rx_attr){0};

    message_listen(listener, NULL);
    CHECK_OK(fi_srx_context(listener->domain, attr ? &given : NULL, &shared, CONTEXT(42)));
    CHECK(shared->fid.context == CONTEXT(42));
    message_queue(listener, NULL);
}

static void shared_receives(void)
{
    struct side listener, clients[2];
    struct fid_ep *eps[2];
    uint8_t got[10] = {0};

    open_shared(&listener, NULL);
    for (unsigned i = 0; i < 2; i++)
        eps[i] = message_shared(&listener, &clients[i], shared, NULL);
    check_receives(eps[0], -FI_EINVAL);
    /* Receives go to whichever endpoint has a message, in the order in which they were posted. */
    for (unsigned i = 0; i < 10; i++)
        post_recv(shared, &got[i], 1, i);
    for (unsigned i = 0; i < 10; i++) {
        CHECK_OK(fi_inject(clients[i % 3 == 0].ep, i % 3 == 0 ? "a" : "b", 1, FI_ADDR_UNSPEC));
        CHECK_INT(await_done(listener.cq, i, RECEIVED).len, 1);
        CHECK_INT(got[i], i % 3 == 0 ? 'a' : 'b');
    }
    /* Both wait for a receive; each gets one. */
    for (unsigned i = 0; i < 2; i++)
        CHECK_OK(fi_inject(clients[i].ep, "zz", 2, FI_ADDR_UNSPEC));
    for (unsigned i = 0; i < 20; i++)
        drive();
    post_recv(shared, got, 2, 1);
    (void)await_done(listener.cq, 1, RECEIVED);
    check_no_completion(listener.cq);
    post_recv(shared, got, 1, 2);
    (void)await_failed(listener.cq, 2, RECEIVED, FI_ETRUNC);
    /* It sends nothing, and is in use. */
    check_calls(shared, -FI_ENOSYS);
    CHECK_RET(fi_close(&shared->fid), -FI_EBUSY);
    for (unsigned i = 0; i < 2; i++) {
        close_fid(&eps[i]->fid);
        side_close(&clients[i]);
    }
    check_no_completion(listener.cq);
    close_fid(&shared->fid);
    side_close(&listener);
}

static void shared_selective(void)
{
    struct message_settings settings = {.bind_flags = FI_SELECTIVE_COMPLETION};
    struct fi_rx_attr attr = {.op_flags = FI_COMPLETION};
    struct side listener, client;
    struct fi_msg message = {0};
    struct fid_ep *ep;
    uint8_t got[4];

    for (unsigned asks = 0; asks < 2; asks++) {
        open_shared(&listener, asks ? &attr : NULL);
        ep = message_shared(&listener, &client, shared, &settings);
        message.context = CONTEXT(2);
        post_recv(shared, got, 1, 1);
        CHECK_OK(fi_recvmsg(shared, &message, FI_COMPLETION));
        post_recv(shared, got, 1, 3);
        for (unsigned i = 0; i < 2; i++)
            CHECK_OK(fi_inject(client.ep, "x", i ? 0 : 1, FI_ADDR_UNSPEC));
        if (asks)
            (void)await_done(listener.cq, 1, RECEIVED);
        (void)await_done(listener.cq, 2, RECEIVED);
        CHECK_OK(fi_inject(client.ep, "xx", 2, FI_ADDR_UNSPEC));
        (void)await_failed(listener.cq, 3, RECEIVED, FI_ETRUNC);
        close_fid(&ep->fid);
        side_close(&client);
        close_fid(&shared->fid);
        side_close(&listener);
    }
}

static void shared_attributes(void)
{
    struct fi_rx_attr attr = {.size = 3};
    struct side listener, client;
    struct fid_ep *ep, *other = NULL;
    uint8_t got[4];

    open_shared(&listener, &attr);
    ep = message_shared(&listener, &client, shared, NULL);
    CHECK_RET(fi_rx_size_left(shared), 3);
    for (unsigned i = 0; i < 3; i++)
        post_recv(shared, &got[i], 1, i);
    CHECK_RET(fi_rx_size_left(shared), 0);
    CHECK_RET(fi_recv(shared, got, 1, NULL, FI_ADDR_UNSPEC, NULL), -FI_EAGAIN);
    CHECK_OK(fi_cancel(&shared->fid, CONTEXT(1)));
    CHECK_RET(fi_cancel(&shared->fid, CONTEXT(1)), -FI_ENOENT);
    CHECK_RET(fi_rx_size_left(shared), 1);
    CHECK_OK(fi_inject(client.ep, "x", 1, FI_ADDR_UNSPEC));
    CHECK_OK(fi_inject(client.ep, "y", 1, FI_ADDR_UNSPEC));
    (void)await_done(listener.cq, 0, RECEIVED);
    (void)await_done(listener.cq, 2, RECEIVED);
    attr.size = (1 << 16) + 1;
    CHECK_RET(fi_srx_context(listener.domain, &attr, &other, NULL), -FI_EINVAL);
    CHECK_RET(fi_srx_context(listener.domain, NULL, NULL, NULL), -FI_EINVAL);
    CHECK(other == NULL);
    close_fid(&ep->fid);
    /* It is in use from the bind on. */
    CHECK_OK(fi_endpoint(listener.domain, listener.info, &ep, NULL));
    CHECK_OK(fi_ep_bind(ep, &shared->fid, 0));
    CHECK_RET(fi_close(&shared->fid), -FI_EBUSY);
    close_fid(&ep->fid);
    /* An endpoint that is enabled goes without. */
    CHECK_OK(fi_endpoint(listener.domain, listener.info, &ep, NULL));
    CHECK_OK(fi_ep_bind(ep, &listener.eq->fid, 0));
    CHECK_OK(fi_ep_bind(ep, &listener.cq->fid, FI_TRANSMIT | FI_RECV));
    CHECK_OK(fi_enable(ep));
    CHECK_RET(fi_ep_bind(ep, &shared->fid, 0), -FI_EOPBADSTATE);
    post_recv(ep, got, 1, 3);
    close_fid(&ep->fid);
    (void)await_failed(listener.cq, 3, RECEIVED, FI_ECANCELED);
    close_fid(&shared->fid);
    side_close(&client);
    side_close(&listener);
}

/* Its receives have no entries, and their memory is free. */
static void shared_closed_with_receives(void)
{
    enum { LENGTH = 4096, COUNT = 3 };
    struct fi_rx_attr attr = {.size = COUNT};
    uint8_t *memory = map_pages(LENGTH), got = 0;
    struct side listener, client;
    struct fid_ep *ep;

    open_shared(&listener, &attr);
    ep = message_shared(&listener, &client, shared, NULL);
    for (unsigned i = 0; i < COUNT; i++)
        post_recv(shared, memory + i, 1, i);
    close_fid(&ep->fid);
    close_fid(&shared->fid);
    unmap_pages(memory, LENGTH);
    (void)await_event(client.eq, FI_SHUTDOWN);
    side_close(&client);
    CHECK_OK(fi_srx_context(listener.domain, &attr, &shared, NULL));
    ep = message_shared(&listener, &client, shared, NULL);
    post_recv(shared, &got, 1, 10);
    CHECK_OK(fi_inject(client.ep, "x", 1, FI_ADDR_UNSPEC));
    (void)await_done(listener.cq, 10, RECEIVED);
    CHECK_INT(got, 'x');
    check_no_completion(listener.cq);
    close_fid(&ep->fid);
    close_fid(&shared->fid);
    side_close(&client);
    side_close(&listener);
}

/* Each call that posts a receive. */
static void shared_calls(void)
{
    uint8_t got[MESSAGE_IOVS + 1][4] = {{0}};
    struct iovec pieces[MESSAGE_IOVS + 1];
    struct fi_msg message = {.msg_iov = pieces, .iov_count = 2, .context = CONTEXT(2)};
    struct side listener, client;
    struct fid_ep *ep;

    for (unsigned i = 0; i <= MESSAGE_IOVS; i++)
        pieces[i] = (struct iovec){got[i], sizeof got[i]};
    open_shared(&listener, NULL);
    ep = message_shared(&listener, &client, shared, NULL);
    CHECK_RET(fi_recvv(shared, pieces, NULL, MESSAGE_IOVS + 1, FI_ADDR_UNSPEC, NULL), -FI_EINVAL);
    CHECK_RET(fi_recvv(shared, NULL, NULL, 1, FI_ADDR_UNSPEC, NULL), -FI_EINVAL);
    CHECK_RET(fi_recvmsg(shared, NULL, 0), -FI_EINVAL);
    CHECK_RET(fi_recvmsg(shared, &message, 1ULL << 45), -FI_EBADFLAGS);
    CHECK_RET(fi_recvmsg(shared, &message, FI_MULTI_RECV), -FI_EBADFLAGS);
    CHECK_RET(fi_rx_size_left(shared), MESSAGE_QUEUE);
    CHECK_OK(fi_recvv(shared, pieces, NULL, MESSAGE_IOVS, FI_ADDR_UNSPEC, CONTEXT(1)));
    CHECK_OK(fi_recvmsg(shared, &message, FI_COMPLETION | FI_MORE));
    CHECK_RET(fi_rx_size_left(shared), MESSAGE_QUEUE - 2);
    CHECK_OK(fi_inject(client.ep, pattern(0, 14), 14, FI_ADDR_UNSPEC));
    CHECK_INT(await_done(listener.cq, 1, RECEIVED).len, 14);
    CHECK_BYTES(got, pattern(0, 14), 14);
    CHECK_OK(fi_inject(client.ep, pattern(1, 9), 9, FI_ADDR_UNSPEC));
    CHECK_INT(await_failed(listener.cq, 2, RECEIVED, FI_ETRUNC).olen, 1);
    CHECK_BYTES(got, pattern(1, 8), 8);
    close_fid(&ep->fid);
    close_fid(&shared->fid);
    side_close(&client);
    side_close(&listener);
}

/* A receive that is half filled when its connection ends goes to the next message, before those posted later.
 * Either side closes. */
static void half_filled_until(bool own_close)
{
    /* More than arrives in a few calls. */
    enum { LENGTH = 64 << 20 };
    uint8_t *got = map_pages(LENGTH), *sent = map_pages(LENGTH), second[8] = {0};
    struct side listener, clients[2];
    struct fid_ep *eps[2];

    memset(sent, 1, LENGTH);
    open_shared(&listener, NULL);
    for (unsigned i = 0; i < 2; i++)
        eps[i] = message_shared(&listener, &clients[i], shared, NULL);
    post_recv(shared, got, LENGTH, 1);
    post_recv(shared, second, sizeof second, 2);
    post_send(clients[0].ep, sent, LENGTH, 5);
    AWAIT(PATIENCE_MS, got[0] == 1);
    close_fid(own_close ? &eps[0]->fid : &clients[0].ep->fid);
    if (own_close) {
        eps[0] = NULL;
        (void)await_event(clients[0].eq, FI_SHUTDOWN);
        (void)await_failed(clients[0].cq, 5, SENT, FI_ECANCELED);
    } else {
        clients[0].ep = NULL;
        (void)await_event(listener.eq, FI_SHUTDOWN);
    }
    unmap_pages(sent, LENGTH);
    check_no_completion(listener.cq);
    CHECK_OK(fi_inject(clients[1].ep, "next", 4, FI_ADDR_UNSPEC));
    CHECK_OK(fi_inject(clients[1].ep, "after", 5, FI_ADDR_UNSPEC));
    CHECK_INT(await_done(listener.cq, 1, RECEIVED).len, 4);
    CHECK_BYTES(got, "next", 4);
    CHECK_INT(await_done(listener.cq, 2, RECEIVED).len, 5);
    CHECK_BYTES(second, "after", 5);
    unmap_pages(got, LENGTH);
    for (unsigned i = 0; i < 2; i++)
        if (eps[i] != NULL)
            close_fid(&eps[i]->fid);
    close_fid(&shared->fid);
    side_close(&clients[0]);
    side_close(&clients[1]);
    side_close(&listener);
}

static void half_filled(void)
{
    half_filled_until(false);
    half_filled_until(true);
}

/* ---- idle --------------------------------------------------------------------------------- */

#define SLEEP_MS 600

/* Reads a queue that gets nothing: it sleeps for as long as it may. */
static void check_reader_sleeps(struct fid_cq *cq, const char *what)
{
    struct fi_cq_data_entry entry;
    int64_t start = now_us(), cpu = cpu_ms();

    CHECK_RET(fi_cq_sread(cq, &entry, 1, NULL, SLEEP_MS), -FI_EAGAIN);
    CHECK_BETWEEN(now_us() - start, SLEEP_MS * 1000, SLEEP_MS * 1000 + 1000000);
    check_idle(what, cpu, SLEEP_MS);
}

static void blocked_callers_sleep(void)
{
    struct message_settings settings = {.cq = {.wait_obj = FI_WAIT_FD}, .prepare = bind_counters};
    struct fi_cq_data_entry entry;
    struct pair pair;
    struct fid *fids[2];
    int64_t cpu;

    counted_sides = 0;
    messages_open(&pair, &settings);
    check_reader_sleeps(pair.server.cq, "a reader of an idle connection");
    cpu = cpu_ms();
    CHECK_RET(fi_cntr_wait(counters[1][RECEIVES], 1, SLEEP_MS), -FI_ETIMEDOUT);
    check_idle("a waiter on a counter", cpu, SLEEP_MS);
    /* Messages arrive, and there is no receive for them. */
    for (unsigned i = 0; i < 16; i++)
        post_send(pair.client.ep, pattern(0, PATTERN_MAX), PATTERN_MAX, i);
    for (unsigned i = 0; i < 30; i++)
        drive();
    check_reader_sleeps(pair.server.cq, "a reader of a receiver that waits for a receive");
    /* What is between them fills. */
    while (fi_cq_sread(pair.client.cq, &entry, 1, NULL, 100) == 1)
        drive();
    check_reader_sleeps(pair.client.cq, "a reader of a sender whose peer waits for a receive");
    fids[0] = &pair.server.cq->fid;
    fids[1] = &pair.server.eq->fid;
    settle(&pair.server, fids, 2);
    cpu = cpu_ms();
    CHECK(!readable(wait_fd(fids[0]), SLEEP_MS));
    check_idle("a sleeper on the descriptor", cpu, SLEEP_MS);
    close_counted(&pair);
}

static const struct test tests[] = {
    TEST(formats, "entries of each fi_cq_format; FI_CQ_FORMAT_UNSPEC is FI_CQ_FORMAT_CONTEXT"),
    TEST(reads, "fi_cq_read, fi_cq_readfrom: room, no room, sources; bad arguments"),
    TEST(reads_for_progress, "fi_cq_read without room makes progress while entries wait"),
    TEST(reads_with_sources, "fi_cq_sreadfrom: sources are not available; the time-out is honoured"),
    TEST(errors_in_order, "a failure stops reads with -FI_EAVAIL until fi_cq_readerr takes it"),
    TEST(texts, "fi_cq_strerror: a text for every number"),
    TEST(queue_attributes, "wait objects, sizes, formats and flags of fi_cq_open; cq_cnt queues"),
    TEST(queue_grows, "a queue of size 1 takes 1000 entries of each direction, and gives them in order"),
    TEST(separate_queues, "separate queues for the two directions; -FI_EBUSY while in use"),
    TEST(waits_exactly, "fi_cq_sread: the time-out is honoured; -FI_ENOSYS without a wait object"),
    TEST(waits_beside_traffic, "the same while messages arrive whose entries go to another queue of the domain"),
    TEST(wakes, "fi_cq_sread: woken by an arrival, a signal, the end of the connection"),
    TEST(threshold, "FI_CQ_COND_THRESHOLD: as many as asked, an error, or the end of the time"),
    TEST(descriptors, "fi_trywait and the descriptor: asleep without news, awake with an entry"),
    TEST(wakes_for_sends, "the sender's descriptor wakes when its message can go on"),
    TEST(counting, "counters count successes and failures, injected operations too"),
    TEST(counter_waits, "fi_cntr_wait, set, add, seterr, adderr"),
    TEST(counter_wait_fails, "fi_cntr_wait ends with -FI_EAVAIL when an operation fails"),
    TEST(signals_end_waits, "a handled signal ends fi_cq_sread, fi_eq_sread and fi_cntr_wait: -FI_EINTR"),
    TEST(counter_attributes, "wait objects, events and flags of fi_cntr_open"),
    TEST(shared_receives, "a shared receive context serves two endpoints"),
    TEST(shared_selective, "receives of a shared context whose endpoint's queue is bound selectively"),
    TEST(shared_attributes, "size, cancel and limits of a shared receive context"),
    TEST(shared_closed_with_receives, "a shared receive context that is closed with receives: no entries, their memory is free"),
    TEST(shared_calls, "fi_recvv and fi_recvmsg on a shared receive context; bad flags, too many pieces"),
    TEST(half_filled, "a shared receive that is half filled at the end goes to the next message, before later ones"),
    TEST(blocked_callers_sleep, "blocked callers sleep: a reader, a counter, a stalled receiver and its sender"),
};

const struct section message_queues_section = SECTION("completion queues", tests);
