// Status and Result<T>: how a failure travels inside Weft, up to the C interface. Not for the data path's fast cases:
// those return an Io or a bool.
#pragma once

#include <fmt/core.h>

#include <string>
#include <utility>
#include <variant>

#include "weft/weft.h"

namespace weft {

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(weftResult_t code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == weftSuccess; }
  weftResult_t code() const { return code_; }
  // One sentence: what happened, at which rank, and what to do.
  const std::string& message() const { return message_; }

 private:
  weftResult_t code_ = weftSuccess;
  std::string message_;
};

template <typename... Args>
Status error(weftResult_t code, fmt::format_string<Args...> format, Args&&... args) {
  return Status(code, fmt::format(format, std::forward<Args>(args)...));
}

// weftSystemError with strerror(number) at its end.
Status system_error(int number, const std::string& what);

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}         // NOLINT(google-explicit-constructor): reads as a return
  Result(Status status) : state_(std::move(status)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return std::holds_alternative<T>(state_); }
  T& value() { return std::get<T>(state_); }
  const T& value() const { return std::get<T>(state_); }
  T* operator->() { return &value(); }
  T& operator*() { return value(); }
  Status status() const { return ok() ? Status() : std::get<Status>(state_); }

 private:
  std::variant<T, Status> state_;
};

#define WEFT_RETURN_IF_ERROR(expression)                                                     \
  do {                                                                                       \
    if (::weft::Status weft_status_ = (expression); !weft_status_.ok()) return weft_status_; \
  } while (0)

}  // namespace weft
