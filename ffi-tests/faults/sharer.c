#include "sharer.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/un.h>
#include <unistd.h>

#include "../iwarp_wire.h"

/* ---- docs/protocol.md: connection data ------------------------------------------------------ */

#define ADDRESS 1
#define KEY 9
#define RING 17
#define RECEIVES 21
#define VERSION 23
#define EXTENSION 25
#define FEATURES 26
#define USER_LENGTH 30
/* Offset of the rendezvous's length if there is no user data; offset of the rendezvous. */
#define MET 31
#define RENDEZVOUS 32
#define END_OF_STREAM 1
#define SHARED_MEMORY 4
/* IRD and ORD of 1, and peer-to-peer mode with a write of no bytes (RFC 6581). */
#define PEER_TO_PEER 0x80018001u

/* Control words: data, and the end of the stream. */
#define WORD_DATA (1u << 31)
#define WORD_END (1u << 29)

/* The number of receives in the own connection data. */
#define OWN_RECEIVES 2000

/* ---- docs/shared-memory.md ------------------------------------------------------------------- */

#define NAME 8
#define SECRET 16
#define ENDPOINT 18
#define RENDEZVOUS_LENGTH (NAME + SECRET)
#define HELLO (SECRET + 2 * ENDPOINT)
/* Calls that move data before memory is shared. */
#define CALLS 8

#define PART ((size_t)4 << 10)
/* A segment of huge pages has a whole number of them, and the second ring starts at a huge page. */
#define HUGE_PAGE ((size_t)2 << 20)
/* Control of the ring that this side writes, and of the other. */
#define OUTPUT 0
#define INPUT 512
/* Offsets in it. */
#define WRITTEN 0
#define BASE 16
#define READ 128
#define MAPPED 136
#define READER_WAITS 256
#define ASLEEP 1

static size_t parts(size_t bytes)
{
    return (bytes + PART - 1) / PART * PART;
}

/* The connection data of a side with a ring of this size that comes to a rendezvous, or names one. */
static size_t offer(uint8_t *data, uint32_t ring, const uint8_t *rendezvous)
{
    size_t length = RENDEZVOUS + (rendezvous ? RENDEZVOUS_LENGTH : 0);

    memset(data, 0, RENDEZVOUS);
    data[0] = (uint8_t)(length - 1);
    put_be(data + KEY, 0x1234, 8);
    put_be(data + RING, ring, 4);
    put_be(data + RECEIVES, OWN_RECEIVES, 2);
    data[VERSION] = 2;
    data[EXTENSION] = 1;
    put_be(data + FEATURES, END_OF_STREAM | SHARED_MEMORY, 4);
    if (rendezvous) {
        data[MET] = RENDEZVOUS_LENGTH;
        memcpy(data + RENDEZVOUS, rendezvous, RENDEZVOUS_LENGTH);
    }
    return length;
}

static socklen_t socket_name(struct sockaddr_un *address, const uint8_t *name)
{
    char text[sizeof address->sun_path];
    int length = snprintf(text, sizeof text, "rstream-3-%016llx", (unsigned long long)get_be(name, NAME));

    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    memcpy(address->sun_path + 1, text, (size_t)length);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

/* Writes an address of the TCP connection in the format of the hello. */
static void put_address(uint8_t *at, int fd, int (*name)(int, struct sockaddr *, socklen_t *))
{
    struct sockaddr_in address;
    socklen_t length = sizeof address;

    CHECK_SYS(name(fd, (struct sockaddr *)&address, &length));
    memset(at, 0, 10);
    memset(at + 10, 0xff, 2);
    memcpy(at + 12, &address.sin_addr, 4);
    memcpy(at + 16, &address.sin_port, 2);
}

/* Sends the hello with these descriptors. */
static void say_hello(int socket, const uint8_t *hello, const int *descriptors, size_t count)
{
    struct iovec bytes = {(void *)hello, HELLO};
    union {
        struct cmsghdr header;
        uint8_t space[CMSG_SPACE(3 * sizeof(int))];
    } control = {.header = {CMSG_LEN(count * sizeof(int)), SOL_SOCKET, SCM_RIGHTS}};
    struct msghdr message = {.msg_iov = &bytes, .msg_iovlen = 1};

    if (count > 0) {
        memcpy(CMSG_DATA(&control.header), descriptors, count * sizeof(int));
        message.msg_control = &control;
        message.msg_controllen = CMSG_SPACE(count * sizeof(int));
    }
    CHECK_INT(CHECK_SYS(sendmsg(socket, &message, MSG_NOSIGNAL)), HELLO);
}

/* A file of `size` bytes without a name. */
static int memory_file(size_t size, unsigned flags)
{
    int file = memfd_create("sharer", MFD_ALLOW_SEALING | flags);

    if (file >= 0)
        CHECK_SYS(ftruncate(file, (off_t)size));
    return file;
}

static int sealed(int file)
{
    if (file >= 0)
        CHECK_SYS(fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL));
    return file;
}

