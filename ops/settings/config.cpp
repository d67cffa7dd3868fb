#include "ops/settings/config.h"

#include <ATen/Context.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <string_view>

#include "backend/registry/registry.h"
#include "backend/sim/sim_device.h"
#include "backend/memory/spill_file.h"
#include "ops/kernels/device_kernel.h"
#include "ops/fused/functions.h"
#include "ops/run/overlap.h"
#include "ops/run/storage_memory.h"
#include "ops/run/sync.h"

namespace hetero::ops {

constinit Config* config_instance = nullptr;

namespace {

// Before the static initializers, which register operators.
[[gnu::constructor(200)]] void make_config() { config_instance = new Config; }

// An option's row: how to read and write it as text.
struct Row {
  const char* name;
  const char* type;
  const char* default_value;
  std::function<std::string()> get;
  std::function<void(const std::string&)> set;
  const char* doc;
};

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

std::optional<bool> parse_bool(const std::string& text) {
  const std::string word = lower(text);
  if (word == "1" || word == "true" || word == "on" || word == "yes") return true;
  if (word == "0" || word == "false" || word == "off" || word == "no" || word.empty()) return false;
  return std::nullopt;
}

// "4096", "64MiB", "1.5 GiB". A fraction has a unit: nobody means one and a half bytes.
std::optional<int64_t> parse_integer(const std::string& text) {
  constexpr std::pair<const char*, int> kUnits[] = {{"", 0},     {"kib", 10}, {"k", 10},   {"mib", 20}, {"m", 20},
                                                    {"gib", 30}, {"g", 30},   {"tib", 40}, {"t", 40}};
  const char* const end = text.data() + text.size();
  int64_t whole = 0;
  if (const auto [rest, error] = std::from_chars(text.data(), end, whole); error == std::errc() && rest == end) {
    return whole >= 0 ? std::optional(whole) : std::nullopt;
  }
  double number = 0;
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc()) return std::nullopt;
  std::string unit = lower(std::string(rest, end));
  unit.erase(0, std::min(unit.find_first_not_of(' '), unit.size()));
  for (const auto& [known, exponent] : kUnits) {
    if (unit != known) continue;
    const double scaled = std::ldexp(number, exponent);
    // Not so for a number that is none, either.
    if (!(scaled >= 0 && scaled < 0x1p63)) return std::nullopt;
    if (exponent == 0 && scaled != std::floor(scaled)) return std::nullopt;
    return static_cast<int64_t>(scaled);
  }
  return std::nullopt;
}

std::optional<double> parse_share(const std::string& text) {
  char* end = nullptr;
  const double share = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !(share >= 0 && share <= 1)) return std::nullopt;
  return share;
}

Row bool_row(const char* name, const char* default_value, std::atomic<bool>& field, const char* doc,
             void (*then)() = nullptr) {
  return {name,
          "bool",
          default_value,
          [&field] { return std::string(field ? "1" : "0"); },
          [&field, name, then](const std::string& text) {
            const auto value = parse_bool(text);
            TORCH_CHECK_VALUE(value.has_value(), "hetero: option '", name, "' takes 0 or 1, not '", text, "'");
            field = *value;
            if (then != nullptr) then();
          },
          doc};
}

Row integer_row(const char* name, const char* type, const char* default_value, std::atomic<int64_t>& field,
                const char* doc, std::function<void(int64_t)> then = nullptr) {
  return {name,
          type,
          default_value,
          [&field] { return std::to_string(field.load()); },
          [&field, name, then](const std::string& text) {
            const auto value = parse_integer(text);
            TORCH_CHECK_VALUE(value.has_value(), "hetero: option '", name,
                              "' takes a whole number from 0 to 2^63 - 1, or one with KiB, MiB, GiB or TiB, not '",
                              text, "'");
            field = *value;
            if (then) then(*value);
          },
          doc};
}

void set_compute_queues(const std::string& text) {
  const auto value = parse_integer(text);
  TORCH_CHECK_VALUE(value.has_value() && *value >= 1 && *value <= backend::kComputeQueues,
                    "hetero: option 'compute_queues' takes a number from 1 to ", backend::kComputeQueues, ", not '",
                    text, "'");
  config().compute_queues = *value;
}

