/* Wrong arguments: every call refuses them, and nothing else happens. */
#include "easy.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

/* One object of each kind, and a handle of each kind that was freed. */
struct objects {
    struct ends ends;
    struct rdma_easy_region *region;
    struct rdma_easy_request *request;
    struct attempt *attempt;
    struct rdma_easy_connection *asking;
};

static void objects_open(struct objects *objects)
{
    ends_open(&objects->ends, NULL);
    objects->region = region_of(objects->ends.domains[0], 64, NULL);
    ends_connect(&objects->ends);
    CHECK_OK(rdma_easy_connection_create(objects->ends.domains[0], NULL, &objects->asking));
    objects->attempt =
        attempt_start(objects->asking, rdma_easy_listener_port(objects->ends.listener), NULL, 0);
    CHECK_OK(rdma_easy_get_request(objects->ends.listener, SOON, &objects->request));
}

/* Calls every function that takes a handle with this one, where its kind is wrong or it is none. */
static void refused_as_domain(void *handle, int error)
{
    struct rdma_easy_connection *connection;
    struct rdma_easy_listener *listener;
    struct rdma_easy_region *region;
    char memory[8];

    CHECK_RET(rdma_easy_close(handle), error);
    CHECK_RET(rdma_easy_fd(handle), error);
    CHECK_RET(rdma_easy_drive(handle), error);
    CHECK_RET(rdma_easy_region_create(handle, 8, 0, &region), error);
    CHECK_RET(rdma_easy_region_register(handle, memory, 8, 0, &region), error);
    CHECK_RET(rdma_easy_connection_create(handle, NULL, &connection), error);
    CHECK_RET(rdma_easy_listen(handle, HOST, 0, 1, &listener), error);
}

static void refused_as_region(struct rdma_easy_connection *connection, void *handle, int error)
{
    struct rdma_easy_piece piece = {handle, 0, 1};
    struct rdma_easy_remote remote = {0, 0, 8};

    CHECK(rdma_easy_region_base(handle) == NULL);
    CHECK_INT(rdma_easy_region_length(handle), 0);
    CHECK_RET(rdma_easy_region_remote(handle, 0, 1, &remote), error);
    CHECK_RET(rdma_easy_region_free(handle), error);
    CHECK_RET(rdma_easy_advertise(connection, handle, 0, 1), error);
    CHECK_RET(rdma_easy_post_receive(connection, &piece, 1, NULL), error);
    CHECK_RET(rdma_easy_post_send(connection, &piece, 1, 0, NULL), error);
    CHECK_RET(rdma_easy_post_write(connection, &piece, 1, &remote, 0, 0, NULL), error);
    CHECK_RET(rdma_easy_post_read(connection, &piece, 1, &remote, 0, 0, NULL), error);
}

static void refused_as_connection(const struct objects *objects, void *handle, int error)
{
    struct rdma_easy_piece piece = {objects->region, 0, 1};
    struct rdma_easy_remote remote = {0, 0, 8};
    struct rdma_easy_completion done;
    char data[8];

    CHECK_RET(rdma_easy_connect(handle, HOST, 1, NULL, 0), error);
    CHECK_RET(rdma_easy_accept(objects->request, handle, NULL, 0), error);
    CHECK_RET(rdma_easy_private_data(handle, data, sizeof data), error);
    CHECK_RET(rdma_easy_disconnect(handle), error);
    CHECK_RET(rdma_easy_await_disconnect(handle, 0), error);
    CHECK_RET(rdma_easy_connection_free(handle), error);
    CHECK_RET(rdma_easy_post_receive(handle, &piece, 1, NULL), error);
    CHECK_RET(rdma_easy_post_send(handle, &piece, 1, 0, NULL), error);
    CHECK_RET(rdma_easy_post_write(handle, &piece, 1, &remote, 0, 0, NULL), error);
    CHECK_RET(rdma_easy_post_read(handle, &piece, 1, &remote, 0, 0, NULL), error);
    CHECK_RET(rdma_easy_await(handle, RDMA_EASY_SENDS, &done, 1, 0), error);
    CHECK_RET(rdma_easy_advertise(handle, objects->region, 0, 1), error);
    CHECK_RET(rdma_easy_expect_advert(handle), error);
    CHECK_RET(rdma_easy_await_advert(handle, 0, &remote), error);
}

