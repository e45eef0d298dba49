/* Contract, section Shared memory: two processes of one host exchange their bytes through shared memory,
 * unless something prevents that. A program sees no difference but the speed. */
#include "conformance.h"

#include <limits.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define BYTES 300000

unsigned shared_mappings(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    unsigned count = 0;

    CHECK(maps != NULL);
    while (fgets(line, sizeof line, maps) != NULL)
        count += strstr(line, "memfd:rstream") != NULL;
    fclose(maps);
    return count;
}

/* Checks that bytes go both ways on a connection that comes to share memory or does not, and that closing
 * unmaps it. */
static void check(const struct settings *settings, bool shares)
{
    struct pair pair;

    pair_open(&pair, IPV4, settings);
    CHECK_INT(shared_mappings(), 0);
    transfer(pair.client.ep, pair.server.ep, BYTES);
    transfer(pair.server.ep, pair.client.ep, BYTES);
    CHECK_INT(shared_mappings() > 0, shares);
    transfer(pair.client.ep, pair.server.ep, BYTES);
    transfer(pair.server.ep, pair.client.ep, BYTES);
    pair_close(&pair);
    CHECK_INT(shared_mappings(), 0);
}

static void is_used(void)
{
    needs_embedded_device();
    CHECK_SYS(setenv("FI_RSTREAM_SHM", "1", 1));
    check(NULL, true);
}

static void is_off(void)
{
    needs_embedded_device();
    CHECK_SYS(setenv("FI_RSTREAM_SHM", "0", 1));
    check(NULL, false);
}

static void not_with_iwarp_words(void)
{
    struct settings iwarp = {.protocol = FI_PROTO_IWARP};

    needs_embedded_device();
    check(&iwarp, false);
}

/* A connection that carries little does without. */
static void short_connections(void)
{
    struct pair pair;

    needs_embedded_device();
    CHECK_SYS(setenv("FI_RSTREAM_SHM", "1", 1));
    pair_open(&pair, IPV4, NULL);
    transfer(pair.client.ep, pair.server.ep, 1000);
    transfer(pair.server.ep, pair.client.ep, 1000);
    CHECK_INT(shared_mappings(), 0);
    pair_close(&pair);
}

static void small_rings(void)
{
    struct settings small = {.recv_ring = 100, .send_ring = 100};

    needs_embedded_device();
    CHECK_SYS(setenv("FI_RSTREAM_SHM", "1", 1));
    check(&small, true);
}

static void few_descriptors(void)
{
    struct rlimit limit = {48, 48};

    needs_embedded_device();
    CHECK_SYS(setrlimit(RLIMIT_NOFILE, &limit));
    check(NULL, false);
}

/* A file longer than RLIMIT_FSIZE would end the process by SIGXFSZ. */
static void file_size_limit(void)
{
    struct rlimit limit, low;

    needs_embedded_device();
    CHECK_SYS(setenv("FI_RSTREAM_SHM", "1", 1));
    CHECK_SYS(getrlimit(RLIMIT_FSIZE, &limit));
    low = (struct rlimit){50 << 10, limit.rlim_max};
    CHECK_SYS(setrlimit(RLIMIT_FSIZE, &low));
    check(NULL, false);
    CHECK_SYS(setrlimit(RLIMIT_FSIZE, &limit));
    check(NULL, true);
}

/* The user id that the system shows for users of another user namespace. */
static uid_t overflow_user(void)
{
    FILE *file = fopen("/proc/sys/kernel/overflowuid", "r");
    unsigned user;

    CHECK(file != NULL);
    CHECK_INT(fscanf(file, "%u", &user), 1);
    fclose(file);
    return user;
}

/* Other than root: the user with the number of the overflow user, who is one where all users have numbers. */
static void become_nobody(void)
{
    CHECK_SYS(setgid(overflow_user()));
    CHECK_SYS(setuid(overflow_user()));
}

/* A user without a number: in a user namespace that knows none. */
static void become_unknown(void)
{
    CHECK_SYS(unshare(CLONE_NEWUSER));
    CHECK_INT(geteuid(), overflow_user());
}

