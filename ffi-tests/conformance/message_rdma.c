/* Contract, section Message endpoints: on RDMA devices, which access memory by themselves. */
#include "board.h"

#include <stdlib.h>
#include <unistd.h>

/* Numbers that the processes send each other. */
#define READY 1

/* ---- what discovery says ------------------------------------------------------------------ */

static struct fi_info *ask(int mr_mode, uint64_t mode, size_t data_size)
{
    struct fi_info *hints = message_hints(&rdma_settings), *info = NULL;

    hints->caps |= FI_RMA;
    hints->domain_attr->mr_mode = mr_mode;
    hints->domain_attr->cq_data_size = data_size;
    hints->mode = mode;
    free(hints->fabric_attr->name);
    hints->fabric_attr->name = strdup("ibv");
    (void)fi_getinfo(TEST_API, IPV4, "0", FI_SOURCE, hints, &info);
    fi_freeinfo(hints);
    return info;
}

static void rdma_requirements(void)
{
    const int all = FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_VIRT_ADDR | FI_MR_PROV_KEY;
    struct fi_info *info = ask(all, FI_RX_CQ_DATA, 4), *hints;

    if (info == NULL)
        skip("this device has no message endpoints");
    CHECK_INT(info->domain_attr->mr_mode, all);
    CHECK_INT(info->domain_attr->cq_data_size, 4);
    CHECK(info->mode == FI_RX_CQ_DATA && info->rx_attr->mode == FI_RX_CQ_DATA);
    CHECK_INT(info->ep_attr->protocol, FI_PROTO_RDMA_CM_IB_RC);
    CHECK((info->caps & FI_RMA_EVENT) == 0);
    fi_freeinfo(info);
    /* Whoever does not do what the device requires gets nothing. */
    for (int bit = FI_MR_LOCAL; bit <= FI_MR_PROV_KEY; bit <<= 1)
        if (all & bit)
            CHECK(ask(all & ~bit, FI_RX_CQ_DATA, 0) == NULL);
    CHECK(ask(all, 0, 1) == NULL);
    info = ask(all, 0, 0);
    CHECK(info != NULL && info->mode == 0 && info->domain_attr->cq_data_size == 0);
    fi_freeinfo(info);
    CHECK(ask(MR_BASIC, 0, 0) == NULL);
    info = ask(MR_BASIC, LOCAL_MR, 0);
    CHECK(info != NULL && info->domain_attr->mr_mode == MR_BASIC && info->mode == LOCAL_MR);
    fi_freeinfo(info);
    /* Without remote access nobody needs a key. */
    hints = message_hints(&rdma_settings);
    hints->domain_attr->mr_mode = FI_MR_LOCAL;
    info = find(IPV4, "0", FI_SOURCE, hints);
    CHECK(is_of_rdma(info) && info->domain_attr->mr_mode == FI_MR_LOCAL);
    fi_freeinfo(info);
    fi_freeinfo(hints);
}

