// hetero_transfer_bench: nanoseconds that the scheduler of transfers takes, by the number of graphs
// that run. Each graph reads two blocks from disk and uploads them. A tick ends a transfer and
// starts what waited for it.
//
// Thread safety: one thread.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include "graph/transfer/transfer_scheduler.h"

namespace hetero::graph {
namespace {

using Clock = std::chrono::steady_clock;

class QueueLane final : public TransferLane {
 public:
  void start(const TransferOp&, TransferDone done) override { started.push_back(done); }
  std::vector<TransferDone> started;
};

TransferOpGraph get(int64_t number) {
  TransferOpGraph graph;
  const int64_t block = 2 * number;
  const uint32_t read =
      graph.add_op({.type = TransferType::kDisk2H, .source = {{block, 2}}, .destination = {{block, 2}}});
  graph.add_dependency(read,
                       graph.add_op({.type = TransferType::kH2D, .source = {{block, 2}}, .destination = {{block, 2}}}));
  return graph;
}

double nanoseconds_each(Clock::time_point begin, int64_t count) {
  return std::chrono::duration<double, std::nano>(Clock::now() - begin).count() / static_cast<double>(count);
}

struct Times {
  double submit, tick;
};

Times measure(int64_t graphs) {
  QueueLane disk, device;
  TransferScheduler scheduler;
  scheduler.set_lane(TransferType::kDisk2H, disk, {.most_operations = 1 << 30});
  scheduler.set_lane(TransferType::kH2D, device, {.most_operations = 1 << 30});
  std::vector<TransferOpGraph> made;
  for (int64_t i = 0; i < graphs; ++i) made.push_back(get(i));
  Clock::time_point begin = Clock::now();
  for (TransferOpGraph& graph : made) (void)scheduler.submit(std::move(graph));
  const double submit = nanoseconds_each(begin, graphs);
  begin = Clock::now();
  for (const TransferDone& done : std::exchange(disk.started, {})) done({});
  const double tick = nanoseconds_each(begin, graphs);
  for (const TransferDone& done : std::exchange(device.started, {})) done({});
  return {submit, tick};
}

void print(int64_t graphs) {
  std::vector<double> submits, ticks;
  for (int64_t i = 0; i < std::max<int64_t>(5, 20000 / graphs); ++i) {
    const Times times = measure(graphs);
    submits.push_back(times.submit);
    ticks.push_back(times.tick);
  }
  const auto median = [](std::vector<double>& list) {
    std::ranges::nth_element(list, list.begin() + static_cast<ptrdiff_t>(list.size() / 2));
    return list[list.size() / 2];
  };
  std::printf("%6lld graphs: submit %5.0f ns, tick %4.0f ns\n", static_cast<long long>(graphs), median(submits),
              median(ticks));
}

}  // namespace
}  // namespace hetero::graph

int main() {
  for (const int64_t graphs : {1, 10, 100, 1000, 10000}) hetero::graph::print(graphs);
  return 0;
}
