/* Tests of librstream_c: TCP connections of C programs through shared memory, one by one. */
#include "sockets_c.h"

#include <stdlib.h>

int main(int argc, char **argv)
{
    const struct section *sections[] = {
        &rs_calls, &rs_waiting, &rs_ending, &rs_leaving, &rs_sharing, &rs_peers, &rs_misuse,
        &rs_unchecked,
    };

    if (argc == 3 && strcmp(argv[1], "--echo") == 0)
        return run_echo(atoi(argv[2]), false);
    if (argc == 3 && strcmp(argv[1], "--attached-echo") == 0)
        return run_echo(atoi(argv[2]), true);
    return run_sections(argc, argv, sections, sizeof sections / sizeof sections[0]);
}
