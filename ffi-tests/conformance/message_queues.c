/* Contract, section Message endpoints: completion queues. */
#include "message.h"

#include <pthread.h>
#include <stdatomic.h>

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

static void send_one(void *argument)
{
    post_send(((struct pair *)argument)->client.ep, "x", 1, 5);
}

static void signal_server(void *argument)
{
    CHECK_OK(fi_cq_signal(((struct pair *)argument)->server.cq));
}

/* Waits while another thread makes a call after 50 ms. Answers the result; `us` gets how long it took. */
static ssize_t wait_for(struct pair *pair, void (*call)(void *), struct fi_cq_data_entry *entry, int timeout,
                        int64_t *us)
{
    int64_t start = now_us();
    pthread_t thread = call_later(call, pair);
    ssize_t got;

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
};

const struct section message_queues_section = SECTION("completion queues", tests);
