/* What a seed has the two ends do: each step with an outcome that TCP determines. */
#include "transcripts.h"

#include <string.h>

unsigned choose(uint64_t *variant, unsigned bound)
{
    unsigned chosen = (unsigned)(*variant % bound);

    *variant /= bound;
    return chosen;
}

static unsigned below(struct plan *plan, unsigned bound)
{
    return (unsigned)throw_below(&plan->dice, bound);
}

bool is_joint(enum kind kind)
{
    return kind >= SLEEP && kind <= PROGRAM;
}

struct plan make_plan(unsigned long seed)
{
    struct plan plan = {.dice = {seed * 0xd1342543de82ef95u + 1}};

    plan.connections = 1 + below(&plan, 2) * below(&plan, CONNECTIONS);
    plan.last = 10 + below(&plan, 120);
    for (unsigned connection = 0; connection < plan.connections; connection++)
        for (unsigned end = 0; end < ENDS; end++)
            plan.sides[connection][end] = (struct side){.is_open = true, .copies = 1};
    return plan;
}

unsigned connecting_end(const struct plan *plan, unsigned connection)
{
    return (plan->last + connection) % ENDS;
}

static size_t unread(const struct side *side, const struct side *peer)
{
    return (size_t)(peer->sent - side->read);
}

/* A call that receives returns at once. */
static bool is_readable(const struct side *side, const struct side *peer)
{
    return unread(side, peer) > 0 || peer->has_ended || !peer->is_open;
}

/* Each end sends, and reads what the other sends. */
static bool is_both_ways(const struct side *side, const struct side *peer)
{
    return side->is_open && peer->is_open && !side->has_ended && !peer->has_ended;
}

static bool is_watched(const struct side *side)
{
    return side->is_watched[LEVEL] || side->is_watched[EDGE];
}

static size_t any_length(struct plan *plan, size_t most)
{
    static const unsigned bounds[] = {1, 10, 300, 4000, ROOM};
    size_t length = 1 + below(plan, bounds[below(plan, sizeof bounds / sizeof bounds[0])]);

    return length < most ? length : most;
}

/* ---- whether a step can be, and what it changes ---------------------------------------------------------- */

static bool plan_send(struct plan *plan, struct step *step, struct side *side, struct side *peer)
{
    size_t room = ROOM - unread(peer, side);

    /* With the library a sender learns that the peer has closed from the kernel, where it looks now and then. */
    if (room == 0 || !(peer->is_open || side->knows_end))
        return false;
    step->length = any_length(plan, room);
    step->position = side->sent;
    if (!side->has_ended && peer->is_open)
        side->sent += step->length;
    return true;
}

static bool plan_receive(struct plan *plan, struct step *step, struct side *side, struct side *peer)
{
    size_t there = unread(side, peer);

    step->length = any_length(plan, 2 * ROOM);
    side->knows_end |= there == 0 && !peer->is_open;
    /* A third of the calls take bytes only to look at them. */
    if (step->variant % 3 != 0)
        side->read += there < step->length ? there : step->length;
    return true;
}

static bool plan_shut(struct plan *plan, struct step *step, struct side *side, struct side *peer)
{
    (void)peer;
    (void)step;
    if (below(plan, 8) != 0)
        return false;
    side->has_ended = true;
    return true;
}

static bool plan_watch(struct plan *plan, struct step *step, struct side *side, struct side *peer)
{
    uint64_t variant = step->variant;
    unsigned set = choose(&variant, SETS), change = choose(&variant, 4);

    (void)plan;
    (void)peer;
    (void)choose(&variant, 2);
    if (set == LEVEL) {
        side->is_once = choose(&variant, 3) == 0;
        side->asks_output = choose(&variant, 3) == 0;
    }
    /* See do_watch. */
    side->is_watched[set] = side->is_watched[set] ? change != 0 : change != 3;
    side->is_armed[set] = side->is_watched[set];
    if (set == EDGE) {
        side->told = side->read;
        side->has_told_end = false;
    }
    return true;
}

static bool plan_wait(struct plan *plan, struct step *step, struct side *side, struct side *peer)
{
    unsigned set = step->variant % SETS;

    (void)side;
    (void)peer;
    for (unsigned at = 0; at < plan->connections; at++) {
        struct side *own = &plan->sides[at][step->end], *others = &plan->sides[at][1 - step->end];
        bool has_ended = others->has_ended || !others->is_open;

        if (!own->is_open || !own->is_watched[set])
            continue;
        if (set == EDGE && !((others->sent > own->told && unread(own, others) > 0) || (has_ended && !own->has_told_end)))
            continue;
        bool is_ready = is_readable(own, others) || (set == LEVEL && own->asks_output);
        step->may_wait |= is_ready && own->is_armed[set];
        step->once |= (unsigned)(set == LEVEL && own->is_once) << at;
        own->is_armed[set] &= !(set == LEVEL && own->is_once && is_ready);
        step->news |= 1u << at;
        own->told = others->sent;
        own->has_told_end = has_ended;
    }
    return step->news != 0;
}

