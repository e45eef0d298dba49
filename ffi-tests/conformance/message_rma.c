/* Contract, section Message endpoints: memory regions, and access to those of the peer. */
#include "offer.h"

#include <stdlib.h>

#define UNKNOWN_FLAG (1ULL << 45)
#define BEYOND_MOST ((size_t)UINT32_MAX + 1)

/* ---- both key modes ----------------------------------------------------------------------- */

static void modes_of_keys(void)
{
    const int modes[] = {0, FI_MR_PROV_KEY, MR_BASIC, MR_SCALABLE};
    const int answers[] = {0, 0, MR_BASIC, MR_SCALABLE};

    for (unsigned i = 0; i < 4; i++) {
        struct message_settings settings = {.mr_mode = modes[i]};
        struct offer offer;

        offer_open(&offer, &settings);
        CHECK_INT(offer.pair.server.info->domain_attr->mr_mode, answers[i]);
        access_works(&offer);
        offer_close(&offer);
    }
}

static void keys_of_application(void)
{
    const uint64_t keys[] = {0, 1, 0x7fffffff, 0x80000000, 0xffffffff, 1ULL << 32, 1ULL << 63, UINT64_MAX - 1};
    struct fid_mr *regions[8], *again = NULL;
    struct offer offer;

    offer_open(&offer, NULL);
    for (unsigned i = 0; i < 8; i++) {
        regions[i] = message_region(&offer.pair.server, there + i, 1, keys[i]);
        CHECK_INT(fi_mr_key(regions[i]), keys[i]);
    }
    CHECK_RET(fi_mr_reg(offer.pair.server.domain, there, 1, FI_REMOTE_READ, 0, FI_KEY_NOTAVAIL, 0, &again, NULL),
              -FI_EKEYREJECTED);
    CHECK(again == NULL);
    for (unsigned i = 0; i < 8; i++) {
        here[i] = (uint8_t)(100 + i);
        CHECK_OK(fi_write(offer.pair.client.ep, here + i, 1, NULL, LOCAL, 0, keys[i], CONTEXT(i)));
        (void)await_done(offer.pair.client.cq, i, WRITTEN);
    }
    CHECK_OK(fi_read(offer.pair.client.ep, here + 100, 8, NULL, LOCAL, 0, offer.key, CONTEXT(9)));
    (void)await_done(offer.pair.client.cq, 9, WAS_READ);
    CHECK_BYTES(here + 100, here, 8);
    for (unsigned i = 0; i < 8; i++) {
        /* A key that is in use is refused, and can be used as soon as it is free. */
        CHECK_RET(fi_mr_reg(offer.pair.server.domain, there, 10, FI_REMOTE_READ, 0, keys[i], 0, &again, NULL),
                  -FI_ENOKEY);
        CHECK(again == NULL);
        close_fid(&regions[i]->fid);
        regions[i] = message_region(&offer.pair.server, there, 10, keys[i]);
        close_fid(&regions[i]->fid);
    }
    access_works(&offer);
    offer_close(&offer);
}

static void keys_of_provider(void)
{
    enum { COUNT = 1000 };
    struct message_settings settings = {.mr_mode = MR_BASIC};
    static struct fid_mr *regions[COUNT];
    struct offer offer;

    offer_open(&offer, &settings);
    for (unsigned i = 0; i < COUNT; i++) {
        regions[i] = message_region(&offer.pair.server, there + i, 1, 7);
        CHECK(fi_mr_key(regions[i]) != FI_KEY_NOTAVAIL && fi_mr_key(regions[i]) != 7);
        for (unsigned other = 0; other < i; other++)
            CHECK(fi_mr_key(regions[other]) != fi_mr_key(regions[i]));
    }
    for (unsigned i = 0; i < COUNT; i++)
        close_fid(&regions[i]->fid);
    access_works(&offer);
    offer_close(&offer);
}

