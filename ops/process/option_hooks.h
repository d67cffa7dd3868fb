// Option hooks: the effects of setting an option beyond its value; see OptionHooks.

#pragma once

namespace hetero::ops {

// Reads the options from the environment and installs the hooks. Throws c10::ValueError for a
// variable whose value does not fit. Called once, at start.
void load_options();

}  // namespace hetero::ops
