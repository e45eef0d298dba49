/* Contract, section Message endpoints: shared receive contexts. */
#include "message.h"

#include <sys/wait.h>
#include <unistd.h>

static struct fid_ep *shared;

/* A listener with one domain and queue for all that it accepts, with a shared receive context. */
static void open_shared(struct side *listener, const struct fi_rx_attr *attr)
{
    struct fi_rx_attr given = attr ? *attr : (struct fi_rx_attr){0};

    message_listen(listener, NULL);
    CHECK_OK(fi_srx_context(listener->domain, attr ? &given : NULL, &shared, CONTEXT(42)));
    CHECK(shared->fid.context == CONTEXT(42));
    message_queue(listener, NULL);
}

static void shared_receives(void)
{
    struct side listener, clients[2];
    struct fid_ep *eps[2];
    uint8_t got[10] = {0};

    open_shared(&listener, NULL);
    for (unsigned i = 0; i < 2; i++)
        eps[i] = message_shared(&listener, &clients[i], shared, NULL);
    check_receives(eps[0], -FI_EINVAL);
    /* Receives go to whichever endpoint has a message, in the order in which they were posted. */
    for (unsigned i = 0; i < 10; i++)
        post_recv(shared, &got[i], 1, i);
    for (unsigned i = 0; i < 10; i++) {
        CHECK_OK(fi_inject(clients[i % 3 == 0].ep, i % 3 == 0 ? "a" : "b", 1, FI_ADDR_UNSPEC));
        CHECK_INT(await_done(listener.cq, i, RECEIVED).len, 1);
        CHECK_INT(got[i], i % 3 == 0 ? 'a' : 'b');
    }
    /* Both wait for a receive; each gets one. */
    for (unsigned i = 0; i < 2; i++)
        CHECK_OK(fi_inject(clients[i].ep, "zz", 2, FI_ADDR_UNSPEC));
    for (unsigned i = 0; i < 20; i++)
        drive();
    post_recv(shared, got, 2, 1);
    (void)await_done(listener.cq, 1, RECEIVED);
    check_no_completion(listener.cq);
    post_recv(shared, got, 1, 2);
    (void)await_failed(listener.cq, 2, RECEIVED, FI_ETRUNC);
    /* It sends nothing, and is in use. */
    check_calls(shared, -FI_ENOSYS);
    CHECK_RET(fi_close(&shared->fid), -FI_EBUSY);
    for (unsigned i = 0; i < 2; i++) {
        close_fid(&eps[i]->fid);
        side_close(&clients[i]);
    }
    check_no_completion(listener.cq);
    close_fid(&shared->fid);
    side_close(&listener);
}

static void shared_selective(void)
{
    struct message_settings settings = {.bind_flags = FI_SELECTIVE_COMPLETION};
    struct fi_rx_attr attr = {.op_flags = FI_COMPLETION};
    struct side listener, client;
    struct fi_msg message = {0};
    struct fid_ep *ep;
    uint8_t got[4];

    for (unsigned asks = 0; asks < 2; asks++) {
        open_shared(&listener, asks ? &attr : NULL);
        ep = message_shared(&listener, &client, shared, &settings);
        message.context = CONTEXT(2);
        post_recv(shared, got, 1, 1);
        CHECK_OK(fi_recvmsg(shared, &message, FI_COMPLETION));
        post_recv(shared, got, 1, 3);
        for (unsigned i = 0; i < 2; i++)
            CHECK_OK(fi_inject(client.ep, "x", i ? 0 : 1, FI_ADDR_UNSPEC));
        if (asks)
            (void)await_done(listener.cq, 1, RECEIVED);
        (void)await_done(listener.cq, 2, RECEIVED);
        CHECK_OK(fi_inject(client.ep, "xx", 2, FI_ADDR_UNSPEC));
        (void)await_failed(listener.cq, 3, RECEIVED, FI_ETRUNC);
        close_fid(&ep->fid);
        side_close(&client);
        close_fid(&shared->fid);
        side_close(&listener);
    }
}

