#include "backend/cpu/fused/compile.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <iterator>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace hetero::backend {
namespace {

constexpr size_t kMaxLoopBytes = 32 << 10;
constexpr size_t kMaxRunSteps = 128;  // longer ones are cut
constexpr uint16_t kNone = 0xFFFF;

std::atomic<InstructionSet> limit{InstructionSet::kAvx512};
std::atomic<bool> refused{false};  // the system does not give executable memory

// ---- The table of all code

class CodeTable {
 public:
  std::shared_ptr<const VectorCode> find(const std::string& key) {
    const std::lock_guard lock(mutex_);
    const auto it = codes_.find(key);
    return it == codes_.end() ? nullptr : it->second.lock();
  }
  std::shared_ptr<const VectorCode> add(const std::shared_ptr<VectorCode>& code) {
    const std::lock_guard lock(mutex_);
    auto& entry = codes_[code->key];
    if (std::shared_ptr<const VectorCode> first = entry.lock()) return first;
    entry = code;
    return code;
  }
  void remove(const std::string& key) {
    const std::lock_guard lock(mutex_);
    const auto it = codes_.find(key);
    if (it != codes_.end() && it->second.expired()) codes_.erase(it);
  }

 private:
  std::mutex mutex_;
  std::unordered_map<std::string, std::weak_ptr<const VectorCode>> codes_;
};

CodeTable& code_table() {
  static auto* table = new CodeTable;  // leaked: programs may go after static destructors
  return *table;
}

std::shared_ptr<const VectorCode> generate(std::span<const VectorInstruction> run, int array_count, InstructionSet set,
                                           const std::string& key) {
  const auto buffer = std::make_unique_for_overwrite<uint8_t[]>(kMaxLoopBytes);
  const size_t bytes = generate_vector_loop(run, array_count, set, {buffer.get(), kMaxLoopBytes});
  if (bytes == 0) return nullptr;
  auto code = std::make_shared<VectorCode>();
  code->memory = ExecutableMemory::copy({buffer.get(), bytes}, kMaxCodeBytes);
  if (!code->memory) {
    if (ExecutableMemory::bytes_in_use() < kMaxCodeBytes / 2) refused.store(true, std::memory_order_relaxed);
    return nullptr;
  }
  code->loop = reinterpret_cast<VectorLoop>(reinterpret_cast<uintptr_t>(code->memory.data()));
  code->lanes = vector_lanes(run, set);
  code->key = key;
  return code_table().add(code);
}

// ---- Compiling

// Memory of the compiler, kept from call to call.
struct Workspace {
  std::vector<ProgramStep> steps;
  std::vector<uint32_t> run;  // steps, in order
  std::vector<VectorInstruction> instructions;
  std::string key;
  // By place.
  std::vector<uint8_t> used_by_run;
  std::vector<uint16_t> value, array;
};

enum Use : uint8_t { kReads = 1, kWrites = 2 };

class ProgramCompiler {
 public:
  ProgramCompiler(FusedProgram& program, InstructionSet set, Workspace& work)
      : program_(program), set_(set), work_(work) {}

  void run() {
    work_.steps.clear();
    work_.used_by_run.assign(program_.places.size(), 0);
    keep(program_.task);
    // In the order in which the scheduler emits them.
    for (size_t i = program_.phases.size(); i-- > 0;) {
      Phase& phase = program_.phases[i];
      keep(phase.rows);
      keep(phase.expand);
      compile(phase.pieces);
    }
    keep(program_.last);
    program_.steps.swap(work_.steps);
  }

 private:
  using Kind = ProgramStep::Kind;

  uint32_t position() const { return static_cast<uint32_t>(work_.steps.size()); }
  const ProgramStep& step(uint32_t s) const { return program_.steps[s]; }

  void keep(Section& section) {
    const uint32_t begin = position();
    for (uint32_t s = section.begin; s < section.end; ++s) work_.steps.push_back(step(s));
    section = {begin, position()};
  }

  void compile(Section& section) {
    const uint32_t begin = position();
    work_.run.clear();
    for (uint32_t s = section.begin; s < section.end; ++s) {
      if (can_compile(step(s))) {
        work_.run.push_back(s);
        note_uses(step(s));
        if (work_.run.size() == kMaxRunSteps) end_run();
      } else {
        if (!is_independent(step(s))) end_run();
        work_.steps.push_back(step(s));
      }
    }
    end_run();
    section = {begin, position()};
  }

  static bool can_compile(const ProgramStep& it) {
    if (it.row || it.out_bytes > 8) return false;
    if (it.kind == Kind::kMap) return can_generate(it.map.formula);
    return it.kind == Kind::kCopy || it.kind == Kind::kFill;
  }

