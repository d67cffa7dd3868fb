// The CPU's worker queue: a thread that runs tasks in order, and events between it and others.

#include "backend/cpu/worker_queue.h"

#include <atomic>
#include <latch>
#include <thread>
#include <vector>

#include "backend/cpu/cpu_device.h"
#include "backend/sim/sim_device.h"
#include "tests/backend/child.h"
#include "tests/catch/catch.h"

namespace hetero::backend::testing {
namespace {

// A task that a test opens and looks at.
class Gate {
 public:
  Task task() {
    return {[](void* context) { static_cast<Gate*>(context)->run(); }, this};
  }
  void open() { opened_.count_down(); }
  // Whether it has run.
  bool passed() const { return passed_.load(); }
  std::thread::id thread() const { return thread_; }

 private:
  void run() {
    opened_.wait();
    thread_ = std::this_thread::get_id();
    passed_ = true;
  }

  std::latch opened_{1};
  std::atomic<bool> passed_{false};
  std::thread::id thread_;
};

// Notes when it ran, after others.
struct Note {
  std::atomic<int>* order;
  std::atomic<int> place{-1};
  Task task() {
    return {[](void* context) {
              auto& note = *static_cast<Note*>(context);
              note.place = note.order->fetch_add(1);
            },
            this};
  }
};

Queue& worker(Device& device) { return device.queue(kCpuWorker); }

}  // namespace

TEST_CASE("worker queue: tasks run one by one on another thread, in the order of submission") {
  CpuDevice cpu;
  std::atomic<int> order{0};
  std::vector<Note> notes(50);
  for (Note& note : notes) note.order = &order;
  Gate gate;
  REQUIRE(worker(cpu).launch(gate.task()).ok());
  for (Note& note : notes) REQUIRE(worker(cpu).launch(note.task()).ok());
  CHECK_FALSE(gate.passed());
  CHECK(order == 0);
  gate.open();
  REQUIRE(worker(cpu).synchronize().ok());
  CHECK(gate.thread() != std::this_thread::get_id());
  for (size_t i = 0; i < notes.size(); ++i) CHECK(notes[i].place == static_cast<int>(i));
  CHECK(cpu.counters().launches == 51);
}

TEST_CASE("worker queue: the other queues of the CPU stay inline meanwhile") {
  CpuDevice cpu;
  Gate gate;
  REQUIRE(worker(cpu).launch(gate.task()).ok());
  std::atomic<int> order{0};
  Note note{.order = &order};
  REQUIRE(cpu.queue(QueueKind::kCompute).launch(note.task()).ok());
  CHECK(note.place == 0);
  const auto done = cpu.create_event();
  REQUIRE(cpu.queue(QueueKind::kCompute).record(*done).ok());
  CHECK(done->query());
  gate.open();
}

TEST_CASE("worker queue: an event is done when the thread comes to it, and waiting for it blocks until then") {
  CpuDevice cpu;
  Gate gate;
  const auto event = cpu.create_event();
  CHECK(event->query());  // never recorded
  REQUIRE(worker(cpu).launch(gate.task()).ok());
  REQUIRE(worker(cpu).record(*event).ok());
  CHECK_FALSE(event->query());
  std::thread opener([&gate] { gate.open(); });
  REQUIRE(cpu.queue(QueueKind::kCompute).wait(*event).ok());
  CHECK(gate.passed());
  CHECK(event->query());
  opener.join();
}

TEST_CASE("worker queue: recording an event again does not move earlier waits") {
  CpuDevice cpu;
  const auto event = cpu.create_event();
  Gate first;
  Gate second;
  REQUIRE(worker(cpu).launch(first.task()).ok());
  REQUIRE(worker(cpu).record(*event).ok());
  const std::shared_ptr<Event> captured = event->last_record();
  REQUIRE(worker(cpu).launch(second.task()).ok());
  REQUIRE(worker(cpu).record(*event).ok());
  first.open();
  REQUIRE(captured->synchronize().ok());
  CHECK_FALSE(second.passed());
  CHECK_FALSE(event->query());
  second.open();
  REQUIRE(event->synchronize().ok());
  CHECK(second.passed());
}

TEST_CASE(
    "worker queue: an accelerator's queue waits for it, and it for the accelerator, without holding the host up") {
  CpuDevice cpu;
  const std::unique_ptr<SimDevice> sim = std::move(SimDevice::create().value());
  Queue& compute = sim->queue(QueueKind::kCompute);
  Gate gate;
  std::atomic<int> order{0};
  Note there{.order = &order};
  Note here{.order = &order};
  const auto decoded = cpu.create_event();
  const auto computed = sim->create_event();
  REQUIRE(worker(cpu).launch(gate.task()).ok());
  REQUIRE(worker(cpu).record(*decoded).ok());
  REQUIRE(compute.wait(*decoded).ok());
  REQUIRE(compute.launch(there.task()).ok());
  REQUIRE(compute.record(*computed).ok());
  REQUIRE(worker(cpu).wait(*computed).ok());
  REQUIRE(worker(cpu).launch(here.task()).ok());
  // All is submitted, and nothing has run.
  CHECK_FALSE(gate.passed());
  gate.open();
  REQUIRE(cpu.synchronize().ok());
  CHECK(there.place == 0);
  CHECK(here.place == 1);
}

TEST_CASE("worker queue: copies keep the order") {
  CpuDevice cpu;
  int from = 1;
  int middle = 0;
  int to = 0;
  Gate gate;
  REQUIRE(worker(cpu).launch(gate.task()).ok());
  REQUIRE(worker(cpu).copy(&middle, &from, sizeof(int)).ok());
  REQUIRE(worker(cpu).copy(&to, &middle, sizeof(int)).ok());
  CHECK(to == 0);
  gate.open();
  REQUIRE(worker(cpu).synchronize().ok());
  CHECK(to == 1);
}

TEST_CASE("worker queue: what is wrong is refused") {
  CpuDevice cpu;
  const std::unique_ptr<SimDevice> sim = std::move(SimDevice::create().value());
  const auto foreign = sim->create_event();
  CHECK(worker(cpu).record(*foreign).error_class() == ErrorClass::kUsage);
  struct Inside {
    CpuDevice& cpu;
    Status status;
  } inside{cpu, {}};
  REQUIRE(worker(cpu)
              .launch({[](void* context) {
                         auto& self = *static_cast<Inside*>(context);
                         self.status = worker(self.cpu).synchronize();
                       },
                       &inside})
              .ok());
  REQUIRE(worker(cpu).synchronize().ok());
  CHECK(inside.status.error_class() == ErrorClass::kUsage);
}

TEST_CASE("worker queue: destroying the device runs what was submitted") {
  std::atomic<int> order{0};
  Note note{.order = &order};
  Gate gate;
  std::thread opener;
  {
    CpuDevice cpu;
    REQUIRE(worker(cpu).launch(gate.task()).ok());
    REQUIRE(worker(cpu).launch(note.task()).ok());
    opener = std::thread([&gate] { gate.open(); });
  }
  CHECK(note.place == 0);
  opener.join();
}

TEST_CASE("worker queue: several threads submit at once") {
  CpuDevice cpu;
  std::atomic<int> order{0};
  std::vector<Note> notes(200);
  for (Note& note : notes) note.order = &order;
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = t * 50; i < (t + 1) * 50; ++i) {
        const auto event = cpu.create_event();
        if (!worker(cpu).launch(notes[i].task()).ok() || !worker(cpu).record(*event).ok()) return;
        if (i % 7 == 0 && !event->synchronize().ok()) return;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  REQUIRE(worker(cpu).synchronize().ok());
  CHECK(order == 200);
}

#if !defined(__SANITIZE_THREAD__)  // TSan does not follow a fork of a process with threads
TEST_CASE("worker queue: a forked child has a thread of its own, and the parent's work is not its") {
  CpuDevice cpu;
  Gate gate;
  const auto event = cpu.create_event();
  REQUIRE(worker(cpu).launch(gate.task()).ok());
  REQUIRE(worker(cpu).record(*event).ok());
  const ChildOutcome outcome = run_in_child([&] {
    // Nobody would ever open the parent's gate here.
    if (!worker(cpu).synchronize().ok() || !event->synchronize().ok()) return 1;
    std::atomic<int> order{0};
    Note note{.order = &order};
    const auto own = cpu.create_event();
    if (!worker(cpu).launch(note.task()).ok() || !worker(cpu).record(*own).ok()) return 2;
    if (!own->synchronize().ok() || note.place != 0) return 3;
    return cpu.synchronize().ok() ? 0 : 4;
  });
  CHECK(outcome.exit_code == 0);
  CHECK_FALSE(gate.passed());
  gate.open();
  REQUIRE(event->synchronize().ok());
  CHECK(gate.passed());
}
#endif

}  // namespace hetero::backend::testing
