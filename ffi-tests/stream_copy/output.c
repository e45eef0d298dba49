#include "output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "stream.h"

int output_open(struct output *output, const char *path)
{
    struct stat status;

    memset(output, 0, sizeof *output);
    output->path = path ? path : "-";
    if (strcmp(output->path, "-") == 0) {
        output->fd = STDOUT_FILENO;
        return 0;
    }
    if (stat(path, &status) == 0 && !S_ISREG(status.st_mode)) {
        output->fd = open(path, O_WRONLY | O_CLOEXEC);
    } else {
        int length = snprintf(output->temporary, sizeof output->temporary, "%s.part-%d", path, (int)getpid());

        if (length < 0 || (size_t)length >= sizeof output->temporary)
            return complain("%s: name too long", path);
        output->fd = open(output->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (output->fd < 0)
            output->temporary[0] = '\0';
    }
    return output->fd < 0 ? complain("%s: %s", path, strerror(errno)) : 0;
}

int output_write(struct output *output, const void *data, size_t length)
{
    const uint8_t *next = data;

    while (length > 0) {
        ssize_t took = write(output->fd, next, length);

        if (took < 0 && errno == EINTR)
            continue;
        if (took < 0)
            return complain("%s: %s", output->path, strerror(errno));
        next += took;
        length -= (size_t)took;
    }
    return 0;
}

int output_commit(struct output *output)
{
    int fd = output->fd;

    output->fd = -1;
    if (close(fd) != 0)
        return complain("%s: %s", output->path, strerror(errno));
    if (output->temporary[0] == '\0')
        return 0;
    if (rename(output->temporary, output->path) != 0)
        return complain("%s: %s", output->path, strerror(errno));
    output->temporary[0] = '\0';
    return 0;
}

void output_close(struct output *output)
{
    if (output->fd >= 0)
        close(output->fd);
    if (output->temporary[0] != '\0')
        unlink(output->temporary);
}
