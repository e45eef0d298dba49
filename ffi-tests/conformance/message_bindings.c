/* Contract, section Message endpoints: what is bound to an endpoint or a region, what a full queue refuses, and what
 * failures say. */
#include "message.h"

#include "../dice.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

#define NO_ADDRESS FI_ADDR_UNSPEC

static uint8_t here[1000], there[1000];

/* ---- completion queues -------------------------------------------------------------------- */

/* Connects two sides. The queue of each is selective for one direction only. */
static void open_half_selective(struct pair *pair, uint64_t selective)
{
    struct message_settings settings = {0};
    const uint64_t other = selective == FI_TRANSMIT ? FI_RECV : FI_TRANSMIT;
    struct event request;
    struct side *sides[] = {&pair->client, &pair->server};

    memset(pair, 0, sizeof *pair);
    message_listen(&pair->listener, &settings);
    message_client(&pair->client, &pair->listener, &settings);
    for (unsigned i = 0; i < 2; i++) {
        struct side *side = sides[i];

        if (i == 1) {
            request = await_event(pair->listener.eq, FI_CONNREQ);
            side_share(side, &pair->listener, request.info);
        }
        message_queue(side, &settings);
        CHECK_OK(fi_endpoint(side->domain, side->info, &side->ep, NULL));
        CHECK_OK(fi_ep_bind(side->ep, &side->eq->fid, 0));
        CHECK_OK(fi_ep_bind(side->ep, &side->cq->fid, selective | FI_SELECTIVE_COMPLETION));
        CHECK_OK(fi_ep_bind(side->ep, &side->cq->fid, other));
        if (i == 0)
            CHECK_OK(fi_connect(side->ep, side->info->dest_addr, NULL, 0));
    }
    message_accept(&pair->client, &pair->server);
}

static void selective_one_way(void)
{
    const uint64_t directions[] = {FI_TRANSMIT, FI_RECV};
    struct iovec out = {here, 1}, in = {there, 1};
    struct fi_msg send = {.msg_iov = &out, .iov_count = 1, .addr = NO_ADDRESS, .context = CONTEXT(3)};
    struct fi_msg receive = {.msg_iov = &in, .iov_count = 1, .addr = NO_ADDRESS, .context = CONTEXT(13)};

    for (unsigned i = 0; i < 2; i++) {
        bool sends_select = directions[i] == FI_TRANSMIT;
        struct fid_mr *region;
        struct pair pair;

        note("%s", sends_select ? "FI_TRANSMIT" : "FI_RECV");
        open_half_selective(&pair, directions[i]);
        region = message_region(&pair.server, there, sizeof there, 1);
        post_recv(pair.server.ep, there, 1, 12);
        CHECK_OK(fi_recvmsg(pair.server.ep, &receive, FI_COMPLETION));
        post_recv(pair.server.ep, there, 0, 14);
        post_send(pair.client.ep, here, 1, 1);
        CHECK_OK(fi_write(pair.client.ep, here, 1, NULL, NO_ADDRESS, 0, 1, CONTEXT(2)));
        CHECK_OK(fi_sendmsg(pair.client.ep, &send, FI_COMPLETION));
        if (!sends_select) {
            (void)await_done(pair.client.cq, 1, SENT);
            (void)await_done(pair.client.cq, 2, WRITTEN);
        }
        (void)await_done(pair.client.cq, 3, SENT);
        if (sends_select)
            (void)await_done(pair.server.cq, 12, RECEIVED);
        (void)await_done(pair.server.cq, 13, RECEIVED);
        check_no_completion(pair.client.cq);
        check_no_completion(pair.server.cq);
        /* A failure is reported nevertheless. */
        CHECK_OK(fi_inject(pair.client.ep, "x", 1, NO_ADDRESS));
        (void)await_failed(pair.server.cq, 14, RECEIVED, FI_ETRUNC);
        close_fid(&region->fid);
        pair_close(&pair);
    }
}

/* ---- counters ----------------------------------------------------------------------------- */

static struct fid_cntr *sends, *remote_reads, *remote_writes;

/* Binds counters to the server, which borrows from its listener. */
static void count_remote(struct side *side)
{
    if (!side->borrows)
        return;
    remote_reads = message_counter(side, FI_WAIT_UNSPEC);
    remote_writes = message_counter(side, FI_WAIT_UNSPEC);
    CHECK_OK(fi_ep_bind(side->ep, &remote_reads->fid, FI_REMOTE_READ));
    CHECK_OK(fi_ep_bind(side->ep, &remote_writes->fid, FI_REMOTE_WRITE));
}

