/* Contract, section Message endpoints: operations on memory that the process may not read or write. */
#include "message.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Longer than what is copied: the system accesses the rest itself. */
enum { LONG = 1 << 20 };

/* A message or write of `length` bytes in so many pieces, of which only the first bytes can be read, if any: the
 * operation fails, one behind it is cancelled, and the connection ends. One before it is complete. */
static void unreadable_source(size_t length, size_t readable, unsigned pieces, bool writes, bool with_more)
{
    uint8_t *pages = mmap(NULL, 2 * LONG, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint8_t *memory = pages + LONG - readable;
    struct iovec vector[MESSAGE_IOVS];
    struct fi_rma_iov remote = {.len = length, .key = 1};
    struct fi_msg send = {.msg_iov = vector, .iov_count = pieces, .addr = FI_ADDR_UNSPEC, .context = CONTEXT(2)};
    struct fi_msg_rma write = {.msg_iov = vector, .iov_count = pieces, .addr = FI_ADDR_UNSPEC, .rma_iov = &remote,
                               .rma_iov_count = 1, .context = CONTEXT(2)};
    static uint8_t got[LONG];
    struct fid_mr *region;
    struct pair pair;

    note("%zu of %zu bytes, %u pieces%s%s", readable, length, pieces, writes ? ", write" : "", with_more ? ", more" : "");
    CHECK(pages != MAP_FAILED);
    CHECK_SYS(mprotect(pages, LONG, PROT_READ));
    for (unsigned i = 0; i < pieces; i++)
        vector[i] = (struct iovec){memory + length / pieces * i, length / pieces};
    vector[pieces - 1].iov_len += length % pieces;
    messages_open(&pair, NULL);
    region = message_region(&pair.server, got, LONG, 1);
    post_recv(pair.server.ep, got, LONG, 0);
    post_recv(pair.server.ep, got, LONG, 1);
    post_send(pair.client.ep, "x", 1, 1);
    if (writes)
        CHECK_OK(fi_writemsg(pair.client.ep, &write, with_more ? FI_MORE : 0));
    else
        CHECK_OK(fi_sendmsg(pair.client.ep, &send, with_more ? FI_MORE : 0));
    if (with_more)
        post_send(pair.client.ep, "x", 1, 3);
    (void)await_done(pair.client.cq, 1, SENT);
    (void)await_failed(pair.client.cq, 2, writes ? WRITTEN : SENT, FI_EFAULT);
    if (with_more)
        (void)await_failed(pair.client.cq, 3, SENT, FI_ECANCELED);
    (void)await_done(pair.server.cq, 0, RECEIVED);
    (void)await_failed(pair.server.cq, 1, RECEIVED, FI_ECANCELED);
    (void)await_event(pair.client.eq, FI_SHUTDOWN);
    (void)await_event(pair.server.eq, FI_SHUTDOWN);
    check_no_completion(pair.client.cq);
    check_no_completion(pair.server.cq);
    close_fid(&region->fid);
    pair_close(&pair);
    unmap_pages(pages, 2 * LONG);
}

/* Those of all lengths that the system reads: not pieces of up to 256 bytes or messages between 4 and 8 KiB, and those of
 * up to 4 KiB only where they leave at once. */
static void unreadable_memory(void)
{
    const size_t lengths[] = {257, 4096, 8192, 65536, LONG};

    for (unsigned i = 0; i < sizeof lengths / sizeof *lengths; i++)
        for (unsigned pieces = 1; pieces <= MESSAGE_IOVS && lengths[i] / pieces > 256; pieces++)
            for (unsigned how = 0; how < (lengths[i] < 8192 ? 2 : 4); how++) {
                unreadable_source(lengths[i], 0, pieces, how % 2, how / 2);
                unreadable_source(lengths[i], lengths[i] / 2, pieces, how % 2, how / 2);
                unreadable_source(lengths[i], lengths[i] - 1, pieces, how % 2, how / 2);
            }
}

/* Where a buffer of the system ends, it takes a part of a message before it finds that it cannot read the rest. */
static void unreadable_rest(void)
{
    enum { LENGTH = 4096, BEFORE = 1000, BUFFER = 32768 };
    uint8_t *pages = map_pages(2 * LENGTH);
    static uint8_t got[LENGTH];

    CHECK_SYS(mprotect(pages + LENGTH, LENGTH, PROT_NONE));
    for (unsigned before = (BUFFER - LENGTH) / BEFORE - 2; before <= BUFFER / BEFORE; before++) {
        struct pair pair;

        note("%u messages before it", before);
        messages_open(&pair, NULL);
        for (unsigned i = 0; i <= before; i++)
            post_recv(pair.server.ep, got, LENGTH, i);
        for (unsigned i = 0; i < before; i++)
            CHECK_OK(fi_inject(pair.client.ep, pattern(i, BEFORE), BEFORE, FI_ADDR_UNSPEC));
        post_send(pair.client.ep, pages + 1, LENGTH, before);
        (void)await_failed(pair.client.cq, before, SENT, FI_EFAULT);
        for (unsigned i = 0; i < before; i++)
            CHECK_INT(await_done(pair.server.cq, i, RECEIVED).len, BEFORE);
        (void)await_failed(pair.server.cq, before, RECEIVED, FI_ECANCELED);
        (void)await_event(pair.client.eq, FI_SHUTDOWN);
        (void)await_event(pair.server.eq, FI_SHUTDOWN);
        pair_close(&pair);
    }
    unmap_pages(pages, 2 * LENGTH);
}

/* A read of a region of which only the first half can be read: it fails, and the connection ends. */
static void unreadable_region(void)
{
    uint8_t *memory = map_pages(LONG);
    static uint8_t got[LONG];
    struct fid_mr *region;
    struct pair pair;

    CHECK(mprotect(memory + LONG / 2, LONG / 2, PROT_NONE) == 0);
    messages_open(&pair, NULL);
    region = message_region(&pair.server, memory, LONG, 1);
    CHECK_OK(fi_read(pair.client.ep, got, LONG, NULL, FI_ADDR_UNSPEC, 0, 1, CONTEXT(2)));
    (void)await_failed(pair.client.cq, 2, WAS_READ, FI_ECONNRESET);
    (void)await_event(pair.client.eq, FI_SHUTDOWN);
    (void)await_event(pair.server.eq, FI_SHUTDOWN);
    check_no_completion(pair.client.cq);
    check_no_completion(pair.server.cq);
    close_fid(&region->fid);
    pair_close(&pair);
    unmap_pages(memory, LONG);
}

/* LONG bytes whose second half cannot be written. */
static uint8_t *half_writable(void)
{
    uint8_t *memory = map_pages(LONG);

    CHECK(mprotect(memory + LONG / 2, LONG / 2, PROT_READ) == 0);
    return memory;
}

/* A long message to a receive that cannot be written: the receive fails, one behind it is cancelled, and the connection
 * ends. */
static void unwritable_receive(void)
{
    uint8_t *target = half_writable();
    static uint8_t sent[LONG];
    struct pair pair;

    messages_open(&pair, NULL);
    post_recv(pair.server.ep, target, LONG, 1);
    post_recv(pair.server.ep, sent, LONG, 2);
    post_send(pair.client.ep, sent, LONG, 3);
    (void)await_failed(pair.server.cq, 1, RECEIVED, FI_EFAULT);
    (void)await_failed(pair.server.cq, 2, RECEIVED, FI_ECANCELED);
    (void)await_event(pair.server.eq, FI_SHUTDOWN);
    (void)await_event(pair.client.eq, FI_SHUTDOWN);
    check_no_completion(pair.server.cq);
    pair_close(&pair);
    unmap_pages(target, LONG);
}

/* The same with a shared receive: the next connection gets the one behind it. */
static void unwritable_shared_receive(void)
{
    uint8_t *target = half_writable();
    static uint8_t sent[LONG];
    struct side listener, clients[2];
    struct fid_ep *shared, *eps[2];

    message_listen(&listener, NULL);
    CHECK_OK(fi_srx_context(listener.domain, NULL, &shared, NULL));
    message_queue(&listener, NULL);
    post_recv(shared, target, LONG, 1);
    post_recv(shared, sent, LONG, 2);
    for (unsigned i = 0; i < 2; i++)
        eps[i] = message_shared(&listener, &clients[i], shared, NULL);
    post_send(clients[0].ep, sent, LONG, 3);
    (void)await_failed(listener.cq, 1, RECEIVED, FI_EFAULT);
    CHECK(await_event(listener.eq, FI_SHUTDOWN).fid == &eps[0]->fid);
    post_send(clients[1].ep, sent, LONG, 4);
    CHECK_INT(await_done(listener.cq, 2, RECEIVED).len, LONG);
    check_no_completion(listener.cq);
    for (unsigned i = 0; i < 2; i++) {
        close_fid(&eps[i]->fid);
        side_close(&clients[i]);
    }
    close_fid(&shared->fid);
    side_close(&listener);
    unmap_pages(target, LONG);
}

/* A read into memory that cannot be written: it fails, one before it is complete, and one behind it is cancelled. */
static void unwritable_read(void)
{
    uint8_t *target = half_writable();
    static uint8_t source[LONG], other[LONG];
    struct fid_mr *region;
    struct pair pair;

    messages_open(&pair, NULL);
    region = message_region(&pair.server, source, LONG, 1);
    CHECK_OK(fi_read(pair.client.ep, other, LONG, NULL, FI_ADDR_UNSPEC, 0, 1, CONTEXT(1)));
    CHECK_OK(fi_read(pair.client.ep, target, LONG, NULL, FI_ADDR_UNSPEC, 0, 1, CONTEXT(2)));
    CHECK_OK(fi_read(pair.client.ep, other, LONG, NULL, FI_ADDR_UNSPEC, 0, 1, CONTEXT(3)));
    (void)await_done(pair.client.cq, 1, WAS_READ);
    (void)await_failed(pair.client.cq, 2, WAS_READ, FI_EFAULT);
    (void)await_failed(pair.client.cq, 3, WAS_READ, FI_ECANCELED);
    (void)await_event(pair.client.eq, FI_SHUTDOWN);
    (void)await_event(pair.server.eq, FI_SHUTDOWN);
    check_no_completion(pair.client.cq);
    close_fid(&region->fid);
    pair_close(&pair);
    unmap_pages(target, LONG);
}

static void unwritable_memory(void)
{
    unwritable_receive();
    unwritable_shared_receive();
    unwritable_read();
}

/* A write to a region that cannot be written fails, as its delivery was asked for, and a receive of the target, which
 * no message has reached, is cancelled. */
static void unwritable_region(void)
{
    uint8_t *target = half_writable();
    static uint8_t sent[LONG], got[LONG];
    struct fi_rma_iov remote = {.len = LONG, .key = 1};
    struct iovec piece = {sent, LONG};
    struct fi_msg_rma write = {.msg_iov = &piece, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .rma_iov = &remote,
                               .rma_iov_count = 1, .context = CONTEXT(2)};
    struct fid_mr *region;
    struct pair pair;

    messages_open(&pair, NULL);
    region = message_region(&pair.server, target, LONG, 1);
    post_recv(pair.server.ep, got, LONG, 1);
    CHECK_OK(fi_writemsg(pair.client.ep, &write, FI_DELIVERY_COMPLETE));
    (void)await_failed(pair.client.cq, 2, WRITTEN, FI_ECANCELED);
    (void)await_failed(pair.server.cq, 1, RECEIVED, FI_ECANCELED);
    (void)await_event(pair.client.eq, FI_SHUTDOWN);
    (void)await_event(pair.server.eq, FI_SHUTDOWN);
    check_no_completion(pair.server.cq);
    close_fid(&region->fid);
    pair_close(&pair);
    unmap_pages(target, LONG);
}

/* Memory that sockets send, and that the system reads for nobody else: messages and responses that the socket takes in
 * part arrive. */
static void secret_memory(void)
{
    enum { SENDS = 16, KEY = 1 };
    int secret = (int)syscall(SYS_memfd_secret, O_CLOEXEC);
    static uint8_t got[LONG], wanted[LONG];
    struct fid_mr *region;
    struct pair pair;
    uint8_t *memory = MAP_FAILED;

    if (secret >= 0 && ftruncate(secret, LONG) == 0)
        memory = mmap(NULL, LONG, PROT_READ | PROT_WRITE, MAP_SHARED, secret, 0);
    if (memory == MAP_FAILED)
        skip("there is no secret memory: %s", strerror(errno));
    memcpy(wanted, pattern(1, LONG), LONG);
    memcpy(memory, wanted, LONG);
    messages_open(&pair, NULL);
    region = message_region(&pair.server, memory, LONG, KEY);
    for (unsigned i = 0; i < SENDS; i++)
        post_send(pair.client.ep, memory, LONG, i);
    for (unsigned i = 0; i < SENDS; i++) {
        post_recv(pair.server.ep, got, LONG, i);
        CHECK_INT(await_done(pair.server.cq, i, RECEIVED).len, LONG);
        CHECK_BYTES(got, wanted, LONG);
        memset(got, 0, LONG);
    }
    for (unsigned i = 0; i < SENDS; i++)
        (void)await_done(pair.client.cq, i, SENT);
    for (unsigned i = 0; i < SENDS; i++)
        CHECK_OK(fi_read(pair.client.ep, got, LONG, NULL, FI_ADDR_UNSPEC, 0, KEY, CONTEXT(i)));
    /* The server answers while the client takes nothing. */
    for (unsigned i = 0; i < SENDS; i++)
        CHECK_RET(fi_cq_read(pair.server.cq, NULL, 0), -FI_EAGAIN);
    for (unsigned i = 0; i < SENDS; i++)
        (void)await_done(pair.client.cq, i, WAS_READ);
    CHECK_BYTES(got, wanted, LONG);
    close_fid(&region->fid);
    pair_close(&pair);
    CHECK_SYS(munmap(memory, LONG));
    CHECK_SYS(close(secret));
}

/* Whether the first thread of the process has ended. */
static bool first_has_ended(void)
{
    char line[256] = "";
    FILE *stat = fopen("/proc/self/stat", "r");

    CHECK(stat != NULL);
    CHECK(fgets(line, sizeof line, stat) != NULL);
    fclose(stat);
    return strstr(line, ") Z ") != NULL;
}

/* The socket takes these messages in part. */
static void *send_without_first(void *argument)
{
    enum { SENDS = 16 };
    static uint8_t memory[LONG], got[LONG];
    struct pair pair;

    (void)argument;
    AWAIT(PATIENCE_MS, first_has_ended());
    messages_open(&pair, NULL);
    memset(memory, 'x', LONG);
    for (unsigned i = 0; i < SENDS; i++)
        post_send(pair.client.ep, memory, LONG, i);
    for (unsigned i = 0; i < SENDS; i++) {
        post_recv(pair.server.ep, got, LONG, i);
        CHECK_INT(await_done(pair.server.cq, i, RECEIVED).len, LONG);
        CHECK_BYTES(got, memory, LONG);
    }
    for (unsigned i = 0; i < SENDS; i++)
        (void)await_done(pair.client.cq, i, SENT);
    pair_close(&pair);
    fflush(stdout);
    _exit(0);
}

static void first_thread_ended(void)
{
    pthread_t other;

    CHECK_INT(pthread_create(&other, NULL, send_without_first, NULL), 0);
    pthread_exit(NULL);
}

static const struct test tests[] = {
    TEST(unreadable_memory, "a message or write in memory that cannot be read, or only in part: FI_EFAULT, and the end"),
    TEST(unreadable_rest, "the same for a short message of which the system takes a part before it finds that"),
    TEST(unreadable_region, "a read of memory that can be read only in part: it fails, and both sides end"),
    TEST(unwritable_region, "a peer's write to memory that cannot be written: both sides end, no receive is to blame"),
    TEST(unwritable_memory, "a message or response to memory that cannot be written: FI_EFAULT once, and the end"),
    TEST(secret_memory, "long messages and responses in memory of memfd_secret, which sockets can send"),
    TEST(first_thread_ended, "long messages in a process whose first thread has ended"),
};

const struct section message_memory_section = SECTION("message memory", tests);
