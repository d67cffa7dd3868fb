#include "ops/process/option_hooks.h"

#include <c10/util/Exception.h>

#include <filesystem>
#include <string>

#include "backend/memory/spill_file.h"
#include "backend/registry/registry.h"
#include "ops/fused/functions.h"
#include "ops/memory/storage_memory.h"
#include "ops/process/accelerator.h"
#include "ops/run/sync.h"
#include "ops/settings/config.h"

namespace hetero::ops {
namespace {

void set_spill_folder(const std::string& folder) {
  std::string absolute;  // the process may go to other folders
  if (!folder.empty()) {
    std::error_code error;
    absolute = std::filesystem::absolute(folder, error).string();  // none, if there is an error
    const Status status = backend::check_spill_folder(absolute);
    TORCH_CHECK_VALUE(status.ok(), "hetero: option 'spill' takes a folder in which files can be made, not '", folder,
                      "': ", status.ok() ? "" : status.message());
  }
  config().spill = absolute;
  may_spill = !absolute.empty();
}

}  // namespace

void load_options() {
  OptionHooks& hooks = option_hooks();
  hooks.jit = [](bool on) {
    config().jit = on;
    choose_instruction_set();
  };
  hooks.memory_limit = [](int64_t bytes) {
    config().memory_limit = bytes;
    backend::cpu_device().set_memory_limit(bytes);
  };
  hooks.memory_budget = set_memory_budget;
  hooks.sim_figures = set_sim_figures;
  hooks.placement = [](graph::Policy policy) {
    flush_all(SyncReason::kSettings);
    config().placement = policy;
  };
  hooks.spill = set_spill_folder;
  hooks.accelerator = choose_accelerator_later;  // so that the process may still fork
  load_environment();
  hooks.accelerator = choose_accelerator;
}

}  // namespace hetero::ops
