/* A peer on the same host that writes random values to the shared memory, and the effect on the other end. */
#include "faults.h"

#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

/* Processes that are started before the test, because a process that has used libfabric cannot fork. */
#define SCRIBBLERS 24
/* How long one of them writes. */
#define LIFE_MS 60
/* Words that it changes between two calls of its provider. */
#define STROKES 20

struct mapping {
    volatile uint64_t *words;
    size_t count;
};

/* Words of the control of both rings. */
#define CONTROL 128

/* The mappings of the memory that this process shares with its peer, the control of the rings apart. */
static unsigned shared_mappings(struct mapping *found, unsigned room)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    unsigned count = 0;

    CHECK(maps != NULL);
    while (fgets(line, sizeof line, maps) != NULL) {
        uintptr_t from, to;

        if (strstr(line, "memfd:rstream") == NULL || sscanf(line, "%" SCNxPTR "-%" SCNxPTR, &from, &to) != 2)
            continue;
        if (count + 2 > room)
            break;
        found[count++] = (struct mapping){(volatile uint64_t *)from, CONTROL};
        found[count++] = (struct mapping){(volatile uint64_t *)from + CONTROL, (to - from) / sizeof(uint64_t) - CONTROL};
    }
    fclose(maps);
    return count;
}

/* Changes one word: flips a bit, or writes a random or a likely value. */
static void stroke(struct dice *dice, const struct mapping *mapping)
{
    volatile uint64_t *word = &mapping->words[throw_below(dice, mapping->count)];

    switch (throw_below(dice, 4)) {
    case 0:
        *word = dice->state;
        break;
    case 1:
        *word = throw_below(dice, 2) ? 0 : UINT64_MAX;
        break;
    case 2:
        *word += throw_below(dice, 3) - 1;
        break;
    default:
        *word ^= UINT64_C(1) << throw_below(dice, 64);
    }
}

static void connect_and_scribble(struct peer *self, void *argument)
{
    struct dice dice = {(uintptr_t)argument + 1};
    struct mapping mappings[8];
    struct side client;
    struct end end;
    unsigned count;
    int64_t until;

    fi_freeinfo(find_peer(IPV4, 1, NULL));
    peer_tell(self, 0);
    side_active(&client, IPV4, (unsigned)peer_hear(self), NULL);
    CHECK_OK(fi_connect(client.ep, client.info->dest_addr, NULL, 0));
    await_event(client.eq, FI_CONNECTED);
    end_start(&end, client.ep, UINT64_MAX);
    end.unchecked = true;
    while (end.received < 100000)
        end_step(&end);
    count = shared_mappings(mappings, 8);
    peer_tell(self, count);
    CHECK_AT_LEAST(count, 1);
    for (until = now_ms() + LIFE_MS; now_ms() < until;) {
        for (unsigned i = 0; i < STROKES; i++)
            stroke(&dice, &mappings[throw_below(&dice, count)]);
        end_step(&end);
    }
    peer_tell(self, 0);
    sleep_ms(PATIENCE_MS);
}

struct victims {
    struct peer scribblers[SCRIBBLERS];
    struct bystander bystander;
    unsigned ended;
};

static void one(struct dice *dice, uint64_t seed, void *argument)
{
    struct victims *victims = argument;
    struct peer *scribbler = &victims->scribblers[seed % SCRIBBLERS];
    struct meeting meeting;
    struct end end;
    int64_t until;

    (void)dice;
    meeting_listen(&meeting, NULL);
    (void)peer_hear(scribbler);
    peer_tell(scribbler, fid_port(&meeting.listener.pep->fid));
    while (!meeting.server_up) {
        meeting_events(&meeting);
        drive();
    }
    end_start(&end, meeting.server.ep, UINT64_MAX);
    end.unchecked = true;
    /* Until the peer starts to write random values, and while it does. */
    AWAIT(PATIENCE_MS, (end_step(&end), readable(scribbler->from_peer, 0)));
    for (until = now_ms() + 3 * LIFE_MS; now_ms() < until;) {
        end_step(&end);
        meeting_events(&meeting);
    }
    bystander_check(&victims->bystander);
    victims->ended += end_is_over(&end);
    /* The memory that it wrote to was shared. */
    CHECK_AT_LEAST(peer_hear(scribbler), 1);
    CHECK_SYS(kill(scribbler->pid, SIGKILL));
    peer_gone(scribbler);
    for (until = now_ms() + SOON_MS; !end_is_over(&end) && now_ms() < until;)
        end_step(&end);
    CHECK_RET(end.send_end, -FI_ECONNRESET);
    CHECK(end.recv_end == -FI_ECONNRESET || end.recv_end == 0);
    meeting_close(&meeting);
    bystander_held(&victims->bystander);
}

static void nonsense(void)
{
    static struct victims victims;

    CHECK_SYS(setenv("FI_RSTREAM_LINGER_MS", "100", 1));
    CHECK_SYS(setenv("FI_RSTREAM_SHM", "1", 1));
    for (uintptr_t i = 0; i < SCRIBBLERS; i++)
        peer_start(&victims.scribblers[i], connect_and_scribble, (void *)i);
    bystander_open(&victims.bystander);
    each_seed(SCRIBBLERS, one, &victims);
    printf("%u of %u connections ended before their peer did\n", victims.ended, SCRIBBLERS);
    bystander_close(&victims.bystander);
}

static const struct test tests[] = {
    TEST(nonsense, "a peer that writes nonsense to shared memory ends its own connection and nothing more"),
};

const struct section scribble_section = SECTION("scribble", tests);
