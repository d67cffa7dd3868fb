// The engine with a store of prompts: the same tokens as without one, from memory, from a disk that
// was reopened, from one that is damaged, and from a remote store that does not answer.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <random>

#include "qwen3/checkpoint/fingerprint.h"
#include "qwen3/model/engine.h"
#include "tests/catch/catch.h"
#include "tests/models/qwen3/small_files.h"

namespace hetero::qwen3 {
namespace {

using Tokens = std::vector<int32_t>;
using Json = nlohmann::json;

constexpr int64_t kPage = 16;
// Two layers, keys and values of two heads of 16 numbers of 4 bytes.
constexpr uint64_t kPageBytes = uint64_t{2} * 2 * 2 * 16 * 4 * kPage;

Json config_json() {
  Json config = small_config();
  config["vocab_size"] = 128;
  config["hidden_size"] = 32;
  config["intermediate_size"] = 48;
  config["head_dim"] = 16;
  config["max_position_embeddings"] = 1024;
  config["torch_dtype"] = "float32";
  return config;
}

// Weights that are large enough for attention to matter.
std::string weights_of(const Qwen3Config& config, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0, 0.3F);
  std::map<std::string, FileTensor> tensors;
  for (const ExpectedTensor& expected : expected_tensors(config)) {
    FileTensor& tensor = tensors[expected.name];
    tensor = {.dtype = "F32", .sizes = expected.sizes, .data = {}};
    int64_t count = 1;
    for (const int64_t size : expected.sizes) count *= size;
    const bool is_norm = expected.sizes.size() == 1;
    for (int64_t i = 0; i < count; ++i) {
      const float value = (is_norm ? 1.0F : 0.0F) + normal(generator);
      tensor.data.append(reinterpret_cast<const char*>(&value), sizeof(value));
    }
  }
  return safetensors(tensors);
}

struct Model {
  explicit Model(unsigned seed = 1, const Json& json = config_json())
      : config(Qwen3Config::parse(json.dump()).value()) {
    folder.write("model.safetensors", weights_of(config, seed));
    checkpoint = std::move(Checkpoint::open(folder.path()).value());
  }
  std::unique_ptr<Engine> engine(EngineOptions options) const {
    Result<std::unique_ptr<Engine>> made = Engine::make(config, checkpoint, std::move(options));
    INFO((made.ok() ? "" : made.status().message()));
    REQUIRE(made.ok());
    return std::move(made.value());
  }