/* Endpoints with long queues, of which a device has few. */
static void rdma_endpoint_count(void)
{
    const struct message_settings large = {.on_rdma = true, .tx_size = 4000, .rx_size = 4000};
    struct fi_info *hints = message_hints(&large), *info = NULL;
    struct side side = {0};
    struct fid_ep **eps;
    size_t count;

    side_open(&side, find(IPV4, "0", FI_SOURCE, hints));
    require_rdma(side.info);
    message_queue(&side, &large);
    count = side.info->domain_attr->ep_cnt;
    CHECK(count > 1);
    hints->domain_attr->ep_cnt = count;
    CHECK_OK(fi_getinfo(TEST_API, IPV4, "0", FI_SOURCE, hints, &info));
    CHECK_INT(info->domain_attr->ep_cnt, count);
    fi_freeinfo(info);
    free(hints->fabric_attr->name);
    hints->fabric_attr->name = strdup(side.info->fabric_attr->name);
    hints->domain_attr->ep_cnt = count + 1;
    CHECK_RET(fi_getinfo(TEST_API, IPV4, "0", FI_SOURCE, hints, &info), -FI_ENODATA);
    fi_freeinfo(hints);
    eps = calloc(count + 1, sizeof *eps);
    CHECK(eps != NULL);
    for (size_t i = 0; i <= count; i++) {
        CHECK_OK(fi_endpoint(side.domain, side.info, &eps[i], NULL));
        CHECK_OK(fi_ep_bind(eps[i], &side.eq->fid, 0));
        CHECK_OK(fi_ep_bind(eps[i], &side.cq->fid, FI_TRANSMIT | FI_RECV));
        CHECK_RET(fi_enable(eps[i]), i < count ? 0 : -FI_ENOSPC);
    }
    /* The last one has room when another is closed. */
    close_fid(&eps[0]->fid);
    check_no_completion(side.cq);
    for (size_t i = 1; i <= count; i++) {
        CHECK_OK(fi_enable(eps[i]));
        close_fid(&eps[i]->fid);
    }
    free(eps);
    side_close(&side);
}

/* ---- messages ----------------------------------------------------------------------------- */

static void rdma_messages(void)
{
    const size_t lengths[] = {0, 1, 64, 256, 257, 4096, LONG, LENGTH - 1};
    struct board board;

    board_open(&board);
    for (unsigned i = 0; i < sizeof lengths / sizeof lengths[0]; i++)
        board_transfer(&board, lengths[i]);
    board_close(&board);
}

static void rdma_vectors(void)
{
    struct board board;
    void *here[3], *there[3];
    struct iovec from[3], to[3];

    board_open(&board);
    for (int i = 0; i < 3; i++) {
        here[i] = fi_mr_desc(board.here_region);
        there[i] = fi_mr_desc(board.there_region);
        from[i] = (struct iovec){board.here + 20000 * i, 1000 + (size_t)i};
        to[i] = (struct iovec){board.there + 10000 * i, 1001};
        memcpy(from[i].iov_base, pattern(i, from[i].iov_len), from[i].iov_len);
    }
    CHECK_OK(fi_recvv(board.pair.server.ep, to, there, 3, FI_ADDR_UNSPEC, CONTEXT(1)));
    CHECK_OK(fi_sendv(board.pair.client.ep, from, here, 3, FI_ADDR_UNSPEC, CONTEXT(2)));
    CHECK_INT(await_done(board.pair.server.cq, 1, RECEIVED).len, 3003);
    (void)await_done(board.pair.client.cq, 2, SENT);
    CHECK_BYTES(board.there, board.here, 1000);
    CHECK_INT(board.there[1000], board.here[20000]);
    CHECK_BYTES(board.there + 10000, board.here + 20001, 1000);
    CHECK_INT(board.there[11000], board.here[40000]);
    CHECK_BYTES(board.there + 20000, board.here + 40001, 1001);
    board_close(&board);
}

/* All receives that the device promises have room before the connection is there. */
static void rdma_early_receives(void)
{
    struct side listener, client, server;
    struct event request;
    struct fid_mr *region;
    uint8_t *memory;
    size_t count;

    message_listen(&listener, &rdma_settings);
    require_rdma(listener.info);
    message_client(&client, &listener, &rdma_settings);
    message_endpoint(&client, &rdma_settings);
    memory = registered(&client, &region);
    count = client.info->rx_attr->size;
    CHECK_BETWEEN(count, 1, LENGTH);
    CHECK_OK(fi_enable(client.ep));
    for (size_t i = 0; i < count; i++)
        CHECK_OK(fi_recv(client.ep, memory + i, 1, fi_mr_desc(region), FI_ADDR_UNSPEC, CONTEXT(i)));
    CHECK_RET(fi_recv(client.ep, memory, 1, fi_mr_desc(region), FI_ADDR_UNSPEC, NULL), -FI_EAGAIN);
    CHECK_OK(fi_connect(client.ep, client.info->dest_addr, NULL, 0));
    request = await_event(listener.eq, FI_CONNREQ);
    message_server(&listener, &server, &request, &rdma_settings);
    message_accept(&client, &server);
    for (size_t i = 0; i < count; i++) {
        AWAIT(PATIENCE_MS, fi_inject(server.ep, pattern(i, 1), 1, FI_ADDR_UNSPEC) == 0);
        CHECK_INT(await_done(client.cq, i, RECEIVED).len, 1);
    }
    CHECK_BYTES(memory, pattern(0, count), count);
    close_endpoint(&client);
    close_fid(&region->fid);
    side_close(&client);
    side_close(&server);
    side_close(&listener);
    free(memory);
}

