/*
 * The faults program: how a stream endpoint behaves under faults elsewhere, through stock libfabric.
 * docs/faults.md has the table of what an application sees, which these tests show.
 *
 * A seed determines all random choices. A failing test prints its seed, and RSTREAM_TEST_SEED replays it.
 */
#ifndef RSTREAM_TESTS_FAULTS_H
#define RSTREAM_TESTS_FAULTS_H

#include "../runner.h"

extern const struct section proxied_section;
extern const struct section cut_messages_section;
extern const struct section killed_section;
extern const struct section hostile_section;
extern const struct section hostile_messages_section;
extern const struct section broken_frames_section;
extern const struct section changed_frames_section;
extern const struct section floods_section;
extern const struct section withheld_section;
extern const struct section scribble_section;
extern const struct section shared_section;
extern const struct section silent_section;
extern const struct section unanswered_section;
extern const struct section closing_section;
extern const struct section descriptors_section;
extern const struct section memory_section;

/* Both ends of a connection notice a fault within this time, also on a busy machine. */
#define SOON_MS 1000

/* ---- seeds -------------------------------------------------------------------------------- */

/* Calls `run` with the seeds from 0 to count - 1, or with that of RSTREAM_TEST_SEED alone. */
void each_seed(unsigned count, void (*run)(struct dice *dice, uint64_t seed, void *argument), void *argument);

/* ---- lack of descriptors ------------------------------------------------------------------ */

/* Limits the process to `left` more descriptors; removes the limit; returns whether there is a limit. */
void shortage_begin(unsigned left);
void shortage_end(void);
bool shortage(void);

/* ---- what must not change ----------------------------------------------------------------- */

/* A connection that the fault must not affect, and the resources of the process without the fault. */
struct bystander {
    struct pair pair;
    size_t descriptors;
    size_t heap;
};

void bystander_open(struct bystander *bystander);
/* Checks that it still moves bytes in both directions. */
void bystander_check(struct bystander *bystander);
/* Checks that everything that was opened since is released: every descriptor, and every byte of the heap. */
void bystander_held(struct bystander *bystander);
void bystander_close(struct bystander *bystander);

/* ---- one connection under any fault -------------------------------------------------------- */

/* The value of recv_end while the stream has not ended. */
#define STILL_OPEN 1

/* One end: it sends `total` bytes of the pattern, shuts down its sending direction, and reads until the
 * end. */
struct end {
    struct fid_ep *ep;
    uint64_t total, sent, received;
    bool shut;
    /* The error that ended the sending early, or 0. */
    ssize_t send_end;
    /* The result of the last receive. */
    ssize_t recv_end;
    /* Wrong bytes are expected. */
    bool unchecked;
};

void end_start(struct end *end, struct fid_ep *ep, uint64_t total);
/* Makes one send and one receive. Returns whether bytes moved. */
bool end_step(struct end *end);
bool end_is_over(const struct end *end);
/* Moves bytes in both directions. Returns true when both ends are done, false when nothing has moved for
 * `quiet_ms`. */
bool exchange(struct end *a, struct end *b, int quiet_ms);
/* Checks that the results of `end` agree with what `peer` did: the end of the stream only if everything
 * arrived, and otherwise -FI_ECONNRESET. */
void end_judge(const struct end *end, const struct end *peer);

/* A listener, a client that connects to it through `port`, and the outcome. */
struct meeting {
    struct side listener, client, server;
    bool client_up, server_up;
    /* The errors of the error entries, or 0. */
    int client_error, server_error;
};

void meeting_listen(struct meeting *meeting, const struct settings *settings);
/* Connects, and reads the events of both sides until each is connected or has failed. Returns whether both
 * are connected. */
bool meeting_connect(struct meeting *meeting, unsigned port, const struct settings *settings);
/* Reads the events of both sides. */
void meeting_events(struct meeting *meeting);
void meeting_close(struct meeting *meeting);

#endif