static bool plan_copy(struct plan *plan, struct step *step, struct side *side, struct side *peer)
{
    (void)plan;
    (void)step;
    (void)peer;
    if (side->copies == COPIES)
        return false;
    side->copies++;
    return true;
}

static bool plan_drop(struct plan *plan, struct step *step, struct side *side, struct side *peer)
{
    (void)plan;
    (void)step;
    (void)peer;
    /* The kernel's set goes on with a descriptor that was closed while a copy is open. */
    if (side->copies == 1 || is_watched(side))
        return false;
    side->copies--;
    return true;
}

static bool plan_mode(struct plan *plan, struct step *step, struct side *side, struct side *peer)
{
    (void)plan;
    (void)step;
    (void)peer;
    side->is_nonblocking = !side->is_nonblocking;
    return true;
}

static bool plan_limit(struct plan *plan, struct step *step, struct side *side, struct side *peer)
{
    (void)step;
    return !is_readable(side, peer) && below(plan, 3) == 0;
}

static bool plan_sleep(struct plan *plan, struct step *step, struct side *side, struct side *peer)
{
    uint64_t variant = step->variant;
    unsigned act = choose(&variant, 8), way = choose(&variant, 7);

    if (is_readable(side, peer) || below(plan, 4) != 0)
        return false;
    step->length = any_length(plan, ROOM);
    step->others_position = peer->sent;
    if (act == 0) {
        peer->has_ended = true;
    } else if (act == 1) {
        memset(peer, 0, sizeof *peer);
        peer->sent = step->others_position;
    } else {
        peer->sent += step->length;
    }
    /* It receives all that it waits for. */
    if (way == 0 && !step->is_nonblocking)
        side->read = peer->sent;
    return true;
}

static bool plan_talk(struct plan *plan, struct step *step, struct side *side, struct side *peer)
{
    if (!is_both_ways(side, peer) || below(plan, 4) != 0)
        return false;
    step->length = any_length(plan, ROOM);
    step->other = any_length(plan, ROOM);
    if (below(plan, 4) == 0)
        *(below(plan, 2) ? &step->length : &step->other) = below(plan, MUCH) + 1;
    step->position = side->sent;
    step->others_position = peer->sent;
    step->others_there = unread(peer, side);
    side->sent += step->length;
    peer->sent += step->other;
    side->read = peer->sent;
    peer->read = side->sent;
    return true;
}

static bool plan_fill(struct plan *plan, struct step *step, struct side *side, struct side *peer)
{
    (void)step;
    return is_both_ways(side, peer) && unread(peer, side) == 0 && below(plan, 8) == 0;
}

/*
 * It can go back to TCP: not, which are known limits, with bytes unread that came before those of the rings, with an end
 * before both sides used the rings, or with a reset that no call has told.
 */
static bool can_go_back(const struct side *side, const struct side *peer)
{
    if (!peer->is_open)
        return side->knows_end && unread(side, peer) == 0;
    return is_both_ways(side, peer) && unread(side, peer) == 0 && unread(peer, side) == 0;
}

/* What goes by the C library's streams counts as sent. */
static bool plan_home(struct plan *plan, struct step *step, struct side *side, struct side *peer)
{
    /* The kernel's set would go on with a descriptor that another one replaces. */
    if (is_watched(side) || !can_go_back(side, peer))
        return false;
    step->position = side->sent;
    if (step->variant % 3 == 0 && !step->is_nonblocking) {
        step->length = 1 + below(plan, 100);
        side->sent += step->length;
    }
    return true;
}

/* All descriptors but one of each connection, and the sets, are closed before. */
static void leave_sets_and_copies(struct plan *plan, unsigned end)
{
    for (unsigned at = 0; at < plan->connections; at++) {
        struct side *side = &plan->sides[at][end];

        memset(side->is_watched, 0, sizeof side->is_watched);
        if (side->is_open)
            side->copies = 1;
    }
}

static bool plan_program(struct plan *plan, struct step *step, struct side *side, struct side *peer)
{
    (void)side;
    (void)peer;
    for (unsigned at = 0; at < plan->connections; at++) {
        const struct side *own = &plan->sides[at][step->end];
        if (own->is_open && !can_go_back(own, &plan->sides[at][1 - step->end]))
            return false;
    }
    leave_sets_and_copies(plan, step->end);
    return true;
}

static bool plan_fork(struct plan *plan, struct step *step, struct side *side, struct side *peer)
{
    (void)side;
    (void)peer;
    if (below(plan, 3) != 0)
        return false;
    /* Or the child goes on for ever. */
    step->length = below(plan, 2) ? 1 + below(plan, 12) : 0;
    plan->child[step->end] = (unsigned)step->length;
    /* A set that two processes use may miss what the other was told, which is a known limit. */
    leave_sets_and_copies(plan, step->end);
    return true;
}

