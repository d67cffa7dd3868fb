// A process that is killed at any moment loses no block whose write was acknowledged, and leaves no
// block with wrong bytes and no slot that nobody can take.
//
// A child takes, writes, rewrites and erases blocks whose bytes follow from their keys. It reports
// through a pipe what it is about to do and what was acknowledged. The parent kills it, opens the
// folder, and compares.

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "backend/tier/block_file.h"
#include "tests/backend/tier/blocks.h"
#include "tests/catch/catch.h"

namespace hetero::backend {
namespace {

using testing::fill;
using testing::is_filled;
using testing::pages;
using testing::Pages;
using testing::TemporaryFolder;

constexpr BlockGeometry kGeometry{.tokens = 200, .pieces = 3, .piece_bytes = 6000};
constexpr int64_t kSlots = 24;
const BlockKey kFingerprint{1, 2};

BlockFileOptions options_of(const TemporaryFolder& folder, unsigned round) {
  BlockFileOptions options;
  options.folder = folder.path / "blocks";
  options.geometry = kGeometry;
  options.fingerprint = kFingerprint;
  options.most_bytes = kSlots * kGeometry.block_bytes();
  options.durability = std::array{Durability::kNone, Durability::kGroup, Durability::kStrict}[round % 3];
  options.group_seconds = 0.002;
  options.engine = round % 2 == 0 ? FileEngine::kAuto : FileEngine::kThreads;
  return options;
}

// What the child says. A write that begins makes the slot's former block uncertain; once it is
// acknowledged, the new block must be there.
struct Event {
  enum Kind : uint64_t { kReady, kWrites, kWritten, kErases, kErased } kind;
  int64_t slot;
  uint64_t number;
};

BlockKey key_of(uint64_t number) { return {number, ~number}; }

// Writes and erases until it is killed. Leaves with a code if something is wrong.
int live(const BlockFileOptions& options, uint64_t first_number, int channel) {
  const auto say = [&](Event event) { (void)!write(channel, &event, sizeof(event)); };
  std::vector<int64_t> published;
  auto opened = BlockFile::open(options, [&](const StoredBlock& block) { published.push_back(block.slot); });
  if (!opened.ok()) return 1;
  BlockFile& file = *opened.value();
  say({Event::kReady, 0, 0});
  const Pages data = pages(4 * kGeometry.block_bytes());
  std::mt19937 random(static_cast<unsigned>(first_number));
  for (uint64_t number = first_number;;) {
    std::vector<BlockWrite> writes;
    for (size_t count = 1 + random() % 4; count > 0; --count) {
      int64_t slot = -1;
      if (!published.empty() && random() % 3 == 0) {
        std::swap(published[random() % published.size()], published.back());  // written again without erasing it
        slot = published.back();
        published.pop_back();
      } else if (const std::optional<int64_t> free = file.take()) {
        slot = *free;
      } else {
        break;
      }
      std::byte* const at = data.get() + std::ssize(writes) * kGeometry.block_bytes();
      fill(at, kGeometry, key_of(number));
      StoredBlock block{.slot = 0, .key = key_of(number), .parent = kFingerprint, .tokens = {}};
      block.tokens.assign(static_cast<size_t>(kGeometry.tokens), static_cast<int32_t>(number));
      writes.push_back({slot, at, std::move(block)});
      say({Event::kWrites, slot, number++});
    }
    const std::vector<BlockWrite> written = writes;
    if (!testing::write_blocks(file, std::move(writes)).status.ok()) return 2;
    for (const BlockWrite& block : written) {
      say({Event::kWritten, block.slot, block.block.key.high});
      published.push_back(block.slot);
    }
    while (!published.empty() && (std::ssize(published) > kSlots - 6 || random() % 3 == 0)) {
      std::swap(published[random() % published.size()], published.back());
      const int64_t slot = published.back();
      published.pop_back();
      say({Event::kErases, slot, 0});
      file.erase(slot);
      say({Event::kErased, slot, 0});
    }
  }
}

struct Expected {
  std::map<int64_t, uint64_t> there;               // acknowledged, by slot
  std::map<int64_t, std::set<uint64_t>> possible;  // under way when the child died; 0: none
  void take_in(const Event& event) {
    switch (event.kind) {
      case Event::kReady:
        break;
      case Event::kWrites:
      case Event::kErases:
        if (there.count(event.slot) > 0) possible[event.slot].insert(there[event.slot]);
        if (event.kind == Event::kWrites) possible[event.slot].insert(event.number);
        there.erase(event.slot);
        break;
      case Event::kWritten:
        possible.erase(event.slot);
        there[event.slot] = event.number;
        break;
      case Event::kErased:
        possible.erase(event.slot);
    }
  }
};

struct Totals {
  int64_t acknowledged = 0, under_way = 0, bad = 0, writes = 0;
};

// Lets a child live for a moment, kills it, and checks what it left.
void check_crash(const TemporaryFolder& folder, unsigned round, Expected& expected, Totals& totals) {
  std::mt19937 random(round + 17);
  int channel[2];
  REQUIRE(pipe(channel) == 0);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    for (int caught : {SIGSEGV, SIGBUS, SIGABRT, SIGTERM}) std::signal(caught, SIG_DFL);
    alarm(30);
    close(channel[0]);
    _exit(live(options_of(folder, round), 1 + uint64_t{round} * 1000000, channel[1]));
  }
  close(channel[1]);
  // From the first event on, so that most children live long enough to be killed at work.
  Event event;
  std::thread killer;
  const auto microseconds = random() % 20000;
  while (read(channel[0], &event, sizeof(event)) == sizeof(event)) {
    expected.take_in(event);
    totals.writes += event.kind == Event::kWritten;
    if (!killer.joinable()) {
      killer = std::thread([=] {
        std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
        kill(child, SIGKILL);
      });
    }
  }
  if (killer.joinable()) killer.join();
  close(channel[0]);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(WIFSIGNALED(status));
  REQUIRE(WTERMSIG(status) == SIGKILL);

