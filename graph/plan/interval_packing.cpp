// The greedy orders and, where they miss the bound, the search below a given capacity:
//
//   1. What is never alive at the same time is packed apart: time is cut wherever no value is alive
//      across (parts).
//   2. A section is a set of values that are alive at once and are in no larger such set; the part
//      has them in order of time, and a value is in consecutive ones. A section's floor is the
//      lowest offset that one of its values can still get. Floor and bytes of what is not placed
//      yet must stay within the capacity: what lies below the floor and is not taken is lost.
//   3. Go from the bottom up. Of the values with the lowest possible offset choose one. Either it
//      lies there, and what lives at the same time goes above it; or it is postponed: then it lies
//      on a value that is not placed yet, and its lowest offset becomes the lowest end of those.
//      Both raise lowest offsets and floors. Where neither can be, the choice before was wrong.
//   4. Once a value is placed, what is left may fall into pieces that are never alive at the same
//      time. Each is fitted alone, the one with the least space to lose first: where one is
//      impossible, so was placing the value, whatever becomes of the others.
//   5. What found no place gets a weight, and goes first from then on.
//   6. Give up after some decisions and begin again with what the weights say and another capacity:
//      a wrong choice at the bottom is not mended at the top. The bound itself is tried first and
//      often, since no space may be lost there and mistakes show early.
//
// Sources: M. Moffitt, "MiniMalloc", 2023 (sections, floors, bottom up, pieces); C. Le Pape et al.,
// "Time-versus-capacity compromises in project scheduling", 1994 (place or postpone); F. Boussemart
// et al., "Boosting systematic search by weighting constraints", 2004 (weights of what failed); C.
// Gomes et al., "Boosting combinatorial search through randomization", 1998 (restarts).

#include "graph/plan/interval_packing.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace hetero::graph {
namespace {

constexpr int64_t kLeastEffort = 10'000'000;  // steps: some 25 milliseconds

// A hundred values or more that miss the bound by an eighth are worth the most. Fewer, or a smaller
// miss, are worth less: a program is planned while its user waits.
int64_t usual_effort(size_t intervals, uint64_t total, uint64_t lower_bound) {
  const double size = std::min(1.0, static_cast<double>(intervals) / 100);
  const double miss = std::min(1.0, static_cast<double>(total - lower_bound) / static_cast<double>(lower_bound) * 8);
  return std::max(kLeastEffort,
                  static_cast<int64_t>(static_cast<double>(IntervalPacking::kMostEffort) * size * size * miss));
}

// Searches for smaller arenas of one part.
class PartSearch {
 public:
  // REQUIRES: no interval is empty.
  explicit PartSearch(std::vector<Interval> intervals) : intervals_(std::move(intervals)), count_(intervals_.size()) {}

  // Searches until the arena has `enough` bytes or can be no smaller. Returns its size: `total`
  // when nothing is found below that.
  // REQUIRES: enough, total and all bytes are multiples of the alignment; enough < total; no
  // section has more than `enough`.
  uint64_t shrink(uint64_t enough, uint64_t total, uint64_t alignment, int64_t& effort);

  // One for each interval when shrink found any.
  const std::vector<uint64_t>& offsets() const { return offsets_; }

 private:
  enum class Outcome { kFound, kImpossible, kGaveUp };
  static constexpr uint64_t kPlaced = UINT64_MAX;
  // Pieces within pieces: below that, what is left stays together.
  static constexpr uint32_t kMostDepth = 200;
  static constexpr uint32_t kRounds = 2;  // of one capacity
  // What is tried: so many sixteenths of what the arena has above the least possible. Below all of
  // it, so that each find is better.
  static constexpr std::array<uint64_t, 4> kCapacities = {0, 10, 12, 14};

  struct Decision {
    uint32_t interval;
    uint64_t offset;
    size_t changes;  // made before
  };

  struct Piece {
    size_t begin, end;  // of pieces_
    uint64_t slack;     // the least of its sections
  };

