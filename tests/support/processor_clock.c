/* Clocks that do not count when a busy machine lets others run. Preloaded into Redis, its slow log has the processor's time of each
 * call. The clocks of the first thread are behind by what it did not run since it last came back from waiting, so timers go on while it
 * waits. Asks the kernel directly, since the C library's own functions are what it stands for. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int64_t read_ns(clockid_t clock) {
  struct timespec time;
  syscall(SYS_clock_gettime, clock, &time);
  return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static int is_first_thread(void) { return syscall(SYS_gettid) == getpid(); }

/* For how long the first thread has not run, but for its waiting. The processor's time is asked for last: it is there that the kernel
 * notices that the thread's turn is over, and lets others run. */
static int64_t lost_ns(void) {
  int64_t all = read_ns(CLOCK_MONOTONIC);
  return all - read_ns(CLOCK_THREAD_CPUTIME_ID);
}

/* The same when it last came back from waiting. */
static int64_t lost_before_ns;

int clock_gettime(clockid_t clock, struct timespec *time) {
  int failed = (int)syscall(SYS_clock_gettime, clock, time);
  if (failed || (clock != CLOCK_MONOTONIC && clock != CLOCK_REALTIME) || !is_first_thread()) return failed;
  int64_t lost = lost_ns();
  if (!lost_before_ns) lost_before_ns = lost;
  int64_t ns = (int64_t)time->tv_sec * 1000000000 + time->tv_nsec - (lost - lost_before_ns);
  time->tv_sec = ns / 1000000000;
  time->tv_nsec = ns % 1000000000;
  return 0;
}

#include "time_of_day.h"

int epoll_wait(int epoll, struct epoll_event *events, int most, int timeout_ms) {
  static int (*wait)(int, struct epoll_event *, int, int);
  if (!wait) wait = (int (*)(int, struct epoll_event *, int, int))dlsym(RTLD_NEXT, "epoll_wait");
  int ready = wait(epoll, events, most, timeout_ms);
  if (is_first_thread()) lost_before_ns = lost_ns();
  return ready;
}