  TemporaryFolder folder;
  Qwen3Config config;
  std::shared_ptr<const Checkpoint> checkpoint;
};

const Model& model() {
  static const Model made;
  return made;
}

EngineOptions options_with(const PromptStoreOptions& store, uint64_t pages = 256) {
  EngineOptions options;
  options.page_tokens = kPage;
  options.cache_bytes = pages * kPageBytes;
  options.step_tokens = 64;
  options.most_sequences = 16;
  options.store = store;
  return options;
}

PromptStoreOptions on_disk(const TemporaryFolder& folder) {
  return {.memory_bytes = 16 << 20, .disk_folder = (folder.path() / "kv").string(), .disk_bytes = 64 << 20};
}

Tokens random_tokens(size_t count, unsigned seed) {
  std::mt19937 generator(seed);
  Tokens tokens(count);
  for (int32_t& token : tokens) token = static_cast<int32_t>(generator() % 128);
  return tokens;
}

struct Answer {
  Tokens tokens;
  Finish finish = Finish::kNone;
};

std::shared_ptr<Answer> ask(Engine& engine, const Tokens& prompt, int64_t count = 12, uint64_t* id = nullptr) {
  auto answer = std::make_shared<Answer>();
  const Result<uint64_t> made =
      engine.submit(prompt, {.max_tokens = count, .ignore_stop = true}, [answer](const Event& event) {
        if (event.token != nullptr) answer->tokens.push_back(event.token->id);
        if (event.finish != Finish::kNone) answer->finish = event.finish;
        return true;
      });
  REQUIRE(made.ok());
  if (id != nullptr) *id = made.value();
  return answer;
}

void finish(Engine& engine) {
  while (engine.busy()) REQUIRE(engine.step().ok());
  REQUIRE(engine.cache().check().ok());
}

Tokens answer_of(Engine& engine, const Tokens& prompt, int64_t count = 12) {
  const std::shared_ptr<Answer> answer = ask(engine, prompt, count);
  finish(engine);
  CHECK(answer->finish == Finish::kLength);
  return answer->tokens;
}

// When what was saved is in memory: at most a moment after the last step.
int64_t stored_blocks(const Engine& engine, int64_t expected) {
  for (int i = 0; i < 1000 && engine.counters().stored_blocks < expected; ++i) usleep(1000);
  return engine.counters().stored_blocks;
}

// Without a store.
Tokens expected_of(const Tokens& prompt, int64_t count = 12) {
  return answer_of(*model().engine(options_with({})), prompt, count);
}

// All that is in files of blocks and of their log.
void damage(const std::filesystem::path& folder, bool all) {
  int64_t damaged = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file() || entry.file_size() < 4096) continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    const auto size = static_cast<int64_t>(entry.file_size());
    for (int64_t place = 100; place < size && (all || damaged == 0); place += 1024) {
      file.seekg(place);
      const int byte = file.get();
      file.seekp(place);
      file.put(static_cast<char>(byte ^ 0x55));
      ++damaged;
    }
  }
  REQUIRE(damaged > 0);
}

}  // namespace

TEST_CASE("a prompt has the same tokens cold, and from the disk in the next engine, which computes only the rest") {
  const TemporaryFolder folder;
  const Tokens prompt = random_tokens(100, 1);
  const Tokens expected = expected_of(prompt);
  {
    const auto engine = model().engine(options_with(on_disk(folder)));
    CHECK(answer_of(*engine, prompt) == expected);
    CHECK(engine->counters().loaded_tokens == 0);
    CHECK(engine->counters().prompt_tokens == 100);
  }
  for (int round = 0; round < 3; ++round) {
    const auto engine = model().engine(options_with(on_disk(folder)));
    CHECK(answer_of(*engine, prompt) == expected);
    CHECK(engine->counters().loaded_tokens == 96);
    CHECK(engine->counters().prompt_tokens == 4);
    CHECK(engine->counters().stored_blocks == 0);
  }
}

TEST_CASE("an answer is stored when it ends, so a conversation goes on in the next engine") {
  const TemporaryFolder folder;
  Tokens prompt = random_tokens(20, 2);
  Tokens answer;
  {
    const auto engine = model().engine(options_with(on_disk(folder)));
    answer = answer_of(*engine, prompt, 50);
    CHECK(stored_blocks(*engine, 4) == 4);
  }
  prompt.insert(prompt.end(), answer.begin(), answer.end());
  prompt.push_back(7);
  const auto engine = model().engine(options_with(on_disk(folder)));
  CHECK(answer_of(*engine, prompt) == expected_of(prompt));
  CHECK(engine->counters().loaded_tokens == 64);
}

TEST_CASE("a prompt of whole blocks computes its last token") {
  const TemporaryFolder folder;
  const Tokens prompt = random_tokens(6 * kPage, 3);
  const Tokens expected = expected_of(prompt);
  for (const int64_t loaded : {int64_t{0}, 5 * kPage}) {
    const auto engine = model().engine(options_with(on_disk(folder)));
    CHECK(answer_of(*engine, prompt) == expected);
    CHECK(engine->counters().loaded_tokens == loaded);
  }
}

