/* Steps with descriptors and processes. */
#include "transcripts.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- descriptors ----------------------------------------------------------------------------------------- */

static unsigned count_copies(unsigned connection)
{
    unsigned copies = 0;

    while (copies < COPIES && self.fds[connection][copies] >= 0)
        copies++;
    return copies;
}

void do_copy(const struct step *step)
{
    int fd = any_fd(step), copy;

    switch (step->variant % 3) {
    case 0: copy = dup(fd); break;
    case 1: copy = fcntl(fd, F_DUPFD_CLOEXEC, 3); break;
    /* Over a descriptor of something else. */
    default: copy = dup2(fd, open("/dev/null", O_RDWR));
    }
    REQUIRE(copy >= 0);
    self.fds[step->connection][count_copies(step->connection)] = copy;
    note(step, "done");
}

static void drop_copy(unsigned connection, unsigned at)
{
    int *fds = self.fds[connection];

    REQUIRE(close(fds[at]) == 0);
    memmove(fds + at, fds + at + 1, (COPIES - 1 - at) * sizeof *fds);
    fds[COPIES - 1] = -1;
}

void do_drop(const struct step *step)
{
    drop_copy(step->connection, step->variant % count_copies(step->connection));
    note(step, "done");
}

static void leave_sets_and_copies(void)
{
    for (unsigned set = 0; set < SETS; set++) {
        if (self.sets[set] >= 0)
            close(self.sets[set]);
        self.sets[set] = -1;
    }
    for (unsigned at = 0; at < CONNECTIONS; at++)
        while (count_copies(at) > 1)
            drop_copy(at, 1);
}

/* ---- ends ------------------------------------------------------------------------------------------------ */

void do_shut(const struct step *step)
{
    note(step, "%s", returned(shutdown(any_fd(step), SHUT_WR)));
}

/* With bytes unread it resets the connection, and if the application asks for it. */
void do_close(const struct step *step)
{
    unsigned connection = step->connection, copies = count_copies(connection);
    int fds[COPIES];

    if (step->variant / 8 % 8 == 1)
        REQUIRE(setsockopt(any_fd(step), SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger)) == 0);
    memcpy(fds, self.fds[connection], sizeof fds);
    note_close(connection);
    for (unsigned at = 0; at < copies; at++)
        note(step, "%s", returned(close(fds[at])));
}

/* ---- back to TCP ----------------------------------------------------------------------------------------- */

static void by_option(const struct step *step)
{
    int answer = setsockopt(any_fd(step), SOL_SOCKET, SO_RCVLOWAT, &(int){1}, sizeof(int));

    note(step, "option: %s", returned(answer));
}

static void by_message(const struct step *step)
{
    int ends[2], fd = any_fd(step), got = -1;
    char byte = 0, control[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec piece = {&byte, 1};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);

    *header = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    note(step, "message: %s", returned(sendmsg(ends[0], &message, 0)));
    if (recvmsg(ends[1], &message, MSG_DONTWAIT) == 1)
        memcpy(&got, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof got);
    /* What came takes the place of the descriptor that was sent. */
    if (got >= 0)
        REQUIRE(dup2(got, fd) == fd && close(got) == 0);
    close(ends[0]);
    close(ends[1]);
}

static void by_stream(const struct step *step)
{
    FILE *file = fdopen(dup(any_fd(step)), "r+");
    size_t sent = 0;

    note(step, "stream: %s", file ? "open" : returned(-1));
    if (file == NULL)
        return;
    while (sent < step->length && putc(value(step->position + sent), file) != EOF)
        sent++;
    note(step, "written: %zu", sent);
    fclose(file);
}

void do_home(const struct step *step)
{
    if (step->end != self.end) {
        take_turn_busily();
        return;
    }
    if (step->length > 0)
        by_stream(step);
    else if (step->variant % 2)
        by_option(step);
    else
        by_message(step);
    give_turn(0);
}

/* ---- processes ------------------------------------------------------------------------------------------- */

/* Above the descriptors that connections get there. */
enum { HIGH = 10 };

static int move_to(int fd, int copy)
{
    REQUIRE(copy >= 0 && close(fd) == 0);
    return copy;
}

/* Another program takes the place of this one, and goes on with the plan. The connections are its first descriptors. */
void do_program(const struct step *step)
{
    char texts[5][24];
    char *arguments[] = {(char *)(uintptr_t)self.program, (char *)(uintptr_t)"resume", texts[0], texts[1], texts[2],
                         texts[3], texts[4], NULL};
    unsigned long numbers[] = {self.end, self.seed, step->number, (unsigned long)self.channel,
                               (unsigned long)self.transcript};
    char *nothing[] = {NULL};
    extern char **environ;

    if (step->end != self.end) {
        take_turn_busily();
        return;
    }
    leave_sets_and_copies();
    for (size_t at = 0; at < sizeof numbers / sizeof numbers[0]; at++)
        snprintf(texts[at], sizeof texts[at], "%lu", numbers[at]);
    for (int at = 0; at < CONNECTIONS; at++)
        if (self.fds[at][0] >= 0)
            self.fds[at][0] = move_to(self.fds[at][0], fcntl(self.fds[at][0], F_DUPFD, HIGH));
    for (int at = 0; at < CONNECTIONS; at++)
        if (self.fds[at][0] >= 0)
            self.fds[at][0] = move_to(self.fds[at][0], dup2(self.fds[at][0], at));
    execve(self.program, arguments, step->variant % 2 ? environ : nothing);
    note(step, "%s", returned(-1));
    give_turn(0);
}

/* A child goes on with the plan, for a while or for ever. */
void do_fork(const struct step *step, struct plan *plan)
{
    struct step next = *step;
    int status;
    pid_t child;

    leave_sets_and_copies();
    note(step, step->length > 0 ? "for a while" : "for ever");
    REQUIRE((child = fork()) >= 0);
    if (child == 0)
        return;
    if (step->length == 0)
        for (unsigned at = 0; at < CONNECTIONS; at++)
            if (self.fds[at][0] >= 0)
                close(self.fds[at][0]);
    REQUIRE(waitpid(child, &status, 0) == child);
    if (step->length == 0)
        _exit(status != 0);
    REQUIRE(status == 0);
    /* It has done these steps. */
    while (next.kind != RETURN || next.end != self.end)
        REQUIRE(next_step(plan, &next));
}
