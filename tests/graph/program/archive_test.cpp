// Files of saved programs: they load as what was saved, other tools can read them, and what is damaged is refused in one sentence.

#include "graph/program/archive.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "backend/file/file.h"
#include "graph/fusion/fusion.h"
#include "graph/ir/plan.h"
#include "graph/plan/pipeline.h"
#include "graph/program/archive_json.h"
#include "graph/program/crc32.h"
#include "graph/program/verify_program.h"
#include "graph/program/zip.h"
#include "graph/verify/verify.h"
#include "tests/catch/catch.h"
#include "tests/graph/fixtures/saved.h"

namespace hetero::graph::testing {
namespace {

// y = w * x + v, of which w has 100 floats and v 7: there is padding between them.
std::unique_ptr<SavedProgram> small_program() {
  Program p;
  const BufferId x = p.input(100);
  const BufferId w = p.input(100);
  const BufferId v = p.input(7);
  const BufferId y = p.define(test_ops().pointwise, 100, {p.read(x), p.read(w), p.read(v)});
  p.escape(y);
  auto saved = std::make_unique<SavedProgram>();
  Result<Graph> graph = parse_graph(to_string(p.graph), saved->windows);
  REQUIRE(graph.ok());
  saved->graph = std::move(graph.value());
  const auto window = [&](const char* text) { return parse_window(text, saved->windows); };
  saved->inputs = {{"x", x, window("f32[10,10]"), 0}};
  saved->outputs = {{"y", y, window("f32[10,10]{1,10}+0"), kConjugate}};
  const auto bytes = [](size_t count, char first) {
    std::string text(count, first);
    for (size_t i = 0; i < count; ++i) text[i] = static_cast<char>(first + static_cast<char>(i));
    return block_of(text);
  };
  saved->constants.push_back({"v", v, window("f32[7]"), bytes(28, 1)});
  saved->constants.push_back({"w", w, window("f32[10,10]{1,10}+0"), bytes(400, 2)});
  saved->constants.push_back({"w.tied", w, window("f32[50]"), {}});
  for (const BufferId b : {w, v}) saved->graph.buffers[b].steady = true;
  saved->metadata["signature"] = "(x)";
  Plan plan;
  make_plan(saved->graph, cpu_options(), plan);
  saved->plan = to_string(plan);
  saved->plan_machine = "a machine";
  return saved;
}

std::unique_ptr<SavedProgram> load(const std::string& path, LoadOptions options = {}) {
  Result<std::unique_ptr<SavedProgram>> loaded = load_program(path, options);
  INFO((loaded.ok() ? "" : loaded.status().message()));
  REQUIRE(loaded.ok());
  return std::move(loaded.value());
}

void save(const SavedProgram& program, const std::string& path) {
  const Status status = save_program(program, path);
  INFO((status.ok() ? "" : status.message()));
  REQUIRE(status.ok());
}

// The one sentence with which this file is refused.
std::string refusal(const std::string& path, ErrorClass expected = ErrorClass::kStorage, LoadOptions options = {}) {
  const Result<std::unique_ptr<SavedProgram>> loaded = load_program(path, options);
  REQUIRE_FALSE(loaded.ok());
  INFO(loaded.status().message());
  CHECK(loaded.status().error_class() == expected);
  CHECK(loaded.status().message().find(path) != std::string::npos);
  return loaded.status().message();
}

bool mentions(const std::string& text, const std::string& what) {
  INFO(text);
  return text.find(what) != std::string::npos;
}

struct Part {
  std::string name;
  std::string bytes;
};

std::vector<ZipEntry> entries_of(const std::string& file) {
  const Result<std::vector<ZipEntry>> entries = read_zip(file);
  REQUIRE(entries.ok());
  return entries.value();
}

std::vector<Part> parts_of(const std::string& file) {
  std::vector<Part> parts;
  for (const ZipEntry& entry : entries_of(file)) parts.push_back({entry.name, file.substr(entry.data, entry.bytes)});
  return parts;
}

std::string pack(const std::vector<Part>& parts, uint64_t alignment = 64) {
  std::string file;
  std::vector<ZipEntry> entries;
  for (const auto& [name, bytes] : parts) {
    ZipEntry& entry = entries.emplace_back();
    entry = {.name = name, .header = file.size(), .bytes = bytes.size(), .crc = crc32(bytes)};
    file += zip_local_header(entry, alignment);
    file += bytes;
  }
  return file + zip_directory(entries, file.size());
}

std::string& part(std::vector<Part>& parts, const std::string& name) {
  const auto found = std::ranges::find(parts, name, &Part::name);
  REQUIRE(found != parts.end());
  return found->bytes;
}

void replace(std::string& text, const std::string& from, const std::string& to) {
  const size_t place = text.find(from);
  INFO(text << "\nhas no " << from);
  REQUIRE(place != std::string::npos);
  text.replace(place, from.size(), to);
}

// A saved small program and how it is damaged.
class Damage {
 public:
  Damage() : path_(folder_.path("m.hetero")) {
    save(*small_program(), path_);
    whole_ = read_file(path_);
  }
  const std::string& path() const { return path_; }
  const std::string& whole() const { return whole_; }

