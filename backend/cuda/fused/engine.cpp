#include "backend/cuda/fused/engine.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <utility>

#include "backend/base/spin_lock.h"
#include "backend/cuda/fused/interpreter.h"

namespace hetero::backend {
namespace {

constexpr size_t kMaxWords = 4000;  // of arguments; what the driver takes
static_assert(kMaxWords >= size_t{kInterpreterSizes[kInterpreterSizeCount - 1].words});
constexpr size_t kMaxStageOperands = 2 * kMaxCudaOperands;
constexpr size_t kMaxStages = 4;
constexpr int64_t kMemoryAlignment = 256;
constexpr int64_t kMinMemoryBytes = 1 << 20;
// A kernel that the interpreter has run this often is worth compiling.
constexpr int kRunsBeforeCompiling = 3;

int64_t align(int64_t bytes) { return (bytes + kMemoryAlignment - 1) & ~(kMemoryAlignment - 1); }

std::string first_lines(const std::string& text) {
  constexpr int kLines = 3;
  size_t end = 0;
  for (int line = 0; line < kLines && end != std::string::npos; ++line) end = text.find('\n', end + 1);
  return text.substr(0, end);
}

int64_t next_identity() {
  static std::atomic<int64_t> last{0};
  return ++last;
}

// A thread that compiles while the process ends would do so in a library that is being torn down.
class Workers {
 public:
  static Workers& get() {
    static auto* const made = new Workers;  // leaked: it is used when the process ends
    return *made;
  }
  void add(FusedEngine* engine, void (*stop)(FusedEngine*)) {
    static const int registered = std::atexit([] { get().stop_all(); });
    (void)registered;
    const std::lock_guard lock(mutex_);
    engines_.push_back({engine, stop});
  }
  void remove(FusedEngine* engine) {
    const std::lock_guard lock(mutex_);
    std::erase_if(engines_, [&](const auto& it) { return it.first == engine; });
  }

 private:
  void stop_all() {
    const std::lock_guard lock(mutex_);
    for (const auto& [engine, stop] : engines_) stop(engine);
  }

  std::mutex mutex_;
  std::vector<std::pair<FusedEngine*, void (*)(FusedEngine*)>> engines_;
};

}  // namespace

// ---- code

struct FusedEngine::Code {
  enum class State : uint8_t { kNone, kCompiled, kReady, kFailed };

  CudaSource source;
  std::atomic<State> state{State::kNone};
  std::atomic<bool> has_program{false};  // its kernel can be interpreted
  std::atomic<int> interpreted{0};       // runs of which the code was missed
  std::atomic<bool> asked{false};        // whether the thread was told
  std::mutex making;                     // of what follows
  std::string binary;
  bool from_disk = false;
  bool looked_up = false;        // on disk
  std::vector<void*> functions;  // of source.entries; constant once ready
  Status failure;