/* Whether this user namespace has a number for each user. */
static bool knows_all_users(void)
{
    FILE *file = fopen("/proc/self/uid_map", "r");
    unsigned inner, outer, count;

    CHECK(file != NULL);
    CHECK_INT(fscanf(file, "%u %u %u", &inner, &outer, &count), 3);
    fclose(file);
    return inner == 0 && outer == 0 && count == UINT_MAX;
}

struct users {
    void (*become_servers)(void), (*become_clients)(void);
    bool share;
};

static void exchange(struct fid_ep *ep, bool first)
{
    for (int i = 0; i < 3; i++) {
        if (first || i > 0)
            send_all(ep, pattern(0, BYTES), BYTES);
        recv_pattern(ep, 0, BYTES);
    }
    if (!first)
        send_all(ep, pattern(0, BYTES), BYTES);
}

static void serve(struct peer *self, void *argument)
{
    const struct users *users = argument;
    struct side listener, server;
    struct event request;

    /* The process may not be able to load libraries afterwards. */
    fi_freeinfo(find_peer(IPV4, 1, NULL));
    users->become_servers();
    side_listen(&listener, IPV4, NULL);
    peer_tell(self, fid_port(&listener.pep->fid));
    request = await_event(listener.eq, FI_CONNREQ);
    accept_request(&listener, &server, &request, NULL, 0);
    await_event(listener.eq, FI_CONNECTED);
    exchange(server.ep, false);
    CHECK_INT(shared_mappings() > 0, users->share);
    peer_tell(self, 0);
    (void)peer_hear(self);
    side_close(&server);
    side_close(&listener);
}

/* A server and a client with these users. */
static void connect_users(struct users users)
{
    struct side client;
    struct peer peer;

    CHECK_SYS(setenv("FI_RSTREAM_SHM", "1", 1));
    peer_start(&peer, serve, &users);
    if (users.become_clients) {
        fi_freeinfo(find_peer(IPV4, 1, NULL));
        users.become_clients();
    }
    side_active(&client, IPV4, (unsigned)peer_hear(&peer), NULL);
    CHECK_OK(fi_connect(client.ep, client.info->dest_addr, NULL, 0));
    await_event(client.eq, FI_CONNECTED);
    exchange(client.ep, true);
    CHECK_INT(shared_mappings() > 0, users.share);
    (void)peer_hear(&peer);
    peer_tell(&peer, 0);
    side_close(&client);
    peer_join(&peer);
}

static void needs_root(void)
{
    needs_embedded_device();
    if (geteuid() != 0)
        skip("only root can become another user");
}

static void other_user(void)
{
    needs_root();
    connect_users((struct users){become_nobody, NULL, false});
}

static void same_user(void)
{
    needs_root();
    if (!knows_all_users())
        skip("this user namespace does not know all users");
    connect_users((struct users){become_nobody, become_nobody, true});
}

static void unknown_users(void)
{
    int status;
    pid_t child;

    needs_embedded_device();
    CHECK((child = fork()) >= 0);
    if (child == 0)
        _exit(unshare(CLONE_NEWUSER) < 0);
    CHECK_INT(waitpid(child, &status, 0), child);
    if (status != 0)
        skip("this machine allows no user namespaces");
    connect_users((struct users){become_unknown, become_unknown, false});
}

static const struct test tests[] = {
    TEST(is_used, "two ends on one host come to share memory, and give it back"),
    TEST(is_off, "FI_RSTREAM_SHM=0: no memory is shared"),
    TEST(not_with_iwarp_words, "FI_PROTO_IWARP: no memory is shared"),
    TEST(short_connections, "connections that carry little share no memory"),
    TEST(small_rings, "rings of any size are shared"),
    TEST(few_descriptors, "a process that has few descriptors left keeps them"),
    TEST(file_size_limit, "a process whose files may not be as long shares no memory"),
    TEST(other_user, "processes of two users share no memory"),
    TEST(same_user, "processes of one user share memory, also of the user nobody"),
    TEST(unknown_users, "processes with the user that stands for any unknown one share no memory"),
};

const struct section sharing_section = SECTION("shared memory", tests);
