/*
 * TCP connections of a C program through shared memory, one by one.
 *
 * A program attaches the connections that it chooses, right after connect or accept, and uses them by the
 * functions here instead of the C library's. When the process at the other end is on the same host and uses
 * rstream too (this library, rstream-run, or the Rust crate rstream-net), the bytes of the connection go
 * through shared memory after some calls. Any other peer is served by TCP and notices nothing.
 *
 * Arguments, units and results are those of the C library's functions with the same name: a count, a
 * descriptor or 0; or -1 with errno. Descriptors that are not attached are handed to the C library: one that is
 * closed is EBADF, one that is no socket is ENOTSOCK, a null pointer is EFAULT. The comments name what differs.
 * Memory that a pointer argument names has to be there, with the length beside it.
 *
 * An attached descriptor
 *   - is sent to, received from, waited for, copied, shut down and closed by the functions here only. The
 *     kernel's socket carries wake-up bytes, which the C library's functions would take for data, and data
 *     that they send resets the connection. After a plain close the number must not be passed to a function
 *     here but rs_attach;
 *   - is the same socket for everything else: getsockname, getpeername, fcntl for its flags, setsockopt by
 *     rs_setsockopt;
 *   - can be put into an epoll set only if rs_epoll_create1 has made the set.
 *
 * Threads: any thread may call any function at any time, also for the same descriptor, as with the C
 * library. A thread that waits in a call may be cancelled, but not while a call takes a connection back to
 * TCP. A signal handler may send and receive; it gets EAGAIN if it has interrupted a call on the same
 * connection.
 *
 * fork: parent and child may both use the connection, and each closes its own descriptor. An epoll set that
 * both use may miss what the other was told. A child of vfork calls nothing here. A descriptor that a new
 * program gets by exec, or another process by SCM_RIGHTS, has to be detached before; rs_sendmsg does that
 * itself.
 *
 * exit closes what is attached. _exit does not: a peer then sees what it sees of a process that was killed.
 *
 * Environment variables and rules are those of rstream_sockets(7). Under rstream-run, rs_attach leaves all
 * connections to rstream-run, and the functions here call the C library's.
 *
 * Generated from src by tools/c-headers; do not edit.
 */


#ifndef RSTREAM_SOCKETS_H
#define RSTREAM_SOCKETS_H

#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Attaches a TCP connection. It must not have carried bytes, so call this right after connect or accept, and
 * before another thread uses the descriptor; connect of a non-blocking socket may still be under way. One that
 * has carried bytes, or that a rule forbids, stays on TCP, as rs_path says. Attaching it again changes nothing.
 *
 * Returns 0; or -1 with EBADF, ENOTSOCK, EPROTONOSUPPORT (no socket of TCP), ENOTCONN (not connected, or
 * listening), ENOMEM, EMFILE.
 */
int rs_attach(int fd);

/**
 * Takes the connection back to TCP, in the middle of its stream, and detaches the descriptor: from now on it is
 * used by the C library's functions. It loses no byte. Epoll sets that have it keep it. It waits for the peer,
 * which has to make a call meanwhile, for 1 s, and for 2 s if the peer has begun to answer.
 *
 * Returns 0; or -1 with EBADF, ENOTSOCK, EINVAL (not attached), EOPNOTSUPP (the peer has not answered, or has
 * more than 64 KiB to read: the descriptor stays attached).
 */
int rs_detach(int fd);

/**
 * How the bytes of an attached connection travel.
 *
 * `text`: gets "shared memory", or the reason why they go by TCP, such as "not yet" or "the peer does not use
 * rstream". `size`: its room in bytes; a longer text is cut, and always ends with a zero. NULL and 0: no text.
 * Returns 1 for shared memory, 0 for TCP; or -1 with EBADF, ENOTSOCK, EINVAL (not attached), EFAULT.
 */
int rs_path(int fd,
            char *text,
            size_t size);

/**
 * close. The peer learns what it learns of a TCP connection: the end, or a reset if bytes were left unread or
 * SO_LINGER asks for one.
 */
int rs_close(int fd);

/**
 * dup. The copy is attached as the descriptor is.
 */