static void access_combinations(void)
{
    const uint64_t rights[] = {FI_SEND, FI_RECV, FI_READ, FI_WRITE, FI_REMOTE_READ, FI_REMOTE_WRITE};
    struct offer offer;

    offer_open(&offer, NULL);
    for (unsigned subset = 0; subset < 64; subset++) {
        struct iovec piece = {there, 100};
        struct fi_mr_attr attr = {.mr_iov = &piece, .iov_count = 1, .requested_key = subset, .context = CONTEXT(3)};
        struct fid_mr *region = NULL;

        for (unsigned i = 0; i < 6; i++)
            if (subset & 1u << i)
                attr.access |= rights[i];
        CHECK_OK(fi_mr_reg(offer.pair.server.domain, there, 100, attr.access, 0, subset, 0, &region, CONTEXT(3)));
        CHECK(region->fid.context == CONTEXT(3));
        close_fid(&region->fid);
        CHECK_OK(fi_mr_regv(offer.pair.server.domain, &piece, 1, attr.access, 0, subset, 0, &region, CONTEXT(3)));
        close_fid(&region->fid);
        CHECK_OK(fi_mr_regattr(offer.pair.server.domain, &attr, 0, &region));
        CHECK(region->fid.context == CONTEXT(3));
        CHECK_INT(fi_mr_key(region), subset);
        CHECK_OK(fi_mr_enable(region));
        close_fid(&region->fid);
        /* No bytes. */
        CHECK_OK(fi_mr_reg(offer.pair.server.domain, there, 0, attr.access, 0, subset, 0, &region, NULL));
        close_fid(&region->fid);
    }
    access_works(&offer);
    offer_close(&offer);
}

static void registration_errors(void)
{
    struct iovec pieces[2] = {{there, 10}, {there + 20, 10}}, wrapping = {(void *)(uintptr_t)-4096, 8192};
    struct fi_mr_attr attr = {.mr_iov = pieces, .iov_count = 1, .access = FI_REMOTE_READ};
    struct fid_mr *region = NULL;
    struct fid_domain *domain;
    struct offer offer;

    offer_open(&offer, NULL);
    domain = offer.pair.server.domain;
    CHECK_RET(fi_mr_reg(domain, NULL, 10, FI_REMOTE_READ, 0, 1, 0, &region, NULL), -FI_EINVAL);
    CHECK_RET(fi_mr_reg(domain, there, 10, FI_REMOTE_READ, 0, 1, UNKNOWN_FLAG, &region, NULL), -FI_EBADFLAGS);
    CHECK_RET(fi_mr_reg(domain, there, SIZE_MAX, FI_REMOTE_READ, 0, 1, 0, &region, NULL), -FI_EINVAL);
    CHECK_RET(fi_mr_regv(domain, &wrapping, 1, FI_REMOTE_READ, 0, 1, 0, &region, NULL), -FI_EINVAL);
    CHECK_RET(fi_mr_reg(domain, there, 10, FI_REMOTE_READ, 0, 1, 0, NULL, NULL), -FI_EINVAL);
    CHECK_RET(fi_mr_regv(domain, NULL, 1, FI_REMOTE_READ, 0, 1, 0, &region, NULL), -FI_EINVAL);
    CHECK_RET(fi_mr_regv(domain, pieces, 0, FI_REMOTE_READ, 0, 1, 0, &region, NULL), -FI_EINVAL);
    CHECK_INT(offer.pair.server.info->domain_attr->mr_iov_limit, 1);
    CHECK_RET(fi_mr_regv(domain, pieces, 2, FI_REMOTE_READ, 0, 1, 0, &region, NULL), -FI_EINVAL);
    CHECK_RET(fi_mr_regattr(domain, NULL, 0, &region), -FI_EINVAL);
    attr.iface = FI_HMEM_CUDA;
    CHECK_RET(fi_mr_regattr(domain, &attr, 0, &region), -FI_ENOSYS);
    attr.iface = FI_HMEM_SYSTEM;
    attr.auth_key_size = 8;
    CHECK_RET(fi_mr_regattr(domain, &attr, 0, &region), -FI_EINVAL);
    CHECK(region == NULL);
    CHECK_RET(fi_mr_bind(offer.region, &offer.pair.server.ep->fid, FI_REMOTE_WRITE), -FI_EINVAL);
    CHECK_RET(fi_mr_bind(offer.region, NULL, FI_REMOTE_WRITE), -FI_EINVAL);
    access_works(&offer);
    offer_close(&offer);
}

