/* What checkers of memory take for faults: memory that a cancelled call keeps, and a count without entries. */
#include "sockets_c.h"

#include <pthread.h>

static void *receive_for_ever(void *argument)
{
    char byte;

    rs_recv(*(int *)argument, &byte, 1, 0);
    return NULL;
}

static void a_waiting_thread_is_cancelled(void)
{
    pthread_t thread;
    void *returned;
    int ends[2];

    open_pair(ends);
    CHECK_INT(pthread_create(&thread, NULL, receive_for_ever, &ends[0]), 0);
    sleep_ms(20);
    CHECK_INT(pthread_cancel(thread), 0);
    CHECK_INT(pthread_join(thread, &returned), 0);
    CHECK(returned == PTHREAD_CANCELED);
    send_part(ends[1], 0, 1000);
    receive_part(ends[0], 0, 1000);
    close_pair(ends);
}

static void too_many_entries_are_refused(void)
{
    struct pollfd one = {.events = POLLIN};
    int ends[2];

    open_pair(ends);
    one.fd = ends[0];
    CHECK_ERRNO(rs_poll(&one, (nfds_t)1 << 30, 0), EINVAL);
    close_pair(ends);
}

static const struct test tests[] = {
    TEST(a_waiting_thread_is_cancelled, "a thread that waits is cancelled, and the connection goes on"),
    TEST(too_many_entries_are_refused, "rs_poll refuses more entries than there can be descriptors"),
};

const struct section rs_unchecked = SECTION("unchecked", tests);
