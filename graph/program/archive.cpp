// Saving:  verify; lay out the weights; compute all checksums; write entry after entry, then the
// directory; rename. Loading: map; read the directory; compare the version, then checksums; parse;
// point constants into the map; verify.

#include "graph/program/archive.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/file/file.h"
#include "graph/ir/plan.h"
#include "graph/program/archive_json.h"
#include "graph/program/crc32.h"
#include "graph/program/verify_program.h"
#include "graph/program/zip.h"

namespace hetero::graph {
namespace {

using backend::Block;
using backend::MappedFile;
using backend::NewFile;

constexpr const char* kVersionEntry = "version";
constexpr const char* kWeightsEntry = "weights.safetensors";
constexpr const char* kGraphEntry = "graph.txt";
constexpr const char* kProgramEntry = "program.json";
constexpr const char* kPlanEntry = "plan.txt";
constexpr const char* kSizesEntry = "sizes.txt";

// A reader of version 1.0 reads all of 1.x, and refuses 2.0.
constexpr uint32_t kMajorVersion = 1;
constexpr const char* kVersion = "1.1\n";

// Of blocks.
constexpr uint64_t kAlignment = 64;
constexpr char kZeros[kAlignment] = {};

// What a message quotes of a file may be of any length and hold anything.
std::string fit_to_print(std::string text) {
  constexpr size_t kMost = 400;
  if (text.size() > kMost) text.replace(kMost, std::string::npos, "...");
  for (char& c : text) {
    if (c < ' ' || c > '~') c = '?';
  }
  return text;
}

Status damaged(const std::string& path, const std::string& what) {
  return Status(ErrorClass::kStorage,
                path + ' ' + fit_to_print(what) + "; copy the file again, or save the program again");
}

// --- Saving

class ArchiveWriter {
 public:
  explicit ArchiveWriter(NewFile& file) : file_(file) {}
  // What comes before the next entry, with the entries in it.
  void begin_behind(std::vector<ZipEntry> entries) { entries_ = std::move(entries); }

  Status add(const char* name, const std::vector<std::string_view>& parts, uint64_t alignment = 1) {
    ZipEntry entry{.name = name, .header = file_.size()};
    for (const std::string_view part : parts) {
      entry.bytes += part.size();
      entry.crc = crc32(part, entry.crc);
    }
    Status status = file_.write(zip_local_header(entry, alignment));
    for (size_t i = 0; i < parts.size() && status.ok(); ++i) status = file_.write(parts[i]);
    entries_.push_back(std::move(entry));
    return status;
  }

  Status finish() {
    const Status status = file_.write(zip_directory(entries_, file_.size()));
    return status.ok() ? file_.commit() : status;
  }

 private:
  NewFile& file_;
  std::vector<ZipEntry> entries_;
};

// What safetensors calls a dtype; null where it knows none.
const char* tensor_dtype(DType dtype) {
  constexpr const char* kNames[][2] = {
      {"u8", "U8"},   {"i8", "I8"},   {"i16", "I16"}, {"i32", "I32"},          {"i64", "I64"},
      {"f16", "F16"}, {"f32", "F32"}, {"f64", "F64"}, {"bool", "BOOL"},        {"bf16", "BF16"},
      {"u16", "U16"}, {"u32", "U32"}, {"u64", "U64"}, {"f8e4m3fn", "F8_E4M3"}, {"f8e5m2", "F8_E5M2"}};
  for (const auto& [ours, theirs] : kNames) {
    if (std::string_view(ours) == dtype_name(dtype)) return theirs;
  }
  return nullptr;
}

// Other tools see a constant as a tensor where it is one that fills its buffer, and as the buffer's
// bytes otherwise.
void describe(const SavedProgram& program, const ProgramConstant& constant, WeightEntry& entry) {
  const Window& window = program.windows[constant.window];
  const uint64_t bytes = program.graph.buffers[constant.buffer].bytes;
  const char* const dtype = tensor_dtype(window.dtype);
  const bool whole = window.contiguous && window.offset == 0 && static_cast<uint64_t>(window.last_byte) == bytes;
  entry.name = constant.name;
  entry.dtype = whole && dtype != nullptr ? dtype : "U8";
  if (whole && dtype != nullptr) {
    entry.shape.assign(window.sizes().begin(), window.sizes().end());
  } else {
    entry.shape = {static_cast<int64_t>(bytes)};
  }
}

// Where each constant's bytes lie. safetensors allows no room between tensors, so where there must
// be some there is a tensor of zeros.
class WeightLayout {
 public:
  explicit WeightLayout(const SavedProgram& program) : program_(program) {
    for (const ProgramConstant& constant : program.constants) names_.insert(constant.name);
    // Those that end at a multiple of the alignment first: nothing is between them.
    for (const bool aligned : {true, false}) {
      std::set<BufferId> seen;
      for (const ProgramConstant& constant : program.constants) {
        const uint64_t bytes = program.graph.buffers[constant.buffer].bytes;
        if (seen.insert(constant.buffer).second && (bytes % kAlignment == 0) == aligned) add(constant, bytes);
      }
    }
  }

