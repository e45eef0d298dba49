/*
 * Messages between two processes over TCP.
 *
 *   pingpong BYTES TRIPS HOW    HOW: block, or spin. Prints the median of a round trip in microseconds.
 *   pingpong BYTES TRIPS flow   Messages one way, spinning, and one back when all are there. Prints MB/s.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static void move(int fd, char *bytes, size_t length, bool is_send, int flags)
{
    while (length > 0) {
        ssize_t moved = is_send ? send(fd, bytes, length, flags) : recv(fd, bytes, length, flags);
        if (moved > 0) {
            bytes += moved;
            length -= (size_t)moved;
        } else if (moved == 0 || errno != EAGAIN) {
            die("a transfer");
        }
    }
}

static int64_t now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000 + time.tv_nsec;
}

static int compare(const void *one, const void *other)
{
    int64_t first = *(const int64_t *)one, second = *(const int64_t *)other;
    return (first > second) - (first < second);
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    size_t length = strtoul(argv[1], NULL, 0), trips = strtoul(argv[2], NULL, 0);
    bool flows = !strcmp(argv[3], "flow");
    int flags = strcmp(argv[3], "block") ? MSG_DONTWAIT : 0;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t room = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0), fd;
    int64_t *times = calloc(trips, sizeof *times);
    char *bytes = calloc(1, length);

    if (bind(listener, (struct sockaddr *)&address, room) || listen(listener, 1) ||
        getsockname(listener, (struct sockaddr *)&address, &room) || !times || !bytes)
        die("a listener");
    pid_t child = fork();
    if (child == 0) {
        if ((fd = accept(listener, NULL, NULL)) < 0)
            die("accept");
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
        for (size_t trip = 0; trip < trips; trip++) {
            move(fd, bytes, length, false, flags);
            if (!flows || trip + 1 == trips)
                move(fd, bytes, length, true, flags);
        }
        _exit(0);
    }
    if ((fd = socket(AF_INET, SOCK_STREAM, 0)) < 0 || connect(fd, (struct sockaddr *)&address, room))
        die("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    int64_t start = now();
    for (size_t trip = 0; trip < trips; trip++) {
        int64_t begin = now();
        move(fd, bytes, length, true, flags);
        if (!flows || trip + 1 == trips)
            move(fd, bytes, length, false, flags);
        times[trip] = now() - begin;
    }
    int64_t all = now() - start;
    waitpid(child, NULL, 0);
    qsort(times, trips, sizeof *times, compare);
    printf("%.3f\n", flows ? 1e3 * (double)length * (double)trips / (double)all : (double)times[trips / 2] / 1000);
    return 0;
}
