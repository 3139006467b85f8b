#include "transports/verbs/mapping_watch.hpp"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "log/log.hpp"
#include "status/process.hpp"

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif

namespace weft::verbs {

MappingWatch& MappingWatch::get() {
  static std::mutex mutex;
  static MappingWatch* watch = nullptr;
  static uint64_t of = 0;  // a child of fork() has a descriptor of its parent's memory and no thread
  std::lock_guard lock(mutex);
  if (watch == nullptr || of != forks()) watch = new MappingWatch;
  of = forks();
  return *watch;
}

MappingWatch::MappingWatch() {
  Fd fd(static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY)));
  uffdio_api api{};
  api.api = UFFD_API;
  api.features = UFFD_FEATURE_EVENT_UNMAP | UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_EVENT_REMOVE;
  if (!fd || ::ioctl(fd.get(), UFFDIO_API, &api) != 0) {
    log(LogLevel::info, "verbs: userfaultfd: {}; memory that is not of weftMemAlloc is registered for each message",
        std::strerror(errno));
    return;
  }
  fd_ = std::move(fd);
  // Signals are for the user's threads.
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { run(); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  thread_.detach();
}

bool MappingWatch::watch(AddressRange range) {
  if (!fd_) return false;
  uffdio_register request{};
  request.range = {.start = range.begin, .len = range.end - range.begin};
  request.mode = UFFDIO_REGISTER_MODE_WP;
  return ::ioctl(fd_.get(), UFFDIO_REGISTER, &request) == 0;
}

void MappingWatch::changes(uint64_t* position, std::vector<AddressRange>* ranges) {
  ranges->clear();
  ranges->reserve(kKept);  // nothing is allocated, or freed, under the lock
  std::lock_guard lock(mutex_);
  const uint64_t end = noted_.load(std::memory_order_relaxed);
  if (end - *position > kKept) {
    ranges->push_back({0, UINTPTR_MAX});
  } else {
    for (uint64_t i = *position; i < end; ++i) ranges->push_back(ring_[i % kKept]);
  }
  *position = end;
}

void MappingWatch::run() {
  ::pthread_setname_np(::pthread_self(), "weft-mappings");
  pollfd wait{fd_.get(), POLLIN, 0};
  for (;;) {
    if (::poll(&wait, 1, -1) > 0) read_events();
  }
}

void MappingWatch::read_events() {
  std::lock_guard lock(mutex_);
  uffd_msg events[16];
  for (;;) {
    const ssize_t got = ::read(fd_.get(), events, sizeof events);
    if (got < static_cast<ssize_t>(sizeof *events)) return;
    for (size_t i = 0; i < static_cast<size_t>(got) / sizeof *events; ++i) {
      AddressRange range;
      if (events[i].event == UFFD_EVENT_REMAP) {
        range = {events[i].arg.remap.from, events[i].arg.remap.from + events[i].arg.remap.len};
      } else if (events[i].event == UFFD_EVENT_UNMAP || events[i].event == UFFD_EVENT_REMOVE) {
        range = {events[i].arg.remove.start, events[i].arg.remove.end};
      } else {
        continue;
      }
      const uint64_t at = noted_.load(std::memory_order_relaxed);
      ring_[at % kKept] = range;
      noted_.store(at + 1, std::memory_order_release);
    }
  }
}

}  // namespace weft::verbs
