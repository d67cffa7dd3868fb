#include "tests/perf/partition/machine.h"

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace hetero::graph::testing {
namespace {

class Profile {
 public:
  explicit Profile(const std::string& path) : path_(path) {
    std::ifstream file(path);
    text_.assign(std::istreambuf_iterator<char>(file), {});
  }

  double number(const std::string& section, const std::string& key) const {
    const size_t begin = find("\"" + section + "\": {", 0);
    const size_t end = find("}", begin);
    const std::string word = "\"" + key + "\": ";
    const size_t at = find(word, begin);
    if (at > end) throw std::runtime_error(path_ + " has no " + section + "." + key);
    return std::strtod(text_.c_str() + at + word.size(), nullptr);
  }

 private:
  size_t find(const std::string& word, size_t from) const {
    const size_t at = text_.find(word, from);
    if (at == std::string::npos) throw std::runtime_error(path_ + " has no " + word);
    return at;
  }

  const std::string path_;
  std::string text_;
};

}  // namespace

PlanOptions Machine::options() const {
  PlanOptions options;
  options.machine.add({});
  options.machine.cpu().rates = cpu;
  options.machine[1].rates = {.flops = sim.flops,
                              .flops_half = sim.flops_half,
                              .memory_bandwidth = sim.memory_bandwidth,
                              .copy_bandwidth = sim.h2d_bandwidth,
                              .readback_bandwidth = sim.d2h_bandwidth,
                              .copy_latency = sim.copy_latency,
                              .launch_latency = sim.launch_latency};
  return options;
}

Machine Machine::slower(double bandwidth, double arithmetic) const {
  Machine machine = *this;
  for (double* rate : {&machine.sim.memory_bandwidth, &machine.sim.h2d_bandwidth, &machine.sim.d2h_bandwidth,
                       &machine.cpu.memory_bandwidth}) {
    *rate /= bandwidth;
  }
  for (double* rate : {&machine.sim.flops, &machine.sim.flops_half, &machine.cpu.flops, &machine.cpu.flops_half}) {
    *rate /= arithmetic;
  }
  return machine;
}

Machine read_machine(const std::string& folder, const std::string& name) {
  const Profile profile(folder + "/" + name + ".json");
  Machine machine{.name = name, .sim = {}, .cpu = {}};
  machine.sim.flops = profile.number("accelerator", "flops");
  machine.sim.flops_half = profile.number("accelerator", "flops_half");
  machine.sim.memory_bandwidth = profile.number("accelerator", "memory_bandwidth");
  machine.sim.launch_latency = profile.number("accelerator", "launch_latency");
  machine.sim.h2d_bandwidth = profile.number("link", "h2d_bandwidth");
  machine.sim.d2h_bandwidth = profile.number("link", "d2h_bandwidth");
  machine.sim.copy_latency = profile.number("link", "copy_latency");
  machine.cpu = {.host_accessible = true, .inline_queues = true};
  machine.cpu.flops = profile.number("cpu", "flops");
  machine.cpu.flops_half = profile.number("cpu", "flops_half");
  machine.cpu.memory_bandwidth = profile.number("cpu", "memory_bandwidth");
  return machine;
}

}  // namespace hetero::graph::testing