  bool is_ready() const { return state.load(std::memory_order_acquire) == State::kReady; }
};

// A stage's source for aligned or unaligned addresses, and its launch in the stage's space.
struct FusedEngine::Variant {
  std::shared_ptr<Code> code;
  CudaLaunch launch;
  std::optional<InterpreterProgram> program;
};

struct FusedEngine::Stage {
  CudaStage cuda;
  std::atomic<Variant*> variants[2] = {};  // by whether addresses are aligned
  std::unique_ptr<Variant> owned[2];
};

struct FusedEngine::Plan : DevicePart {
  int64_t owner = 0;
  std::vector<std::unique_ptr<Stage>> stages;
  int64_t temporary_bytes = 0;
};

FusedEngine::FusedEngine(CudaMachine& machine, CudaCompiler* compiler, Options options)
    : machine_(machine),
      compiler_(compiler),
      cache_(std::move(options.cache_folder)),
      warn_(std::move(options.warn)),
      identity_(next_identity()),
      created_in_fork_generation_(fork_generation()) {
  if (options.interpreter.empty()) return;
  std::vector<std::string> names;
  for (const InterpreterSize& it : kInterpreterSizes) names.emplace_back(it.name);
  Result<std::vector<void*>> functions = machine_.load(std::string(options.interpreter), names);
  if (functions.ok()) interpreter_ = std::move(functions.value());
}

FusedEngine::~FusedEngine() {
  if (fork_generation() != created_in_fork_generation_) {
    (void)thread_.release();  // it does not exist here
    return;
  }
  Workers::get().remove(this);
  stop_thread();
}

std::shared_ptr<FusedEngine::Code> FusedEngine::code_of(const CudaSource& source) {
  std::shared_ptr<Code>& code = codes_[source.text];
  if (code == nullptr) {
    code = std::make_shared<Code>();
    code->source = source;
  }
  return code;
}

bool FusedEngine::can_fuse(const FusedKernel& kernel) const {
  if (cuda_refusal(kernel) != nullptr) return false;
  return compiler_ != nullptr || (has_interpreter() && can_interpret(kernel));
}

// REQUIRES: code.making is held; there is a compiler. This and the next two.
bool FusedEngine::find_on_disk(Code& code) {
  if (std::exchange(code.looked_up, true)) return false;
  std::optional<std::string> found = cache_.find(code.source.text, compiler_->target());
  if (!found.has_value()) return false;
  code.binary = std::move(*found);
  code.from_disk = true;
  ++from_disk_;
  code.state.store(Code::State::kCompiled, std::memory_order_release);
  return true;
}

Status FusedEngine::compile(Code& code) {
  if (code.state.load(std::memory_order_relaxed) != Code::State::kNone) return code.failure;
  if (find_on_disk(code)) return {};
  Result<std::string> made = compiler_->compile(code.source.text);
  if (!made.ok()) return fail(code, made.status());
  code.binary = std::move(made.value());
  code.from_disk = false;
  cache_.add(code.source.text, compiler_->target(), code.binary);
  ++compiled_;
  code.state.store(Code::State::kCompiled, std::memory_order_release);
  return {};
}

Status FusedEngine::fail(Code& code, Status why) {
  code.failure = std::move(why);
  code.state.store(Code::State::kFailed, std::memory_order_release);
  ++failed_;
  // A kernel that cannot be interpreted fails when it runs, and reports that itself.
  if (code.has_program.load() && !warned_.exchange(true)) {
    const std::string sentence =
        "hetero: cuda: a fused kernel could not be compiled and goes on being interpreted, which is slower: " +
        first_lines(code.failure.message());
    if (warn_) {
      warn_(sentence);
    } else {
      std::fprintf(stderr, "%s\n", sentence.c_str());
    }
  }
  return code.failure;
}

// Loads compiled code, and with Wait::kYes compiles it first. REQUIRES: the device is current;
// there is a compiler.
Status FusedEngine::load(const std::shared_ptr<Code>& shared, Wait wait) {
  Code& code = *shared;
  const std::lock_guard lock(code.making);
  std::vector<std::string> names;
  for (const CudaEntry& it : code.source.entries) names.push_back(it.name);
  while (!code.is_ready()) {
    if (code.state.load(std::memory_order_relaxed) == Code::State::kNone && wait == Wait::kNo) {
      ask_for(shared);
      return {};
    }
    if (Status status = compile(code); !status.ok()) return status;
    Result<std::vector<void*>> functions = machine_.load(code.binary, names);
    if (functions.ok()) {
      code.functions = std::move(functions.value());
      code.binary = {};
      code.source.text = {};  // the table's key is the other copy
      ++loaded_;
      code.state.store(Code::State::kReady, std::memory_order_release);
    } else if (code.from_disk) {
      // The driver refuses it: compile it again, and replace the file on disk.
      code.asked.store(false);
      code.state.store(Code::State::kNone, std::memory_order_release);
    } else {
      // If it cannot be interpreted, the next run tries again: there may be more memory then.
      return code.has_program.load() ? fail(code, functions.status()) : functions.status();
    }
  }
  return {};
}

// Advances the code of a kernel that is about to be interpreted, without waiting for it.
void FusedEngine::hasten(const std::shared_ptr<Code>& code) {
  const Code::State state = code->state.load(std::memory_order_acquire);
  if (state == Code::State::kCompiled) (void)load(code, Wait::kNo);
  if (state != Code::State::kNone) return;
  const int runs = code->interpreted.fetch_add(1, std::memory_order_relaxed) + 1;
  if (runs == kRunsBeforeCompiling) ask_for(code);
  if (runs > 1) return;
  bool found = false;
  if (const std::unique_lock making(code->making, std::try_to_lock); making.owns_lock()) found = find_on_disk(*code);
  if (found) (void)load(code, Wait::kNo);
}

// ---- plans

std::unique_ptr<FusedEngine::Plan> FusedEngine::make_plan(const FusedKernel& kernel, const FusedSpace& space,
                                                          const FusedLaunch& launch) {
  auto plan = std::make_unique<Plan>();
  plan->owner = identity_;
  CudaStages stages = cuda_stages(kernel, space, launch);
  plan->temporary_bytes = align(stages.temporary_bytes);
  for (CudaStage& it : stages.stages) {
    plan->stages.push_back(std::make_unique<Stage>());
    plan->stages.back()->cuda = std::move(it);
  }
  ++planned_;
  return plan;
}

FusedEngine::Variant* FusedEngine::make_variant(Stage& stage, bool aligned) {
  const std::lock_guard lock(mutex_);
  if (Variant* known = stage.variants[aligned].load(std::memory_order_acquire)) return known;
  const int multiprocessors = machine_.multiprocessors();
  const CudaVariant chosen = choose_variant(stage.cuda.kernel, stage.cuda.space, aligned, multiprocessors);
  auto made = std::make_unique<Variant>();
  made->code = code_of(write_source(stage.cuda.kernel, chosen));
  made->launch = plan_launch(made->code->source, stage.cuda.space, multiprocessors);
  if (has_interpreter() && !made->code->is_ready()) {
    made->program = interpreter_program(stage.cuda.kernel, chosen, stage.cuda.space, made->launch);
    if (made->program.has_value()) made->code->has_program.store(true);
  }
  stage.owned[aligned] = std::move(made);
  stage.variants[aligned].store(stage.owned[aligned].get(), std::memory_order_release);
  return stage.owned[aligned].get();
}

Result<FusedEngine::Variant*> FusedEngine::ready_variant(Stage& stage, bool aligned) {
  Variant* variant = stage.variants[aligned].load(std::memory_order_acquire);
  if (variant == nullptr) variant = make_variant(stage, aligned);
  if (variant->code->is_ready()) return variant;
  if (variant->program.has_value()) {
    if (compiler_ != nullptr) hasten(variant->code);
    return variant;
  }
  if (compiler_ == nullptr) return Status(ErrorClass::kInternal, "a fused kernel is too large for the interpreter");
  if (Status status = load(variant->code, Wait::kYes); !status.ok()) return status;
  return variant;
}

// ---- runs

Status FusedEngine::run(const FusedCall& call, void* stream, bool* provisional) {
  if (fork_generation() != created_in_fork_generation_) {
    return Status(ErrorClass::kDevice, "cuda: the device cannot be used in a forked process");
  }
  auto* known = static_cast<Plan*>(call.launch.device_part.get());
  if (known != nullptr && known->owner == identity_) return run_plan(*known, call, stream, provisional);
  std::unique_ptr<Plan> plan = make_plan(call.kernel, call.space, call.launch);
  Plan& made = *plan;
  // Here, where another engine's stands beside the launch.
  std::unique_ptr<DevicePart> kept = std::move(plan);
  bool fits = made.stages.size() <= kMaxStages;
  for (const auto& it : made.stages) fits = fits && it->cuda.operands.size() <= kMaxStageOperands;
  if (!fits) return Status(ErrorClass::kInternal, "a fused kernel has more operands than a CUDA kernel takes");
  call.launch.device_part.offer(kept);
  return run_plan(made, call, stream, provisional);
}

bool FusedEngine::is_provisional(const Variant& variant) const {
  return compiler_ != nullptr && !variant.code->is_ready() &&
         variant.code->state.load(std::memory_order_acquire) != Code::State::kFailed;
}

Status FusedEngine::run_plan(Plan& plan, const FusedCall& call, void* stream, bool* provisional) {
  std::array<Variant*, kMaxStages> variants;
  int64_t state_bytes = 0;
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    bool aligned = true;
    for (const StageOperand& it : plan.stages[s]->cuda.operands) {
      const bool is_aligned =
          it.is_temporary || std::bit_cast<uintptr_t>(call.operands[it.operand]) % kCudaVectorBytes == 0;
      aligned = aligned && is_aligned;
    }
    Result<Variant*> variant = ready_variant(*plan.stages[s], aligned);
    if (!variant.ok()) return variant.status();
    variants[s] = variant.value();
    if (provisional != nullptr && is_provisional(*variants[s])) *provisional = true;
    state_bytes = std::max(state_bytes, variants[s]->launch.state_bytes);
  }
  std::unique_lock lock(memory_mutex_, std::defer_lock);
  char* base = nullptr;
  if (plan.temporary_bytes + state_bytes > 0) {
    lock.lock();
    Result<char*> memory = this->memory(plan.temporary_bytes + state_bytes, stream);
    if (!memory.ok()) return memory.status();
    base = memory.value();
  }
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const Stage& stage = *plan.stages[s];
    std::array<void*, kMaxStageOperands> operands;
    for (size_t o = 0; o < stage.cuda.operands.size(); ++o) {
      const StageOperand& it = stage.cuda.operands[o];
      operands[o] = it.is_temporary ? base + it.offset : call.operands[it.operand];
    }
    const Status status =
        run_stage(*variants[s], stage, operands.data(), call.numbers, base + plan.temporary_bytes, stream);
    if (!status.ok()) return status;
  }
  return {};
}