/* A counter that is bound to a region counts the writes to it, by any of the calls. */
static void counted_writes(void)
{
    struct fi_cntr_attr attr = {.events = FI_CNTR_EVENTS_COMP};
    struct fid_cntr *counter;
    struct fid_mr *region;
    struct offer offer;
    struct fid_ep *ep;

    offer_open(&offer, NULL);
    ep = offer.pair.client.ep;
    CHECK_OK(fi_cntr_open(offer.pair.server.domain, &attr, &counter, NULL));
    region = message_region(&offer.pair.server, there + 100, 100, 9);
    CHECK_RET(fi_mr_bind(region, &counter->fid, FI_REMOTE_READ), -FI_EBADFLAGS);
    CHECK_OK(fi_mr_bind(region, &counter->fid, FI_REMOTE_WRITE));
    CHECK_INT(fi_cntr_read(counter), 0);
    CHECK_OK(fi_write(ep, here, 10, NULL, LOCAL, 0, 9, CONTEXT(1)));
    CHECK_OK(fi_inject_write(ep, here, 10, LOCAL, 0, 9));
    CHECK_OK(fi_writedata(ep, here, 10, NULL, 7, LOCAL, 0, 9, CONTEXT(2)));
    /* These are not of the region. */
    CHECK_OK(fi_write(ep, here, 10, NULL, LOCAL, 0, offer.key, CONTEXT(3)));
    CHECK_OK(fi_read(ep, here, 10, NULL, LOCAL, 0, 9, CONTEXT(4)));
    (void)await_done(offer.pair.client.cq, 1, WRITTEN);
    (void)await_done(offer.pair.client.cq, 2, WRITTEN);
    (void)await_done(offer.pair.client.cq, 3, WRITTEN);
    (void)await_done(offer.pair.client.cq, 4, WAS_READ);
    CHECK_INT(fi_cntr_read(counter), 3);
    CHECK_INT(fi_cntr_readerr(counter), 0);
    /* It keeps its number when the region goes. */
    close_fid(&region->fid);
    CHECK_INT(fi_cntr_read(counter), 3);
    (void)await_done(offer.pair.server.cq, 0, REMOTE_WRITTEN);
    close_fid(&counter->fid);
    offer_close(&offer);
}

/* ---- calls -------------------------------------------------------------------------------- */

/* Divides `length` bytes among up to 4 pieces, by a number that chooses their lengths. */
static size_t divide(size_t *parts, size_t length, unsigned seed)
{
    size_t count = 1 + seed % 4;

    for (size_t i = 0; i < count; i++) {
        parts[i] = i + 1 == count ? length : length * ((seed >> (2 + 2 * i)) % 4) / 4;
        length -= parts[i];
    }
    return count;
}

