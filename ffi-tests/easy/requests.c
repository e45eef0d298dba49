/* Sends, receives, writes and reads, and their completions. */
#include "easy.h"

static void messages_land_in_order(void)
{
    struct ends ends;
    struct rdma_easy_region *source, *target;
    struct rdma_easy_completion done[4];

    ends_open(&ends, NULL);
    source = region_of(ends.domains[0], 32, "one two three");
    target = region_of(ends.domains[1], 32, NULL);
    for (intptr_t i = 0; i < 4; i++)
        post_receive(ends.server, target, 8 * (size_t)i, 8, i);
    ends_connect(&ends);
    post_send(ends.client, source, 0, 3, 10);
    post_send(ends.client, source, 4, 3, 11);
    post_send(ends.client, source, 8, 5, 12);
    CHECK_RET(rdma_easy_await(ends.client, RDMA_EASY_SENDS, done, 3, SOON), 3);
    for (int i = 0; i < 3; i++) {
        CHECK_INT((intptr_t)done[i].context, 10 + i);
        CHECK_RET(done[i].error, 0);
    }
    CHECK_INT(taken(ends.server, RDMA_EASY_RECEIVES, 0, 0), 3);
    CHECK_RET(rdma_easy_await(ends.server, RDMA_EASY_RECEIVES, done, 2, SOON), 2);
    CHECK_INT(done[0].length, 3);
    CHECK_INT(done[1].length, 5);
    check_region(target, 0, "one");
    check_region(target, 8, "two");
    check_region(target, 16, "three");

    /* More than there are: those that come in time. */
    CHECK_RET(rdma_easy_await(ends.server, RDMA_EASY_RECEIVES, done, 2, 50), -ETIMEDOUT);
    post_send(ends.client, source, 0, 0, 13);
    CHECK_RET(rdma_easy_await(ends.server, RDMA_EASY_RECEIVES, done, 4, SOON), 1);
    CHECK_INT((intptr_t)done[0].context, 3);
    CHECK_INT(done[0].length, 0);
    CHECK_RET(rdma_easy_await(ends.server, RDMA_EASY_RECEIVES, done, 1, -1), -ENODATA);

    /* The other way. */
    post_receive(ends.client, source, 16, 8, 20);
    post_send(ends.server, target, 16, 5, 21);
    CHECK_INT(taken(ends.client, RDMA_EASY_RECEIVES, 20, 0), 5);
    check_region(source, 16, "three");
    CHECK_INT(taken(ends.server, RDMA_EASY_SENDS, 21, 0), 0);
    ends_close(&ends);
}

static void lists_are_gathered_and_scattered(void)
{
    struct ends ends;
    struct rdma_easy_region *source, *target;
    struct rdma_easy_remote remote;

    ends_open(&ends, NULL);
    source = region_of(ends.domains[0], 32, "abcdefghijklmnop");
    target = region_of(ends.domains[1], 32, NULL);
    {
        const struct rdma_easy_piece into[] = {
            {target, 20, 3}, {target, 0, 0}, {target, 2, 8}, {target, 31, 1},
        };

        CHECK_OK(rdma_easy_post_receive(ends.server, into, 4, NULL));
        CHECK_OK(rdma_easy_post_receive(ends.server, into, 4, NULL));
    }
    ends_connect(&ends);
    {
        const struct rdma_easy_piece from[] = {{source, 12, 4}, {source, 0, 2}, {source, 5, 3}};

        CHECK_OK(rdma_easy_post_send(ends.client, from, 3, 0, NULL));
        CHECK_INT(taken(ends.server, RDMA_EASY_RECEIVES, 0, 0), 9);
        check_region(target, 20, "mno");
        check_region(target, 2, "pabfgh");
        CHECK_BYTES((char *)rdma_easy_region_base(target) + 8, "\0", 1);
        CHECK_OK(rdma_easy_post_send(ends.client, from + 1, 1, 0, NULL));
        CHECK_INT(taken(ends.server, RDMA_EASY_RECEIVES, 0, 0), 2);
        check_region(target, 20, "abo");

        CHECK_OK(rdma_easy_region_remote(target, 8, 24, &remote));
        CHECK_OK(rdma_easy_post_write(ends.client, from, 3, &remote, 1, RDMA_EASY_SIGNALED, (void *)7));
        CHECK_INT(taken(ends.client, RDMA_EASY_SENDS, 7, 0), 0);
    }
    {
        const struct rdma_easy_piece into[] = {{source, 0, 1}, {source, 30, 2}, {source, 20, 6}};
        const struct rdma_easy_piece one = {source, 8, 2};

        CHECK_RET(rdma_easy_post_read(ends.client, into, 3, &remote, 1, 0, NULL), -EINVAL);
        CHECK_OK(rdma_easy_post_read(ends.client, into, 3, &remote, 1, RDMA_EASY_SIGNALED, (void *)8));
        CHECK_OK(rdma_easy_post_read(ends.client, &one, 1, &remote, 2, RDMA_EASY_SIGNALED, (void *)9));
        /* The server has to be driven: its device answers. */
        CHECK_RET(rdma_easy_await_disconnect(ends.server, 100), -ETIMEDOUT);
        CHECK_INT(taken(ends.client, RDMA_EASY_SENDS, 8, 0), 0);
        CHECK_INT(taken(ends.client, RDMA_EASY_SENDS, 9, 0), 0);
    }
    check_region(source, 0, "m");
    check_region(source, 30, "no");
    check_region(source, 20, "pabfgh");
    check_region(source, 8, "no");
    check_region(target, 9, "mnopabfgh");
    ends_close(&ends);
}

