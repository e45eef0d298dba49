/*
 * The conformance program: one test for every line of the contract of a stream endpoint, which
 * docs/fi_rstream.7.md publishes. A section of the contract is a file with a table of its tests.
 */
#ifndef RSTREAM_TESTS_CONFORMANCE_H
#define RSTREAM_TESTS_CONFORMANCE_H

#include "../common.h"

/* One test. It runs in a process of its own: it ends by returning, by a failed check or by
 * skip(), and a crash or a hang is its own failure only. */
struct test {
    const char *name;
    /* The line of the contract that it shows. */
    const char *line;
    void (*run)(void);
};

#define TEST(function, line) {#function, line, function}

struct section {
    const char *name;
    const struct test *tests;
    size_t count;
};

#define SECTION(title, table) {title, table, sizeof table / sizeof table[0]}

extern const struct section discovery_section;
extern const struct section options_section;
extern const struct section connecting_section;
extern const struct section events_section;
extern const struct section refusals_section;
extern const struct section bytes_section;
extern const struct section unsupported_section;
extern const struct section states_section;
extern const struct section ending_section;
extern const struct section waiting_section;
extern const struct section threads_section;
extern const struct section bad_input_section;
extern const struct section footprint_section;

/* The two address families of most tests. */
#define IPV4 "127.0.0.1"
#define IPV6 "::1"

#endif
