/* An application with message endpoints. A raw peer attacks one of them; a bystander uses another one of the same
 * domain, completion queue and, if so wanted, shared receive context. */
#ifndef RSTREAM_TESTS_BESIDE_H
#define RSTREAM_TESTS_BESIDE_H

#include "raw.h"

#include "../conformance/message.h"

/* The application's memory, of which peers may use `open`, read `read_only` and write `write_only`; `closed` was
 * registered, and is not any more. What they may read begins as zeros, the rest as UNTOUCHED. */
enum { UNTOUCHED = 0x5a, EDGE = 4096, OPEN = 1 << 20 };
enum { KEY_OPEN = 0x51, KEY_READ_ONLY, KEY_WRITE_ONLY, KEY_CLOSED, KEY_NONE };
struct exposed {
    uint8_t read_only[EDGE], write_only[EDGE], before[EDGE], open[OPEN], after[EDGE], closed[EDGE], end[EDGE];
};

struct beside {
    /* The application: its domain, queues and receives. */
    struct side listener;
    struct fid_ep *shared;
    struct fid_mr *regions[3];
    struct exposed *memory;
    /* The bystander, and the two endpoints of the application: for it and for the raw peer. */
    struct side client;
    struct fid_ep *kept, *attacked;
};

void beside_open(struct beside *beside, bool shares);
void beside_close(struct beside *beside);
/* Accepts the raw peer that has asked. */
void beside_accept(struct beside *beside);
/* Has a raw peer in this process ask, and accepts it. */
void beside_connect(struct beside *beside, struct raw *raw);
/* Connects to a raw peer in this process. */
void beside_connect_to(struct beside *beside, struct raw *raw);
/* The bystander sends and receives a message, writes and reads. */
void beside_exchange(struct beside *beside);
/* Sleeps on both queues for a moment, or on the event queue: nothing happens, and no thread is busy. */
void beside_rest(struct beside *beside);
void beside_sleep(struct beside *beside);
/* Checks all memory of the application but what peers may write. */
void beside_check_memory(const struct beside *beside);
/* Takes all that the application sends to a peer, until it ends the connection, which it does soon: nothing of memory
 * that peers may not read. */
void beside_take_rest(struct raw *raw);

#endif