static void unsignaled_requests_are_not_reported(void)
{
    struct ends ends;
    struct rdma_easy_region *source, *target;
    struct rdma_easy_completion done;
    struct rdma_easy_remote remote;
    struct rdma_easy_piece piece;

    ends_open(&ends, &(struct rdma_easy_sizes){.sends = 4, .receives = 1});
    source = region_of(ends.domains[0], 8, "written");
    target = region_of(ends.domains[1], 8, NULL);
    post_receive(ends.server, target, 0, 0, 1);
    ends_connect(&ends);
    CHECK_OK(rdma_easy_region_remote(target, 0, 8, &remote));
    piece = (struct rdma_easy_piece){source, 0, 8};
    /* Their places in the queue are free again without being awaited. */
    for (int i = 0; i < 50; i++)
        while (rdma_easy_post_write(ends.client, &piece, 1, &remote, 0, 0, NULL) == -EAGAIN)
            CHECK_AT_LEAST(rdma_easy_drive(ends.domains[0]), 0);
    CHECK_RET(rdma_easy_await(ends.client, RDMA_EASY_SENDS, &done, 1, -1), -ENODATA);
    piece.length = 0;
    while (rdma_easy_post_send(ends.client, &piece, 1, 0, NULL) == -EAGAIN)
        CHECK_AT_LEAST(rdma_easy_drive(ends.domains[0]), 0);
    CHECK_INT(taken(ends.server, RDMA_EASY_RECEIVES, 1, 0), 0);
    check_region(target, 0, "written");
    CHECK_RET(rdma_easy_post_send(ends.client, &piece, 1, 2, NULL), -EINVAL);
    check_text("unknown flags");
    ends_close(&ends);
}

static void full_queues_refuse(void)
{
    struct ends ends;
    struct rdma_easy_region *region;
    struct rdma_easy_piece piece;
    int posted = 0;

    ends_open(&ends, &(struct rdma_easy_sizes){.receives = 3});
    region = region_of(ends.domains[0], 8, NULL);
    piece = (struct rdma_easy_piece){region, 0, 8};
    while (rdma_easy_post_receive(ends.client, &piece, 1, NULL) == 0)
        posted++;
    CHECK_INT(posted, 3);
    check_text("queue of 3 entries");
    CHECK_RET(rdma_easy_expect_advert(ends.client), -EAGAIN);
    ends_close(&ends);
}