  const std::vector<WeightEntry>& entries() const { return entries_; }
  const std::vector<std::string_view>& parts() const { return parts_; }

 private:
  void add(const ProgramConstant& constant, uint64_t bytes) {
    if (end_ % kAlignment != 0) {
      const uint64_t room = kAlignment - end_ % kAlignment;
      append({.name = padding_name(), .dtype = "U8", .shape = {static_cast<int64_t>(room)}}, {kZeros, room});
    }
    WeightEntry entry;
    describe(program_, constant, entry);
    append(std::move(entry), {static_cast<const char*>(constant.bytes.data()), bytes});
  }

  void append(WeightEntry entry, std::string_view bytes) {
    entry.begin = end_;
    end_ += bytes.size();
    entry.end = end_;
    entries_.push_back(std::move(entry));
    parts_.push_back(bytes);
  }

  // A name that no constant has.
  std::string padding_name() {
    std::string name;
    do name = "_padding_" + std::to_string(paddings_++);
    while (names_.contains(name));
    return name;
  }

  const SavedProgram& program_;
  std::set<std::string_view> names_;
  std::vector<WeightEntry> entries_;
  std::vector<std::string_view> parts_;
  uint64_t end_ = 0;
  int paddings_ = 0;
};

// --- Loading

// A file of ours: its entries, of a version that can be read.
class Archive {
 public:
  // `check_weights`: their checksum, too.
  static Result<Archive> open(const std::string& path, bool check_weights) {
    Result<std::shared_ptr<MappedFile>> file = MappedFile::open(path, check_weights);
    if (!file.ok()) return file.status();
    if (!file.value()->bytes().starts_with("PK")) return foreign(path);
    Result<std::vector<ZipEntry>> entries = read_zip(file.value()->bytes());
    if (!entries.ok()) return damaged(path, entries.status().message());
    Archive archive(path, std::move(file.value()), std::move(entries.value()));
    if (Status status = archive.check_version(); !status.ok()) return status;
    for (const ZipEntry& entry : archive.entries_) {
      if (!check_weights && entry.name == kWeightsEntry) continue;
      if (Status status = archive.check(entry); !status.ok()) return status;
    }
    return archive;
  }

  const std::string& path() const { return path_; }
  const std::vector<ZipEntry>& entries() const { return entries_; }
  const std::shared_ptr<MappedFile>& file() const { return file_; }

  // Null where there is none.
  const ZipEntry* find(std::string_view name) const {
    const auto found = std::ranges::find(entries_, name, &ZipEntry::name);
    return found == entries_.end() ? nullptr : &*found;
  }
  std::string_view bytes_of(const ZipEntry& entry) const { return file_->bytes().substr(entry.data, entry.bytes); }
  Status take(const char* name, std::string_view& bytes) const {
    const ZipEntry* const entry = find(name);
    if (entry == nullptr) return damaged(path_, std::string("has no entry ") + name);
    bytes = bytes_of(*entry);
    return Status();
  }

 private:
  Archive(std::string path, std::shared_ptr<MappedFile> file, std::vector<ZipEntry> entries)
      : path_(std::move(path)), file_(std::move(file)), entries_(std::move(entries)) {}