struct AcceleratorChoice {
  std::mutex mutex;
  std::string name = "none";
};
AcceleratorChoice& choice() {
  static auto* const instance = new AcceleratorChoice;
  return *instance;
}
std::string accelerator_choice() {
  const std::lock_guard guard(choice().mutex);
  return choice().name;
}
void set_accelerator_choice(const std::string& name) {
  const std::lock_guard guard(choice().mutex);
  choice().name = name;
}
// The choice waits for the first use.
std::atomic<bool> accelerator_pending{false};

Status make_accelerator(const std::string& name) {
  Status status = backend::choose_accelerator(name);
  if (status.ok() && backend::accelerator() != nullptr) {
    if (name == "cuda") status = connect_to_gpu();
    if (!status.ok()) {
      (void)backend::choose_accelerator("none");
      return status;
    }
    backend::accelerator()->set_memory_limit(config().memory_budget.load());
  }
  return status;
}

void choose_accelerator(const std::string& name) {
  const Executing executing;  // another thread may choose, too
  if (name == accelerator_choice()) return;
  settle_everything_on_cpu();
  const Status status = make_accelerator(name);
  TORCH_CHECK_VALUE(status.ok(), "hetero: ", status.ok() ? "" : status.message());
  set_accelerator_choice(name);
  accelerator_pending = false;
}

// From the environment.
void choose_accelerator_later(const std::string& name) {
  const Status status = backend::check_accelerator(name);
  TORCH_CHECK_VALUE(status.ok(), "hetero: ", status.ok() ? "" : status.message());
  set_accelerator_choice(name);
  accelerator_pending = name != "none";
}

// What is there and has no place any more leaves first.
void change_memory_budget(int64_t bytes) {
  const Executing executing;  // the accelerator stays
  if (backend::accelerator() == nullptr) return;
  settle_everything_on_cpu();
  backend::accelerator()->set_memory_limit(bytes);
}

void set_spill_folder(const std::string& folder) {
  std::string absolute;  // the process may go to other folders
  if (!folder.empty()) {
    std::error_code error;
    absolute = std::filesystem::absolute(folder, error).string();  // none, if there is an error
    const Status status = backend::check_spill_folder(absolute);
    TORCH_CHECK_VALUE(status.ok(), "hetero: option 'spill' takes a folder in which files can be made, not '", folder,
                      "': ", status.ok() ? "" : status.message());
  }
  config().set_spill_folder(absolute);
  may_spill = !absolute.empty();
}

void set_policy(const std::string& name) {
  for (const auto policy :
       {graph::Policy::kAuto, graph::Policy::kCpu, graph::Policy::kAccelerator, graph::Policy::kMixed}) {
    if (name != graph::to_string(policy)) continue;
    flush_all(SyncReason::kSettings);
    config().placement = policy;
    return;
  }
  TORCH_CHECK_VALUE(false, "hetero: option 'placement' takes auto, cpu, accelerator or mixed, not '", name, "'");
}

Row share_row(const char* name, const char* default_value, std::atomic<double>& field, const char* doc) {
  return {name,
          "float",
          default_value,
          [&field] {
            char text[32];
            std::snprintf(text, sizeof(text), "%g", field.load());
            return std::string(text);
          },
          [&field, name](const std::string& text) {
            const auto value = parse_share(text);
            TORCH_CHECK_VALUE(value.has_value(), "hetero: option '", name, "' takes a number from 0 to 1, not '", text,
                              "'");
            field = *value;
          },
          doc};
}

