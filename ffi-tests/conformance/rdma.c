/* Contract, section RDMA devices: faults of a device, and that it can be used again afterwards. */
#include "conformance.h"

#include <arpa/inet.h>
#include <stdlib.h>

/* A process that reads the event queue notices a fault of its own device within a second, and of the
 * peer's device within twice the keep-alive time. An emulated machine takes longer. */
#define NOTICED_MS 1500

/* Numbers that the processes send each other. */
#define READY 1

static void use_rdma_device(void)
{
    needs_rdma_device();
    setenv("FI_RSTREAM_KEEPALIVE_S", "1", 1);
}

/* Checks that the side's connection breaks within `ms`. */
static void check_broken(struct side *side, int ms)
{
    struct event event = {0};

    AWAIT(ms, read_event(side->eq, &event));
    CHECK_INT(event.kind, FI_SHUTDOWN);
    CHECK(event.fid == &side->ep->fid);
    CHECK_RET(recv_once(side->ep, &(uint8_t){0}, 1), -FI_ECONNRESET);
    CHECK_RET(send_once(side->ep, "x", 1), -FI_ECONNRESET);
    check_no_event(side->eq);
}

/* Checks that a fault of the server's device breaks both ends. */
static void check_both_broken(struct pair *pair)
{
    check_broken(&pair->server, NOTICED_MS);
    check_broken(&pair->client, 2 * KEEPALIVE_MS + NOTICED_MS);
}

static void check_works(struct pair *pair)
{
    transfer(pair->client.ep, pair->server.ep, 100000);
    transfer(pair->server.ep, pair->client.ep, 100000);
}

/* Checks that the same process can connect on the device. */
static void check_usable(void)
{
    struct pair pair;

    pair_open(&pair, IPV4, NULL);
    check_works(&pair);
    pair_close(&pair);
}

/* Connects, and returns the error of the failed attempt. */
static int failed_attempt(unsigned port)
{
    struct fi_eq_err_entry error;
    struct side client;

    side_active(&client, IPV4, port, NULL);
    CHECK_OK(fi_connect(client.ep, client.info->dest_addr, NULL, 0));
    error = await_error(client.eq, NULL, 0);
    side_close(&client);
    return error.err;
}

/* Soft iWARP and soft RoCE of Linux 6.1 are removed only when every process has closed them, and librdmacm
 * closes them when its process ends. The process that watches the fault therefore ends before the device
 * is added again. */
static void befalls(const char *what, void (*watch)(struct peer *self, void *argument))
{
    struct peer watcher;

    use_rdma_device();
    peer_start(&watcher, watch, NULL);
    CHECK_INT(peer_hear(&watcher), READY);
    fault(what);
    peer_tell(&watcher, READY);
    peer_join(&watcher);
    mend();
    check_usable();
}

/* Reports that everything before the fault is done, and waits for the fault. */
static void await_fault(struct peer *self)
{
    peer_tell(self, READY);
    CHECK_INT(peer_hear(self), READY);
}

/* Opens a connection that works, and checks that the fault breaks it. */
static void open_and_break(struct peer *self, struct pair *pair)
{
    pair_open(pair, IPV4, NULL);
    check_works(pair);
    await_fault(self);
    check_both_broken(pair);
}

static void watch_port(struct peer *self, void *argument)
{
    struct pair pair;

    (void)argument;
    open_and_break(self, &pair);
    CHECK_INT(failed_attempt(fid_port(&pair.listener.pep->fid)), FI_EHOSTUNREACH);
    pair_close(&pair);
}

static void port_down(void)
{
    befalls("down", watch_port);
}

static void port_up_again(void)
{
    struct side listener, client, server;
    struct event request;

    use_rdma_device();
    side_listen(&listener, IPV4, NULL);
    side_active(&client, IPV4, fid_port(&listener.pep->fid), NULL);
    fault("down");
    fault("up");
    CHECK_OK(fi_connect(client.ep, client.info->dest_addr, NULL, 0));
    request = await_event(listener.eq, FI_CONNREQ);
    accept_request(&listener, &server, &request, NULL, 0);
    await_event(client.eq, FI_CONNECTED);
    await_event(server.eq, FI_CONNECTED);
    /* Longer than the interval between two checks of the device. */
    for (int64_t until = now_ms() + NOTICED_MS; now_ms() < until;)
        drive();
    transfer(client.ep, server.ep, 100000);
    side_close(&client);
    side_close(&server);
    side_close(&listener);
    mend();
}

