// Runs a function in a forked child, for promises about faults and forks.

#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>

namespace hetero::backend::testing {

struct ChildOutcome {
  int exit_code = -1;        // where it exited
  int signal = 0;            // where a signal killed it
  std::string error_output;  // what it wrote to stderr
  // True when the child touched memory that it must not touch. AddressSanitizer reports such a
  // fault and exits.
  bool died_of_fault() const {
    return signal == SIGSEGV || signal == SIGBUS || error_output.find("Sanitizer") != std::string::npos;
  }
};

// The child exits with what `body` returns, and without running destructors. A child that hangs is
// killed after 20 s.
template <typename Body>
ChildOutcome run_in_child(Body body) {
  int channel[2];
  if (pipe(channel) != 0) return {};
  const pid_t child = fork();
  if (child == 0) {
    // The test framework's own handlers would report the fault as a failed test.
    for (int caught : {SIGSEGV, SIGBUS, SIGABRT, SIGTERM}) std::signal(caught, SIG_DFL);
    alarm(20);
    dup2(channel[1], STDERR_FILENO);
    close(channel[0]);
    close(channel[1]);
    _exit(body());
  }
  close(channel[1]);
  ChildOutcome outcome;
  char buffer[4096];
  for (ssize_t count; (count = read(channel[0], buffer, sizeof(buffer))) > 0;) {
    outcome.error_output.append(buffer, static_cast<size_t>(count));
  }
  close(channel[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFEXITED(status)) outcome.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) outcome.signal = WTERMSIG(status);
  return outcome;
}

}  // namespace hetero::backend::testing
