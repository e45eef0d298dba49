/* A peer of a message endpoint that is a plain socket. */
#include "message.h"

#include <unistd.h>

#include "../iwarp_wire.h"

/* Reads that the peer serves, and that it has under way: IRD and ORD. */
#define READS (16U << 16 | 16U)

int message_stranger_early(struct side *listener, struct side *server, const struct message_settings *settings)
{
    /* A length, the mark of message endpoints, their version and kind, and no data of the application. */
    const uint8_t hello[] = {5, 'r', 'm', 1, settings != NULL && settings->caps & FI_TAGGED};
    uint8_t frame[128];
    struct event request;
    size_t length;
    int fd;

    message_listen(listener, settings);
    fd = stranger_connect(fid_port(&listener->pep->fid));
    length = mpa_frame(frame, MPA_REQUEST, 2, READS, hello, sizeof hello);
    CHECK_INT(CHECK_SYS(write(fd, frame, length)), length);
    request = await_event(listener->eq, FI_CONNREQ);
    message_server(listener, server, &request, settings);
    CHECK_OK(fi_accept(server->ep, NULL, 0));
    return fd;
}

int message_stranger(struct side *listener, struct side *server, const struct message_settings *settings)
{
    uint8_t frame[128];
    int fd = message_stranger_early(listener, server, settings);

    (void)await_event(server->eq, FI_CONNECTED);
    (void)mpa_read(fd, frame, sizeof frame);
    return fd;
}