static void scatter(void)
{
    static uint8_t original[LENGTH];
    struct offer offer;

    offer_open(&offer, NULL);
    memcpy(original, pattern(3, LENGTH), LENGTH);
    for (unsigned seed = 0; seed < 200; seed++) {
        size_t length = seed % 3 ? 20000 : 100, locals[4], remotes[4], at = 0;
        size_t local_count = divide(locals, length, seed * 5), remote_count = divide(remotes, length, seed * 11 + 1);
        struct iovec local[4];
        struct fi_rma_iov remote[4];
        struct fi_msg_rma message = {.msg_iov = local, .iov_count = local_count, .addr = LOCAL, .rma_iov = remote,
                                     .rma_iov_count = remote_count, .context = CONTEXT(seed)};

        memset(there, 0, LENGTH);
        memcpy(here, original, LENGTH);
        for (size_t i = 0; i < local_count; i++, at += locals[i - 1])
            local[i] = (struct iovec){here + at, locals[i]};
        /* The remote pieces stand apart, in the reverse order. */
        for (size_t i = 0; i < remote_count; i++)
            remote[i] = (struct fi_rma_iov){(3 - i) * 25000 + i, remotes[i], offer.key};
        CHECK_OK(fi_writemsg(offer.pair.client.ep, &message, FI_COMPLETION | (seed % 5 ? 0 : FI_DELIVERY_COMPLETE)));
        (void)await_done(offer.pair.client.cq, seed, WRITTEN);
        memset(here, 0, length);
        CHECK_OK(fi_readmsg(offer.pair.client.ep, &message, FI_COMPLETION));
        (void)await_done(offer.pair.client.cq, seed, WAS_READ);
        CHECK_BYTES(here, original, LENGTH);
        at = 0;
        for (size_t i = 0; i < remote_count; at += remotes[i++])
            CHECK_BYTES(there + remote[i].addr, original + at, remotes[i]);
    }
    offer_close(&offer);
}

static void delivered_with(uint64_t flags)
{
    const size_t lengths[] = {1, 5000, 1 << 20, PATTERN_MAX};
    static uint8_t target[PATTERN_MAX];
    struct iovec piece = {0};
    struct fi_rma_iov remote = {.key = 9};
    struct fi_msg_rma message = {.msg_iov = &piece, .iov_count = 1, .addr = LOCAL, .rma_iov = &remote,
                                 .rma_iov_count = 1, .context = CONTEXT(1)};
    struct fid_mr *region;
    struct offer offer;

    offer_open(&offer, NULL);
    region = message_region(&offer.pair.server, target, sizeof target, 9);
    for (unsigned i = 0; i < 4; i++) {
        memset(target, 0, sizeof target);
        remote.len = piece.iov_len = lengths[i];
        piece.iov_base = (void *)(uintptr_t)pattern(i, lengths[i]);
        CHECK_OK(fi_writemsg(offer.pair.client.ep, &message, flags | FI_COMPLETION));
        /* The target places nothing yet. */
        for (unsigned n = 0; n < 50; n++)
            check_no_completion(offer.pair.client.cq);
        (void)await_done(offer.pair.client.cq, 1, WRITTEN);
        CHECK_BYTES(target, pattern(i, lengths[i]), lengths[i]);
    }
    close_fid(&region->fid);
    offer_close(&offer);
}

static void delivered(void)
{
    delivered_with(FI_DELIVERY_COMPLETE);
}

/* As the parameter says, also where the call does not. */
static void always_delivered(void)
{
    CHECK_SYS(setenv("FI_RSTREAM_DELIVERY", "1", 1));
    delivered_with(0);
}

