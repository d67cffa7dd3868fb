// A shared folder as a remote tier: other processes, damage, links and modes.

#include <fcntl.h>
#include <sys/stat.h>

#include <atomic>
#include <fstream>

#include "tests/backend/tier/remote/remote_fixture.h"

using namespace hetero;
using namespace hetero::backend;
using namespace hetero::backend::testing;

namespace {

constexpr BlockGeometry kSmall{16, 3, 8192};

class Folder {
 public:
  explicit Folder(RemoteOptions options = options_of(kSmall)) : options_(options) {
    tier_ = open_or_fail("file://" + path(), options_);
  }
  std::string path() const { return folder_.path.string() + "/tier"; }
  std::string path_of(const RemoteBlock& block) const {
    const std::string key = to_string(block.key);
    return path() + "/" + to_string(options_.fingerprint) + "/" + key.substr(0, 2) + "/" + key;
  }
  RemoteTier& tier() { return *tier_; }
  // Regular files with any name, anywhere below.
  size_t files() const {
    size_t count = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(path())) {
      count += entry.is_regular_file() ? 1 : 0;
    }
    return count;
  }

 private:
  TemporaryFolder folder_{"folder"};
  const RemoteOptions options_;
  std::unique_ptr<RemoteTier> tier_;
};

}  // namespace

TEST_CASE("folder: files have names of keys, no mode for others, and no leftovers", "[remote]") {
  Folder folder;
  Blocks blocks(kSmall, 20);
  REQUIRE(folder.tier().match(blocks.keys()).value() == 0);
  REQUIRE_FALSE(std::filesystem::exists(folder.path()));
  REQUIRE(folder.tier().put(blocks.blocks()).missing.empty());
  REQUIRE(folder.files() == 20);
  struct stat about {};
  for (size_t i = 0; i < 20; ++i) {
    REQUIRE(stat(folder.path_of(blocks[i]).c_str(), &about) == 0);
    REQUIRE((about.st_mode & 0777) == 0600);
  }
  REQUIRE(stat(folder.path().c_str(), &about) == 0);
  REQUIRE((about.st_mode & 0777) == 0700);
  REQUIRE(stat(std::filesystem::path(folder.path_of(blocks[0])).parent_path().c_str(), &about) == 0);
  REQUIRE((about.st_mode & 0777) == 0700);
}

TEST_CASE("folder: damaged files, links, pipes and folders in the place of a file are missing", "[remote]") {
  Folder folder;
  Blocks blocks(kSmall, 7);
  REQUIRE(folder.tier().put(blocks.blocks()).missing.empty());
  std::filesystem::resize_file(folder.path_of(blocks[0]), 0);
  std::filesystem::resize_file(folder.path_of(blocks[1]), 9000);
  {
    std::fstream file(folder.path_of(blocks[2]), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(12345);
    file.put('!');
  }
  const auto replace = [&](size_t block) {
    std::filesystem::remove(folder.path_of(blocks[block]));
    return folder.path_of(blocks[block]);
  };
  const std::string good = folder.path_of(blocks[6]);
  REQUIRE(symlink(good.c_str(), replace(3).c_str()) == 0);
  REQUIRE(mkfifo(replace(4).c_str(), 0600) == 0);
  REQUIRE(mkdir(replace(5).c_str(), 0700) == 0);
  Blocks copies(blocks, nullptr);
  for (RemoteBlock& block : copies.blocks()) block.tokens = {};
  const auto start = steady_clock::now();
  const RemoteResult got = folder.tier().get(copies.blocks());
  REQUIRE(seconds_since(start) < 5);
  REQUIRE(got.status.ok());
  REQUIRE(got.missing == std::vector<int64_t>{0, 1, 2, 3, 4, 5});
  REQUIRE(blocks.equal(6, copies));
  REQUIRE(folder.tier().counters().rejected == 3);
  for (const size_t block : {0, 3, 4, 5}) {
    const std::vector<BlockKey> key = {blocks[block].key};
    REQUIRE(folder.tier().match(key).value() == 0);
  }
  // A put repairs all but the folder.
  const RemoteResult put = folder.tier().put(blocks.blocks());
  REQUIRE(put.status.ok());
  REQUIRE(put.missing == std::vector<int64_t>{5});
  REQUIRE(folder.tier().remove(std::vector<BlockKey>{blocks[5].key}).ok());
  REQUIRE(folder.files() == 6);
  REQUIRE(folder.tier().get(copies.blocks()).missing == std::vector<int64_t>{5});
  REQUIRE(std::filesystem::exists(good));
}

TEST_CASE("folder: a file under another block's name, or from another fingerprint, is missing", "[remote]") {
  Folder folder;
  Blocks blocks(kSmall, 2);
  REQUIRE(folder.tier().put(blocks.blocks()).missing.empty());
  for (RemoteBlock& block : blocks.blocks()) block.tokens = {};
  std::filesystem::copy_file(folder.path_of(blocks[0]), folder.path_of(blocks[1]),
                             std::filesystem::copy_options::overwrite_existing);
  REQUIRE(folder.tier().get(blocks.blocks()).missing == std::vector<int64_t>{1});
  std::filesystem::rename(folder.path() + "/" + to_string(BlockKey{1, 2}),
                          folder.path() + "/" + to_string(BlockKey{8, 8}));
  auto other = open_or_fail("file://" + folder.path(), options_of(kSmall, {8, 8}));
  REQUIRE(other->match(blocks.keys()).value() == 2);
  REQUIRE(other->get(blocks.blocks()).missing.size() == 2);
  REQUIRE(other->counters().rejected == 2);
}

TEST_CASE("folder: it can be deleted and written by others at any time", "[remote]") {
  Folder folder;
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0}, hits{0};
  std::vector<std::unique_ptr<RemoteTier>> tiers;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 3; ++thread) {
    tiers.push_back(open_or_fail("file://" + folder.path(), options_of(kSmall)));
    threads.emplace_back([&, tier = tiers.back().get()] {
      Blocks blocks(kSmall, 6);
      while (!stop) {
        if (!tier->put(blocks.blocks()).status.ok()) ++wrong;
        Blocks copies(blocks, nullptr);
        const RemoteResult got = tier->get(copies.blocks());
        if (!got.status.ok()) ++wrong;
        for (size_t i = 0; i < 6; ++i) {
          if (std::find(got.missing.begin(), got.missing.end(), static_cast<int64_t>(i)) != got.missing.end()) continue;
          ++hits;
          if (!blocks.equal(i, copies)) ++wrong;
        }
        if (tier->counters().rejected != 0) ++wrong;
      }
    });
  }
  for (int round = 0; round < 25; ++round) {
    std::error_code error;
    std::filesystem::remove_all(folder.path(), error);
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  REQUIRE(wrong == 0);
  REQUIRE(hits > 0);
  Blocks blocks(kSmall, 6);
  REQUIRE(folder.tier().put(blocks.blocks()).missing.empty());
  REQUIRE(folder.files() == 6);
}