static void watch_device(struct peer *self, void *argument)
{
    struct pair pair;

    (void)argument;
    open_and_break(self, &pair);
    pair_close(&pair);
}

static void device_removed(void)
{
    befalls("remove", watch_device);
}

/* The address of the first device, which the second device can reach. */
static void first_address(char *text, socklen_t size)
{
    struct sockaddr_in address;
    size_t length = sizeof address;
    struct pair pair;

    pair_open(&pair, IPV4, NULL);
    CHECK_OK(fi_getname(&pair.client.ep->fid, &address, &length));
    pair_close(&pair);
    CHECK(inet_ntop(AF_INET, &address.sin_addr, text, size) != NULL);
}

/* Connects from the second device, and gets no reply. */
static void watch_attempt(struct peer *self, void *argument)
{
    struct side listener, client;
    struct event request;
    char first[INET_ADDRSTRLEN];

    (void)argument;
    first_address(first, sizeof first);
    side_listen(&listener, first, NULL);
    side_active(&client, first, fid_port(&listener.pep->fid), NULL);
    CHECK_OK(fi_connect(client.ep, client.info->dest_addr, NULL, 0));
    request = await_event(listener.eq, FI_CONNREQ);
    await_fault(self);
    CHECK_INT(await_error(client.eq, NULL, 0).err, FI_ENODEV);
    fi_freeinfo(request.info);
    side_close(&client);
    side_close(&listener);
}

static void removed_while_connecting(void)
{
    befalls("remove", watch_attempt);
}

/* The test reads only the endpoint, and waits only for its descriptor. */
static void asleep(bool sending)
{
    struct pair pair;
    int64_t lost;
    int fd;

    use_rdma_device();
    pair_open(&pair, IPV4, NULL);
    fd = wait_fd(&pair.client.ep->fid);
    fault("drop");
    lost = now_ms();
    if (sending)
        CHECK_RET(send_once(pair.client.ep, "x", 1), 1);
    while (recv_once(pair.client.ep, &(uint8_t){0}, 1) == -FI_EAGAIN)
        CHECK(readable(fd, 2 * KEEPALIVE_MS + NOTICED_MS));
    CHECK_BETWEEN(now_ms() - lost, 1, 2 * KEEPALIVE_MS + NOTICED_MS);
    CHECK_RET(recv_once(pair.client.ep, &(uint8_t){0}, 1), -FI_ECONNRESET);
    pair_close(&pair);
    mend();
}

static void asleep_idle(void)
{
    asleep(false);
}

static void asleep_sending(void)
{
    asleep(true);
}

/* The device is out of the machine, and completes nothing. The test waits only for the endpoint's descriptor, which its
 * channel, readable without end, must not wake all the time: neither before the end is found nor afterwards. */
static void removed_asleep(void)
{
    enum { MS = 500, MOST_CPU_MS = 100 };
    void (*remove_device)(const char *name) = (void (*)(const char *))other_driver("remove_device");
    struct fi_eq_cm_entry entry;
    struct pair pair;
    uint32_t event;
    int64_t cpu;
    int fd;

    *(bool *)other_driver("removable") = true;
    use_rdma_device();
    pair_open(&pair, IPV4, NULL);
    check_works(&pair);
    fd = wait_fd(&pair.server.ep->fid);
    cpu = cpu_ms();
    remove_device(pair.server.info->domain_attr->name);
    while (recv_once(pair.server.ep, &(uint8_t){0}, 1) == -FI_EAGAIN)
        CHECK(readable(fd, 2 * KEEPALIVE_MS + NOTICED_MS));
    CHECK_RET(recv_once(pair.server.ep, &(uint8_t){0}, 1), -FI_ECONNRESET);
    AWAIT(PATIENCE_MS, fi_eq_read(pair.server.eq, &event, &entry, sizeof entry, 0) > 0);
    CHECK_RET(fi_eq_sread(pair.server.eq, &event, &entry, sizeof entry, MS, 0), -FI_EAGAIN);
    printf("%lld ms of processor time\n", (long long)(cpu_ms() - cpu));
    CHECK_BETWEEN(cpu_ms() - cpu, 0, MOST_CPU_MS);
    pair_close(&pair);
}

