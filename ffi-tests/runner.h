/*
 * Named tests in sections, each run in its own process: the main() of a test program.
 */
#ifndef RSTREAM_TESTS_RUNNER_H
#define RSTREAM_TESTS_RUNNER_H

#include "common.h"

/* One test. It runs in its own process and ends by returning, by a failed check or by skip(). A crash or a
 * hang fails only this test. */
struct test {
    const char *name;
    /* What it shows. */
    const char *line;
    void (*run)(void);
    /* It calls fault(). If that affects a device, no other test runs at the same time. */
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

/* Sets the test's note, which is printed if the test fails, crashes or hangs. */
void note(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Restarts the test's time limit. For a test that moves many bytes. */
void still_moving(void);

/* main() of a test program: parses the command line, runs the named tests, prints a line for each and the
 * counts, and returns the exit status. */
int run_sections(int argc, char **argv, const struct section *const *sections, size_t count);

#endif
