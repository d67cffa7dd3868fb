#include <algorithm>
#include <string>

#include "graph/ir/follower.h"
#include "graph/verify/usage.h"

namespace hetero::graph {
namespace {

using backend::DeviceIndex;
using backend::kCpu;

// What a block of a device takes: no less than its alignment.
uint64_t block_bytes(uint64_t bytes) { return std::max<uint64_t>(1, (bytes + 63) / 64) * 64; }

class MemoryVerifier {
 public:
  MemoryVerifier(const Usage& usage, const PlanOptions& options) : usage_(usage), options_(options) {}

  Status run() const {
    if (Status status = check_residences(); !status.ok()) return status;
    if (Status status = check_sharing(); !status.ok()) return status;
    return check_budget();
  }

 private:
  Status check_residences() const {
    for (size_t place = 0; place < usage_.touches.size(); ++place) {
      const char* const error = residence_error(place);
      if (error == nullptr) continue;
      return violation(name("b", usage_.buffer_at(place)) + " on device " + std::to_string(usage_.device_at(place)) +
                       ": " + error);
    }
    return Status();
  }

  // Null where the residence is legal.
  const char* residence_error(size_t place) const {
    const BufferId b = usage_.buffer_at(place);
    const DeviceIndex d = usage_.device_at(place);
    const Residence& residence = usage_.stay_at(place);
    const std::vector<Touch>& touches = usage_.touches[place];
    const bool returns = place >= usage_.plan.residences.size();
    if (returns && residence.home != Home::kArena) return "comes back to another place than the arena";
    if (touches.empty()) {
      return residence.home == Home::kNone ? nullptr : "has a home but is never touched";
    }
    const uint32_t last = touches.back().position;
    const bool outlives = residence.last == last + 1 && has_follower(usage_.graph, usage_.plan, last);
    if (residence.first != touches.front().position || (residence.last != last && !outlives)) {
      return "its lifetime is not from its first to its last touch";
    }
    const bool host_only =
        d == kCpu && std::ranges::all_of(touches, [](const Touch& t) { return t.queue == kHostQueue; });
    switch (residence.home) {
      case Home::kNone:
        return "is touched but has no home";
      case Home::kBound:
        return usage_.survives(b) ? nullptr : "is bound but dies with the program";
      case Home::kOwned:
        return host_only && !usage_.survives(b) ? nullptr : "may not have a block of its own";
      case Home::kBrought:
        if (d != kCpu || !touches.front().brings) return "nobody brings its memory";
        return usage_.survives(b) || host_only ? nullptr : "may be freed while a copy uses it";
      case Home::kArena:
        break;
    }
    if (usage_.survives(b) && d == kCpu) return "lies in the arena but outlives the program";
    if (!returns && (usage_.graph.buffers[b].valid_on >> d & 1) != 0) return "was there before, but not in the arena";
    if (residence.offset % 64 != 0) return "is not aligned";
    const uint64_t size = usage_.plan.arena_bytes[d];
    if (residence.offset >= size || size - residence.offset < usage_.graph.buffers[b].bytes) {
      return "lies outside the arena";
    }
    return nullptr;
  }

  // Values that share bytes of an arena are not in use at the same time.
  Status check_sharing() const {
    for (DeviceIndex d = 0; d < usage_.plan.device_count; ++d) {
      std::vector<size_t> members;
      for (size_t place = 0; place < usage_.touches.size(); ++place) {
        if (usage_.device_at(place) == d && usage_.stay_at(place).home == Home::kArena &&
            usage_.graph.buffers[usage_.buffer_at(place)].bytes > 0) {
          members.push_back(place);
        }
      }
      const auto offset = [&](size_t place) { return usage_.stay_at(place).offset; };
      std::ranges::sort(members, {}, offset);
      for (size_t i = 0; i < members.size(); ++i) {
        const size_t a = members[i];
        const uint64_t end = offset(a) + usage_.graph.buffers[usage_.buffer_at(a)].bytes;
        for (size_t j = i + 1; j < members.size() && offset(members[j]) < end; ++j) {
          const size_t b = members[j];
          if (!all_before(a, b) && !all_before(b, a)) {
            return violation(name("b", usage_.buffer_at(a)) + " and " + name("b", usage_.buffer_at(b)) +
                             " share bytes while both are in use");
          }
        }
      }
    }
    return Status();
  }

  bool all_before(size_t a, size_t b) const {
    Clock last{};
    for (const Touch& touch : usage_.touches[a]) last[touch.queue] = touch.position + 1;
    return std::ranges::all_of(usage_.touches[b], [&](const Touch& touch) {
      const Clock& clock = usage_.clocks[touch.position];
      for (int q = 0; q < kMaxQueues; ++q) {
        if (last[q] > clock[q]) return false;
      }
      return true;
    });
  }

  Status check_budget() const {
    for (DeviceIndex d = 0; d < usage_.plan.device_count; ++d) {
      if (usage_.plan.arena_lower_bound[d] > usage_.plan.arena_bytes[d]) {
        return violation("an arena is smaller than its lower bound");
      }
    }
    for (DeviceIndex d = 1; d < std::min(usage_.plan.device_count, options_.machine.size()); ++d) {
      if (Status status = check_memory_of(d); !status.ok()) return status;
    }
    return Status();
  }

  Status check_memory_of(DeviceIndex device) const {
    const uint64_t most = options_.machine[device].bytes;
    if (most == 0) return Status();
    uint64_t bytes = usage_.plan.arena_bytes[device];
    bool takes = bytes > 0;
    for (BufferId b = 0; b < usage_.graph.buffers.size(); ++b) {
      const bool there = backend::contains(usage_.graph.buffers[b].valid_on, device);
      const bool bound = usage_.plan.residence(b, device).home == Home::kBound;
      if (there || bound) bytes += block_bytes(usage_.graph.buffers[b].bytes);
      takes |= bound && !there;
    }
    // What lay there before may be too much already; then nothing is added.
    if (!takes) return Status();
    if (bytes > most) return violation("the accelerator's memory is exceeded");
    return Status();
  }

  const Usage& usage_;
  const PlanOptions& options_;
};

}  // namespace

Status verify_memory(const Usage& usage, const PlanOptions& options) { return MemoryVerifier(usage, options).run(); }

}  // namespace hetero::graph
