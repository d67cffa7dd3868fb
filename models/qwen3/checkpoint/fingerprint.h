// The fingerprint of a model: a text that is the same for the same model, wherever its folder is,
// and another one for any other.
//
// It is a digest of what decides on keys and values: the fields of the configuration, names, dtypes
// and sizes of all tensors, and some of each tensor's bytes. Training changes all weights, so a
// part of them tells. Reading all would take as long as loading the model.
//
// Thread safety: a pure function.

#pragma once

#include <string>

#include "qwen3/checkpoint/checkpoint.h"
#include "qwen3/checkpoint/config.h"

namespace hetero::qwen3 {

// 32 hexadecimal digits.
std::string fingerprint_of(const Qwen3Config& config, const Checkpoint& checkpoint);

}  // namespace hetero::qwen3
