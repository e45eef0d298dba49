/* Memory of the peer's that a message endpoint may access. */
#ifndef RSTREAM_TESTS_OFFER_H
#define RSTREAM_TESTS_OFFER_H

#include "message.h"

/* Bytes of the memory of a side. */
#define LENGTH 100000
#define LOCAL (FI_ADDR_UNSPEC)

extern uint8_t here[LENGTH], there[LENGTH];

/* A connection whose server offers `there` under `key`, with `address` as the address of its beginning. */
struct offer {
    struct pair pair;
    struct fid_mr *region;
    uint64_t key, address;
};

void offer_open(struct offer *offer, const struct message_settings *settings);
void offer_close(struct offer *offer);
/* Writes some bytes and reads them back. */
void access_works(struct offer *offer);

#endif