  bool find_sections();
  void find_members();
  void find_neighbors();
  void find_ranks();
  Outcome fit(uint64_t capacity, uint32_t round);
  Outcome fit_piece(const Piece& piece, uint32_t depth);
  Outcome fit_rest(const Piece& piece, uint32_t depth);
  bool find_cuts(uint32_t interval);
  uint64_t keep_offsets();
  std::optional<uint32_t> next(const Piece& piece);
  uint64_t least_slack(uint32_t interval);
  bool place(uint32_t interval);
  void take_back();
  bool postpone_last();
  bool lift(uint32_t interval, uint64_t offset);
  bool settle_floors();
  void touch(uint32_t section);
  void set_level(size_t index, uint64_t value);

  std::span<const uint32_t> neighbors(uint32_t i) const {
    return {neighbors_.data() + neighbors_begin_[i], neighbors_.data() + neighbors_begin_[i + 1]};
  }
  std::span<const uint32_t> members(uint32_t section) const {
    return {members_.data() + members_begin_[section], members_.data() + members_begin_[section + 1]};
  }
  // Lower goes first.
  std::pair<int64_t, uint32_t> order(uint32_t interval) const { return {-weights_[interval], ranks_[interval]}; }
  uint64_t& floor(uint32_t section) { return levels_[count_ + section]; }

  // What the part is.
  // First and last are sections once these are found, last not included.
  std::vector<Interval> intervals_;
  size_t count_;
  uint32_t sections_ = 0;
  std::vector<uint64_t> section_bytes_;
  std::vector<uint32_t> members_, members_begin_;      // by section
  std::vector<uint32_t> neighbors_, neighbors_begin_;  // by interval
  std::vector<uint32_t> ranks_;                        // the longest first

  // How far the search is.
  uint64_t capacity_ = 0;
  bool by_slack_ = false;
  std::vector<int64_t> weights_;  // how often an interval found no place, in all rounds
  // The lowest offset of each interval, or kPlaced; then the floor of each section.
  std::vector<uint64_t> levels_;
  // Bytes of a section's intervals that are not placed, and how many of these are in the next
  // section too.
  std::vector<uint64_t> left_;
  std::vector<uint32_t> going_on_;
  std::vector<std::pair<size_t, uint64_t>> changes_;  // of levels: index and what was there
  std::vector<Decision> decisions_;
  // Intervals, piece behind piece; those of pieces within a piece behind all of it.
  std::vector<uint32_t> pieces_;
  std::vector<uint32_t> cuts_;     // the sections with which pieces begin
  std::vector<uint32_t> touched_;  // sections whose floor may rise
  std::vector<uint32_t> touched_at_;
  uint32_t touch_round_ = 0;
  int64_t effort_ = 0;  // steps left
  int64_t tries_ = 0;   // decisions left in this round

  std::vector<uint64_t> offsets_;
};

uint64_t PartSearch::shrink(uint64_t enough, uint64_t total, uint64_t alignment, int64_t& effort) {
  effort_ = effort;
  if (find_sections()) {
    find_members();
    find_neighbors();
    find_ranks();
    weights_.assign(count_, 0);
    uint64_t possible = enough;  // less is impossible, or not needed
    for (uint32_t round = 0; possible < total && effort_ > 0; ++round) {
      const uint64_t units = (total - possible) / alignment;
      const uint64_t sixteenths = kCapacities[round / kRounds % kCapacities.size()];
      const uint64_t capacity = possible + (units / 16 * sixteenths + units % 16 * sixteenths / 16) * alignment;
      switch (fit(capacity, round)) {
        case Outcome::kFound:
          total = keep_offsets();
          break;
        case Outcome::kImpossible:
          possible = capacity + alignment;
          break;
        case Outcome::kGaveUp:
          break;
      }
    }
  }
  effort = effort_;
  return total;
}

// A section is complete where a value ends after another has begun. False when they are too many
// for the effort.
bool PartSearch::find_sections() {
  struct Event {
    uint64_t position;
    uint32_t interval;
    bool end;
  };
  std::vector<Event> events;
  for (uint32_t i = 0; i < count_; ++i) {
    events.push_back({uint64_t{intervals_[i].first} * 2, i, false});
    events.push_back({uint64_t{intervals_[i].last} * 2 + 1, i, true});
  }
  std::sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    return a.position < b.position || (a.position == b.position && a.interval < b.interval);
  });
  bool begun = false;
  int64_t alive = 0;
  int64_t pairs = 0;
  uint64_t bytes = 0;
  for (const Event& event : events) {
    Interval& interval = intervals_[event.interval];
    if (!event.end) {
      interval.first = sections_;
      bytes += interval.bytes;
      ++alive;
      begun = true;
      continue;
    }
    if (begun) {
      ++sections_;
      section_bytes_.push_back(bytes);
      pairs += alive * alive;
    }
    begun = false;
    interval.last = sections_;
    bytes -= interval.bytes;
    --alive;
  }
  effort_ -= pairs;
  return effort_ > 0;
}

