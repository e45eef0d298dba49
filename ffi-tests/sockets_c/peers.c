/* Peers of other kinds: under rstream-run, also with attached connections of their own, and without anything. */
#include "sockets_c.h"

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* Another program, which sends back what it receives. */
struct program {
    pid_t pid;
    int fd;
};

/* Starts this program again with `option`, under the program that TEST_RSTREAM_RUN names, if `runs`. */
static struct program start_program(const char *option, bool runs)
{
    const char *runner = getenv("TEST_RSTREAM_RUN");
    struct program program;
    char text[16], own[4096] = {0};
    unsigned port;
    int listener = tcp_listen(&port);

    if (runs && runner == NULL)
        skip("TEST_RSTREAM_RUN does not name rstream-run");
    CHECK_SYS(readlink("/proc/self/exe", own, sizeof own - 1));
    snprintf(text, sizeof text, "%u", port);
    program.pid = (pid_t)CHECK_SYS(fork());
    if (program.pid == 0) {
        if (runs)
            execl(runner, runner, own, option, text, NULL);
        else
            execl(own, own, option, text, NULL);
        _exit(127);
    }
    program.fd = (int)CHECK_SYS(accept(listener, NULL, NULL));
    CHECK_INT(close(listener), 0);
    CHECK_INT(rs_attach(program.fd), 0);
    return program;
}

static void end_program(const struct program *program)
{
    int status;

    CHECK_INT(rs_close(program->fd), 0);
    CHECK_INT(CHECK_SYS(waitpid(program->pid, &status, 0)), program->pid);
    CHECK_INT(status, 0);
}

static void exchange_all_sizes(int fd)
{
    exchange(fd, 0, 1, 50);
    exchange(fd, 50, 10000, 20);
    exchange(fd, 200050, 300000, 5);
}

static void with_a_preloaded_peer(void)
{
    struct program program = start_program("--echo", true);

    exchange_all_sizes(program.fd);
    check_path(program.fd, 1, "shared memory");
    end_program(&program);
}

static void with_a_preloaded_peer_that_attaches(void)
{
    struct program program = start_program("--attached-echo", true);

    exchange_all_sizes(program.fd);
    check_path(program.fd, 1, "shared memory");
    end_program(&program);
}

static void with_a_preloaded_peer_until_detached(void)
{
    struct program program = start_program("--echo", true);
    char byte;

    exchange_all_sizes(program.fd);
    CHECK_INT(rs_detach(program.fd), 0);
    for (int i = 0; i < 20; i++) {
        CHECK_INT(CHECK_SYS(send(program.fd, "x", 1, 0)), 1);
        CHECK_INT(CHECK_SYS(recv(program.fd, &byte, 1, 0)), 1);
    }
    end_program(&program);
}

static void with_a_plain_peer(void)
{
    struct program program = start_program("--echo", false);

    exchange_all_sizes(program.fd);
    check_path(program.fd, 0, "the peer does not use rstream");
    CHECK_INT(polled(program.fd, POLLIN | POLLOUT, -1), POLLOUT);
    CHECK_INT(rs_detach(program.fd), 0);
    end_program(&program);
}

static const struct test tests[] = {
    TEST(with_a_preloaded_peer, "a peer under rstream-run shares memory"),
    TEST(with_a_preloaded_peer_that_attaches, "under rstream-run, attached connections are rstream-run's"),
    TEST(with_a_preloaded_peer_until_detached, "a peer under rstream-run follows back to TCP"),
    TEST(with_a_plain_peer, "a plain peer is served by TCP, and that is said"),
};

const struct section rs_peers = SECTION("peers", tests);
