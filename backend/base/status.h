// Status and Result: how everything below ops/ reports failure.
//
// No exception crosses a border of backend/ or graph/. A function that can fail returns a Status,
// or a Result<T> with either a value or a Status. A kernel's exception travels along as `cause`, so
// that ops/ can raise the exception that eager PyTorch would have raised.
//
// Thread safety: a value type; any thread may copy and read a Status.

#pragma once

#include <cassert>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <variant>

namespace hetero {

// Classes of errors. They decide what ops/ raises, so there are few.
enum class ErrorClass {
  kUsage,      // the caller broke a REQUIRES; a bug in the caller
  kResource,   // out of memory, or over a configured limit; retrying after freeing memory may work
  kDevice,     // the device or its driver failed
  kStorage,    // a storage tier failed to read or write
  kKernel,     // a kernel threw; `cause` holds the exception
  kCancelled,  // whoever asked for it does not want it any more, or it came too late
  kInternal,   // a broken invariant; a bug of hetero
};

class [[nodiscard]] Status {
 public:
  Status() = default;  // ok
  Status(ErrorClass error_class, std::string message, std::exception_ptr cause = nullptr)
      : error_(std::make_shared<const Error>(Error{error_class, std::move(message), std::move(cause)})) {}

  bool ok() const { return error_ == nullptr; }

  // REQUIRES: !ok().
  ErrorClass error_class() const { return error_->error_class; }
  const std::string& message() const { return error_->message; }
  // The exception that a kernel threw, or null.
  const std::exception_ptr& cause() const { return error_->cause; }

 private:
  struct Error {
    ErrorClass error_class;
    std::string message;
    std::exception_ptr cause;
  };
  std::shared_ptr<const Error> error_;
};

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}
  Result(Status status) : state_(std::move(status)) { assert(!std::get<Status>(state_).ok()); }

  bool ok() const { return std::holds_alternative<T>(state_); }

  // REQUIRES: ok().
  T& value() { return std::get<T>(state_); }
  const T& value() const { return std::get<T>(state_); }

  // The error, or an ok Status if there is a value.
  Status status() const { return ok() ? Status() : std::get<Status>(state_); }

 private:
  std::variant<T, Status> state_;
};

}  // namespace hetero
