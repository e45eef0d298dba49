/*
 * Named tests in sections, each run in a process of its own: what a test program's main() is made of.
 */
#ifndef RSTREAM_TESTS_RUNNER_H
#define RSTREAM_TESTS_RUNNER_H

#include "common.h"

/* One test. It runs in a process of its own: it ends by returning, by a failed check or by
 * skip(), and a crash or a hang is its own failure only. */
struct test {
    const char *name;
    /* What it shows. */
    const char *line;
    void (*run)(void);
    /* It calls fault(): no other test runs at the same time where that has a device to take away. */
    bool faults;
};

#define TEST(function, line) {#function, line, function, false}
#define FAULT_TEST(function, line) {#function, line, function, true}

struct section {
    const char *name;
    const struct test *tests;
    size_t count;
};

#define SECTION(title, table) {title, table, sizeof table / sizeof table[0]}

/* Says where the test is: printed if it fails, crashes or hangs. */
void note(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Says that the test gets on: its limit counts from here. For a test that moves much. */
void still_moving(void);

/* main() of a test program: reads the command line, runs what it names, prints a line for each test
 * and the counts, and answers the exit status. */
int run_sections(int argc, char **argv, const struct section *const *sections, size_t count);

#endif
