/*
 * The kernel is the oracle: two processes make the calls of a plan, which a seed gives, on TCP connections that join
 * them, and write down what each call says. Without the library, with it at one end and with it at both, their
 * transcripts have to be equal.
 *
 * Each outcome has to be determined. So the processes act in turn, and whoever takes the turn waits until the kernel
 * has received all that the other's kernel has sent, as the kernel's own counts tell. The system calls that ask for
 * these go past the library.
 */
#ifndef RSTREAM_TRANSCRIPTS_H
#define RSTREAM_TRANSCRIPTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "../../dice.h"

enum {
    ENDS = 2,
    CONNECTIONS = 3,
    /* Descriptors of one end of a connection. */
    COPIES = 3,
    /* Epoll sets of an end. */
    LEVEL = 0,
    EDGE = 1,
    SETS = 2,
    /* Bytes that may be unread: a socket holds them as well as a ring. */
    ROOM = 12000,
    /* Bytes that are moved while both ends are at it. */
    MUCH = 400000,
};

/* ---- the plan ------------------------------------------------------------------------------------------ */

enum kind {
    SEND, RECEIVE, POLL, COUNT, ERROR, WATCH, WAIT, COPY, DROP, MODE, LIMIT, SHUT,
    /* Both ends act at the same time. */
    SLEEP, TALK, FILL, HOME, PROGRAM,
    FORK, RETURN, CLOSE, DRAIN,
};

/* What an end does. */
struct step {
    unsigned number;
    enum kind kind;
    unsigned end, connection;
    /* How it is done: each kind takes from it what it has to choose. */
    uint64_t variant;
    /* Bytes: that it sends, or asks for; that the other end sends meanwhile. */
    size_t length, other;
    /* The number of the first of these in its stream, for each direction. */
    uint64_t position, others_position;
    /* Bytes that it has not read, and that the other end has not. */
    size_t there, others_there;
    /* Connections for which an edge has to be reported; connections of this end that are open. */
    unsigned news, open;
    /* Of the former, those that are reported once. */
    unsigned once;
    /* A call may wait: it has something to return. */
    bool may_wait;
    /* The socket is non-blocking. */
    bool is_nonblocking;
    /* The other end has closed the connection. */
    bool is_alone;
};

/* One end of a connection, as far as the rules of TCP determine it. */
struct side {
    bool is_open, has_ended, is_nonblocking;
    /* A call has told it that the other end has closed. */
    bool knows_end;
    unsigned copies;
    uint64_t sent, read;
    /* What sets ask for. With EPOLLONESHOT they report once, and are armed anew. */
    bool is_watched[SETS], is_armed[SETS], is_once, asks_output;
    /* What an edge has told. */
    uint64_t told;
    bool has_told_end;
};

struct plan {
    struct dice dice;
    unsigned number, last, connections;
    struct side sides[CONNECTIONS][ENDS];
    /* Steps that are left to a child of this end; 0: none. */
    unsigned child[ENDS];
};

struct plan make_plan(unsigned long seed);
/* The next step. Returns false after the last one. */
bool next_step(struct plan *plan, struct step *step);
/* The end that connects. */
unsigned connecting_end(const struct plan *plan, unsigned connection);
/* Takes a choice out of a variant. */
unsigned choose(uint64_t *variant, unsigned bound);
bool is_joint(enum kind kind);

/* ---- this end ------------------------------------------------------------------------------------------ */

/* What this process has. */
extern struct self {
    unsigned end;
    unsigned long seed;
    const char *program;
    /* To the other end, and what this one writes down. */
    int channel, transcript;
    int fds[CONNECTIONS][COPIES];
    /* The epoll sets, -1 if there is none. */
    int sets[SETS];
} self;

/* Makes the connections of a plan. */
void open_connections(const struct plan *plan);
/* Ends the process if something goes wrong that is no outcome of a step. */
_Noreturn void give_up(const char *what);
#define REQUIRE(condition) ((condition) ? (void)0 : give_up(#condition))

/* Passes the turn on, with a number; takes it, once everything has arrived. */
void give_turn(uint64_t number);
uint64_t take_turn(void);
/* As take_turn, without waiting: more may be under way than arrives while nobody reads. */
uint64_t take_number(void);
/* Takes the turn, and calls on the connections meanwhile: a peer that goes back to TCP needs that. */
void take_turn_busily(void);
/* Waits until the kernel has learnt that nobody is there any more. */
void await_reset(unsigned connection);
/* Forgets a connection that is about to be closed, but for what the other end has to wait for. */
void note_close(unsigned connection);
/* One of the descriptors. */
int any_fd(const struct step *step);

/* Writes a line of the transcript. */
void note(const struct step *step, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* What a call has returned, with its error, as text that lasts until a few further calls. */
const char *returned(long result);
/* A remark, which is not compared. */
void remark(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Whether the kernel has carried fewer bytes than the plan has sent. */
void remark_on_upgrades(const struct plan *plan);

/* ---- steps --------------------------------------------------------------------------------------------- */

/* Each is called at the end that acts; those of both ends at both. */
typedef void act(const struct step *step);
act do_send, do_receive, do_talk, do_fill, do_drain;
act do_poll, do_count, do_error, do_watch, do_wait, do_limit, do_mode, do_sleep;
act do_copy, do_drop, do_shut, do_home, do_program, do_close;
void do_fork(const struct step *step, struct plan *plan);
/* Bytes of a stream. */
uint8_t value(uint64_t position);
uint32_t checksum(const uint8_t *bytes, size_t length);
void send_all(const struct step *step, uint64_t position, size_t length, size_t longest);

#endif