static void counted_accesses(void)
{
    struct message_settings settings = {.prepare = count_remote};
    struct fid_mr *region;
    struct pair pair;

    messages_open(&pair, &settings);
    region = message_region(&pair.server, there, sizeof there, 1);
    for (unsigned i = 0; i < 5; i++) {
        CHECK_OK(fi_writedata(pair.client.ep, here, i, NULL, i, NO_ADDRESS, 0, 1, CONTEXT(1)));
        CHECK_OK(fi_write(pair.client.ep, here, i, NULL, NO_ADDRESS, 0, 1, CONTEXT(2)));
        CHECK_OK(fi_inject_writedata(pair.client.ep, here, i, i, NO_ADDRESS, 0, 1));
        CHECK_OK(fi_read(pair.client.ep, here, i, NULL, NO_ADDRESS, 0, 1, CONTEXT(3)));
        (void)await_done(pair.client.cq, 1, WRITTEN);
        (void)await_done(pair.client.cq, 2, WRITTEN);
        (void)await_done(pair.client.cq, 3, WAS_READ);
        /* The answer to a read comes behind the writes before it. One of no bytes is not counted. */
        CHECK_INT(fi_cntr_read(remote_writes), 3 * i + 3);
        CHECK_INT(fi_cntr_read(remote_reads), i);
    }
    CHECK_INT(fi_cntr_readerr(remote_writes), 0);
    CHECK_INT(fi_cntr_readerr(remote_reads), 0);
    for (unsigned i = 0; i < 10; i++)
        CHECK_INT(await_done(pair.server.cq, 0, REMOTE_WRITTEN).data, i / 2);
    close_fid(&region->fid);
    CHECK_RET(fi_close(&remote_reads->fid), -FI_EBUSY);
    CHECK_RET(fi_close(&remote_writes->fid), -FI_EBUSY);
    close_fid(&pair.server.ep->fid);
    pair.server.ep = NULL;
    close_fid(&remote_reads->fid);
    close_fid(&remote_writes->fid);
    pair_close(&pair);
}

static void *access_later(void *argument)
{
    struct pair *pair = argument;

    sleep_ms(300);
    CHECK_OK(fi_inject_write(pair->client.ep, here, 1, NO_ADDRESS, 0, 1));
    CHECK_OK(fi_read(pair->client.ep, here, 1, NULL, NO_ADDRESS, 0, 1, CONTEXT(1)));
    return NULL;
}

/* Nothing else happens at the target: no entry, no receive. */
static void accesses_wake(void)
{
    struct message_settings settings = {.prepare = count_remote};
    struct fid_mr *region;
    struct pair pair;
    pthread_t thread;

    messages_open(&pair, &settings);
    region = message_region(&pair.server, there, sizeof there, 1);
    for (unsigned i = 1; i <= 4; i++) {
        const int64_t start = now_ms(), cpu = cpu_ms();

        CHECK_OK(pthread_create(&thread, NULL, access_later, &pair));
        CHECK_OK(fi_cntr_wait(i % 2 ? remote_writes : remote_reads, i, -1));
        CHECK_BETWEEN(now_ms() - start, 290, 1000);
        CHECK_BETWEEN(cpu_ms() - cpu, 0, 50);
        CHECK_OK(pthread_join(thread, NULL));
        (void)await_done(pair.client.cq, 1, WAS_READ);
    }
    close_fid(&region->fid);
    close_fid(&pair.server.ep->fid);
    pair.server.ep = NULL;
    /* What was counted stays. */
    CHECK_INT(fi_cntr_read(remote_writes), 4);
    CHECK_INT(fi_cntr_read(remote_reads), 4);
    close_fid(&remote_reads->fid);
    close_fid(&remote_writes->fid);
    pair_close(&pair);
}