TEST_CASE("folder: what is older than its lifetime is missing, and goes at the next put", "[remote]") {
  RemoteOptions options = options_of(kSmall);
  options.lifetime_seconds = 100;
  Folder folder(options);
  Blocks blocks(kSmall, 2);
  REQUIRE(folder.tier().put(blocks.blocks()).missing.empty());
  const std::string temporary =
      (std::filesystem::path(folder.path_of(blocks[0])).parent_path() / ".tmp-0123-4").string();
  std::ofstream(temporary) << "a crash left this";
  const auto age = [](const std::string& path, int64_t seconds) {
    const timespec past{time(nullptr) - seconds, 0};
    const timespec times[2] = {past, past};
    REQUIRE(utimensat(AT_FDCWD, path.c_str(), times, 0) == 0);
  };
  age(folder.path_of(blocks[0]), 90);
  REQUIRE(folder.tier().match(blocks.keys()).value() == 2);
  age(folder.path_of(blocks[0]), 101);
  age(temporary, 4000);
  REQUIRE(folder.tier().match(blocks.keys()).value() == 0);
  REQUIRE(folder.tier().get(blocks.blocks()).missing == std::vector<int64_t>{0});
  auto next = open_or_fail("file://" + folder.path(), options);
  Blocks same_folder(kSmall, 1, 3);
  same_folder[0].key = blocks[0].key;
  same_folder[0].key.low ^= 1;
  REQUIRE(next->put(same_folder.blocks()).missing.empty());
  REQUIRE_FALSE(std::filesystem::exists(temporary));
  REQUIRE_FALSE(std::filesystem::exists(folder.path_of(blocks[0])));
  REQUIRE(std::filesystem::exists(folder.path_of(blocks[1])));
}

TEST_CASE("folder: where a folder cannot be made, the status says why", "[remote]") {
  const TemporaryFolder temporary("folder");
  const std::string folder = temporary.path;
  std::ofstream(folder + "/file") << "no folder";
  Blocks blocks(kSmall, 2);
  for (const std::string& path : {folder + "/file", folder + "/no/parent", std::string("/proc/hetero")}) {
    INFO(path);
    auto tier = open_or_fail("file://" + path, options_of(kSmall));
    const RemoteResult put = tier->put(blocks.blocks());
    REQUIRE(put.status.error_class() == ErrorClass::kStorage);
    REQUIRE(put.status.message().find(path) != std::string::npos);
    REQUIRE(put.missing.size() == 2);
  }
  auto full = open_or_fail("file://" + folder + "/file", options_of(kSmall));
  REQUIRE_FALSE(full->match(blocks.keys()).ok());
  REQUIRE_FALSE(full->get(blocks.blocks()).status.ok());
}

TEST_CASE("folder: a disk without space takes no more blocks, keeps those that are there, and has no leftovers",
          "[remote]") {
  // A file system with 1 MiB, where the test may mount one.
  const TemporaryFolder temporary("folder");
  const std::string folder = temporary.path;
  const std::string mount = "mount -t tmpfs -o size=1m none " + folder + " 2>/dev/null";
  if (system(mount.c_str()) != 0) {
    WARN("the test may not mount a file system, and does nothing");
    return;
  }
  Blocks blocks(kSmall, 60);
  auto tier = open_or_fail("file://" + folder + "/tier", options_of(kSmall));
  const RemoteResult put = tier->put(blocks.blocks());
  size_t files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    files += entry.is_regular_file() ? 1 : 0;
  }
  Blocks copies(blocks, nullptr);
  const RemoteResult got = tier->get(copies.blocks());
  REQUIRE(system(("umount " + folder).c_str()) == 0);
  REQUIRE_FALSE(put.status.ok());
  REQUIRE(put.missing.size() > 0);
  REQUIRE(put.missing.size() < 60);
  REQUIRE(files == 60 - put.missing.size());
  REQUIRE(got.status.ok());
  REQUIRE(got.missing == put.missing);
}