static void rdma_unregistered(void)
{
    static uint8_t stranger[LONG];
    struct board board;

    board_open(&board);
    CHECK_RET(fi_send(board.pair.client.ep, stranger, LONG, NULL, FI_ADDR_UNSPEC, NULL), -FI_EINVAL);
    CHECK_RET(fi_recv(board.pair.client.ep, stranger, LONG, NULL, FI_ADDR_UNSPEC, NULL), -FI_EINVAL);
    CHECK_RET(fi_read(board.pair.client.ep, stranger, 8, NULL, FI_ADDR_UNSPEC, (uintptr_t)board.there,
                      fi_mr_key(board.there_region), NULL),
              -FI_EINVAL);
    /* What is taken before the call returns needs no registration. */
    memset(stranger, 7, sizeof stranger);
    board_recv(&board, LENGTH, 1);
    CHECK_OK(fi_send(board.pair.client.ep, stranger, board.pair.client.info->tx_attr->inject_size, NULL, FI_ADDR_UNSPEC,
                     CONTEXT(2)));
    CHECK_INT(await_done(board.pair.server.cq, 1, RECEIVED).len, board.pair.client.info->tx_attr->inject_size);
    (void)await_done(board.pair.client.cq, 2, SENT);
    CHECK_BYTES(board.there, stranger, board.pair.client.info->tx_attr->inject_size);
    board_transfer(&board, LONG);
    /* Longer than any message, and a key longer than any. */
    CHECK_RET(fi_send(board.pair.client.ep, board.here, board.pair.client.info->ep_attr->max_msg_size + 1,
                      fi_mr_desc(board.here_region), FI_ADDR_UNSPEC, NULL),
              -FI_EMSGSIZE);
    CHECK_RET(fi_write(board.pair.client.ep, board.here, 8, fi_mr_desc(board.here_region), FI_ADDR_UNSPEC,
                       (uintptr_t)board.there, 1ULL << 32 | fi_mr_key(board.there_region), NULL),
              -FI_EINVAL);
    board_transfer(&board, LONG);
    board_close(&board);
}

static void rdma_data(void)
{
    struct board board;
    struct fi_cq_data_entry entry;

    board_open(&board);
    board_recv(&board, LENGTH, 1);
    CHECK_OK(fi_senddata(board.pair.client.ep, board.here, LONG, fi_mr_desc(board.here_region), 0xfedcba98,
                         FI_ADDR_UNSPEC, CONTEXT(2)));
    entry = await_done(board.pair.server.cq, 1, RECEIVED | FI_REMOTE_CQ_DATA);
    CHECK(entry.len == LONG && entry.data == 0xfedcba98);
    (void)await_done(board.pair.client.cq, 2, SENT);
    CHECK(fi_senddata(board.pair.client.ep, board.here, 1, NULL, 1ULL << 32, FI_ADDR_UNSPEC, NULL) < 0);
    board_transfer(&board, LONG);
    board_close(&board);
}

