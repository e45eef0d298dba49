/*
 *   transcripts LIBRARY FIRST END     compares the transcripts of these seeds
 *   transcripts LIBRARY SEED          shows that of one seed over TCP before
 *
 * Each way to run has a process for each end, with the library or without, which does every seed in a child.
 */
#include "transcripts.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- an end ---------------------------------------------------------------------------------------------- */

/* The calls that this end has for a step. */
static act *const acts[] = {
    [SEND] = do_send, [RECEIVE] = do_receive, [POLL] = do_poll, [COUNT] = do_count, [ERROR] = do_error,
    [WATCH] = do_watch, [WAIT] = do_wait, [COPY] = do_copy, [DROP] = do_drop, [MODE] = do_mode, [LIMIT] = do_limit,
    [SHUT] = do_shut, [SLEEP] = do_sleep, [TALK] = do_talk, [FILL] = do_fill, [HOME] = do_home,
    [PROGRAM] = do_program, [CLOSE] = do_close, [DRAIN] = do_drain,
};

/* The first end has the turn first. The end that begins a step that both do has it before and after. */
static void carry_out(const struct step *step, struct plan *plan, unsigned holder)
{
    bool is_mine = step->end == self.end;

    if (holder != step->end)
        is_mine ? (void)take_turn() : give_turn(0);
    if (is_joint(step->kind)) {
        is_mine ? give_turn(0) : (void)take_turn();
        acts[step->kind](step);
        is_mine ? (void)take_turn() : give_turn(0);
    } else if (is_mine && step->kind == FORK) {
        do_fork(step, plan);
    } else if (is_mine && step->kind == RETURN) {
        remark_on_upgrades(plan);
        _exit(0);
    } else if (is_mine) {
        acts[step->kind](step);
    }
}

static int follow(struct plan *plan, unsigned holder)
{
    struct step step;

    while (next_step(plan, &step)) {
        if (step.kind == CLOSE)
            remark_on_upgrades(plan);
        carry_out(&step, plan, holder);
        holder = step.end;
    }
    note(&step, "the end");
    return 0;
}

enum { LIMIT_OF_SECONDS = 10, COMMANDS = 3, CHANNEL = 4, TRANSCRIPT = 5 };

static void prepare(unsigned end, unsigned long seed)
{
    self.end = end;
    self.seed = seed;
    memset(self.fds, -1, sizeof self.fds);
    memset(self.sets, -1, sizeof self.sets);
    signal(SIGPIPE, SIG_IGN);
    alarm(LIMIT_OF_SECONDS);
}

static int begin(unsigned end, unsigned long seed)
{
    struct plan plan = make_plan(seed);

    prepare(end, seed);
    self.channel = CHANNEL;
    self.transcript = TRANSCRIPT;
    open_connections(&plan);
    return follow(&plan, 0);
}

/* The program that took the place of another one in this step. */
static int resume(unsigned end, unsigned long seed, unsigned number)
{
    struct plan plan = make_plan(seed);
    struct step step;

    prepare(end, seed);
    do
        REQUIRE(next_step(&plan, &step));
    while (step.number != number);
    for (unsigned at = 0; at < plan.connections; at++)
        if (plan.sides[at][end].is_open)
            self.fds[at][0] = (int)at;
    note(&step, "goes on");
    give_turn(0);
    (void)take_turn();
    return follow(&plan, end);
}

/* Carries out each seed that comes, in a child. */
static int serve(unsigned end)
{
    unsigned long seed;

    while (read(COMMANDS, &seed, sizeof seed) == sizeof seed) {
        int status;
        pid_t child = fork();

        if (child == 0)
            _exit(begin(end, seed));
        if (waitpid(child, &status, 0) != child || write(COMMANDS, &status, sizeof status) != sizeof status)
            return 1;
    }
    return 0;
}

/* ---- ways to run ----------------------------------------------------------------------------------------- */