void PartSearch::find_members() {
  members_begin_.assign(sections_ + 1, 0);
  for (const Interval& interval : intervals_) {
    for (uint32_t s = interval.first; s < interval.last; ++s) ++members_begin_[s + 1];
  }
  std::partial_sum(members_begin_.begin(), members_begin_.end(), members_begin_.begin());
  members_.resize(members_begin_.back());
  std::vector<uint32_t> end(members_begin_.begin(), members_begin_.end() - 1);
  for (uint32_t i = 0; i < count_; ++i) {
    for (uint32_t s = intervals_[i].first; s < intervals_[i].last; ++s) members_[end[s]++] = i;
  }
}

void PartSearch::find_neighbors() {
  neighbors_begin_.push_back(0);
  for (uint32_t i = 0; i < count_; ++i) {
    for (uint32_t s = intervals_[i].first; s < intervals_[i].last; ++s) {
      for (const uint32_t other : members(s)) {
        if (other != i && s == std::max(intervals_[i].first, intervals_[other].first)) neighbors_.push_back(other);
      }
    }
    neighbors_begin_.push_back(static_cast<uint32_t>(neighbors_.size()));
  }
}

void PartSearch::find_ranks() {
  const auto length = [&](uint32_t i) { return uint64_t{intervals_[i].last - intervals_[i].first}; };
  std::vector<uint32_t> order(count_);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return std::pair(length(a), length(a) * intervals_[a].bytes) >
           std::pair(length(b), length(b) * intervals_[b].bytes);
  });
  ranks_.resize(count_);
  for (uint32_t position = 0; position < count_; ++position) ranks_[order[position]] = position;
}

// Rounds choose by weight alone and by slack in turn.
PartSearch::Outcome PartSearch::fit(uint64_t capacity, uint32_t round) {
  capacity_ = capacity;
  by_slack_ = round % 2 == 1;
  for (int64_t& weight : weights_) weight -= weight / 20;  // what failed lately says more
  levels_.assign(count_ + sections_, 0);
  left_ = section_bytes_;
  going_on_.assign(sections_, 0);
  for (const Interval& interval : intervals_) {
    for (uint32_t s = interval.first; s + 1 < interval.last; ++s) ++going_on_[s];
  }
  touched_at_.assign(sections_, 0);
  touch_round_ = 0;
  changes_.clear();
  decisions_.clear();
  pieces_.resize(count_);
  std::iota(pieces_.begin(), pieces_.end(), 0);
  // Twice as many from time to time: what can be searched to its end is, in the end.
  tries_ = static_cast<int64_t>(count_) * (int64_t{2} << std::min(round / 64, 20u));
  return fit_piece({0, count_, 0}, 0);
}

// Places what of the piece is not placed. Only where all of it is, its decisions stay.
PartSearch::Outcome PartSearch::fit_piece(const Piece& piece, uint32_t depth) {
  const size_t before = decisions_.size();
  for (;;) {
    if (effort_ <= 0 || tries_ <= 0) return Outcome::kGaveUp;
    const std::optional<uint32_t> index = next(piece);
    if (!index) return Outcome::kFound;
    bool fits = place(*index);
    --tries_;
    if (fits && depth < kMostDepth && find_cuts(*index)) {
      const size_t placed = decisions_.size();
      const Outcome rest = fit_rest(piece, depth + 1);
      if (rest != Outcome::kImpossible) return rest;
      while (decisions_.size() > placed) take_back();
      fits = false;
    }
    for (; !fits; --tries_) {
      if (decisions_.size() == before) return Outcome::kImpossible;
      fits = postpone_last();
    }
  }
}

