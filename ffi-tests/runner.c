/* Runs the tests, each in a process of its own, and counts. */
#include "runner.h"

#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* After this many seconds, or as many since it last said that it gets on, a test counts as hanging. */
#define LIMIT_S 90

struct counts {
    unsigned passed, failed, skipped;
};

/* What the running test noted, in memory that it shares with the process that reports. */
#define NOTE_MAX 256
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

static void run_child(const struct test *test, int output)
{
    /* A group of its own, so that what the test started can be ended with it. */
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGPIPE, SIG_IGN);
    dup2(output, STDOUT_FILENO);
    dup2(output, STDERR_FILENO);
    close(output);
    still_moving();
    test->run();
    exit(0);
}

static void print_output(FILE *output)
{
    char line[1024];

    rewind(output);
    while (fgets(line, sizeof line, output))
        printf("    %s%s", line, strchr(line, '\n') ? "" : "\n");
}

static void run_test(const struct test *test, struct counts *counts)
{
    FILE *output = tmpfile();
    int64_t start = now_ms();
    int status = 0;
    pid_t pid;

    CHECK(output != NULL);
    note("%s", "");
    fflush(stdout);
    pid = (pid_t)CHECK_SYS(fork());
    if (pid == 0)
        run_child(test, fileno(output));
    CHECK_SYS(waitpid(pid, &status, 0));
    /* Whatever the test left behind in its group; usually nothing. */
    kill(-pid, SIGKILL);

    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
        counts->passed++;
        printf("ok %s - %s\n", test->name, test->line);
        print_output(output);
    } else if (WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SKIPPED) {
        counts->skipped++;
        printf("skipped %s - %s\n", test->name, test->line);
        print_output(output);
    } else {
        counts->failed++;
        printf("FAILED %s - %s\n", test->name, test->line);
        if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
            printf("    nothing moved for %d s\n", LIMIT_S);
        else if (WIFSIGNALED(status))
            printf("    ended by signal %d (%s)\n", WTERMSIG(status), strsignal(WTERMSIG(status)));
        else
            printf("    ended with status %d after %lld ms\n", WEXITSTATUS(status), (long long)(now_ms() - start));
        if (noted[0] != '\0')
            printf("    at %s\n", noted);
        print_output(output);
    }
    fclose(output);
}

/* Named are tests or whole sections; nothing named means all. */
static bool wanted(const struct section *section, const struct test *test, char **names, int count)
{
    for (int i = 0; i < count; i++)
        if (strcmp(names[i], test->name) == 0 || strcmp(names[i], section->name) == 0)
            return true;
    return count == 0;
}

static void usage(FILE *to, const char *program)
{
    fprintf(to, "usage: %s [-l] [TEST | SECTION]...\n"
            "Runs the named tests, or all; -l lists them. FI_PROVIDER_PATH names the folder of\n"
            "librstream_fi.so.\n", program);
}

int run_sections(int argc, char **argv, const struct section *const *sections, size_t count)
{
    struct counts counts = {0};
    bool list = false;
    int option;

    noted = mmap(NULL, NOTE_MAX, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(noted != MAP_FAILED);

    while ((option = getopt(argc, argv, "lh")) != -1) {
        if (option == 'l') {
            list = true;
        } else {
            usage(option == 'h' ? stdout : stderr, argv[0]);
            return option == 'h' ? 0 : 2;
        }
    }
    for (size_t s = 0; s < count; s++) {
        bool named = list;

        for (size_t t = 0; t < sections[s]->count; t++) {
            const struct test *test = &sections[s]->tests[t];

            if (!wanted(sections[s], test, argv + optind, argc - optind))
                continue;
            if (!named)
                printf("== %s\n", sections[s]->name);
            named = true;
            if (list)
                printf("%s: %s - %s\n", sections[s]->name, test->name, test->line);
            else
                run_test(test, &counts);
        }
    }
    if (list)
        return 0;
    printf("%u passed, %u failed", counts.passed, counts.failed);
    if (counts.skipped)
        printf(", %u skipped", counts.skipped);
    printf("\n");
    if (counts.passed + counts.failed + counts.skipped == 0) {
        fprintf(stderr, "no test has such a name; -l lists them\n");
        return 2;
    }
    return counts.failed ? 1 : 0;
}