Status FusedEngine::run_stage(const Variant& variant, const Stage& stage, void* const* operands, const Number* numbers,
                              char* states, void* stream) {
  return variant.code->is_ready() ? run_code(variant, stage, operands, numbers, states, stream)
                                  : run_program(variant, operands, numbers, states, stream);
}

Status FusedEngine::run_code(const Variant& variant, const Stage& stage, void* const* operands, const Number* numbers,
                             char* states, void* stream) {
  const Code& code = *variant.code;
  std::array<uint64_t, kMaxWords> words;
  if (code.source.arguments.size() > words.size()) {
    return Status(ErrorClass::kInternal, "a fused kernel has more arguments than a CUDA kernel takes");
  }
  fill_arguments(code.source, stage.cuda.space, variant.launch, operands, numbers, states, words.data());
  for (size_t e = 0; e < code.functions.size(); ++e) {
    const int64_t blocks = variant.launch.blocks(code.source.entries[e].kind);
    if (Status status = launch(code.functions[e], blocks, words.data(), stream); !status.ok()) return status;
  }
  return {};
}

Status FusedEngine::run_program(const Variant& variant, void* const* operands, const Number* numbers, char* states,
                                void* stream) {
  const InterpreterProgram& program = *variant.program;
  std::array<uint64_t, kMaxWords> words;
  program.fill(operands, numbers, states, words.data());
  for (const InterpreterProgram::Launch& it : program.launches) {
    program.choose(it, words.data());
    Status status = launch(interpreter_[program.size], variant.launch.blocks(it.kind), words.data(), stream);
    if (!status.ok()) return status;
    interpreted_.fetch_add(1, std::memory_order_relaxed);
  }
  return {};
}