static void advertisements_tell_of_memory(void)
{
    struct ends ends;
    struct rdma_easy_region *owned, *local;
    struct rdma_easy_remote remote;
    struct rdma_easy_piece piece;

    ends_open(&ends, NULL);
    owned = region_of(ends.domains[1], 100, NULL);
    local = region_of(ends.domains[0], 100, "by the peer");
    CHECK_OK(rdma_easy_expect_advert(ends.client));
    post_receive(ends.client, local, 50, 16, 1);
    CHECK_OK(rdma_easy_expect_advert(ends.client));
    CHECK_RET(rdma_easy_await_advert(ends.client, 0, &remote), -ENOTCONN);
    ends_connect(&ends);
    CHECK_RET(rdma_easy_await_advert(ends.client, 0, &remote), -ETIMEDOUT);
    CHECK_RET(rdma_easy_advertise(ends.server, owned, 90, 11), -ERANGE);
    CHECK_OK(rdma_easy_advertise(ends.server, owned, 90, 10));
    /* Receives of the program and of advertisements keep the order in which they were posted. */
    post_send(ends.server, owned, 0, 3, 2);
    CHECK_OK(rdma_easy_advertise(ends.server, owned, 0, 100));
    CHECK_OK(rdma_easy_await_advert(ends.client, SOON, &remote));
    CHECK_INT(remote.length, 10);
    CHECK_INT(taken(ends.client, RDMA_EASY_RECEIVES, 1, 0), 3);
    piece = (struct rdma_easy_piece){local, 3, 8};
    CHECK_OK(rdma_easy_post_write(ends.client, &piece, 1, &remote, 2, RDMA_EASY_SIGNALED, NULL));
    CHECK_RET(rdma_easy_post_write(ends.client, &piece, 1, &remote, 3, RDMA_EASY_SIGNALED, NULL), -ERANGE);
    CHECK_OK(rdma_easy_await_advert(ends.client, SOON, &remote));
    CHECK_INT(remote.length, 100);
    CHECK_INT(taken(ends.client, RDMA_EASY_SENDS, 0, 0), 0);
    CHECK_RET(rdma_easy_await_advert(ends.client, SOON, &remote), -ENODATA);
    CHECK_RET(rdma_easy_await_disconnect(ends.server, 50), -ETIMEDOUT);
    check_region(owned, 92, "the peer");

    CHECK_OK(rdma_easy_expect_advert(ends.client));
    post_send(ends.server, owned, 0, 15, 3);
    CHECK_RET(rdma_easy_await_advert(ends.client, SOON, &remote), -EBADMSG);
    ends_close(&ends);
}

static void a_long_message_is_cut_off_with_a_reason(void)
{
    struct ends ends;
    struct rdma_easy_region *source, *target;
    struct rdma_easy_completion done;

    needs_embedded();
    ends_open(&ends, NULL);
    source = region_of(ends.domains[0], 100, NULL);
    target = region_of(ends.domains[1], 100, NULL);
    post_receive(ends.server, target, 0, 50, 1);
    ends_connect(&ends);
    post_send(ends.client, source, 0, 51, 2);
    CHECK_RET(rdma_easy_await(ends.server, RDMA_EASY_RECEIVES, &done, 1, SOON), 1);
    CHECK(done.error == -EMSGSIZE || done.error == -ECANCELED);
    CHECK_RET(rdma_easy_await_disconnect(ends.server, SOON), -EPROTO);
    CHECK_RET(rdma_easy_await_disconnect(ends.client, SOON), -EREMOTEIO);
    check_text("peer terminated");
    ends_close(&ends);
}

static void a_wrong_key_breaks_with_a_reason(void)
{
    struct ends ends;
    struct rdma_easy_region *source, *target;
    struct rdma_easy_remote remote;
    struct rdma_easy_piece piece;

    needs_embedded();
    ends_open(&ends, NULL);
    source = region_of(ends.domains[0], 8, NULL);
    CHECK_OK(rdma_easy_region_create(ends.domains[1], 8, RDMA_EASY_REMOTE_READ, &target));
    ends_connect(&ends);
    CHECK_OK(rdma_easy_region_remote(target, 0, 8, &remote));
    piece = (struct rdma_easy_piece){source, 0, 8};
    /* It has no right to write. */
    CHECK_OK(rdma_easy_post_write(ends.client, &piece, 1, &remote, 0, 0, NULL));
    CHECK_RET(rdma_easy_await_disconnect(ends.server, SOON), -EPROTO);
    CHECK_RET(rdma_easy_await_disconnect(ends.client, SOON), -EREMOTEIO);
    CHECK_RET(rdma_easy_post_write(ends.client, &piece, 1, &remote, 0, 0, NULL), -EREMOTEIO);
    ends_close(&ends);
}

static const struct test tests[] = {
    TEST(messages_land_in_order, "messages land where their receives are, and completions come in order"),
    TEST(lists_are_gathered_and_scattered, "sends, receives, writes and reads have lists of pieces"),
    TEST(unsignaled_requests_are_not_reported, "a request without signal has no completion"),
    TEST(full_queues_refuse, "a full queue refuses with its size"),
    TEST(advertisements_tell_of_memory, "a peer advertises memory, and it is written"),
    TEST(a_long_message_is_cut_off_with_a_reason, "a message longer than its receive breaks the connection"),
    TEST(a_wrong_key_breaks_with_a_reason, "a write without a right breaks the connection"),
};

const struct section easy_requests = SECTION("requests", tests);
