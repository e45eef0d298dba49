/* Runs the tests, each in its own process, and counts the results. */
#include "runner.h"

#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* A test that runs this many seconds, or this long after its last call of still_moving(), counts as
 * hanging. */
#define LIMIT_S 90

struct counts {
    unsigned passed, failed, skipped;
};

/* A test that waits to run, runs or has run. */
#define NOTE_MAX 256
struct job {
    const struct section *section;
    const struct test *test;
    /* The test's note, in memory that it shares with the process that reports. */
    char *noted;
    FILE *output;
    pid_t pid;
    int64_t start, took;
    int status;
    bool ended;
};

/* Most tests that run at the same time. */
#define JOBS_MAX 64

/* The note of the test in this process. */
static char *noted;

void note(const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(noted, NOTE_MAX, format, arguments);
    va_end(arguments);
}

void still_moving(void)
{
    alarm(LIMIT_S);
}

static void run_child(const struct job *job)
{
    int output = fileno(job->output);

    /* The test gets its own process group, so that the processes that it starts can be killed with it. */
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGPIPE, SIG_IGN);
    dup2(output, STDOUT_FILENO);
    dup2(output, STDERR_FILENO);
    /* Closes the descriptors of other tests too, because a test may count its descriptors. */
    close_range(STDERR_FILENO + 1, ~0U, 0);
    noted = job->noted;
    still_moving();
    job->test->run();
    exit(0);
}

static void print_output(FILE *output)
{
    char line[1024];

    rewind(output);
    while (fgets(line, sizeof line, output))
        printf("    %s%s", line, strchr(line, '\n') ? "" : "\n");
}

static void start(struct job *job)
{
    job->output = tmpfile();
    job->start = now_ms();
    CHECK(job->output != NULL);
    fflush(stdout);
    job->pid = (pid_t)CHECK_SYS(fork());
    if (job->pid == 0)
        run_child(job);
}

/* Waits until one of the running jobs has ended. */
static void await_one(struct job *jobs, size_t count)
{
    int status = 0;
    pid_t pid = (pid_t)CHECK_SYS(waitpid(-1, &status, 0));

    for (size_t i = 0; i < count; i++) {
        if (jobs[i].pid != pid)
            continue;
        /* Kills the processes that the test left in its group, if there are any. */
        kill(-pid, SIGKILL);
        jobs[i].ended = true;
        jobs[i].status = status;
        jobs[i].took = now_ms() - jobs[i].start;
    }
}

static void report(const struct job *job, struct counts *counts)
{
    const struct test *test = job->test;
    int status = job->status;

    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
        counts->passed++;
        printf("ok %s - %s\n", test->name, test->line);
    } else if (WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SKIPPED) {
        counts->skipped++;
        printf("skipped %s - %s\n", test->name, test->line);
    } else {
        counts->failed++;
        printf("FAILED %s - %s\n", test->name, test->line);
        if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
            printf("    nothing moved for %d s\n", LIMIT_S);
        else if (WIFSIGNALED(status))
            printf("    ended by signal %d (%s)\n", WTERMSIG(status), strsignal(WTERMSIG(status)));
        else
            printf("    ended with status %d after %lld ms\n", WEXITSTATUS(status), (long long)job->took);
        if (job->noted[0] != '\0')
            printf("    at %s\n", job->noted);
    }
    print_output(job->output);
    fclose(job->output);
}

/* Whether the next job may start while others run. */
static bool may_start(const struct job *jobs, size_t next, size_t at_a_time)
{
    bool alone = jobs[next].test->faults;
    size_t running = 0;

    for (size_t i = 0; i < next; i++) {
        if (jobs[i].ended)
            continue;
        running++;
        alone = alone || jobs[i].test->faults;
    }
    return running < (alone && getenv("TEST_FAULT") ? 1 : at_a_time);
}

/* Runs the jobs, at most `at_a_time` at once, and reports them in their order. */
static struct counts run_jobs(struct job *jobs, size_t count, size_t at_a_time)
{
    struct counts counts = {0};
    size_t started = 0;

    for (size_t reported = 0; reported < count; reported++) {
        while (!jobs[reported].ended) {
            if (started < count && may_start(jobs, started, at_a_time))
                start(&jobs[started++]);
            else
                await_one(jobs, started);
        }
        if (reported == 0 || jobs[reported].section != jobs[reported - 1].section)
            printf("== %s\n", jobs[reported].section->name);
        report(&jobs[reported], &counts);
    }
    return counts;
}

/* `names` are tests or sections. No names mean all tests. */
static bool wanted(const struct section *section, const struct test *test, char **names, int count)
{
    for (int i = 0; i < count; i++)
        if (strcmp(names[i], test->name) == 0 || strcmp(names[i], section->name) == 0)
            return true;
    return count == 0;
}

static void usage(FILE *to, const char *program)
{
    fprintf(to, "usage: %s [-l] [-j N] [TEST | SECTION]...\n"
            "Runs the named tests, or all, N at a time (1); -l lists them. FI_PROVIDER_PATH names the\n"
            "folder of librstream_fi.so.\n", program);
}

int run_sections(int argc, char **argv, const struct section *const *sections, size_t count)
{
    struct counts counts;
    struct job *jobs;
    size_t all = 0, chosen = 0;
    unsigned long at_a_time = 1;
    bool list = false;
    char *notes;
    int option;

    while ((option = getopt(argc, argv, "lj:h")) != -1) {
        if (option == 'l') {
            list = true;
        } else if (option == 'j' && (at_a_time = strtoul(optarg, NULL, 10)) - 1 < JOBS_MAX) {
            continue;
        } else {
            usage(option == 'h' ? stdout : stderr, argv[0]);
            return option == 'h' ? 0 : 2;
        }
    }
    for (size_t s = 0; s < count; s++)
        all += sections[s]->count;
    jobs = calloc(all, sizeof *jobs);
    notes = mmap(NULL, all * NOTE_MAX, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(jobs != NULL && notes != MAP_FAILED);
    for (size_t s = 0; s < count; s++) {
        for (size_t t = 0; t < sections[s]->count; t++) {
            const struct test *test = &sections[s]->tests[t];

            if (!wanted(sections[s], test, argv + optind, argc - optind))
                continue;
            if (list)
                printf("%s: %s - %s\n", sections[s]->name, test->name, test->line);
            jobs[chosen] = (struct job){.section = sections[s], .test = test, .noted = notes + chosen * NOTE_MAX};
            chosen++;
        }
    }
    if (list)
        return 0;
    counts = run_jobs(jobs, chosen, at_a_time);
    printf("%u passed, %u failed", counts.passed, counts.failed);
    if (counts.skipped)
        printf(", %u skipped", counts.skipped);
    printf("\n");
    if (chosen == 0) {
        fprintf(stderr, "no test has such a name; -l lists them\n");
        return 2;
    }
    free(jobs);
    return counts.failed ? 1 : 0;
}
