// hetero_load_fuzz: files of saved programs that are damaged in every way, by seed.
//
//   hetero_load_fuzz [--seeds N] [--first S] [--seed S] [--keep PATH]
//
// A seed gives a program, its file, and a mutant of that: bytes, runs and pieces of the file changed, or the texts inside (numbers replaced by extremes,
// words and lines moved), entries exchanged, left out, doubled and renamed. Of these, most have their checksums put right, so that they come to the parsers and
// verifiers. What must hold:
//
//   - the mutant is a program for which verify_program() holds, or one error in one sentence;
//   - a program saves again and loads as the same, and its plan is accepted or refused by verify_plan();
//   - nothing crashes, and no more than 256 MiB are allocated.
//
// The first seed that breaks one of these ends the run with status 1 and the command that runs it again; --keep writes its file.
//
// Thread safety: one thread.

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/fusion/fusion.h"
#include "graph/program/archive.h"
#include "graph/program/crc32.h"
#include "graph/program/program_sizes.h"
#include "graph/program/verify_program.h"
#include "graph/program/zip.h"
#include "graph/verify/verify.h"
#include "tests/catch/catch.h"
#include "tests/graph/fixtures/dynamic_program.h"
#include "tests/graph/fixtures/saved.h"
#include "tests/graph/fixtures/seeds.h"