static void shared_attributes(void)
{
    struct fi_rx_attr attr = {.size = 3};
    struct side listener, client;
    struct fid_ep *ep, *other = NULL;
    uint8_t got[4];

    open_shared(&listener, &attr);
    ep = message_shared(&listener, &client, shared, NULL);
    CHECK_RET(fi_rx_size_left(shared), 3);
    for (unsigned i = 0; i < 3; i++)
        post_recv(shared, &got[i], 1, i);
    CHECK_RET(fi_rx_size_left(shared), 0);
    CHECK_RET(fi_recv(shared, got, 1, NULL, FI_ADDR_UNSPEC, NULL), -FI_EAGAIN);
    CHECK_OK(fi_cancel(&shared->fid, CONTEXT(1)));
    CHECK_RET(fi_cancel(&shared->fid, CONTEXT(1)), -FI_ENOENT);
    CHECK_RET(fi_rx_size_left(shared), 1);
    CHECK_OK(fi_inject(client.ep, "x", 1, FI_ADDR_UNSPEC));
    CHECK_OK(fi_inject(client.ep, "y", 1, FI_ADDR_UNSPEC));
    (void)await_done(listener.cq, 0, RECEIVED);
    (void)await_done(listener.cq, 2, RECEIVED);
    attr.size = (1 << 16) + 1;
    CHECK_RET(fi_srx_context(listener.domain, &attr, &other, NULL), -FI_EINVAL);
    CHECK_RET(fi_srx_context(listener.domain, NULL, NULL, NULL), -FI_EINVAL);
    CHECK(other == NULL);
    close_fid(&ep->fid);
    /* It is in use from the bind on. */
    CHECK_OK(fi_endpoint(listener.domain, listener.info, &ep, NULL));
    CHECK_OK(fi_ep_bind(ep, &shared->fid, 0));
    CHECK_RET(fi_close(&shared->fid), -FI_EBUSY);
    close_fid(&ep->fid);
    /* An endpoint that is enabled goes without. */
    CHECK_OK(fi_endpoint(listener.domain, listener.info, &ep, NULL));
    CHECK_OK(fi_ep_bind(ep, &listener.eq->fid, 0));
    CHECK_OK(fi_ep_bind(ep, &listener.cq->fid, FI_TRANSMIT | FI_RECV));
    CHECK_OK(fi_enable(ep));
    CHECK_RET(fi_ep_bind(ep, &shared->fid, 0), -FI_EOPBADSTATE);
    post_recv(ep, got, 1, 3);
    close_fid(&ep->fid);
    (void)await_failed(listener.cq, 3, RECEIVED, FI_ECANCELED);
    close_fid(&shared->fid);
    side_close(&client);
    side_close(&listener);
}

/* Its receives have no entries, and their memory is free. */
static void shared_closed_with_receives(void)
{
    enum { LENGTH = 4096, COUNT = 3 };
    struct fi_rx_attr attr = {.size = COUNT};
    uint8_t *memory = map_pages(LENGTH), got = 0;
    struct side listener, client;
    struct fid_ep *ep;

    open_shared(&listener, &attr);
    ep = message_shared(&listener, &client, shared, NULL);
    for (unsigned i = 0; i < COUNT; i++)
        post_recv(shared, memory + i, 1, i);
    close_fid(&ep->fid);
    close_fid(&shared->fid);
    unmap_pages(memory, LENGTH);
    (void)await_event(client.eq, FI_SHUTDOWN);
    side_close(&client);
    CHECK_OK(fi_srx_context(listener.domain, &attr, &shared, NULL));
    ep = message_shared(&listener, &client, shared, NULL);
    post_recv(shared, &got, 1, 10);
    CHECK_OK(fi_inject(client.ep, "x", 1, FI_ADDR_UNSPEC));
    (void)await_done(listener.cq, 10, RECEIVED);
    CHECK_INT(got, 'x');
    check_no_completion(listener.cq);
    close_fid(&ep->fid);
    close_fid(&shared->fid);
    side_close(&client);
    side_close(&listener);
}

