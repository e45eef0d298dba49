/* Contract, section Message endpoints: every flag of the calls that have flags, and FI_FENCE. */
#include "message.h"

#define NO_ADDRESS FI_ADDR_UNSPEC
#define LENGTH 1000
#define KEY 1
#define DATA 0x1122334455667788
/* FI_PRIORITY, which libfabric 2 no longer names. */
#define PRIORITY (1ULL << 22)
/* The bits from 60 on are libfabric's own. */
#define OWN (~0ULL << 60)

#define SENDING                                                                                                       \
    (FI_INJECT | FI_COMPLETION | FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE | FI_MORE |         \
     FI_REMOTE_CQ_DATA | FI_FENCE | PRIORITY | OWN)

/* `here` is the memory of the client's operations, `there` that of the server. */
static uint8_t here[LENGTH], there[LENGTH];

static int post_sendmsg(struct fid_ep *ep, uint64_t flags, uintptr_t context)
{
    struct iovec piece = {here, LENGTH};
    struct fi_msg message = {.msg_iov = &piece, .iov_count = 1, .addr = NO_ADDRESS, .context = CONTEXT(context),
                             .data = DATA};

    return (int)fi_sendmsg(ep, &message, flags);
}

static int post_recvmsg(struct fid_ep *ep, uint64_t flags, uintptr_t context)
{
    struct iovec piece = {there, LENGTH};
    struct fi_msg message = {.msg_iov = &piece, .iov_count = 1, .addr = NO_ADDRESS, .context = CONTEXT(context)};

    return (int)fi_recvmsg(ep, &message, flags);
}

static int post_rma(ssize_t (*call)(struct fid_ep *, const struct fi_msg_rma *, uint64_t), struct fid_ep *ep,
                    uint64_t flags, uintptr_t context)
{
    struct iovec piece = {here, LENGTH};
    struct fi_rma_iov target = {.addr = 0, .len = LENGTH, .key = KEY};
    struct fi_msg_rma message = {.msg_iov = &piece, .iov_count = 1, .addr = NO_ADDRESS, .rma_iov = &target,
                                 .rma_iov_count = 1, .context = CONTEXT(context), .data = DATA};

    return (int)call(ep, &message, flags);
}

static int post_readmsg(struct fid_ep *ep, uint64_t flags, uintptr_t context)
{
    return post_rma(fi_readmsg, ep, flags, context);
}

static int post_writemsg(struct fid_ep *ep, uint64_t flags, uintptr_t context)
{
    return post_rma(fi_writemsg, ep, flags, context);
}

enum kind { SENDS, RECEIVES, READS, WRITES, KINDS };

static const struct {
    const char *name;
    int (*post)(struct fid_ep *ep, uint64_t flags, uintptr_t context);
    uint64_t accepted;
    /* Of its entries. */
    uint64_t entry;
} calls[KINDS] = {
    [SENDS] = {"fi_sendmsg", post_sendmsg, SENDING, SENT},
    [RECEIVES] = {"fi_recvmsg", post_recvmsg, FI_COMPLETION | FI_MORE | OWN, RECEIVED},
    [READS] = {"fi_readmsg", post_readmsg, SENDING, WAS_READ},
    [WRITES] = {"fi_writemsg", post_writemsg, SENDING, WRITTEN},
};

