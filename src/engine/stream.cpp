#include "engine/stream.hpp"

#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <thread>

#include "comm/comm.hpp"

namespace weft {

class StreamWorker {
 public:
  // A forked child has a worker of its own: its parent's thread did not come along.
  static StreamWorker& instance() {
    static std::mutex mutex;
    static StreamWorker* worker = nullptr;
    const std::lock_guard lock(mutex);
    if (worker == nullptr || worker->forked()) worker = new StreamWorker;
    return *worker;
  }
  bool forked() const { return pid_ != ::getpid(); }

  void add(Stream* stream) {
    std::lock_guard lock(mutex_);
    streams_.push_back(stream);
  }

  // The thread ends with the last stream.
  void remove(Stream* stream) {
    std::unique_ptr<Worker> ended;
    {
      std::lock_guard lock(mutex_);
      streams_.erase(std::find(streams_.begin(), streams_.end(), stream));
      if (!streams_.empty() || owned_ == nullptr) return;
      owned_->stop = true;
      owned_->ring();
      worker_.store(nullptr);
      ended = std::move(owned_);
    }
    ended->thread.join();
  }

  // By one who has a stream, so that the thread does not end meanwhile. Waits for the thread's lock only to make it.
  void wake() {
    Worker* worker = worker_.load(std::memory_order_acquire);
    (worker != nullptr ? worker : start())->ring();
  }

 private:
  // A thread, and what is its own: one that is to end may still run when the next begins.
  struct Worker {
    Fd bell{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    bool stop = false;
    std::thread thread;

    void ring() const {
      const uint64_t one = 1;
      (void)!::write(bell.get(), &one, sizeof one);
    }
    void drain() const {
      uint64_t rings;
      (void)!::read(bell.get(), &rings, sizeof rings);
    }
  };

  Worker* start() {
    std::lock_guard lock(mutex_);
    if (owned_ == nullptr) {
      owned_ = std::make_unique<Worker>();
      owned_->thread = std::thread([this, worker = owned_.get()] { run(*worker); });
      worker_.store(owned_.get(), std::memory_order_release);
    }
    return owned_.get();
  }

  // Starts heads of queues, ends those that are done. Collects the communicators that have something in flight.
  bool serve(std::set<Comm*>* busy) {
    bool moved = false;
    for (Stream* stream : streams_) {
      std::lock_guard lock(stream->mutex_);
      while (!stream->jobs_.empty()) {
        StreamJob& job = stream->jobs_.front();
        if (!job.submitted) {
          job.submitted = moved = true;
          for (const auto& [comm, operation] : job.operations) comm->engine().submit(operation);
        }
        const bool done = std::all_of(job.operations.begin(), job.operations.end(),
                                      [](const auto& entry) { return entry.second->done.load(); });
        if (!done) {
          for (const auto& [comm, operation] : job.operations) busy->insert(comm);
          break;
        }
        for (const auto& [comm, operation] : job.operations) {
          if (stream->first_error_.ok()) stream->first_error_ = operation->result;
          comm->queued.fetch_sub(1);
        }
        stream->jobs_.pop_front();
        stream->changed_.notify_all();
        moved = true;
      }
    }
    return moved;
  }

  void run(Worker& worker) {
    auto idle_since = Clock::now();
    for (;;) {
      std::set<Comm*> busy;
      bool moved;
      {
        std::lock_guard lock(mutex_);
        if (worker.stop) return;
        moved = serve(&busy);
      }
      // Without the lock, for which others wait to make or end a stream: only serve() counts work as done, and until
      // then its communicators are not destroyed.
      for (Comm* comm : busy) moved |= comm->engine().try_progress();
      if (moved) {
        idle_since = Clock::now();
      } else if (busy.empty()) {
        wait_for_bell(worker);
        idle_since = Clock::now();
      } else if (Clock::now() - idle_since > kYieldFor) {
        rest(busy, worker);
      } else {
        ::sched_yield();
      }
    }
  }

  // Sleeps until a communicator has something, at most a few milliseconds.
  void rest(const std::set<Comm*>& busy, const Worker& worker) {
    auto poller = Poller::create();
    if (!poller.ok()) return;
    std::vector<Comm*> armed;
    bool sleep = poller->add(worker.bell.get(), EPOLLIN).ok();
    bool taken = false;
    for (Comm* comm : busy) {
      const Engine::Arm arm = comm->engine().try_arm();
      taken = arm == Engine::Arm::taken;
      sleep = sleep && arm == Engine::Arm::armed && poller->add(comm->poller().fd(), EPOLLIN).ok();
      if (arm == Engine::Arm::armed) armed.push_back(comm);
      if (!sleep) break;
    }
    if (sleep) poller->wait(2);
    for (Comm* comm : armed) comm->engine().try_disarm();
    worker.drain();
    if (taken) ::usleep(200);  // somebody else drives one of them
  }

  void wait_for_bell(const Worker& worker) {
    auto poller = Poller::create();
    if (!poller.ok() || !poller->add(worker.bell.get(), EPOLLIN).ok()) {
      ::usleep(1000);
      return;
    }
    poller->wait(1000);
    worker.drain();
  }

  static constexpr std::chrono::milliseconds kYieldFor{1};  // then it rests
  const pid_t pid_ = ::getpid();
  std::mutex mutex_;
  std::vector<Stream*> streams_;
  std::unique_ptr<Worker> owned_;
  std::atomic<Worker*> worker_{nullptr};  // owned_, without the lock
};

Stream::Stream() : worker_(&StreamWorker::instance()) { worker_->add(this); }

Stream::~Stream() {
  (void)synchronize();
  worker_->remove(this);
}

bool Stream::forked() const { return worker_->forked(); }

void Stream::push(StreamJob job) { jobs_.push_back(std::move(job)); }

void Stream::wake() { worker_->wake(); }

void Stream::wait_for_room() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return jobs_.size() <= kMostQueued; });
}

Status Stream::synchronize() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return jobs_.empty(); });
  return std::exchange(first_error_, Status());
}

Status Stream::query(bool* idle) {
  std::lock_guard lock(mutex_);
  *idle = jobs_.empty();
  return std::exchange(first_error_, Status());
}

}  // namespace weft