// True where placing the interval has cut what is left, `cuts_` being where.
bool PartSearch::find_cuts(uint32_t index) {
  const Interval& interval = intervals_[index];
  cuts_.clear();
  for (uint32_t s = interval.first; s + 1 < interval.last; ++s) {
    if (going_on_[s] == 0) cuts_.push_back(s + 1);
  }
  return !cuts_.empty();
}

// Fits the pieces that `cuts_` make of what of the piece is not placed.
PartSearch::Outcome PartSearch::fit_rest(const Piece& piece, uint32_t depth) {
  const size_t begin = pieces_.size();
  const auto cuts_before = [&](uint32_t interval) {
    return std::upper_bound(cuts_.begin(), cuts_.end(), intervals_[interval].first) - cuts_.begin();
  };
  for (size_t p = piece.begin; p < piece.end; ++p) {
    if (levels_[pieces_[p]] != kPlaced) pieces_.push_back(pieces_[p]);
  }
  const size_t end = pieces_.size();
  effort_ -= static_cast<int64_t>(piece.end - piece.begin + (end - begin) * 8);
  std::sort(pieces_.begin() + static_cast<int64_t>(begin), pieces_.end(),
            [&](uint32_t a, uint32_t b) { return intervals_[a].first < intervals_[b].first; });

  std::vector<Piece> rest;
  for (size_t p = begin, last = begin; p < end; p = last) {
    const auto cut = cuts_before(pieces_[p]);
    uint64_t slack = UINT64_MAX;
    for (; last < end && cuts_before(pieces_[last]) == cut; ++last) {
      slack = std::min(slack, least_slack(pieces_[last]));
    }
    rest.push_back({p, last, slack});
  }
  std::sort(rest.begin(), rest.end(), [](const Piece& a, const Piece& b) {
    return a.slack < b.slack || (a.slack == b.slack && a.begin < b.begin);
  });
  Outcome outcome = Outcome::kFound;
  for (size_t r = 0; r < rest.size() && outcome == Outcome::kFound; ++r) outcome = fit_piece(rest[r], depth);
  pieces_.resize(begin);
  return outcome;
}

uint64_t PartSearch::keep_offsets() {
  offsets_.resize(count_);
  uint64_t total = 0;
  for (const Decision& decision : decisions_) {
    offsets_[decision.interval] = decision.offset;
    total = std::max(total, decision.offset + intervals_[decision.interval].bytes);
  }
  return total;
}

// Of the intervals with the lowest offset, the first in order, or the one in the section with the
// least space to lose. None when all are placed.
std::optional<uint32_t> PartSearch::next(const Piece& piece) {
  effort_ -= static_cast<int64_t>(piece.end - piece.begin);
  uint64_t lowest = kPlaced;
  for (size_t p = piece.begin; p < piece.end; ++p) lowest = std::min(lowest, levels_[pieces_[p]]);
  if (lowest == kPlaced) return std::nullopt;
  std::optional<uint32_t> best;
  uint64_t best_slack = UINT64_MAX;
  for (size_t p = piece.begin; p < piece.end; ++p) {
    const uint32_t i = pieces_[p];
    if (levels_[i] != lowest) continue;
    const uint64_t slack = by_slack_ ? least_slack(i) : 0;
    if (!best || slack < best_slack || (slack == best_slack && order(i) < order(*best))) {
      best = i;
      best_slack = slack;
    }
  }
  return best;
}

uint64_t PartSearch::least_slack(uint32_t index) {
  const Interval& interval = intervals_[index];
  effort_ -= interval.last - interval.first;
  uint64_t slack = UINT64_MAX;
  for (uint32_t s = interval.first; s < interval.last; ++s) slack = std::min(slack, capacity_ - floor(s) - left_[s]);
  return slack;
}

// False when something has no place any more. All neighbors go above: those below it would have a
// lower offset.
bool PartSearch::place(uint32_t index) {
  const Interval& interval = intervals_[index];
  const uint64_t offset = levels_[index];
  const uint64_t end = offset + interval.bytes;
  decisions_.push_back({index, offset, changes_.size()});
  set_level(index, kPlaced);
  ++touch_round_;
  for (uint32_t s = interval.first; s < interval.last; ++s) {
    left_[s] -= interval.bytes;
    if (s + 1 < interval.last) --going_on_[s];
    touch(s);
  }
  effort_ -= static_cast<int64_t>(neighbors(index).size());
  for (const uint32_t other : neighbors(index)) {
    if (levels_[other] < end && !lift(other, end)) return false;
  }
  return settle_floors();
}

