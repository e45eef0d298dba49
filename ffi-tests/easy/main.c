/* Tests of librdma_easy, the C face of rdma-verbs, on the embedded device. */
#include "easy.h"

int main(int argc, char **argv)
{
    const struct section *sections[] = {
        &easy_connecting, &easy_requests, &easy_regions, &easy_misuse, &easy_ending, &easy_events,
    };

    return run_sections(argc, argv, sections, sizeof sections / sizeof sections[0]);
}