/* More than the queue has room for, and only the last has a completion. */
static void rdma_injects(void)
{
    enum { COUNT = 2000 };
    struct board board;
    struct fi_cq_data_entry entry;
    unsigned sent = 0, received = 0, posted = 0;

    board_open(&board);
    while (received < COUNT) {
        uint32_t number = sent;

        while (posted < COUNT && posted < received + 100)
            CHECK_OK(fi_recv(board.pair.server.ep, board.there + 8 * (posted++ % 100), 8,
                             fi_mr_desc(board.there_region), FI_ADDR_UNSPEC, NULL));
        if (sent < COUNT && fi_inject(board.pair.client.ep, &number, sizeof number, FI_ADDR_UNSPEC) == 0)
            sent++;
        CHECK_RET(fi_cq_read(board.pair.client.cq, &entry, 1), -FI_EAGAIN);
        if (fi_cq_read(board.pair.server.cq, &entry, 1) == 1) {
            memcpy(&number, board.there + 8 * (received % 100), sizeof number);
            CHECK_INT(number, received);
            received++;
            still_moving();
        }
    }
    board_close(&board);
}

static void rdma_waits_for_receive(void)
{
    struct board board;

    board_open(&board);
    memcpy(board.here, pattern(3, LONG), LONG);
    board_send(&board, LONG, 1);
    for (long long until = now_ms() + 300; now_ms() < until;)
        check_no_completion(board.pair.client.cq);
    board_recv(&board, LENGTH, 2);
    CHECK_INT(await_done(board.pair.server.cq, 2, RECEIVED).len, LONG);
    (void)await_done(board.pair.client.cq, 1, SENT);
    CHECK_BYTES(board.there, pattern(3, LONG), LONG);
    board_close(&board);
}

/* The device has taken the receive, and keeps it. */
static void rdma_cancel(void)
{
    struct board board;

    board_open(&board);
    board_recv(&board, LENGTH, 1);
    CHECK_RET(fi_cancel(&board.pair.server.ep->fid, CONTEXT(1)), -FI_ENOENT);
    CHECK_RET(fi_cancel(&board.pair.server.ep->fid, CONTEXT(2)), -FI_ENOENT);
    check_no_completion(board.pair.server.cq);
    board_send(&board, LONG, 3);
    CHECK_INT(await_done(board.pair.server.cq, 1, RECEIVED).len, LONG);
    (void)await_done(board.pair.client.cq, 3, SENT);
    CHECK_RET(fi_cancel(&board.pair.server.ep->fid, CONTEXT(1)), -FI_ENOENT);
    board_close(&board);
}

/* Also longer than the provider waits for a host that does not answer. */
static void rdma_waits_long(void)
{
    struct board board;

    setenv("FI_RSTREAM_KEEPALIVE_S", "1", 1);
    board_open(&board);
    board_send(&board, LONG, 1);
    for (int64_t until = now_ms() + 4000; now_ms() < until;) {
        check_no_completion(board.pair.client.cq);
        check_no_event(board.pair.client.eq);
        check_no_event(board.pair.server.eq);
        usleep(1000);
    }
    board_recv(&board, LENGTH, 2);
    CHECK_INT(await_done(board.pair.server.cq, 2, RECEIVED).len, LONG);
    (void)await_done(board.pair.client.cq, 1, SENT);
    board_close(&board);
}

static void rdma_too_long(void)
{
    struct fi_cq_err_entry error = {0};
    struct fi_cq_data_entry entry;
    ssize_t got = 0;
    struct board board;

    board_open(&board);
    board_recv(&board, 100, 1);
    board_send(&board, LONG, 2);
    AWAIT(PATIENCE_MS, (got = fi_cq_read(board.pair.server.cq, &entry, 1)) != -FI_EAGAIN);
    CHECK_RET(got, -FI_EAVAIL);
    CHECK_RET(fi_cq_readerr(board.pair.server.cq, &error, 0), 1);
    /* Soft RoCE does not say that the length was the reason. */
    CHECK(error.err == FI_ETRUNC || error.err == FI_EIO);
    CHECK(error.op_context == CONTEXT(1));
    (void)await_failed(board.pair.client.cq, 2, SENT, FI_EIO);
    CHECK(await_event(board.pair.client.eq, FI_SHUTDOWN).fid == &board.pair.client.ep->fid);
    CHECK(await_event(board.pair.server.eq, FI_SHUTDOWN).fid == &board.pair.server.ep->fid);
    board_close(&board);
}