/* Calls with pieces, and with descriptors, which are ignored. */
static void vectors(void)
{
    void *ignored[4] = {CONTEXT(0xbad1), CONTEXT(0xbad2), CONTEXT(0xbad3), CONTEXT(0xbad4)};
    struct iovec local[4] = {{here, 10}, {here + 50, 20}, {NULL, 0}, {here + 100, 30}};
    struct fi_rma_iov remote = {.addr = 1000, .len = 60};
    struct fi_msg_rma message = {.msg_iov = local, .desc = ignored, .iov_count = 4, .addr = LOCAL,
                                 .rma_iov = &remote, .rma_iov_count = 1};
    struct offer offer;
    struct fid_ep *ep;

    offer_open(&offer, NULL);
    ep = offer.pair.client.ep;
    remote.key = offer.key;
    memcpy(here, pattern(5, 200), 200);
    CHECK_OK(fi_writev(ep, local, ignored, 4, LOCAL, 7, offer.key, CONTEXT(1)));
    (void)await_done(offer.pair.client.cq, 1, WRITTEN);
    memset(here, 0, 200);
    CHECK_OK(fi_readv(ep, local, ignored, 4, LOCAL, 7, offer.key, CONTEXT(2)));
    (void)await_done(offer.pair.client.cq, 2, WAS_READ);
    CHECK_BYTES(here, pattern(5, 10), 10);
    CHECK_BYTES(here + 50, pattern(55, 20), 20);
    CHECK_BYTES(here + 100, pattern(105, 30), 30);
    CHECK_BYTES(there + 17, pattern(55, 20), 20);
    message.context = CONTEXT(3);
    CHECK_OK(fi_writemsg(ep, &message, FI_COMPLETION));
    message.context = CONTEXT(4);
    CHECK_OK(fi_readmsg(ep, &message, FI_COMPLETION));
    CHECK_OK(fi_write(ep, here, 10, ignored[0], LOCAL, 2000, offer.key, CONTEXT(5)));
    CHECK_OK(fi_writedata(ep, here, 10, ignored[0], 6, LOCAL, 2010, offer.key, CONTEXT(6)));
    CHECK_OK(fi_read(ep, here + 500, 20, ignored[0], LOCAL, 2000, offer.key, CONTEXT(7)));
    for (unsigned i = 3; i <= 7; i++)
        (void)await_done(offer.pair.client.cq, i, i == 4 || i == 7 ? WAS_READ : WRITTEN);
    CHECK_INT(await_done(offer.pair.server.cq, 0, REMOTE_WRITTEN).data, 6);
    CHECK_BYTES(there + 1010, pattern(55, 20), 20);
    CHECK_BYTES(here + 500, pattern(5, 10), 10);
    CHECK_BYTES(here + 510, pattern(5, 10), 10);
    offer_close(&offer);
}

static void writes_with_data(void)
{
    struct iovec piece = {here, 1000};
    struct fi_rma_iov targets[2] = {{.addr = 0, .len = 1000}, {.addr = 5000, .len = 300}};
    struct fi_msg_rma message = {.msg_iov = &piece, .iov_count = 1, .addr = LOCAL, .rma_iov = targets,
                                 .rma_iov_count = 1, .context = CONTEXT(3), .data = 33};
    struct fi_cq_data_entry entry;
    struct offer offer;

    /* Data of a write takes no receive. */
    offer_open(&offer, NULL);
    targets[0].key = targets[1].key = offer.key;
    memcpy(here, pattern(0, 1000), 1000);
    /* The length is that of the write itself, whatever was written before it. */
    CHECK_OK(fi_inject_write(offer.pair.client.ep, here, 500, LOCAL, 0, offer.key));
    CHECK_OK(fi_writedata(offer.pair.client.ep, here, 1000, NULL, UINT64_MAX, LOCAL, 100, offer.key, CONTEXT(1)));
    entry = await_done(offer.pair.server.cq, 0, REMOTE_WRITTEN);
    CHECK_INT(entry.data, UINT64_MAX);
    CHECK_INT(entry.len, 1000);
    CHECK_BYTES(there + 100, pattern(0, 1000), 1000);
    (void)await_done(offer.pair.client.cq, 1, WRITTEN);
    CHECK_OK(fi_inject_writedata(offer.pair.client.ep, here, 5, 22, LOCAL, 0, offer.key));
    CHECK_INT(await_done(offer.pair.server.cq, 0, REMOTE_WRITTEN).data, 22);
    CHECK_BYTES(there, here, 5);
    CHECK_OK(fi_writemsg(offer.pair.client.ep, &message, FI_REMOTE_CQ_DATA | FI_COMPLETION));
    CHECK_INT(await_done(offer.pair.server.cq, 0, REMOTE_WRITTEN).data, 33);
    (void)await_done(offer.pair.client.cq, 3, WRITTEN);
    /* Several pieces have one entry, with the length of the last one. */
    targets[0].len = 700;
    message.rma_iov_count = 2;
    CHECK_OK(fi_writemsg(offer.pair.client.ep, &message, FI_REMOTE_CQ_DATA | FI_COMPLETION));
    entry = await_done(offer.pair.server.cq, 0, REMOTE_WRITTEN);
    CHECK_INT(entry.data, 33);
    CHECK_INT(entry.len, 300);
    CHECK_BYTES(there, here, 700);
    CHECK_BYTES(there + 5000, here + 700, 300);
    (void)await_done(offer.pair.client.cq, 3, WRITTEN);
    /* No bytes, only data. */
    CHECK_OK(fi_writedata(offer.pair.client.ep, NULL, 0, NULL, 44, LOCAL, 0, offer.key, CONTEXT(4)));
    entry = await_done(offer.pair.server.cq, 0, REMOTE_WRITTEN);
    CHECK_INT(entry.data, 44);
    CHECK_INT(entry.len, 0);
    (void)await_done(offer.pair.client.cq, 4, WRITTEN);
    check_no_completion(offer.pair.server.cq);
    check_no_completion(offer.pair.client.cq);
    offer_close(&offer);
}

