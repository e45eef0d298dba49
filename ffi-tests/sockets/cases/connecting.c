/* Connections, peers in other processes, and whether the library has upgraded them. */
#include "cases.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

unsigned *upgrades;

bool is_loaded(void)
{
    const char *loaded = getenv("LD_PRELOAD");

    return loaded && strstr(loaded, "librstream_preload");
}

uint64_t kernel_received(int fd)
{
    /* The C library's structure ends before the counts of bytes. */
    enum { RECEIVED = 128 };
    char info[RECEIVED + 8];
    socklen_t length = sizeof info;
    uint64_t count;

    CHECK_INT(getsockopt(fd, IPPROTO_TCP, TCP_INFO, info, &length), 0);
    CHECK_INT(length, sizeof info);
    memcpy(&count, info + RECEIVED, sizeof count);
    return count;
}

int open_listener(unsigned *port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&address, length) == 0 && listen(fd, 512) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)&address, &length) == 0);
    *port = ntohs(address.sin_port);
    return fd;
}

/* Else what is sent arrives when the peer has acknowledged what came before. */
static void send_at_once(int fd)
{
    CHECK_INT(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)), 0);
}

int connect_to(unsigned port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    address.sin_port = htons((uint16_t)port);
    CHECK(fd >= 0);
    CHECK_INT(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    send_at_once(fd);
    return fd;
}

static int accept_one(int listener)
{
    int fd = accept(listener, NULL, NULL);

    CHECK(fd >= 0);
    send_at_once(fd);
    close(listener);
    return fd;
}

void open_fresh(int ends[2])
{
    unsigned port;
    int listener = open_listener(&port);

    ends[0] = connect_to(port);
    ends[1] = accept_one(listener);
}

/* The message of the exchange that upgrades. */
struct message {
    uint64_t received;
    bool is_upgraded, is_last;
    char rest[100];
};

enum { ROUNDS = 100, ROUNDS_PLAIN = 12 };

static void move_all(int fd, void *bytes, size_t length, bool sends)
{
    for (size_t done = 0; done < length;) {
        ssize_t moved = sends ? send(fd, (char *)bytes + done, length - done, MSG_NOSIGNAL)
                              : recv(fd, (char *)bytes + done, length - done, 0);

        CHECK(moved > 0);
        done += (size_t)moved;
    }
}

/* Moves one message. Returns whether it did not go through the kernel. */
static bool pass(int from, int to)
{
    struct message message = {0};
    uint64_t before = kernel_received(to);

    move_all(from, &message, sizeof message, true);
    move_all(to, &message, sizeof message, false);
    return kernel_received(to) < before + sizeof message;
}

void upgrade(int ends[2])
{
    bool is_upgraded = false;

    for (unsigned round = 0; round < (is_loaded() ? ROUNDS : ROUNDS_PLAIN) && !is_upgraded; round++)
        is_upgraded = pass(ends[0], ends[1]) & pass(ends[1], ends[0]);
    CHECK(is_upgraded == is_loaded());
    if (is_upgraded && upgrades)
        __atomic_add_fetch(upgrades, 1, __ATOMIC_RELAXED);
}

void open_pair(int ends[2])
{
    open_fresh(ends);
    upgrade(ends);
}

void close_pair(int ends[2])
{
    CHECK_INT(close(ends[0]), 0);
    CHECK_INT(close(ends[1]), 0);
}

/* ---- peers --------------------------------------------------------------------------------------------- */

/* What the side does that speaks first, and what the other does. */
static void upgrade_first(int fd)
{
    struct message message = {0};
    unsigned rounds = is_loaded() ? ROUNDS : ROUNDS_PLAIN;
    bool is_upgraded;

    do {
        uint64_t before = kernel_received(fd);

        CHECK(rounds-- > 0 || !is_loaded());
        message.is_last = false;
        move_all(fd, &message, sizeof message, true);
        move_all(fd, &message, sizeof message, false);
        is_upgraded = message.is_upgraded && kernel_received(fd) < before + sizeof message;
    } while (is_loaded() ? !is_upgraded : rounds > 0);
    message.is_last = true;
    move_all(fd, &message, sizeof message, true);
    if (is_upgraded && upgrades)
        __atomic_add_fetch(upgrades, 1, __ATOMIC_RELAXED);
}

static void upgrade_second(int fd)
{
    struct message message;

    for (;;) {
        uint64_t before = kernel_received(fd);

        move_all(fd, &message, sizeof message, false);
        if (message.is_last)
            break;
        message.is_upgraded = kernel_received(fd) < before + sizeof message;
        move_all(fd, &message, sizeof message, true);
    }
}

/* Starts a process. Returns 0 in it. */
static pid_t fork_peer(struct peer *peer)
{
    int down[2], up[2];
    pid_t parent = getpid();

    CHECK(pipe(down) == 0 && pipe(up) == 0);
    fflush(NULL);
    CHECK((peer->pid = fork()) >= 0);
    peer->to = peer->pid ? down[1] : up[1];
    peer->from = peer->pid ? up[0] : down[0];
    close(peer->pid ? down[0] : down[1]);
    close(peer->pid ? up[1] : up[0]);
    if (peer->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(1);
    }
    return peer->pid;
}

static int start(struct peer *peer, bool connects, bool upgrades, void (*body)(struct peer *, int))
{
    unsigned port;
    int listener = open_listener(&port), fd;

    if (fork_peer(peer) == 0) {
        if (!connects)
            close(listener);
        fd = connects ? accept_one(listener) : connect_to(port);
        if (upgrades)
            upgrade_second(fd);
        tell(peer);
        body(peer, fd);
        exit(0);
    }
    if (connects)
        close(listener);
    fd = connects ? connect_to(port) : accept_one(listener);
    if (upgrades)
        upgrade_first(fd);
    hear(peer);
    return fd;
}

int start_peer(struct peer *peer, bool connects, void (*body)(struct peer *, int))
{
    return start(peer, connects, true, body);
}

int start_fresh_peer(struct peer *peer, bool connects, void (*body)(struct peer *, int))
{
    return start(peer, connects, false, body);
}

void echo(struct peer *self, int fd)
{
    char bytes[5000];
    ssize_t got;

    (void)self;
    while ((got = recv(fd, bytes, sizeof bytes, 0)) > 0)
        CHECK_INT(send(fd, bytes, (size_t)got, MSG_NOSIGNAL), got);
    CHECK_INT(got, 0);
}

int start_plain(struct peer *peer, bool connects, const char *name)
{
    unsigned port;
    int listener = open_listener(&port), fd;
    struct message message = {0};
    char number[16], *arguments[] = {"cases", "--plain", (char *)name, number, NULL};
    char *none[] = {NULL}, *accepts[] = {"CASES_ACCEPTS=1", NULL};

    snprintf(number, sizeof number, "%d", connects ? listener : (int)port);
    if (fork_peer(peer) == 0) {
        if (!connects)
            close(listener);
        /* Its words go by its standard input and output. */
        dup2(peer->from, STDIN_FILENO);
        dup2(peer->to, STDOUT_FILENO);
        execve("/proc/self/exe", arguments, connects ? accepts : none);
        _exit(1);
    }
    if (connects)
        close(listener);
    fd = connects ? connect_to(port) : accept_one(listener);
    /* Long enough to be upgraded, if the peer could be. */
    for (unsigned i = 0; i < 2 * ROUNDS_PLAIN; i++) {
        move_all(fd, &message, sizeof message, true);
        move_all(fd, &message, sizeof message, false);
    }
    message.is_last = true;
    move_all(fd, &message, sizeof message, true);
    hear(peer);
    return fd;
}

int open_plain(struct peer *self, int number)
{
    int fd = getenv("CASES_ACCEPTS") ? accept_one(number) : connect_to((unsigned)number);

    upgrade_second(fd);
    tell(self);
    return fd;
}

void tell(struct peer *peer)
{
    CHECK_INT(write(peer->to, "x", 1), 1);
}

void hear(struct peer *peer)
{
    char byte;
    ssize_t got;

    while ((got = read(peer->from, &byte, 1)) < 0 && errno == EINTR)
        continue;
    if (got != 1)
        fail_at(__FILE__, __LINE__, "process %d has ended, or says nothing", (int)peer->pid);
}

void join_peer(struct peer *peer)
{
    int status;

    CHECK_INT(waitpid(peer->pid, &status, 0), peer->pid);
    close(peer->to);
    close(peer->from);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        fail_at(__FILE__, __LINE__, "the other process ended with wait status 0x%x", (unsigned)status);
}

void kill_peer(struct peer *peer)
{
    int status;

    CHECK_INT(kill(peer->pid, SIGKILL), 0);
    CHECK_INT(waitpid(peer->pid, &status, 0), peer->pid);
    CHECK(WIFSIGNALED(status));
}
