/* Endpoints of `ofi_rxm` before libfabric 1.20, which gives a domain a function that tells where payload goes. No
 * installed header describes that. */
#ifndef RSTREAM_TESTS_RXM_H
#define RSTREAM_TESTS_RXM_H

#include "tags.h"

#define RXM_NAME "ofix_dynamic_rbuf_v2"

/* struct ofi_cq_rbuf_entry */
struct rxm_entry {
    void *op_context;
    uint64_t flags;
    size_t len;
    void *buf;
    uint64_t data;
    uint64_t tag;
    void *ep_context;
};

/* struct ofi_ops_dynamic_rbuf */
struct rxm_table {
    size_t size;
    ssize_t (*places)(struct rxm_entry *entry, struct iovec *pieces, size_t *count);
};

enum { RXM_PIECES = 4, RXM_HEADER = 64, RXM_REQUEST = 24 };

/* What the function of every domain here answers, and what it was asked. */
extern struct rxm {
    struct iovec pieces[RXM_PIECES];
    size_t count;
    ssize_t answer;
    /* The header that it is to find, if this is not NULL. */
    const uint8_t *header;
    /* How often it was asked, and for which receive at last. */
    unsigned asked;
    uintptr_t receive;
} rxm;

/* By which numbers the peer knows the client and the server of rxm_open. */
enum { CLIENT_NUMBER = 0x01020304, SERVER_NUMBER = -7 };

/* Gives the function to the domain of a side. */
void rxm_domain(struct side *side);
/* The connection request of `ofi_rxm`. */
void rxm_request(uint8_t data[RXM_REQUEST], int32_t number);
/* Connects two endpoints of such domains, with this connection data; pair_close closes them. */
void rxm_connect(struct pair *pair, const struct message_settings *settings, const void *request, size_t request_length,
                 const void *reply, size_t reply_length);
/* The same with the connection data of `ofi_rxm`. */
void rxm_open(struct pair *pair, const struct message_settings *settings);
/* Has the function answer with one piece, or with none. */
void rxm_gives(void *data, size_t length);

#endif
