#include "sockets_c.h"

#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* With more exchanges than that, two ends that can share memory do. */
#define EXCHANGES 200

void check_errno_at(const char *file, int line, const char *what, long long got, int error, int wanted)
{
    if (got != -1)
        fail_at(file, line, "%s is %lld, should fail with %s", what, got, strerrorname_np(wanted));
    if (error != wanted)
        fail_at(file, line, "%s failed with %s, should with %s", what, strerrorname_np(error),
                strerrorname_np(wanted));
}

void open_plain(int ends[2])
{
    unsigned port;
    int listener = tcp_listen(&port);

    ends[0] = tcp_connect(port);
    ends[1] = (int)CHECK_SYS(accept(listener, NULL, NULL));
    CHECK_INT(close(listener), 0);
}

void open_fresh(int ends[2])
{
    open_plain(ends);
    for (int i = 0; i < 2; i++)
        CHECK_INT(rs_attach(ends[i]), 0);
}

void upgrade(int ends[2])
{
    /* Some after that have each side begin to write to its ring. */
    for (int i = 0, after = 0; after < 4; i++) {
        CHECK_AT_LEAST(EXCHANGES, i);
        for (int side = 0; side < 2; side++) {
            send_part(ends[side], (uint64_t)i, 1);
            receive_part(ends[1 - side], (uint64_t)i, 1);
        }
        after += rs_path(ends[0], NULL, 0) == 1 && rs_path(ends[1], NULL, 0) == 1;
    }
}

void open_pair(int ends[2])
{
    open_fresh(ends);
    upgrade(ends);
}

void close_pair(int ends[2])
{
    for (int i = 0; i < 2; i++)
        CHECK_INT(rs_close(ends[i]), 0);
}

void check_path(int fd, int path, const char *text)
{
    char got[64];

    CHECK_INT(CHECK_SYS(rs_path(fd, got, sizeof got)), path);
    if (strncmp(got, text, strlen(text)) != 0)
        fail_at(__FILE__, __LINE__, "the path is \"%s\", should be \"%s\"", got, text);
}

uint64_t kernel_received(int fd)
{
    /* The C library's structure ends before the counts of bytes. */
    struct {
        struct tcp_info info;
        uint64_t more[32];
    } all = {0};
    socklen_t length = sizeof all;
    uint64_t received;

    CHECK_SYS(rs_getsockopt(fd, IPPROTO_TCP, TCP_INFO, &all, &length));
    memcpy(&received, (const char *)&all + 128, sizeof received);
    return received;
}

void send_part(int fd, uint64_t offset, size_t length)
{
    CHECK_INT(CHECK_SYS(rs_send(fd, pattern(offset, length), length, 0)), length);
}

void receive_part(int fd, uint64_t offset, size_t length)
{
    uint8_t *bytes = malloc(length);

    CHECK(bytes != NULL);
    CHECK_INT(CHECK_SYS(rs_recv(fd, bytes, length, MSG_WAITALL)), length);
    CHECK_BYTES(bytes, pattern(offset, length), length);
    free(bytes);
}

void exchange(int fd, uint64_t offset, size_t length, int times)
{
    for (int i = 0; i < times; i++, offset += length) {
        send_part(fd, offset, length);
        receive_part(fd, offset, length);
    }
}

int polled(int fd, int events, int ms)
{
    struct pollfd one = {fd, (short)events, -1};
    int found = (int)CHECK_SYS(rs_poll(&one, 1, ms));

    CHECK_INT(found, one.revents != 0);
    return one.revents;
}

void await_polled(int fd, int events)
{
    int found = 0;

    for (int64_t until = now_ms() + PATIENCE_MS; found != events;) {
        if (now_ms() > until)
            fail_at(__FILE__, __LINE__, "rs_poll says 0x%x, should say 0x%x", (unsigned)found, (unsigned)events);
        found = polled(fd, events, 1);
    }
}

struct start {
    int listener;
    unsigned port;
    bool accepts;
    void (*body)(struct peer *self, int fd);
};

static int attached(bool accepts, const struct start *start)
{
    int fd = accepts ? (int)CHECK_SYS(accept(start->listener, NULL, NULL)) : tcp_connect(start->port);

    CHECK_INT(rs_attach(fd), 0);
    CHECK_INT(close(start->listener), 0);
    return fd;
}

static void run_peer(struct peer *self, void *argument)
{
    const struct start *start = argument;

    start->body(self, attached(start->accepts, start));
}

int start_peer(struct peer *peer, bool connects, void (*body)(struct peer *self, int fd))
{
    struct start start = {.accepts = !connects, .body = body};

    start.listener = tcp_listen(&start.port);
    peer_start(peer, run_peer, &start);
    return attached(connects, &start);
}

void echo(struct peer *self, int fd)
{
    static char bytes[1 << 16];
    ssize_t got;

    (void)self;
    while ((got = CHECK_SYS(rs_recv(fd, bytes, sizeof bytes, 0))) > 0)
        CHECK_INT(CHECK_SYS(rs_send(fd, bytes, (size_t)got, 0)), got);
    CHECK_INT(rs_close(fd), 0);
}

int run_echo(int port, bool attaches)
{
    static char bytes[1 << 16];
    int fd = tcp_connect((unsigned)port);
    ssize_t got;

    if (attaches) {
        CHECK_INT(rs_attach(fd), 0);
        check_path(fd, 0, "left to rstream-run");
        echo(NULL, fd);
        return 0;
    }
    while ((got = CHECK_SYS(recv(fd, bytes, sizeof bytes, 0))) > 0)
        CHECK_INT(CHECK_SYS(send(fd, bytes, (size_t)got, 0)), got);
    return 0;
}
