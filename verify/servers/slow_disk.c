/* A slow disk for a test server: every fdatasync takes SLOW_DISK_US microseconds longer.
 *
 * Loaded into the server with LD_PRELOAD. PostgreSQL on Linux flushes its log with fdatasync
 * (wal_sync_method = fdatasync), so each flush of the log waits as it would on a disk of the
 * network, or for a synchronous replica; fsync, which checkpoints use, stays as it is.
 *
 * No flush takes longer while there is a file `no_delay` in the folder of the data, which is the
 * server's working directory. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static long delay(void) {
    static long microseconds = -1;
    if (microseconds < 0) {
        const char *given = getenv("SLOW_DISK_US");
        microseconds = given ? atol(given) : 0;
    }
    return microseconds;
}

int fdatasync(int file) {
    static int (*original)(int);
    if (!original) {
        original = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    }
    int result = original(file);
    long microseconds = delay();
    if (microseconds > 0 && access("no_delay", F_OK)) {
        struct timespec left = {microseconds / 1000000, (microseconds % 1000000) * 1000};
        while (nanosleep(&left, &left)) {
        }
    }
    return result;
}
