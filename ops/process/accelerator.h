// The process's accelerator: which one is chosen (config().accelerator), and when it is made.
//
// A choice from the environment takes effect with the first hetero tensor, so the process may fork
// until then. A choice by set_option() takes effect at once: recorded work runs, and data on the
// former accelerator moves to the CPU.
//
// Thread safety: any thread.

#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace hetero::ops {

// Throws c10::ValueError for an accelerator that this build or machine does not have, and keeps the
// one of before.
void choose_accelerator(const std::string& name);
// Notes the choice. Throws c10::ValueError for an unknown name or one that this build does not
// have.
void choose_accelerator_later(const std::string& name);
// Makes the chosen accelerator, if it does not exist yet. Throws c10::Error if the machine has no
// such device. Called before the first tensor is made.
void make_chosen_accelerator();

// Sets the budget, which each accelerator has for itself. Data on accelerators moves to the CPU
// first.
void set_memory_budget(int64_t bytes);

// Sets the figures of the simulated accelerator, by the names of SimOptions' fields. Throws
// c10::ValueError for an unknown name or a figure out of range, and changes nothing then.
void set_sim_options(const std::vector<std::pair<std::string, double>>& figures);
// The same from a text, the value of the option sim_figures: "h2d_bandwidth=55e9,flops=51e12".
void set_sim_figures(const std::string& text);

}  // namespace hetero::ops