int rs_dup(int fd);

/**
 * shutdown. Once the connection goes through shared memory, SHUT_WR tells the peer there; the kernel's socket
 * stays open in both directions until rs_close.
 */
int rs_shutdown(int fd,
                int how);

/**
 * recv. MSG_PEEK with MSG_WAITALL returns what is there. MSG_OOB is EINVAL through shared memory.
 */
ssize_t rs_recv(int fd, void *buffer, size_t length, int flags);

/**
 * read.
 */
ssize_t rs_read(int fd, void *buffer, size_t length);

/**
 * readv.
 */
ssize_t rs_readv(int fd, const struct iovec *buffers, int count);

/**
 * recvmsg. Nothing comes beside bytes that come through shared memory.
 */
ssize_t rs_recvmsg(int fd, struct msghdr *message, int flags);

/**
 * send. With flags other than MSG_DONTWAIT, MSG_NOSIGNAL, MSG_MORE and MSG_EOR the connection goes back to TCP
 * first, or the call fails with EOPNOTSUPP as rs_detach does.
 */
ssize_t rs_send(int fd,
                const void *buffer,
                size_t length,
                int flags);

/**
 * write.
 */
ssize_t rs_write(int fd, const void *buffer, size_t length);

/**
 * writev.
 */
ssize_t rs_writev(int fd, const struct iovec *buffers, int count);

/**
 * sendmsg, on any socket. Attached descriptors that go with the message (SCM_RIGHTS) go back to TCP first, or the
 * call fails with EOPNOTSUPP as rs_detach does.
 */
ssize_t rs_sendmsg(int fd,
                   const struct msghdr *message,
                   int flags);

/**
 * sendfile, to an attached connection. The bytes of the file are copied.
 */
ssize_t rs_sendfile(int to, int from, off_t *offset, size_t count);

/**
 * poll, for any descriptors, attached or not. `timeout`: in milliseconds; below 0 there is none.
 */
int rs_poll(struct pollfd *fds, nfds_t count, int timeout);

/**
 * ppoll.
 */
int rs_ppoll(struct pollfd *fds,
             nfds_t count,
             const struct timespec *timeout,
             const sigset_t *mask);

/**
 * select. `timeout` gets what is left of it.
 */
int rs_select(int count,
              fd_set *readable,
              fd_set *writable,
              fd_set *other,
              struct timeval *timeout);

/**
 * epoll_create1. The set is for the functions here only, and is closed by rs_close. It takes any descriptors, also
 * before they are attached, and other sets.
 */
int rs_epoll_create1(int flags);

/**
 * epoll_ctl, by level and by edge, with EPOLLONESHOT. EPOLLEXCLUSIVE is not for attached descriptors.
 */
int rs_epoll_ctl(int set,
                 int operation,
                 int fd,
                 struct epoll_event *event);

/**
 * epoll_wait. `timeout`: in milliseconds; below 0 there is none. An edge may be reported once more than the kernel
 * does.
 */
int rs_epoll_wait(int set,
                  struct epoll_event *events,
                  int most,
                  int timeout);

/**
 * epoll_pwait.
 */
int rs_epoll_pwait(int set,
                   struct epoll_event *events,
                   int most,
                   int timeout,
                   const sigset_t *mask);

/**
 * setsockopt. Options that need TCP take the connection back to it (SO_RCVLOWAT above 1, SO_ZEROCOPY,
 * SO_OOBINLINE, SO_TIMESTAMP and its kind, TCP_ULP, TCP_REPAIR, TCP_MD5SIG), or fail with EOPNOTSUPP as
 * rs_detach does.
 */
int rs_setsockopt(int fd,
                  int level,
                  int name,
                  const void *value,
                  socklen_t length);

/**
 * getsockopt. SO_ERROR is also what calls here have found.
 */
int rs_getsockopt(int fd, int level, int name, void *value, socklen_t *length);

/**
 * ioctl. FIONREAD counts the bytes that can be received, in an int.
 */
int rs_ioctl(int fd, unsigned long request, void *argument);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* RSTREAM_SOCKETS_H */