/* Makes a call with this flag, and one behind it that asks for its entry. */
static void check_flag(struct pair *pair, enum kind kind, uint64_t flag, bool is_selective)
{
    struct side *side = kind == RECEIVES ? &pair->server : &pair->client;
    uint64_t with_data = flag == FI_REMOTE_CQ_DATA ? FI_REMOTE_CQ_DATA : 0;
    const uint8_t *bytes = pattern(flag % 1000, LENGTH);
    bool is_accepted = flag & calls[kind].accepted;
    struct fi_cq_data_entry entry;

    note("%s, flag 0x%llx%s", calls[kind].name, (unsigned long long)flag, is_selective ? ", selective" : "");
    memcpy(here, bytes, LENGTH);
    memset(there, 0, LENGTH);
    if (kind == READS) {
        memcpy(there, bytes, LENGTH);
        memset(here, 0, LENGTH);
    }
    if (kind == SENDS) {
        post_recv(pair->server.ep, there, LENGTH, 10);
        post_recv(pair->server.ep, NULL, 0, 11);
    }
    CHECK_RET(calls[kind].post(side->ep, flag, 1), is_accepted ? 0 : -FI_EBADFLAGS);
    /* Such a call may have a buffer that is free when it returns. */
    if (kind != READS && flag == FI_INJECT)
        memset(here, 0xee, LENGTH);
    switch (kind) {
    case SENDS:
        post_send(pair->client.ep, NULL, 0, 2);
        break;
    case RECEIVES:
        CHECK_RET(fi_rx_size_left(side->ep), MESSAGE_QUEUE - is_accepted);
        CHECK_OK(calls[kind].post(side->ep, FI_COMPLETION, 2));
        for (int i = 0; i <= is_accepted; i++)
            CHECK_OK(fi_inject(pair->client.ep, bytes, LENGTH, NO_ADDRESS));
        break;
    case READS:
        CHECK_OK(fi_read(side->ep, NULL, 0, NULL, NO_ADDRESS, 0, KEY, CONTEXT(2)));
        break;
    default:
        CHECK_OK(fi_write(side->ep, NULL, 0, NULL, NO_ADDRESS, 0, KEY, CONTEXT(2)));
    }
    if (is_accepted && (!is_selective || flag == FI_COMPLETION))
        (void)await_done(side->cq, 1, calls[kind].entry);
    (void)await_done(side->cq, 2, calls[kind].entry);
    check_no_completion(side->cq);
    if (kind == SENDS && is_accepted) {
        entry = await_done(pair->server.cq, 10, RECEIVED | with_data);
        CHECK_INT(entry.len, LENGTH);
        CHECK_INT(entry.data, with_data ? DATA : 0);
    }
    if (kind == SENDS)
        /* What was refused has not been sent. */
        CHECK_INT(await_done(pair->server.cq, is_accepted ? 11 : 10, RECEIVED).len, 0);
    if (kind == WRITES && with_data) {
        entry = await_done(pair->server.cq, 0, REMOTE_WRITTEN);
        CHECK_INT(entry.len, LENGTH);
        CHECK_INT(entry.data, DATA);
    }
    if (kind == SENDS && !is_accepted) {
        CHECK_OK(fi_inject(pair->client.ep, NULL, 0, NO_ADDRESS));
        (void)await_done(pair->server.cq, 11, RECEIVED);
    }
    check_no_completion(pair->server.cq);
    if (is_accepted && kind == WRITES) {
        /* The write is complete when TCP has taken it. */
        AWAIT(PATIENCE_MS, memcmp(there, bytes, LENGTH) == 0);
    } else if (is_accepted) {
        CHECK_BYTES(kind == READS ? here : there, bytes, LENGTH);
    } else if (kind != RECEIVES) {
        for (unsigned i = 0; i < LENGTH; i++)
            CHECK_INT(kind == READS ? here[i] : there[i], 0);
    }
}