TEST_CASE("what pages had no room for comes back from memory") {
  const auto engine = model().engine(options_with({.memory_bytes = 16 << 20}, 10));
  const Tokens first = random_tokens(100, 4);
  CHECK(answer_of(*engine, first) == expected_of(first));
  for (unsigned seed = 5; seed < 8; ++seed) (void)answer_of(*engine, random_tokens(120, seed));
  CHECK(engine->counters().loaded_tokens == 0);
  CHECK(answer_of(*engine, first) == expected_of(first));
  CHECK(engine->counters().loaded_tokens > 0);
}

TEST_CASE("only what the pages lack is loaded") {
  const TemporaryFolder folder;
  const Tokens prompt = random_tokens(100, 8);
  { (void)answer_of(*model().engine(options_with(on_disk(folder))), prompt); }
  const auto engine = model().engine(options_with(on_disk(folder)));
  Tokens begin(prompt.begin(), prompt.begin() + 40);
  (void)answer_of(*engine, begin, 1);
  CHECK(engine->counters().loaded_tokens == 32);
  CHECK(answer_of(*engine, prompt) == expected_of(prompt));
  CHECK(engine->counters().cached_tokens == 32);
  CHECK(engine->counters().loaded_tokens == 96);
}

TEST_CASE("many requests with one prefix have the tokens that they have alone") {
  const TemporaryFolder folder;
  const Tokens prefix = random_tokens(80, 9);
  std::vector<Tokens> prompts;
  for (unsigned i = 0; i < 12; ++i) {
    prompts.push_back(prefix);
    const Tokens own = random_tokens(5 + i, 100 + i);
    prompts.back().insert(prompts.back().end(), own.begin(), own.end());
  }
  std::vector<Tokens> expected;
  const auto plain = model().engine(options_with({}));
  for (const Tokens& prompt : prompts) expected.push_back(answer_of(*plain, prompt));
  // Few pages, so that some are preempted.
  for (const uint64_t pages : {256, 256, 20, 9}) {
    const auto engine = model().engine(options_with(on_disk(folder), pages));
    std::vector<std::shared_ptr<Answer>> answers;
    for (const Tokens& prompt : prompts) answers.push_back(ask(*engine, prompt));
    finish(*engine);
    for (size_t i = 0; i < prompts.size(); ++i) CHECK(answers[i]->tokens == expected[i]);
  }
}

TEST_CASE("with memory for a few blocks only, tokens are the same") {
  const TemporaryFolder folder;
  PromptStoreOptions store = on_disk(folder);
  store.memory_bytes = 3 * kPageBytes;
  const auto plain = model().engine(options_with({}));
  for (int round = 0; round < 2; ++round) {
    const auto engine = model().engine(options_with(store, 20));
    std::vector<std::shared_ptr<Answer>> answers;
    for (unsigned seed = 20; seed < 28; ++seed) answers.push_back(ask(*engine, random_tokens(90, seed)));
    finish(*engine);
    for (unsigned i = 0; i < 8; ++i) CHECK(answers[i]->tokens == answer_of(*plain, random_tokens(90, 20 + i)));
  }
}

TEST_CASE("a preempted prompt that is computed again in parts has the same tokens, with a store and without") {
  const TemporaryFolder folder;
  const Tokens grows = random_tokens(20, 50), prompt = random_tokens(600, 51);
  const Tokens expected_grown = expected_of(grows, 400), expected = expected_of(prompt);
  for (const bool stores : {false, true, true}) {
    const auto engine = model().engine(options_with(stores ? on_disk(folder) : PromptStoreOptions{}, 44));
    const std::shared_ptr<Answer> first = ask(*engine, grows, 400), second = ask(*engine, prompt, 50);
    finish(*engine);
    CHECK(engine->counters().preempted > 0);
    CHECK(first->tokens == expected_grown);
    REQUIRE(second->tokens.size() == 50);
    CHECK(Tokens(second->tokens.begin(), second->tokens.begin() + 12) == expected);
  }
}

