// Follower: a fused kernel that runs on parts of another kernel's result as they are made.
//
// What follows a product or a convolution, such as an activation or a sum, would read a result that
// no cache holds any more. A kernel that is given a follower runs it on each block of rows that it
// has made:
//
//   parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
//     ...                                     // computes rows of `width` elements, at `rows`
//     follower->run(begin * width, end * width, rows);
//   });
//   return FollowedResult::kFollowed;         // and the caller finishes it
//
// Where nobody else wants the result, the rows may be in memory of the kernel's own, and the result
// never gets to where it would be.
//
// A kernel need not use its follower. It may also run it on parts and return another result: all is
// done again then.
//
// Where the follower does nothing but limit values (ending()), a kernel may do that itself, to the
// memory where they go, in place of running it. A pass through the cache is saved.
//
// Thread safety: run() from several threads at once, on parts that do not overlap; the rest from
// one thread.
// Ownership: launch, operands and numbers outlive it.

#pragma once

#include <cstdint>
#include <optional>

#include "backend/cpu/fused/launch.h"
#include "backend/cpu/vector/limits.h"

namespace hetero::backend {

// What a kernel that may have a follower has done.
enum class FollowedResult : uint8_t {
  kOutOfRange,  // it cannot have these values; the output is anything
  kMade,
  kFollowed,  // the follower has run on all of it, too
};

class Follower {
 public:
  // Whether the launch can follow a kernel whose result, dense and of `entries` elements, is this
  // operand.
  static bool can_follow(const FusedLaunch& launch, uint16_t operand, int64_t entries);

  // As run_fused has them. `wanted`: the result's own memory must get its values, too, or those
  // that the launch stores there.
  Follower(const FusedLaunch& launch, void* const* operands, const Number* numbers, uint16_t operand, bool wanted)
      : launch_(launch),
        operands_(operands),
        numbers_(numbers),
        operand_(operand),
        wanted_(wanted),
        part_(part_entries(launch)) {}

  bool wants_result() const { return wanted_; }
  // Whether parts may begin and end at multiples of so many elements.
  bool fits(int64_t elements) const { return elements % part_ == 0; }
  // The limits, and where entries of this type go that have them, laid out as the result is:
  // elsewhere, or in its place. Nothing where the launch does more, takes the result's bytes for
  // another type's, or values without limits are wanted.
  struct Ending {
    Limits limits;
    void* result;
  };
  std::optional<Ending> ending(EntryType type) const;

  // Elements [begin, end) of the result are at `elements`, in the order of its memory.
  void run(int64_t begin, int64_t end, const void* elements) const;

  // It has run on all of the result.
  void finish() { finished_ = true; }
  // The kernel has done what ending() says.
  void finish_by_limits() { finished_ = limited_ = true; }
  bool finished() const { return finished_; }
  bool limited() const { return limited_; }

 private:
  static constexpr size_t kMostOperands = 32;

  const FusedLaunch& launch_;
  void* const* const operands_;
  const Number* const numbers_;
  const uint16_t operand_;
  const bool wanted_;
  const int64_t part_;
  bool finished_ = false;
  bool limited_ = false;
};

}  // namespace hetero::backend