/* Counters and regions, each bound to two of the other. */
static void counters_of_regions(void)
{
    struct fid_cntr *counters[2];
    struct fid_mr *regions[2];
    struct side other;
    struct fid_cntr *foreign;
    struct pair pair;

    messages_open(&pair, NULL);
    for (unsigned i = 0; i < 2; i++) {
        counters[i] = message_counter(&pair.server, FI_WAIT_UNSPEC);
        regions[i] = message_region(&pair.server, there, sizeof there, 1 + i);
    }
    CHECK_OK(fi_mr_bind(regions[0], &counters[0]->fid, FI_REMOTE_WRITE));
    CHECK_OK(fi_mr_bind(regions[1], &counters[0]->fid, FI_REMOTE_WRITE));
    CHECK_OK(fi_mr_bind(regions[1], &counters[1]->fid, FI_REMOTE_WRITE));
    message_client(&other, &pair.listener, NULL);
    foreign = message_counter(&other, FI_WAIT_UNSPEC);
    CHECK_RET(fi_mr_bind(regions[0], &foreign->fid, FI_REMOTE_WRITE), -FI_EDOMAIN);
    close_fid(&foreign->fid);
    side_close(&other);
    for (unsigned i = 0; i < 30; i++)
        CHECK_OK(fi_inject_write(pair.client.ep, here, 1, NO_ADDRESS, 0, i % 3 ? 2 : 1));
    AWAIT(PATIENCE_MS, fi_cntr_read(counters[0]) >= 30);
    CHECK_INT(fi_cntr_read(counters[0]), 30);
    CHECK_INT(fi_cntr_read(counters[1]), 20);
    /* The application's numbers take the place of those counted, and the count goes on from there. */
    CHECK_OK(fi_cntr_set(counters[0], 1000));
    CHECK_OK(fi_cntr_add(counters[1], 100));
    CHECK_OK(fi_cntr_seterr(counters[0], 5));
    CHECK_OK(fi_cntr_adderr(counters[0], 2));
    CHECK_INT(fi_cntr_read(counters[0]), 1000);
    CHECK_INT(fi_cntr_read(counters[1]), 120);
    CHECK_INT(fi_cntr_readerr(counters[0]), 7);
    CHECK_INT(fi_cntr_readerr(counters[1]), 0);
    CHECK_OK(fi_inject_write(pair.client.ep, here, 1, NO_ADDRESS, 0, 2));
    CHECK_OK(fi_cntr_wait(counters[0], 1001, PATIENCE_MS));
    CHECK_INT(fi_cntr_read(counters[0]), 1001);
    CHECK_INT(fi_cntr_read(counters[1]), 121);
    CHECK_RET(fi_close(&counters[0]->fid), -FI_EBUSY);
    CHECK_RET(fi_close(&counters[1]->fid), -FI_EBUSY);
    close_fid(&regions[1]->fid);
    close_fid(&counters[1]->fid);
    CHECK_RET(fi_close(&counters[0]->fid), -FI_EBUSY);
    CHECK_INT(fi_cntr_read(counters[0]), 1001);
    CHECK_OK(fi_inject_write(pair.client.ep, here, 1, NO_ADDRESS, 0, 1));
    AWAIT(PATIENCE_MS, fi_cntr_read(counters[0]) == 1002);
    close_fid(&regions[0]->fid);
    CHECK_INT(fi_cntr_read(counters[0]), 1002);
    close_fid(&counters[0]->fid);
    pair_close(&pair);
}

static atomic_bool is_over;

/* Reads a counter again and again. */
static void *read_counter(void *argument)
{
    uint64_t before = 0;

    while (!atomic_load(&is_over)) {
        uint64_t now = fi_cntr_read(argument);

        CHECK(now >= before);
        before = now;
    }
    return NULL;
}

/* The writes to a region that is closed stay counted, at each moment. */
static void counted_past_closing(void)
{
    enum { TIMES = 5000, WRITES = 3 };
    struct fid_cntr *counter;
    struct pair pair;
    pthread_t reader;

    messages_open(&pair, NULL);
    counter = message_counter(&pair.server, FI_WAIT_UNSPEC);
    atomic_store(&is_over, false);
    CHECK_OK(pthread_create(&reader, NULL, read_counter, counter));
    for (uint64_t i = 1; i <= TIMES; i++) {
        struct fid_mr *region = message_region(&pair.server, there, sizeof there, i);

        CHECK_OK(fi_mr_bind(region, &counter->fid, FI_REMOTE_WRITE));
        for (unsigned j = 0; j < WRITES; j++)
            CHECK_OK(fi_inject_write(pair.client.ep, here, 1, NO_ADDRESS, 0, i));
        CHECK_OK(fi_cntr_wait(counter, i * WRITES, PATIENCE_MS));
        close_fid(&region->fid);
    }
    atomic_store(&is_over, true);
    CHECK_OK(pthread_join(reader, NULL));
    CHECK_INT(fi_cntr_read(counter), TIMES * WRITES);
    close_fid(&counter->fid);
    pair_close(&pair);
}