  static Status foreign(const std::string& path) {
    return Status(ErrorClass::kStorage,
                  path + " is not a saved program of hetero; load what hetero has saved, or save the program again");
  }

  Status check(const ZipEntry& entry) const {
    if (crc32(bytes_of(entry)) == entry.crc) return Status();
    return damaged(path_, "is damaged: " + entry.name + " does not have its checksum");
  }

  Status check_version() const {
    const ZipEntry* const entry = find(kVersionEntry);
    if (entry == nullptr) return foreign(path_);
    if (Status status = check(*entry); !status.ok()) return status;
    std::string_view text = bytes_of(*entry);
    uint32_t major = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), major);
    if (error != std::errc() || end == text.data() + text.size() || *end != '.') {
      return damaged(path_, "is damaged: version is no version");
    }
    if (major == kMajorVersion) return Status();
    text.remove_suffix(text.ends_with('\n') ? 1 : 0);
    return Status(ErrorClass::kStorage,
                  path_ + " has version " + std::to_string(major) + " of the format, and this hetero reads version " +
                      std::to_string(kMajorVersion) + "; update hetero, or save the program again with this one");
  }

  std::string path_;
  std::shared_ptr<MappedFile> file_;
  std::vector<ZipEntry> entries_;
};

// A part of the mapped file.
Block block_of(const std::shared_ptr<MappedFile>& file, std::string_view bytes) {
  const auto release = [](void* context, void*, size_t) { delete static_cast<std::shared_ptr<MappedFile>*>(context); };
  // The memory is read-only: who runs the program gives those that it writes memory of their own.
  return Block::adopt(const_cast<char*>(bytes.data()), bytes.size(), release, new std::shared_ptr<MappedFile>(file));
}

Status load_constants(const Archive& archive, SavedProgram& program) {
  std::string_view file;
  if (Status status = archive.take(kWeightsEntry, file); !status.ok()) return status;
  const Result<Weights> weights = read_weights_header(file);
  if (!weights.ok()) return damaged(archive.path(), "is damaged: " + weights.status().message());
  std::set<BufferId> seen;
  for (ProgramConstant& constant : program.constants) {
    if (constant.buffer >= program.graph.buffers.size() || !seen.insert(constant.buffer).second) continue;
    Buffer& buffer = program.graph.buffers[constant.buffer];
    const auto found = weights.value().entries.find(constant.name);
    if (found == weights.value().entries.end()) {
      return damaged(archive.path(), "is damaged: weights.safetensors has no tensor " + constant.name);
    }
    const auto& [name, entry] = *found;
    const std::string_view bytes = file.substr(weights.value().data + entry.begin, entry.end - entry.begin);
    if (bytes.size() != buffer.bytes) {
      return damaged(archive.path(), "is damaged: " + name + " has " + std::to_string(bytes.size()) +
                                         " bytes of weights, and the graph says " + std::to_string(buffer.bytes));
    }
    if (static_cast<uint64_t>(bytes.data() - archive.file()->bytes().data()) % kAlignment != 0) {
      return damaged(archive.path(), "was packed by another tool: " + name + " does not lie at a multiple of 64 bytes");
    }
    constant.bytes = block_of(archive.file(), bytes);
    constant.mapped = archive.file()->is_on_disk();
    buffer.steady = true;
  }
  return Status();
}

Status with_path(const std::string& path, const Status& status) {
  return Status(status.error_class(), path + ": " + fit_to_print(status.message()));
}

}  // namespace

