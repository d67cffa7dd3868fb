// The engine's own promises, with a machine and a compiler that only count: what is compiled when, what is read from disk, what a known launch
// costs. Nothing here needs a GPU.

#include "backend/cuda/fused/engine.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "backend/base/fnv.h"
#include "backend/fused/call.h"
#include "tests/backend/child.h"
#include "tests/backend/cpu/fused/fused_program.h"
#include "tests/backend/cpu/fused/portable_functions.h"
#include "tests/catch/catch.h"

namespace hetero::backend {
namespace {

using namespace testing;

class CountingMachine final : public CudaMachine {
 public:
  struct Launch {
    void* function;
    unsigned blocks;
    uint64_t first_word;
  };
  int multiprocessors() const override { return 4; }
  Result<std::vector<void*>> load(const std::string& code, const std::vector<std::string>& names) override {
    if (code.find("refused") != std::string::npos) return Status(ErrorClass::kDevice, "no such code");
    const std::lock_guard lock(loading);  // kernels of different code are loaded at the same time
    ++loads;
    std::vector<void*> functions;
    for (size_t i = 0; i < names.size(); ++i) functions.push_back(reinterpret_cast<void*>(++functions_made));
    return functions;
  }
  Status launch(void* function, unsigned blocks, unsigned, void* arguments, void*) override {
    if (recording) launches.push_back({function, blocks, *static_cast<uint64_t*>(arguments)});
    return {};
  }
  Result<void*> allocate(size_t bytes) override { return static_cast<void*>(memory.emplace_back(bytes).data()); }

  int loads = 0;
  uintptr_t functions_made = 0;
  std::mutex loading;
  bool recording = true;
  std::vector<Launch> launches;
  std::vector<std::vector<char>> memory;
};

class CountingCompiler final : public CudaCompiler {
 public:
  std::string target() const override { return architecture; }
  Result<std::string> compile(const std::string& text) override {
    busy.lock();  // waits
    busy.unlock();
    ++compiled;
    if (fails) return Status(ErrorClass::kDevice, "the compiler is out of order");
    return makes.empty() ? "code of " + std::to_string(fnv(text)) : makes;
  }
  std::string architecture = "sm_90 13.0";
  std::mutex busy;  // who holds it keeps the compiler from finishing
  std::atomic<int> compiled{0};
  bool fails = false;
  std::string makes;  // code; "" for one of each text
};

struct Folder {
  Folder() {
    char name[] = "/tmp/hetero_kernels_XXXXXX";
    path = mkdtemp(name);
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::vector<std::filesystem::path> files() const {
    std::vector<std::filesystem::path> found;
    for (const auto& it : std::filesystem::directory_iterator(path + "/cache")) found.push_back(it.path());
    return found;
  }
  std::string path;
};

MapFunction add() { return {kAdd<float>.pointer, {MapOperation::kAdd, EntryType::kFloat32, {}, NumberForm::kNone}}; }
const Reducer& sum() {
  static const Reducer named = [] {
    Reducer made = kSum<float, float>;
    made.formula = {ReduceOperation::kSum, EntryType::kFloat32};
    return made;
  }();
  return named;
}

// A kernel prepared for a space, with addresses that are never read.
struct Prepared {
  FusedKernel kernel;
  FusedSpace space;
  FusedLaunch launch;
  std::vector<void*> operands;
  std::vector<Number> numbers{4, Number{.bits = 0}};