TEST_CASE("a damaged disk costs time and no tokens") {
  const Tokens prompt = random_tokens(100, 10);
  const Tokens expected = expected_of(prompt);
  for (const bool all : {false, true}) {
    const TemporaryFolder folder;
    { (void)answer_of(*model().engine(options_with(on_disk(folder))), prompt); }
    damage(folder.path() / "kv", all);
    const auto engine = model().engine(options_with(on_disk(folder)));
    CHECK(answer_of(*engine, prompt) == expected);
    if (all) CHECK(engine->counters().loaded_tokens == 0);
    CHECK(engine->counters().loaded_tokens < 96);
  }
}

TEST_CASE("a request may be cancelled at any moment of its loading") {
  const TemporaryFolder folder;
  const Tokens prompt = random_tokens(500, 11), other = random_tokens(90, 12);
  { (void)answer_of(*model().engine(options_with(on_disk(folder))), prompt); }
  const Tokens expected = expected_of(prompt), expected_other = expected_of(other);
  const auto engine = model().engine(options_with(on_disk(folder), 64));
  for (int steps = 0; steps < 8; ++steps) {
    uint64_t id = 0;
    const std::shared_ptr<Answer> cancelled = ask(*engine, prompt, 12, &id);
    const std::shared_ptr<Answer> stays = ask(*engine, other);
    for (int i = 0; i < steps; ++i) REQUIRE(engine->step().ok());
    engine->cancel(id);
    finish(*engine);
    CHECK(cancelled->finish == Finish::kCancelled);
    CHECK(stays->tokens == expected_other);
    // Other prompts take its pages.
    for (unsigned seed = 30; seed < 34; ++seed) (void)answer_of(*engine, random_tokens(400, seed), 1);
  }
  CHECK(answer_of(*engine, prompt) == expected);
}

TEST_CASE("an engine may end while it loads and saves") {
  const TemporaryFolder folder;
  const Tokens prompt = random_tokens(500, 18);
  { (void)answer_of(*model().engine(options_with(on_disk(folder))), prompt); }
  for (int steps = 0; steps < 6; ++steps) {
    const auto engine = model().engine(options_with(on_disk(folder)));
    const std::shared_ptr<Answer> loads = ask(*engine, prompt), saves = ask(*engine, random_tokens(60, 40));
    for (int i = 0; i < steps; ++i) REQUIRE(engine->step().ok());
  }
  CHECK(answer_of(*model().engine(options_with(on_disk(folder))), prompt) == expected_of(prompt));
}

TEST_CASE("a prompt that takes too long to load is computed") {
  const TemporaryFolder folder;
  const Tokens prompt = random_tokens(300, 13);
  const Tokens expected = expected_of(prompt);
  { (void)answer_of(*model().engine(options_with(on_disk(folder))), prompt); }
  for (const double seconds : {0.0, 1e-5, 5e-5, 1e-4, 2e-4, 4e-4, 8e-4, 2e-3}) {
    PromptStoreOptions store = on_disk(folder);
    store.most_seconds = seconds;
    const auto engine = model().engine(options_with(store));
    CHECK(answer_of(*engine, prompt) == expected);
    if (seconds == 0) CHECK(engine->counters().loaded_tokens == 0);
  }
}

TEST_CASE("requests go on while a remote store does not answer") {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  REQUIRE(bind(listener, reinterpret_cast<sockaddr*>(&address), size) == 0);
  REQUIRE(listen(listener, 16) == 0);
  REQUIRE(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  const std::string remote = "redis://127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  {
    const auto engine = model().engine(options_with({.memory_bytes = 1 << 20, .remote = remote}));
    // Too short for the store.
    const std::shared_ptr<Answer> short_one = ask(*engine, random_tokens(10, 14), 100);
    while (short_one->tokens.empty()) REQUIRE(engine->step().ok());
    const Tokens prompt = random_tokens(60, 15);
    const std::shared_ptr<Answer> waits = ask(*engine, prompt);
    while (short_one->tokens.size() < 50) REQUIRE(engine->step().ok());
    CHECK(waits->tokens.empty());
    finish(*engine);
    CHECK(short_one->tokens == expected_of(random_tokens(10, 14), 100));
    CHECK(waits->tokens == expected_of(prompt));
  }
  close(listener);
}