/* ---- remote memory ------------------------------------------------------------------------ */

static void rdma_access(void)
{
    struct board board;
    struct fi_cq_data_entry entry;
    struct fid_ep *ep;
    uint64_t there, key;
    void *desc;

    board_open(&board);
    ep = board.pair.client.ep;
    desc = fi_mr_desc(board.here_region);
    there = (uintptr_t)board.there;
    key = fi_mr_key(board.there_region);
    memcpy(board.here, pattern(5, LONG), LONG);
    CHECK_OK(fi_write(ep, board.here, LONG, desc, FI_ADDR_UNSPEC, there + 10, key, CONTEXT(1)));
    (void)await_done(board.pair.client.cq, 1, WRITTEN);
    memset(board.here, 0, LONG);
    CHECK_OK(fi_read(ep, board.here, LONG, desc, FI_ADDR_UNSPEC, there + 10, key, CONTEXT(2)));
    (void)await_done(board.pair.client.cq, 2, WAS_READ);
    CHECK_BYTES(board.here, pattern(5, LONG), LONG);
    CHECK_INT(board.there[9], 0);
    CHECK_OK(fi_inject_write(ep, "abc", 3, FI_ADDR_UNSPEC, there, key));
    check_no_completion(board.pair.client.cq);
    /* A write with data takes a receive, whose context it reports. */
    board_recv(&board, 0, 3);
    CHECK_OK(fi_writedata(ep, board.here, 100, desc, 0x1234567, FI_ADDR_UNSPEC, there + 20000, key, CONTEXT(4)));
    (void)await_done(board.pair.client.cq, 4, WRITTEN);
    entry = await_done(board.pair.server.cq, 3, REMOTE_WRITTEN);
    CHECK(entry.data == 0x1234567 && entry.len == 100);
    CHECK_BYTES(board.there + 20000, pattern(5, LONG), 100);
    CHECK_BYTES(board.there, "abc", 3);
    CHECK_INT(fi_rx_size_left(board.pair.server.ep), board.pair.server.info->rx_attr->size);
    board_close(&board);
}

static void rdma_wrong_key(void)
{
    struct board board;

    board_open(&board);
    board_recv(&board, LENGTH, 1);
    CHECK_OK(fi_write(board.pair.client.ep, board.here, LONG, fi_mr_desc(board.here_region), FI_ADDR_UNSPEC,
                      (uintptr_t)board.there, fi_mr_key(board.there_region) ^ 0x5a00, CONTEXT(2)));
    (void)await_failed(board.pair.client.cq, 2, WRITTEN, FI_EACCES);
    (void)await_failed(board.pair.server.cq, 1, RECEIVED, FI_ECANCELED);
    CHECK(await_event(board.pair.client.eq, FI_SHUTDOWN).fid == &board.pair.client.ep->fid);
    CHECK(await_event(board.pair.server.eq, FI_SHUTDOWN).fid == &board.pair.server.ep->fid);
    board_close(&board);
}

/* A reader sleeps behind many completions of which nothing is reported. */
static void rdma_sleeps_behind_many(void)
{
    struct message_settings settings = {
        .on_rdma = true, .cq = {.wait_obj = FI_WAIT_FD}, .bind_flags = FI_SELECTIVE_COMPLETION};
    const int limit = 60000;
    struct board board;
    struct fi_cq_data_entry entry;
    struct fi_rma_iov target;
    struct iovec source;
    void *desc;
    int64_t start;

    board_open_with(&board, &settings);
    desc = fi_mr_desc(board.here_region);
    source = (struct iovec){board.here, 8};
    target = (struct fi_rma_iov){(uintptr_t)board.there, 8, fi_mr_key(board.there_region)};
    for (unsigned i = 0; i <= 100; i++) {
        struct fi_msg_rma call = {.msg_iov = &source, .desc = &desc, .iov_count = 1, .rma_iov = &target,
                                  .rma_iov_count = 1, .context = CONTEXT(i)};

        CHECK_OK(fi_writemsg(board.pair.client.ep, &call, i == 100 ? FI_COMPLETION : 0));
    }
    usleep(500000);
    start = now_ms();
    CHECK_RET(fi_cq_sread(board.pair.client.cq, &entry, 1, NULL, limit), 1);
    CHECK(entry.op_context == CONTEXT(100));
    CHECK(now_ms() - start < limit / 2);
    board_close(&board);
}

