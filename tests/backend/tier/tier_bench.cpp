// Measures block files: random reads with checksums against fio on the same file, and reopening.
//
//   hetero_tier_bench FOLDER [GIBIBYTES] [SECONDS]
//
// Both read random blocks of a file of 2 GiB past the page cache, at the same depth, in
// alternation; the best of each is compared. fio verifies nothing. The bar is a ratio of 0.95.

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "backend/tier/block_file.h"

namespace {

using namespace hetero;
using namespace hetero::backend;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

struct Free {
  void operator()(std::byte* data) const { std::free(data); }
};
std::unique_ptr<std::byte, Free> pages(int64_t bytes) {
  auto* const data = static_cast<std::byte*>(std::aligned_alloc(4096, static_cast<size_t>(bytes)));
  std::memset(data, 1, static_cast<size_t>(bytes));
  return std::unique_ptr<std::byte, Free>(data);
}

[[noreturn]] void fail(const Status& status) {
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::exit(1);
}

double cpu_seconds() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Calls that wait for up to `depth` results.
class Window {
 public:
  void enter(int depth) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return in_flight_ < depth; });
    ++in_flight_;
  }
  void leave(const BlockResult& result) {
    if (!result.status.ok()) fail(result.status);
    const std::lock_guard guard(mutex_);
    --in_flight_;
    changed_.notify_one();
  }
  void drain() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return in_flight_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int in_flight_ = 0;
};

BlockFileOptions options_of(const std::string& folder, const BlockGeometry& geometry, int64_t bytes,
                            FileEngine engine) {
  BlockFileOptions options;
  options.folder = folder;
  options.geometry = geometry;
  options.most_bytes = bytes;
  options.engine = engine;
  return options;
}

std::unique_ptr<BlockFile> open(const BlockFileOptions& options, std::vector<StoredBlock>* blocks) {
  auto opened = BlockFile::open(options, [&](const StoredBlock& block) {
    if (blocks != nullptr) blocks->push_back(block);
  });
  if (!opened.ok()) fail(opened.status());
  return std::move(opened.value());
}

// Fills the folder with blocks. Returns GB/s.
double write_all_blocks(BlockFile& file, const BlockGeometry& geometry) {
  constexpr int kDepth = 8;
  Window window;
  const auto data = pages(geometry.block_bytes());
  std::mt19937_64 random(1);
  for (int64_t i = 0; i < geometry.block_bytes(); i += 8) {
    const uint64_t value = random();
    std::memcpy(data.get() + i, &value, 8);
  }
  const auto start = std::chrono::steady_clock::now();
  int64_t written = 0;
  for (uint64_t number = 0;; ++number) {
    const std::optional<int64_t> slot = file.take();
    if (!slot.has_value()) break;
    StoredBlock block{.slot = 0, .key = {number, 1}, .parent = {}, .tokens = std::vector<int32_t>(16)};
    window.enter(kDepth);
    file.write({{*slot, data.get(), std::move(block)}}, [&](const BlockResult& result) { window.leave(result); });
    written += geometry.block_bytes();
  }
  window.drain();
  return static_cast<double>(written) / seconds_since(start) / 1e9;
}

// Reads random blocks for a while: each read that ends begins another one. Returns GB/s.
class RandomReads {
 public:
  // `memory`: of as many blocks as reads are in flight, at most.
  RandomReads(BlockFile& file, const BlockGeometry& geometry, std::byte* memory, double seconds, unsigned seed)
      : file_(file),
        geometry_(geometry),
        memory_(memory),
        slots_(file.counters().slots),
        seconds_(seconds),
        random_(seed) {}

  double run(int depth) {
    const double cpu = cpu_seconds();
    start_ = std::chrono::steady_clock::now();
    for (int i = 0; i < depth; ++i) {
      window_.enter(depth);
      next(memory_ + i * geometry_.block_bytes());
    }
    window_.drain();
    const double gigabytes = static_cast<double>(bytes_) / 1e9;
    cpu_seconds_ = (cpu_seconds() - cpu) / gigabytes;
    return gigabytes / seconds_since(start_);
  }
  // Of the processor, for a GB.
  double cpu_seconds_per_gigabyte() const { return cpu_seconds_; }

 private:
  void next(std::byte* data) {
    int64_t slot = 0;
    {
      const std::lock_guard guard(mutex_);
      slot = static_cast<int64_t>(random_() % static_cast<uint64_t>(slots_));
      bytes_ += geometry_.block_bytes();
    }
    file_.read({{slot, data}}, 0, geometry_.pieces, [this, data](const BlockResult& result) {
      if (!result.status.ok()) fail(result.status);
      if (seconds_since(start_) < seconds_) {
        next(data);
      } else {
        window_.leave(result);
      }
    });
  }

  BlockFile& file_;
  const BlockGeometry geometry_;
  std::byte* const memory_;
  const int64_t slots_;
  const double seconds_;
  std::mutex mutex_;
  std::mt19937_64 random_;  // guarded by mutex_, as is bytes_
  int64_t bytes_ = 0;
  double cpu_seconds_ = 0;
  std::chrono::steady_clock::time_point start_;
  Window window_;
};

