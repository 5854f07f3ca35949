/* The wall clock of a process, so many seconds ahead: loaded before its libraries (LD_PRELOAD), by `lab/cluster/processes.py`.
   The seconds are one number of 64 bits in the file that WALL_CLOCK_AHEAD names, and may change at any time. Monotonic clocks are left
   alone. Nothing here allocates: Redis' allocator reads the clock itself. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int64_t ahead_s(void) {
    static const int64_t *ahead;
    if (!ahead) {
        const char *name = getenv("WALL_CLOCK_AHEAD");
        int file = name ? open(name, O_RDONLY) : -1;
        void *page = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *ahead, PROT_READ, MAP_SHARED, file, 0);
        if (page == MAP_FAILED) return 0;
        ahead = page;
    }
    return *ahead;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && clock == CLOCK_REALTIME) now->tv_sec += ahead_s();
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &exact)) return -1;
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *kept) {
    struct timespec exact;
    if (clock_gettime(CLOCK_REALTIME, &exact)) return -1;
    if (kept) *kept = exact.tv_sec;
    return exact.tv_sec;
}
