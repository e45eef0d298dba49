/* Many peers that connect and send nothing. */
#include "faults.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

/* Free descriptors of the listener's process when it has few. */
#define SHORT 200

/* ---- other processes ------------------------------------------------------------------------ */

/* Connects as often as requested, sends nothing, and stays until it is told to end. */
static void crowd(struct peer *self, void *argument)
{
    struct rlimit limit;
    unsigned port = (unsigned)peer_hear(self), count = (unsigned)peer_hear(self);

    (void)argument;
    CHECK_SYS(getrlimit(RLIMIT_NOFILE, &limit));
    limit.rlim_cur = limit.rlim_max;
    CHECK_SYS(setrlimit(RLIMIT_NOFILE, &limit));
    for (unsigned i = 0; i < count; i++)
        (void)tcp_connect(port);
    peer_tell(self, count);
    (void)peer_hear(self);
}

/* Connects a stream, moves a few bytes, and reports how many milliseconds connecting took. */
static void visitor(struct peer *self, void *argument)
{
    unsigned port = (unsigned)peer_hear(self);
    struct side client;
    int64_t start;

    (void)argument;
    /* Done first, because loading libraries takes longer than everything else. */
    fi_freeinfo(find_peer(IPV4, port, NULL));
    start = now_ms();
    side_active(&client, IPV4, port, NULL);
    CHECK_OK(fi_connect(client.ep, client.info->dest_addr, NULL, 0));
    CHECK_INT(next_event(client.eq).kind, FI_CONNECTED);
    peer_tell(self, (uint64_t)(now_ms() - start));
    recv_pattern(client.ep, 0, 1000);
    side_close(&client);
}

/* ---- a listener with silent peers ----------------------------------------------------------- */

/* Checks that the application can open descriptors of its own, however many peers connect. */
static void open_something(void)
{
    CHECK_SYS(close((int)CHECK_SYS(open("/dev/null", O_RDONLY))));
}

/* Waits on the event queue like a server, for at most `ms`, until `peer` has sent a number, and accepts
 * requests. Returns whether it has. */
static bool serve_until(struct meeting *meeting, struct peer *peer, int ms)
{
    struct pollfd fds[2] = {{.fd = wait_fd(&meeting->listener.eq->fid), .events = POLLIN},
                            {.fd = peer->from_peer, .events = POLLIN}};
    int64_t until = now_ms() + ms;

    while (now_ms() < until) {
        struct fid *fid = &meeting->listener.eq->fid;

        meeting_events(meeting);
        open_something();
        if (fi_trywait(meeting->listener.fabric, &fid, 1) == 0)
            CHECK_SYS(poll(fds, 2, (int)(until - now_ms())));
        if (readable(peer->from_peer, 0))
            return true;
    }
    return false;
}

static void among(unsigned count, unsigned descriptors_left, int bound_ms)
{
    struct peer silent, guest;
    struct bystander bystander;
    struct meeting meeting;
    size_t heap;
    int64_t start, cpu, took;

    peer_start(&silent, crowd, NULL);
    peer_start(&guest, visitor, NULL);
    bystander_open(&bystander);
    meeting_listen(&meeting, NULL);
    if (descriptors_left > 0)
        shortage_begin(descriptors_left);
    heap = heap_in_use();
    start = now_ms();
    cpu = cpu_ms();
    peer_tell(&silent, fid_port(&meeting.listener.pep->fid));
    peer_tell(&silent, count);
    CHECK(serve_until(&meeting, &silent, PATIENCE_MS));
    CHECK_INT(peer_hear(&silent), count);
    peer_tell(&guest, fid_port(&meeting.listener.pep->fid));
    CHECK(serve_until(&meeting, &guest, PATIENCE_MS));
    took = (int64_t)peer_hear(&guest);
    heap = heap_in_use() - heap;
    /* No peer sends anything now. */
    CHECK(!serve_until(&meeting, &silent, 1000));
    cpu = cpu_ms() - cpu;
    printf("one among %u silent peers, %s: in after %lld ms; %zu KiB; %lld ms of processor time in %lld\n", count,
           descriptors_left ? "short of descriptors" : "with descriptors", (long long)took, heap / 1024,
           (long long)cpu, (long long)(now_ms() - start));
    CHECK_BETWEEN(took, 0, bound_ms);
    CHECK_BETWEEN(heap, 0, 1 << 20);
    CHECK_BETWEEN(cpu, 0, 500);
    CHECK(meeting.server_up);
    send_all(meeting.server.ep, pattern(0, 1000), 1000);
    CHECK_RET(recv_wait(meeting.server.ep, &(uint8_t){0}, 1), 0);
    shortage_end();
    peer_tell(&silent, 0);
    peer_gone(&silent);
    peer_gone(&guest);
    meeting_close(&meeting);
    bystander_held(&bystander);
    peer_join(&silent);
    peer_join(&guest);
    bystander_close(&bystander);
}

static void hundreds(void)
{
    among(1000, 0, SOON_MS);
}

static void thousands(void)
{
    among(2000, 0, 3000);
}

static void short_of_descriptors(void)
{
    among(1000, SHORT, 8000);
}

/* Many peers wait at the listener before its event queue is read for the first time. Each read accepts a
 * part of them, and the descriptor stays readable until all are accepted. */
static void part_by_part(void)
{
    const unsigned count = 500, part = 32;
    struct peer silent;
    struct bystander bystander;
    struct meeting meeting;
    size_t before;
    int fd;

    peer_start(&silent, crowd, NULL);
    bystander_open(&bystander);
    meeting_listen(&meeting, NULL);
    fd = wait_fd(&meeting.listener.eq->fid);
    peer_tell(&silent, fid_port(&meeting.listener.pep->fid));
    peer_tell(&silent, count);
    CHECK_INT(peer_hear(&silent), count);
    before = open_descriptors();
    for (size_t now = before, last; (last = now) < before + count;) {
        CHECK(readable(fd, 0));
        check_no_event(meeting.listener.eq);
        now = open_descriptors();
        CHECK_BETWEEN(now - last, 1, part);
    }
    CHECK(!readable(fd, 0));
    peer_tell(&silent, 0);
    peer_gone(&silent);
    meeting_close(&meeting);
    bystander_held(&bystander);
    peer_join(&silent);
    bystander_close(&bystander);
}

static const struct test tests[] = {
    TEST(hundreds, "1000 silent peers keep nobody out"),
    TEST(thousands, "more silent peers than handshakes are kept: the oldest make way after a second"),
    TEST(short_of_descriptors, "more silent peers than descriptors: the oldest make way, and the process can open files throughout"),
    TEST(part_by_part, "a crowd that waits is taken in parts: no call takes long, and no wake-up is lost"),
};

const struct section silent_section = SECTION("silent", tests);