/* Each call that posts a receive. */
static void shared_calls(void)
{
    uint8_t got[MESSAGE_IOVS + 1][4] = {{0}};
    struct iovec pieces[MESSAGE_IOVS + 1];
    struct fi_msg message = {.msg_iov = pieces, .iov_count = 2, .context = CONTEXT(2)};
    struct side listener, client;
    struct fid_ep *ep;

    for (unsigned i = 0; i <= MESSAGE_IOVS; i++)
        pieces[i] = (struct iovec){got[i], sizeof got[i]};
    open_shared(&listener, NULL);
    ep = message_shared(&listener, &client, shared, NULL);
    CHECK_RET(fi_recvv(shared, pieces, NULL, MESSAGE_IOVS + 1, FI_ADDR_UNSPEC, NULL), -FI_EINVAL);
    CHECK_RET(fi_recvv(shared, NULL, NULL, 1, FI_ADDR_UNSPEC, NULL), -FI_EINVAL);
    CHECK_RET(fi_recvmsg(shared, NULL, 0), -FI_EINVAL);
    CHECK_RET(fi_recvmsg(shared, &message, 1ULL << 45), -FI_EBADFLAGS);
    CHECK_RET(fi_recvmsg(shared, &message, FI_MULTI_RECV), -FI_EBADFLAGS);
    CHECK_RET(fi_rx_size_left(shared), MESSAGE_QUEUE);
    CHECK_OK(fi_recvv(shared, pieces, NULL, MESSAGE_IOVS, FI_ADDR_UNSPEC, CONTEXT(1)));
    CHECK_OK(fi_recvmsg(shared, &message, FI_COMPLETION | FI_MORE));
    CHECK_RET(fi_rx_size_left(shared), MESSAGE_QUEUE - 2);
    CHECK_OK(fi_inject(client.ep, pattern(0, 14), 14, FI_ADDR_UNSPEC));
    CHECK_INT(await_done(listener.cq, 1, RECEIVED).len, 14);
    CHECK_BYTES(got, pattern(0, 14), 14);
    CHECK_OK(fi_inject(client.ep, pattern(1, 9), 9, FI_ADDR_UNSPEC));
    CHECK_INT(await_failed(listener.cq, 2, RECEIVED, FI_ETRUNC).olen, 1);
    CHECK_BYTES(got, pattern(1, 8), 8);
    close_fid(&ep->fid);
    close_fid(&shared->fid);
    side_close(&client);
    side_close(&listener);
}

/* A receive that is half filled when its connection ends goes to the next message, before those posted later.
 * Either side closes. */
static void half_filled_until(bool own_close)
{
    /* More than arrives in a few calls. */
    enum { LENGTH = 64 << 20 };
    uint8_t *got = map_pages(LENGTH), *sent = map_pages(LENGTH), second[8] = {0};
    struct side listener, clients[2];
    struct fid_ep *eps[2];

    memset(sent, 1, LENGTH);
    open_shared(&listener, NULL);
    for (unsigned i = 0; i < 2; i++)
        eps[i] = message_shared(&listener, &clients[i], shared, NULL);
    post_recv(shared, got, LENGTH, 1);
    post_recv(shared, second, sizeof second, 2);
    post_send(clients[0].ep, sent, LENGTH, 5);
    AWAIT(PATIENCE_MS, got[0] == 1);
    close_fid(own_close ? &eps[0]->fid : &clients[0].ep->fid);
    if (own_close) {
        eps[0] = NULL;
        (void)await_event(clients[0].eq, FI_SHUTDOWN);
        (void)await_failed(clients[0].cq, 5, SENT, FI_ECONNRESET);
    } else {
        clients[0].ep = NULL;
        (void)await_event(listener.eq, FI_SHUTDOWN);
    }
    unmap_pages(sent, LENGTH);
    check_no_completion(listener.cq);
    CHECK_OK(fi_inject(clients[1].ep, "next", 4, FI_ADDR_UNSPEC));
    CHECK_OK(fi_inject(clients[1].ep, "after", 5, FI_ADDR_UNSPEC));
    CHECK_INT(await_done(listener.cq, 1, RECEIVED).len, 4);
    CHECK_BYTES(got, "next", 4);
    CHECK_INT(await_done(listener.cq, 2, RECEIVED).len, 5);
    CHECK_BYTES(second, "after", 5);
    unmap_pages(got, LENGTH);
    for (unsigned i = 0; i < 2; i++)
        if (eps[i] != NULL)
            close_fid(&eps[i]->fid);
    close_fid(&shared->fid);
    side_close(&clients[0]);
    side_close(&clients[1]);
    side_close(&listener);
}

