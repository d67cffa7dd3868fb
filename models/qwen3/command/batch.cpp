#include "qwen3/command/batch.h"

#include <algorithm>
#include <deque>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "qwen3/command/protocol.h"

namespace hetero::qwen3 {
namespace {

struct Choice {
  int64_t request = 0;
  bool wants_logprobs = false;
  OrderedJson result;
  std::string text;
  std::vector<int32_t> ids;
  std::vector<float> logprobs;
};

class BatchRun {
 public:
  BatchRun(const Bundle& bundle, Engine& engine) : bundle_(bundle), engine_(engine) {}

  void read(std::istream& input) {
    std::string line;
    for (int64_t number = 0; std::getline(input, line); ++number) {
      if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
      const OrderedJson json = OrderedJson::parse(line, nullptr, false);
      const bool is_chat = json.is_object() && json.contains("messages");
      Result<ApiRequest> request = parse_request(line, is_chat, bundle_);
      const int64_t after = json.is_object() ? json.value("after_steps", int64_t{0}) : 0;
      if (request.ok()) {
        waiting_.push_back({number, after, std::move(request.value())});
      } else {
        refuse(number, request.status());
      }
    }
  }

  Status run() {
    while (true) {
      const int64_t steps = engine_.counters().steps;
      while (!waiting_.empty() && (waiting_.front().after <= steps || !engine_.busy())) {
        submit(waiting_.front());
        waiting_.pop_front();
      }
      if (!engine_.busy()) return Status();
      if (Status status = engine_.step(); !status.ok()) return status;
    }
  }

  void write(std::ostream& output) const {
    std::vector<const Choice*> ordered;
    for (const Choice& choice : choices_) ordered.push_back(&choice);
    std::ranges::stable_sort(ordered, {}, [](const Choice* choice) { return choice->request; });
    for (const Choice* const choice : ordered) {
      output << choice->result.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) << '\n';
    }
  }

 private:
  struct Waiting {
    int64_t number;
    int64_t after;
    ApiRequest request;
  };

  Choice& add(int64_t number, size_t choice) {
    Choice& made = choices_.emplace_back();
    made.request = number;
    made.result = {{"request", number}, {"choice", choice}};
    return made;
  }
  void refuse(int64_t number, const Status& status) { add(number, 0).result["error"] = status.message(); }

  void submit(Waiting& waiting) {
    for (size_t i = 0; i < waiting.request.prompts.size(); ++i) {
      TextOptions options = waiting.request.options;
      options.request.sampling.seed += i;
      Choice& choice = add(waiting.number, i);
      choice.wants_logprobs = waiting.request.wants_logprobs;
      const Result<uint64_t> id = submit_text(engine_, bundle_.tokenizer, waiting.request.prompts[i],
                                              std::move(options), [&choice](const TextEvent& event) {
                                                note(choice, event);
                                                return true;
                                              });
      if (!id.ok()) choice.result["error"] = id.status().message();
    }
  }

  static void note(Choice& choice, const TextEvent& event) {
    choice.text += event.text;
    if (event.token != nullptr) {
      choice.ids.push_back(event.token->id);
      choice.logprobs.push_back(event.token->logprob);
    }
    if (event.finish == Finish::kNone) return;
    choice.result["text"] = std::move(choice.text);
    choice.result["token_ids"] = std::move(choice.ids);
    if (choice.wants_logprobs) choice.result["logprobs"] = std::move(choice.logprobs);
    choice.result["finish_reason"] = to_string(event.finish);
    if (event.finish == Finish::kError) choice.result["error"] = event.status.message();
  }

  const Bundle& bundle_;
  Engine& engine_;
  std::deque<Waiting> waiting_;
  std::deque<Choice> choices_;  // their addresses stay
};

}  // namespace

Status run_batch(const Bundle& bundle, Engine& engine, std::istream& input, std::ostream& output) {
  BatchRun batch(bundle, engine);
  batch.read(input);
  const Status status = batch.run();
  batch.write(output);
  return status;
}

}  // namespace hetero::qwen3