  // With all checksums right.
  std::string refusal_of(const std::string& entry, const std::string& from, const std::string& to,
                         ErrorClass expected = ErrorClass::kStorage) {
    std::vector<Part> parts = parts_of(whole_);
    replace(part(parts, entry), from, to);
    write_file(path_, pack(parts));
    return refusal(path_, expected);
  }

 private:
  TemporaryFolder folder_;
  std::string path_;
  std::string whole_;
};

}  // namespace

TEST_CASE("a saved program loads as it was") {
  const TemporaryFolder folder;
  const std::string path = folder.path("m.hetero");
  std::mt19937 random(1);
  for (int i = 0; i < 40; ++i) {
    const auto program = make_saved(random, 1 + i);
    save(*program, path);
    const auto loaded = load(path);
    REQUIRE(describe(*loaded) == describe(*program));
    REQUIRE(verify_program(*loaded).ok());
    for (const ProgramConstant& constant : loaded->constants) {
      REQUIRE(reinterpret_cast<uintptr_t>(constant.bytes.data()) % 64 == 0);
    }
    save(*loaded, path);
    REQUIRE(describe(*load(path, {.check_weights = false})) == describe(*program));
  }
  CHECK(folder.files() == 1);
}

TEST_CASE("a loaded program computes what the saved one does, by its plan") {
  Program p;
  const BufferId x = p.input(64);
  const BufferId y = p.define(test_ops().pointwise, 64, {p.read(x)});
  p.escape(y);
  const auto program = save(p);
  program->plan = to_string(p.plan(cpu_options()));
  const TemporaryFolder folder;
  save(*program, folder.path("m"));
  const auto loaded = load(folder.path("m"));
  Result<Plan> plan = parse_plan(loaded->plan);
  REQUIRE(plan.ok());
  REQUIRE(restore_groups(loaded->graph, plan.value()).ok());
  REQUIRE(verify_plan(loaded->graph, plan.value(), cpu_options()).ok());
  CHECK(to_string(loaded->graph) == to_string(p.graph));
  CHECK(same_values(p, p.run_plan(plan.value()), p.interpret()));
}

TEST_CASE("constants are parts of the mapped file, and outlive the program") {
  const TemporaryFolder folder;
  const std::string path = folder.path("m");
  const auto program = small_program();
  save(*program, path);
  auto loaded = load(path);
  backend::Block w = std::move(loaded->constants[1].bytes);
  CHECK_FALSE(loaded->constants[2].bytes);
  const auto* const from = static_cast<const char*>(w.data());
  const auto* const v = static_cast<const char*>(loaded->constants[0].bytes.data());
  CHECK((v < from && v + 4096 > from));  // both in one mapping
  loaded.reset();
  // Another file in its place is not seen.
  auto other = small_program();
  static_cast<char*>(other->constants[1].bytes.data())[0] ^= 1;
  save(*other, path);
  CHECK(std::memcmp(w.data(), program->constants[1].bytes.data(), 400) == 0);
}

TEST_CASE("every entry is stored as it is, and the tensors are those of safetensors") {
  const Damage damage;
  const std::string& file = damage.whole();
  const std::vector<ZipEntry> entries = entries_of(file);
  std::vector<std::string> names;
  for (const ZipEntry& entry : entries) names.push_back(entry.name);
  CHECK(names == std::vector<std::string>{"version", "weights.safetensors", "graph.txt", "program.json", "plan.txt"});
  CHECK(file.substr(entries[0].data, entries[0].bytes) == "1.1\n");
  CHECK(entries[1].data % 64 == 0);
  const auto program = small_program();
  CHECK(file.substr(entries[2].data, entries[2].bytes) == to_string(program->graph));
  CHECK(file.substr(entries[4].data, entries[4].bytes) == program->plan);

  const std::string weights = file.substr(entries[1].data, entries[1].bytes);
  const Result<Weights> header = read_weights_header(weights);
  REQUIRE(header.ok());
  CHECK(header.value().data % 64 == 0);
  // safetensors allows no gaps, so the room between tensors is one as well.
  uint64_t end = 0;
  std::vector<WeightEntry> tensors;
  for (const auto& [name, tensor] : header.value().entries) tensors.push_back(tensor);
  std::ranges::sort(tensors, {}, &WeightEntry::begin);
  for (const WeightEntry& tensor : tensors) {
    CHECK(tensor.begin == end);
    end = tensor.end;
  }
  CHECK(weights.size() == header.value().data + end);
  REQUIRE(tensors.size() == 3);
  CHECK(tensors[0].name == "v");
  CHECK(tensors[0].dtype == "F32");
  CHECK(tensors[1].name == "_padding_0");
  CHECK(tensors[2].name == "w");
  // Its window is transposed.
  CHECK(tensors[2].dtype == "U8");
  CHECK(weights.compare(header.value().data + tensors[2].begin, 400,
                        std::string(static_cast<const char*>(program->constants[1].bytes.data()), 400)) == 0);
}

TEST_CASE("the same program gives the same file") {
  const TemporaryFolder folder;
  save(*small_program(), folder.path("a"));
  save(*small_program(), folder.path("b"));
  CHECK(read_file(folder.path("a")) == read_file(folder.path("b")));
}

TEST_CASE("another plan takes the place of the old one, and the rest stays") {
  const TemporaryFolder folder;
  const std::string path = folder.path("m");
  const auto program = small_program();
  const std::string plan = program->plan;
  save(*program, path);
  const std::string first = read_file(path);
  REQUIRE(replace_plan(path, "", "").ok());
  CHECK(load(path)->plan.empty());
  CHECK(load(path)->plan_machine.empty());
  REQUIRE(replace_plan(path, plan, "another").ok());
  program->plan_machine = "another";
  CHECK(describe(*load(path)) == describe(*program));
  REQUIRE(replace_plan(path, plan, "a machine").ok());
  CHECK(read_file(path) == first);

  CHECK(replace_plan(path, "no plan", "").error_class() == ErrorClass::kUsage);
  CHECK(read_file(path) == first);
  CHECK(replace_plan(folder.path("none"), plan, "").error_class() == ErrorClass::kStorage);
  CHECK(folder.files() == 1);
}

TEST_CASE("a save that fails leaves the old file, and nothing else") {
  const TemporaryFolder folder;
  const std::string path = folder.path("m");
  save(*small_program(), path);
  const std::string before = read_file(path);
  const auto failed = [&](const Status& status, ErrorClass expected) {
    REQUIRE_FALSE(status.ok());
    CHECK(status.error_class() == expected);
    CHECK(read_file(path) == before);
    CHECK(folder.files() == 1);
  };
  // The system stops writing after some bytes, at different places.
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit{};
  getrlimit(RLIMIT_FSIZE, &limit);
  for (const rlim_t bytes : {0, 20, 300, 900, 1500}) {
    const rlimit small{bytes, limit.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
    const Status status = save_program(*small_program(), path);
    const Status replaced = replace_plan(path, small_program()->plan, "another");
    setrlimit(RLIMIT_FSIZE, &limit);
    failed(status, ErrorClass::kStorage);
    failed(replaced, ErrorClass::kStorage);
    CHECK(mentions(status.message(), path));
  }
  std::signal(SIGXFSZ, handler);
  auto illegal = small_program();
  illegal->outputs[0].name = "";
  failed(save_program(*illegal, path), ErrorClass::kUsage);
  auto not_text = small_program();
  not_text->metadata["key"] = "\xff\xfe";
  failed(save_program(*not_text, path), ErrorClass::kUsage);
  failed(save_program(*small_program(), folder.path("no/such/folder")), ErrorClass::kStorage);
  REQUIRE(mkdir(folder.path("folder").c_str(), 0777) == 0);
  CHECK_FALSE(save_program(*small_program(), folder.path("folder")).ok());
  CHECK(folder.files() == 2);
}

TEST_CASE("what is no saved program is refused in one sentence") {
  Damage damage;
  CHECK(mentions(refusal(damage.path() + ".none"), "No such file"));
  const auto refusal_of = [&](const std::string& bytes) {
    write_file(damage.path(), bytes);
    return refusal(damage.path());
  };
  CHECK(mentions(refusal_of(""), "is not a saved program"));
  CHECK(mentions(refusal_of("GGUF and so on"), "is not a saved program"));
  CHECK(mentions(refusal_of(pack({{"data.pkl", "xyz"}})), "is not a saved program"));
  CHECK(mentions(refusal_of(pack({})), "is not a saved program"));
  std::string magic = damage.whole();
  magic[0] = 'Q';
  CHECK(mentions(refusal_of(magic), "is not a saved program"));
}

TEST_CASE("a file of a newer version is refused, and one of a newer minor version is read") {
  Damage damage;
  CHECK(mentions(damage.refusal_of("version", "1.1", "2.0"), "update hetero"));
  CHECK(mentions(damage.refusal_of("version", "1.1", "17.3"), "version 17"));
  CHECK(mentions(damage.refusal_of("version", "1.1", "one"), "no version"));
  std::vector<Part> parts = parts_of(damage.whole());
  part(parts, "version") = "1.7\n";
  replace(part(parts, "program.json"), "\"inputs\"", "\"more\": [1, null], \"inputs\"");
  parts.push_back({"more.txt", "what 1.7 adds"});
  write_file(damage.path(), pack(parts));
  CHECK(describe(*load(damage.path())) == describe(*small_program()));
}

TEST_CASE("a file that is cut off anywhere is refused") {
  Damage damage;
  std::vector<size_t> ends;
  for (const ZipEntry& entry : entries_of(damage.whole())) {
    for (const uint64_t end : {entry.header, entry.data, entry.data + entry.bytes}) {
      ends.insert(ends.end(), {end, end + 1});
      if (end > 0) ends.push_back(end - 1);
    }
  }
  std::mt19937 random(5);
  for (int i = 0; i < 300; ++i) ends.push_back(random() % damage.whole().size());
  for (size_t back = 1; back < 60; ++back) ends.push_back(damage.whole().size() - back);
  for (const size_t end : ends) {
    INFO("cut at " << end);
    write_file(damage.path(), damage.whole().substr(0, end));
    refusal(damage.path());
  }
}

TEST_CASE("a damaged byte is found by the checksums, whatever it says") {
  Damage damage;
  const std::string& whole = damage.whole();
  for (const ZipEntry& entry : entries_of(whole)) {
    for (uint64_t i = 0; i<entry.bytes; i += entry.bytes> 600 ? 7 : 1) {
      std::string bytes = whole;
      bytes[entry.data + i] = static_cast<char>(bytes[entry.data + i] ^ 0x10);
      write_file(damage.path(), bytes);
      REQUIRE(mentions(refusal(damage.path()), entry.name));
    }
  }
  // Unless one does not ask.
  const std::vector<ZipEntry> entries = entries_of(whole);
  std::string bytes = whole;
  bytes[entries[1].data + entries[1].bytes - 1] ^= 1;
  write_file(damage.path(), bytes);
  CHECK(describe(*load(damage.path(), {.check_weights = false})) != describe(*small_program()));
}

TEST_CASE("whatever byte of the directory changes, the program is the same or refused") {
  Damage damage;
  const std::string expected = describe(*small_program());
  const std::vector<ZipEntry> entries = entries_of(damage.whole());
  int refused = 0;
  int total = 0;
  for (size_t i = entries.back().data + entries.back().bytes; i < damage.whole().size(); ++i) {
    for (const int change : {0x01, 0x80, 0xff}) {
      std::string bytes = damage.whole();
      bytes[i] = static_cast<char>(bytes[i] ^ change);
      write_file(damage.path(), bytes);
      const Result<std::unique_ptr<SavedProgram>> loaded = load_program(damage.path());
      INFO("byte " << i);
      // The plan may be left out, when its name is no longer its.
      if (loaded.ok() && loaded.value()->plan.empty()) loaded.value()->plan = small_program()->plan;
      if (loaded.ok()) REQUIRE(describe(*loaded.value()) == expected);
      refused += !loaded.ok();
      ++total;
    }
  }
  // What says who made the entry and when is nothing to us.
  CHECK(refused > total / 2);
}

TEST_CASE("entries that are missing, doubled, compressed or exchanged are refused by name") {
  Damage damage;
  const std::vector<Part> parts = parts_of(damage.whole());
  for (const Part& gone : parts) {
    if (gone.name == "plan.txt") continue;
    std::vector<Part> rest = parts;
    std::erase_if(rest, [&](const Part& it) { return it.name == gone.name; });
    write_file(damage.path(), pack(rest));
    CHECK(mentions(refusal(damage.path()), gone.name == "version" ? "not a saved program" : gone.name));
  }
  std::vector<Part> doubled = parts;
  doubled.push_back(parts[2]);
  write_file(damage.path(), pack(doubled));
  CHECK(mentions(refusal(damage.path()), "two entries of the name graph.txt"));

  std::string compressed = damage.whole();
  const ZipEntry first = entries_of(compressed)[0];
  compressed[first.header + 8] = 8;
  compressed[compressed.find("PK\1\2") + 10] = 8;
  write_file(damage.path(), compressed);
  CHECK(mentions(refusal(damage.path()), "a compressed entry, version"));

  std::vector<Part> exchanged = parts;
  std::swap(part(exchanged, "graph.txt"), part(exchanged, "program.json"));
  write_file(damage.path(), pack(exchanged));
  CHECK(mentions(refusal(damage.path()), "graph.txt"));
  std::vector<Part> unaligned = parts;
  unaligned.insert(unaligned.begin(), {"a", "b"});
  write_file(damage.path(), pack(unaligned, 1));
  CHECK(mentions(refusal(damage.path()), "another tool"));
}

TEST_CASE("JSON of other types is refused by the name of the field") {
  Damage damage;
  const auto refusal_of = [&](const char* from, const char* to) { return damage.refusal_of("program.json", from, to); };
  CHECK(mentions(refusal_of("\"inputs\": [", "\"inputs\": 7, \"other\": ["), "inputs is missing or is no list"));
  CHECK(mentions(refusal_of("\"inputs\"", "\"puts\""), "inputs"));
  CHECK(mentions(refusal_of("\"name\": \"x\"", "\"name\": 3"), "inputs[0].name"));
  CHECK(mentions(refusal_of("\"name\": \"w.tied\"", "\"names\": 3"), "constants[2].name"));
  CHECK(mentions(refusal_of("\"buffer\": 0", "\"buffer\": -1"), "inputs[0].buffer"));
  CHECK(mentions(refusal_of("\"buffer\": 0", "\"buffer\": 4294967296"), "inputs[0].buffer is too large"));
  CHECK(mentions(refusal_of("\"buffer\": 0", "\"buffer\": 1e3"), "inputs[0].buffer"));
  CHECK(mentions(refusal_of("f32[10,10]", "f32[10,-10]"), "inputs[0].window"));
  CHECK(mentions(refusal_of("\"bits\": 1", "\"bits\": 256"), "outputs[0].bits"));
  CHECK(mentions(refusal_of("\"(x)\"", "null"), "metadata.signature"));
  CHECK(mentions(refusal_of("\"draws\": [", "\"draws\": [true"), "draws[0]"));
  CHECK(mentions(refusal_of("\"a machine\"", "[]"), "plan_machine"));
  CHECK(mentions(refusal_of("{", "[1, {"), "program.json is no object"));
  std::vector<Part> parts = parts_of(damage.whole());
  part(parts, "program.json") = std::string(100000, '[');
  write_file(damage.path(), pack(parts));
  CHECK(mentions(refusal(damage.path()), "program.json is no object"));
}

TEST_CASE("weights that are not what the graph says are refused") {
  Damage damage;
  const auto refusal_of = [&](const char* from, const char* to) {
    return damage.refusal_of("weights.safetensors", from, to);
  };
  CHECK(mentions(refusal_of("\"w\"", "\"W\""), "no tensor w"));
  CHECK(mentions(refusal_of("[0,28]", "[0,24]"), "v has 24 bytes"));
  CHECK(mentions(refusal_of("[64,464]", "[64,465]"), "w.data_offsets is no part of the file"));
  CHECK(mentions(refusal_of("[64,464]", "[63,463]"), "w does not lie at a multiple of 64 bytes"));
  CHECK(mentions(refusal_of("[64,464]", "[464,64]"), "w.data_offsets"));
  CHECK(mentions(refusal_of("[64,464]", "[64,4,4]"), "w.data_offsets"));
  CHECK(mentions(refusal_of("\"F32\"", "12345"), "v.dtype"));
  std::vector<Part> parts = parts_of(damage.whole());
  part(parts, "weights.safetensors").resize(5);
  write_file(damage.path(), pack(parts));
  CHECK(mentions(refusal(damage.path()), "too short"));
  part(parts, "weights.safetensors") = std::string(8, '\xff') + "{}";
  write_file(damage.path(), pack(parts));
  CHECK(mentions(refusal(damage.path()), "too short"));
}

TEST_CASE("a graph that cannot be read or is not legal is refused by what is wrong") {
  Damage damage;
  CHECK(mentions(damage.refusal_of("graph.txt", "test::pointwise", "aten::unheard_of"), "aten::unheard_of"));
  CHECK(mentions(damage.refusal_of("graph.txt", "bytes", "pounds"), "line 1"));
  const auto illegal = [&](const char* entry, const char* from, const char* to) {
    return damage.refusal_of(entry, from, to, ErrorClass::kUsage);
  };
  CHECK(mentions(illegal("graph.txt", "b0: 400", "b0: 396"), "reaches outside b0"));
  CHECK(mentions(illegal("graph.txt", "-> b3", "-> b7"), "n0"));
  CHECK(mentions(illegal("graph.txt", ", escapes", ""), "y is in b3, which does not escape"));
  CHECK(mentions(illegal("graph.txt", "{0000803f}", ""), "has no number"));
  CHECK(mentions(illegal("graph.txt", "b0: 400 bytes, on cpu", "b0: 400 bytes"), "b0"));
  CHECK(mentions(illegal("program.json", "\"buffer\": 0", "\"buffer\": 1"), "is an input as well"));
  CHECK(mentions(illegal("program.json", "\"buffer\": 0", "\"buffer\": 9"), "x has a buffer"));
  CHECK(mentions(illegal("program.json", "\"w.tied\"", "\"w\""), "name w"));
  CHECK(mentions(illegal("program.json", "\"draws\": [", "\"draws\": [0"), "a draw at 0"));
}

TEST_CASE("a program that could not run is not legal") {
  const auto reason = [](const std::function<void(SavedProgram&)>& change) {
    const auto program = small_program();
    REQUIRE(verify_program(*program).ok());
    change(*program);
    const Status status = verify_program(*program);
    REQUIRE_FALSE(status.ok());
    CHECK(status.error_class() == ErrorClass::kUsage);
    return status.message();
  };
  CHECK(mentions(reason([](auto& p) {
                   p.graph.buffers[0].valid_on = 0;
                   p.inputs.clear();
                 }),
                 "reads b0 before it is made"));
  // A node that writes a part of it need not care what is in the rest.
  {
    const auto program = small_program();
    program->graph.buffers[0].valid_on = 0;
    program->inputs.clear();
    for (Operand& operand : program->graph.operands) {
      if (operand.buffer == 0 && operand.reads()) operand.access = Access::kUpdate;
    }
    CHECK(verify_program(*program).ok());
  }
  CHECK(mentions(reason([](auto& p) { p.inputs.clear(); }), "b0 is there before, but nobody gives it"));
  CHECK(mentions(reason([](auto& p) { p.graph.buffers[0].valid_on = 3; }), "b0"));
  CHECK(mentions(reason([](auto& p) { p.outputs.clear(); }), "b3 escapes"));
  CHECK(mentions(reason([](auto& p) { p.constants[0].bytes = block_of("short"); }), "v has fewer bytes"));
  CHECK(mentions(reason([](auto& p) { p.constants[2].bytes = block_of(std::string(400, 'x')); }), "w.tied has bytes"));
  CHECK(mentions(reason([](auto& p) { p.constants[0].name = "__metadata__"; }), "__metadata__"));
  CHECK(mentions(reason([](auto& p) { p.inputs[0].bits = 8; }), "bits"));
  CHECK(mentions(reason([](auto& p) { p.graph.operands[0].bits = 8; }), "bits"));
  CHECK(mentions(reason([](auto& p) { p.graph.buffers[3].bytes = uint64_t{1} << 60; }), "too large"));
  CHECK(mentions(reason([](auto& p) { p.graph.buffers[0].layout = {8, 16}; }), "grows in place"));
  CHECK(mentions(reason([](auto& p) {
                   p.outputs.push_back({"z", static_cast<BufferId>(p.graph.buffers.size()), p.inputs[0].window, 0});
                   p.graph.buffers.push_back({.bytes = 400, .valid_on = 0, .escapes = true});
                 }),
                 "z is never made"));
}

TEST_CASE("a draw is sixteen bytes of a random operator, and of nothing else") {
  std::mt19937 random(11);
  std::unique_ptr<SavedProgram> program;
  do program = make_saved(random, 3);
  while (program->draws.empty());
  REQUIRE(verify_program(*program).ok());
  const uint64_t draw = program->draws[0];
  for (const std::vector<uint64_t>& draws :
       {std::vector<uint64_t>{draw - 4}, {draw + 1}, {draw, draw}, {0}, {UINT64_MAX}, {UINT64_MAX - 15}}) {
    program->draws = draws;
    CHECK_FALSE(verify_program(*program).ok());
  }
}

TEST_CASE("texts with extreme numbers are refused, or print and parse as they are") {
  WindowTable windows;
  for (const std::string text :
       {"f32[9223372036854775807]", "f32[4294967296,4294967296]", "f32[0,4294967296,4294967296]",
        "f64[2]{9223372036854775807}+0", "u8[2,2]{4611686018427387904,4611686018427387904}+0",
        "f32[1]{1}+9223372036854775807", "c128[1152921504606846976]"}) {
    INFO(text);
    CHECK(parse_window(text, windows) == kNoWindow);
  }
  std::string many = "f32[1";
  for (int i = 1; i < 64; ++i) many += ",1";
  CHECK(parse_window(many + ']', windows) != kNoWindow);
  CHECK(parse_window(many + ",1]", windows) == kNoWindow);
  CHECK(parse_window("u8[1099511627776]", windows) != kNoWindow);

  test_ops();  // that the text names one of
  std::string call = "b0: 4 bytes, on cpu\nn0: test::pointwise(read b0:f32[]";
  for (int i = 1; i < 65535; ++i) call += ", read b0:f32[]";
  CHECK(parse_graph(call + ")", windows).ok());
  CHECK_FALSE(parse_graph(call + ", read b0:f32[])", windows).ok());
  for (const std::string text :
       {"plan: 4000000000 nodes, 0 buffers, 0 events\n", "plan: 0 nodes, 18446744073709551615 buffers, 0 events\n",
        "plan: 0 nodes, 0 buffers, 4294967295 events\n",
        "plan: 1 nodes, 0 buffers, 0 events\nn0: cpu, faster, nan s, elsewhere 0 s\n"}) {
    INFO(text);
    CHECK_FALSE(parse_plan(text).ok());
  }
}

TEST_CASE("a plan with more events than instructions, or groups that were not restored, is refused") {
  Program p;
  const BufferId x = p.input(24);
  const BufferId y = p.define(test_ops().map, 24, {p.read(x)});
  const BufferId z = p.define(test_ops().map, 24, {p.read(y)});
  p.escape(z);
  Plan plan = p.plan(fused_options());
  REQUIRE(plan.groups.size() == 1);
  plan.event_count = 1000000;
  CHECK_FALSE(verify_plan(p.graph, plan, fused_options()).ok());
  plan.event_count = 0;
  REQUIRE(verify_plan(p.graph, plan, fused_options()).ok());
  Result<Plan> parsed = parse_plan(to_string(plan));
  REQUIRE(parsed.ok());
  CHECK_FALSE(verify_plan(p.graph, parsed.value(), fused_options()).ok());
  parsed.value().groups[0].operands[0].operand = 77;
  CHECK_FALSE(verify_plan(p.graph, parsed.value(), fused_options()).ok());
  CHECK_FALSE(restore_groups(p.graph, parsed.value()).ok());
}

TEST_CASE("entries of more than 4 GiB are described by ZIP64 records, and found again") {
  constexpr uint64_t kGiB = uint64_t{1} << 30;
  std::vector<ZipEntry> entries(4);
  entries[0] = {.name = "small", .header = 0, .bytes = 10, .crc = 1};
  entries[1] = {.name = "large", .header = 0, .bytes = 5 * kGiB, .crc = 2};
  entries[2] = {.name = "behind", .header = 0, .bytes = 100, .crc = 3};
  entries[3] = {.name = "last", .header = 0, .bytes = 0xFFFFFFFF, .crc = 4};
  // Memory that is never touched costs nothing.
  constexpr size_t kBytes = 10 * kGiB;
  void* const memory =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  auto* const file = static_cast<char*>(memory);
  uint64_t end = 0;
  for (ZipEntry& entry : entries) {
    entry.header = end;
    const std::string header = zip_local_header(entry, 64);
    std::memcpy(file + end, header.data(), header.size());
    CHECK(entry.data % 64 == 0);
    end = entry.data + entry.bytes;
  }
  const std::string directory = zip_directory(entries, end);
  std::memcpy(file + end, directory.data(), directory.size());
  end += directory.size();
  const Result<std::vector<ZipEntry>> read = read_zip({file, end});
  INFO((read.ok() ? "" : read.status().message()));
  REQUIRE(read.ok());
  REQUIRE(read.value().size() == entries.size());
  for (size_t i = 0; i < entries.size(); ++i) {
    CHECK(read.value()[i].name == entries[i].name);
    CHECK(read.value()[i].data == entries[i].data);
    CHECK(read.value()[i].bytes == entries[i].bytes);
    CHECK(read.value()[i].crc == entries[i].crc);
  }
  // Damage to any byte of these records is a refusal or says the same sizes.
  for (size_t i = 1; i <= directory.size(); ++i) {
    file[end - i] = static_cast<char>(file[end - i] ^ 0xff);
    const Result<std::vector<ZipEntry>> other = read_zip({file, end});
    if (other.ok()) {
      for (const ZipEntry& entry : other.value()) REQUIRE((entry.data <= end && entry.bytes <= end - entry.data));
    }
    file[end - i] = static_cast<char>(file[end - i] ^ 0xff);
  }
  munmap(memory, kBytes);
}

TEST_CASE("the checksum is the standard's, also in parts") {
  CHECK(crc32("123456789") == 0xCBF43926);
  CHECK(crc32({}) == 0);
  CHECK(crc32({}, 7) == 7);
  std::string bytes(300, '\0');
  std::mt19937 random(2);
  for (char& byte : bytes) byte = static_cast<char>(random());
  for (size_t first = 0; first <= bytes.size(); ++first) {
    const std::string_view whole = bytes;
    REQUIRE(crc32(whole.substr(first), crc32(whole.substr(0, first))) == crc32(whole));
  }
}

}  // namespace hetero::graph::testing
