// Bytes that leave memory for a file come back as they were; the file has no name, and is one for
// all; errors say what happened.

#include "backend/memory/spill_file.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "tests/catch/catch.h"

namespace hetero::backend {
namespace {

struct Folder {
  std::filesystem::path path;
  Folder() : Folder(std::filesystem::temp_directory_path() / ("hetero-spill-test-" + std::to_string(getpid()))) {}
  explicit Folder(std::filesystem::path path) : path(std::move(path)) {
    std::filesystem::create_directories(this->path);
  }
  ~Folder() { std::filesystem::remove_all(path); }
  bool empty() const { return std::filesystem::is_empty(path); }
  // The descriptors of this process for files in it.
  std::vector<int> open_files() const {
    std::vector<int> found;
    for (const auto& file : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code gone;  // the iterator's own
      const std::string name = std::filesystem::read_symlink(file.path(), gone);
      if (name.starts_with(path.string() + "/")) found.push_back(std::stoi(file.path().filename()));
    }
    return found;
  }
  // Of its only open file.
  struct stat only_file() const {
    const std::vector<int> files = open_files();
    REQUIRE(files.size() == 1);
    struct stat status = {};
    REQUIRE(fstat(files[0], &status) == 0);
    return status;
  }
};

std::vector<char> numbers(size_t count, char first = 3) {
  std::vector<char> bytes(count);
  std::iota(bytes.begin(), bytes.end(), first);
  return bytes;
}

std::unique_ptr<SpilledBytes> spill(const Folder& folder, const std::vector<char>& bytes) {
  auto written = SpilledBytes::write(folder.path, bytes.data(), bytes.size());
  REQUIRE(written.ok());
  return std::move(written.value());
}

bool comes_back(const SpilledBytes& spilled, const std::vector<char>& bytes) {
  std::vector<char> back(bytes.size(), 'x');
  return spilled.bytes() == bytes.size() && spilled.read(back.data()).ok() && back == bytes;
}

}  // namespace

TEST_CASE("spill: bytes come back, and there is no file to see") {
  const Folder folder;
  for (const size_t count : {size_t{0}, size_t{1}, size_t{4097}, size_t{3} << 20}) {
    const std::vector<char> bytes = numbers(count);
    auto file = SpilledBytes::write(folder.path, bytes.data(), count);
    REQUIRE(file.ok());
    CHECK(file.value()->bytes() == count);
    CHECK(folder.empty());
    for (int round = 0; round < 2; ++round) {
      std::vector<char> back(count, 'x');
      REQUIRE(file.value()->read(back.data()).ok());
      CHECK(back == bytes);
    }
  }
}

TEST_CASE("spill: a process that is killed leaves no file") {
  const Folder folder;
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const std::vector<char> bytes = numbers(1 << 20);
    auto file = SpilledBytes::write(folder.path, bytes.data(), bytes.size());
    kill(getpid(), SIGKILL);
    _exit(1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(WIFSIGNALED(status));
  CHECK(folder.empty());
}

TEST_CASE("spill: all bytes in a folder share one file, which is closed with the last of them") {
  const Folder folder;
  const Folder other(folder.path / "other");
  std::vector<std::unique_ptr<SpilledBytes>> spilled;
  for (char i = 0; i < 100; ++i) spilled.push_back(spill(folder, numbers(5000, i)));
  spilled.push_back(spill(other, numbers(5000, 100)));
  CHECK(folder.open_files().size() == 2);
  CHECK(other.open_files().size() == 1);
  for (char i = 0; i <= 100; ++i) CHECK(comes_back(*spilled[i], numbers(5000, i)));
  spilled.clear();
  CHECK(folder.open_files().empty());
}

TEST_CASE("spill: what is given back is free on disk, and its range serves later bytes") {
  const Folder folder;
  const std::vector<char> large = numbers(1 << 20), small = numbers(10);
  auto first = spill(folder, large), second = spill(folder, small), third = spill(folder, large);
  const struct stat full = folder.only_file();
  first.reset();
  const struct stat holed = folder.only_file();
  CHECK(holed.st_size == full.st_size);
  CHECK((full.st_blocks - holed.st_blocks) * 512 == 1 << 20);
  // Both parts of the hole, which are one again later.
  for (int round = 0; round < 3; ++round) {
    auto left = spill(folder, numbers(1 << 19)), right = spill(folder, numbers(1 << 19, 5));
    CHECK(comes_back(*left, numbers(1 << 19)));
    CHECK(comes_back(*right, numbers(1 << 19, 5)));
    left.reset();
    right.reset();
    first = spill(folder, large);
    CHECK(comes_back(*first, large));
    first.reset();
  }
  CHECK(folder.only_file().st_size == full.st_size);
  CHECK(comes_back(*second, small));
  CHECK(comes_back(*third, large));
}

TEST_CASE("spill: threads that write and destroy at random find their own bytes") {
  const Folder folder;
  std::atomic<int> wrong{0};
  const auto work = [&](unsigned seed) {
    std::mt19937 random(seed);
    std::vector<std::pair<std::unique_ptr<SpilledBytes>, std::vector<char>>> kept(8);
    for (int i = 0; i < 500; ++i) {
      auto& [spilled, bytes] = kept[random() % kept.size()];
      if (spilled != nullptr && !comes_back(*spilled, bytes)) ++wrong;
      bytes = numbers(random() % 40000, static_cast<char>(random()));
      auto written = SpilledBytes::write(folder.path, bytes.data(), bytes.size());
      if (!written.ok()) ++wrong;
      spilled = written.ok() ? std::move(written.value()) : nullptr;
    }
  };
  std::vector<std::thread> threads;
  for (unsigned seed = 0; seed < 4; ++seed) threads.emplace_back(work, seed);
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(folder.open_files().empty());
}

TEST_CASE("spill: a forked child reads the parent's bytes, and cannot change them") {
  const Folder folder;
  const std::vector<char> bytes = numbers(10000);
  auto spilled = spill(folder, bytes);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    bool right = comes_back(*spilled, bytes);
    auto own = SpilledBytes::write(folder.path, numbers(20000, 9).data(), 20000);
    spilled.reset();
    auto next = SpilledBytes::write(folder.path, numbers(20000, 7).data(), 20000);
    right = right && own.ok() && next.ok() && comes_back(*own.value(), numbers(20000, 9));
    _exit(right ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(status == 0);
  CHECK(comes_back(*spilled, bytes));
}

TEST_CASE("spill: a write that stops in the middle leaves nothing behind, and others as they were") {
  const Folder folder;
  const std::vector<char> bytes = numbers(1 << 20);
  auto spilled = spill(folder, bytes);
  const struct stat before = folder.only_file();
  const auto ignored = std::signal(SIGXFSZ, SIG_IGN);
  struct rlimit usual;
  REQUIRE(getrlimit(RLIMIT_FSIZE, &usual) == 0);
  const struct rlimit little = {(1 << 20) + 100000, usual.rlim_max};
  REQUIRE(setrlimit(RLIMIT_FSIZE, &little) == 0);
  const auto failed = SpilledBytes::write(folder.path, bytes.data(), bytes.size());
  REQUIRE(setrlimit(RLIMIT_FSIZE, &usual) == 0);
  std::signal(SIGXFSZ, ignored);
  CHECK_FALSE(failed.ok());
  CHECK(folder.only_file().st_blocks == before.st_blocks);
  CHECK(comes_back(*spilled, bytes));
  CHECK(comes_back(*spill(folder, bytes), bytes));
}

TEST_CASE("spill: bytes that the disk has changed are an error") {
  const Folder folder;
  const std::vector<char> bytes = numbers((3 << 20) + 17);
  const auto spilled = spill(folder, bytes);
  std::vector<char> back(bytes.size());
  REQUIRE(spilled->read(back.data()).ok());
  const int file = folder.open_files().at(0);
  for (const off_t offset : {off_t{0}, off_t{1} << 20, static_cast<off_t>(bytes.size()) - 1}) {
    const char wrong = static_cast<char>(bytes[static_cast<size_t>(offset)] ^ 4);
    REQUIRE(pwrite(file, &wrong, 1, offset) == 1);
    const Status status = spilled->read(back.data());
    REQUIRE(status.error_class() == ErrorClass::kStorage);
    REQUIRE(pwrite(file, &bytes[static_cast<size_t>(offset)], 1, offset) == 1);
  }
  REQUIRE(spilled->read(back.data()).ok());
  REQUIRE(back == bytes);
}

TEST_CASE("spill: errors name what failed, and reading can be tried again") {
  CHECK(check_spill_folder("/nonexistent/folder").message().find("/nonexistent/folder") != std::string::npos);
  const auto nowhere = SpilledBytes::write("/nonexistent/folder", "x", 1);
  REQUIRE_FALSE(nowhere.ok());
  CHECK(nowhere.status().error_class() == ErrorClass::kStorage);
  CHECK(nowhere.status().message().find("/nonexistent/folder") != std::string::npos);

  const Folder folder;
  CHECK(check_spill_folder(folder.path).ok());
  const std::vector<char> bytes = numbers(1000);
  set_spill_faults(0, false);
  CHECK_FALSE(SpilledBytes::write(folder.path, bytes.data(), bytes.size()).ok());
  auto file = SpilledBytes::write(folder.path, bytes.data(), bytes.size());
  REQUIRE(file.ok());
  std::vector<char> back(1000);
  set_spill_faults(1, true);
  CHECK(file.value()->read(back.data()).ok());
  CHECK_FALSE(file.value()->read(back.data()).ok());
  CHECK_FALSE(file.value()->read(back.data()).ok());
  set_spill_faults(-1, false);
  CHECK(file.value()->read(back.data()).ok());
  CHECK(back == bytes);
}

}  // namespace hetero::backend