double* sim_figure(backend::SimOptions& options, const std::string& name) {
  const std::pair<const char*, double*> figures[] = {{"flops", &options.flops},
                                                     {"flops_half", &options.flops_half},
                                                     {"memory_bandwidth", &options.memory_bandwidth},
                                                     {"launch_latency", &options.launch_latency},
                                                     {"parallelism", &options.parallelism},
                                                     {"h2d_bandwidth", &options.h2d_bandwidth},
                                                     {"d2h_bandwidth", &options.d2h_bandwidth},
                                                     {"copy_latency", &options.copy_latency},
                                                     {"cpu_flops", &options.cpu_flops},
                                                     {"cpu_flops_half", &options.cpu_flops_half},
                                                     {"cpu_memory_bandwidth", &options.cpu_memory_bandwidth},
                                                     {"slowdown", &options.slowdown},
                                                     {"slowdown_after", &options.slowdown_after},
                                                     {"duration_spread", &options.duration_spread},
                                                     {"pace", &options.pace}};
  for (const auto& [known, figure] : figures) {
    if (name == known) return figure;
  }
  return nullptr;
}

const std::vector<Row>& rows() {
  static const auto* table = new std::vector<Row>{
      {"accelerator", "str", "none", [] { return accelerator_choice(); }, choose_accelerator,
       "The accelerator beside the CPU: none, sim (an accelerator without hardware) or cuda."},
      bool_row("sync", "0", config().sync,
               "Flush after every operator, so that errors appear on the line that caused them."),
      bool_row(
          "fusion", "1", config().fusion,
          "Fuse pointwise operators and reductions, and choose among implementations of products and convolutions. "
          "Off: eager's own kernels and bits."),
      bool_row(
          "jit", "1", config().jit,
          "Compile runs of cheap steps of fused kernels to machine code. Off: every step is interpreted, to the same "
          "bits.",
          choose_instruction_set),
      bool_row("overlap", "1", config().overlap,
               "Run the beginning of long programs on a thread of its own while the rest is recorded. Off: everything "
               "runs on the thread that needs it, and results are the same every time."),
      bool_row("verify", "0", config().verify,
               "Run every flush a second time by a straight interpreter and compare the bytes."),
      bool_row("verify_plans", "0", config().verify_plans,
               "Check every graph and plan with the static verifier before it runs."),
      bool_row("traceback", "0", config().traceback,
               "Keep the Python line of each recorded operator and name it in errors."),
      bool_row(
          "keep_plans", "0", config().keep_plans,
          "Keep the last plan and what the latest programs did, for torch.hetero.explain(), report() and trace()."),
      integer_row("log", "int", "0", config().log,
                  "0: silent; 1: one line on stderr for each flush; 2: graph and plan as well."),
      integer_row("pending_bytes", "bytes", "1073741824", config().pending_bytes,
                  "Flush when the values that pending operators will make exceed this size."),
      integer_row("pending_nodes", "int", "4096", config().pending_nodes,
                  "Flush when this many operators are pending."),
      integer_row("memory_limit", "bytes", "0", config().memory_limit,
                  "The most bytes of host memory that hetero tensors may hold; 0 for no limit.",
                  [](int64_t bytes) { backend::cpu_device().set_memory_limit(bytes); }),
      integer_row("packed_bytes", "bytes", "268435456", config().packed_bytes,
                  "The most bytes that copies of weights in a faster layout may take; 0 for none."),
      bool_row(
          "tiles", "1", config().tiles,
          "Run matrix products on the processor's tile unit (AMX) where that is faster; float32 keeps its accuracy."),
      integer_row("memory_budget", "bytes", "0", config().memory_budget,
                  "The most bytes of accelerator memory, a hard cap; 0 for the device's capacity.",
                  change_memory_budget),
      share_row(
          "memory_pressure", "0.8", config().memory_pressure,
          "The share of the accelerator's memory that a program may claim from the tensors of others before it is "
          "planned, from 0 to 1: they leave, the one used longest ago first."),
      {"placement", "str", "auto",
       [] { return std::string(graph::to_string(config().placement.load(std::memory_order_relaxed))); }, set_policy,
       "Where operators run that no placement() block or rule is about: auto (planning decides), cpu, accelerator "
       "(where it can), or mixed (each on a pseudo-random device, for tests)."},
      {"compute_queues", "int", "4", [] { return std::to_string(config().compute_queues.load()); }, set_compute_queues,
       "On how many compute queues (streams of a GPU), 1 to 4, the accelerator may run operators that do not depend on "
       "each other, where planning finds that to take less time."},
      bool_row("join_copies", "1", config().join_copies,
               "Make small copies between the CPU and the accelerator together, as one transfer, where planning finds "
               "that to take less time. Off: each by itself."),
      bool_row("segments", "1", config().segments,
               "Record launches of the accelerator that follow each other and are the same each time a program runs, "
               "and launch them as one: CUDA graphs. Off: each by itself."),
      {"spill", "str", "", [] { return config().spill_folder(); }, set_spill_folder,
       "A folder for tensors that have no room below memory_limit and were not used for long: they come back when they "
       "are needed. A relative one is made absolute. Empty: none."},
      integer_row("cache_bytes", "bytes", "268435456", config().cache_bytes,
                  "Bound of what is remembered of earlier programs: output shapes, traces and plans."),
  };
  return *table;
}

