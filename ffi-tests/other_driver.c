/*
 * To be preloaded: makes the RDMA devices behave as drivers do that the kernel's software devices do not have. The
 * program sets the variables, each before it opens a device.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <infiniband/verbs.h>

/* Requests are refused, as if there were no memory for them. Of a list of requests the first half is taken. */
bool refuse_receives, refuse_sends;
/* Completion queues cannot be resized (bnxt_re of old, hns, qedr, mana, erdma). */
bool refuse_resizing;
/* A send queue has this many bytes at most, of which each entry takes a power of two (mlx5). 0: no limit. */
size_t send_queue_size;
/* A queue pair takes its completions with it that were not polled when it is destroyed (mlx5, mlx4, bnxt_re). There are
 * some, because all are late. */
bool drop_completions;
/* Completion channels opened from now on can be those of a removed device. */
bool removable;
/* The name of the device that is out of the machine, see remove_device. */
static char removed_device[IBV_SYSFS_NAME_MAX];

/* Guards the tables below. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

#define LOCKED(call)                                                                                \
    ({                                                                                              \
        __typeof__(call) locked_answer_;                                                            \
                                                                                                    \
        (void)pthread_mutex_lock(&mutex);                                                           \
        locked_answer_ = (call);                                                                    \
        (void)pthread_mutex_unlock(&mutex);                                                         \
        locked_answer_;                                                                             \
    })

#define NEXT(function)                                                                              \
    ({                                                                                              \
        static __typeof__(&function) next_;                                                         \
                                                                                                    \
        if (!next_)                                                                                 \
            next_ = (__typeof__(&function))dlsym(RTLD_NEXT, #function);                             \
        next_;                                                                                      \
    })

static __typeof__(((struct ibv_context_ops *)0)->post_recv) take_recv;
static __typeof__(((struct ibv_context_ops *)0)->post_send) take_send;
static __typeof__(((struct ibv_context_ops *)0)->poll_cq) take_completions;
static __typeof__(((struct ibv_context_ops *)0)->req_notify_cq) take_request;

static bool is_removed(struct ibv_context *context)
{
    return strcmp(context->device->name, removed_device) == 0;
}

/* ---- requests ------------------------------------------------------------------------------ */

/* Posts a list by `take`; or only its first half, and then refuses. */
#define POST(take, refuses, qp, list, bad)                                                          \
    ({                                                                                              \
        __typeof__(list) *middle_ = &(list), rest_;                                                 \
        int refused_ = 0;                                                                           \
                                                                                                    \
        for (__typeof__(list) at_ = (list); (refuses) && at_ && at_->next; at_ = at_->next->next)   \
            middle_ = &(*middle_)->next;                                                            \
        rest_ = *middle_;                                                                           \
        if (refuses)                                                                                \
            *middle_ = NULL;                                                                        \
        if (list)                                                                                   \
            refused_ = (take)(qp, list, bad);                                                       \
        *middle_ = rest_;                                                                           \
        if ((refuses) && !refused_) {                                                               \
            *(bad) = rest_;                                                                         \
            refused_ = ENOMEM;                                                                      \
        }                                                                                           \
        refused_;                                                                                   \
    })

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *list, struct ibv_recv_wr **bad)
{
    return POST(take_recv, refuse_receives, qp, list, bad);
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *list, struct ibv_send_wr **bad)
{
    return POST(take_send, refuse_sends, qp, list, bad);
}

/* ---- queue pairs --------------------------------------------------------------------------- */

/* The numbers of destroyed queue pairs, whose completions are dropped. */
static uint32_t destroyed[1024];
static size_t destroyed_count;

/* Completions that a program which polls all the time sees LATE_US after the first poll that could have had them. */
#define LATE_US 1000
static struct {
    struct ibv_cq *cq;
    struct ibv_wc work;
    int64_t visible_us;
} late[4096];
static size_t late_count;

static int64_t now_us(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000LL + now.tv_nsec / 1000;
}

