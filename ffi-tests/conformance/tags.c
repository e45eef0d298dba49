#include "tags.h"

#define NO_ADDRESS FI_ADDR_UNSPEC

const struct message_settings tagged_settings = {.caps = FI_MSG | FI_TAGGED, .cq = {.format = FI_CQ_FORMAT_TAGGED}};

void post_trecv(struct fid_ep *ep, void *data, size_t length, uint64_t tag, uint64_t ignore, uintptr_t context)
{
    CHECK_OK(fi_trecv(ep, data, length, NULL, NO_ADDRESS, tag, ignore, CONTEXT(context)));
}

void post_tsend(struct fid_ep *ep, const void *data, size_t length, uint64_t tag, uintptr_t context)
{
    CHECK_OK(fi_tsend(ep, data, length, NULL, NO_ADDRESS, tag, CONTEXT(context)));
}

ssize_t post_trecvmsg(struct fid_ep *ep, void *data, size_t length, uint64_t tag, uint64_t ignore, uint64_t flags,
                      uintptr_t context)
{
    struct iovec piece = {data, length};
    struct fi_msg_tagged message = {.msg_iov = length ? &piece : NULL, .iov_count = length ? 1 : 0, .addr = NO_ADDRESS,
                                    .tag = tag, .ignore = ignore, .context = CONTEXT(context)};

    return fi_trecvmsg(ep, &message, flags);
}

struct fi_cq_tagged_entry await_tagged(struct fid_cq *cq, uintptr_t context, uint64_t flags, size_t length,
                                       uint64_t tag)
{
    struct fi_cq_tagged_entry entry = next_tagged(cq);

    CHECK_INT((uintptr_t)entry.op_context, context);
    CHECK_INT(entry.flags, flags);
    CHECK_INT(entry.len, length);
    CHECK_INT(entry.tag, tag);
    CHECK(entry.buf == NULL);
    return entry;
}

/* Makes one peek, and reads its entry. Returns whether it has found a message. */
static bool peek(struct side *side, uint64_t tag, uint64_t ignore, uint64_t flags, uintptr_t context,
                 struct fi_cq_tagged_entry *entry)
{
    struct fi_cq_err_entry error = {0};
    ssize_t got = -FI_EAGAIN;

    CHECK_OK(post_trecvmsg(side->ep, NULL, 0, tag, ignore, FI_PEEK | flags, context));
    AWAIT(PATIENCE_MS, (got = fi_cq_read(side->cq, entry, 1)) != -FI_EAGAIN);
    if (got == 1) {
        CHECK_INT((uintptr_t)entry->op_context, context);
        CHECK_INT(entry->flags & ~FI_REMOTE_CQ_DATA, TAG_RECEIVED);
        CHECK_INT((entry->tag ^ tag) & ~ignore, 0);
        CHECK(entry->buf == NULL);
        return true;
    }
    CHECK_RET(got, -FI_EAVAIL);
    CHECK_RET(fi_cq_readerr(side->cq, &error, 0), 1);
    CHECK_INT((uintptr_t)error.op_context, context);
    CHECK_INT(error.flags, TAG_RECEIVED);
    CHECK_INT(error.err, FI_ENOMSG);
    return false;
}

struct fi_cq_tagged_entry await_peek(struct side *side, uint64_t tag, uint64_t ignore, uint64_t flags,
                                     uintptr_t context)
{
    struct fi_cq_tagged_entry entry;

    AWAIT(PATIENCE_MS, peek(side, tag, ignore, flags, context, &entry));
    return entry;
}

void check_finds_nothing(struct side *side, uint64_t tag, uint64_t ignore, uint64_t flags, uintptr_t context)
{
    struct fi_cq_tagged_entry entry;

    if (peek(side, tag, ignore, flags, context, &entry))
        fail_at(__FILE__, __LINE__, "a peek for tag 0x%llx has found a message of %zu bytes with tag 0x%llx",
                (unsigned long long)tag, entry.len, (unsigned long long)entry.tag);
}

void check_peeks_nothing(struct side *side, uint64_t tag, uint64_t ignore)
{
    check_finds_nothing(side, tag, ignore, 0, 0x9eec);
}

enum { UNUSED_TAG = 0x7a57bad };

void check_tagged_calls(struct fid_ep *ep, ssize_t answer)
{
    static uint8_t byte;
    struct iovec piece = {&byte, 1};
    struct fi_msg_tagged message = {.msg_iov = &piece, .iov_count = 1, .addr = NO_ADDRESS, .tag = UNUSED_TAG};

    CHECK_RET(fi_tsend(ep, &byte, 1, NULL, NO_ADDRESS, UNUSED_TAG, NULL), answer);
    CHECK_RET(fi_tsendv(ep, &piece, NULL, 1, NO_ADDRESS, UNUSED_TAG, NULL), answer);
    CHECK_RET(fi_tsendmsg(ep, &message, 0), answer);
    CHECK_RET(fi_tinject(ep, &byte, 1, NO_ADDRESS, UNUSED_TAG), answer);
    CHECK_RET(fi_tsenddata(ep, &byte, 1, NULL, 1, NO_ADDRESS, UNUSED_TAG, NULL), answer);
    CHECK_RET(fi_tinjectdata(ep, &byte, 1, 1, NO_ADDRESS, UNUSED_TAG), answer);
}

void check_tagged_receives(struct fid_ep *ep, ssize_t answer)
{
    static uint8_t byte;
    struct iovec piece = {&byte, 1};

    CHECK_RET(fi_trecv(ep, &byte, 1, NULL, NO_ADDRESS, UNUSED_TAG, 0, NULL), answer);
    CHECK_RET(fi_trecvv(ep, &piece, NULL, 1, NO_ADDRESS, UNUSED_TAG, 0, NULL), answer);
    CHECK_RET(post_trecvmsg(ep, &byte, 1, UNUSED_TAG, 0, 0, 0), answer);
}