const Row& row(const std::string& name) {
  for (const Row& candidate : rows()) {
    if (name == candidate.name) return candidate;
  }
  std::string names;
  for (const Row& candidate : rows()) names += (names.empty() ? "" : ", ") + std::string(candidate.name);
  TORCH_CHECK(false, "hetero: no option '", name, "'; there are: ", names);
}

std::string environment_name(const Row& option) {
  std::string name = option.name;
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return "HETERO_" + name;
}

}  // namespace

bool last_bits_may_vary() { return last_bits_may_differ() && !at::globalContext().deterministicAlgorithms(); }

void set_sim_options(const std::vector<std::pair<std::string, double>>& figures) {
  backend::SimOptions options;
  options.host_kernels = backend::sim_options().host_kernels;
  for (const auto& [name, value] : figures) {
    if (name == "host_kernels") {
      options.host_kernels = value != 0;
    } else if (name == "capacity_bytes") {
      options.capacity_bytes = static_cast<size_t>(value);
    } else if (name == "schedule_seed") {
      options.schedule_seed = static_cast<uint64_t>(value);
    } else {
      double* const figure = sim_figure(options, name);
      TORCH_CHECK_VALUE(figure != nullptr, "hetero: the simulated accelerator has no figure '", name, "'");
      *figure = value;
    }
  }
  const backend::SimOptions before = backend::sim_options();
  const bool in_use = accelerator_choice() == "sim";
  if (in_use) choose_accelerator("none");
  backend::set_sim_options(options);
  if (!in_use) return;
  try {
    choose_accelerator("sim");
  } catch (...) {
    backend::set_sim_options(before);
    choose_accelerator("sim");
    throw;
  }
}

std::string Config::spill_folder() const {
  const std::lock_guard lock(mutex_);
  return spill_folder_;
}

void Config::set_spill_folder(std::string folder) {
  const std::lock_guard lock(mutex_);
  spill_folder_ = std::move(folder);
}

std::vector<Option> list_options() {
  std::vector<Option> options;
  for (const Row& option : rows()) {
    options.push_back(
        {option.name, environment_name(option), option.type, option.default_value, option.get(), option.doc});
  }
  return options;
}

std::string get_option(const std::string& name) { return row(name).get(); }

void set_option(const std::string& name, const std::string& value) { row(name).set(value); }

void load_environment() {
  for (const Row& option : rows()) {
    const char* const value = std::getenv(environment_name(option).c_str());
    if (value == nullptr || *value == '\0') continue;
    if (option.name == std::string_view("accelerator")) {
      choose_accelerator_later(value);
    } else {
      option.set(value);
    }
  }
}

void make_chosen_accelerator() {
  if (!accelerator_pending) return;
  static auto& mutex = *new std::mutex;
  const std::lock_guard guard(mutex);
  if (!accelerator_pending) return;
  const Status status = make_accelerator(accelerator_choice());
  TORCH_CHECK(status.ok(), "hetero: ", status.ok() ? "" : status.message());
  accelerator_pending = false;
}

void forget_made_accelerator() {
  backend::forget_accelerator();
  accelerator_pending = accelerator_choice() != "none";
}

}  // namespace hetero::ops