// GB/s of fio, or 0 where it is not installed. The seventh field of its terse format is the
// bandwidth of reads in KiB/s.
double run_fio(const std::string& path, int64_t block_bytes, int depth, double seconds, unsigned seed) {
  char command[1024];
  std::snprintf(command, sizeof(command),
                "fio --name=read --filename='%s' --rw=randread --bs=%lld --iodepth=%d --direct=1 --ioengine=io_uring "
                "--time_based --runtime=%.1f --randseed=%u --norandommap --minimal --output-format=terse 2>/dev/null",
                path.c_str(), static_cast<long long>(block_bytes), depth, seconds, seed + 1);
  FILE* const pipe = popen(command, "r");
  if (pipe == nullptr) return 0;
  std::string text;
  char buffer[4096];
  while (const size_t count = std::fread(buffer, 1, sizeof(buffer), pipe)) text.append(buffer, count);
  if (pclose(pipe) != 0) return 0;
  size_t at = 0;
  for (int field = 0; field < 6 && at != std::string::npos; ++field) at = text.find(';', at + 1);
  return at == std::string::npos ? 0 : std::atof(text.c_str() + at + 1) * 1024 / 1e9;
}

void bench_reads(const std::string& folder, int64_t bytes, double seconds) {
  const struct {
    const char* name;
    BlockGeometry geometry;
  } shapes[] = {{"1.75 MiB = 28 pieces of 64 KiB", {.tokens = 16, .pieces = 28, .piece_bytes = 65536}},
                {"128 KiB = 2 pieces of 64 KiB", {.tokens = 16, .pieces = 2, .piece_bytes = 65536}}};
  for (const auto& shape : shapes) {
    const std::string at = folder + "/bench";
    std::filesystem::remove_all(at);
    // One range for all reads, as fio has it, so that both have huge pages or neither. It is
    // registered, as that of a store is.
    constexpr int kMostDepth = 32;
    const int64_t block_bytes = shape.geometry.block_bytes();
    const auto memory = pages(block_bytes * kMostDepth);
    BlockFileOptions options = options_of(at, shape.geometry, bytes, FileEngine::kAuto);
    options.memory = {memory.get(), static_cast<size_t>(block_bytes * kMostDepth)};
    auto file = open(options, nullptr);
    std::printf("%s, %s: written with %.2f GB/s\n", shape.name, file->counters().engine,
                write_all_blocks(*file, shape.geometry));
    std::printf("  depth   hetero GB/s   fio GB/s   ratio   CPU s/GB\n");
    constexpr int kRounds = 3;
    for (int depth = 1; depth <= kMostDepth; depth *= 2) {
      double ours = 0, fio = 0, cpu = 1e9;
      for (unsigned round = 0; round < kRounds; ++round) {
        fio = std::max(fio, run_fio(at + "/blocks", shape.geometry.block_bytes(), depth, seconds, round));
        RandomReads reads(*file, shape.geometry, memory.get(), seconds, round);
        ours = std::max(ours, reads.run(depth));
        cpu = std::min(cpu, reads.cpu_seconds_per_gigabyte());
      }
      std::printf("  %5d   %11.3f   %8.3f   %5.2f   %8.3f\n", depth, ours, fio, fio > 0 ? ours / fio : 0, cpu);
      std::fflush(stdout);
    }
    const BlockFileCounters counters = file->counters();
    std::printf("  %lld of %lld operations on registered memory%s%s\n",
                static_cast<long long>(counters.registered_operations), static_cast<long long>(counters.operations),
                counters.unregistered.empty() ? "" : ": ", counters.unregistered.c_str());
    file.reset();
    std::filesystem::remove_all(at);
  }
}

void bench_reopening(const std::string& folder) {
  const BlockGeometry geometry{.tokens = 16, .pieces = 28, .piece_bytes = 4096};
  constexpr int64_t kBlocks = 100000;
  const std::string at = folder + "/bench-reopen";
  std::filesystem::remove_all(at);
  // One page of data for all blocks: what is measured is the log.
  BlockFileOptions options = options_of(at, geometry, kBlocks * geometry.block_bytes(), FileEngine::kAuto);
  {
    auto file = open(options, nullptr);
    const auto data = pages(geometry.block_bytes());
    Window window;
    for (int64_t i = 0; i < kBlocks; ++i) {
      const auto number = static_cast<uint64_t>(i) + 1;
      const bool is_first = i % 1000 == 0;
      StoredBlock block{.slot = 0, .key = {number, number}, .parent = {}, .tokens = std::vector<int32_t>(16)};
      if (!is_first) block.parent = {number - 1, number - 1};
      window.enter(32);
      file->write({{*file->take(), data.get(), std::move(block)}},
                  [&](const BlockResult& result) { window.leave(result); });
    }
    window.drain();
  }
  for (int round = 0; round < 3; ++round) {
    const auto start = std::chrono::steady_clock::now();
    auto file = open(options, nullptr);
    std::printf("reopened with %lld blocks in %.3f s, log of %.1f MB\n",
                static_cast<long long>(file->counters().recovered), seconds_since(start),
                static_cast<double>(file->counters().log_bytes) / 1e6);
  }
  std::filesystem::remove_all(at);
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 2) {
    std::fprintf(stderr, "usage: hetero_tier_bench FOLDER [GIBIBYTES] [SECONDS]\n");
    return 2;
  }
  const double gibibytes = count > 2 ? std::atof(arguments[2]) : 2;
  const double seconds = count > 3 ? std::atof(arguments[3]) : 2;
  bench_reads(arguments[1], static_cast<int64_t>(gibibytes * 1073741824.0), seconds);
  bench_reopening(arguments[1]);
  return 0;
}
