/*
 * The faults program: what a stream endpoint does when something else goes wrong, seen through stock
 * libfabric. docs/faults.md has the table of what an application sees, which these tests show.
 *
 * Whatever is random is decided by a seed: a failing one is named, and RSTREAM_TEST_SEED replays it.
 */
#ifndef RSTREAM_TESTS_FAULTS_H
#define RSTREAM_TESTS_FAULTS_H

#include "../runner.h"

extern const struct section proxied_section;
extern const struct section killed_section;
extern const struct section hostile_section;
extern const struct section scribble_section;
extern const struct section shared_section;
extern const struct section silent_section;
extern const struct section unanswered_section;
extern const struct section closing_section;
extern const struct section descriptors_section;
extern const struct section memory_section;

/* After a fault both ends of a connection know of it within this time, on a busy machine too. */
#define SOON_MS 1000

/* ---- chance ------------------------------------------------------------------------------- */

struct dice {
    uint64_t state;
};

/* A number from 0 to bound - 1. */
uint64_t throw_below(struct dice *dice, uint64_t bound);

/* Calls `run` with the seeds from 0 to count - 1, or with that of RSTREAM_TEST_SEED alone. */
void each_seed(unsigned count, void (*run)(struct dice *dice, uint64_t seed, void *argument), void *argument);

/* ---- want of descriptors ------------------------------------------------------------------ */

/* From now on `left` more descriptors can be opened; all again; whether they are short. */
void shortage_begin(unsigned left);
void shortage_end(void);
bool shortage(void);

/* ---- what must not change ----------------------------------------------------------------- */

/* A connection that has nothing to do with the fault, and what the process holds beside it. */
struct bystander {
    struct pair pair;
    size_t descriptors;
    size_t heap;
};

void bystander_open(struct bystander *bystander);
/* It still carries bytes both ways. */
void bystander_check(struct bystander *bystander);
/* All that was opened since is given back: every descriptor, and the heap to the byte. */
void bystander_held(struct bystander *bystander);
void bystander_close(struct bystander *bystander);

/* ---- one connection, whatever becomes of it ------------------------------------------------ */

/* recv_end while the stream has not ended. */
#define STILL_OPEN 1

/* One end: it sends `total` bytes of the pattern, shuts its sending side, and reads to the end. */
struct end {
    struct fid_ep *ep;
    uint64_t total, sent, received;
    bool shut;
    /* What ended the sending before it was done; 0: nothing. */
    ssize_t send_end;
    /* What the receiving ended with. */
    ssize_t recv_end;
    /* Wrong bytes are to be expected. */
    bool unchecked;
};

void end_start(struct end *end, struct fid_ep *ep, uint64_t total);
/* One send and one receive; answers whether something moved. */
bool end_step(struct end *end);
bool end_is_over(const struct end *end);
/* Moves bytes both ways until both ends are over (true), or nothing has moved for `quiet_ms`. */
bool exchange(struct end *a, struct end *b, int quiet_ms);
/* What `end` met agrees with what `peer` did: the end of the stream only if everything arrived, and
 * -FI_ECONNRESET otherwise. */
void end_judge(const struct end *end, const struct end *peer);

/* A listener, a client that connects to it by way of `port`, and what comes of it. */
struct meeting {
    struct side listener, client, server;
    bool client_up, server_up;
    /* The error entries: 0 is none. */
    int client_error, server_error;
};

void meeting_listen(struct meeting *meeting, const struct settings *settings);
/* Connects, and follows both sides until each stands or failed; answers whether both stand. */
bool meeting_connect(struct meeting *meeting, unsigned port, const struct settings *settings);
/* Reads the events of both sides. */
void meeting_events(struct meeting *meeting);
void meeting_close(struct meeting *meeting);

#endif
