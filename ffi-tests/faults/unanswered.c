/* Connection requests that the application reads and neither accepts nor rejects: their resources are
 * released when the endpoint or the passive endpoint that they belong to is closed, or when the peer
 * leaves. */
#include "raw.h"

#include <unistd.h>

#define REQUESTS 40

static const struct grant usual = {.ring = 32768, .receives = 4};

/* A listener, and peers that wait for its reply. */
struct queue {
    struct bystander bystander;
    struct side listener;
    /* Descriptors that are open besides those of the peers and of their requests. */
    size_t descriptors;
    int peers[REQUESTS];
    struct event requests[REQUESTS];
};

/* Connects one more peer. The application reads its request. */
static int ask(struct side *listener, struct event *request)
{
    static struct raw raw;

    raw_ask(&raw, fid_port(&listener->pep->fid), &usual);
    *request = await_event(listener->eq, FI_CONNREQ);
    return raw.fd;
}

static void queue_open(struct queue *queue)
{
    bystander_open(&queue->bystander);
    side_listen(&queue->listener, IPV4, NULL);
    queue->descriptors = open_descriptors();
    for (unsigned i = 0; i < REQUESTS; i++)
        queue->peers[i] = ask(&queue->listener, &queue->requests[i]);
    CHECK_INT(open_descriptors(), queue->descriptors + 2 * REQUESTS);
}

static void queue_free_infos(struct queue *queue)
{
    for (unsigned i = 0; i < REQUESTS; i++)
        fi_freeinfo(queue->requests[i].info);
}

static void queue_leave(struct queue *queue)
{
    for (unsigned i = 0; i < REQUESTS; i++)
        CHECK_SYS(close(queue->peers[i]));
}

/* Checks that every peer gets the end at once. */
static void queue_is_told(struct queue *queue)
{
    for (unsigned i = 0; i < REQUESTS; i++)
        CHECK_INT(tcp_read_to_end(queue->peers[i], NULL, 0, SOON_MS), 0);
}

static void queue_close(struct queue *queue)
{
    side_close(&queue->listener);
    bystander_held(&queue->bystander);
    bystander_close(&queue->bystander);
}

static void endpoints_closed(void)
{
    struct queue queue;

    queue_open(&queue);
    for (unsigned i = 0; i < REQUESTS; i++) {
        struct side server;

        side_for_request(&queue.listener, &server, &queue.requests[i]);
        side_close(&server);
    }
    CHECK_INT(open_descriptors(), queue.descriptors + REQUESTS);
    queue_is_told(&queue);
    queue_leave(&queue);
    queue_close(&queue);
}

/* Closing the passive endpoint alone leaves them, because the application might still accept them. */
static void fabric_closed(void)
{
    struct queue queue;

    queue_open(&queue);
    queue_free_infos(&queue);
    close_fid(&queue.listener.pep->fid);
    queue.listener.pep = NULL;
    CHECK_AT_LEAST(open_descriptors(), queue.descriptors + REQUESTS);
    side_close(&queue.listener);
    CHECK_BETWEEN(open_descriptors(), 0, queue.descriptors + REQUESTS);
    queue_is_told(&queue);
    queue_leave(&queue);
    queue_close(&queue);
}

/* A request with an endpoint belongs to that endpoint: it can be accepted after the passive endpoint is
 * closed. */
static void listener_closed_before_accept(void)
{
    static struct raw raw;
    struct bystander bystander;
    struct side listener, server;
    struct event request;

    bystander_open(&bystander);
    side_listen(&listener, IPV4, NULL);
    raw_ask(&raw, fid_port(&listener.pep->fid), &usual);
    request = await_event(listener.eq, FI_CONNREQ);
    side_for_request(&listener, &server, &request);
    close_fid(&listener.pep->fid);
    listener.pep = NULL;
    CHECK_OK(fi_accept(server.ep, NULL, 0));
    await_event(listener.eq, FI_CONNECTED);
    side_close(&server);
    CHECK_AT_LEAST(tcp_read_to_end(raw.fd, NULL, 0, SOON_MS), 0);
    CHECK_SYS(close(raw.fd));
    side_close(&listener);
    bystander_held(&bystander);
    bystander_close(&bystander);
}

static void peers_gone(void)
{
    struct queue queue;
    struct side server;
    struct event request;
    int peer;

    queue_open(&queue);
    queue_leave(&queue);
    AWAIT(SOON_MS, open_descriptors() == queue.descriptors);
    /* Accepting and rejecting a request whose peer left succeeds, and an accepted endpoint gets an error
     * event. */
    for (unsigned i = 0; i < REQUESTS; i++) {
        if (i % 2) {
            CHECK_OK(fi_reject(queue.listener.pep, queue.requests[i].info->handle, NULL, 0));
            fi_freeinfo(queue.requests[i].info);
            continue;
        }
        accept_request(&queue.listener, &server, &queue.requests[i], NULL, 0);
        CHECK(readable(wait_fd(&server.eq->fid), SOON_MS));
        CHECK_INT(await_error(server.eq, NULL, 0).err, FI_ECONNRESET);
        side_close(&server);
    }
    peer = ask(&queue.listener, &request);
    accept_request(&queue.listener, &server, &request, NULL, 0);
    await_event(server.eq, FI_CONNECTED);
    CHECK_SYS(close(peer));
    side_close(&server);
    queue_close(&queue);
}

/* A peer that sends a request and leaves, repeatedly, while the application answers none. Returns the
 * bytes in use on the heap. */
static size_t come_and_go(struct side *listener, size_t descriptors)
{
    for (unsigned i = 0; i < 3000; i++) {
        struct event request;

        CHECK_SYS(close(ask(listener, &request)));
        fi_freeinfo(request.info);
    }
    AWAIT(SOON_MS, open_descriptors() == descriptors);
    return heap_in_use();
}

static void peers_come_and_go(void)
{
    struct bystander bystander;
    struct side listener;
    size_t first, second;

    bystander_open(&bystander);
    side_listen(&listener, IPV4, NULL);
    first = come_and_go(&listener, open_descriptors());
    second = come_and_go(&listener, open_descriptors());
    printf("6000 requests that nobody answered: %zu KiB, %zu KiB after half of them\n",
           (second - bystander.heap) / 1024, (first - bystander.heap) / 1024);
    CHECK_BETWEEN(second, 0, bystander.heap + (2 << 20));
    CHECK_BETWEEN(second, 0, first + (1 << 17));
    side_close(&listener);
    bystander_held(&bystander);
    bystander_close(&bystander);
}

static const struct test tests[] = {
    TEST(endpoints_closed, "closing an endpoint that did not accept its request gives the request up"),
    TEST(fabric_closed, "closing the fabric gives up requests that were read and not answered"),
    TEST(listener_closed_before_accept, "but not those for which there is an endpoint"),
    TEST(peers_gone, "a request whose peer has gone holds no descriptor; accepting it is one error entry"),
    TEST(peers_come_and_go, "6000 peers that leave before an answer: descriptors and memory stay bounded"),
};

const struct section unanswered_section = SECTION("unanswered", tests);