static bool is_destroyed(uint32_t number)
{
    for (size_t i = 0; i < destroyed_count; i++)
        if (destroyed[i] == number)
            return true;
    return false;
}

/* How long ago the queue was polled before this poll. */
static int64_t since_poll(struct ibv_cq *cq, int64_t now)
{
    static struct {
        struct ibv_cq *cq;
        int64_t us;
    } polls[64];
    int64_t since;
    size_t at = 0;

    while (at + 1 < sizeof polls / sizeof polls[0] && polls[at].cq && polls[at].cq != cq)
        at++;
    since = now - polls[at].us;
    polls[at].cq = cq;
    polls[at].us = now;
    return since;
}

static int poll_late(struct ibv_cq *cq, int most, struct ibv_wc *out)
{
    const int64_t now = now_us(), late_us = since_poll(cq, now) < LATE_US ? LATE_US : 0;
    size_t kept = 0;
    int count = 0;


    while (late_count < sizeof late / sizeof late[0] && take_completions(cq, 1, &late[late_count].work) == 1) {
        late[late_count].cq = cq;
        late[late_count++].visible_us = now + late_us;
    }
    for (size_t i = 0; i < late_count; i++) {
        if (is_destroyed(late[i].work.qp_num))
            continue;
        if (late[i].cq == cq && count < most && late[i].visible_us <= now)
            out[count++] = late[i].work;
        else
            late[kept++] = late[i];
    }
    late_count = kept;
    return count;
}

static int poll_cq(struct ibv_cq *cq, int most, struct ibv_wc *out)
{
    if (is_removed(cq->context))
        return 0;
    return drop_completions ? LOCKED(poll_late(cq, most, out)) : take_completions(cq, most, out);
}

static int req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
    return is_removed(cq->context) ? EIO : take_request(cq, solicited_only);
}

static size_t power_of_two(size_t least)
{
    size_t power = 1;

    while (power < least)
        power *= 2;
    return power;
}

/* The kernel may use a number again. */
static struct ibv_qp *created(struct ibv_qp *qp)
{
    for (size_t i = 0; i < destroyed_count; i++)
        if (destroyed[i] == qp->qp_num)
            destroyed[i] = destroyed[--destroyed_count];
    return qp;
}

static int destroy(struct ibv_qp *qp)
{
    const uint32_t number = qp->qp_num;
    int failed = NEXT(ibv_destroy_qp)(qp);

    if (!failed && destroyed_count < sizeof destroyed / sizeof destroyed[0])
        destroyed[destroyed_count++] = number;
    return failed;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attributes)
{
    struct ibv_context_ops *ops = &pd->context->ops;
    const size_t entry = power_of_two(192 + attributes->cap.max_inline_data);
    struct ibv_qp *qp;

    if (send_queue_size && power_of_two(attributes->cap.max_send_wr * entry) > send_queue_size) {
        errno = ENOMEM;
        return NULL;
    }
    if (ops->post_recv != post_recv) {
        take_recv = ops->post_recv;
        take_send = ops->post_send;
        take_completions = ops->poll_cq;
        take_request = ops->req_notify_cq;
        ops->post_recv = post_recv;
        ops->post_send = post_send;
        ops->poll_cq = poll_cq;
        ops->req_notify_cq = req_notify_cq;
    }
    qp = NEXT(ibv_create_qp)(pd, attributes);
    return qp && drop_completions ? LOCKED(created(qp)) : qp;
}

int ibv_destroy_qp(struct ibv_qp *qp)
{
    return drop_completions ? LOCKED(destroy(qp)) : NEXT(ibv_destroy_qp)(qp);
}

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attributes, int mask)
{
    return is_removed(qp->context) ? EIO : NEXT(ibv_modify_qp)(qp, attributes, mask);
}

/* ---- completion queues --------------------------------------------------------------------- */

