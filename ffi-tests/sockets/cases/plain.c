/* Connections to a process without the library: they stay on TCP, and all is as it was. */
#include "cases.h"

#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- what that process does ---------------------------------------------------------------------------- */

static void sink(struct peer *self, int fd)
{
    hear(self);
    CHECK_INT(receive_to_end(fd, 0), 2000000);
    tell(self);
}

static void source(struct peer *self, int fd)
{
    (void)self;
    send_part(fd, 0, 2000000);
}

static void half_close(struct peer *self, int fd)
{
    CHECK_INT(shutdown(fd, SHUT_WR), 0);
    tell(self);
    CHECK_INT(receive_to_end(fd, 0), 100000);
}

static void leave_unread(struct peer *self, int fd)
{
    hear(self);
    await_events(fd, POLLIN);
    CHECK_INT(close(fd), 0);
    tell(self);
    hear(self);
}

static const struct {
    const char *name;
    void (*run)(struct peer *self, int fd);
} programs[] = {{"echo", echo}, {"sink", sink}, {"source", source}, {"half_close", half_close},
                {"leave_unread", leave_unread}};

int run_plain(int argc, char **argv)
{
    struct peer self = {0, STDOUT_FILENO, STDIN_FILENO};

    CHECK(argc == 2 && !is_loaded());
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++)
        if (strcmp(programs[i].name, argv[0]) == 0) {
            programs[i].run(&self, open_plain(&self, atoi(argv[1])));
            return 0;
        }
    return 1;
}

/* ---- the tests ----------------------------------------------------------------------------------------- */

static const struct way ways[] = {{"connecting", true}, {"accepting", false}};

FAMILY(plain_peer_echoes, ways)
{
    struct peer peer;
    int fd = start_plain(&peer, kind->number, "echo");

    for (uint64_t from = 0; from < 200000; from += 5000) {
        send_part(fd, from, 5000);
        receive_part(fd, from, 5000);
    }
    CHECK_INT(shutdown(fd, SHUT_WR), 0);
    CHECK_INT(recv(fd, &(char){0}, 1, 0), 0);
    join_peer(&peer);
}

FAMILY(plain_peer_reads_much, ways)
{
    struct peer peer;
    int fd = start_plain(&peer, kind->number, "sink");

    tell(&peer);
    send_part(fd, 0, 2000000);
    CHECK_INT(shutdown(fd, SHUT_WR), 0);
    hear(&peer);
    join_peer(&peer);
}

FAMILY(plain_peer_sends_much, ways)
{
    struct peer peer;
    int fd = start_plain(&peer, kind->number, "source");

    CHECK_INT(receive_to_end(fd, 0), 2000000);
    join_peer(&peer);
}

FAMILY(plain_peer_half_closes, ways)
{
    struct peer peer;
    int fd = start_plain(&peer, kind->number, "half_close");

    hear(&peer);
    await_events(fd, POLLIN | POLLRDHUP);
    CHECK_INT(recv(fd, &(char){0}, 1, 0), 0);
    send_part(fd, 0, 100000);
    CHECK_INT(close(fd), 0);
    join_peer(&peer);
}

FAMILY(plain_peer_leaves_bytes_unread, ways)
{
    struct peer peer;
    int fd = start_plain(&peer, kind->number, "leave_unread");

    send_part(fd, 0, 100);
    tell(&peer);
    hear(&peer);
    await_events(fd, POLLIN | POLLHUP | POLLERR);
    CHECK_ERROR(recv(fd, &(char){0}, 1, 0), ECONNRESET);
    CHECK_INT(recv(fd, &(char){0}, 1, 0), 0);
    tell(&peer);
    join_peer(&peer);
}

FAMILY(plain_peer_that_is_killed, ways)
{
    struct peer peer;
    int fd = start_plain(&peer, kind->number, "echo");

    send_part(fd, 0, 100);
    receive_part(fd, 0, 100);
    kill_peer(&peer);
    CHECK_INT(recv(fd, &(char){0}, 1, 0), 0);
}

