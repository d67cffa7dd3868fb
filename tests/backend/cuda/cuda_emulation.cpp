#include "tests/backend/cuda/cuda_emulation.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <sstream>
#include <utility>

#include "backend/cuda/fused/interpreter.h"
#include "backend/cuda/fused/text.h"
#include "tests/backend/cuda/interpreter_emulation.h"

namespace hetero::backend::testing {
namespace {

std::string without(std::string text, const std::string& part) {
  for (size_t at; (at = text.find(part)) != std::string::npos;) text.erase(at, part.size());
  return text;
}

std::string read(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

char* align16(std::vector<char>& memory) {
  return memory.data() + (16 - reinterpret_cast<uintptr_t>(memory.data()) % 16) % 16;
}

std::string entry_name(size_t source, size_t entry) {
  return "emulated_" + std::to_string(source) + "_" + std::to_string(entry);
}

}  // namespace

bool has_fibers() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  std::fprintf(stderr, "sanitizers do not follow fibers: CUDA kernels are not run\n");
  return false;
#else
  return true;
#endif
}

bool has_compiler() {
  static const bool found = std::system("g++ --version >/dev/null 2>&1") == 0;
  if (!found) std::fprintf(stderr, "g++ was not found: generated CUDA kernels are not run\n");
  return found && has_fibers();
}

CudaEmulation::~CudaEmulation() {
  if (library_ != nullptr) dlclose(library_);
  if (folder_.empty()) return;
  for (const char* name : {"/kernels.cpp", "/kernels.so", "/errors"}) unlink((folder_ + name).c_str());
  rmdir(folder_.c_str());
}

size_t CudaEmulation::add(const FusedKernel& kernel, const FusedSpace& space, bool aligned) {
  FusedLaunch launch;
  if (!prepare_fused(kernel, space, launch).ok()) std::abort();
  Kernel& made = kernels_.emplace_back();
  made.stages = cuda_stages(kernel, space, launch);
  for (const CudaStage& stage : made.stages.stages) {
    const CudaVariant variant = choose_variant(stage.kernel, stage.space, aligned, kMultiprocessors);
    made.sources.push_back(sources_.size());
    sources_.push_back({write_source(stage.kernel, variant), {}});
  }
  return kernels_.size() - 1;
}

std::string CudaEmulation::compile() {
  char folder[] = "/tmp/hetero_emulation_XXXXXX";
  if (mkdtemp(folder) == nullptr) return "no folder for temporary files";
  folder_ = folder;
  std::string text = "#include \"tests/backend/cuda/cuda_threads.h\"\n" + std::string(kFusedHead);
  for (size_t s = 0; s < sources_.size(); ++s) {
    const std::string space = "source_" + std::to_string(s);
    const std::string body = without(without(sources_[s].source.text, kFusedHead), "extern \"C\" ");
    text += "namespace " + space + " {\n" + body + "}\n";
    for (size_t e = 0; e < sources_[s].source.entries.size(); ++e) {
      const bool has_barriers =
          body.find("synchronize_group") != std::string::npos || body.find("reduce_group") != std::string::npos;
      text += "extern \"C\" void " + entry_name(s, e) + "(unsigned blocks, const unsigned long long* words) {\n  " +
              space + "::Arguments a;\n  memcpy(&a, words, sizeof(a));\n  emulation::run(blocks, " +
              (has_barriers ? "true" : "false") + ", [&] { " + space + "::" + sources_[s].source.entries[e].name +
              "(a); });\n}\n";
    }
  }
  std::ofstream(folder_ + "/kernels.cpp") << text;
  const std::string command =
      "g++ -std=c++20 -O1 -fPIC -shared -w -ffp-contract=off -fno-strict-aliasing -I" HETERO_SOURCE_DIR " " + folder_ +
      "/kernels.cpp -o " + folder_ + "/kernels.so 2> " + folder_ + "/errors";
  if (std::system(command.c_str()) != 0) return "g++ failed:\n" + read(folder_ + "/errors").substr(0, 4000);
  library_ = dlopen((folder_ + "/kernels.so").c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library_ == nullptr) return std::string("dlopen: ") + dlerror();
  for (size_t s = 0; s < sources_.size(); ++s) {
    for (size_t e = 0; e < sources_[s].source.entries.size(); ++e) {
      sources_[s].entries.push_back(reinterpret_cast<Entry>(dlsym(library_, entry_name(s, e).c_str())));
    }
  }
  return "";
}

template <typename Run>
void CudaEmulation::each_stage(size_t which, void* const* operands, Run run) const {
  const CudaStages& stages = kernels_[which].stages;
  std::vector<char> temporaries(static_cast<size_t>(stages.temporary_bytes) + 16);
  char* const base = align16(temporaries);
  for (size_t s = 0; s < stages.stages.size(); ++s) {
    std::vector<void*> addresses;
    for (const StageOperand& it : stages.stages[s].operands) {
      addresses.push_back(it.is_temporary ? base + it.offset : operands[it.operand]);
    }
    run(stages.stages[s], sources_[kernels_[which].sources[s]], addresses.data());
  }
}

void CudaEmulation::run(size_t which, void* const* operands, const Number* numbers) const {
  each_stage(which, operands, [&](const CudaStage& stage, const Source& source, void* const* addresses) {
    run(source, stage.space, addresses, numbers);
  });
}

bool CudaEmulation::interpret(size_t which, void* const* operands, const Number* numbers) const {
  bool complete = true;
  each_stage(which, operands, [&](const CudaStage& stage, const Source& source, void* const* addresses) {
    complete = complete && interpret(stage, source.source, addresses, numbers);
  });
  return complete;
}

int CudaEmulation::interpreter_size(size_t which) const {
  const std::vector<CudaStage>& stages = kernels_[which].stages.stages;
  int size = 0;
  for (size_t s = 0; s < stages.size() && size >= 0; ++s) {
    const CudaSource& source = sources_[kernels_[which].sources[s]].source;
    const auto program = interpreter_program(stages[s].kernel, source.variant, stages[s].space,
                                             plan_launch(source, stages[s].space, kMultiprocessors));
    size = program.has_value() ? std::max(size, program->size) : -1;
  }
  return size;
}

bool CudaEmulation::interpret(const CudaStage& stage, const CudaSource& source, void* const* operands,
                              const Number* numbers) {
  const CudaLaunch launch = plan_launch(source, stage.space, kMultiprocessors);
  const std::optional<InterpreterProgram> program =
      interpreter_program(stage.kernel, source.variant, stage.space, launch);
  if (!program.has_value()) return false;
  std::vector<char> states(static_cast<size_t>(launch.state_bytes) + 16);
  // As many words as the kernel's parameter has; what the program leaves out must not matter.
  std::vector<uint64_t> words(static_cast<size_t>(kInterpreterSizes[program->size].words), ~uint64_t{0});
  program->fill(operands, numbers, align16(states), words.data());
  for (const InterpreterProgram::Launch& it : program->launches) {
    program->choose(it, words.data());
    run_interpreter(program->size, static_cast<unsigned>(launch.blocks(it.kind)), words.data());
  }
  return true;
}

void CudaEmulation::run(const Source& source, const RowSpace& space, void* const* operands,
                        const Number* numbers) const {
  const CudaLaunch launch = plan_launch(source.source, space, kMultiprocessors);
  std::vector<char> states(static_cast<size_t>(launch.state_bytes) + 16);
  std::vector<uint64_t> words(source.source.arguments.size());
  fill_arguments(source.source, space, launch, operands, numbers, align16(states), words.data());
  for (size_t e = 0; e < source.entries.size(); ++e) {
    source.entries[e](static_cast<unsigned>(launch.blocks(source.source.entries[e].kind)), words.data());
  }
}

std::vector<std::string> CudaEmulation::texts() const {
  std::vector<std::string> result;
  for (const Source& it : sources_) result.push_back(it.source.text);
  return result;
}

CudaEmulation::Ways CudaEmulation::ways() const {
  Ways ways;
  for (const Source& it : sources_) {
    const CudaVariant& variant = it.source.variant;
    ways.entries += !variant.by_rows;
    ways.parts += variant.parts;
    ways.warps += variant.by_rows && !variant.parts && variant.group == 32;
    ways.blocks += variant.by_rows && !variant.parts && variant.group == kCudaThreads;
    ways.vectors += variant.vector > 1;
  }
  for (const Kernel& it : kernels_) ways.stages += it.stages.stages.size() > 1;
  return ways;
}

}  // namespace hetero::backend::testing
