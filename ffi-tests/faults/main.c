/* The sections of the program. */
#include "faults.h"

#include <stdlib.h>
#include <unistd.h>

static const struct section *const sections[] = {
    &proxied_section, &cut_messages_section, &killed_section, &hostile_section, &hostile_messages_section,
    &broken_frames_section, &changed_frames_section, &floods_section, &withheld_section, &scribble_section,
    &shared_section, &silent_section, &unanswered_section, &closing_section, &descriptors_section, &memory_section,
};

/* Blocks in the cache of glibc's allocator count as in use, so the cache is switched off to count the heap
 * exactly. */
#define NO_CACHE "glibc.malloc.tcache_count=0"

int main(int argc, char **argv)
{
    /* The first output of a test takes no memory from the heap. */
    static char output[BUFSIZ];

    setvbuf(stdout, output, _IOFBF, sizeof output);
    if (getenv("GLIBC_TUNABLES") == NULL) {
        CHECK_SYS(setenv("GLIBC_TUNABLES", NO_CACHE, 1));
        CHECK_SYS(execv("/proc/self/exe", argv));
    }
    return run_sections(argc, argv, sections, sizeof sections / sizeof sections[0]);
}