/* ---- keys --------------------------------------------------------------------------------- */

/* Registers regions under long keys until one meets another in 32 bits. */
static void keys_that_meet(void)
{
    /* Far more than it takes: 2^19 keys have 2^37 pairs. */
    enum { MOST = 1 << 19 };
    struct dice dice = {7};
    struct fid_mr **regions = calloc(MOST, sizeof *regions), *again = NULL;
    unsigned count = 0, partner;
    struct pair pair;
    uint64_t key;
    int answer;

    CHECK(regions != NULL);
    messages_open(&pair, NULL);
    memset(there, 3, sizeof there);
    for (;; count++) {
        CHECK(count < MOST);
        /* No two are the same. */
        key = (throw_below(&dice, 1ULL << 32) + 1) << 32 | count;
        if (key == FI_KEY_NOTAVAIL)
            continue;
        answer = fi_mr_reg(pair.server.domain, there, sizeof there, FI_REMOTE_READ, 0, key, 0, &regions[count], NULL);
        if (answer != 0)
            break;
    }
    printf("key %u meets another\n", count);
    CHECK_RET(answer, -FI_ENOKEY);
    CHECK(regions[count] == NULL);
    /* The other is the one whose close makes room. Until then its region is as it was. */
    for (partner = count; answer != 0;) {
        uint64_t in_use;

        CHECK(partner-- > 0);
        in_use = fi_mr_key(regions[partner]);
        close_fid(&regions[partner]->fid);
        answer = fi_mr_reg(pair.server.domain, here, sizeof here, FI_REMOTE_READ, 0, key, 0, &again, NULL);
        if (answer != 0) {
            CHECK_RET(answer, -FI_ENOKEY);
            CHECK(again == NULL);
            continue;
        }
        CHECK_RET(fi_mr_reg(pair.server.domain, there, 1, FI_REMOTE_READ, 0, in_use, 0, &regions[partner], NULL),
                  -FI_ENOKEY);
        close_fid(&again->fid);
        again = NULL;
        regions[partner] = message_region(&pair.server, there, sizeof there, in_use);
        CHECK_RET(fi_mr_reg(pair.server.domain, here, sizeof here, FI_REMOTE_READ, 0, key, 0, &again, NULL),
                  -FI_ENOKEY);
        CHECK_OK(fi_read(pair.client.ep, here, sizeof here, NULL, NO_ADDRESS, 0, in_use, CONTEXT(1)));
        (void)await_done(pair.client.cq, 1, WAS_READ);
        CHECK_BYTES(here, there, sizeof here);
    }
    for (unsigned i = 0; i <= partner; i++)
        close_fid(&regions[i]->fid);
    pair_close(&pair);
    free(regions);
}

/* ---- full queues -------------------------------------------------------------------------- */

enum { SLOT = 4096, SLOTS = 4096 };
enum call { INJECT, INJECTDATA, INJECT_WRITE, INJECT_WRITEDATA, WRITEDATA, SENDDATA, CALLS };

/* Makes a call with these bytes. A write is to the slot with this number, which is the data as well. */
static ssize_t make_call(struct fid_ep *ep, enum call call, const uint8_t *bytes, unsigned slot)
{
    switch (call) {
    case INJECT:
        return fi_inject(ep, bytes, SLOT, NO_ADDRESS);
    case INJECTDATA:
        return fi_injectdata(ep, bytes, SLOT, slot, NO_ADDRESS);
    case INJECT_WRITE:
        return fi_inject_write(ep, bytes, SLOT, NO_ADDRESS, (uint64_t)slot * SLOT, 1);
    case INJECT_WRITEDATA:
        return fi_inject_writedata(ep, bytes, SLOT, slot, NO_ADDRESS, (uint64_t)slot * SLOT, 1);
    case WRITEDATA:
        return fi_writedata(ep, bytes, SLOT, NULL, slot, NO_ADDRESS, (uint64_t)slot * SLOT, 1, CONTEXT(slot));
    default:
        return fi_senddata(ep, bytes, SLOT, NULL, slot, NO_ADDRESS, CONTEXT(slot));
    }
}

