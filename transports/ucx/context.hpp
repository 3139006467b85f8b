// The UCP context, shared by the communicators of a process.
#pragma once

#include <csignal>
#include <memory>

#include "config/config.hpp"
#include "transports/ucx/library.hpp"

namespace weft::ucx {

class Context {
 public:
  // The one that is open already with these settings, or a new one.
  static Result<std::shared_ptr<Context>> open(const Config& config);
  Context(const Library* ucp, ucp_context_h handle);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  const Library& ucp() const { return *ucp_; }
  ucp_context_h handle() const { return handle_; }
  // We are a child of the process that opened it: its threads are not here, and nothing of it may be touched.
  bool forked() const;

 private:
  const Library* ucp_;
  ucp_context_h handle_;
  uint32_t forks_;
};

// Threads that are made meanwhile take no signals: UCX's must not run the program's handlers.
class SignalsBlocked {
 public:
  SignalsBlocked();
  ~SignalsBlocked();
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace weft::ucx
