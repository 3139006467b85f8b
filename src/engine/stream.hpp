// Host streams: in-order asynchronous queues. One background thread per process runs the heads of all of them; it polls
// all their communicators, blocks in none, and does not exist before the first stream operation, nor after the last
// stream.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/engine.hpp"

namespace weft {

// Operations that are issued together: one call, or those of a group.
struct StreamJob {
  std::vector<std::pair<Comm*, OperationPtr>> operations;
  bool submitted = false;
};

class StreamWorker;

class Stream {
 public:
  // Who has queued more than this waits: back-pressure on one who enqueues faster than its peers take part.
  static constexpr size_t kMostQueued = 1024;

  Stream();
  ~Stream();  // synchronises
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // For push(), and so that the order of sequence numbers is that of jobs.
  std::unique_lock<std::mutex> lock() { return std::unique_lock(mutex_); }
  // Lock held. The operations are counted in their communicators' `queued` already, since before they had a sequence
  // number.
  void push(StreamJob job);
  // After push(), without the lock.
  void wake();
  void wait_for_room();
  // Waits until the queue is empty; the first error since the last time.
  Status synchronize();
  // Takes the first error without waiting; idle tells whether the queue is empty.
  Status query(bool* idle);
  bool forked() const;  // we are a child of the process that made it

 private:
  friend class StreamWorker;
  StreamWorker* worker_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<StreamJob> jobs_;
  Status first_error_;
};

}  // namespace weft