namespace {

constexpr int64_t kMostBytes = int64_t{256} << 20;
std::atomic<int64_t> held{0};
std::atomic<int64_t> peak{0};

void* take(size_t bytes, size_t alignment) {
  const auto wanted = static_cast<int64_t>(std::min<size_t>(bytes, INT64_MAX / 2));
  if (held.load() + wanted > kMostBytes) throw std::bad_alloc();
  const size_t rounded = (std::max<size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
  void* const data =
      alignment > alignof(std::max_align_t) ? std::aligned_alloc(alignment, rounded) : std::malloc(rounded);
  if (data == nullptr) throw std::bad_alloc();
  const int64_t now = held += static_cast<int64_t>(malloc_usable_size(data));
  if (now > peak.load()) peak = now;
  return data;
}

void give(void* data) {
  if (data == nullptr) return;
  held -= static_cast<int64_t>(malloc_usable_size(data));
  std::free(data);
}

}  // namespace

// Every allocation is counted, and one that goes over the limit is refused.
void* operator new(size_t bytes) { return take(bytes, 1); }
void* operator new[](size_t bytes) { return take(bytes, 1); }
void* operator new(size_t bytes, std::align_val_t alignment) { return take(bytes, static_cast<size_t>(alignment)); }
void* operator new[](size_t bytes, std::align_val_t alignment) { return take(bytes, static_cast<size_t>(alignment)); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept try {
  return take(bytes, 1);
} catch (const std::bad_alloc&) {
  return nullptr;
}
void* operator new[](size_t bytes, const std::nothrow_t& nothrow) noexcept { return operator new(bytes, nothrow); }
void operator delete(void* data) noexcept { give(data); }
void operator delete[](void* data) noexcept { give(data); }
void operator delete(void* data, size_t) noexcept { give(data); }
void operator delete[](void* data, size_t) noexcept { give(data); }
void operator delete(void* data, std::align_val_t) noexcept { give(data); }
void operator delete[](void* data, std::align_val_t) noexcept { give(data); }
void operator delete(void* data, size_t, std::align_val_t) noexcept { give(data); }
void operator delete[](void* data, size_t, std::align_val_t) noexcept { give(data); }

namespace hetero::graph::testing {
namespace {

constexpr unsigned kMostSeconds = 120;  // for one seed; more is a hang

struct Totals {
  int64_t loaded = 0;
  int64_t unlike = 0;       // of these, not the program that was saved
  int64_t plans = 0;        // that parse
  int64_t legal_plans = 0;  // of these, that the verifier accepts
  int64_t sized = 0;        // programs for other sizes that a program gives
  int64_t legal_sizes = 0;  // of these, that are legal
  int64_t illegal = 0;      // programs that are refused by what they say
  int64_t refused = 0;      // files that are
};

constexpr const char* kNumbers[] = {"0",
                                    "1",
                                    "2",
                                    "-1",
                                    "63",
                                    "64",
                                    "65",
                                    "255",
                                    "256",
                                    "32767",
                                    "65535",
                                    "65536",
                                    "65537",
                                    "1000000",
                                    "2147483647",
                                    "2147483648",
                                    "4294967295",
                                    "4294967296",
                                    "1152921504606846976",
                                    "4611686018427387904",
                                    "9223372036854775807",
                                    "9223372036854775808",
                                    "18446744073709551615",
                                    "18446744073709551616",
                                    "99999999999999999999999999",
                                    "1e308",
                                    "nan",
                                    "0.5",
                                    ""};

bool is_digit(char c) { return c >= '0' && c <= '9'; }

class Mutator {
 public:
  explicit Mutator(std::mt19937& random) : random_(random) {}

  std::string mutate(const std::string& file) {
    if (one_in(4)) {
      std::string mutant = file;
      do change_bytes(mutant);
      while (one_in(2));
      return mutant;
    }
    open(file);
    do change_entries();
    while (one_in(3));
    return pack(one_in(3));
  }

 private:
  struct Entry {
    std::string name;
    std::string bytes;
    uint32_t crc;
  };

  size_t below(size_t limit) { return std::uniform_int_distribution<size_t>(0, limit - 1)(random_); }
  bool one_in(size_t count) { return below(count) == 0; }

  void change_bytes(std::string& bytes) {
    if (bytes.empty()) return;
    const size_t place = below(bytes.size());
    const size_t run = std::min(bytes.size() - place, size_t{1} << below(10));
    switch (below(8)) {
      case 0:
        bytes[place] = static_cast<char>(random_());
        break;
      case 1:
        bytes[place] = static_cast<char>(bytes[place] ^ 1 << below(8));
        break;
      case 2:
        std::fill_n(bytes.begin() + static_cast<ptrdiff_t>(place), run, static_cast<char>(one_in(2) ? 0 : random_()));
        break;
      case 3:
        bytes.erase(place, run);
        break;
      case 4:
        bytes.insert(place, bytes.substr(below(bytes.size()), run));
        break;
      case 5:
        bytes.replace(place, run, bytes.substr(below(bytes.size()), run));
        break;
      case 6:
        bytes.resize(place);
        break;
      default:
        // The directory is at the end.
        bytes[bytes.size() - 1 - below(std::min<size_t>(bytes.size(), 400))] = static_cast<char>(random_());
    }
  }

  void open(const std::string& file) {
    entries_.clear();
    const Result<std::vector<ZipEntry>> entries = read_zip(file);
    for (const ZipEntry& entry : entries.value()) {
      entries_.push_back({entry.name, file.substr(entry.data, entry.bytes), entry.crc});
    }
  }

  std::string pack(bool old_checksums) {
    std::string file;
    std::vector<ZipEntry> entries;
    for (const Entry& entry : entries_) {
      ZipEntry& made = entries.emplace_back();
      made = {.name = entry.name, .header = file.size(), .bytes = entry.bytes.size()};
      made.crc = old_checksums ? entry.crc : crc32(entry.bytes);
      file += zip_local_header(made, entry.name == "weights.safetensors" && !one_in(16) ? 64 : 1);
      file += entry.bytes;
    }
    return file + zip_directory(entries, file.size());
  }

  void change_entries() {
    Entry& entry = entries_[below(entries_.size())];
    switch (below(16)) {
      case 0:
        std::swap(entry.bytes, entries_[below(entries_.size())].bytes);
        break;
      case 1:
        std::swap(entry.name, entries_[below(entries_.size())].name);
        break;
      case 2:
        if (entries_.size() > 1) entries_.erase(entries_.begin() + static_cast<ptrdiff_t>(below(entries_.size())));
        break;
      case 3:
        entries_.push_back(Entry(entry));
        break;
      case 4:
        if (!entry.name.empty()) change_bytes(entry.name);
        break;
      case 5:
        change_bytes(entry.bytes);
        break;
      default:
        change_text(text());
    }
  }

  // One of the texts, those that say more the more often.
  std::string& text() {
    constexpr const char* kTexts[] = {"graph.txt",           "graph.txt",    "plan.txt",  "plan.txt", "graph.txt",
                                      "graph.txt",           "program.json", "plan.txt",  "plan.txt", "version",
                                      "weights.safetensors", "sizes.txt",    "sizes.txt", "sizes.txt"};
    const std::string_view wanted = kTexts[below(std::size(kTexts))];
    for (Entry& entry : entries_) {
      if (entry.name == wanted) return entry.bytes;
    }
    return entries_[below(entries_.size())].bytes;
  }

  void change_text(std::string& text) {
    if (text.empty()) return;
    switch (below(6)) {
      case 0:
      case 1:
      case 2: {
        const auto [first, count] = token(text, is_digit);
        text.replace(first, count, one_in(2) ? std::to_string(random_() % 16) : kNumbers[below(std::size(kNumbers))]);
        break;
      }
      case 3: {
        // One word in the place of another.
        const auto in_word = [](char c) { return is_digit(c) || (c >= 'a' && c <= 'z') || c == ':' || c == '.'; };
        const auto [from, from_count] = token(text, in_word);
        const std::string word = text.substr(from, from_count);
        const auto [to, to_count] = token(text, in_word);
        text.replace(to, to_count, word);
        break;
      }
      case 4: {
        // A line moved, doubled or left out.
        const auto in_line = [](char c) { return c != '\n'; };
        const auto [first, count] = token(text, in_line);
        const std::string line = text.substr(first, count) + '\n';
        if (!one_in(3)) text.erase(first, count + 1);
        if (!one_in(3)) text.insert(token(text, in_line).first, line);
        break;
      }
      default:
        change_bytes(text);
    }
  }

  // The run of such characters at or behind a random place: where, and how long.
  template <typename IsPart>
  std::pair<size_t, size_t> token(const std::string& text, const IsPart& is_part) {
    if (text.empty()) return {0, 0};
    size_t first = below(text.size());
    while (first < text.size() && !is_part(text[first])) ++first;
    while (first > 0 && first < text.size() && is_part(text[first - 1])) --first;
    size_t end = first;
    while (end < text.size() && is_part(text[end])) ++end;
    return {first, end - first};
  }

  std::mt19937& random_;
  std::vector<Entry> entries_;
};

Status found(std::string what) { return Status(ErrorClass::kInternal, std::move(what)); }

class Trial {
 public:
  Trial(uint64_t seed, const TemporaryFolder& folder, Totals& totals)
      : random_(static_cast<uint32_t>(seed * 2654435761u + 1)), path_(folder.path("m.hetero")), totals_(totals) {}

  Status run() {
    const auto program = random_() % 4 == 0 ? make_dynamic(2 + static_cast<int64_t>(random_() % 4))
                                            : make_saved(random_, 1 + static_cast<int>(random_() % 12));
    const std::string saved = describe(*program);
    if (Status status = save_program(*program, path_); !status.ok()) return status;
    mutant_ = Mutator(random_).mutate(read_file(path_));
    write_file(path_, mutant_);
    const bool check_weights = random_() % 4 != 0;
    const Result<std::unique_ptr<SavedProgram>> loaded = load_program(path_, {.check_weights = check_weights});
    if (!loaded.ok()) return check_error(loaded.status());
    ++totals_.loaded;
    const std::string description = describe(*loaded.value());
    totals_.unlike += description != saved;
    if (Status status = verify_program(*loaded.value()); !status.ok()) return status;
    check_plan(*loaded.value());
    check_sizes(*loaded.value());
    return check_again(*loaded.value(), description);
  }

  const std::string& mutant() const { return mutant_; }

 private:
  Status check_error(const Status& status) {
    const std::string& message = status.message();
    const bool known = status.error_class() == ErrorClass::kStorage || status.error_class() == ErrorClass::kUsage;
    if (!known || !message.starts_with(path_)) return found("another error: " + message);
    const bool plain = std::ranges::all_of(message, [](char c) { return c >= ' ' && c <= '~'; });
    if (!plain || message.size() > 1000) return found("an error that is no sentence: " + message);
    ++(status.error_class() == ErrorClass::kUsage ? totals_.illegal : totals_.refused);
    return Status();
  }

  // The plan is accepted or not; with its groups and without.
  void check_plan(const SavedProgram& program) {
    Result<Plan> plan = parse_plan(program.plan);
    if (!plan.ok()) return;
    ++totals_.plans;
    const PlanOptions options = both_options();
    static_cast<void>(verify_plan(program.graph, plan.value(), options));
    if (!restore_groups(program.graph, plan.value()).ok()) return;
    totals_.legal_plans += verify_plan(program.graph, plan.value(), options).ok();
  }

  // Other sizes give a program that is legal or refused.
  void check_sizes(const SavedProgram& program) {
    std::vector<int64_t> sizes = example_sizes(program);
    for (int i = 0; i < 8 && !sizes.empty(); ++i) {
      for (int64_t& size : sizes) size = random_() % 8 == 0 ? static_cast<int64_t>(random_()) << 20 : random_() % 100;
      const Result<std::unique_ptr<SavedProgram>> made = program_at(program, sizes);
      if (!made.ok()) continue;
      ++totals_.sized;
      totals_.legal_sizes += verify_program(*made.value()).ok();
      static_cast<void>(output_shapes(program, sizes));
    }
  }

  Status check_again(const SavedProgram& program, const std::string& description) {
    if (Status status = save_program(program, path_); !status.ok()) return status;
    const Result<std::unique_ptr<SavedProgram>> again = load_program(path_);
    if (!again.ok()) return found("what was loaded and saved does not load: " + again.status().message());
    return describe(*again.value()) == description ? Status() : found("what was loaded and saved loads as another");
  }

  std::mt19937 random_;
  const std::string path_;
  Totals& totals_;
  std::string mutant_;
};

char seed_text[96];

// Of hangs and crashes: which seed it was. A sanitizer reports its own.
void report_end(int signal) {
  static_cast<void>(!write(STDERR_FILENO, seed_text, std::strlen(seed_text)));
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

bool run_seed(uint64_t seed, const TemporaryFolder& folder, const char* keep, Totals& totals) {
  std::snprintf(seed_text, sizeof(seed_text), "hangs or crashes: hetero_load_fuzz --seed %llu\n",
                static_cast<unsigned long long>(seed));
  alarm(kMostSeconds);
  Trial trial(seed, folder, totals);
  Status status;
  try {
    status = trial.run();
  } catch (const std::exception& error) {
    status = found(std::string("an exception: ") + error.what());
  }
  if (status.ok()) return true;
  if (keep != nullptr) write_file(keep, trial.mutant());
  std::fprintf(stderr, "seed %llu: %s\n", static_cast<unsigned long long>(seed), status.message().c_str());
  std::fprintf(stderr, "again: hetero_load_fuzz --seed %llu\n", static_cast<unsigned long long>(seed));
  return false;
}

bool run_seeds(const Seeds& seeds) {
  const TemporaryFolder folder;
  Totals totals;
  for (uint64_t seed = seeds.first; seed < seeds.first + seeds.count; ++seed) {
    if (!run_seed(seed, folder, seeds.keep, totals)) return false;
  }
  alarm(0);
  const auto number = [](auto value) { return static_cast<long long>(value); };
  std::printf(
      "load-fuzz: %lld seeds as they should be: %lld files load (%lld as another program; %lld plans, %lld legal; "
      "%lld programs of other sizes, %lld legal), %lld are illegal programs, %lld are refused; %lld bytes at most\n",
      number(seeds.count), number(totals.loaded), number(totals.unlike), number(totals.plans),
      number(totals.legal_plans), number(totals.sized), number(totals.legal_sizes), number(totals.illegal),
      number(totals.refused), number(peak.load()));
  return true;
}

}  // namespace
}  // namespace hetero::graph::testing

int main(int argc, char** argv) {
  using namespace hetero::graph::testing;
  const std::optional<Seeds> seeds = read_seeds(argc, argv, "hetero_load_fuzz", true);
  if (!seeds.has_value()) return 2;
  for (const int signal : {SIGALRM, SIGABRT, SIGFPE}) std::signal(signal, report_end);
#if !defined(__SANITIZE_ADDRESS__)
  for (const int signal : {SIGSEGV, SIGBUS}) std::signal(signal, report_end);
#endif
  return run_seeds(*seeds) ? 0 : 1;
}
