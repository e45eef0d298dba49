/*
 * Runs the tests, each in its own process.
 *
 *   cases [-l] [-j N] [-k] [NAME]...   NAME: of a test or of a family. -k runs those too that are known to fail.
 */
#include "cases.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "known.h"

/* Seconds that a test may take. */
#define LIMIT_S 30
#define MOST 1024

struct test {
    char name[64];
    void (*run)(const void *);
    const void *argument;
    FILE *output;
    pid_t pid;
    int64_t start, took;
    int status;
    bool ended;
};

static struct test tests[MOST];
static unsigned count;
/* Connections that were upgraded, in all processes. */
extern unsigned *upgrades;

void add_test(const char *name, const char *kind, void (*run)(const void *), const void *argument)
{
    struct test *test = &tests[count++];

    if (count == MOST)
        abort();
    snprintf(test->name, sizeof test->name, "%s%s%s", name, kind ? "." : "", kind ? kind : "");
    test->run = run;
    test->argument = argument;
}

static bool is_family(const char *family, const char *name)
{
    size_t length = strlen(family);

    return strncmp(family, name, length) == 0 && (name[length] == '\0' || name[length] == '.');
}

static const char *why_known(const char *name)
{
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (is_loaded() && is_family(known[i].name, name))
            return known[i].reason;
    return NULL;
}

static bool is_wanted(const char *name, char **names, int many, bool all)
{
    for (int i = 0; i < many; i++)
        if (is_family(names[i], name))
            return true;
    return many == 0 && (all || !why_known(name));
}

static void start(struct test *test)
{
    pid_t parent = getpid();

    test->output = tmpfile();
    test->start = now_ms();
    fflush(NULL);
    CHECK(test->output && (test->pid = fork()) >= 0);
    if (test->pid > 0)
        return;
    /* Its own group, so that the processes that it starts can be killed with it. */
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    dup2(fileno(test->output), STDOUT_FILENO);
    dup2(fileno(test->output), STDERR_FILENO);
    close_range(STDERR_FILENO + 1, ~0U, 0);
    alarm(LIMIT_S);
    test->run(test->argument);
    exit(0);
}

static void await_one(unsigned most)
{
    int status;
    pid_t pid = waitpid(-1, &status, 0);

    CHECK(pid > 0);
    for (unsigned i = 0; i < most; i++) {
        if (tests[i].pid != pid)
            continue;
        kill(-pid, SIGKILL);
        tests[i].ended = true;
        tests[i].status = status;
        tests[i].took = now_ms() - tests[i].start;
    }
}

static bool report(struct test *test)
{
    bool is_ok = WIFEXITED(test->status) && WEXITSTATUS(test->status) == 0;
    char line[1024];

    printf("%s %s\n", is_ok ? "ok" : "FAILED", test->name);
    if (!is_ok) {
        if (WIFSIGNALED(test->status))
            printf("    ended by signal %d (%s) after %lld ms\n", WTERMSIG(test->status),
                   strsignal(WTERMSIG(test->status)), (long long)test->took);
        rewind(test->output);
        while (fgets(line, sizeof line, test->output))
            printf("    %s", line);
    }
    fclose(test->output);
    return is_ok;
}

int main(int argc, char **argv)
{
    unsigned at_a_time = 1, started = 0, ended = 0, failed = 0, chosen = 0;
    bool list = false, all = false;
    int option;

    if (argc > 2 && strcmp(argv[1], "--plain") == 0)
        return run_plain(argc - 2, argv + 2);
    while ((option = getopt(argc, argv, "lkj:")) != -1) {
        switch (option) {
        case 'l': list = true; break;
        case 'k': all = true; break;
        case 'j': at_a_time = (unsigned)strtoul(optarg, NULL, 10); break;
        default: fprintf(stderr, "usage: %s [-l] [-k] [-j N] [NAME]...\n", argv[0]); return 2;
        }
    }
    upgrades = mmap(NULL, sizeof *upgrades, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(upgrades != MAP_FAILED && at_a_time > 0);
    for (unsigned i = 0; i < count; i++)
        if (is_wanted(tests[i].name, argv + optind, argc - optind, all))
            tests[chosen++] = tests[i];
        else if (why_known(tests[i].name) && optind == argc)
            printf("left out: %s: %s\n", tests[i].name, why_known(tests[i].name));
    for (unsigned i = 0; i < chosen && list; i++)
        printf("%s\n", tests[i].name);
    if (list)
        return 0;
    for (unsigned next = 0; next < chosen; next++) {
        while (!tests[next].ended) {
            ended = 0;
            for (unsigned i = 0; i < started; i++)
                ended += tests[i].ended;
            if (started < chosen && started - ended < at_a_time)
                start(&tests[started++]);
            else
                await_one(started);
        }
        failed += !report(&tests[next]);
        fflush(stdout);
    }
    if (is_loaded()) {
        printf("%u connections upgraded\n", *upgrades);
        if (*upgrades == 0 && optind == argc)
            failed++;
    }
    printf("%u passed, %u failed\n", chosen - failed, failed);
    return failed > 0 || chosen == 0;
}
