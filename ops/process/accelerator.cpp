#include "ops/process/accelerator.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <mutex>
#include <sstream>
#include <string_view>

#include "backend/registry/registry.h"
#include "backend/sim/sim_device.h"
#include "ops/kernels/device_kernel.h"
#include "ops/process/torch_accelerator.h"
#include "ops/run/overlap.h"
#include "ops/run/sync.h"
#include "ops/settings/config.h"

namespace hetero::ops {
namespace {

// Each of them may hold so much.
void limit_accelerators(int64_t bytes) {
  const backend::Devices devices = backend::all_devices();
  for (backend::Device* const accelerator : backend::accelerators_of(devices)) accelerator->set_memory_limit(bytes);
}

Status make_accelerator(const std::string& name) {
  Status status = backend::choose_accelerator(name);
  if (status.ok() && backend::accelerator() != nullptr) {
    if (backend::is_gpu(name)) status = connect_to_gpu();
    if (!status.ok()) {
      (void)backend::choose_accelerator("none");
      return status;
    }
    if (backend::is_gpu(name)) keep_cuda_the_accelerator();
    limit_accelerators(config().memory_budget.load());
  }
  return status;
}

// "link_0_1_bandwidth": of the link from the first simulated accelerator to the second. Null for
// any other name.
double* link_figure(backend::SimOptions& options, const std::string& name) {
  size_t from = 0;
  size_t to = 0;
  char figure[16] = {};
  if (std::sscanf(name.c_str(), "link_%zu_%zu_%15s", &from, &to, figure) != 3) return nullptr;
  const std::string_view wanted = figure;
  if (wanted != "bandwidth" && wanted != "latency") return nullptr;
  auto link = std::ranges::find_if(options.links, [&](const auto& l) { return l.from == from && l.to == to; });
  if (link == options.links.end()) link = options.links.insert(link, {.from = from, .to = to, .link = {}});
  return wanted == "bandwidth" ? &link->link.bandwidth : &link->link.latency;
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
  return link_figure(options, name);
}

}  // namespace

void choose_accelerator(const std::string& name) {
  const Executing executing;  // another thread may choose, too
  if (name == config().accelerator.load()) return;
  settle_everything_on_cpu();
  const Status status = make_accelerator(name);
  TORCH_CHECK_VALUE(status.ok(), "hetero: ", status.ok() ? "" : status.message());
  config().accelerator = name;
}

void choose_accelerator_later(const std::string& name) {
  const Status status = backend::check_accelerator(name);
  TORCH_CHECK_VALUE(status.ok(), "hetero: ", status.ok() ? "" : status.message());
  config().accelerator = name;
}

void make_chosen_accelerator() {
  static auto& mutex = *new std::mutex;
  const std::lock_guard guard(mutex);
  const std::string name = config().accelerator.load();
  if (name == "none" || backend::accelerator() != nullptr) return;
  const Status status = make_accelerator(name);
  TORCH_CHECK(status.ok(), "hetero: ", status.ok() ? "" : status.message());
}

void set_memory_budget(int64_t bytes) {
  config().memory_budget = bytes;
  const Executing executing;  // the accelerator stays
  if (backend::accelerator() == nullptr) return;
  settle_everything_on_cpu();
  limit_accelerators(bytes);
}

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
  const std::string chosen = config().accelerator.load();
  const bool in_use = backend::is_simulated(chosen) && backend::accelerator() != nullptr;
  if (in_use) choose_accelerator("none");
  backend::set_sim_options(options);
  if (!in_use) return;
  try {
    choose_accelerator(chosen);
  } catch (...) {
    backend::set_sim_options(before);
    choose_accelerator(chosen);
    throw;
  }
}

void set_sim_figures(const std::string& text) {
  std::vector<std::pair<std::string, double>> figures;
  std::istringstream list(text);
  for (std::string figure; std::getline(list, figure, ',');) {
    const size_t equals = figure.find('=');
    double value = 0;
    const char* const end = figure.data() + figure.size();
    const auto [rest, error] = std::from_chars(figure.data() + std::min(equals + 1, figure.size()), end, value);
    TORCH_CHECK_VALUE(equals != std::string::npos && error == std::errc() && rest == end,
                      "hetero: option 'sim_figures' takes figures such as h2d_bandwidth=55e9, divided by commas, not '",
                      figure, "'");
    figures.emplace_back(figure.substr(0, equals), value);
  }
  set_sim_options(figures);
  config().sim_figures = text;
}

}  // namespace hetero::ops