Status FusedEngine::launch(void* function, int64_t blocks, uint64_t* words, void* stream) {
  Status status = machine_.launch(function, static_cast<unsigned>(blocks), kCudaThreads, words, stream);
  if (status.ok()) launches_.fetch_add(1, std::memory_order_relaxed);
  return status;
}

// Kernels of one stream run one after the other, so the next one does not need what the last one
// left. Smaller memory is kept, because kernels that use it may not have run yet.
Result<char*> FusedEngine::memory(int64_t bytes, void* stream) {
  auto own = std::ranges::find(memories_, stream, &Memory::stream);
  if (own == memories_.end()) own = memories_.insert(own, {stream, nullptr, 0});
  if (bytes > own->bytes) {
    const int64_t wanted = std::max({bytes, 2 * own->bytes, kMinMemoryBytes});
    Result<void*> made = machine_.allocate(static_cast<size_t>(wanted));
    if (!made.ok()) return made.status();
    own->data = static_cast<char*>(made.value());
    own->bytes = wanted;
  }
  return own->data;
}

// ---- the thread

void FusedEngine::prepare(const FusedCall& call) {
  if (fork_generation() != created_in_fork_generation_) return;
  std::unique_ptr<Plan> plan = make_plan(call.kernel, call.space, call.launch);
  for (const auto& stage : plan->stages) {
    const Variant* const variant = make_variant(*stage, true);
    if (compiler_ == nullptr || variant->code->state.load(std::memory_order_acquire) != Code::State::kNone) continue;
    ask_for(variant->code);
  }
  std::unique_ptr<DevicePart> kept = std::move(plan);
  call.launch.device_part.offer(kept);
}

// The thread's work. It starts when it is first needed.
void FusedEngine::ask_for(const std::shared_ptr<Code>& code) {
  if (code->asked.exchange(true)) return;
  std::call_once(started_, [&] { start_thread(); });
  {
    const std::lock_guard lock(mutex_);
    wanted_.push_back(code);
  }
  changed_.notify_all();
}

void FusedEngine::start_thread() {
  thread_ = std::make_unique<std::thread>([this] { compile_in_background(); });
  Workers::get().add(this, [](FusedEngine* engine) { engine->stop_thread(); });
}

void FusedEngine::stop_thread() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_ != nullptr && thread_->joinable()) thread_->join();
}

void FusedEngine::compile_in_background() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stop_ || !wanted_.empty(); });
    if (stop_) return;
    const std::shared_ptr<Code> code = std::move(wanted_.front());
    wanted_.pop_front();
    compiling_ = true;
    lock.unlock();
    {
      const std::lock_guard making(code->making);
      (void)compile(*code);  // a failure is kept
    }
    lock.lock();
    compiling_ = false;
    changed_.notify_all();
  }
}

void FusedEngine::wait_until_compiled() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return stop_ || (wanted_.empty() && !compiling_); });
}

FusedEngine::Counters FusedEngine::counters() const {
  return {launches_.load(),  interpreted_.load(), compiled_.load(), failed_.load(),
          from_disk_.load(), loaded_.load(),      planned_.load()};
}

}  // namespace hetero::backend