  int inputs_of(const ProgramStep& it) const {
    return it.kind == Kind::kMap ? input_count(it.map.formula) : it.kind == Kind::kCopy ? 1 : 0;
  }

  void note_uses(const ProgramStep& it) {
    for (int j = inputs_of(it) - 1; j >= 0; --j) work_.used_by_run[it.in[j]] |= kReads;
    work_.used_by_run[it.out] |= kWrites;
    const bool in_memory = program_.places[it.out].kind != Place::Kind::kScratch;
    writes_memory_ = writes_memory_ || in_memory;
  }

  // Whether the step may go before the run. Operands may share memory; what is not scratch memory
  // is taken to be one place.
  bool is_independent(const ProgramStep& it) const {
    if (work_.run.empty()) return true;
    if (writes_memory_ || it.kind == Kind::kScatter) return false;
    for (const uint32_t in : it.in) {
      if ((work_.used_by_run[in] & kWrites) != 0) return false;
    }
    return work_.used_by_run[it.out] == 0 && program_.places[it.out].kind == Place::Kind::kScratch;
  }

  void end_run() {
    emit_run(work_.run);
    work_.run.clear();
    std::fill(work_.used_by_run.begin(), work_.used_by_run.end(), 0);
    writes_memory_ = false;
  }

  void emit_run(std::span<const uint32_t> run) {
    const auto maps = std::count_if(run.begin(), run.end(), [&](uint32_t s) { return step(s).kind == Kind::kMap; });
    if (maps > 0 && (run.size() >= 2 || is_worth_generating_alone(step(run[0]).map.formula))) {
      const Outcome outcome = emit_compiled(run);
      if (outcome == Outcome::kCompiled) return;
      if (outcome == Outcome::kTooLarge && run.size() >= 2) {
        emit_run(run.first(run.size() / 2));
        return emit_run(run.subspan(run.size() / 2));
      }
    }
    for (const uint32_t s : run) work_.steps.push_back(step(s));
  }

  enum class Outcome : uint8_t { kCompiled, kTooLarge, kImpossible };

  Outcome emit_compiled(std::span<const uint32_t> run) {
    const auto first_array = static_cast<uint32_t>(program_.arrays.size());
    const uint16_t first_number = first_number_of(run);
    const bool possible = describe(run, first_array, first_number);
    const size_t array_count = program_.arrays.size() - first_array;
    std::shared_ptr<const VectorCode> code;
    Outcome outcome = Outcome::kImpossible;
    if (array_count == 0) return Outcome::kImpossible;
    if (possible && (array_count > kMaxVectorArrays || work_.instructions.size() > kMaxVectorInstructions)) {
      outcome = Outcome::kTooLarge;
    } else if (possible) {
      code = find_code(static_cast<int>(array_count));
      if (code == nullptr && !refused.load(std::memory_order_relaxed)) outcome = Outcome::kTooLarge;
    }
    if (code == nullptr) {
      program_.arrays.resize(first_array);
      return outcome;
    }
    ProgramStep& it = work_.steps.emplace_back(step(run.back()));
    it.kind = Kind::kCompiled;
    it.out = program_.arrays[first_array].place;
    std::fill(std::begin(it.in), std::end(it.in), it.out);
    it.compiled = static_cast<uint32_t>(program_.compiled.size());
    program_.compiled.push_back({.code = std::move(code),
                                 .arrays = {first_array, static_cast<uint32_t>(program_.arrays.size())},
                                 .first_number = first_number,
                                 .step_count = static_cast<uint16_t>(run.size())});
    return Outcome::kCompiled;
  }

  static bool has_numbers(const ProgramStep& it) {
    return it.kind == Kind::kFill || (it.kind == Kind::kMap && number_count(it.map.formula) > 0);
  }
  // Runs that differ only in where their numbers stand are equal.
  uint16_t first_number_of(std::span<const uint32_t> run) const {
    uint16_t first = kNone;
    for (const uint32_t s : run) {
      if (has_numbers(step(s))) first = std::min(first, step(s).first_number);
    }
    return first == kNone ? 0 : first;
  }

