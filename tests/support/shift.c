/* A clock that a test moves while a process runs: preloaded, it adds to the time of day as many microseconds as stand in the
 * file that CLOCK_SHIFT names (8 bytes, this machine's order). Monotonic clocks are left alone, as they are by an
 * administrator who sets the time. Asks the kernel directly, since the C library's own functions are what it stands for. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int64_t shift_us(void) {
  static int file = -2;
  if (file == -2) {
    const char *path = getenv("CLOCK_SHIFT");
    file = path ? (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY) : -1;
  }
  int64_t us = 0;
  if (file < 0 || syscall(SYS_pread64, file, &us, sizeof us, 0) != (long)sizeof us) return 0;
  return us;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
  int failed = (int)syscall(SYS_clock_gettime, clock, time);
  if (failed || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)) return failed;
  int64_t ns = (int64_t)time->tv_sec * 1000000000 + time->tv_nsec + shift_us() * 1000;
  time->tv_sec = ns / 1000000000;
  time->tv_nsec = ns % 1000000000;
  return 0;
}

#include "time_of_day.h"
