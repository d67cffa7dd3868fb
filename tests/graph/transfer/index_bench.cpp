// hetero_index_bench: what the index of blocks takes with a million blocks: matches of random
// prompts, insertions, victims; and its memory.
//
// Prompts are matched in random order, so that each finds its nodes in no cache. "Scattered"
// prompts were inserted a block at a time, in turns, so that no two nodes of one are neighbours.
// Loops are measured in the thread's processor time, so other programs count less.
//
// Thread safety: one thread.

#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "graph/transfer/block_index.h"

namespace hetero::graph {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kBlockTokens = 16;

double nanoseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::nano>(Clock::now() - begin).count();
}

double processor_nanoseconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e9 + static_cast<double>(time.tv_nsec);
}

double resident_megabytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

// Tokens of a prompt, the same each time.
std::vector<int32_t> prompt(int64_t number, int64_t blocks) {
  std::minstd_rand random(static_cast<uint32_t>(number) * 2654435761U + 1);
  std::vector<int32_t> tokens(static_cast<size_t>(blocks * kBlockTokens));
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 150000);
  return tokens;
}

std::span<const int32_t> block(const std::vector<int32_t>& tokens, int64_t i) {
  return std::span(tokens).subspan(static_cast<size_t>(i * kBlockTokens), kBlockTokens);
}

void fill(BlockIndex& index, NodeId node, int64_t place) {
  for (const Tier tier : {Tier::kHost, Tier::kDisk}) {
    index.begin_fill(node, tier, place);
    index.finish_fill(node, tier);
  }
}

// Reads more than the caches hold.
void spoil_caches() {
  static std::vector<uint64_t> bytes(size_t{48} << 20);  // 384 MiB
  uint64_t sum = 0;
  for (uint64_t& word : bytes) sum += word++;
  if (sum == 1) std::puts("");
}

void print_median(const char* what, std::vector<double> times, double blocks) {
  std::ranges::sort(times);
  const double median = times[times.size() / 2];
  const double slow = times[times.size() * 9 / 10];
  std::printf("  %-34s median %8.1f us, p90 %8.1f us, %6.1f ns a block\n", what, median / 1e3, slow / 1e3,
              median / blocks);
}

void measure(const std::string& policy, int64_t nodes, int64_t length, bool scattered) {
  const int64_t prompts = nodes / length;
  const double before = resident_megabytes();
  BlockIndex index({.block_tokens = kBlockTokens, .policy = policy, .host_blocks = nodes, .disk_blocks = nodes});
  std::printf("%s, %lld prompts of %lld blocks%s\n", policy.c_str(), static_cast<long long>(prompts),
              static_cast<long long>(length), scattered ? ", scattered" : "");
  double insertion = 0;
  if (scattered) {
    std::vector<std::vector<int32_t>> all;
    for (int64_t i = 0; i < prompts; ++i) all.push_back(prompt(i, length));
    std::vector<NodeId> last(static_cast<size_t>(prompts), BlockIndex::kRoot);
    std::vector<size_t> order(static_cast<size_t>(prompts));
    std::iota(order.begin(), order.end(), 0);
    std::minstd_rand random(7);
    for (int64_t i = 0; i < length; ++i) {
      std::ranges::shuffle(order, random);
      const double begin = processor_nanoseconds();
      for (const size_t p : order) {
        last[p] = index.insert(last[p], block(all[p], i));
        fill(index, last[p], 0);
      }
      insertion += processor_nanoseconds() - begin;
    }
  } else {
    for (int64_t p = 0; p < prompts; ++p) {
      const std::vector<int32_t> tokens = prompt(p, length);
      NodeId node = BlockIndex::kRoot;
      const double begin = processor_nanoseconds();
      for (int64_t i = 0; i < length; ++i) {
        node = index.insert(node, block(tokens, i));
        fill(index, node, 0);
      }
      insertion += processor_nanoseconds() - begin;
    }
  }
  const double count = static_cast<double>(index.size());
  std::printf("  %-34s %6.1f ns a block\n", "insert and fill two tiers", insertion / count);
  if (!scattered)
    std::printf("  %-34s %6.1f bytes a block\n", "memory", (resident_megabytes() - before) * 1048576 / count);

  std::minstd_rand random(11);
  std::vector<double> whole, part, touches;
  std::vector<NodeId> path;
  for (int64_t i = 0; i < 300; ++i) {
    if (i % 100 == 0) spoil_caches();
    const std::vector<int32_t> tokens = prompt(static_cast<int64_t>(random()) % prompts, length);
    path.clear();
    auto begin = Clock::now();
    index.match(tokens, path);
    whole.push_back(nanoseconds_since(begin));
    if (static_cast<int64_t>(path.size()) != length) std::abort();
    begin = Clock::now();
    index.touch(path);
    touches.push_back(nanoseconds_since(begin));
    const std::vector<int32_t> other = prompt(static_cast<int64_t>(random()) % prompts, length);
    path.clear();
    begin = Clock::now();
    index.match(std::span(other).first(64 * kBlockTokens), path);
    part.push_back(nanoseconds_since(begin));
    if (path.size() != 64) std::abort();
  }
  print_median("match a prompt", whole, static_cast<double>(length));
  print_median("match 64 blocks", part, 64);
  print_median("touch a prompt in two tiers", touches, static_cast<double>(length));

  spoil_caches();
  double victims = 0;
  double begin = processor_nanoseconds();
  for (int64_t i = 0; i < nodes / 2; ++i) {
    const NodeId node = index.evict(Tier::kHost);
    if (node == BlockIndex::kNone) std::abort();
    victims += 1;
  }
  std::printf("  %-34s %6.1f ns a block\n", "evict", (processor_nanoseconds() - begin) / victims);
  begin = processor_nanoseconds();
  for (int64_t i = 0; i < nodes / 2; ++i) index.remove(index.evict(Tier::kDisk), Tier::kDisk);
  std::printf("  %-34s %6.1f ns a block\n", "evict and remove", (processor_nanoseconds() - begin) / victims);
}

}  // namespace
}  // namespace hetero::graph

int main(int argc, char** argv) {
  using hetero::graph::measure;
  const int64_t nodes = argc > 1 ? std::atoll(argv[1]) : 1 << 20;
  for (const bool scattered : {false, true}) measure("lru", nodes, 1024, scattered);
  measure("lru", nodes, 64, false);
  for (const std::string_view policy : hetero::graph::eviction_policies()) {
    if (policy != "lru") measure(std::string(policy), nodes, 1024, false);
  }
}