// Undoes the last decision.
void PartSearch::take_back() {
  const Decision last = decisions_.back();
  decisions_.pop_back();
  const Interval& interval = intervals_[last.interval];
  for (; changes_.size() > last.changes; changes_.pop_back()) levels_[changes_.back().first] = changes_.back().second;
  for (uint32_t s = interval.first; s < interval.last; ++s) {
    left_[s] += interval.bytes;
    if (s + 1 < interval.last) ++going_on_[s];
  }
  touched_.clear();
}

// False when the interval of the last decision has no place above it either.
bool PartSearch::postpone_last() {
  const Decision last = decisions_.back();
  take_back();
  uint64_t lowest_end = UINT64_MAX;
  effort_ -= static_cast<int64_t>(neighbors(last.interval).size());
  for (const uint32_t other : neighbors(last.interval)) {
    if (levels_[other] != kPlaced) lowest_end = std::min(lowest_end, levels_[other] + intervals_[other].bytes);
  }
  if (lowest_end == UINT64_MAX) return false;
  ++touch_round_;
  return lift(last.interval, lowest_end) && settle_floors();
}

bool PartSearch::lift(uint32_t index, uint64_t offset) {
  const Interval& interval = intervals_[index];
  if (offset > capacity_ - interval.bytes) {
    ++weights_[index];
    return false;
  }
  const uint64_t before = levels_[index];
  set_level(index, offset);
  effort_ -= interval.last - interval.first;
  for (uint32_t s = interval.first; s < interval.last; ++s) {
    if (floor(s) == before) touch(s);
  }
  return true;
}

void PartSearch::touch(uint32_t section) {
  if (touched_at_[section] == touch_round_) return;
  touched_at_[section] = touch_round_;
  touched_.push_back(section);
}

bool PartSearch::settle_floors() {
  bool fits = true;
  for (size_t t = 0; fits && t < touched_.size(); ++t) {
    const uint32_t section = touched_[t];
    uint64_t lowest = kPlaced;
    for (const uint32_t member : members(section)) lowest = std::min(lowest, levels_[member]);
    effort_ -= static_cast<int64_t>(members(section).size());
    if (lowest == kPlaced) continue;
    if (lowest != floor(section)) set_level(count_ + section, lowest);
    fits = left_[section] <= capacity_ - lowest;
    if (fits) continue;
    for (const uint32_t member : members(section)) weights_[member] += levels_[member] != kPlaced;
  }
  touched_.clear();
  return fits;
}

void PartSearch::set_level(size_t index, uint64_t value) {
  changes_.emplace_back(index, levels_[index]);
  levels_[index] = value;
}

}  // namespace

void IntervalPacking::pack(std::span<const Interval> intervals, uint64_t alignment, std::optional<int64_t> effort) {
  intervals_.assign(intervals.begin(), intervals.end());
  for (Interval& interval : intervals_) interval.bytes = (interval.bytes + alignment - 1) / alignment * alignment;
  find_lower_bound();
  total_ = UINT64_MAX;
  offsets_.resize(intervals_.size());
  best_.assign(intervals_.size(), 0);
  order_.resize(intervals_.size());
  std::iota(order_.begin(), order_.end(), 0);

  const auto by = [&](auto key) {
    std::sort(order_.begin(), order_.end(), [&](uint32_t a, uint32_t b) {
      const auto x = key(intervals_[a]);
      const auto y = key(intervals_[b]);
      return x > y || (x == y && a < b);
    });
  };
  by([](const Interval& i) { return UINT32_MAX - i.first; });
  bool done = keep_if_better(place(order_, total_, true));
  if (!done) {
    by([](const Interval& i) { return static_cast<double>(i.bytes) * (i.last - i.first + 1); });
    done = keep_if_better(place(order_, total_, false));
  }
  if (!done) {
    by([](const Interval& i) { return i.bytes; });
    done = keep_if_better(place(order_, total_, false));
  }
  if (done) return;
  const int64_t most = effort.value_or(usual_effort(intervals_.size(), total_, lower_bound_));
  if (most > 0) search(alignment, most);
}