/* As long as fi_tx_size_left is positive another operation is taken, also behind a read that the peer does not answer,
 * where those that are not reported hold room as well. */
static void size_left_with(uint64_t tx_flags)
{
    struct message_settings settings = {.tx_size = 64, .tx_flags = tx_flags};
    uint8_t *memory = map_pages(SLOT), got[SLOT];
    struct fid_mr *region;
    unsigned taken = 0;
    struct pair pair;
    ssize_t answer;

    messages_open(&pair, &settings);
    region = message_region(&pair.server, memory, SLOT, 1);
    CHECK_RET(fi_tx_size_left(pair.client.ep), 64);
    CHECK_OK(fi_read(pair.client.ep, got, SLOT, NULL, NO_ADDRESS, 0, 1, CONTEXT(0)));
    for (;; taken++) {
        const ssize_t left = fi_tx_size_left(pair.client.ep);

        if (taken % 4)
            answer = fi_inject(pair.client.ep, memory, 1, NO_ADDRESS);
        else
            answer = fi_send(pair.client.ep, memory, SLOT, NULL, NO_ADDRESS, CONTEXT(1));
        note("%u taken, %zd left", taken, left);
        if (answer == -FI_EAGAIN && left == 0)
            break;
        CHECK_OK(answer);
    }
    printf("%u operations were taken\n", taken);
    CHECK_AT_LEAST(taken, 32);
    close_fid(&pair.client.ep->fid);
    pair.client.ep = NULL;
    close_fid(&region->fid);
    pair_close(&pair);
    unmap_pages(memory, SLOT);
}

static void size_left(void)
{
    size_left_with(0);
    size_left_with(FI_DELIVERY_COMPLETE);
}

/* Calls in turn until one is refused. The peer makes no progress meanwhile. Then all of them are refused, and what was
 * taken arrives. */
static void refused_when_full(void)
{
    struct message_settings settings = {.tx_size = 64};
    uint8_t *memory = map_pages((size_t)SLOT * SLOTS), got[SLOT], copied[SLOT];
    unsigned taken = 0;
    struct fid_mr *region;
    struct pair pair;

    messages_open(&pair, &settings);
    region = message_region(&pair.server, memory, (size_t)SLOT * SLOTS, 1);
    for (;; taken++) {
        enum call call = taken % CALLS;
        ssize_t answer;

        CHECK(taken < SLOTS);
        memcpy(copied, pattern(taken, SLOT), SLOT);
        answer = make_call(pair.client.ep, call, call < WRITEDATA ? copied : pattern(taken, SLOT), taken);
        memset(copied, 0xee, SLOT);
        if (answer != 0) {
            CHECK_RET(answer, -FI_EAGAIN);
            break;
        }
    }
    /* Long messages take the last places of the queue. */
    while (fi_tx_size_left(pair.client.ep) > 0)
        CHECK_OK(fi_send(pair.client.ep, pattern(0, PATTERN_MAX), PATTERN_MAX, NULL, NO_ADDRESS, CONTEXT(SLOTS)));
    for (enum call call = 0; call < CALLS; call++) {
        note("call %u", call);
        CHECK_RET(make_call(pair.client.ep, call, copied, taken), -FI_EAGAIN);
    }
    check_calls(pair.client.ep, -FI_EAGAIN);
    CHECK_AT_LEAST(taken, CALLS);
    printf("%u calls were taken\n", taken);
    for (unsigned slot = 0; slot < taken; slot++) {
        enum call call = slot % CALLS;
        struct fi_cq_data_entry entry;

        note("slot %u", slot);
        if (call == INJECT || call == INJECTDATA || call == SENDDATA) {
            post_recv(pair.server.ep, got, SLOT, slot);
            entry = await_done(pair.server.cq, slot, RECEIVED | (call == INJECT ? 0 : FI_REMOTE_CQ_DATA));
            CHECK_BYTES(got, pattern(slot, SLOT), SLOT);
        } else if (call != INJECT_WRITE) {
            entry = await_done(pair.server.cq, 0, REMOTE_WRITTEN);
            CHECK_BYTES(memory + (size_t)slot * SLOT, pattern(slot, SLOT), SLOT);
        } else {
            AWAIT(PATIENCE_MS, memcmp(memory + (size_t)slot * SLOT, pattern(slot, SLOT), SLOT) == 0);
            continue;
        }
        CHECK_INT(entry.len, SLOT);
        CHECK_INT(entry.data, call == INJECT ? 0 : slot);
        if (call == WRITEDATA || call == SENDDATA)
            (void)await_done(pair.client.cq, slot, call == SENDDATA ? SENT : WRITTEN);
    }
    /* What was refused has written nothing, and has no entry. */
    for (size_t at = (size_t)taken * SLOT; at < (size_t)(taken + 1) * SLOT; at++)
        CHECK_INT(memory[at], 0);
    close_fid(&pair.client.ep->fid);
    pair.client.ep = NULL;
    for (struct fi_cq_err_entry error = {0}; fi_cq_readerr(pair.client.cq, &error, 0) == 1;)
        CHECK(error.op_context == CONTEXT(SLOTS) && error.err == FI_ECANCELED);
    check_no_completion(pair.client.cq);
    check_no_completion(pair.server.cq);
    close_fid(&region->fid);
    pair_close(&pair);
    unmap_pages(memory, (size_t)SLOT * SLOTS);
}