static bool plan_close(struct plan *plan, struct step *step, struct side *side, struct side *peer)
{
    uint64_t sent = side->sent;

    /* After an end that went through the ring a reset is one of a connection that is open, and has another error. */
    if (below(plan, 24) != 0 || (side->has_ended && unread(side, peer) > 0))
        return false;
    if (side->has_ended)
        step->variant = 0;
    memset(side, 0, sizeof *side);
    side->sent = sent;
    return true;
}

/* ---- the next one ------------------------------------------------------------------------------------------ */

static const struct {
    enum kind kind;
    unsigned weight;
    bool (*plan)(struct plan *plan, struct step *step, struct side *side, struct side *peer);
    /* A child that shares the connections with its parent does it too. */
    bool is_childs;
} kinds[] = {
    {SEND, 24, plan_send, true}, {RECEIVE, 22, plan_receive, true}, {POLL, 6, NULL, true}, {COUNT, 3, NULL, true},
    {ERROR, 1, NULL, true}, {WATCH, 4, plan_watch, false}, {WAIT, 8, plan_wait, false}, {COPY, 1, plan_copy, false},
    {DROP, 1, plan_drop, false}, {MODE, 1, plan_mode, true}, {LIMIT, 1, plan_limit, true}, {SHUT, 1, plan_shut, true},
    {SLEEP, 4, plan_sleep, true}, {TALK, 3, plan_talk, true}, {FILL, 1, plan_fill, true}, {HOME, 2, plan_home, false},
    {PROGRAM, 1, plan_program, false}, {FORK, 1, plan_fork, false}, {CLOSE, 2, plan_close, false},
};

static unsigned total_weight(void)
{
    unsigned total = 0;

    for (size_t at = 0; at < sizeof kinds / sizeof kinds[0]; at++)
        total += kinds[at].weight;
    return total;
}

/* Tries one. Returns whether it can be. */
static bool try_step(struct plan *plan, struct step *step)
{
    unsigned end = below(plan, ENDS), connection = below(plan, plan->connections), left = below(plan, total_weight());
    struct side *side = &plan->sides[connection][end], *peer = &plan->sides[connection][1 - end];
    size_t at = 0;

    while (left >= kinds[at].weight)
        left -= kinds[at++].weight;
    *step = (struct step){.kind = kinds[at].kind, .end = end, .connection = connection};
    step->variant = throw_below(&plan->dice, UINT64_MAX);
    if (!side->is_open || (plan->child[end] > 0 && !kinds[at].is_childs) || (is_joint(step->kind) && !peer->is_open))
        return false;
    /* While another process has the connection too, its close ends nothing. */
    if (step->kind == SLEEP && step->variant % 8 == 1 && plan->child[1 - end] > 0)
        return false;
    step->there = unread(side, peer);
    step->may_wait = is_readable(side, peer);
    step->is_nonblocking = side->is_nonblocking;
    step->is_alone = !peer->is_open;
    if (kinds[at].kind == WAIT)
        step->may_wait = false;
    for (unsigned other = 0; other < plan->connections; other++)
        step->open |= (unsigned)plan->sides[other][end].is_open << other;
    return kinds[at].plan == NULL || kinds[at].plan(plan, step, side, peer);
}

/* Closes what is left, once nothing else is to be done: an end reads all before. */
static bool finish(struct plan *plan, struct step *step)
{
    for (unsigned connection = 0; connection < plan->connections; connection++) {
        for (unsigned turn = 0; turn < ENDS; turn++) {
            unsigned end = (connection + turn) % ENDS;
            struct side *side = &plan->sides[connection][end], *peer = &plan->sides[connection][1 - end];

            if (!side->is_open)
                continue;
            *step = (struct step){.kind = peer->is_open ? CLOSE : DRAIN, .end = end, .connection = connection};
            side->is_open = false;
            return true;
        }
    }
    return false;
}

bool next_step(struct plan *plan, struct step *step)
{
    bool is_over = plan->number >= plan->last;

    for (unsigned end = 0; end < ENDS; end++) {
        if (plan->child[end] == 1 || (plan->child[end] > 0 && is_over)) {
            *step = (struct step){.number = plan->number++, .kind = RETURN, .end = end};
            plan->child[end] = 0;
            return true;
        }
    }
    for (unsigned tries = 0; !is_over && tries < 1000; tries++) {
        if (try_step(plan, step)) {
            if (plan->child[step->end] > 1 && step->kind != FORK)
                plan->child[step->end]--;
            step->number = plan->number++;
            return true;
        }
    }
    plan->last = plan->number;
    step->number = plan->number;
    if (!finish(plan, step))
        return false;
    step->number = plan->number++;
    plan->last = plan->number;
    return true;
}
