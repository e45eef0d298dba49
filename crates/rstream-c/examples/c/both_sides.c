/* Both sides of a connection, in two processes: it moves to shared memory, and back to TCP. */
#include "try.h"

#include <netinet/in.h>
#include <rstream_sockets.h>
#include <sys/wait.h>
#include <unistd.h>

static void say(const char *side, int fd)
{
    char path[64];

    TRY(rs_path(fd, path, sizeof path));
    printf("%s: %s\n", side, path);
    fflush(stdout);
}

static void serve(int fd)
{
    char byte;

    /* The end of the stream is 0. */
    while (TRY(rs_recv(fd, &byte, 1, 0)) == 1)
        TRY(rs_send(fd, &byte, 1, 0));
    say("server", fd);
    TRY(rs_close(fd));
}

int main(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int listener = TRY(socket(AF_INET, SOCK_STREAM, 0)), fd;
    char byte = 'x';

    TRY(bind(listener, (struct sockaddr *)&address, length));
    TRY(listen(listener, 1));
    TRY(getsockname(listener, (struct sockaddr *)&address, &length));
    if (TRY(fork()) == 0) {
        fd = TRY(accept(listener, NULL, NULL));
        TRY(rs_attach(fd));
        serve(fd);
        return 0;
    }
    fd = TRY(socket(AF_INET, SOCK_STREAM, 0));
    TRY(connect(fd, (struct sockaddr *)&address, length));
    TRY(rs_attach(fd));
    say("client", fd);
    for (int i = 0; i < 20; i++) {
        TRY(rs_send(fd, &byte, 1, 0));
        TRY(rs_recv(fd, &byte, 1, 0));
    }
    say("client", fd);
    /* From here on it is any TCP connection. */
    TRY(rs_detach(fd));
    TRY(send(fd, &byte, 1, 0));
    TRY(recv(fd, &byte, 1, 0));
    TRY(close(fd));
    TRY(wait(NULL));
    return 0;
}
