#include "offer.h"

uint8_t here[LENGTH], there[LENGTH];

void offer_open(struct offer *offer, const struct message_settings *settings)
{
    int mode;

    messages_open(&offer->pair, settings);
    mode = offer->pair.server.info->domain_attr->mr_mode;
    offer->region = message_region(&offer->pair.server, there, LENGTH, 0x1234);
    offer->key = fi_mr_key(offer->region);
    offer->address = mode == MR_BASIC ? (uintptr_t)there : 0;
    if (mode == 0)
        CHECK_INT(offer->key, 0x1234);
}

void offer_close(struct offer *offer)
{
    close_fid(&offer->region->fid);
    pair_close(&offer->pair);
}

void access_works(struct offer *offer)
{
    struct fid_ep *ep = offer->pair.client.ep;
    struct fid_cq *cq = offer->pair.client.cq;

    memset(there, 0, LENGTH);
    memcpy(here, pattern(9, 3000), 3000);
    CHECK_OK(fi_write(ep, here, 3000, NULL, LOCAL, offer->address + 50, offer->key, CONTEXT(1)));
    (void)await_done(cq, 1, WRITTEN);
    memset(here, 0, 3000);
    CHECK_OK(fi_read(ep, here, 3000, NULL, LOCAL, offer->address + 50, offer->key, CONTEXT(2)));
    CHECK_INT(await_done(cq, 2, WAS_READ).len, 0);
    CHECK_BYTES(here, pattern(9, 3000), 3000);
    CHECK_BYTES(there + 50, pattern(9, 3000), 3000);
    CHECK_INT(there[49], 0);
    CHECK_INT(there[3050], 0);
}
