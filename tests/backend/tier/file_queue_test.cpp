// The queue moves every byte once, resumes and repeats what the system leaves undone, says what
// failed, bounds what is in flight, and does without io_uring, or without registered memory, where
// that is forbidden.

#include "backend/tier/file_queue.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <random>
#include <thread>

#include "backend/tier/merge.h"
#include "tests/backend/child.h"
#include "tests/backend/tier/blocks.h"
#include "tests/catch/catch.h"

namespace hetero::backend {
namespace {

using testing::TemporaryFolder;
using testing::WithFaults;

struct File {
  TemporaryFolder folder{"file-queue"};
  int descriptor = open((folder.path / "file").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ~File() { close(descriptor); }
};

std::unique_ptr<FileQueue> queue_of(FileEngine engine, int depth = 8) {
  auto made = FileQueue::make({.engine = engine, .depth = depth, .threads = 2});
  REQUIRE(made.ok());
  return std::move(made.value());
}

FileEngine engine_of(int index) { return index == 0 ? FileEngine::kAuto : FileEngine::kThreads; }

std::vector<char> random_bytes(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<char> bytes(count);
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

// Runs operations and waits; the errors in their order.
std::vector<int> run(FileQueue& queue, std::vector<FileOperation> operations) {
  std::vector<int> errors(operations.size(), -1);
  for (size_t i = 0; i < operations.size(); ++i) {
    operations[i].done = [&errors, i](int error) { errors[i] = error; };
  }
  queue.submit(std::move(operations));
  queue.drain();
  return errors;
}

FileOperation operation(FileCall call, int file, int64_t offset, char* data, size_t bytes) {
  return {call, file, offset, {{data, bytes}}, nullptr};
}

// Moves 64 scattered operations to a file and back.
void check_round_trip(FileQueue& queue) {
  const File file;
  std::vector<char> bytes = random_bytes(size_t{1} << 20, 3), back(bytes.size());
  constexpr size_t kPart = size_t{1} << 14;
  for (const FileCall call : {FileCall::kWrite, FileCall::kRead}) {
    std::vector<char>& memory = call == FileCall::kWrite ? bytes : back;
    std::vector<FileOperation> operations;
    for (size_t i = 0; i < bytes.size() / kPart; ++i) {
      FileOperation& added = operations.emplace_back();
      added = operation(call, file.descriptor, static_cast<int64_t>(i * kPart), nullptr, 0);
      added.memory = {
          {memory.data() + i * kPart, 1000}, {nullptr, 0}, {memory.data() + i * kPart + 1000, kPart - 1000}};
    }
    std::shuffle(operations.begin(), operations.end(), std::mt19937(1));
    for (int error : run(queue, std::move(operations))) REQUIRE(error == 0);
  }
  CHECK(back == bytes);
}

TEST_CASE("What is written by a queue is read back, with both engines", "[tier]") {
  const auto queue = queue_of(engine_of(GENERATE(0, 1)));
  check_round_trip(*queue);
  CHECK(queue->calls() == 128);
}

struct Scripted : FileFaults {
  std::vector<FileFault> script;
  std::atomic<size_t> seen{0};
  explicit Scripted(std::vector<FileFault> script) : script(std::move(script)) {}
  FileFault next(FileCall, int, int64_t, size_t) override {
    const size_t at = seen++;
    return at < script.size() ? script[at] : FileFault();
  }
};

FileFault error_of(int error) { return {.kind = FileFault::kError, .error = error}; }
const FileFault kShort{.kind = FileFault::kShort};

TEST_CASE("Short and interrupted calls are resumed until every byte is moved", "[tier]") {
  const auto queue = queue_of(engine_of(GENERATE(0, 1)));
  std::mt19937 random(4);
  std::vector<FileFault> script;
  for (int i = 0; i < 2000; ++i) {
    switch (random() % 6) {
      case 0:
        script.push_back(error_of(EINTR));
        break;
      case 1:
        script.push_back(error_of(EAGAIN));
        break;
      case 2:
        script.push_back({.kind = FileFault::kReorder});
        break;
      case 3:
        script.push_back({});
        break;
      default:
        script.push_back(kShort);
    }
  }
  const WithFaults<Scripted> faults(script);
  check_round_trip(*queue);
  CHECK(faults.seen > 200);
}

TEST_CASE("A call that is never served ends with its error instead of being repeated for ever", "[tier]") {
  const auto queue = queue_of(engine_of(GENERATE(0, 1)));
  const File file;
  char byte = 1;
  const WithFaults<Scripted> faults(std::vector<FileFault>(5000, error_of(EAGAIN)));
  CHECK(run(*queue, {operation(FileCall::kWrite, file.descriptor, 0, &byte, 1)}) == std::vector<int>{EAGAIN});
}

TEST_CASE("An error is told to the operation that has it, and to no other", "[tier]") {
  const auto queue = queue_of(engine_of(GENERATE(0, 1)));
  const File file;
  std::vector<char> bytes(4 * 4096);
  for (const int error : {EIO, ENOSPC, EROFS}) {
    // Short first: the error comes when a part was moved.
    const WithFaults<Scripted> faults(std::vector<FileFault>{kShort, error_of(error)});
    CHECK(run(*queue, {operation(FileCall::kWrite, file.descriptor, 0, bytes.data(), 4096)}) ==
          std::vector<int>{error});
    CHECK(run(*queue, {operation(FileCall::kWrite, file.descriptor, 0, bytes.data(), 4096)}) == std::vector<int>{0});
  }
  const std::vector<int> errors =
      run(*queue, {operation(FileCall::kRead, file.descriptor, 0, bytes.data(), 4096),
                   operation(FileCall::kRead, -1, 0, bytes.data() + 4096, 4096),
                   operation(FileCall::kRead, file.descriptor, 4095, bytes.data() + 8192, 2),
                   operation(FileCall::kRead, file.descriptor, 1 << 20, bytes.data() + 12288, 1)});
  CHECK(errors == std::vector<int>{0, EBADF, EIO, EIO});
}

TEST_CASE("Operations without bytes are done, and a queue without operations drains", "[tier]") {
  const auto queue = queue_of(engine_of(GENERATE(0, 1)));
  queue->drain();
  queue->submit({});
  CHECK(run(*queue, {operation(FileCall::kRead, -1, 0, nullptr, 0), {}}) == std::vector<int>{0, 0});
}

TEST_CASE("No more operations are in flight than the depth says", "[tier]") {
  const FileEngine engine = engine_of(GENERATE(0, 1));
  const int depth = GENERATE(1, 3, 16);
  const auto queue = queue_of(engine, depth);
  check_round_trip(*queue);
  CHECK(queue->most_in_flight() <= depth);
  CHECK(queue->most_in_flight() >= 1);
}

TEST_CASE("Reads overtake writes that wait, and writes are not left for ever", "[tier]") {
  const auto queue = queue_of(engine_of(GENERATE(0, 1)), 1);
  const File file;
  std::vector<char> bytes(4096);
  CHECK(ftruncate(file.descriptor, 4096) == 0);
  // The order in which the system is called.
  struct Order : FileFaults {
    std::string calls;
    FileFault next(FileCall call, int, int64_t, size_t) override {
      calls += call == FileCall::kRead ? 'r' : 'w';
      return {};
    }
  };
  const WithFaults<Order> order;
  std::vector<FileOperation> operations;
  for (int i = 0; i < 44; ++i) {
    const FileCall call = i < 4 ? FileCall::kWrite : FileCall::kRead;
    operations.push_back(operation(call, file.descriptor, 0, bytes.data(), 4096));
  }
  for (int error : run(*queue, std::move(operations))) CHECK(error == 0);
  std::string expected(16, 'r');
  expected.append("w").append(16, 'r').append("w").append(8, 'r').append("ww");
  CHECK(order.calls == expected);
}

TEST_CASE("An operation may submit more when it ends, and a queue may be destroyed then", "[tier]") {
  for (int index : {0, 1}) {
    const File file;
    CHECK(ftruncate(file.descriptor, 4096) == 0);
    std::vector<char> bytes(4096);
    std::atomic<int> ended{0};
    std::function<void(int)> again;
    {
      const auto queue = queue_of(engine_of(index), 2);
      again = [&](int) {
        if (++ended >= 100) return;
        std::vector<FileOperation> more{operation(FileCall::kRead, file.descriptor, 0, bytes.data(), 4096)};
        more[0].done = again;
        queue->submit(std::move(more));
      };
      again(0);
    }
    CHECK(ended == 100);
  }
}

TEST_CASE("Threads may submit at once", "[tier]") {
  const auto queue = queue_of(engine_of(GENERATE(0, 1)));
  const File file;
  std::vector<char> bytes = random_bytes(64 * 4096, 5);
  REQUIRE(write_all(file.descriptor, 0, {bytes.data(), bytes.size()}) == 0);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (unsigned thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      std::mt19937 random(thread);
      std::vector<char> to(4096);
      for (int i = 0; i < 300; ++i) {
        const int64_t page = random() % 64;
        testing::Waiter<int> done;
        std::vector<FileOperation> one{operation(FileCall::kRead, file.descriptor, page * 4096, to.data(), 4096)};
        one[0].done = [&](int error) { done.set(error); };
        queue->submit(std::move(one));
        wrong += done.get() != 0;
        wrong += !std::equal(to.begin(), to.end(), bytes.begin() + page * 4096);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}

TEST_CASE("More than IOV_MAX parts and more than 2 GiB are moved in several calls", "[tier]") {
  const auto queue = queue_of(engine_of(GENERATE(0, 1)));
  const File file;
  std::vector<char> bytes = random_bytes(5000 * 8, 6), back(bytes.size());
  FileOperation many = operation(FileCall::kWrite, file.descriptor, 0, nullptr, 0);
  many.memory.clear();
  for (size_t i = 0; i < 5000; ++i) many.memory.push_back({bytes.data() + i * 8, 8});
  CHECK(run(*queue, {many}) == std::vector<int>{0});
  CHECK(run(*queue, {operation(FileCall::kRead, file.descriptor, 0, back.data(), back.size())}) == std::vector<int>{0});
  CHECK(back == bytes);
}

TEST_CASE("Without io_uring threads do the work, and asking for it by name is an error", "[tier]") {
  set_uring_error(GENERATE(EPERM, ENOSYS));
  auto automatic = FileQueue::make({});
  auto named = FileQueue::make({.engine = FileEngine::kUring});
  set_uring_error(0);
  REQUIRE(automatic.ok());
  CHECK(std::string(automatic.value()->engine()) == "threads");
  REQUIRE_FALSE(named.ok());
  CHECK(named.status().error_class() == ErrorClass::kStorage);
  CHECK(named.status().message().find("io_uring cannot be used here") == 0);
}

// A filter like a container's, for this thread and those it makes.
bool forbid(int number, int error) {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(number), 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<unsigned>(error)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{std::size(program), program};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

TEST_CASE("Under a filter that forbids io_uring, or a part of it, threads do the work", "[tier]") {
  const int number = GENERATE(__NR_io_uring_setup, __NR_io_uring_enter);
  const int error = GENERATE(EPERM, ENOSYS);
  const testing::ChildOutcome outcome = testing::run_in_child([&] {
    if (!forbid(number, error)) return 77;
    auto made = FileQueue::make({});
    if (!made.ok() || std::string(made.value()->engine()) != "threads") return 1;
    const File file;
    char bytes[2] = {5, 6}, back[2] = {};
    if (run(*made.value(), {operation(FileCall::kWrite, file.descriptor, 0, bytes, 2)})[0] != 0) return 2;
    if (run(*made.value(), {operation(FileCall::kRead, file.descriptor, 0, back, 2)})[0] != 0) return 3;
    return back[1] == 6 ? 0 : 4;
  });
  CHECK((outcome.exit_code == 0 || outcome.exit_code == 77));
}

TEST_CASE("A filter that comes later fails operations, and hangs nothing", "[tier]") {
  const testing::ChildOutcome outcome = testing::run_in_child([&] {
    const File file;
    {
      auto made = FileQueue::make({});
      if (!made.ok()) return 1;
      if (std::string(made.value()->engine()) != "io_uring") return 0;
      char byte = 5;
      if (run(*made.value(), {operation(FileCall::kWrite, file.descriptor, 0, &byte, 1)})[0] != 0) return 2;
      if (!forbid(__NR_io_uring_enter, EPERM)) return 0;
      const auto errors = run(*made.value(), {operation(FileCall::kRead, file.descriptor, 0, &byte, 1),
                                              operation(FileCall::kWrite, file.descriptor, 0, &byte, 1)});
      if (errors != std::vector<int>{EPERM, EPERM}) return 3;
      if (run(*made.value(), {operation(FileCall::kRead, file.descriptor, 0, &byte, 1)})[0] != EPERM) return 4;
    }
    return 0;
  });
  CHECK(outcome.exit_code == 0);
}

// Memory on page borders, of four parts.
constexpr size_t kPartBytes = size_t{1} << 16;
struct Memory {
  testing::Pages pages = testing::pages(4 * kPartBytes);
  std::span<std::byte> all{pages.get(), 4 * kPartBytes};
  char* at(size_t offset) const { return reinterpret_cast<char*>(pages.get()) + offset; }
};

std::unique_ptr<FileQueue> queue_with(const Memory& memory, FileEngine engine = FileEngine::kAuto) {
  auto made = FileQueue::make({.engine = engine, .memory = memory.all, .part_bytes = kPartBytes});
  REQUIRE(made.ok());
  return std::move(made.value());
}

bool uses_uring(const FileQueue& queue) { return std::string(queue.engine()) == "io_uring"; }

// Writes from a part and reads into another one.
bool goes_round(FileQueue& queue, const Memory& memory, size_t from, size_t to, size_t bytes) {
  const File file;
  const std::vector<char> wanted = random_bytes(bytes, 9);
  std::copy(wanted.begin(), wanted.end(), memory.at(from));
  const bool moved = run(queue, {operation(FileCall::kWrite, file.descriptor, 0, memory.at(from), bytes)})[0] == 0 &&
                     run(queue, {operation(FileCall::kRead, file.descriptor, 0, memory.at(to), bytes)})[0] == 0;
  return moved && std::equal(wanted.begin(), wanted.end(), memory.at(to));
}

TEST_CASE("Parts of the queue's memory are registered as they are used", "[tier]") {
  const Memory memory;
  const auto queue = queue_with(memory);
  if (!uses_uring(*queue) || queue->registered().error != 0) return;  // the system does not allow it
  CHECK(queue->registered().bytes == 0);
  CHECK(goes_round(*queue, memory, 0, 4096, 5000));
  CHECK(queue->registered().bytes == kPartBytes);
  CHECK(queue->registered().calls == 2);
  CHECK(goes_round(*queue, memory, 0, 3 * kPartBytes, kPartBytes));
  CHECK(queue->registered().bytes == 2 * kPartBytes);
  CHECK(queue->registered().calls == 4);
}

TEST_CASE("Operations across parts, of several ranges, or elsewhere go as they did", "[tier]") {
  const Memory memory;
  const auto queue = queue_with(memory);
  CHECK(goes_round(*queue, memory, kPartBytes - 100, 3 * kPartBytes - 100, 200));
  check_round_trip(*queue);
  const File file;
  std::vector<FileOperation> two{operation(FileCall::kWrite, file.descriptor, 0, memory.at(0), 10)};
  two[0].memory.push_back({memory.at(4096), 10});
  CHECK(run(*queue, std::move(two)) == std::vector<int>{0});
  // Just behind the memory, and up to its end.
  std::vector<std::byte> elsewhere(100);
  CHECK(run(*queue, {operation(FileCall::kRead, file.descriptor, 0, reinterpret_cast<char*>(elsewhere.data()), 20)}) ==
        std::vector<int>{0});
  CHECK(queue->registered().calls == 0);
  CHECK(queue->registered().bytes == 0);
}

TEST_CASE("Short, interrupted and failed calls on registered memory are handled like others", "[tier]") {
  const Memory memory;
  const auto queue = queue_with(memory);
  {
    const WithFaults<Scripted> faults(
        std::vector<FileFault>{kShort, kShort, error_of(EINTR), kShort, kShort, error_of(EAGAIN), kShort});
    CHECK(goes_round(*queue, memory, 0, kPartBytes, kPartBytes));
  }
  const std::vector<int> errors = run(*queue, {operation(FileCall::kRead, -1, 0, memory.at(0), 4096)});
  CHECK(errors == std::vector<int>{EBADF});
  CHECK(goes_round(*queue, memory, 0, kPartBytes, 4096));
}

// The thread may no longer lock more memory than it is allowed.
bool lose_unlimited_locks(rlim_t allowed) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct sets[2] = {};
  if (syscall(SYS_capget, &header, sets) != 0) return false;
  sets[CAP_TO_INDEX(CAP_IPC_LOCK)].effective &= ~CAP_TO_MASK(CAP_IPC_LOCK);
  const rlimit limit{allowed, allowed};
  return syscall(SYS_capset, &header, sets) == 0 && setrlimit(RLIMIT_MEMLOCK, &limit) == 0;
}

TEST_CASE("Where the system lets no more memory be locked, the queue says so and goes on", "[tier]") {
  // No part, and one. Newer kernels count the ring's own pages too.
  const rlim_t allowed = GENERATE(kPartBytes / 2, kPartBytes * 3 / 2);
  const testing::ChildOutcome outcome = testing::run_in_child([&] {
    if (!lose_unlimited_locks(allowed)) return 77;
    const Memory memory;
    auto made = FileQueue::make({.memory = memory.all, .part_bytes = kPartBytes});
    if (!made.ok()) return 1;
    FileQueue& queue = *made.value();
    if (!uses_uring(queue)) return 77;
    for (int round = 0; round < 2; ++round) {
      if (!goes_round(queue, memory, 0, kPartBytes, kPartBytes)) return 2;
    }
    const RegisteredMemory registered = queue.registered();
    if (registered.error == EINVAL) return 77;  // a kernel without tables
    if (registered.error != ENOMEM) return 3;
    // Reads go to another part than writes come from.
    if (registered.bytes != static_cast<int64_t>(allowed / kPartBytes * kPartBytes)) return 4;
    return registered.calls == (registered.bytes == 0 ? 0 : 2) ? 0 : 5;
  });
  CHECK((outcome.exit_code == 0 || outcome.exit_code == 77));
}

TEST_CASE("A filter that forbids registering leaves the rest of io_uring in use", "[tier]") {
  const testing::ChildOutcome outcome = testing::run_in_child([&] {
    if (!forbid(__NR_io_uring_register, EPERM)) return 77;
    const Memory memory;
    auto made = FileQueue::make({.memory = memory.all, .part_bytes = kPartBytes});
    if (!made.ok()) return 1;
    if (!uses_uring(*made.value())) return 77;
    if (!goes_round(*made.value(), memory, 0, kPartBytes, 4096)) return 2;
    const RegisteredMemory registered = made.value()->registered();
    return registered.error == EPERM && registered.calls == 0 && registered.bytes == 0 ? 0 : 3;
  });
  CHECK((outcome.exit_code == 0 || outcome.exit_code == 77));
}

TEST_CASE("Threads register nothing", "[tier]") {
  const Memory memory;
  const auto queue = queue_with(memory, FileEngine::kThreads);
  CHECK(goes_round(*queue, memory, 0, kPartBytes, 4096));
  CHECK(queue->registered().calls == 0);
  CHECK(queue->registered().error == 0);
}

TEST_CASE("Whole transfers resume, repeat, and say what failed", "[tier]") {
  const File file;
  std::vector<char> bytes = random_bytes(100000, 8), back(bytes.size());
  {
    const WithFaults<Scripted> faults(
        std::vector<FileFault>{kShort, error_of(EINTR), kShort, kShort, error_of(EAGAIN), {}, kShort, error_of(EINTR)});
    CHECK(write_all(file.descriptor, 3, {bytes.data(), bytes.size()}) == 0);
    CHECK(read_all(file.descriptor, 3, back.data(), back.size()) == 0);
  }
  CHECK(back == bytes);
  CHECK(read_all(file.descriptor, 4, back.data(), back.size()) == EIO);
  CHECK(read_all(-1, 0, back.data(), 1) == EBADF);
  CHECK(read_all(-1, 0, back.data(), 0) == 0);
  CHECK(sync_bytes(file.descriptor) == 0);
  CHECK(sync_bytes(-1) == EBADF);
}

}  // namespace
}  // namespace hetero::backend