  // Writes the run down as instructions, and its arrays into the program. False where a place has
  // entries of one size before the run and of another one behind it: a vector of the wider would
  // overwrite what is still to be read.
  bool describe(std::span<const uint32_t> run, uint32_t first_array, uint16_t first_number) {
    work_.instructions.clear();
    work_.value.assign(program_.places.size(), kNone);
    work_.array.assign(program_.places.size(), kNone);
    uint16_t values = 0;
    bool possible = true;
    const auto array_of = [&](uint32_t place, uint8_t bytes) -> CompiledArray& {
      if (work_.array[place] == kNone) {
        work_.array[place] = static_cast<uint16_t>(program_.arrays.size() - first_array);
        program_.arrays.push_back({place, bytes, false, false});
      }
      CompiledArray& it = program_.arrays[first_array + work_.array[place]];
      possible = possible && it.bytes == bytes;
      return it;
    };
    const auto read = [&](uint32_t place, uint8_t bytes) {
      if (work_.value[place] == kNone) {
        array_of(place, bytes).read = true;
        work_.value[place] = values;
        work_.instructions.push_back(
            {.kind = VectorInstruction::Kind::kLoad, .bytes = bytes, .value = values++, .source = work_.array[place]});
      }
      return work_.value[place];
    };
    for (const uint32_t s : run) {
      const ProgramStep& it = step(s);
      VectorInstruction made{.bytes = it.out_bytes};
      if (it.kind == Kind::kCopy) {
        made.value = read(it.in[0], it.out_bytes);
      } else if (it.kind == Kind::kFill) {
        made.kind = VectorInstruction::Kind::kFill;
      } else {
        made.kind = VectorInstruction::Kind::kMap;
        made.formula = it.map.formula;
        for (int j = 0; j < inputs_of(it); ++j) {
          made.inputs[j] = read(it.in[j], static_cast<uint8_t>(input_bytes(it.map.formula, j)));
        }
      }
      if (has_numbers(it)) made.source = static_cast<uint16_t>(it.first_number - first_number);
      if (it.kind != Kind::kCopy) {
        made.value = values++;
        work_.instructions.push_back(made);
      }
      work_.value[it.out] = made.value;
      if (it.last_read <= run.back()) continue;
      array_of(it.out, it.out_bytes).written = true;
      work_.instructions.push_back({.kind = VectorInstruction::Kind::kStore,
                                    .bytes = it.out_bytes,
                                    .value = made.value,
                                    .source = work_.array[it.out]});
    }
    return possible;
  }

  std::shared_ptr<const VectorCode> find_code(int array_count) {
    work_.key.assign(1, static_cast<char>(set_));
    work_.key.append(reinterpret_cast<const char*>(work_.instructions.data()),
                     work_.instructions.size() * sizeof(VectorInstruction));
    if (auto code = code_table().find(work_.key)) return code;
    return generate(work_.instructions, array_count, set_, work_.key);
  }

  FusedProgram& program_;
  const InstructionSet set_;
  Workspace& work_;
  bool writes_memory_ = false;  // the run at hand
};

}  // namespace

VectorCode::~VectorCode() {
  if (!key.empty()) code_table().remove(key);
}

void limit_instruction_set(InstructionSet set) { limit.store(set, std::memory_order_relaxed); }

InstructionSet compile_target() {
  if (!has_code_generator() || refused.load(std::memory_order_relaxed)) return InstructionSet::kPortable;
  return std::min(limit.load(std::memory_order_relaxed), instruction_set());
}

void compile_program(FusedProgram& program) {
  const InstructionSet set = compile_target();
  if (set == InstructionSet::kPortable) return;
  thread_local Workspace workspace;
  ProgramCompiler(program, set, workspace).run();
}

void run_compiled(const FusedProgram& program, const CompiledRun& run, char* const* places, const Number* numbers,
                  int64_t n) {
  const std::span<const CompiledArray> list(program.arrays.data() + run.arrays.begin,
                                            run.arrays.end - run.arrays.begin);
  const VectorCode& code = *run.code;
  numbers += run.first_number;
  char* arrays[kMaxVectorArrays];
  for (size_t k = 0; k < list.size(); ++k) arrays[k] = places[list[k].place];
  const int64_t whole = n & ~int64_t{code.lanes - 1};
  if (whole > 0) code.loop(arrays, numbers, whole);
  if (whole == n) return;

  // The last entries, less than a vector, in vectors of their own.
  alignas(64) char rest[kMaxVectorArrays][64];
  char* rests[kMaxVectorArrays];
  const auto left = static_cast<size_t>(n - whole);
  for (size_t k = 0; k < list.size(); ++k) {
    rests[k] = rest[k];
    std::memset(rest[k], 0, sizeof(rest[k]));
    if (list[k].read) std::memcpy(rest[k], arrays[k] + whole * list[k].bytes, left * list[k].bytes);
  }
  code.loop(rests, numbers, code.lanes);
  for (size_t k = 0; k < list.size(); ++k) {
    if (list[k].written) std::memcpy(arrays[k] + whole * list[k].bytes, rest[k], left * list[k].bytes);
  }
}

}  // namespace hetero::backend
