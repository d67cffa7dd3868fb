// BlockedSignals: blocks the program's signals in threads that are created during its lifetime.
//
// Signals that are meant for the program's own threads thus never run on a helper thread.
//
// Thread safety: the thread that makes it also destroys it.

#pragma once

#include <pthread.h>

#include <csignal>

namespace hetero::backend {

class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t blocked;
    sigfillset(&blocked);
    for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT}) {
      sigdelset(&blocked, fault);
    }
    pthread_sigmask(SIG_SETMASK, &blocked, &previous_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &previous_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t previous_;
};

}  // namespace hetero::backend
