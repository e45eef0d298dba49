/* Plain TCP for comparison, with a nonblocking socket. */
#include "stream.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int set_buffer(int fd, int option, size_t size)
{
    int value = (int)size;

    if (size != 0 && setsockopt(fd, SOL_SOCKET, option, &value, sizeof value) != 0)
        return complain("setting a socket's buffer size to %zu: %s", size, strerror(errno));
    return 0;
}

static int prepare(int fd, const struct stream_options *options)
{
    return set_buffer(fd, SO_SNDBUF, options->send_ring) || set_buffer(fd, SO_RCVBUF, options->recv_ring) ? -1 : 0;
}

static int accept_one(int listener)
{
    struct sockaddr_storage address;
    socklen_t length = sizeof address;
    char host[NI_MAXHOST] = "?", port[NI_MAXSERV] = "?";
    int fd;

    if (listen(listener, 1) != 0)
        return complain("listen: %s", strerror(errno));
    getsockname(listener, (struct sockaddr *)&address, &length);
    getnameinfo((struct sockaddr *)&address, length, host, sizeof host, port, sizeof port,
                NI_NUMERICHOST | NI_NUMERICSERV);
    fprintf(stderr, "listening on %s port %s\n", host, port);
    fd = accept(listener, NULL, NULL);
    if (fd < 0)
        complain("accept: %s", strerror(errno));
    return fd;
}

/* Returns a socket connected to one of the addresses, or -1 with errno. */
static int try_address(const struct addrinfo *address, const struct stream_options *options)
{
    int one = 1, fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return -1;
    if (prepare(fd, options) == 0) {
        if (options->passive) {
            setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
            if (bind(fd, address->ai_addr, address->ai_addrlen) == 0)
                return fd;
        } else if (connect(fd, address->ai_addr, address->ai_addrlen) == 0) {
            return fd;
        }
    }
    one = errno;
    close(fd);
    errno = one;
    return -1;
}

static int tcp_open(struct stream *stream, const struct stream_options *options)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = options->passive ? AI_PASSIVE : 0};
    struct addrinfo *found = NULL;
    int fd = -1, one = 1, ret = getaddrinfo(options->host, options->port, &hints, &found);

    if (ret)
        return complain("%s port %s: %s", options->host, options->port, gai_strerror(ret));
    for (struct addrinfo *address = found; address && fd < 0; address = address->ai_next)
        fd = try_address(address, options);
    freeaddrinfo(found);
    if (fd < 0)
        return complain("%s %s port %s: %s", options->passive ? "listen on" : "connect to", options->host,
                        options->port, strerror(errno));
    if (options->passive) {
        int listener = fd;

        fd = accept_one(listener);
        close(listener);
        if (fd < 0)
            return -1;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (fcntl(fd, F_SETFL, O_NONBLOCK) != 0)
        return complain("fcntl: %s", strerror(errno));
    stream->fd = fd;
    stream->events_for_send = POLLOUT;
    return 0;
}

static ssize_t answer(ssize_t ret)
{
    return ret < 0 ? -errno : ret;
}

static ssize_t tcp_send(struct stream *stream, const void *data, size_t length)
{
    return answer(send(stream->fd, data, length, MSG_NOSIGNAL));
}

static ssize_t tcp_recv(struct stream *stream, void *data, size_t length)
{
    return answer(recv(stream->fd, data, length, 0));
}

static int tcp_end(struct stream *stream)
{
    return (int)answer(shutdown(stream->fd, SHUT_WR));
}

static const char *tcp_error(ssize_t ret)
{
    return strerror((int)-ret);
}

static void tcp_close(struct stream *stream)
{
    if (stream->fd >= 0)
        close(stream->fd);
    stream->fd = -1;
}

const struct stream_ops tcp_ops = {tcp_open, tcp_send, tcp_recv, tcp_end, tcp_error, tcp_close};
