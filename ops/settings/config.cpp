#include "ops/settings/config.h"

#include <ATen/Context.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "backend/device/device.h"

namespace hetero::ops {

constinit Config* config_instance = nullptr;

namespace {

// Before the static initializers, which register operators.
[[gnu::constructor(200)]] void make_config() { config_instance = new Config; }

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

// "4096", "64MiB", "1.5 GiB". A fraction has a unit: nobody means one and a half bytes.
std::optional<int64_t> parse_integer(const std::string& text) {
  constexpr std::pair<const char*, int> kUnits[] = {{"", 0},     {"kib", 10}, {"k", 10},   {"mib", 20}, {"m", 20},
                                                    {"gib", 30}, {"g", 30},   {"tib", 40}, {"t", 40}};
  const char* const end = text.data() + text.size();
  int64_t whole = 0;
  if (const auto [rest, error] = std::from_chars(text.data(), end, whole); error == std::errc() && rest == end) {
    return whole >= 0 ? std::optional(whole) : std::nullopt;
  }
  double number = 0;
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc()) return std::nullopt;
  std::string unit = lower(std::string(rest, end));
  unit.erase(0, std::min(unit.find_first_not_of(' '), unit.size()));
  for (const auto& [known, exponent] : kUnits) {
    if (unit != known) continue;
    const double scaled = std::ldexp(number, exponent);
    // Not so for a number that is none, either.
    if (!(scaled >= 0 && scaled < 0x1p63)) return std::nullopt;
    if (exponent == 0 && scaled != std::floor(scaled)) return std::nullopt;
    return static_cast<int64_t>(scaled);
  }
  return std::nullopt;
}

// For each kind of option: its type for Python, what it takes in words, and its values as text.
namespace option_text {

struct Bool {
  static constexpr const char* kType = "bool";
  static std::string takes() { return "0 or 1"; }
  static std::optional<bool> parse(const std::string& text) {
    const std::string word = lower(text);
    if (word == "1" || word == "true" || word == "on" || word == "yes") return true;
    if (word == "0" || word == "false" || word == "off" || word == "no" || word.empty()) return false;
    return std::nullopt;
  }
  static std::string print(bool value) { return value ? "1" : "0"; }
};

struct Int {
  static constexpr const char* kType = "int";
  static std::string takes() { return "a whole number from 0 to 2^63 - 1, or one with KiB, MiB, GiB or TiB"; }
  static std::optional<int64_t> parse(const std::string& text) { return parse_integer(text); }
  static std::string print(int64_t value) { return std::to_string(value); }
};

struct Bytes : Int {
  static constexpr const char* kType = "bytes";
};

struct Queues : Int {
  static std::string takes() { return "a number from 1 to " + std::to_string(backend::kComputeQueues); }
  static std::optional<int64_t> parse(const std::string& text) {
    const auto value = parse_integer(text);
    return value >= 1 && value <= backend::kComputeQueues ? value : std::nullopt;
  }
};

struct Share {
  static constexpr const char* kType = "float";
  static std::string takes() { return "a number from 0 to 1"; }
  static std::optional<double> parse(const std::string& text) {
    char* end = nullptr;
    const double share = std::strtod(text.c_str(), &end);
    if (text.empty() || *end != '\0' || !(share >= 0 && share <= 1)) return std::nullopt;
    return share;
  }
  static std::string print(double value) {
    char text[32];
    std::snprintf(text, sizeof(text), "%g", value);
    return text;
  }
};

struct Policy {
  static constexpr const char* kType = "str";
  static std::string takes() { return "auto, cpu, accelerator, mixed or thresholds"; }
  static std::optional<graph::Policy> parse(const std::string& text) {
    using enum graph::Policy;
    for (const graph::Policy policy : {kAuto, kCpu, kAccelerator, kMixed, kThresholds}) {
      if (text == to_string(policy)) return policy;
    }
    return std::nullopt;
  }
  static std::string print(graph::Policy value) { return to_string(value); }
};

struct Text {
  static constexpr const char* kType = "str";
  static std::string takes() { return "a text"; }
  static std::optional<std::string> parse(const std::string& text) { return text; }
  static std::string print(const std::string& value) { return value; }
};

}  // namespace option_text

struct Row {
  const char* name;
  const char* type;
  std::string default_value;
  const char* doc;
  std::function<std::string()> get;
  std::function<void(const std::string&)> set;
};

template <class Kind, class Field, class Hook>
Row make_row(const char* name, std::string default_value, const char* doc, Field& field, Hook& hook) {
  return {name,
          Kind::kType,
          std::move(default_value),
          doc,
          [&field] { return Kind::print(field.load()); },
          [name, &field, &hook](const std::string& text) {
            const auto value = Kind::parse(text);
            TORCH_CHECK_VALUE(value.has_value(), "hetero: option '", name, "' takes ", Kind::takes(), ", not '", text,
                              "'");
            if (hook) {
              hook(*value);
            } else {
              field = *value;
            }
          }};
}

const std::vector<Row>& rows() {
  static const auto* table = new std::vector<Row>{
#define OPTION(kind, name, default_value, text) \
  make_row<option_text::kind>(#name, option_text::kind::print(default_value), text, config().name, option_hooks().name),
#include "ops/settings/options.def"
#undef OPTION
  };
  return *table;
}

const Row& row(const std::string& name) {
  for (const Row& candidate : rows()) {
    if (name == candidate.name) return candidate;
  }
  std::string names;
  for (const Row& candidate : rows()) names += (names.empty() ? "" : ", ") + std::string(candidate.name);
  TORCH_CHECK(false, "hetero: no option '", name, "'; there are: ", names);
}

std::string environment_name(const Row& option) {
  std::string name = option.name;
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return "HETERO_" + name;
}

}  // namespace

OptionHooks& option_hooks() {
  static auto* const hooks = new OptionHooks;
  return *hooks;
}

bool last_bits_may_vary() { return last_bits_may_differ() && !at::globalContext().deterministicAlgorithms(); }

std::vector<Option> list_options() {
  std::vector<Option> options;
  for (const Row& option : rows()) {
    options.push_back(
        {option.name, environment_name(option), option.type, option.default_value, option.get(), option.doc});
  }
  return options;
}

std::string get_option(const std::string& name) { return row(name).get(); }

void set_option(const std::string& name, const std::string& value) { row(name).set(value); }

void load_environment() {
  for (const Row& option : rows()) {
    const char* const value = std::getenv(environment_name(option).c_str());
    if (value != nullptr && *value != '\0') option.set(value);
  }
}

}  // namespace hetero::ops