static void check_every_flag(enum kind kind)
{
    for (unsigned selective = 0; selective < 2; selective++) {
        struct message_settings settings = {.bind_flags = selective ? FI_SELECTIVE_COMPLETION : 0,
                                            .tx_flags = FI_COMPLETION, .rx_flags = FI_COMPLETION};
        struct fid_mr *region;
        struct pair pair;

        messages_open(&pair, &settings);
        region = message_region(&pair.server, there, LENGTH, KEY);
        for (unsigned bit = 0; bit < 64; bit++)
            check_flag(&pair, kind, 1ULL << bit, selective);
        /* One bad flag among good ones, and all that are good. */
        note("%s, several flags", calls[kind].name);
        CHECK_RET(calls[kind].post(pair.client.ep, calls[kind].accepted | 1ULL << 45, 3), -FI_EBADFLAGS);
        CHECK_RET(calls[kind].post(pair.client.ep, ~0ULL, 3), -FI_EBADFLAGS);
        CHECK_RET(fi_tx_size_left(pair.client.ep), MESSAGE_QUEUE);
        CHECK_RET(fi_rx_size_left(pair.client.ep), MESSAGE_QUEUE);
        messages_pass(&pair);
        check_no_completion(pair.client.cq);
        close_fid(&region->fid);
        pair_close(&pair);
    }
}

static void flags_of_sends(void)
{
    check_every_flag(SENDS);
}

static void flags_of_receives(void)
{
    check_every_flag(RECEIVES);
}

static void flags_of_reads(void)
{
    check_every_flag(READS);
}

static void flags_of_writes(void)
{
    check_every_flag(WRITES);
}

/* Reads wait for the peer, which makes no progress before this thread drives it. */
static void fence(void)
{
    const enum kind kinds[] = {SENDS, READS, WRITES};
    struct fid_mr *region;
    struct pair pair;
    ssize_t answer;

    messages_open(&pair, NULL);
    region = message_region(&pair.server, there, LENGTH, KEY);
    for (unsigned i = 0; i < 3; i++) {
        const enum kind kind = kinds[i];
        unsigned messages = kind == SENDS ? 3 : 1;

        note("%s", calls[kind].name);
        for (unsigned n = 0; n < messages; n++)
            post_recv(pair.server.ep, there, LENGTH, n);
        /* Sends and writes are not waited for. */
        post_send(pair.client.ep, NULL, 0, 10);
        CHECK_OK(post_writemsg(pair.client.ep, FI_DELIVERY_COMPLETE, 11));
        CHECK_OK(calls[kind].post(pair.client.ep, FI_FENCE, 12));
        (void)await_done(pair.client.cq, 10, SENT);
        (void)await_done(pair.client.cq, 11, WRITTEN);
        (void)await_done(pair.client.cq, 12, calls[kind].entry);
        /* Reads are. */
        for (unsigned n = 0; n < 2; n++)
            CHECK_OK(post_readmsg(pair.client.ep, 0, 20 + n));
        for (unsigned n = 0; n < 2; n++)
            CHECK_RET(calls[kind].post(pair.client.ep, FI_FENCE, 30), -FI_EAGAIN);
        CHECK_RET(fi_tx_size_left(pair.client.ep), MESSAGE_QUEUE - 2);
        check_no_completion(pair.client.cq);
        AWAIT(PATIENCE_MS, (answer = calls[kind].post(pair.client.ep, FI_FENCE, 31)) != -FI_EAGAIN);
        CHECK_RET(answer, 0);
        for (unsigned n = 0; n < 2; n++)
            (void)await_done(pair.client.cq, 20 + n, WAS_READ);
        (void)await_done(pair.client.cq, 31, calls[kind].entry);
        for (unsigned n = 0; n < messages; n++)
            (void)await_done(pair.server.cq, n, RECEIVED);
        check_no_completion(pair.client.cq);
        check_no_completion(pair.server.cq);
    }
    close_fid(&region->fid);
    pair_close(&pair);
}

static const struct test tests[] = {
    TEST(flags_of_sends, "fi_sendmsg with each of 64 flags: its effect, or -FI_EBADFLAGS and nothing is sent"),
    TEST(flags_of_receives, "the same for fi_recvmsg"),
    TEST(flags_of_reads, "the same for fi_readmsg"),
    TEST(flags_of_writes, "the same for fi_writemsg"),
    TEST(fence, "FI_FENCE: -FI_EAGAIN while earlier reads are under way, and only then"),
};

const struct section message_flags_section = SECTION("flags of message endpoints", tests);
