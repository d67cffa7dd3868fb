// The command `batch`: many requests from a file, as fast as they go.
//
// Each line of the input is the JSON body of a completions request (protocol.h), and with
// `messages` of a chat request. `after_steps` lets it join when the engine has run so many steps.
// Each line of the output is the result of one choice, in the order of the input:
//
//   {"request": 0, "choice": 0, "text": "...", "token_ids": [...], "logprobs": [...],
//    "finish_reason": "stop"}
//
// A request that is refused has `error` in place of a result, and the others go on.

#pragma once

#include <istream>
#include <ostream>

#include "backend/base/status.h"
#include "qwen3/command/bundle.h"
#include "qwen3/model/engine.h"

namespace hetero::qwen3 {

// Errors: those of the engine's steps.
Status run_batch(const Bundle& bundle, Engine& engine, std::istream& input, std::ostream& output);

}  // namespace hetero::qwen3
