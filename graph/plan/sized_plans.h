// SizedPlans: what was made for the sizes that came last: plans of a trace, captures of a compiled
// program, instances of a saved one. Entries are tried in the order of their last use, since mostly
// the first fits; the one that was used longest ago leaves.
//
//   if (Entry* entry = plans.find([&](const Entry& it) { return it.sizes == sizes; })) ...
//   plans.add(std::move(made));
//   plans.take_oldest();  // where there are too many
//
// Ownership: entries stay at their address until they are taken or erased.
// Thread safety: none; the owner's lock.

#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace hetero::graph {

template <typename Entry>
class SizedPlans {
 public:
  static constexpr size_t kMost = 16;

  // The first `kept` entries that are added stay first, and never leave.
  explicit SizedPlans(size_t kept = 0) : kept_(kept) {}

  // The first entry that fits; it is the first from now on. Null where none does.
  template <typename Fits>
  Entry* find(const Fits& fits) {
    const auto found = std::ranges::find_if(entries_, [&](const auto& entry) { return fits(*entry); });
    if (found == entries_.end()) return nullptr;
    Entry* const entry = found->get();
    if (found - entries_.begin() > static_cast<std::ptrdiff_t>(kept_)) {
      std::rotate(begin_of_others(), found, found + 1);
    }
    return entry;
  }

  // Becomes the first.
  Entry& add(std::unique_ptr<Entry> entry) { return **entries_.insert(begin_of_others(), std::move(entry)); }

  // Takes out the entry that was used longest ago where there are more than `most`; else null.
  std::unique_ptr<Entry> take_oldest(size_t most = kMost) {
    if (entries_.size() <= std::max(kept_, most)) return nullptr;
    std::unique_ptr<Entry> oldest = std::move(entries_.back());
    entries_.pop_back();
    return oldest;
  }

  void erase(const Entry* entry) {
    std::erase_if(entries_, [entry](const auto& it) { return it.get() == entry; });
  }

  // The one used last comes first.
  std::span<const std::unique_ptr<Entry>> entries() const { return entries_; }
  bool empty() const { return entries_.empty(); }
  size_t size() const { return entries_.size(); }

 private:
  auto begin_of_others() { return entries_.begin() + static_cast<std::ptrdiff_t>(std::min(kept_, entries_.size())); }

  size_t kept_;
  std::vector<std::unique_ptr<Entry>> entries_;
};

}  // namespace hetero::graph
