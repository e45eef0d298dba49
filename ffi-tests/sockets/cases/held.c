/* A peer that dies behind bytes which nobody reads: there is no room for the kernel's end. */
#include "cases.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

/* Calls in turns that upgrade a connection whose one side reads nothing. */
#define TURNS 40

static void flood(struct peer *self, int fd, bool looks)
{
    char byte;

    fill_up(fd, 0);
    tell(self);
    for (unsigned turn = 0; turn < TURNS; turn++) {
        hear(self);
        CHECK_INT(recv(fd, &byte, 1, 0), 1);
        if (looks)
            CHECK_ERROR(recv(fd, &byte, 1, MSG_DONTWAIT), EAGAIN);
        (void)send(fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
        tell(self);
    }
    /* Who has looked has taken all that was sent to wake it: the kernel's end is no reset then. */
    hear(self);
    CHECK_INT(recv(fd, &byte, 1, 0), 1);
    tell(self);
    hear(self);
}

static void flood_and_look(struct peer *self, int fd)
{
    flood(self, fd, true);
}

static void only_flood(struct peer *self, int fd)
{
    flood(self, fd, false);
}

static void by_poll(int fd)
{
    CHECK(poll_one(fd, POLLOUT, 5000) & POLLOUT);
}

static void by_epoll(int fd)
{
    struct epoll_event event = {.events = EPOLLOUT};
    int set = epoll_create1(0);

    CHECK_INT(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), 0);
    CHECK_INT(epoll_wait(set, &event, 1, 5000), 1);
    CHECK(event.events & EPOLLOUT);
    close(set);
}

static void by_send(int fd)
{
    set_limit(fd, SO_SNDTIMEO, 5000);
}

static const struct {
    const char *name;
    bool connects;
    void (*peer)(struct peer *self, int fd);
    void (*wait)(int fd);
} waits[] = {
    {"poll_of_the_connector", true, flood_and_look, by_poll},
    {"poll_of_the_acceptor", false, flood_and_look, by_poll},
    {"epoll_of_the_connector", true, flood_and_look, by_epoll},
    {"epoll_of_the_acceptor", false, flood_and_look, by_epoll},
    {"send_of_the_connector", true, flood_and_look, by_send},
    {"send_of_the_acceptor", false, flood_and_look, by_send},
    {"poll_after_a_reset", true, only_flood, by_poll},
    {"epoll_after_a_reset", false, only_flood, by_epoll},
    {"send_after_a_reset", true, only_flood, by_send},
};

FAMILY(killed_behind_unread_bytes, waits)
{
    struct peer peer;
    int fd = start_fresh_peer(&peer, kind->connects, kind->peer);
    char byte;

    hear(&peer);
    for (unsigned turn = 0; turn < TURNS; turn++) {
        send_part(fd, turn, 1);
        tell(&peer);
        hear(&peer);
        CHECK_INT(recv(fd, &byte, 1, MSG_PEEK), 1);
    }
    fill_up(fd, TURNS);
    tell(&peer);
    hear(&peer);
    kill_peer(&peer);
    kind->wait(fd);
    CHECK_ERROR(send(fd, "", 1, MSG_NOSIGNAL), ECONNRESET);
    CHECK_ERROR(send(fd, "", 1, MSG_NOSIGNAL), EPIPE);
    /* What it had sent before can be read still. */
    CHECK_INT(recv(fd, &byte, 1, 0), 1);
}