static void injected(void)
{
    struct iovec piece = {here, MESSAGE_INJECT};
    struct fi_rma_iov target = {.addr = 0, .len = MESSAGE_INJECT};
    struct fi_msg_rma message = {.msg_iov = &piece, .iov_count = 1, .addr = LOCAL, .rma_iov = &target,
                                 .rma_iov_count = 1, .context = CONTEXT(3)};
    struct offer offer;

    offer_open(&offer, NULL);
    target.key = offer.key;
    memcpy(here, pattern(0, MESSAGE_INJECT), MESSAGE_INJECT);
    CHECK_OK(fi_inject_write(offer.pair.client.ep, here, MESSAGE_INJECT, LOCAL, 9000, offer.key));
    memset(here, 0, MESSAGE_INJECT);
    memcpy(here, pattern(1, MESSAGE_INJECT), MESSAGE_INJECT);
    CHECK_OK(fi_writemsg(offer.pair.client.ep, &message, FI_INJECT | FI_COMPLETION));
    memset(here, 0, MESSAGE_INJECT);
    (void)await_done(offer.pair.client.cq, 3, WRITTEN);
    CHECK_RET(fi_inject_write(offer.pair.client.ep, here, MESSAGE_INJECT + 1, LOCAL, 0, offer.key), -FI_EMSGSIZE);
    CHECK_RET(fi_inject_writedata(offer.pair.client.ep, here, MESSAGE_INJECT + 1, 1, LOCAL, 0, offer.key),
              -FI_EMSGSIZE);
    piece.iov_len = target.len = MESSAGE_INJECT + 1;
    CHECK_RET(fi_writemsg(offer.pair.client.ep, &message, FI_INJECT), -FI_EMSGSIZE);
    /* A read behind them sees what they wrote. */
    CHECK_OK(fi_read(offer.pair.client.ep, here, 20000, NULL, LOCAL, 0, offer.key, CONTEXT(4)));
    (void)await_done(offer.pair.client.cq, 4, WAS_READ);
    CHECK_BYTES(here, pattern(1, MESSAGE_INJECT), MESSAGE_INJECT);
    CHECK_BYTES(here + 9000, pattern(0, MESSAGE_INJECT), MESSAGE_INJECT);
    offer_close(&offer);
}