/* Between fi_trywait and its sleep, the reader finds a message and answers. */
static void rdma_answered_before_sleep(void)
{
    struct message_settings settings = {.on_rdma = true, .cq = {.wait_obj = FI_WAIT_FD}};
    struct board board;
    struct side *server = &board.pair.server;
    struct fid *fids[1];
    int fd;

    board_open_with(&board, &settings);
    fids[0] = &server->cq->fid;
    fd = wait_fd(fids[0]);
    for (unsigned i = 0; i < 5; i++) {
        board_recv(&board, 8, i);
        settle(server, fids, 1);
        board_send(&board, 8, i);
        CHECK(readable(fd, PATIENCE_MS));
        (void)await_done(server->cq, i, RECEIVED);
        CHECK_OK(fi_write(server->ep, board.there, 8, fi_mr_desc(board.there_region), FI_ADDR_UNSPEC,
                          (uintptr_t)board.here, fi_mr_key(board.here_region), CONTEXT(i)));
        CHECK(readable(fd, PATIENCE_MS));
        (void)await_done(server->cq, i, WRITTEN);
        (void)await_done(board.pair.client.cq, i, SENT);
    }
    board_close(&board);
}

/* ---- the end ------------------------------------------------------------------------------ */

static void rdma_close(void)
{
    struct board board;

    board_open(&board);
    board_recv(&board, LENGTH, 1);
    close_endpoint(&board.pair.server);
    (void)await_failed(board.pair.server.cq, 1, RECEIVED, FI_ECANCELED);
    check_no_completion(board.pair.server.cq);
    CHECK(await_event(board.pair.client.eq, FI_SHUTDOWN).fid == &board.pair.client.ep->fid);
    board_close(&board);
}

/* What has arrived is reported as that, although nobody looked before the close. */
static void rdma_close_late(void)
{
    enum { COUNT = 60 };
    struct board board;

    board_open(&board);
    for (unsigned i = 0; i < COUNT; i++)
        board_recv(&board, 8, i);
    for (unsigned i = 0; i < COUNT; i++)
        board_send(&board, 8, i);
    for (unsigned i = 0; i < COUNT; i++)
        (void)await_done(board.pair.client.cq, i, SENT);
    usleep(200000);
    close_endpoint(&board.pair.server);
    for (unsigned i = 0; i < COUNT; i++)
        (void)await_done(board.pair.server.cq, i, RECEIVED);
    check_no_completion(board.pair.server.cq);
    board_close(&board);
}

static void rdma_shutdown(void)
{
    struct board board;

    board_open(&board);
    board_recv(&board, LENGTH, 1);
    board_send(&board, LONG, 2);
    CHECK_OK(fi_shutdown(board.pair.client.ep, 0));
    CHECK_INT(await_done(board.pair.server.cq, 1, RECEIVED).len, LONG);
    CHECK(await_event(board.pair.server.eq, FI_SHUTDOWN).fid == &board.pair.server.ep->fid);
    CHECK(await_event(board.pair.client.eq, FI_SHUTDOWN).fid == &board.pair.client.ep->fid);
    (void)await_done(board.pair.client.cq, 2, SENT);
    board_close(&board);
}

/* ---- the peer's process ------------------------------------------------------------------- */

