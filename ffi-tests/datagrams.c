/*
 * The reliable datagrams that ofi_rxm makes of message endpoints: two endpoints of a process, a thread each, send each
 * other tagged messages, and write and read each other's memory. The sizes take each of ofi_rxm's ways: inject,
 * one message, several, and a read of the sender's memory. Every byte is compared.
 *
 *   datagrams [ROUNDS]     (200 unless given)
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

#include "common.h"

#define LONGEST ((size_t)1 << 20)
/* For checkers that slow a program down. */
#define LIMIT_MS (6 * PATIENCE_MS)

static const size_t sizes[] = {0, 1, 64, 4000, 16000, 20000, 70000, 131072, 200000, LONGEST};

struct node {
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *av;
    struct fid_cq *cq;
    struct fid_ep *ep;
    struct fid_mr *mr;
    struct node *other;
    fi_addr_t address;
    /* The peer's memory. */
    uint64_t base, key;
    uint8_t *received, *window, *fetched;
    unsigned rounds;
};

/* How many nodes need no answer any more. */
static atomic_int finished;

static struct fi_info *find_datagrams(void)
{
    struct fi_info *hints = fi_allocinfo(), *info;

    CHECK(hints);
    hints->ep_attr->type = FI_EP_RDM;
    hints->caps = FI_MSG | FI_TAGGED | FI_RMA;
    hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->fabric_attr->prov_name = strdup(PROVIDER ";ofi_rxm");
    info = find(ipv4(), NULL, FI_SOURCE, hints);
    fi_freeinfo(hints);
    return info;
}

static void node_open(struct node *node, struct fi_info *info, unsigned rounds)
{
    struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
    struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_TAGGED};

    CHECK_OK(fi_fabric(info->fabric_attr, &node->fabric, NULL));
    CHECK_OK(fi_domain(node->fabric, info, &node->domain, NULL));
    CHECK_OK(fi_av_open(node->domain, &av_attr, &node->av, NULL));
    CHECK_OK(fi_cq_open(node->domain, &cq_attr, &node->cq, NULL));
    CHECK_OK(fi_endpoint(node->domain, info, &node->ep, NULL));
    CHECK_OK(fi_ep_bind(node->ep, &node->av->fid, 0));
    CHECK_OK(fi_ep_bind(node->ep, &node->cq->fid, FI_TRANSMIT | FI_RECV));
    CHECK_OK(fi_enable(node->ep));
    node->received = malloc(LONGEST);
    node->fetched = malloc(LONGEST);
    node->window = calloc(1, LONGEST);
    CHECK(node->received && node->fetched && node->window);
    CHECK_OK(fi_mr_reg(node->domain, node->window, LONGEST, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 1, 0,
                       &node->mr, NULL));
    node->rounds = rounds;
}

static void node_meet(struct node *node, struct node *other, const struct fi_info *info)
{
    struct sockaddr_storage address;
    size_t length = sizeof address;

    node->other = other;
    CHECK_OK(fi_getname(&other->ep->fid, &address, &length));
    CHECK_INT(fi_av_insert(node->av, &address, 1, &node->address, 0, NULL), 1);
    node->key = fi_mr_key(other->mr);
    node->base = info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)other->window : 0;
}

static void node_close(struct node *node)
{
    close_fid(&node->ep->fid);
    close_fid(&node->mr->fid);
    close_fid(&node->cq->fid);
    close_fid(&node->av->fid);
    close_fid(&node->domain->fid);
    close_fid(&node->fabric->fid);
    free(node->received);
    free(node->fetched);
    free(node->window);
}

/* Makes progress. The context of an operation is a flag that says whether it is complete. */
static void progress(struct node *node)
{
    struct fi_cq_tagged_entry entry;
    ssize_t count = fi_cq_read(node->cq, &entry, 1);

    if (count == 1)
        *(bool *)entry.op_context = true;
    else
        CHECK_RET(count, -FI_EAGAIN);
}

static void await_completion(struct node *node, const bool *done)
{
    int64_t until = now_ms() + LIMIT_MS;

    while (!*done) {
        CHECK(now_ms() < until);
        progress(node);
    }
}

/* Posts until the endpoint takes it. */
#define POST(node, call)                                                                            \
    do {                                                                                            \
        ssize_t posted_;                                                                            \
        int64_t until_ = now_ms() + LIMIT_MS;                                                       \
        while ((posted_ = (call)) == -FI_EAGAIN && now_ms() < until_)                               \
            progress(node);                                                                         \
        CHECK_RET(posted_, 0);                                                                      \
    } while (0)

static void exchange(struct node *node, unsigned round, size_t size)
{
    bool sent = false, received = false;
    const uint8_t *bytes = pattern(round, size);

    POST(node, fi_trecv(node->ep, node->received, size, NULL, node->address, round, 0, &received));
    POST(node, fi_tsend(node->ep, bytes, size, NULL, node->address, round, &sent));
    await_completion(node, &received);
    CHECK_BYTES(node->received, bytes, size);
    await_completion(node, &sent);
}

/* Writes to the peer's memory, and reads it back. Only this node writes there. */
static void write_and_read(struct node *node, unsigned round, size_t size)
{
    bool written = false, fetched = false;
    const uint8_t *bytes = pattern(round, size);

    POST(node, fi_write(node->ep, bytes, size, NULL, node->address, node->base, node->key, &written));
    await_completion(node, &written);
    POST(node, fi_read(node->ep, node->fetched, size, NULL, node->address, node->base, node->key, &fetched));
    await_completion(node, &fetched);
    CHECK_BYTES(node->fetched, bytes, size);
}

static void *run(void *argument)
{
    struct node *node = argument;
    unsigned round;

    for (round = 1; round <= node->rounds; round++) {
        size_t size = sizes[round % (sizeof sizes / sizeof *sizes)];
        exchange(node, round, size);
        if (size > 0)
            write_and_read(node, round, size);
    }
    atomic_fetch_add(&finished, 1);
    /* The peer's reads need an answer until it has finished, too. */
    while (atomic_load(&finished) < 2)
        progress(node);
    return NULL;
}

int main(int count, char **arguments)
{
    unsigned rounds = count > 1 ? (unsigned)atoi(arguments[1]) : 200;
    struct fi_info *info = find_datagrams();
    struct node nodes[2] = {0};
    pthread_t threads[2];
    int at;

    /* Made by the first call. */
    (void)pattern(0, 1);
    for (at = 0; at < 2; at++)
        node_open(&nodes[at], info, rounds);
    for (at = 0; at < 2; at++)
        node_meet(&nodes[at], &nodes[1 - at], info);
    for (at = 0; at < 2; at++)
        CHECK_INT(pthread_create(&threads[at], NULL, run, &nodes[at]), 0);
    for (at = 0; at < 2; at++)
        CHECK_INT(pthread_join(threads[at], NULL), 0);
    for (at = 0; at < 2; at++)
        node_close(&nodes[at]);
    fi_freeinfo(info);
    printf("1 passed, 0 failed\n");
    return 0;
}