int ibv_resize_cq(struct ibv_cq *cq, int depth)
{
    return refuse_resizing ? EOPNOTSUPP : NEXT(ibv_resize_cq)(cq, depth);
}

/* The channel that can be that of a removed device. Its descriptor is replaced by an epoll descriptor, which has its own
 * one, and something that is readable when the device is removed. */
static struct {
    struct ibv_comp_channel *channel;
    int fd;
} channels[16];

#define CHANNELS (sizeof channels / sizeof channels[0])

static size_t place_of(const struct ibv_comp_channel *channel)
{
    size_t at = 0;

    while (at < CHANNELS && channels[at].channel != channel)
        at++;
    return at;
}

static void add(int epoll, int fd)
{
    struct epoll_event event = {.events = EPOLLIN};

    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event))
        abort();
}

static struct ibv_comp_channel *replace(struct ibv_comp_channel *channel)
{
    const size_t at = place_of(NULL);
    const int epoll = epoll_create1(EPOLL_CLOEXEC);

    if (at == CHANNELS)
        abort();
    add(epoll, channel->fd);
    (void)fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK);
    channels[at].channel = channel;
    channels[at].fd = channel->fd;
    channel->fd = epoll;
    return channel;
}

/* Its own descriptor. */
static int own(const struct ibv_comp_channel *channel)
{
    const size_t at = place_of(channel);

    return at < CHANNELS ? channels[at].fd : channel->fd;
}

static int forget(struct ibv_comp_channel *channel)
{
    const size_t at = place_of(channel);

    if (at < CHANNELS) {
        (void)close(channel->fd);
        channel->fd = channels[at].fd;
        channels[at].channel = NULL;
    }
    return 0;
}

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
    struct ibv_comp_channel *channel = NEXT(ibv_create_comp_channel)(context);

    return channel && removable ? LOCKED(replace(channel)) : channel;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
{
    (void)LOCKED(forget(channel));
    return NEXT(ibv_destroy_comp_channel)(channel);
}

/* Makes a call on a channel with its own descriptor. */
#define WITH_OWN(channel, call)                                                                     \
    ({                                                                                              \
        const int shown_ = (channel)->fd;                                                           \
        __typeof__(call) answer_;                                                                   \
                                                                                                    \
        (channel)->fd = LOCKED(own(channel));                                                       \
        answer_ = (call);                                                                           \
        (channel)->fd = shown_;                                                                     \
        answer_;                                                                                    \
    })

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int depth, void *user, struct ibv_comp_channel *channel,
                             int vector)
{
    if (!channel)
        return NEXT(ibv_create_cq)(context, depth, user, channel, vector);
    return WITH_OWN(channel, NEXT(ibv_create_cq)(context, depth, user, channel, vector));
}

int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **context)
{
    if (is_removed(channel->context)) {
        errno = EIO;
        return -1;
    }
    return WITH_OWN(channel, NEXT(ibv_get_cq_event)(channel, cq, context));
}

int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
    if (is_removed(context)) {
        errno = EIO;
        return -1;
    }
    return NEXT(ibv_get_async_event)(context, event);
}

/* Takes the device of this name out of the machine: it completes nothing any more, and the kernel refuses all but to
 * destroy. Its completion channels are readable without end. */
void remove_device(const char *name)
{
    (void)pthread_mutex_lock(&mutex);
    (void)strncpy(removed_device, name, sizeof removed_device - 1);
    for (size_t i = 0; i < CHANNELS; i++)
        if (channels[i].channel && is_removed(channels[i].channel->context))
            add(channels[i].channel->fd, eventfd(1, 0));
    (void)pthread_mutex_unlock(&mutex);
}

/* Returns this library for libibverbs, so that its functions are found before those of libibverbs. */
void *dlopen(const char *name, int flags)
{
    Dl_info own;

    if (name && strstr(name, "libibverbs.so") && dladdr((void *)&refuse_receives, &own))
        name = own.dli_fname;
    return NEXT(dlopen)(name, flags);
}