/* Connects to the port in `argument`, sends a message, and waits to be killed. */
static void victim(struct peer *self, void *argument)
{
    struct side side;
    struct fi_info *hints = message_hints(&rdma_settings);
    char service[16];

    snprintf(service, sizeof service, "%u", *(unsigned *)argument);
    side_open(&side, find(IPV4, service, 0, hints));
    fi_freeinfo(hints);
    message_endpoint(&side, &rdma_settings);
    CHECK_OK(fi_connect(side.ep, side.info->dest_addr, NULL, 0));
    (void)await_event(side.eq, FI_CONNECTED);
    peer_tell(self, READY);
    (void)peer_hear(self);
}

static void rdma_peer_killed(void)
{
    struct side listener, server;
    struct event request;
    struct fid_mr *region;
    struct peer peer;
    unsigned port;
    uint8_t *memory;

    message_listen(&listener, &rdma_settings);
    require_rdma(listener.info);
    port = fid_port(&listener.pep->fid);
    peer_start(&peer, victim, &port);
    request = await_event(listener.eq, FI_CONNREQ);
    memset(&server, 0, sizeof server);
    message_server(&listener, &server, &request, &rdma_settings);
    memory = registered(&server, &region);
    CHECK_OK(fi_enable(server.ep));
    CHECK_OK(fi_recv(server.ep, memory, LENGTH, fi_mr_desc(region), FI_ADDR_UNSPEC, CONTEXT(1)));
    CHECK_OK(fi_accept(server.ep, NULL, 0));
    (void)await_event(server.eq, FI_CONNECTED);
    CHECK_INT(peer_hear(&peer), READY);
    peer_kill(&peer);
    CHECK(await_event(server.eq, FI_SHUTDOWN).fid == &server.ep->fid);
    (void)await_failed(server.cq, 1, RECEIVED, FI_ECANCELED);
    close_endpoint(&server);
    close_fid(&region->fid);
    side_close(&server);
    side_close(&listener);
    free(memory);
}

static const struct test tests[] = {
    TEST(rdma_requirements, "mr_mode LOCAL, ALLOCATED, VIRT_ADDR, PROV_KEY, and FI_RX_CQ_DATA for data"),
    TEST(rdma_endpoint_count, "ep_cnt endpoints have room in a domain; one more: -FI_ENOSPC"),
    TEST(rdma_messages, "messages of every length between registered buffers"),
    TEST(rdma_vectors, "vectors of registered buffers are gathered and scattered"),
    TEST(rdma_early_receives, "rx_attr.size receives have room before fi_connect; one more: -FI_EAGAIN"),
    TEST(rdma_unregistered, "only what is at most inject_size long needs no registration: -FI_EINVAL"),
    TEST(rdma_data, "32 bits of data beside a message"),
    TEST(rdma_injects, "any number of injects without a completion"),
    TEST(rdma_waits_for_receive, "a message waits for its receive"),
    TEST(rdma_cancel, "fi_cancel: -FI_ENOENT, and the receive stays posted"),
    TEST(rdma_waits_long, "also for longer than the keep-alive time"),
    TEST(rdma_too_long, "a message longer than its receive fails on both sides and ends the connection"),
    TEST(rdma_access, "reads and writes; a write with data takes a receive"),
    TEST(rdma_wrong_key, "a wrong key: FI_EACCES, and both sides read FI_SHUTDOWN"),
    TEST(rdma_sleeps_behind_many, "a reader sleeps behind many completions that are not reported, and wakes"),
    TEST(rdma_answered_before_sleep, "who reads and answers between fi_trywait and its sleep is woken by the end of the answer"),
    TEST(rdma_close, "fi_close reports what is outstanding as cancelled"),
    TEST(rdma_close_late, "fi_close reports what has arrived as that"),
    TEST(rdma_shutdown, "fi_shutdown delivers what was sent before"),
    TEST(rdma_peer_killed, "kill -9 of the peer: FI_SHUTDOWN, outstanding receives are cancelled"),
};

const struct section message_rdma_section = SECTION("messages on RDMA devices", tests);