Status save_program(const SavedProgram& program, const std::string& path) {
  if (Status status = verify_program(program); !status.ok()) return status;
  const WeightLayout weights(program);
  const Result<std::string> header = write_weights_header(weights.entries());
  if (!header.ok()) return header.status();
  const Result<std::string> json = write_program_json(program);
  if (!json.ok()) return json.status();
  const std::string graph = to_string(program.graph);
  const std::string sizes = to_string(program.dynamic);
  std::vector<std::string_view> weight_parts = {header.value()};
  weight_parts.insert(weight_parts.end(), weights.parts().begin(), weights.parts().end());

  Result<std::unique_ptr<NewFile>> file = NewFile::create(path);
  if (!file.ok()) return file.status();
  ArchiveWriter writer(*file.value());
  Status status = writer.add(kVersionEntry, {kVersion});
  if (status.ok()) status = writer.add(kWeightsEntry, weight_parts, kAlignment);
  if (status.ok()) status = writer.add(kGraphEntry, {graph});
  if (status.ok() && !sizes.empty()) status = writer.add(kSizesEntry, {sizes});
  if (status.ok()) status = writer.add(kProgramEntry, {json.value()});
  if (status.ok() && !program.plan.empty()) status = writer.add(kPlanEntry, {program.plan});
  return status.ok() ? writer.finish() : status;
}

Result<std::unique_ptr<SavedProgram>> load_program(const std::string& path, LoadOptions options) {
  const Result<Archive> opened = Archive::open(path, options.check_weights);
  if (!opened.ok()) return opened.status();
  const Archive& archive = opened.value();
  std::string_view graph_text;
  std::string_view json;
  if (Status status = archive.take(kGraphEntry, graph_text); !status.ok()) return status;
  if (Status status = archive.take(kProgramEntry, json); !status.ok()) return status;

  auto program = std::make_unique<SavedProgram>();
  Result<Graph> graph = parse_graph(graph_text, program->windows);
  if (!graph.ok()) {
    return Status(ErrorClass::kStorage, path + " has a graph that this hetero cannot read: graph.txt, " +
                                            fit_to_print(graph.status().message()) +
                                            "; update hetero, import what registers the operator, or save it again");
  }
  program->graph = std::move(graph.value());
  if (Status status = read_program_json(json, *program); !status.ok()) {
    return damaged(path, "is damaged: " + status.message());
  }
  if (const ZipEntry* const entry = archive.find(kSizesEntry); entry != nullptr) {
    Result<DynamicSizes> dynamic = parse_sizes(archive.bytes_of(*entry));
    if (!dynamic.ok()) return damaged(path, "is damaged: sizes.txt, " + dynamic.status().message());
    program->dynamic = std::move(dynamic.value());
  }
  if (const ZipEntry* const plan = archive.find(kPlanEntry); plan != nullptr) program->plan = archive.bytes_of(*plan);
  if (Status status = load_constants(archive, *program); !status.ok()) return status;
  if (Status status = verify_program(*program); !status.ok()) return with_path(path, status);
  return program;
}

Status replace_plan(const std::string& path, const std::string& plan, const std::string& machine) {
  if (!plan.empty()) {
    if (const Result<Plan> parsed = parse_plan(plan); !parsed.ok()) return parsed.status();
  }
  const Result<Archive> opened = Archive::open(path, false);
  if (!opened.ok()) return opened.status();
  const Archive& archive = opened.value();
  std::string_view old_json;
  if (Status status = archive.take(kProgramEntry, old_json); !status.ok()) return status;
  const Result<std::string> json = with_plan_machine(old_json, machine);
  if (!json.ok()) return with_path(path, json.status());

  // What is new lies at the end of the file; all before is as it was.
  const auto is_new = [](const ZipEntry& entry) { return entry.name == kProgramEntry || entry.name == kPlanEntry; };
  std::vector<ZipEntry> kept;
  uint64_t begin = 0;
  for (const ZipEntry& entry : archive.entries()) {
    if (is_new(entry)) continue;
    kept.push_back(entry);
    begin = std::max(begin, entry.data + entry.bytes);
  }
  Result<std::unique_ptr<NewFile>> file = NewFile::create(path);
  if (!file.ok()) return file.status();
  ArchiveWriter writer(*file.value());
  writer.begin_behind(std::move(kept));
  Status status = file.value()->copy(*archive.file(), begin);
  if (status.ok()) status = writer.add(kProgramEntry, {json.value()});
  if (status.ok() && !plan.empty()) status = writer.add(kPlanEntry, {plan});
  return status.ok() ? writer.finish() : status;
}

}  // namespace hetero::graph
