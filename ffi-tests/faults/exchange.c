/* One connection and its bytes, under any fault. */
#include "faults.h"

#define CALL 8192

void end_start(struct end *end, struct fid_ep *ep, uint64_t total)
{
    *end = (struct end){.ep = ep, .total = total, .recv_end = STILL_OPEN};
}

static bool step_send(struct end *end)
{
    size_t left = (size_t)(end->total - end->sent), part = left < CALL ? left : CALL;
    ssize_t took;

    if (end->shut || end->send_end != 0)
        return false;
    if (left == 0) {
        end->send_end = fi_shutdown(end->ep, FI_SEND);
        end->shut = end->send_end == 0;
        return true;
    }
    took = send_once(end->ep, pattern(end->sent, part), part);
    if (took == -FI_EAGAIN)
        return false;
    if (took < 0) {
        end->send_end = took;
    } else {
        CHECK_BETWEEN(took, 1, part);
        end->sent += (uint64_t)took;
    }
    return true;
}

static bool step_receive(struct end *end)
{
    uint8_t buffer[CALL];
    ssize_t got;

    if (end->recv_end != STILL_OPEN)
        return false;
    got = recv_once(end->ep, buffer, sizeof buffer);
    if (got == -FI_EAGAIN)
        return false;
    if (got <= 0) {
        end->recv_end = got;
    } else {
        CHECK_BETWEEN(got, 1, sizeof buffer);
        if (!end->unchecked)
            CHECK_BYTES(buffer, pattern(end->received, (size_t)got), (size_t)got);
        end->received += (uint64_t)got;
    }
    return true;
}

bool end_step(struct end *end)
{
    bool sent = step_send(end), received = step_receive(end);

    return sent || received;
}

bool end_is_over(const struct end *end)
{
    return end->recv_end != STILL_OPEN && (end->shut || end->send_end != 0);
}

bool exchange(struct end *a, struct end *b, int quiet_ms)
{
    int64_t moved = now_ms();

    while (!end_is_over(a) || !end_is_over(b)) {
        bool first = end_step(a), second = end_step(b);

        if (first || second)
            moved = now_ms();
        else if (now_ms() - moved > quiet_ms)
            return false;
        else
            drive();
    }
    return true;
}

void end_judge(const struct end *end, const struct end *peer)
{
    CHECK_BETWEEN(end->received, 0, peer->sent);
    if (end->send_end != 0)
        CHECK_RET(end->send_end, -FI_ECONNRESET);
    if (end->recv_end == 0) {
        CHECK(peer->shut);
        CHECK_INT(end->received, peer->total);
    } else if (end->recv_end != STILL_OPEN) {
        CHECK_RET(end->recv_end, -FI_ECONNRESET);
    }
}

/* ---- connecting --------------------------------------------------------------------------- */

void meeting_listen(struct meeting *meeting, const struct settings *settings)
{
    memset(meeting, 0, sizeof *meeting);
    side_listen(&meeting->listener, IPV4, settings);
}

/* Reads one event of `eq`, which is about the client's or the server's endpoint. */
static bool take_event(struct meeting *meeting, struct fid_eq *eq)
{
    struct fi_eq_err_entry error = {0};
    struct fi_eq_cm_entry entry;
    struct event request = {0};
    uint32_t kind;
    ssize_t got = fi_eq_read(eq, &kind, &entry, sizeof entry, 0);

    if (got == -FI_EAGAIN)
        return false;
    if (got == -FI_EAVAIL) {
        CHECK_RET(fi_eq_readerr(eq, &error, 0), sizeof error);
        CHECK_AT_LEAST(error.err, 1);
        if (meeting->client.ep && error.fid == &meeting->client.ep->fid)
            meeting->client_error = error.err;
        else
            meeting->server_error = error.err;
        return true;
    }
    CHECK_RET(got, sizeof entry);
    if (kind == FI_CONNREQ) {
        request.info = entry.info;
        CHECK(meeting->server.ep == NULL);
        accept_request(&meeting->listener, &meeting->server, &request, NULL, 0);
    } else if (kind == FI_CONNECTED) {
        bool client = meeting->client.ep && entry.fid == &meeting->client.ep->fid;

        *(client ? &meeting->client_up : &meeting->server_up) = true;
    } else {
        CHECK_INT(kind, FI_SHUTDOWN);
    }
    return true;
}

void meeting_events(struct meeting *meeting)
{
    while (take_event(meeting, meeting->listener.eq))
        ;
    while (meeting->client.eq && take_event(meeting, meeting->client.eq))
        ;
}

bool meeting_connect(struct meeting *meeting, unsigned port, const struct settings *settings)
{
    bool client = false, server = false;
    int64_t until = now_ms() + PATIENCE_MS;

    side_active(&meeting->client, IPV4, port, settings);
    CHECK_OK(fi_connect(meeting->client.ep, meeting->client.info->dest_addr, NULL, 0));
    while (!client || !server) {
        CHECK(now_ms() < until);
        meeting_events(meeting);
        client = meeting->client_up || meeting->client_error != 0;
        /* The server gets no event if the client's request was lost. */
        server = meeting->server_up || meeting->server_error != 0 || (client && !meeting->server.ep);
        drive();
    }
    return meeting->client_up && meeting->server_up;
}

void meeting_close(struct meeting *meeting)
{
    if (meeting->client.info)
        side_close(&meeting->client);
    if (meeting->server.info)
        side_close(&meeting->server);
    side_close(&meeting->listener);
}