  std::map<int64_t, uint64_t> found;
  auto opened = BlockFile::open(options_of(folder, round), [&](const StoredBlock& block) {
    REQUIRE(found.count(block.slot) == 0);
    found[block.slot] = block.key.high;
    REQUIRE(block.key == key_of(block.key.high));
    REQUIRE(block.tokens ==
            std::vector<int32_t>(static_cast<size_t>(kGeometry.tokens), static_cast<int32_t>(block.key.high)));
  });
  INFO((opened.ok() ? "" : opened.status().message()));
  REQUIRE(opened.ok());
  BlockFile& file = *opened.value();
  const Pages data = pages(kGeometry.block_bytes());
  for (const auto& [slot, number] : expected.there) {
    INFO("round " << round << " slot " << slot << " number " << number);
    REQUIRE(found.count(slot) == 1);
    REQUIRE(found[slot] == number);
  }
  for (const auto& [slot, number] : found) {
    INFO("round " << round << " slot " << slot << " number " << number);
    const bool acknowledged = expected.there.count(slot) > 0;
    if (!acknowledged) REQUIRE(expected.possible[slot].count(number) == 1);
    const BlockResult result = testing::read_blocks(file, {{slot, data.get()}}, 0, kGeometry.pieces);
    if (result.status.ok()) {
      REQUIRE(is_filled(data.get(), kGeometry, key_of(number), 0, kGeometry.pieces));
    } else {
      // Its bytes were being replaced.
      REQUIRE_FALSE(acknowledged);
      REQUIRE(result.bad_slots == std::vector<int64_t>{slot});
      ++totals.bad;
    }
    (acknowledged ? totals.acknowledged : totals.under_way) += 1;
  }
  // No slot leaks: all others can be taken.
  int64_t free = 0;
  std::vector<int64_t> taken;
  while (const std::optional<int64_t> slot = file.take()) {
    REQUIRE(found.count(*slot) == 0);
    taken.push_back(*slot);
    ++free;
  }
  REQUIRE(free + std::ssize(found) == kSlots);
  expected.there = found;
  expected.possible.clear();
  // A bad block is erased, as its owner would do.
  for (const auto& [slot, number] : found) {
    if (testing::read_blocks(file, {{slot, data.get()}}, 0, kGeometry.pieces).status.ok()) continue;
    file.erase(slot);
    expected.there.erase(slot);
  }
}

Totals check_crashes(unsigned rounds) {
  const TemporaryFolder folder("block-crash");
  Expected expected;
  Totals totals;
  for (unsigned round = 0; round < rounds; ++round) check_crash(folder, round, expected, totals);
  CHECK(totals.acknowledged > rounds);
  return totals;
}

TEST_CASE("A killed process loses no acknowledged block, leaves no wrong byte and leaks no slot", "[tier]") {
  check_crashes(50);
}

TEST_CASE("The same in 1,200 rounds", "[.long][tier]") {
  const Totals totals = check_crashes(1200);
  WARN(totals.writes << " writes acknowledged, " << totals.acknowledged << " blocks found, " << totals.under_way
                     << " more under way, " << totals.bad << " bad");
}

}  // namespace
}  // namespace hetero::backend