/* Makes the file for a segment of `size` bytes. Returns -1 if this system does not support the kind. */
static int make(enum gift gift, size_t size)
{
    int ends[2];

    switch (gift) {
    case SHORT_SEGMENT:
        return sealed(memory_file(size - PART, 0));
    case UNSEALED:
        return memory_file(size, 0);
    case HUGE_PAGES:
        return sealed(memory_file(size, MFD_HUGETLB));
    case PIPE:
        CHECK_SYS(pipe(ends));
        close(ends[0]);
        return ends[1];
    case EVENTFD:
        return eventfd(0, 0);
    case PROC_FILE:
        return open("/proc/self/maps", O_RDONLY);
    case SOCKET:
        CHECK_SYS(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
        close(ends[0]);
        return ends[1];
    default:
        return sealed(memory_file(size, 0));
    }
}

/* Connects to the rendezvous of the endpoint that sent the connection request. */
static void come(struct sharer *sharer, enum gift gift, const uint8_t *rendezvous)
{
    uint8_t hello[HELLO];
    struct sockaddr_un address;
    socklen_t length = socket_name(&address, rendezvous);
    int descriptors[3];
    size_t count = gift == NOTHING ? 0 : gift == MANY ? 3 : 1;

    sharer->size = PART + parts(sharer->victims_ring) + parts(sharer->ring);
    descriptors[0] = make(gift, sharer->size);
    descriptors[1] = descriptors[2] = descriptors[0];
    sharer->notifier = (int)CHECK_SYS(socket(AF_UNIX, SOCK_SEQPACKET, 0));
    CHECK_SYS(connect(sharer->notifier, (struct sockaddr *)&address, length));
    memcpy(hello, rendezvous + NAME, SECRET);
    put_address(hello + SECRET, sharer->tcp, getpeername);
    put_address(hello + SECRET + ENDPOINT, sharer->tcp, getsockname);
    /* Without the descriptor nothing is passed, and no memory is shared. */
    if (descriptors[0] >= 0)
        say_hello(sharer->notifier, hello, descriptors, count);
    if (gift == SEGMENT) {
        sharer->segment = mmap(NULL, sharer->size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptors[0], 0);
        CHECK(sharer->segment != MAP_FAILED);
        /* The other side may write to its ring. */
        __atomic_store_n((uint32_t *)(sharer->segment + INPUT + MAPPED), 1, __ATOMIC_RELEASE);
    }
    if (descriptors[0] >= 0)
        close(descriptors[0]);
}

bool sharer_open(struct sharer *sharer, enum gift gift)
{
    const struct settings settings = {.recv_ring = gift == HUGE_PAGES ? HUGE_PAGE - PART : 32768};
    uint8_t frame[MPA_HEADER + 512], data[RENDEZVOUS], rendezvous[RENDEZVOUS_LENGTH];
    const uint8_t *theirs;
    unsigned port;
    int listener = tcp_listen(&port);
    size_t length;

    memset(sharer, 0, sizeof *sharer);
    sharer->victims_ring = (uint32_t)settings.recv_ring;
    sharer->ring = gift == HUGE_PAGES ? HUGE_PAGE : 32768;
    side_active(&sharer->victim, IPV4, port, &settings);
    CHECK_OK(fi_connect(sharer->victim.ep, sharer->victim.info->dest_addr, NULL, 0));
    sharer->tcp = tcp_accept(listener);
    CHECK_SYS(close(listener));
    mpa_read(sharer->tcp, frame, sizeof frame);
    theirs = mpa_data(frame, &length);
    CHECK_INT(length, RENDEZVOUS + RENDEZVOUS_LENGTH);
    CHECK_INT(theirs[MET], RENDEZVOUS_LENGTH);
    sharer->address = get_be(theirs + ADDRESS, 8);
    sharer->stag = (uint32_t)get_be(theirs + KEY, 8);
    memcpy(rendezvous, theirs + RENDEZVOUS, sizeof rendezvous);
    length = mpa_frame(frame, MPA_REPLY, 2, PEER_TO_PEER, data, offer(data, sharer->ring, NULL));
    CHECK_INT(CHECK_SYS(send(sharer->tcp, frame, length, MSG_NOSIGNAL)), length);
    await_event(sharer->victim.eq, FI_CONNECTED);
    for (unsigned call = 0; call < CALLS; call++)
        CHECK_RET(send_once(sharer->victim.ep, "x", 1), 1);
    come(sharer, gift, rendezvous);
    CHECK_RET(send_once(sharer->victim.ep, "x", 1), 1);
    return sharer->segment && __atomic_load_n((uint32_t *)(sharer->segment + MAPPED), __ATOMIC_ACQUIRE) != 0;
}

void sharer_close(struct sharer *sharer)
{
    if (sharer->notifier >= 0)
        close(sharer->notifier);
    close(sharer->tcp);
    side_close(&sharer->victim);
    if (sharer->segment)
        CHECK_SYS(munmap(sharer->segment, sharer->size));
}

/* ---- the queue pair ---------------------------------------------------------------------------- */

static void send_word(struct sharer *sharer, uint32_t word)
{
    uint8_t bytes[sizeof word];

    /* Words are little-endian. */
    for (unsigned i = 0; i < sizeof word; i++)
        bytes[i] = (uint8_t)(word >> 8 * i);
    wire_send(sharer->tcp, ++sharer->messages, bytes, sizeof bytes);
}

void sharer_send(struct sharer *sharer, uint32_t length)
{
    CHECK(sharer->sent + length <= sharer->victims_ring);
    wire_write(sharer->tcp, sharer->stag, sharer->address + sharer->sent, pattern(sharer->sent, length),
               length);
    sharer->sent += length;
    send_word(sharer, WORD_DATA | length);
}

void sharer_end(struct sharer *sharer)
{
    send_word(sharer, WORD_END);
}

/* ---- the rings ------------------------------------------------------------------------------- */

void sharer_write(struct sharer *sharer, size_t length)
{
    uint64_t at = sharer->bytes % sharer->victims_ring;

    CHECK(at + length <= sharer->victims_ring);
    memcpy(sharer->segment + PART + at, pattern(sharer->bytes, length), length);
    sharer->bytes += length;
    sharer_set_written(sharer, sharer->bytes);
}

void sharer_set_written(struct sharer *sharer, uint64_t bytes)
{
    __atomic_store_n((uint64_t *)(sharer->segment + OUTPUT + WRITTEN), bytes, __ATOMIC_RELEASE);
}

void sharer_set_base(struct sharer *sharer, uint64_t bytes)
{
    __atomic_store_n((uint64_t *)(sharer->segment + OUTPUT + BASE), bytes, __ATOMIC_RELEASE);
}

bool sharer_must_notify(struct sharer *sharer)
{
    uint32_t *word = (uint32_t *)(sharer->segment + OUTPUT + READER_WAITS);

    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    return __atomic_exchange_n(word, 0, __ATOMIC_ACQ_REL) == ASLEEP;
}

bool sharer_notify(struct sharer *sharer)
{
    return send(sharer->notifier, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL) == 1;
}

void sharer_sleep(struct sharer *sharer)
{
    __atomic_store_n((uint32_t *)(sharer->segment + INPUT + READER_WAITS), ASLEEP, __ATOMIC_SEQ_CST);
}

void sharer_read(struct sharer *sharer, uint64_t bytes)
{
    __atomic_store_n((uint64_t *)(sharer->segment + INPUT + READ), bytes, __ATOMIC_RELEASE);
}

/* ---- the side that names the rendezvous -------------------------------------------------------- */

bool sharer_name(struct meeting *meeting, uint32_t ring)
{
    uint8_t frame[MPA_HEADER + 512], data[RENDEZVOUS + RENDEZVOUS_LENGTH], rendezvous[RENDEZVOUS_LENGTH] = {0};
    int tcp = tcp_connect(fid_port(&meeting->listener.pep->fid));
    int listener = (int)CHECK_SYS(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0)), visitor;
    struct sockaddr_un address;
    uint8_t hello[HELLO];
    bool came;
    size_t length;

    put_be(rendezvous, (uint64_t)now_us(), NAME);
    CHECK_SYS(bind(listener, (struct sockaddr *)&address, socket_name(&address, rendezvous)));
    CHECK_SYS(listen(listener, 1));
    length = mpa_frame(frame, MPA_REQUEST, 2, PEER_TO_PEER, data, offer(data, ring, rendezvous));
    CHECK_INT(CHECK_SYS(send(tcp, frame, length, MSG_NOSIGNAL)), length);
    wire_write(tcp, 0, 0, NULL, 0);
    AWAIT(PATIENCE_MS, (meeting_events(meeting), meeting->server_up));
    for (unsigned call = 0; call < CALLS; call++)
        CHECK_RET(send_once(meeting->server.ep, "x", 1), 1);
    visitor = (int)CHECK_SYS(accept(listener, NULL, NULL));
    came = recv(visitor, hello, sizeof hello, MSG_DONTWAIT) == (ssize_t)sizeof hello;
    close(visitor);
    close(listener);
    close(tcp);
    return came;
}
