// Choices: the fastest implementation of an operator on this machine, for each shape, in memory and
// on disk.
//
// Each kind of operator has a CacheFile, ~/.cache/hetero/KIND-HASH.txt (or below $XDG_CACHE_HOME),
// for one processor model and one version of torch. Each line is what a process measured for
// a shape. Other programs may have used the processor then. So the next process measures again,
// until two agree or five have measured. The majority counts, and the latest of equals. Lines that
// do not parse are skipped. Nothing ever fails because of the file.
//
//   struct Shape {
//     static constexpr const char* kKind = "linear 2";  // with the version of the lines
//     bool operator==(const Shape&) const = default;
//     Shape rounded() const;                            // the shape that stands for similar ones
//     std::array<int64_t, N> numbers() const;           // all that is compared
//   };
//   struct Choice {
//     bool sure = true;                                 // false: guessed on a busy machine
//     bool operator==(const Choice&) const = default;
//     bool refines(const Choice& earlier) const;        // says what that left open
//   };
//   std::string line_of(const Shape&, const Choice&);
//   bool parse_line(const std::string&, Shape&, Choice&);
//
// Thread safety: any thread. A lookup takes no lock.

#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <ranges>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "backend/base/status.h"
#include "backend/file/cache_file.h"

namespace hetero::ops {

// The processor and the versions that measurements belong to.
const std::string& machine_text();

template <typename Shape, typename Choice>
class Choices {
 public:
  // "": kept nowhere.
  explicit Choices(std::string path) : file_(std::move(path), Shape::kKind, machine_text()) {}

  // What is known of shape.rounded(). A guess is forgotten at the 2nd, 4th, ... 64th look, so that
  // the caller measures again.
  std::optional<Choice> find(const Shape& shape) {
    const Known* const known = look_up(shape);
    if (known == nullptr || !known->counts) return std::nullopt;
    const bool may_be_forgotten = !known->choice.sure && known->looks.load(std::memory_order_relaxed) < kLastLook;
    if (may_be_forgotten && std::has_single_bit(++known->looks)) return std::nullopt;
    return known->choice;
  }

  // The same, where it is not forgotten any more.
  std::optional<Choice> settled(const Shape& shape) {
    const Known* const known = look_up(shape);
    if (known == nullptr || !known->counts || (!known->choice.sure && known->looks < kLastLook)) return std::nullopt;
    return known->choice;
  }

  // Guesses are not written to the file.
  void learn(const Shape& shape, const Choice& choice) { learn(shape, choice, 0); }
  // The same, but a guess is never forgotten.
  void settle(const Shape& shape, const Choice& choice) { learn(shape, choice, kLastLook); }

  // Forgets everything, and uses another file from now on. REQUIRES: nobody looks anything up.
  void restart(std::string path) {
    const std::lock_guard lock(mutex_);
    for (auto& first : known_) first.store(nullptr, std::memory_order_relaxed);
    file_ = {std::move(path), Shape::kKind, machine_text()};
    loaded_ = false;
  }

 private:
  static constexpr uint32_t kLastLook = 64;
  static constexpr size_t kBuckets = 256;
  static constexpr size_t kOldLines = 64;
  static constexpr int kAgreeing = 2;
  static constexpr size_t kMostVotes = 5;

  struct Known {
    Shape shape;
    Choice choice;
    std::vector<Choice> votes;  // of processes, the latest one last
    bool counts = false;        // measured by this process, or often enough by others
    bool voted = false;         // by this process
    mutable std::atomic<uint32_t> looks;
    Known* next;  // in the same bucket, older
  };
  using Bucket = std::atomic<Known*>;

  Bucket& bucket_of(const Shape& shape) {
    uint64_t hash = 0;
    for (const int64_t number : shape.numbers()) {
      hash = (hash ^ static_cast<uint64_t>(number)) * 0x9e3779b97f4a7c15u;
      hash ^= hash >> 29;
    }
    return known_[hash % kBuckets];
  }

  // The latest. Takes no lock once the file has been read.
  const Known* look_up(const Shape& shape) {
    if (!loaded_.load(std::memory_order_acquire)) [[unlikely]] {
      const std::lock_guard lock(mutex_);
      load();
    }
    const Shape rounded = shape.rounded();
    return find_in(bucket_of(rounded), rounded);
  }
  static Known* find_in(const Bucket& bucket, const Shape& rounded) {
    Known* known = bucket.load(std::memory_order_acquire);
    while (known != nullptr && !(known->shape == rounded)) known = known->next;
    return known;
  }