static void refused_as_listener(void *handle, int error)
{
    struct rdma_easy_request *request;

    CHECK_RET(rdma_easy_listener_port(handle), error);
    CHECK_RET(rdma_easy_get_request(handle, 0, &request), error);
    CHECK_RET(rdma_easy_listener_free(handle), error);
}

static void refused_as_request(struct rdma_easy_connection *connection, void *handle, int error)
{
    char data[8];

    CHECK_RET(rdma_easy_request_data(handle, data, sizeof data), error);
    CHECK_RET(rdma_easy_accept(handle, connection, NULL, 0), error);
    CHECK_RET(rdma_easy_reject(handle, NULL, 0), error);
}

static void refused_as_anything(const struct objects *objects, void *handle, int error)
{
    refused_as_domain(handle, error);
    refused_as_region(objects->ends.client, handle, error);
    refused_as_connection(objects, handle, error);
    refused_as_listener(handle, error);
    refused_as_request(objects->ends.server, handle, error);
}

/* Everything still works. */
static void objects_close(struct objects *objects)
{
    CHECK_OK(rdma_easy_reject(objects->request, NULL, 0));
    CHECK_RET(attempt_join(objects->attempt), -ECONNREFUSED);
    CHECK_OK(rdma_easy_connection_free(objects->asking));
    post_receive(objects->ends.server, region_of(objects->ends.domains[1], 8, NULL), 0, 8, 1);
    post_send(objects->ends.client, objects->region, 0, 8, 1);
    CHECK_INT(taken(objects->ends.server, RDMA_EASY_RECEIVES, 1, 0), 8);
    ends_close(&objects->ends);
}

static void handles_that_are_none_are_refused(void)
{
    struct objects objects;
    void *pointers[] = {(void *)1000001, (void *)UINTPTR_MAX, (void *)2, &objects, "text", stdout};

    objects_open(&objects);
    refused_as_anything(&objects, NULL, -EINVAL);
    check_text("(NULL)");
    for (size_t i = 0; i < sizeof pointers / sizeof pointers[0]; i++)
        refused_as_anything(&objects, pointers[i], -EBADF);
    check_text("never was one");
    objects_close(&objects);
}

static void handles_of_another_kind_are_refused(void)
{
    struct objects objects;

    objects_open(&objects);
    refused_as_region(objects.ends.client, objects.ends.domains[0], -EBADF);
    check_text("a domain is no region");
    refused_as_connection(&objects, objects.region, -EBADF);
    refused_as_listener(objects.ends.client, -EBADF);
    refused_as_request(objects.ends.server, objects.ends.listener, -EBADF);
    refused_as_domain(objects.request, -EBADF);
    objects_close(&objects);
}

static void freed_handles_are_refused(void)
{
    struct objects objects;
    struct rdma_easy_domain *domain;
    struct rdma_easy_region *region;
    struct rdma_easy_connection *connection;
    struct rdma_easy_listener *listener;

    objects_open(&objects);
    CHECK_OK(rdma_easy_open(NULL, &domain));
    CHECK_OK(rdma_easy_region_create(domain, 8, 0, &region));
    CHECK_OK(rdma_easy_connection_create(domain, NULL, &connection));
    CHECK_OK(rdma_easy_listen(domain, HOST, 0, 1, &listener));
    CHECK_OK(rdma_easy_close(domain));
    refused_as_anything(&objects, domain, -EBADF);
    /* What was made of it lives on. */
    CHECK_AT_LEAST(rdma_easy_listener_port(listener), 1);
    CHECK_OK(rdma_easy_listener_free(listener));
    CHECK_OK(rdma_easy_region_free(region));
    CHECK_OK(rdma_easy_connection_free(connection));
    refused_as_anything(&objects, listener, -EBADF);
    refused_as_anything(&objects, region, -EBADF);
    refused_as_anything(&objects, connection, -EBADF);
    /* New objects do not get their names. */
    for (int i = 0; i < 100; i++) {
        struct rdma_easy_region *other;

        CHECK_OK(rdma_easy_region_create(objects.ends.domains[0], 8, 0, &other));
        CHECK(other != region && (void *)other != (void *)connection);
        CHECK_OK(rdma_easy_region_free(other));
    }
    refused_as_anything(&objects, region, -EBADF);
    objects_close(&objects);
}

