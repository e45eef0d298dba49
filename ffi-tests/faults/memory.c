/* A process without free memory: a call that needs much memory fails, and the process continues. */
#include "raw.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

/* Limits the address space to what the process has and `more`. */
static void limit_memory(size_t more)
{
    FILE *file = fopen("/proc/self/statm", "r");
    unsigned long pages;
    struct rlimit limit;

    if (heap_in_use() == 0)
        skip("address space cannot be limited under a sanitizer");
    CHECK(file != NULL);
    CHECK_INT(fscanf(file, "%lu", &pages), 1);
    fclose(file);
    CHECK_SYS(getrlimit(RLIMIT_AS, &limit));
    limit.rlim_cur = pages * (size_t)sysconf(_SC_PAGESIZE) + more;
    CHECK_SYS(setrlimit(RLIMIT_AS, &limit));
}

static void set_ring(struct fid_ep *ep, size_t ring)
{
    CHECK_OK(fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_RECV_BUF_SIZE, &ring, sizeof ring));
}

static void no_memory_for_the_ring(void)
{
    struct bystander bystander;
    struct side listener, client, server;
    struct event request;

    bystander_open(&bystander);
    limit_memory(512 * MIB);
    side_listen(&listener, IPV4, NULL);
    side_active(&client, IPV4, fid_port(&listener.pep->fid), NULL);

    /* A smaller size fits, at each call that allocates it. */
    set_ring(client.ep, UINT32_MAX);
    CHECK_RET(fi_enable(client.ep), -FI_ENOMEM);
    CHECK_RET(fi_connect(client.ep, client.info->dest_addr, NULL, 0), -FI_ENOMEM);
    set_ring(client.ep, MIB);
    CHECK_OK(fi_connect(client.ep, client.info->dest_addr, NULL, 0));
    request = await_event(listener.eq, FI_CONNREQ);
    side_for_request(&listener, &server, &request);
    set_ring(server.ep, UINT32_MAX);
    CHECK_RET(fi_accept(server.ep, NULL, 0), -FI_ENOMEM);
    set_ring(server.ep, MIB);
    CHECK_OK(fi_accept(server.ep, NULL, 0));
    await_event(client.eq, FI_CONNECTED);
    await_event(server.eq, FI_CONNECTED);
    transfer(client.ep, server.ep, 3 * MIB);
    side_close(&client);
    side_close(&server);
    side_close(&listener);
    bystander_held(&bystander);
    bystander_close(&bystander);
}

static void no_memory_for_what_waits(void)
{
    static struct raw raw;
    const struct settings settings = {.send_ring = 1024 * MIB, .tx_size = 60000};
    struct bystander bystander;
    struct meeting meeting;
    ssize_t took;
    size_t sent = 0;

    /* The peer grants a gigabyte and never reads, so bytes that the socket does not take must wait in this
     * process. */
    CHECK_SYS(setenv("FI_RSTREAM_LINGER_MS", "200", 1));
    bystander_open(&bystander);
    raw_connect_greedy(&raw, &meeting, &settings);
    limit_memory(64 * MIB);
    while ((took = send_once(meeting.server.ep, pattern(sent, 65536), 65536)) > 0)
        sent += (size_t)took;
    printf("%zu MiB taken before there was no memory\n", sent / MIB);
    CHECK_RET(took, -FI_ECONNRESET);
    CHECK_AT_LEAST(sent, 16 * MIB);
    CHECK_RET(recv_once(meeting.server.ep, &(uint8_t){0}, 1), -FI_ECONNRESET);
    CHECK_INT(await_event(meeting.listener.eq, FI_SHUTDOWN).fid == &meeting.server.ep->fid, true);
    bystander_check(&bystander);
    close(raw.fd);
    meeting_close(&meeting);
    bystander_held(&bystander);
    bystander_close(&bystander);
}

/* Allocates all memory that the system still commits to this process, except `left`. */
static void commit_all(size_t left)
{
    const int protection = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS;
    void *kept = mmap(NULL, left, protection, flags, -1, 0);

    CHECK(kept != MAP_FAILED);
    while (mmap(NULL, MIB, protection, flags, -1, 0) != MAP_FAILED)
        ;
    CHECK_SYS(munmap(kept, left));
}

/* A file in memory gets its pages when they are first used. If the system has none left then, it ends the
 * process. */
static void no_memory_at_first_use(void)
{
    const struct settings settings = {.recv_ring = 64 * MIB};
    FILE *file = fopen("/proc/sys/vm/overcommit_memory", "r");
    struct pair pair;

    CHECK(file != NULL);
    if (fgetc(file) != '2')
        skip("vm.overcommit_memory is not 2");
    fclose(file);
    CHECK_SYS(setenv("FI_RSTREAM_SHM", "1", 1));
    pair_open(&pair, IPV4, &settings);
    commit_all(16 * MIB);
    transfer(pair.client.ep, pair.server.ep, 60 * MIB);
    pair_close(&pair);
}

static const struct test tests[] = {
    TEST(no_memory_for_the_ring, "no memory for a ring: -FI_ENOMEM, and a smaller one does"),
    TEST(no_memory_for_what_waits, "no memory for what the socket does not take: -FI_ECONNRESET on that connection"),
    TEST(no_memory_at_first_use, "a system that commits no more memory than it has: every ring has its own"),
};

const struct section memory_section = SECTION("memory", tests);