/* A message behind a write arrives after the bytes of the write. */
static void order(void)
{
    struct offer offer;

    offer_open(&offer, NULL);
    for (unsigned round = 0; round < 100; round++) {
        uint8_t got = 0;

        memcpy(here, pattern(round, LENGTH), LENGTH);
        post_recv(offer.pair.server.ep, &got, 1, 1);
        CHECK_OK(fi_write(offer.pair.client.ep, here, LENGTH, NULL, LOCAL, 0, offer.key, CONTEXT(2)));
        post_send(offer.pair.client.ep, "x", 1, 3);
        (void)await_done(offer.pair.server.cq, 1, RECEIVED);
        CHECK_BYTES(there, pattern(round, LENGTH), LENGTH);
        (void)await_done(offer.pair.client.cq, 2, WRITTEN);
        (void)await_done(offer.pair.client.cq, 3, SENT);
    }
    offer_close(&offer);
}

static void many_reads(void)
{
    enum { COUNT = MESSAGE_QUEUE };
    struct offer offer;

    /* More than the device may have under way. */
    offer_open(&offer, NULL);
    memcpy(there, pattern(0, LENGTH), LENGTH);
    memset(here, 0, LENGTH);
    for (unsigned i = 0; i < COUNT; i++)
        CHECK_OK(fi_read(offer.pair.client.ep, here + i * 300, 300, NULL, LOCAL, i * 300, offer.key, CONTEXT(i)));
    CHECK_RET(fi_read(offer.pair.client.ep, here, 1, NULL, LOCAL, 0, offer.key, NULL), -FI_EAGAIN);
    for (unsigned i = 0; i < COUNT; i++)
        (void)await_done(offer.pair.client.cq, i, WAS_READ);
    CHECK_BYTES(here, there, COUNT * 300);
    offer_close(&offer);
}

static void call_errors(void)
{
    struct iovec local[5] = {{here, 10}, {here, 10}, {here, 10}, {here, 10}, {here, 10}};
    struct fi_rma_iov remote[5] = {{0, 10, 1}, {0, 10, 1}, {0, 10, 1}, {0, 10, 1}, {0, 10, 1}};
    _Alignas(16) uint8_t bytes[64] = {0};
    struct fi_msg_rma message = {.msg_iov = local, .iov_count = 1, .addr = LOCAL, .rma_iov = remote,
                                 .rma_iov_count = 2};
    struct offer offer;
    struct fid_ep *ep;

    offer_open(&offer, NULL);
    ep = offer.pair.client.ep;
    CHECK_RET(fi_read(ep, NULL, 10, NULL, LOCAL, 0, 1, NULL), -FI_EINVAL);
    CHECK_RET(fi_write(ep, NULL, 10, NULL, LOCAL, 0, 1, NULL), -FI_EINVAL);
    CHECK_RET(fi_inject_write(ep, NULL, 10, LOCAL, 0, 1), -FI_EINVAL);
    CHECK_RET(fi_readv(ep, NULL, NULL, 1, LOCAL, 0, 1, NULL), -FI_EINVAL);
    CHECK_RET(fi_writev(ep, local, NULL, 5, LOCAL, 0, 1, NULL), -FI_EINVAL);
    CHECK_RET(fi_readv(ep, local, NULL, 5, LOCAL, 0, 1, NULL), -FI_EINVAL);
    CHECK_RET(fi_writev(ep, (const void *)(bytes + 1), NULL, 1, LOCAL, 0, 1, NULL), -FI_EINVAL);
    CHECK_RET(fi_readmsg(ep, NULL, 0), -FI_EINVAL);
    CHECK_RET(fi_writemsg(ep, NULL, 0), -FI_EINVAL);
    /* Lengths whose sums differ. */
    CHECK_RET(fi_readmsg(ep, &message, 0), -FI_EINVAL);
    CHECK_RET(fi_writemsg(ep, &message, 0), -FI_EINVAL);
    remote[0].len = remote[1].len = SIZE_MAX / 2 + 6;
    CHECK_RET(fi_writemsg(ep, &message, 0), -FI_EINVAL);
    message.rma_iov_count = 5;
    CHECK_RET(fi_writemsg(ep, &message, 0), -FI_EINVAL);
    /* Five pieces on either side, also if their sum is that of the other side. */
    remote[0].len = remote[1].len = 10;
    local[0].iov_len = 50;
    CHECK_RET(fi_readmsg(ep, &message, 0), -FI_EINVAL);
    CHECK_RET(fi_writemsg(ep, &message, 0), -FI_EINVAL);
    local[0].iov_len = 10;
    remote[0].len = 50;
    message.iov_count = 5;
    message.rma_iov_count = 1;
    CHECK_RET(fi_readmsg(ep, &message, 0), -FI_EINVAL);
    CHECK_RET(fi_writemsg(ep, &message, 0), -FI_EINVAL);
    message.rma_iov_count = 0;
    message.iov_count = 0;
    CHECK_RET(fi_writemsg(ep, &message, 0), -FI_EINVAL);
    message.rma_iov = (const void *)(bytes + 1);
    message.rma_iov_count = 1;
    CHECK_RET(fi_writemsg(ep, &message, 0), -FI_EINVAL);
    /* Longer than a message may be. */
    CHECK_RET(fi_read(ep, here, BEYOND_MOST, NULL, LOCAL, 0, 1, NULL), -FI_EMSGSIZE);
    CHECK_RET(fi_write(ep, here, BEYOND_MOST, NULL, LOCAL, 0, 1, NULL), -FI_EMSGSIZE);
    local[0].iov_len = remote[0].len = BEYOND_MOST;
    message = (struct fi_msg_rma){.msg_iov = local, .iov_count = 1, .addr = LOCAL, .rma_iov = remote,
                                  .rma_iov_count = 1};
    CHECK_RET(fi_writemsg(ep, &message, 0), -FI_EMSGSIZE);
    CHECK_RET(fi_readmsg(ep, &message, 0), -FI_EMSGSIZE);
    local[0].iov_len = remote[0].len = 10;
    message = (struct fi_msg_rma){.msg_iov = local, .iov_count = 1, .addr = LOCAL, .rma_iov = remote,
                                  .rma_iov_count = 1};
    CHECK_RET(fi_writemsg(ep, &message, UNKNOWN_FLAG), -FI_EBADFLAGS);
    CHECK_RET(fi_readmsg(ep, &message, UNKNOWN_FLAG), -FI_EBADFLAGS);
    CHECK_RET(fi_tx_size_left(ep), MESSAGE_QUEUE);
    check_no_completion(offer.pair.client.cq);
    access_works(&offer);
    messages_pass(&offer.pair);
    offer_close(&offer);
}

