// Helpers: threads that take part in a loop if they come in time.
//
// The caller of run() works, too. It takes pieces of the loop (range_pieces.h) until none is left,
// and waits only for helpers that are at work on a piece. A region of OpenMP ends when all its
// threads have come to its end. So where another program has taken a core away, a thread that has
// not even begun keeps the others waiting until it is scheduled again; here its pieces are done by
// the others.
//
//   Helpers helpers(3, [] { ... });       // what a helper does when it starts
//   helpers.run(pieces, 4, body);         // body may run on four threads
//
// A helper waits for the next loop with its core for a while, and sleeps then.
//
// Thread safety: one thread at a time calls run(), and not from a body. In a forked child there
// are no helpers, and the caller does all, as it does where the system makes no more threads.

#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>

#include "backend/base/range_pieces.h"

namespace hetero::backend {

class Helpers {
 public:
  // They inherit the cores of the calling thread, and end with the object, without being waited
  // for.
  Helpers(int64_t count, void (*start)());
  ~Helpers();
  Helpers(const Helpers&) = delete;

  // Works on all pieces, with `threads` - 1 helpers or as many as there are. Raises what a body
  // raised.
  void run(RangePieces& pieces, int64_t threads, RangeFunction body);

  // They sleep until the next loop.
  void rest();

 private:
  struct Shared;
  static void help(const std::shared_ptr<Shared>& shared, size_t number, void (*start)());

  const std::shared_ptr<Shared> shared_;
  size_t count_ = 0;
  const int fork_generation_;
};

}  // namespace hetero::backend
