/* Let writes to chosen files fail: preloaded before libc. FAULT is "part of a path:bytes that still pass:errno". */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

static int fails(int descriptor) {
    char part[256], link[64], path[4096];
    long passes;
    int code;
    const char *fault = getenv("FAULT");
    if (fault == NULL || sscanf(fault, "%255[^:]:%ld:%d", part, &passes, &code) != 3) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    if (strstr(path, part) == NULL || lseek(descriptor, 0, SEEK_CUR) < passes) return 0;
    errno = code;
    return 1;
}

ssize_t write(int descriptor, const void *bytes, size_t count) {
    if (fails(descriptor)) return -1;
    return ((ssize_t(*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write"))(descriptor, bytes, count);
}

ssize_t writev(int descriptor, const struct iovec *pieces, int count) {
    if (fails(descriptor)) return -1;
    return ((ssize_t(*)(int, const struct iovec *, int))dlsym(RTLD_NEXT, "writev"))(descriptor, pieces, count);
}

int fsync(int descriptor) {
    if (fails(descriptor)) return -1;
    return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(descriptor);
}
