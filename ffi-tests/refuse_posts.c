/*
 * To be preloaded: RDMA devices refuse requests while the program wants it, as if they had no memory for
 * them. Of a list of requests they take the first half.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include <infiniband/verbs.h>

bool refuse_receives, refuse_sends;

static int (*take_recv)(struct ibv_qp *, struct ibv_recv_wr *, struct ibv_recv_wr **);
static int (*take_send)(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **);

/* The pointer that ends the first half of a list. */
#define MIDDLE(list)                                                                                \
    ({                                                                                              \
        __typeof__(list) *middle_ = &(list);                                                        \
                                                                                                    \
        for (__typeof__(list) at_ = (list); at_ && at_->next; at_ = at_->next->next)                \
            middle_ = &(*middle_)->next;                                                            \
        middle_;                                                                                    \
    })

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *list, struct ibv_recv_wr **bad)
{
    struct ibv_recv_wr **middle = MIDDLE(list), *rest = *middle;
    int refused = 0;

    if (!refuse_receives)
        return take_recv(qp, list, bad);
    *middle = NULL;
    if (list)
        refused = take_recv(qp, list, bad);
    *middle = rest;
    if (refused)
        return refused;
    *bad = rest;
    return ENOMEM;
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *list, struct ibv_send_wr **bad)
{
    struct ibv_send_wr **middle = MIDDLE(list), *rest = *middle;
    int refused = 0;

    if (!refuse_sends)
        return take_send(qp, list, bad);
    *middle = NULL;
    if (list)
        refused = take_send(qp, list, bad);
    *middle = rest;
    if (refused)
        return refused;
    *bad = rest;
    return ENOMEM;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attributes)
{
    static struct ibv_qp *(*create)(struct ibv_pd *, struct ibv_qp_init_attr *);
    struct ibv_context_ops *ops = &pd->context->ops;

    if (!create)
        create = (struct ibv_qp *(*)(struct ibv_pd *, struct ibv_qp_init_attr *))dlsym(RTLD_NEXT, "ibv_create_qp");
    if (ops->post_recv != post_recv) {
        take_recv = ops->post_recv;
        take_send = ops->post_send;
        ops->post_recv = post_recv;
        ops->post_send = post_send;
    }
    return create(pd, attributes);
}

/* Returns this library for libibverbs, so that its functions are found before those of libibverbs. */
void *dlopen(const char *name, int flags)
{
    static void *(*next)(const char *, int);
    Dl_info own;

    if (!next)
        next = (void *(*)(const char *, int))dlsym(RTLD_NEXT, "dlopen");
    if (name && strstr(name, "libibverbs.so") && dladdr((void *)&refuse_receives, &own))
        name = own.dli_fname;
    return next(name, flags);
}
