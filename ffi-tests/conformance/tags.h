/* Tagged messages of message endpoints: posting, peeking and their completions. */
#ifndef RSTREAM_TESTS_TAGS_H
#define RSTREAM_TESTS_TAGS_H

#include <rdma/fi_tagged.h>

#include "message.h"

/* Flags of completions. */
#define TAG_SENT ((uint64_t)(FI_SEND | FI_TAGGED))
#define TAG_RECEIVED ((uint64_t)(FI_RECV | FI_TAGGED))

/* A receive that ignores all bits of the tag. */
#define ANY_TAG UINT64_MAX

/* Limits that the contract states: what is kept of unexpected messages, and what each counts beside its bytes. */
enum { UNEXPECTED_BYTES = 1 << 20, UNEXPECTED_EACH = 256 };

/* FI_MSG and FI_TAGGED, and completions with tags. */
extern const struct message_settings tagged_settings;

/* Each posts one operation, which must be taken. */
void post_trecv(struct fid_ep *ep, void *data, size_t length, uint64_t tag, uint64_t ignore, uintptr_t context);
void post_tsend(struct fid_ep *ep, const void *data, size_t length, uint64_t tag, uintptr_t context);
/* Calls fi_trecvmsg with one buffer, or none if `length` is 0. */
ssize_t post_trecvmsg(struct fid_ep *ep, void *data, size_t length, uint64_t tag, uint64_t ignore, uint64_t flags,
                      uintptr_t context);

/* Waits for the success of the operation with this context, which must be the next to complete, with this length and
 * tag. */
struct fi_cq_tagged_entry await_tagged(struct fid_cq *cq, uintptr_t context, uint64_t flags, size_t length,
                                       uint64_t tag);

/* Peeks, with these flags as well, until a message agrees. Returns the entry of that peek. No other completion may come
 * meanwhile. */
struct fi_cq_tagged_entry await_peek(struct side *side, uint64_t tag, uint64_t ignore, uint64_t flags,
                                     uintptr_t context);
/* Checks that a peek finds no message; that one with these flags as well does not. */
void check_peeks_nothing(struct side *side, uint64_t tag, uint64_t ignore);
void check_finds_nothing(struct side *side, uint64_t tag, uint64_t ignore, uint64_t flags, uintptr_t context);

/* Checks that each call that sends tagged messages gives this answer, which is an error; and each that receives them,
 * with a tag that no test sends. */
void check_tagged_calls(struct fid_ep *ep, ssize_t answer);
void check_tagged_receives(struct fid_ep *ep, ssize_t answer);

#endif