/* Binds a counter to the client. */
static void count_sends(struct side *side)
{
    if (side->borrows)
        return;
    sends = message_counter(side, FI_WAIT_UNSPEC);
    CHECK_OK(fi_ep_bind(side->ep, &sends->fid, FI_SEND));
}

/* An inject holds room as long as it is not complete, if a counter counts it. */
static void injects_that_count(void)
{
    struct message_settings settings = {.tx_size = 5, .prepare = count_sends};
    uint8_t got[MESSAGE_QUEUE];
    struct pair pair;

    messages_open(&pair, &settings);
    for (unsigned i = 0; i < 5; i++) {
        CHECK_RET(fi_tx_size_left(pair.client.ep), 5 - i);
        CHECK_OK(fi_inject(pair.client.ep, pattern(i, 1), 1, NO_ADDRESS));
    }
    CHECK_RET(fi_tx_size_left(pair.client.ep), 0);
    CHECK_RET(fi_inject(pair.client.ep, "x", 1, NO_ADDRESS), -FI_EAGAIN);
    CHECK_RET(fi_injectdata(pair.client.ep, "x", 1, 1, NO_ADDRESS), -FI_EAGAIN);
    CHECK_RET(fi_inject_write(pair.client.ep, "x", 1, NO_ADDRESS, 0, 1), -FI_EAGAIN);
    for (unsigned i = 0; i < 5; i++) {
        post_recv(pair.server.ep, &got[i], 1, i);
        (void)await_done(pair.server.cq, i, RECEIVED);
    }
    CHECK_BYTES(got, pattern(0, 5), 5);
    AWAIT(PATIENCE_MS, fi_cntr_read(sends) == 5);
    CHECK_RET(fi_tx_size_left(pair.client.ep), 5);
    check_no_completion(pair.client.cq);
    close_fid(&pair.client.ep->fid);
    pair.client.ep = NULL;
    close_fid(&sends->fid);
    pair_close(&pair);
}

/* ---- failures ----------------------------------------------------------------------------- */

/* Checks that the text of a failure, however it is asked for, contains this. */
static void check_text(struct fid_cq *cq, struct fi_cq_err_entry error, const char *cause)
{
    char buffer[100] = "";
    const char *text = fi_cq_strerror(cq, error.prov_errno, error.err_data, NULL, 0);

    if (!strstr(text, cause))
        fail_at(__FILE__, __LINE__, "\"%s\" says nothing of \"%s\"", text, cause);
    CHECK(fi_cq_strerror(cq, error.prov_errno, error.err_data, buffer, sizeof buffer) == buffer);
    CHECK(strcmp(buffer, text) == 0);
}