/* For each end: after how many turns the library upgrades; NULL: it is not there. */
struct way {
    const char *name;
    const char *after[ENDS];
    /* What runs it. */
    pid_t servers[ENDS];
    int commands[ENDS], transcripts[ENDS];
    unsigned upgrades;
};

static struct way ways[] = {
    {.name = "over TCP", .after = {NULL, NULL}},
    {.name = "over TCP again", .after = {NULL, NULL}},
    {.name = "with the library at end 0", .after = {"1", NULL}},
    {.name = "with the library at end 1", .after = {NULL, "2"}},
    {.name = "with the library, at once", .after = {"0", "0"}},
    {.name = "with the library at once and after 1 turn", .after = {"0", "1"}},
    {.name = "with the library after 1 and 2 turns", .after = {"1", "2"}},
    {.name = "with the library after 3 turns", .after = {"3", "3"}},
};
enum { WAYS = sizeof ways / sizeof ways[0] };

static const char *library;

static _Noreturn void become_server(const struct way *way, unsigned end, const int fds[3])
{
    char number[2] = {(char)('0' + end), 0};

    /* Out of the way first. */
    int high[3] = {fcntl(fds[0], F_DUPFD, 50), fcntl(fds[1], F_DUPFD, 50), fcntl(fds[2], F_DUPFD, 50)};
    for (int at = 0; at < 3; at++)
        dup2(high[at], COMMANDS + at);
    closefrom(COMMANDS + 3);
    if (way->after[end] != NULL) {
        setenv("LD_PRELOAD", library, 1);
        setenv("RSTREAM_SOCKETS_AFTER", way->after[end], 1);
    }
    execl(self.program, self.program, "serve", number, (char *)NULL);
    _exit(127);
}

static void start(struct way *way)
{
    int channel[ENDS], commands[ENDS][2];

    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, channel) == 0);
    for (unsigned end = 0; end < ENDS; end++) {
        REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, commands[end]) == 0);
        REQUIRE((way->transcripts[end] = memfd_create("transcript", 0)) >= 0);
        REQUIRE(fcntl(way->transcripts[end], F_SETFL, O_APPEND) == 0);
        REQUIRE((way->servers[end] = fork()) >= 0);
        if (way->servers[end] == 0)
            become_server(way, end, (int[]){commands[end][1], channel[end], way->transcripts[end]});
        way->commands[end] = commands[end][0];
        close(commands[end][1]);
    }
    close(channel[0]);
    close(channel[1]);
}

static void stop(struct way *way)
{
    for (unsigned end = 0; end < ENDS; end++) {
        close(way->commands[end]);
        close(way->transcripts[end]);
        waitpid(way->servers[end], NULL, 0);
    }
}

/* Runs a seed. Returns whether both ends came to their ends. */
static bool run(const struct way *way, unsigned long seed)
{
    bool is_good = true;
    int status;

    for (unsigned end = 0; end < ENDS; end++) {
        REQUIRE(ftruncate(way->transcripts[end], 0) == 0);
        REQUIRE(write(way->commands[end], &seed, sizeof seed) == sizeof seed);
    }
    for (unsigned end = 0; end < ENDS; end++) {
        REQUIRE(read(way->commands[end], &status, sizeof status) == sizeof status);
        is_good &= status == 0;
    }
    return is_good;
}

/* ---- comparing ------------------------------------------------------------------------------------------- */

enum { LONGEST = 1 << 20 };

static const char upgraded[] = "# upgraded";

/* The lines of a transcript without the remarks: upgrades are counted, the others shown. */
static void read_lines(const struct way *way, unsigned end, char text[LONGEST], unsigned *upgrades, bool shows)
{
    static char all[LONGEST];
    ssize_t length = pread(way->transcripts[end], all, sizeof all - 1, 0);
    char *next = all;

    REQUIRE(length >= 0);
    all[length] = 0;
    text[0] = 0;
    for (char *line; (line = strsep(&next, "\n")) != NULL && next != NULL;) {
        bool is_upgrade = strcmp(line, upgraded) == 0;

        if (line[0] != '#')
            text = stpcpy(stpcpy(text, line), "\n");
        else if (shows && !is_upgrade)
            printf("    end %u %s\n", end, line);
        *upgrades += is_upgrade;
    }
}

