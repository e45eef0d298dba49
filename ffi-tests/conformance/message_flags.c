/* Contract, section Message endpoints: each of the 64 bits of flags, in each call that takes flags of its own. */
#include "message.h"

/* FI_PRIORITY, which libfabric 2 no longer names. */
#define PRIORITY (1ULL << 22)
/* libfabric's own, which ask for nothing. */
#define OWN (0xfULL << 60)
#define RECEIVE_FLAGS (FI_COMPLETION | FI_MORE | OWN)
#define SEND_FLAGS                                                                                  \
    (RECEIVE_FLAGS | PRIORITY | FI_INJECT | FI_REMOTE_CQ_DATA | FI_FENCE | FI_INJECT_COMPLETE |     \
     FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE)

enum { MESSAGE = 1, ACCESS, RECEIVE, LATER };

static uint8_t memory[8], local[8], got[8];

static struct iovec piece = {local, sizeof local}, place = {got, sizeof got};
static struct fi_rma_iov remote = {.len = sizeof memory, .key = 1};
static const struct fi_msg message = {.msg_iov = &piece, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = CONTEXT(MESSAGE),
                                      .data = 77};
static const struct fi_msg receive = {.msg_iov = &place, .iov_count = 1, .addr = FI_ADDR_UNSPEC,
                                      .context = CONTEXT(RECEIVE)};
static const struct fi_msg_rma rma = {.msg_iov = &piece, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .rma_iov = &remote,
                                      .rma_iov_count = 1, .context = CONTEXT(ACCESS), .data = 78};

static void refused(struct pair *pair, ssize_t answer)
{
    CHECK_RET(answer, -FI_EBADFLAGS);
    check_no_completion(pair->client.cq);
    CHECK_RET(fi_tx_size_left(pair->client.ep), MESSAGE_QUEUE);
}

/* The length and the data that come with `flag`. */
static void check_arrival(struct pair *pair, uintptr_t context, uint64_t kind, uint64_t flag, uint64_t data)
{
    uint64_t with_data = flag & FI_REMOTE_CQ_DATA;
    struct fi_cq_data_entry entry = await_done(pair->server.cq, context, kind | with_data);

    CHECK_INT(entry.len, sizeof local);
    CHECK_INT(entry.data, with_data ? data : 0);
}

static void send_with(struct pair *pair, uint64_t flag)
{
    memset(got, 0, sizeof got);
    if (flag & ~SEND_FLAGS) {
        refused(pair, fi_sendmsg(pair->client.ep, &message, flag));
        return;
    }
    CHECK_OK(fi_recvmsg(pair->server.ep, &receive, 0));
    CHECK_OK(fi_sendmsg(pair->client.ep, &message, flag));
    check_arrival(pair, RECEIVE, RECEIVED, flag, message.data);
    (void)await_done(pair->client.cq, MESSAGE, SENT);
    CHECK_BYTES(got, local, sizeof local);
}

static void receive_with(struct pair *pair, uint64_t flag)
{
    memset(got, 0, sizeof got);
    if (flag & ~RECEIVE_FLAGS) {
        CHECK_RET(fi_recvmsg(pair->server.ep, &receive, flag), -FI_EBADFLAGS);
        CHECK_RET(fi_rx_size_left(pair->server.ep), MESSAGE_QUEUE);
        return;
    }
    CHECK_OK(fi_recvmsg(pair->server.ep, &receive, flag));
    post_send(pair->client.ep, local, sizeof local, LATER);
    CHECK_INT(await_done(pair->server.cq, RECEIVE, RECEIVED).len, sizeof local);
    (void)await_done(pair->client.cq, LATER, SENT);
    CHECK_BYTES(got, local, sizeof local);
}

static void write_with(struct pair *pair, uint64_t flag)
{
    memset(memory, 0, sizeof memory);
    if (flag & ~SEND_FLAGS) {
        refused(pair, fi_writemsg(pair->client.ep, &rma, flag));
        return;
    }
    CHECK_OK(fi_writemsg(pair->client.ep, &rma, flag));
    if (flag & FI_REMOTE_CQ_DATA)
        check_arrival(pair, 0, REMOTE_WRITTEN, flag, rma.data);
    (void)await_done(pair->client.cq, ACCESS, WRITTEN);
    AWAIT(PATIENCE_MS, memcmp(memory, local, sizeof local) == 0);
    check_no_completion(pair->server.cq);
}

static void read_with(struct pair *pair, uint64_t flag)
{
    uint8_t sent[sizeof local];

    if (flag & ~SEND_FLAGS) {
        refused(pair, fi_readmsg(pair->client.ep, &rma, flag));
        return;
    }
    memcpy(sent, local, sizeof sent);
    memcpy(memory, sent, sizeof sent);
    memset(local, 0, sizeof local);
    CHECK_OK(fi_readmsg(pair->client.ep, &rma, flag));
    (void)await_done(pair->client.cq, ACCESS, WAS_READ);
    CHECK_BYTES(local, sent, sizeof sent);
    check_no_completion(pair->server.cq);
}

static void with_each_flag(void (*call)(struct pair *pair, uint64_t flag))
{
    struct pair pair;
    struct fid_mr *region;

    messages_open(&pair, NULL);
    region = message_region(&pair.server, memory, sizeof memory, 1);
    for (unsigned bit = 0; bit < 64; bit++) {
        note("bit %u", bit);
        memcpy(local, pattern(bit, sizeof local), sizeof local);
        call(&pair, 1ULL << bit);
    }
    /* One that is refused is refused beside others, too. */
    note("several bits");
    call(&pair, FI_COMPLETION | 1ULL << 45);
    messages_pass(&pair);
    close_fid(&region->fid);
    pair_close(&pair);
}

static void flags_of_sends(void)
{
    with_each_flag(send_with);
}

static void flags_of_receives(void)
{
    with_each_flag(receive_with);
}

static void flags_of_writes(void)
{
    with_each_flag(write_with);
}

static void flags_of_reads(void)
{
    with_each_flag(read_with);
}

static const struct test tests[] = {
    TEST(flags_of_sends, "fi_sendmsg: what each flag does; -FI_EBADFLAGS for others, and nothing is posted"),
    TEST(flags_of_receives, "fi_recvmsg: the same"),
    TEST(flags_of_writes, "fi_writemsg: the same"),
    TEST(flags_of_reads, "fi_readmsg: the same"),
};

const struct section message_flags_section = SECTION("message flags", tests);