static void half_filled(void)
{
    half_filled_until(false);
    half_filled_until(true);
}

/* In a child of fork: closes its copies of everything on the listener's side, the endpoint that is in the middle of a
 * receive first. */
static pid_t close_in_child(struct side *listener, struct fid_ep *const eps[2], struct fid_mr *region)
{
    pid_t child = (pid_t)CHECK_SYS(fork());

    if (child != 0)
        return child;
    for (unsigned i = 0; i < 2; i++)
        close_fid(&eps[i]->fid);
    close_fid(&region->fid);
    close_fid(&shared->fid);
    side_close(listener);
    _exit(0);
}

/* A child closes its copy of an endpoint that is in the middle of a shared receive. Nothing comes of that: not even the
 * answer to a read behind another connection's message, which waits for a receive. */
static void half_filled_in_child(void)
{
    enum { LENGTH = 64 << 20, KEY = 1 };
    uint8_t *got = map_pages(LENGTH), *sent = map_pages(LENGTH), second = 0, source = 's', target = 0;
    struct side listener, clients[2];
    struct fid_ep *eps[2];
    struct fid_mr *region;
    int status;

    memset(sent, 1, LENGTH);
    open_shared(&listener, NULL);
    region = message_region(&listener, &source, 1, KEY);
    for (unsigned i = 0; i < 2; i++)
        eps[i] = message_shared(&listener, &clients[i], shared, NULL);
    post_recv(shared, got, LENGTH, 1);
    post_send(clients[0].ep, sent, LENGTH, 5);
    AWAIT(PATIENCE_MS, got[0] == 1);
    post_send(clients[1].ep, "m", 1, 6);
    CHECK_OK(fi_read(clients[1].ep, &target, 1, NULL, FI_ADDR_UNSPEC, 0, KEY, CONTEXT(7)));
    /* One call takes both from the socket. */
    CHECK_RET(fi_cq_read(listener.cq, NULL, 0), -FI_EAGAIN);
    CHECK_SYS(waitpid(close_in_child(&listener, eps, region), &status, 0));
    CHECK_INT(status, 0);
    (void)await_done(clients[1].cq, 6, SENT);
    CHECK_RET(fi_cq_read(clients[1].cq, &(struct fi_cq_data_entry){0}, 1), -FI_EAGAIN);
    CHECK_INT(await_done(listener.cq, 1, RECEIVED).len, LENGTH);
    CHECK_BYTES(got, sent, LENGTH);
    post_recv(shared, &second, 1, 2);
    (void)await_done(listener.cq, 2, RECEIVED);
    CHECK_INT(second, 'm');
    (void)await_done(clients[1].cq, 7, WAS_READ);
    CHECK_INT(target, 's');
    for (unsigned i = 0; i < 2; i++) {
        post_recv(shared, &second, 1, 3);
        CHECK_OK(fi_inject(clients[i].ep, "n", 1, FI_ADDR_UNSPEC));
        (void)await_done(listener.cq, 3, RECEIVED);
        check_no_event(clients[i].eq);
        close_fid(&eps[i]->fid);
        side_close(&clients[i]);
    }
    close_fid(&region->fid);
    close_fid(&shared->fid);
    side_close(&listener);
    unmap_pages(got, LENGTH);
    unmap_pages(sent, LENGTH);
}

static const struct test tests[] = {
    TEST(shared_receives, "a shared receive context serves two endpoints"),
    TEST(shared_selective, "receives of a shared context whose endpoint's queue is bound selectively"),
    TEST(shared_attributes, "size, cancel and limits of a shared receive context"),
    TEST(shared_closed_with_receives, "a shared receive context that is closed with receives: no entries, their memory is free"),
    TEST(shared_calls, "fi_recvv and fi_recvmsg on a shared receive context; bad flags, too many pieces"),
    TEST(half_filled, "a shared receive that is half filled at the end goes to the next message, before later ones"),
    TEST(half_filled_in_child, "a child of fork that closes an endpoint then: no message of the parent takes that receive"),
};

const struct section message_shared_section = SECTION("shared receive contexts", tests);
