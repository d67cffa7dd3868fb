// Config: every option of hetero, in one documented struct.
//
// Each option has a name, an environment variable (HETERO_ and the name in capitals) read once at import, and a Python
// attribute (torch.hetero.config.NAME). This file and config.cpp are the only places that know them; documentation is
// checked against list().
//
// Thread safety: reading is a relaxed load and costs nothing; setting takes effect for nodes recorded afterwards.

#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "graph/ir/plan.h"

namespace hetero::ops {

struct Config {
  // Flush after every operator: errors of kernels are raised on the line that recorded them.
  std::atomic<bool> sync{false};
  // Fuse pointwise operators and reductions, and choose among implementations of products and convolutions. Off: the stock ATen kernel runs for each node.
  std::atomic<bool> fusion{true};
  // Compile runs of cheap steps of fused kernels to machine code. Off: every step is interpreted, to the same bits.
  std::atomic<bool> jit{true};
  // Run the beginning of long traces while the rest is recorded.
  std::atomic<bool> overlap{true};
  // Run every flush a second time by a straight interpreter, and compare the bytes.
  std::atomic<bool> verify{false};
  // Check every graph and plan with the static verifier before running it.
  std::atomic<bool> verify_plans{false};
  // Keep the Python line of each recorded operator, for messages.
  std::atomic<bool> traceback{false};
  // Keep the text of the last plan, for torch.hetero.explain().
  std::atomic<bool> keep_plans{false};
  // 0: silent; 1: one line on stderr for each flush; 2: the graph and the plan of each flush.
  std::atomic<int64_t> log{0};
  // Flush when the values that pending nodes will make are larger than this many bytes.
  std::atomic<int64_t> pending_bytes{int64_t{1} << 30};
  // Flush when this many nodes are pending.
  std::atomic<int64_t> pending_nodes{4096};
  // The most bytes of host memory that tensors may hold; 0 for no limit.
  std::atomic<int64_t> memory_limit{0};
  // The most bytes of host memory that copies of weights in a faster layout may take; 0 for none.
  std::atomic<int64_t> packed_bytes{int64_t{256} << 20};
  // Run matrix products on the processor's tile unit where that is faster.
  std::atomic<bool> tiles{true};
  // The most bytes of accelerator memory; 0 for the device's own capacity.
  std::atomic<int64_t> memory_budget{0};
  // Where tensors go that the host's memory has no room for; "" for nowhere.
  std::string spill_folder() const;
  void set_spill_folder(std::string folder);
  // Who decides where operators run that nothing else is said of.
  std::atomic<graph::Policy> placement{graph::Policy::kAuto};
  // On how many of its compute queues an accelerator may run what does not depend on each other.
  std::atomic<int64_t> compute_queues{backend::kComputeQueues};
  // Small copies between the CPU and the accelerator are made together where that is predicted to take less time.
  std::atomic<bool> join_copies{true};
  // Launches of an accelerator that are the same each time a program runs are recorded and launched as one.
  std::atomic<bool> segments{true};
  // Bound, in bytes, of what is remembered of earlier programs: shapes, traces and plans.
  std::atomic<int64_t> cache_bytes{int64_t{256} << 20};
  // The share of the accelerator's memory that a program may claim from others before it is planned.
  std::atomic<double> memory_pressure{0.8};

 private:
  mutable std::mutex mutex_;
  std::string spill_folder_;  // guarded by mutex_
};

extern Config* config_instance;  // made when the library is loaded
inline Config& config() { return *config_instance; }

// Whether results may differ in the last bits from those of the stock kernels, one by one: not where somebody compares bits.
inline bool last_bits_may_differ() {
  return config().fusion.load(std::memory_order_relaxed) && !config().verify.load(std::memory_order_relaxed);
}

// Whether they may also differ from one time to the next, by what was measured to be fast or by what ran before: not under
// torch.use_deterministic_algorithms().
bool last_bits_may_vary();

// The figures of the simulated accelerator from now on, by the names of SimOptions' fields. Throws c10::ValueError for an unknown name or a figure out of
// range, and changes nothing then.
void set_sim_options(const std::vector<std::pair<std::string, double>>& figures);

// One row of the table that documents the options.
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

// Reads the environment; an empty variable is one that is not set. Called once, at import. No device is made then, so that the process may still fork.
void load_environment();

// Makes the accelerator that was chosen before the device was used. Throws c10::Error where the machine has no such device.
// Called before the first tensor is made.
void make_chosen_accelerator();
// In a forked child of a process that never used the device: the child makes its own.
void forget_made_accelerator();

}  // namespace hetero::ops