static void pointers_are_checked(void)
{
    struct objects objects;
    struct rdma_easy_remote remote = {0, 0, 8};
    struct rdma_easy_completion done;
    struct rdma_easy_piece piece;
    struct rdma_easy_connection *client;
    union {
        void *aligned[2];
        char bytes[2 * sizeof(void *)];
    } place;
    void *crooked = place.bytes + 1;

    objects_open(&objects);
    client = objects.ends.client;
    piece = (struct rdma_easy_piece){objects.region, 0, 1};
    for (int i = 0; i < 2; i++) {
        void *wrong = i ? crooked : NULL;

        CHECK_RET(rdma_easy_open(NULL, wrong), -EINVAL);
        CHECK_RET(rdma_easy_region_create(objects.ends.domains[0], 8, 0, wrong), -EINVAL);
        CHECK_RET(rdma_easy_region_register(objects.ends.domains[0], &place, 8, 0, wrong), -EINVAL);
        CHECK_RET(rdma_easy_region_remote(objects.region, 0, 1, wrong), -EINVAL);
        CHECK_RET(rdma_easy_connection_create(objects.ends.domains[0], NULL, wrong), -EINVAL);
        CHECK_RET(rdma_easy_listen(objects.ends.domains[0], HOST, 0, 1, wrong), -EINVAL);
        CHECK_RET(rdma_easy_get_request(objects.ends.listener, 0, wrong), -EINVAL);
        CHECK_RET(rdma_easy_post_receive(client, wrong, 1, NULL), -EINVAL);
        CHECK_RET(rdma_easy_post_send(client, wrong, 1, 0, NULL), -EINVAL);
        CHECK_RET(rdma_easy_post_write(client, wrong, 1, &remote, 0, 0, NULL), -EINVAL);
        CHECK_RET(rdma_easy_post_write(client, &piece, 1, wrong, 0, 0, NULL), -EINVAL);
        CHECK_RET(rdma_easy_post_read(client, wrong, 1, &remote, 0, 0, NULL), -EINVAL);
        CHECK_RET(rdma_easy_post_read(client, &piece, 1, wrong, 0, 0, NULL), -EINVAL);
        CHECK_RET(rdma_easy_await(client, RDMA_EASY_SENDS, wrong, 1, 0), -EINVAL);
        CHECK_RET(rdma_easy_await_advert(client, 0, wrong), -EINVAL);
    }
    check_text("not aligned");
    CHECK_RET(rdma_easy_connection_create(objects.ends.domains[0], crooked, &client), -EINVAL);
    CHECK_RET(rdma_easy_connect(objects.asking, NULL, 1, NULL, 0), -EINVAL);
    CHECK_RET(rdma_easy_connect(objects.asking, HOST, 1, NULL, 1), -EINVAL);
    CHECK_RET(rdma_easy_connect(objects.asking, HOST, 1, "", SIZE_MAX), -EINVAL);
    CHECK_RET(rdma_easy_listen(objects.ends.domains[0], NULL, 0, 1, &objects.ends.listener), -EINVAL);
    CHECK_RET(rdma_easy_accept(objects.request, objects.ends.server, NULL, 1), -EINVAL);
    CHECK_RET(rdma_easy_reject(objects.request, NULL, 1), -EINVAL);
    CHECK_RET(rdma_easy_request_data(objects.request, NULL, 1), -EINVAL);
    CHECK_RET(rdma_easy_private_data(client, NULL, 1), -EINVAL);
    CHECK_RET(rdma_easy_device_name(0, NULL, 8), -EINVAL);
    CHECK_RET(rdma_easy_device_name(0, NULL, 0), -ENOSPC);

    /* Counts. */
    for (int i = 0; i < 2; i++) {
        size_t count = i ? SIZE_MAX : 0;

        CHECK_RET(rdma_easy_post_receive(client, &piece, count, NULL), -EINVAL);
        CHECK_RET(rdma_easy_post_send(client, &piece, count, 0, NULL), -EINVAL);
        CHECK_RET(rdma_easy_post_write(client, &piece, count, &remote, 0, 0, NULL), -EINVAL);
        CHECK_RET(rdma_easy_post_read(client, &piece, count, &remote, 0, RDMA_EASY_SIGNALED, NULL), -EINVAL);
        CHECK_RET(rdma_easy_await(client, RDMA_EASY_SENDS, &done, count, 0), -EINVAL);
    }
    CHECK_RET(rdma_easy_await(client, 2, &done, 1, 0), -EINVAL);
    check_text("no queue 2");
    objects_close(&objects);
}