static void causes(void)
{
    struct fid_mr *region;
    struct pair pair;
    uint8_t *none;

    messages_open(&pair, NULL);
    post_recv(pair.server.ep, there, 1, 1);
    CHECK_OK(fi_inject(pair.client.ep, "xx", 2, NO_ADDRESS));
    check_text(pair.server.cq, await_failed(pair.server.cq, 1, RECEIVED, FI_ETRUNC), "longer than its receive");
    post_recv(pair.server.ep, there, 1, 2);
    CHECK_OK(fi_cancel(&pair.server.ep->fid, CONTEXT(2)));
    check_text(pair.server.cq, await_failed(pair.server.cq, 2, RECEIVED, FI_ECANCELED), "cancelled");
    post_recv(pair.server.ep, there, 1, 3);
    close_fid(&pair.client.ep->fid);
    pair.client.ep = NULL;
    check_text(pair.server.cq, await_failed(pair.server.cq, 3, RECEIVED, FI_ECANCELED), "connection ended");
    pair_close(&pair);
    /* Wrong key, bounds, rights. */
    for (unsigned i = 0; i < 3; i++) {
        messages_open(&pair, NULL);
        CHECK_OK(fi_mr_reg(pair.server.domain, there, 10, i == 2 ? FI_REMOTE_WRITE : FI_REMOTE_READ, 0, 1, 0, &region,
                           NULL));
        CHECK_OK(fi_read(pair.client.ep, here, 10, NULL, NO_ADDRESS, i == 1, 1 + (i == 0), CONTEXT(1)));
        check_text(pair.client.cq, await_failed(pair.client.cq, 1, WAS_READ, FI_EACCES), "key, bounds or rights");
        close_fid(&region->fid);
        pair_close(&pair);
    }
    none = mmap(NULL, 1 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(none != MAP_FAILED);
    messages_open(&pair, NULL);
    post_send(pair.client.ep, none, 1 << 20, 1);
    check_text(pair.client.cq, await_failed(pair.client.cq, 1, SENT, FI_EFAULT), "local memory");
    pair_close(&pair);
    unmap_pages(none, 1 << 20);
}

/* A message with data that is too long for its receive. The bytes of the data are not counted. */
static void truncated_with_data(void)
{
    const size_t lengths[] = {11, 4096, 5000, 300000}, rooms[] = {0, 1, 10};
    struct fi_cq_data_entry entry;
    struct fi_cq_err_entry error;
    struct pair pair;

    messages_open(&pair, NULL);
    for (unsigned i = 0; i < 12; i++) {
        size_t length = lengths[i / 3], room = rooms[i % 3];

        note("%zu bytes for %zu", length, room);
        memset(there, 0xcc, sizeof there);
        post_recv(pair.server.ep, there, room, 1);
        post_recv(pair.server.ep, there + 20, 2, 2);
        CHECK_OK(fi_senddata(pair.client.ep, pattern(0, length), length, NULL, 77, NO_ADDRESS, CONTEXT(3)));
        CHECK_OK(fi_senddata(pair.client.ep, "ok", 2, NULL, 88, NO_ADDRESS, CONTEXT(4)));
        error = await_failed(pair.server.cq, 1, RECEIVED, FI_ETRUNC);
        CHECK_INT(error.len, room);
        CHECK_INT(error.olen, length - room);
        CHECK_INT(error.data, 0);
        CHECK_BYTES(there, pattern(0, room), room);
        for (size_t at = room; at < 20; at++)
            CHECK_INT(there[at], 0xcc);
        entry = await_done(pair.server.cq, 2, RECEIVED | FI_REMOTE_CQ_DATA);
        CHECK_INT(entry.data, 88);
        CHECK_INT(entry.len, 2);
        CHECK_BYTES(there + 20, "ok", 2);
        (void)await_done(pair.client.cq, 3, SENT);
        (void)await_done(pair.client.cq, 4, SENT);
    }
    pair_close(&pair);
}

static const struct test tests[] = {
    TEST(selective_one_way, "FI_SELECTIVE_COMPLETION for one direction: the other reports everything"),
    TEST(counted_accesses, "FI_REMOTE_WRITE and FI_REMOTE_READ count the peer's writes and reads"),
    TEST(accesses_wake, "who waits for a counter of the peer's accesses sleeps until there are so many"),
    TEST(counted_past_closing, "a counter of regions that are closed never goes back"),
    TEST(counters_of_regions, "counters of regions: each bound to two; set, add, seterr, adderr; -FI_EBUSY while bound"),
    TEST(keys_that_meet, "a key that meets another in 32 bits: -FI_ENOKEY, until the other is closed"),
    TEST(size_left, "fi_tx_size_left: as long as it is positive, operations are taken"),
    TEST(refused_when_full, "every call that sends, reads or writes: -FI_EAGAIN when the queue is full; what was taken arrives"),
    TEST(injects_that_count, "injects that a counter counts hold room until they are complete"),
    TEST(causes, "the text of each failure names its cause"),
    TEST(truncated_with_data, "FI_ETRUNC of a message with remote CQ data; the next message is intact"),
};

const struct section message_bindings_section = SECTION("bindings and failures of message endpoints", tests);
