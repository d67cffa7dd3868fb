#include "graph/transfer/request_trace.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string_view>
#include <utility>

namespace hetero::graph {
namespace {

using Json = nlohmann::json;

Status damaged(int64_t line, std::string_view what) {
  std::string message = "line ";
  message.append(std::to_string(line)).append(" of the trace ").append(what);
  return Status(ErrorClass::kStorage, std::move(message));
}

// Integers of JSON that fit; not 1.0 and not 1e3.
bool read_integer(const Json& value, int64_t& integer) {
  if (!value.is_number_integer()) return false;
  if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) return false;
  integer = value.get<int64_t>();
  return true;
}

Status read_request(const std::string& text, int64_t line, TraceRequest& request) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return damaged(line, "is not JSON");
  if (!json.is_object()) return damaged(line, "is not an object of JSON");
  const auto time = json.find("timestamp");
  if (time == json.end() || !time->is_number()) return damaged(line, "has no number \"timestamp\"");
  request.time = time->get<double>() / 1000;
  if (!std::isfinite(request.time) || request.time < 0) return damaged(line, "has a \"timestamp\" that is no time");
  int64_t input = 0;
  for (const auto& [key, number] :
       {std::pair("input_length", &input), std::pair("output_length", &request.new_tokens)}) {
    const auto length = json.find(key);
    if (length == json.end() || !read_integer(*length, *number) || *number < 0) {
      std::string what = "has no count \"";
      return damaged(line, what.append(key).append("\""));
    }
  }
  const auto ids = json.find("hash_ids");
  if (ids == json.end() || !ids->is_array()) return damaged(line, "has no list \"hash_ids\"");
  request.blocks.reserve(ids->size());
  for (const Json& id : *ids) {
    if (!read_integer(id, request.blocks.emplace_back()))
      return damaged(line, "has a hash id that is no integer of 64 bits");
  }
  return {};
}

// Numbers that are the same on every machine; those of <random>'s distributions are not.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}

  double unit() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }  // below 1
  int64_t up_to(int64_t most) { return 1 + static_cast<int64_t>(unit() * static_cast<double>(most)); }

 private:
  std::mt19937_64 engine_;
};

class Generator {
 public:
  explicit Generator(const SyntheticTraceOptions& options) : options_(options), random_(options.seed) {
    double sum = 0;
    for (int64_t i = 0; i < options_.system_prompts; ++i) {
      append_new(system_prompts_.emplace_back(), random_.up_to(options_.system_blocks));
      weights_.push_back(sum += std::pow(static_cast<double>(i + 1), -options_.zipf));
    }
  }

  std::vector<TraceRequest> run() {
    std::vector<TraceRequest> trace(static_cast<size_t>(std::max<int64_t>(0, options_.requests)));
    double time = 0;
    for (TraceRequest& request : trace) {
      time -= std::log(1 - random_.unit()) / options_.requests_per_second;
      request = {.time = time, .blocks = next_prompt(), .new_tokens = 256};
    }
    return trace;
  }

 private:
  using Blocks = std::vector<int64_t>;

  void append_new(Blocks& blocks, int64_t count) {
    for (int64_t i = 0; i < count; ++i) blocks.push_back(next_id_++);
  }

  Blocks next_prompt() {
    if (random_.unit() < options_.one_off) {
      Blocks prompt;
      append_new(prompt, random_.up_to(options_.prompt_blocks));
      return prompt;
    }
    if (static_cast<int64_t>(conversations_.size()) < options_.active) conversations_.push_back(begin_conversation());
    const auto i = static_cast<size_t>(random_.unit() * static_cast<double>(conversations_.size()));
    Blocks& conversation = conversations_[i];
    append_new(conversation, random_.up_to(options_.turn_blocks));
    if (random_.unit() * options_.turns >= 1) return conversation;
    Blocks last = std::exchange(conversation, conversations_.back());
    conversations_.pop_back();
    return last;
  }

  Blocks begin_conversation() {
    const auto it = std::ranges::upper_bound(weights_, random_.unit() * weights_.back());
    const auto i = std::min(static_cast<size_t>(it - weights_.begin()), system_prompts_.size() - 1);
    return system_prompts_[i];
  }

  SyntheticTraceOptions options_;
  Random random_;
  std::vector<Blocks> system_prompts_;
  std::vector<double> weights_;  // sums up to each
  std::vector<Blocks> conversations_;
  int64_t next_id_ = 0;
};

}  // namespace

Result<std::vector<TraceRequest>> read_mooncake_trace(std::istream& text) {
  std::vector<TraceRequest> trace;
  std::string line;
  for (int64_t number = 1; std::getline(text, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    if (Status status = read_request(line, number, trace.emplace_back()); !status.ok()) return status;
  }
  if (text.bad()) return Status(ErrorClass::kStorage, "the trace cannot be read");
  return trace;
}

Result<std::vector<TraceRequest>> read_mooncake_trace(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    std::string message = "cannot open the trace ";
    return Status(ErrorClass::kStorage, message.append(path));
  }
  return read_mooncake_trace(file);
}

std::vector<TraceRequest> generate_trace(const SyntheticTraceOptions& options) { return Generator(options).run(); }

}  // namespace hetero::graph
