// Config: the options of hetero, as fields, made from the rows of options.def.
//
// An option has a name, an environment variable (HETERO_ and the name in capitals) that is read
// once at import, and a Python attribute (torch.hetero.config.NAME). Where setting one must do more
// than change the value, its owner installs a hook: this file and its source know no other part of
// ops/.
//
// Thread safety: reading is a relaxed load and costs nothing; a text has a lock. Setting takes
// effect for nodes recorded afterwards. Hooks are installed at start, by one thread.

#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "graph/ir/plan_options.h"

namespace hetero::ops {

// The field of each kind of option. What its values look like as text is in config.cpp.
namespace option_kind {

using Bool = std::atomic<bool>;
using Int = std::atomic<int64_t>;
using Bytes = std::atomic<int64_t>;
using Share = std::atomic<double>;    // from 0 to 1
using Queues = std::atomic<int64_t>;  // from 1 to backend::kComputeQueues
using Policy = std::atomic<graph::Policy>;

class Text {
 public:
  explicit Text(const char* text) : text_(text) {}
  std::string load() const {
    const std::lock_guard lock(mutex_);
    return text_;
  }
  void operator=(std::string text) {
    const std::lock_guard lock(mutex_);
    text_ = std::move(text);
  }

 private:
  mutable std::mutex mutex_;
  std::string text_;  // guarded by mutex_
};

}  // namespace option_kind

struct Config {
#define OPTION(kind, name, default_value, text) option_kind::kind name{default_value};
#include "ops/settings/options.def"
#undef OPTION
};

extern Config* config_instance;  // made when the library is loaded
inline Config& config() { return *config_instance; }

// Where an option has a hook, set_option() calls it with the new value and leaves the rest to it:
// the hook stores the value and applies it, or throws and changes nothing.
struct OptionHooks {
#define OPTION(kind, name, default_value, text) \
  std::function<void(decltype(std::declval<option_kind::kind>().load()))> name;
#include "ops/settings/options.def"
#undef OPTION
};
OptionHooks& option_hooks();

// Whether results may differ from those of the stock kernels in the last bits. They may not where
// bits are compared.
inline bool last_bits_may_differ() {
  return config().fusion.load(std::memory_order_relaxed) && !config().verify.load(std::memory_order_relaxed);
}

// Whether results may also differ from one run to the next, by what was measured to be fast or by
// what ran before. They may not under torch.use_deterministic_algorithms().
bool last_bits_may_vary();

// An option as text, for people and for Python.
struct Option {
  std::string name;
  std::string environment;
  std::string type;  // "bool", "int", "bytes", "float" or "str"
  std::string default_value;
  std::string value;
  std::string doc;
};
std::vector<Option> list_options();

// Values in their text form: "1"/"0"/"true"/"false", integers with an optional KiB/MiB/GiB/TiB or
// K/M/G/T, both powers of 1024, names.
// Throws c10::ValueError for a value that does not fit, c10::Error for an unknown name.
std::string get_option(const std::string& name);
void set_option(const std::string& name, const std::string& value);

// Sets the options that the environment names; an empty variable is one that is not set.
void load_environment();

}  // namespace hetero::ops
