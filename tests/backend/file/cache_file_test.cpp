// What is kept for the next process: it reads what was written for its machine, and nothing else.

#include "backend/file/cache_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/catch/catch.h"

namespace hetero::backend {
namespace {

struct Folder {
  Folder() {
    char name[] = "/tmp/hetero_cache_file_XXXXXX";
    path = mkdtemp(name);
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string path;
};

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The refusal without the path.
std::string refusal(const CacheFile& file) {
  const Result<std::string> content = file.read();
  if (content.ok()) return "none";
  CHECK(content.status().error_class() == ErrorClass::kStorage);
  return content.status().message().substr(file.path().size() + 1);
}

TEST_CASE("cache file: what was written is read, in folders that are made for the user alone") {
  const Folder folder;
  const CacheFile file(folder.path + "/a/b/costs", "costs 1", "cpu\nand gpu");
  CHECK(refusal(file) == "cannot be read");
  for (const std::string& content : {std::string("one\ntwo\n"), std::string(), std::string("\0\n\xff", 3)}) {
    REQUIRE(file.write(content).ok());
    CHECK(file.read().value() == content);
  }
  struct stat facts {};
  REQUIRE(stat(file.path().c_str(), &facts) == 0);
  CHECK((facts.st_mode & 0777) == 0600);
  REQUIRE(stat((folder.path + "/a").c_str(), &facts) == 0);
  CHECK((facts.st_mode & 0777) == 0700);
  CHECK(bytes_of(file.path()).starts_with("hetero costs 1; cpu and gpu; 3 bytes; "));
  // Nothing else is left in the folder.
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path + "/a/b"), {}) == 1);
}

TEST_CASE("cache file: another version, another machine and every damage is refused") {
  const Folder folder;
  const std::string path = folder.path + "/costs";
  const CacheFile file(path, "costs 1", "cpu");
  REQUIRE(file.write("one\ntwo\n").ok());
  CHECK(refusal({path, "costs 2", "cpu"}) == "is of another version or machine");
  CHECK(refusal({path, "costs 1", "cp"}) == "is of another version or machine");
  const std::string whole = bytes_of(path);
  const auto put = [&path](const std::string& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  };
  for (size_t kept = 0; kept < whole.size(); ++kept) {
    put(whole.substr(0, kept));
    REQUIRE_FALSE(file.read().ok());
  }
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string changed = whole;
    changed[at] = static_cast<char>(changed[at] ^ 0x10);
    put(changed);
    REQUIRE_FALSE(file.read().ok());
  }
  put(whole + "x");
  CHECK(refusal(file) == "is damaged");
  REQUIRE(file.write("new").ok());
  CHECK(file.read().value() == "new");
}

TEST_CASE("cache file: what cannot be a file is refused, and no path keeps nothing") {
  const Folder folder;
  CHECK(refusal({folder.path, "costs 1", "cpu"}) == "is no file of this user");
  const CacheFile nowhere("/proc/none/costs", "costs 1", "cpu");
  CHECK(nowhere.write("one").error_class() == ErrorClass::kStorage);
  CHECK(refusal(nowhere) == "cannot be read");
  const CacheFile none("", "costs 1", "cpu");
  CHECK(none.write("one").ok());
  CHECK_FALSE(none.read().ok());
}

TEST_CASE("cache file: the user's folder is the environment's") {
  const char* const variable = std::getenv("XDG_CACHE_HOME");
  const std::string before = variable == nullptr ? "" : variable;
  setenv("XDG_CACHE_HOME", "/somewhere", 1);
  CHECK(CacheFile::folder() == "/somewhere/hetero");
  const std::string path = CacheFile::default_path("linear 4", "cpu");
  CHECK(path.starts_with("/somewhere/hetero/linear-4-"));
  CHECK(path != CacheFile::default_path("linear 4", "another cpu"));
  setenv("XDG_CACHE_HOME", "relative", 1);
  CHECK(CacheFile::folder() != "relative/hetero");
  variable == nullptr ? unsetenv("XDG_CACHE_HOME") : setenv("XDG_CACHE_HOME", before.c_str(), 1);
}

}  // namespace
}  // namespace hetero::backend
