#include "backend/file/cache_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <utility>

#include "backend/base/fnv.h"
#include "backend/file/file.h"

namespace hetero::backend {
namespace {

std::string hexadecimal(uint64_t number) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(number));
  return text;
}

Status refused(const std::string& path, const char* why) { return Status(ErrorClass::kStorage, path + ' ' + why); }

// Only the user may enter those that are made.
void make_folders(const std::string& path) {
  for (size_t at = path.find('/', 1); at != std::string::npos; at = path.find('/', at + 1)) {
    (void)mkdir(path.substr(0, at).c_str(), 0700);
  }
}

}  // namespace

CacheFile::CacheFile(std::string path, const std::string& kind, const std::string& machine)
    : path_(std::move(path)), subject_("hetero " + kind + "; " + machine) {
  std::ranges::replace_if(
      subject_, [](unsigned char c) { return c < ' '; }, ' ');
}

std::string CacheFile::folder() {
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && cache[0] == '/') return std::string(cache) + "/hetero";
  const char* const home = std::getenv("HOME");
  if (home != nullptr && home[0] == '/') return std::string(home) + "/.cache/hetero";
  return "";
}

std::string CacheFile::default_path(const std::string& kind, const std::string& machine) {
  const std::string folder = CacheFile::folder();
  if (folder.empty()) return "";
  std::string name = kind;
  std::ranges::replace(name, ' ', '-');
  return folder + '/' + name + '-' + hexadecimal(fnv(machine)) + ".txt";
}

std::string CacheFile::first_line(std::string_view content) const {
  return subject_ + "; " + std::to_string(content.size()) + " bytes; " + hexadecimal(fnv(content)) + '\n';
}

Result<std::string> CacheFile::read() const {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path_.c_str(), "re"), std::fclose);
  struct stat facts {};
  if (file == nullptr || fstat(fileno(file.get()), &facts) != 0) return refused(path_, "cannot be read");
  if (!S_ISREG(facts.st_mode) || facts.st_uid != geteuid()) return refused(path_, "is no file of this user");
  const auto bytes = static_cast<size_t>(facts.st_size);
  if (bytes > kMostBytes) return refused(path_, "is too large");
  std::string text(bytes, '\0');
  text.resize(std::fread(text.data(), 1, bytes, file.get()));
  if (!text.starts_with(subject_ + "; ")) return refused(path_, "is of another version or machine");
  const size_t line = text.find('\n') + 1;
  const std::string_view content = std::string_view(text).substr(line);
  if (line == 0 || text.compare(0, line, first_line(content)) != 0) return refused(path_, "is damaged");
  text.erase(0, line);
  return text;
}

Status CacheFile::write(std::string_view content) const {
  if (path_.empty()) return Status();
  const std::string line = first_line(content);
  if (line.size() + content.size() > kMostBytes) return refused(path_, "would be too large");
  make_folders(path_);
  Result<std::unique_ptr<NewFile>> file = NewFile::create(path_, 0600);
  if (!file.ok()) return file.status();
  Status status = file.value()->write(line);
  if (status.ok()) status = file.value()->write(content);
  // Not flushed to the disk: a file that a power failure has damaged is as good as none.
  return status.ok() ? file.value()->commit(false) : status;
}

}  // namespace hetero::backend