/* Shows the first lines that differ. */
static void show_difference(const char *text, const char *model)
{
    size_t same = 0;

    while (text[same] == model[same])
        same++;
    while (same > 0 && text[same - 1] != '\n')
        same--;
    printf("    is:     %.*s\n", (int)strcspn(text + same, "\n"), text + same);
    printf("    was:    %.*s\n", (int)strcspn(model + same, "\n"), model + same);
}

/* Runs a seed in each way. Returns whether all are alike. */
static bool is_alike(unsigned long seed)
{
    static char models[ENDS][LONGEST], text[LONGEST];
    bool is_alike = true;

    for (struct way *way = ways; way < ways + WAYS; way++) {
        bool is_good = run(way, seed), is_known = way > ways, is_same = true;
        unsigned ignored = 0;

        for (unsigned end = 0; end < ENDS; end++) {
            read_lines(way, end, is_known ? text : models[end], &way->upgrades, false);
            is_same &= !is_known || strcmp(text, models[end]) == 0;
        }
        if (is_good && is_same)
            continue;
        is_alike = false;
        printf("seed %lu, %s%s\n", seed, way->name, is_good ? "" : ": broke off");
        for (unsigned end = 0; end < ENDS; end++) {
            read_lines(way, end, text, &ignored, true);
            if (is_known && strcmp(text, models[end]) != 0)
                show_difference(text, models[end]);
        }
        fflush(stdout);
        stop(way);
        start(way);
        /* Nothing to compare with. */
        if (!is_known)
            break;
    }
    return is_alike;
}

static void show(unsigned long seed)
{
    static char text[LONGEST];
    unsigned ignored = 0;

    start(ways);
    (void)run(ways, seed);
    for (unsigned end = 0; end < ENDS; end++) {
        read_lines(ways, end, text, &ignored, true);
        fputs(text, stdout);
    }
    stop(ways);
}

static int compare(unsigned long first, unsigned long end)
{
    unsigned passed = 0, failed = 0;

    for (struct way *way = ways; way < ways + WAYS; way++)
        start(way);
    for (unsigned long seed = first; seed < end; seed++)
        is_alike(seed) ? passed++ : failed++;
    for (struct way *way = ways; way < ways + WAYS; way++) {
        stop(way);
        printf("%s: %u times an end found a connection upgraded\n", way->name, way->upgrades);
        /* Else nothing would have been compared. */
        if (end - first >= 100 && way->after[0] != NULL && way->after[1] != NULL && way->upgrades == 0)
            failed++;
    }
    printf("%u passed, %u failed\n", passed, failed);
    return failed > 0;
}

int main(int count, char **arguments)
{
    unsigned long numbers[5] = {0};

    for (int at = 2; at < count && at < 7; at++)
        numbers[at - 2] = strtoul(arguments[at], NULL, 0);
    self.program = "/proc/self/exe";
    self.transcript = STDERR_FILENO;
    if (count == 7 && strcmp(arguments[1], "resume") == 0) {
        self.channel = (int)numbers[3];
        self.transcript = (int)numbers[4];
        return resume((unsigned)numbers[0], numbers[1], (unsigned)numbers[2]);
    }
    if (count == 3 && strcmp(arguments[1], "serve") == 0)
        return serve((unsigned)numbers[0]);
    if (count != 3 && count != 4) {
        fprintf(stderr, "usage: transcripts LIBRARY FIRST [END]\n");
        return 2;
    }
    library = arguments[1];
    if (count == 4)
        return compare(numbers[0], numbers[1]);
    show(numbers[0]);
    return compare(numbers[0], numbers[0] + 1);
}