  Prepared(FusedKernel made, FusedSpace sizes) : kernel(std::move(made)), space(std::move(sizes)) {
    REQUIRE(prepare_fused(kernel, space, launch).ok());
    for (uint16_t o = 0; o < kernel.operand_count; ++o)
      operands.push_back(reinterpret_cast<void*>(uintptr_t{4096} * (o + 1)));
  }
  FusedCall call() const { return {kernel, space, launch, operands.data(), numbers.data()}; }
};

// What is compiled for its first stage.
std::string first_source(const Prepared& it) {
  const CudaStages stages = cuda_stages(it.kernel, it.space, it.launch);
  const CudaStage& stage = stages.stages[0];
  return write_source(stage.kernel, choose_variant(stage.kernel, stage.space, true, 4)).text;
}

Prepared pointwise(int64_t entries) {
  KernelBuilder b;
  b.store(2, b.map(add(), 4, {b.load(0, 4), b.load(1, 4)}));
  return {b.kernel, dense_space({entries}, 0, 3, 4)};
}
Prepared total(int64_t rows, int64_t row) {
  KernelBuilder b;
  const uint16_t by_row = b.reduce(sum(), 4, b.load(0, 4));
  b.store(1, b.total(sum(), 4, by_row));
  FusedSpace space = dense_space({rows, row}, 1, 2, 4);
  std::fill_n(space.operands[1].strides, kMaxFusedRank, 0);
  return {b.kernel, space};
}

TEST_CASE("engine: a launch is planned once, and its code compiled once for all sizes") {
  CountingMachine machine;
  CountingCompiler compiler;
  FusedEngine engine(machine, &compiler, {});
  const Prepared first = pointwise(4096), second = pointwise(65536);
  for (int i = 0; i < 3; ++i) REQUIRE(engine.run(first.call(), nullptr).ok());
  REQUIRE(engine.run(second.call(), nullptr).ok());
  REQUIRE(engine.counters().planned == 2);
  REQUIRE(compiler.compiled == 1);
  REQUIRE(machine.loads == 1);
  REQUIRE(machine.launches.size() == 4);
  REQUIRE(machine.launches[0].first_word == 4096);
  REQUIRE(machine.launches[0].function == machine.launches[3].function);
  REQUIRE(machine.launches[0].blocks < machine.launches[3].blocks);
}

TEST_CASE("engine: addresses that are not aligned take code of their own") {
  CountingMachine machine;
  CountingCompiler compiler;
  FusedEngine engine(machine, &compiler, {});
  Prepared it = pointwise(4096);
  REQUIRE(engine.run(it.call(), nullptr).ok());
  it.operands[1] = reinterpret_cast<void*>(uintptr_t{8196});
  REQUIRE(engine.run(it.call(), nullptr).ok());
  REQUIRE(compiler.compiled == 2);
  REQUIRE(engine.counters().planned == 1);
  REQUIRE(machine.launches[0].function != machine.launches[1].function);
}

TEST_CASE("engine: totals run as stages that pass on memory of the engine, which is allocated once") {
  CountingMachine machine;
  CountingCompiler compiler;
  FusedEngine engine(machine, &compiler, {});
  const Prepared it = total(100, 300);
  for (int i = 0; i < 3; ++i) REQUIRE(engine.run(it.call(), nullptr).ok());
  REQUIRE(machine.launches.size() == 6);
  REQUIRE(machine.memory.size() == 1);
  // One long row is cut into parts: a pass, and what merges them.
  const Prepared whole = total(1, 1 << 20);
  machine.launches.clear();
  REQUIRE(engine.run(whole.call(), nullptr).ok());
  REQUIRE(machine.launches.size() == 3);
  REQUIRE(machine.launches[0].blocks > 1);
}

TEST_CASE("engine: another process reads from disk what one compiled") {
  const Folder folder;
  const FusedEngine::Options options{folder.path + "/cache"};
  const Prepared first = pointwise(4096), second = pointwise(4096);
  CountingCompiler compiler;
  {
    CountingMachine machine;
    FusedEngine engine(machine, &compiler, options);
    REQUIRE(engine.run(first.call(), nullptr).ok());
    REQUIRE(engine.counters().from_disk == 0);
  }
  CountingMachine machine;
  FusedEngine engine(machine, &compiler, options);
  REQUIRE(engine.run(second.call(), nullptr).ok());
  REQUIRE(engine.counters().from_disk == 1);
  REQUIRE(compiler.compiled == 1);
  REQUIRE(folder.files().size() == 1);

  // Another GPU, or another compiler, does not take it.
  compiler.architecture = "sm_80 13.0";
  CountingMachine other;
  FusedEngine elsewhere(other, &compiler, options);
  REQUIRE(elsewhere.run(pointwise(4096).call(), nullptr).ok());
  REQUIRE(compiler.compiled == 2);
}

TEST_CASE("engine: a launch that another engine knows runs") {
  CountingMachine machine, other;
  CountingCompiler compiler;
  FusedEngine engine(machine, &compiler, {}), second(other, &compiler, {});
  const Prepared it = pointwise(4096);
  REQUIRE(engine.run(it.call(), nullptr).ok());
  REQUIRE(second.run(it.call(), nullptr).ok());
  REQUIRE(machine.launches.size() == 1);
  REQUIRE(other.launches.size() == 1);
}

// -- The interpreter -------------------------------------------------------------------------------------------------------------------------

constexpr std::string_view kInterpreter = "an interpreter";

// More values at a time than the interpreter has slots for.
Prepared many_values() {
  KernelBuilder b;
  std::vector<uint16_t> loads;
  for (int i = 0; i < 200; ++i) loads.push_back(b.load(0, 4));
  uint16_t all = loads.back();
  for (const uint16_t it : loads) all = b.map(add(), 4, {all, it});
  b.store(1, all);
  return {b.kernel, dense_space({4096}, 0, 2, 4)};
}

TEST_CASE("engine: what is not compiled yet is interpreted at once, and its code takes over") {
  CountingMachine machine;
  CountingCompiler compiler;
  FusedEngine engine(machine, &compiler, {.interpreter = kInterpreter});
  REQUIRE(engine.has_interpreter());
  const Prepared it = pointwise(4096);
  std::unique_lock busy(compiler.busy);
  for (int i = 0; i < 2; ++i) REQUIRE(engine.run(it.call(), nullptr).ok());
  engine.wait_until_compiled();  // nothing was asked for
  for (int i = 0; i < 3; ++i) REQUIRE(engine.run(it.call(), nullptr).ok());
  REQUIRE(compiler.compiled == 0);
  REQUIRE(engine.counters().interpreted == 5);
  REQUIRE(machine.loads == 1);  // the interpreter

  busy.unlock();
  engine.wait_until_compiled();
  REQUIRE(compiler.compiled == 1);
  for (int i = 0; i < 2; ++i) REQUIRE(engine.run(it.call(), nullptr).ok());
  REQUIRE(engine.counters().interpreted == 5);
  REQUIRE(engine.counters().launches == 7);
  REQUIRE(machine.loads == 2);
  REQUIRE(machine.launches[4].function == machine.launches[0].function);
  REQUIRE(machine.launches[5].function != machine.launches[0].function);
  // What else has the code is never interpreted.
  REQUIRE(engine.run(pointwise(65536).call(), nullptr).ok());
  REQUIRE(engine.counters().interpreted == 5);
}

TEST_CASE("engine: what is asked for ahead is compiled before it runs") {
  CountingMachine machine;
  CountingCompiler compiler;
  FusedEngine engine(machine, &compiler, {.interpreter = kInterpreter});
  const Prepared it = pointwise(4096);
  engine.prepare(it.call());
  engine.wait_until_compiled();
  REQUIRE(engine.run(it.call(), nullptr).ok());
  REQUIRE(compiler.compiled == 1);
  REQUIRE(engine.counters().interpreted == 0);
}

TEST_CASE("engine: a run says whether a later one will have better code") {
  CountingMachine machine;
  CountingCompiler compiler;
  FusedEngine engine(machine, &compiler, {.interpreter = kInterpreter});
  const Prepared it = pointwise(4096);
  const auto is_provisional = [&](FusedEngine& which, const Prepared& call) {
    bool provisional = false;
    REQUIRE(which.run(call.call(), nullptr, &provisional).ok());
    return provisional;
  };
  compiler.busy.lock();
  for (int i = 0; i < 5; ++i) REQUIRE(is_provisional(engine, it));
  compiler.busy.unlock();
  engine.wait_until_compiled();
  REQUIRE_FALSE(is_provisional(engine, it));
  REQUIRE(engine.counters().interpreted == 5);
  // Where nothing better will come, the interpreter is what there is.
  FusedEngine without(machine, nullptr, {.interpreter = kInterpreter});
  REQUIRE_FALSE(is_provisional(without, pointwise(4096)));
  compiler.fails = true;
  FusedEngine failing(machine, &compiler, {.interpreter = kInterpreter, .warn = [](const std::string&) {}});
  const Prepared other = pointwise(8192);
  for (int i = 0; i < 3; ++i) REQUIRE(is_provisional(failing, other));
  failing.wait_until_compiled();
  REQUIRE_FALSE(is_provisional(failing, other));
}

TEST_CASE("engine: what is on disk is not interpreted") {
  const Folder folder;
  const FusedEngine::Options options{.cache_folder = folder.path + "/cache", .interpreter = kInterpreter};
  CountingCompiler compiler;
  const Prepared first = pointwise(4096), second = pointwise(4096);
  {
    CountingMachine machine;
    FusedEngine engine(machine, &compiler, options);
    engine.prepare(first.call());
    engine.wait_until_compiled();
  }
  CountingMachine machine;
  FusedEngine engine(machine, &compiler, options);
  REQUIRE(engine.run(second.call(), nullptr).ok());
  REQUIRE(engine.counters().from_disk == 1);
  REQUIRE(engine.counters().interpreted == 0);
  REQUIRE(compiler.compiled == 1);
}

TEST_CASE("engine: code on disk that the driver refuses is made anew behind the interpreter") {
  const Folder folder;
  const Prepared it = pointwise(4096);
  CountingCompiler compiler;
  const std::string text = first_source(it);
  const KernelCache cache(folder.path + "/cache");
  cache.add(text, compiler.target(), "refused");
  CountingMachine machine;
  FusedEngine engine(machine, &compiler, {.cache_folder = folder.path + "/cache", .interpreter = kInterpreter});
  REQUIRE(engine.run(it.call(), nullptr).ok());
  REQUIRE(engine.counters().interpreted == 1);
  engine.wait_until_compiled();
  REQUIRE(engine.run(it.call(), nullptr).ok());
  REQUIRE(engine.counters().interpreted == 1);
  REQUIRE(compiler.compiled == 1);
  REQUIRE(cache.find(text, compiler.target()) != "refused");
}

TEST_CASE("engine: a compiler that fails is reported once, and the interpreter goes on") {
  CountingMachine machine;
  CountingCompiler compiler;
  compiler.fails = true;
  std::vector<std::string> warnings;
  FusedEngine engine(machine, &compiler, {.interpreter = kInterpreter, .warn = [&](const std::string& sentence) {
                                            warnings.push_back(sentence);
                                          }});
  const Prepared first = pointwise(4096), second = total(100, 300);
  for (int i = 0; i < 6; ++i) {
    REQUIRE(engine.run(first.call(), nullptr).ok());
    REQUIRE(engine.run(second.call(), nullptr).ok());
    engine.wait_until_compiled();
  }
  REQUIRE(compiler.compiled == 2);
  REQUIRE(engine.counters().failed == 2);
  REQUIRE(engine.counters().interpreted == 6 * 3);
  REQUIRE(warnings.size() == 1);
  REQUIRE(warnings[0].find("the compiler is out of order") != std::string::npos);
}

TEST_CASE("engine: what kernels pass on lies apart for each stream, where they may run at the same time") {
  CountingMachine machine;
  FusedEngine engine(machine, nullptr, {.interpreter = kInterpreter});
  const Prepared small = total(100, 300);
  int streams[2];
  for (int i = 0; i < 6; ++i) REQUIRE(engine.run(small.call(), &streams[i % 2]).ok());
  REQUIRE(machine.memory.size() == 2);
}

TEST_CASE("engine: without a compiler it takes what can be interpreted, and without both nothing") {
  CountingMachine machine;
  FusedEngine engine(machine, nullptr, {.interpreter = kInterpreter});
  const Prepared small = total(100, 300), large = many_values();
  REQUIRE(engine.can_fuse(small.kernel));
  REQUIRE_FALSE(engine.can_fuse(large.kernel));
  engine.prepare(small.call());
  for (int i = 0; i < 5; ++i) REQUIRE(engine.run(small.call(), nullptr).ok());
  REQUIRE(engine.counters().interpreted == 10);
  REQUIRE(machine.memory.size() == 1);

  FusedEngine refused(machine, nullptr, {.interpreter = "refused"}), none(machine, nullptr, {});
  REQUIRE_FALSE(refused.has_interpreter());
  REQUIRE_FALSE(refused.can_fuse(small.kernel));
  REQUIRE_FALSE(none.can_fuse(small.kernel));
}

TEST_CASE("engine: what is too large for the interpreter waits for its code") {
  CountingMachine machine;
  CountingCompiler compiler;
  FusedEngine engine(machine, &compiler, {.interpreter = kInterpreter});
  const Prepared it = many_values();
  REQUIRE(engine.can_fuse(it.kernel));
  REQUIRE(engine.run(it.call(), nullptr).ok());
  REQUIRE(compiler.compiled == 1);
  REQUIRE(engine.counters().interpreted == 0);

  // And fails with it.
  compiler.fails = true;
  int warnings = 0;
  FusedEngine failing(machine, &compiler,
                      {.interpreter = kInterpreter, .warn = [&](const std::string&) { ++warnings; }});
  REQUIRE(failing.run(it.call(), nullptr).message() == "the compiler is out of order");
  REQUIRE(warnings == 0);
}

TEST_CASE("engine: code that the driver refuses leaves the kernel to the interpreter") {
  CountingMachine machine;
  CountingCompiler compiler;
  compiler.makes = "refused";
  int warnings = 0;
  FusedEngine engine(machine, &compiler,
                     {.interpreter = kInterpreter, .warn = [&](const std::string&) { ++warnings; }});
  const Prepared it = pointwise(4096);
  engine.prepare(it.call());
  engine.wait_until_compiled();
  for (int i = 0; i < 5; ++i) REQUIRE(engine.run(it.call(), nullptr).ok());
  REQUIRE(engine.counters().interpreted == 5);
  REQUIRE(compiler.compiled == 1);
  REQUIRE(warnings == 1);
}

TEST_CASE("kernel cache: a file that is cut, changed or lengthened is as good as none") {
  const Folder folder;
  const KernelCache cache(folder.path + "/cache");
  cache.add("source", "target", "machine code");
  REQUIRE(cache.find("source", "target") == "machine code");
  REQUIRE_FALSE(cache.find("source", "other").has_value());
  const std::string path = cache.path_of("source", "target");
  std::string whole;
  {
    std::ifstream file(path, std::ios::binary);
    whole.assign(std::istreambuf_iterator<char>(file), {});
  }
  const auto write = [&](const std::string& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  };
  for (size_t kept = 0; kept < whole.size(); kept += 3) {
    write(whole.substr(0, kept));
    REQUIRE_FALSE(cache.find("source", "target").has_value());
  }
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string changed = whole;
    changed[at] = static_cast<char>(changed[at] ^ 0x10);
    write(changed);
    REQUIRE_FALSE(cache.find("source", "target").has_value());
  }
  write(whole + "x");
  REQUIRE_FALSE(cache.find("source", "target").has_value());
  cache.add("source", "target", "machine code");
  REQUIRE(cache.find("source", "target") == "machine code");
  REQUIRE(folder.files().size() == 1);
}

// Sets when a file was used last.
void set_age(const std::string& path, int seconds) {
  const auto now = std::filesystem::last_write_time(path);
  std::filesystem::last_write_time(path, now - std::chrono::seconds(seconds));
}

TEST_CASE("kernel cache: the oldest files leave where they take more than the limit") {
  const Folder folder;
  const std::string code(1000, 'c');
  const KernelCache cache(folder.path + "/cache", 10000);
  for (int i = 0; i < 8; ++i) {
    const std::string source = "source " + std::to_string(i);
    cache.add(source, "target", code);
    set_age(cache.path_of(source, "target"), 1000 - i);
  }
  REQUIRE(folder.files().size() == 8);
  for (int i = 8; i < 40; ++i) cache.add("source " + std::to_string(i), "target", code);
  REQUIRE(folder.files().size() >= 8);
  REQUIRE(folder.files().size() <= 11);
  REQUIRE_FALSE(cache.find("source 1", "target").has_value());
  REQUIRE(cache.find("source 39", "target").has_value());
}

TEST_CASE("kernel cache: a file that was found outlives those that were added before") {
  const Folder folder;
  const std::string code(1000, 'c');
  for (int i = 0; i < 12; ++i) {
    const KernelCache writer(folder.path + "/cache");
    const std::string source = "source " + std::to_string(i);
    writer.add(source, "target", code);
    set_age(writer.path_of(source, "target"), 1000 - i);
  }
  const std::string stranger = folder.path + "/cache/notes", abandoned = folder.path + "/cache/x.cubin.1.0";
  std::ofstream(stranger) << "of the user";
  std::ofstream(abandoned) << "half";
  set_age(abandoned, 10000);
  const KernelCache cache(folder.path + "/cache", 10000);
  REQUIRE(cache.find("source 0", "target").has_value());
  cache.add("another", "target", code);
  REQUIRE(cache.find("source 0", "target").has_value());
  REQUIRE_FALSE(cache.find("source 1", "target").has_value());
  REQUIRE(cache.find("source 11", "target").has_value());
  REQUIRE(cache.find("another", "target").has_value());
  REQUIRE(std::filesystem::exists(stranger));
  REQUIRE_FALSE(std::filesystem::exists(abandoned));
}

TEST_CASE("kernel cache: processes that add and trim at once find whole files or none") {
  const Folder folder;
  const std::string path = folder.path + "/cache";
  const auto work = [&path](int seed) {
    const KernelCache cache(path, 20000);
    int wrong = 0;
    for (int i = 0; i < 200; ++i) {
      const std::string source = "source " + std::to_string((i * 7 + seed) % 60);
      const std::optional<std::string> found = cache.find(source, "target");
      if (found.has_value()) {
        wrong += *found != source + std::string(900, 'c');
      } else {
        cache.add(source, "target", source + std::string(900, 'c'));
      }
    }
    return wrong;
  };
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 3; ++t) threads.emplace_back([&, t] { wrong += work(t); });
  for (std::thread& it : threads) it.join();
  const ChildOutcome outcome = run_in_child([&] { return work(5); });
  REQUIRE(outcome.exit_code == 0);
  REQUIRE(wrong == 0);
  REQUIRE(folder.files().size() < 40);
}

TEST_CASE("kernel cache: a folder that cannot be made keeps nothing and harms nobody") {
  const KernelCache nowhere("/proc/none/cache");
  nowhere.add("source", "target", "code");
  REQUIRE_FALSE(nowhere.find("source", "target").has_value());
  const KernelCache none("");
  none.add("source", "target", "code");
  REQUIRE_FALSE(none.find("source", "target").has_value());
}

TEST_CASE("engine: code on disk that the driver refuses is made anew") {
  const Folder folder;
  const Prepared it = pointwise(4096);
  const std::string text = first_source(it);
  CountingCompiler compiler;
  const KernelCache cache(folder.path + "/cache");
  cache.add(text, compiler.target(), "refused");
  CountingMachine machine;
  FusedEngine engine(machine, &compiler, {folder.path + "/cache"});
  REQUIRE(engine.run(it.call(), nullptr).ok());
  REQUIRE(engine.counters().from_disk == 1);
  REQUIRE(compiler.compiled == 1);
  REQUIRE(cache.find(text, compiler.target()) != "refused");
}

TEST_CASE("engine: a compiler that fails is reported by each run, and asked once") {
  CountingMachine machine;
  CountingCompiler compiler;
  compiler.fails = true;
  FusedEngine engine(machine, &compiler, {});
  const Prepared it = pointwise(4096);
  for (int i = 0; i < 2; ++i) {
    const Status status = engine.run(it.call(), nullptr);
    REQUIRE_FALSE(status.ok());
    REQUIRE(status.message() == "the compiler is out of order");
  }
  REQUIRE(compiler.compiled == 1);
  REQUIRE(machine.launches.empty());
}

TEST_CASE("engine: what was prepared in the background is not compiled again") {
  CountingMachine machine;
  CountingCompiler compiler;
  FusedEngine engine(machine, &compiler, {});
  const Prepared it = total(100, 300);
  engine.prepare(it.call());
  engine.wait_until_compiled();
  REQUIRE(compiler.compiled == 1);  // both stages are sums of rows
  REQUIRE(machine.loads == 0);      // loading is for threads where the device is current
  REQUIRE(engine.run(it.call(), nullptr).ok());
  REQUIRE(compiler.compiled == 1);
  REQUIRE(machine.loads == 1);
}

TEST_CASE("engine: it may be destroyed while it compiles, and used by many threads at once") {
  for (const std::string_view interpreter : {std::string_view(), kInterpreter}) {
    CountingMachine machine;
    machine.recording = false;
    CountingCompiler compiler;
    FusedEngine engine(machine, &compiler, {.interpreter = interpreter});
    const Prepared shared = pointwise(4096);
    std::vector<Prepared> own;
    for (int t = 0; t < 4; ++t) own.push_back(total(48 + 4 * t, 300));
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < 50; ++i) {
          (void)engine.run(shared.call(), nullptr);
          (void)engine.run(own[t].call(), nullptr);
          if (i == 10) engine.prepare(own[t].call());
        }
      });
    }
    for (std::thread& it : threads) it.join();
    engine.wait_until_compiled();
    REQUIRE(engine.counters().launches == 4 * 50 * 3);
    REQUIRE(compiler.compiled == 2);
    const Prepared last = pointwise(77);
    engine.prepare(last.call());
  }
}

TEST_CASE("engine: a forked child is refused, and ends") {
  CountingMachine machine;
  CountingCompiler compiler;
  FusedEngine engine(machine, &compiler, {});
  const Prepared it = pointwise(4096);
  engine.prepare(it.call());
  engine.wait_until_compiled();
  const ChildOutcome outcome = run_in_child([&] {
    engine.prepare(it.call());
    return engine.run(it.call(), nullptr).ok() ? 1 : 0;
  });
  REQUIRE(outcome.exit_code == 0);
  REQUIRE(engine.run(it.call(), nullptr).ok());
}

}  // namespace
}  // namespace hetero::backend