TEST_CASE("a folder that others share gives one engine's prompts to another") {
  const TemporaryFolder folder;
  const std::string remote = "file://" + (folder.path() / "shared").string();
  std::filesystem::create_directory(folder.path() / "shared");
  const Tokens prompt = random_tokens(100, 16);
  { (void)answer_of(*model().engine(options_with({.memory_bytes = 1 << 20, .remote = remote})), prompt); }
  const auto engine = model().engine(options_with({.memory_bytes = 1 << 20, .remote = remote}));
  CHECK(answer_of(*engine, prompt) == expected_of(prompt));
  CHECK(engine->counters().loaded_tokens == 96);
}

TEST_CASE("another model, or other bits of its weights, finds nothing; a moved checkpoint finds all") {
  const TemporaryFolder folder;
  const Tokens prompt = random_tokens(100, 17);
  { (void)answer_of(*model().engine(options_with(on_disk(folder))), prompt); }
  const Model other(2);
  const Model same(1);
  Json scaled = config_json();
  scaled["rope_theta"] = 10000.0;
  const Model rotated(1, scaled);
  CHECK(fingerprint_of(other.config, *other.checkpoint) != fingerprint_of(same.config, *same.checkpoint));
  CHECK(fingerprint_of(rotated.config, *rotated.checkpoint) != fingerprint_of(same.config, *same.checkpoint));
  const auto loaded = [&](const Model& of, const char* dtype, int64_t bits) {
    EngineOptions options = options_with(on_disk(folder));
    options.cache_dtype = dtype;
    options.weights.bits = bits;
    const auto engine = of.engine(options);
    (void)answer_of(*engine, prompt);
    return engine->counters().loaded_tokens;
  };
  CHECK(loaded(other, "", 0) == 0);
  CHECK(loaded(rotated, "", 0) == 0);
  CHECK(loaded(same, "bfloat16", 0) == 0);
  CHECK(loaded(same, "", 8) == 0);
  CHECK(loaded(same, "", 0) == 96);
  CHECK(loaded(same, "bfloat16", 0) == 96);
  CHECK(loaded(same, "float8_e4m3", 0) == 0);
  CHECK(loaded(same, "float8_e4m3", 0) == 96);
}

TEST_CASE("what a store has no place for is refused with one sentence") {
  const TemporaryFolder folder;
  EngineOptions options = options_with(on_disk(folder));
  options.cache_dtype = "int8";
  const auto message = [&](const Model& of, const EngineOptions& wrong) {
    const Result<std::unique_ptr<Engine>> made = Engine::make(of.config, of.checkpoint, wrong);
    REQUIRE_FALSE(made.ok());
    CHECK(made.status().error_class() == ErrorClass::kUsage);
    return made.status().message();
  };
  CHECK(message(model(), options).find("scales") != std::string::npos);
  options = options_with(on_disk(folder));
  options.store.disk_bytes = 0;
  CHECK(message(model(), options).find("size") != std::string::npos);
  options = options_with({.memory_bytes = 1});
  CHECK(message(model(), options).find("one block") != std::string::npos);
  Json dynamic = config_json();
  dynamic["rope_scaling"] = {{"rope_type", "dynamic"}, {"factor", 4.0}};
  CHECK(message(Model(1, dynamic), options_with(on_disk(folder))).find("length") != std::string::npos);
}

TEST_CASE("a folder that another engine uses is refused") {
  const TemporaryFolder folder;
  const auto engine = model().engine(options_with(on_disk(folder)));
  const Result<std::unique_ptr<Engine>> second =
      Engine::make(model().config, model().checkpoint, options_with(on_disk(folder)));
  CHECK_FALSE(second.ok());
}

}  // namespace hetero::qwen3