/* ---- a device that refuses requests ---------------------------------------------------------- */

/* Checks that at most `sent` bytes arrive before the reset, and that the same process can connect again. */
static void check_lost(struct pair *pair, size_t sent)
{
    size_t received = 0;
    uint8_t byte;
    ssize_t got;

    while ((got = recv_wait(pair->server.ep, &byte, 1)) == 1)
        CHECK_BYTES(&byte, pattern(received++, 1), 1);
    CHECK_RET(got, -FI_ECONNRESET);
    CHECK(received <= sent);
    CHECK_RET(recv_wait(pair->client.ep, &byte, 1), -FI_ECONNRESET);
    pair_close(pair);
    check_usable();
}

static void refused_receives(void)
{
    bool *refuses = other_driver("refuse_receives");
    struct pair pair;
    size_t sent = 0;

    pair_open(&pair, IPV4, NULL);
    *refuses = true;
    /* More messages than the receiving side has receives. */
    for (ssize_t took = 1; sent < 1000 && took == 1; sent += took == 1) {
        AWAIT(PATIENCE_MS, (took = send_once(pair.client.ep, pattern(sent, 1), 1)) != -FI_EAGAIN);
        (void)fi_recvmsg(pair.server.ep, &(struct fi_msg){0}, FI_PEEK);
    }
    *refuses = false;
    check_lost(&pair, sent);
}

static void refused_sends(void)
{
    bool *refuses = other_driver("refuse_sends");
    struct pair pair;

    pair_open(&pair, IPV4, NULL);
    CHECK_RET(send_once(pair.client.ep, pattern(0, 100), 100), 100);
    *refuses = true;
    CHECK_RET(send_once(pair.client.ep, pattern(100, 5000), 5000), -FI_ECONNRESET);
    *refuses = false;
    check_lost(&pair, 100);
}

static void refused_at_first(void)
{
    bool *refuses = other_driver("refuse_receives");
    struct side listener, client;

    side_listen(&listener, IPV4, NULL);
    side_active(&client, IPV4, fid_port(&listener.pep->fid), NULL);
    *refuses = true;
    CHECK_RET(fi_enable(client.ep), -FI_ENOMEM);
    *refuses = false;
    CHECK_OK(fi_enable(client.ep));
    side_close(&client);
    side_close(&listener);
    check_usable();
}

static const struct test tests[] = {
    FAULT_TEST(port_down, "a port that goes down: -FI_ECONNRESET and FI_SHUTDOWN; attempts: FI_EHOSTUNREACH"),
    FAULT_TEST(port_up_again, "a port that came up again is as it was, for what was open meanwhile too"),
    FAULT_TEST(device_removed, "a device that is removed: -FI_ECONNRESET and FI_SHUTDOWN; it can come back"),
    FAULT_TEST(removed_while_connecting, "a device that is removed while connecting: FI_ENODEV"),
    FAULT_TEST(asleep_idle, "a host that vanishes, for one asleep on nothing but the endpoint's descriptor"),
    FAULT_TEST(asleep_sending, "the same with bytes on their way"),
    TEST(removed_asleep, "a device out of the machine, for one asleep on nothing but the endpoint's descriptor"),
    TEST(refused_at_first, "a device without memory for receives: -FI_ENOMEM from fi_enable, which can be called again"),
    TEST(refused_receives, "a device that takes some of the receives and refuses the rest: -FI_ECONNRESET on both sides"),
    TEST(refused_sends, "a device that refuses to send: -FI_ECONNRESET on both sides"),
};

const struct section rdma_section = SECTION("rdma devices", tests);