static void a_child_cannot_use_its_parents_objects(void)
{
    struct ends ends;
    struct rdma_easy_region *region;
    struct rdma_easy_domain *own;
    int status;
    pid_t child;

    ends_open(&ends, NULL);
    region = region_of(ends.domains[0], 8, NULL);
    ends_connect(&ends);
    child = (pid_t)CHECK_SYS(fork());
    if (child == 0) {
        CHECK_RET(rdma_easy_drive(ends.domains[0]), -EBADF);
        check_text("child");
        CHECK_RET(rdma_easy_connection_free(ends.client), -EBADF);
        CHECK_RET(rdma_easy_region_free(region), -EBADF);
        CHECK_OK(rdma_easy_open(NULL, &own));
        CHECK_OK(rdma_easy_close(own));
        _exit(0);
    }
    CHECK_SYS(waitpid(child, &status, 0));
    CHECK_INT(status, 0);
    /* The parent's still work. */
    post_receive(ends.server, region_of(ends.domains[1], 8, NULL), 0, 8, 1);
    post_send(ends.client, region, 0, 8, 1);
    CHECK_INT(taken(ends.server, RDMA_EASY_RECEIVES, 1, 0), 8);
    ends_close(&ends);
}

static _Atomic int is_forking;

/* Makes and frees objects as long as the process forks. */
static void *use_handles(void *domain)
{
    struct rdma_easy_region *region;

    while (is_forking) {
        CHECK_OK(rdma_easy_region_create(domain, 8, 0, &region));
        CHECK_OK(rdma_easy_region_free(region));
    }
    return NULL;
}

static void a_child_goes_on_whatever_another_thread_did(void)
{
    struct rdma_easy_domain *domain;
    int64_t until = now_ms() + 5000;
    pthread_t thread;
    int status;
    pid_t child;

    CHECK_OK(rdma_easy_open(NULL, &domain));
    is_forking = 1;
    CHECK(pthread_create(&thread, NULL, use_handles, domain) == 0);
    /* Few rounds where a fork takes long. */
    for (int round = 0; round < 300 && now_ms() < until; round++) {
        child = (pid_t)CHECK_SYS(fork());
        if (child == 0) {
            alarm(10);
            CHECK_RET(rdma_easy_drive(domain), -EBADF);
            /* Memory that the other thread was using is lost, which valgrind would count. */
            (void)execl("/bin/true", "true", NULL);
            _exit(1);
        }
        CHECK_SYS(waitpid(child, &status, 0));
        CHECK_INT(status, 0);
    }
    is_forking = 0;
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK_OK(rdma_easy_close(domain));
}

static void errors_have_texts(void)
{
    struct rdma_easy_domain *domain;

    CHECK(strcmp(rdma_easy_last_error(), "") == 0);
    CHECK(strcmp(rdma_easy_strerror(-EBADF), strerror(EBADF)) == 0);
    CHECK(strcmp(rdma_easy_strerror(EBADF), strerror(EBADF)) == 0);
    CHECK(strlen(rdma_easy_strerror(INT32_MIN)) > 0);
    CHECK_RET(rdma_easy_open("none", &domain), -ENODEV);
    check_text("none");
    /* A call that succeeds leaves it. */
    CHECK_OK(rdma_easy_open(NULL, &domain));
    check_text("none");
    CHECK_OK(rdma_easy_close(domain));
}

static const struct test tests[] = {
    TEST(handles_that_are_none_are_refused, "NULL, numbers and pointers to other things are no handles"),
    TEST(handles_of_another_kind_are_refused, "a handle of one kind is none of another kind"),
    TEST(freed_handles_are_refused, "a freed handle is none, whatever was made since"),
    TEST(pointers_are_checked, "NULL, crooked pointers and wrong counts are refused"),
    TEST(a_child_cannot_use_its_parents_objects, "after a fork, the child has to make objects of its own"),
    TEST(a_child_goes_on_whatever_another_thread_did, "a child has no lock that a thread of its parent held"),
    TEST(errors_have_texts, "numbers have texts, and the last failure has its own"),
};

const struct section easy_misuse = SECTION("misuse", tests);
