// Bytes that leave memory for a file come back as they were; the file has no name; errors say what happened.

#include "backend/spill_file.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <numeric>
#include <vector>

#include "tests/backend/catch.h"

namespace hetero::backend {
namespace {

struct Folder {
  std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("hetero-spill-test-" + std::to_string(getpid()));
  Folder() { std::filesystem::create_directories(path); }
  ~Folder() { std::filesystem::remove_all(path); }
  bool empty() const { return std::filesystem::is_empty(path); }
};

std::vector<char> numbers(size_t count) {
  std::vector<char> bytes(count);
  std::iota(bytes.begin(), bytes.end(), char{3});
  return bytes;
}

}  // namespace

TEST_CASE("spill: bytes come back, and there is no file to see") {
  const Folder folder;
  for (const size_t count : {size_t{0}, size_t{1}, size_t{4097}, size_t{3} << 20}) {
    const std::vector<char> bytes = numbers(count);
    auto file = SpillFile::create(folder.path, bytes.data(), count);
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
    auto file = SpillFile::create(folder.path, bytes.data(), bytes.size());
    kill(getpid(), SIGKILL);
    _exit(1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(WIFSIGNALED(status));
  CHECK(folder.empty());
}

TEST_CASE("spill: errors name what failed, and reading can be tried again") {
  const auto nowhere = SpillFile::create("/nonexistent/folder", "x", 1);
  REQUIRE_FALSE(nowhere.ok());
  CHECK(nowhere.status().error_class() == ErrorClass::kStorage);
  CHECK(nowhere.status().message().find("/nonexistent/folder") != std::string::npos);

  const Folder folder;
  const std::vector<char> bytes = numbers(1000);
  set_spill_faults(0, false);
  CHECK_FALSE(SpillFile::create(folder.path, bytes.data(), bytes.size()).ok());
  auto file = SpillFile::create(folder.path, bytes.data(), bytes.size());
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
