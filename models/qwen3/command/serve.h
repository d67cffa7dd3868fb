// The HTTP server of the program qwen3 (cpp-httplib): OpenAI's completions and chat protocol.
//
//   POST /v1/completions, /v1/chat/completions    protocol.h; streams are server-sent events
//   GET  /v1/models, /health, /metrics
//
// One thread runs the engine; each connection has a thread that waits for its events. A client that
// goes away cancels its request at the next piece of its stream.

#pragma once

#include "backend/base/status.h"
#include "qwen3/command/bundle.h"
#include "qwen3/command/options.h"
#include "qwen3/model/engine.h"

namespace hetero::qwen3 {

// Serves until SIGINT or SIGTERM, then ends what runs. Errors: kUsage for an address that cannot be
// bound.
Status serve_http(const Bundle& bundle, Engine& engine, const Options& options);

}  // namespace hetero::qwen3