void IntervalPacking::find_lower_bound() {
  changes_.clear();
  for (const Interval& interval : intervals_) {
    // What ends at a position still lives there: ends sort behind beginnings.
    changes_.emplace_back(uint64_t{interval.first} * 2, interval.bytes);
    changes_.emplace_back(uint64_t{interval.last} * 2 + 1, 0 - interval.bytes);
  }
  std::sort(changes_.begin(), changes_.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  uint64_t live = 0;
  uint64_t most = 0;
  for (const auto& [position, change] : changes_) {
    live += change;
    most = std::max(most, live);
  }
  lower_bound_ = most;
}

// Returns the arena's size, or `limit` as soon as it is reached. In order of time, what has ended
// is of no concern any more.
uint64_t IntervalPacking::place(std::span<const uint32_t> order, uint64_t limit, bool by_time) {
  placed_.clear();
  uint64_t total = 0;
  for (const uint32_t index : order) {
    const Interval& interval = intervals_[index];
    if (by_time) std::erase_if(placed_, [&](const Placed& other) { return other.last < interval.first; });
    uint64_t end = 0;  // of what was passed and lives at the same time
    uint64_t best_offset = UINT64_MAX;
    uint64_t best_gap = UINT64_MAX;
    for (const Placed& other : placed_) {
      if (other.last < interval.first || interval.last < other.first) continue;
      if (other.offset > end) {
        const uint64_t gap = other.offset - end;
        if (gap >= interval.bytes && gap < best_gap) {
          best_gap = gap;
          best_offset = end;
        }
      }
      end = std::max(end, other.end);
    }
    const uint64_t offset = best_offset == UINT64_MAX ? end : best_offset;
    offsets_[index] = offset;
    total = std::max(total, offset + interval.bytes);
    if (total >= limit) return limit;
    const Placed here{offset, offset + interval.bytes, interval.first, interval.last};
    placed_.insert(std::upper_bound(placed_.begin(), placed_.end(), here,
                                    [](const Placed& a, const Placed& b) { return a.offset < b.offset; }),
                   here);
  }
  return total;
}

// True when the lower bound is reached.
bool IntervalPacking::keep_if_better(uint64_t total) {
  if (total < total_ || intervals_.empty()) {
    total_ = total;
    best_ = offsets_;
  }
  return total_ <= lower_bound_;
}

// Parts share the effort by their numbers of intervals; what one leaves, the next ones have.
void IntervalPacking::search(uint64_t alignment, int64_t effort) {
  order_.clear();
  for (uint32_t i = 0; i < intervals_.size(); ++i) {
    if (intervals_[i].bytes != 0) {
      order_.push_back(i);
    } else {
      best_[i] = 0;
    }
  }
  std::sort(order_.begin(), order_.end(), [&](uint32_t a, uint32_t b) {
    return intervals_[a].first < intervals_[b].first || (intervals_[a].first == intervals_[b].first && a < b);
  });
  uint64_t enough = lower_bound_;  // no part needs to be smaller
  for (size_t begin = 0, end = 0; begin < order_.size(); begin = end) {
    uint64_t total = 0;
    std::vector<Interval> part;
    for (uint32_t last = intervals_[order_[begin]].last; end < order_.size(); ++end) {
      const Interval& interval = intervals_[order_[end]];
      if (interval.first > last) break;
      last = std::max(last, interval.last);
      total = std::max(total, best_[order_[end]] + interval.bytes);
      part.push_back(interval);
    }
    if (total <= enough) continue;
    PartSearch search(std::move(part));
    int64_t share = effort / static_cast<int64_t>(order_.size() - begin) * static_cast<int64_t>(end - begin);
    effort -= share;
    enough = std::max(enough, search.shrink(enough, total, alignment, share));
    effort += share;
    for (size_t i = 0; i < search.offsets().size(); ++i) best_[order_[begin + i]] = search.offsets()[i];
  }
  total_ = enough;
}

}  // namespace hetero::graph