static const struct test tests[] = {
    TEST(modes_of_keys, "mr_mode: FI_MR_BASIC and FI_MR_SCALABLE as they are, else none; offsets or addresses"),
    TEST(keys_of_application, "keys of 64 bits that the application chooses; one in use: -FI_ENOKEY"),
    TEST(keys_of_provider, "FI_MR_BASIC: the provider chooses the keys"),
    TEST(access_combinations, "fi_mr_reg, regv, regattr with every combination of rights, and no bytes"),
    TEST(registration_errors, "bad registrations: errors, and nothing changes"),
    TEST(counted_writes, "fi_mr_bind: a counter counts the writes to a region"),
    TEST(scatter, "fi_writemsg, fi_readmsg: up to 4 local and 4 remote pieces, divided differently"),
    TEST(delivered, "FI_DELIVERY_COMPLETE: after the bytes of the write are in the region"),
    TEST(always_delivered, "the same for each write with FI_RSTREAM_DELIVERY=1"),
    TEST(vectors, "fi_writev, fi_readv; any descriptor"),
    TEST(writes_with_data, "writes with data: a completion at the target, which takes no receive"),
    TEST(injected, "fi_inject_write and FI_INJECT: the buffer is free when the call returns"),
    TEST(order, "a message arrives after the bytes of the write before it"),
    TEST(many_reads, "more reads than the device has under way"),
    TEST(call_errors, "bad arguments: errors, and nothing changes"),
};

const struct section message_rma_section = SECTION("remote memory", tests);