  static int64_t count_of(const std::vector<Choice>& votes, const Choice& choice) {
    return std::ranges::count(votes, choice);
  }
  // What most say, and the latest of equals. REQUIRES: there are votes.
  static Choice winner(const std::vector<Choice>& votes) {
    const auto latest_first = std::views::reverse(votes);
    return *std::ranges::max_element(latest_first, {}, [&](const Choice& vote) { return count_of(votes, vote); });
  }
  static void vote(std::vector<Choice>& votes, const Choice& choice, bool again) {
    // What one process says at last is one vote.
    if (!votes.empty() && (again || choice.refines(votes.back()))) votes.pop_back();
    votes.push_back(choice);
    if (votes.size() > kMostVotes) votes.erase(votes.begin());
  }

  void learn(const Shape& shape, const Choice& choice, uint32_t least_looks) {
    const std::lock_guard lock(mutex_);
    load();
    const Shape rounded = shape.rounded();
    Bucket& bucket = bucket_of(rounded);
    const Known* const known = find_in(bucket, rounded);
    std::vector<Choice> votes = known != nullptr ? known->votes : std::vector<Choice>();
    const bool is_known = known != nullptr && known->counts && known->choice == choice;
    const bool votes_now = choice.sure && !is_known, voted = known != nullptr && known->voted;
    if (votes_now) vote(votes, choice, voted);
    // A guess counts where nobody knows better.
    const Choice chosen = choice.sure || votes.empty() ? choice : winner(votes);
    if (known != nullptr && known->counts && known->choice == chosen && known->looks >= least_looks) return;
    const uint32_t looks = std::max(least_looks, known == nullptr ? 1 : known->looks.load());
    memory_.push_back(std::unique_ptr<Known>(
        new Known{rounded, chosen, std::move(votes), true, voted || votes_now, looks, bucket.load()}));
    bucket.store(memory_.back().get(), std::memory_order_release);
    if (!votes_now) return;
    // What another process writes between these two lines is lost, which costs it a measurement.
    const Result<std::string> before = file_.read();
    (void)file_.write((before.ok() ? before.value() : "") + line_of(rounded, choice) + '\n');
  }

  // At the first look. REQUIRES: the mutex is held.
  void load() {
    if (loaded_) return;
    const Result<std::string> text = file_.read();
    std::istringstream lines(text.ok() ? text.value() : "");
    size_t count = 0, kept = 0;
    for (std::string line; std::getline(lines, line); ++count) {
      Shape shape{};
      Choice choice{};
      if (!parse_line(line, shape, choice)) continue;
      Bucket& bucket = bucket_of(shape);
      // Nobody else sees it yet.
      Known* known = find_in(bucket, shape);
      if (known == nullptr) {
        memory_.push_back(std::unique_ptr<Known>(new Known{shape, choice, {}, false, false, 1, bucket.load()}));
        bucket.store(known = memory_.back().get(), std::memory_order_release);
      }
      kept -= known->votes.size();
      vote(known->votes, choice, false);
      kept += known->votes.size();
      known->choice = winner(known->votes);
      known->counts = known->votes.size() >= kMostVotes || count_of(known->votes, known->choice) >= kAgreeing;
    }
    // Lines that no longer count; a file may be no larger than a bound.
    if (count > 2 * kept + kOldLines) write_votes();
    loaded_.store(true, std::memory_order_release);
  }

  // REQUIRES: the mutex is held.
  void write_votes() {
    std::string text;
    for (const auto& known : memory_) {
      if (find_in(bucket_of(known->shape), known->shape) != known.get()) continue;
      for (const Choice& vote : known->votes) text += line_of(known->shape, vote) + '\n';
    }
    (void)file_.write(text);
  }

  std::mutex mutex_;  // of those who change something; guards `file_` and `memory_`
  backend::CacheFile file_;
  std::atomic<bool> loaded_{false};
  std::array<Bucket, kBuckets> known_{};
  // What another thread may be reading stays, though something newer hides it.
  std::vector<std::unique_ptr<Known>> memory_;
};

// Choices that are kept where those of this kind belong. Leaked on purpose: kernels may run while
// the process exits.
template <typename Kept>
Kept& choices_of_process(const char* kind) {
  static auto* choices = new Kept(backend::CacheFile::default_path(kind, machine_text()));
  return *choices;
}

// Of the values of backend::Element.
inline constexpr const char* kElementNames[] = {"float32", "bfloat16", "float16"};

// The position of `word` in `names`, or -1.
template <size_t N>
int position(const char* const (&names)[N], const std::string& word) {
  for (size_t i = 0; i < N; ++i) {
    if (word == names[i]) return static_cast<int>(i);
  }
  return -1;
}

}  // namespace hetero::ops
