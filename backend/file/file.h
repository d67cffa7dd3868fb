// MappedFile: a file's bytes in memory, read when they are touched. NewFile: a file that appears as
// a whole or not at all.
//
// Errors are kStorage: one sentence with the path and the system's message.
//
// Thread safety: a MappedFile is immutable; a NewFile belongs to one thread.
//
// Shortening a mapped file under its readers ends the process (SIGBUS), as with every mapped file.
// NewFile never does that: it puts another file in the place of the old one, which readers keep.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "backend/base/status.h"

namespace hetero::backend {

class MappedFile {
 public:
  // `read_now`: all of it will be read at once.
  static Result<std::shared_ptr<MappedFile>> open(const std::string& path, bool read_now);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::string_view bytes() const { return {static_cast<const char*>(data_), size_}; }
  // Whether the bytes are on a disk, so that memory need not hold them.
  bool is_on_disk() const { return on_disk_; }
  const std::string& path() const { return path_; }

 private:
  friend class NewFile;
  MappedFile(std::string path, void* data, size_t size, bool on_disk, uint64_t device, uint64_t number)
      : path_(std::move(path)), data_(data), size_(size), on_disk_(on_disk), device_(device), number_(number) {}
  bool is(int file) const;  // this file, opened

  const std::string path_;
  void* const data_;
  const size_t size_;
  const bool on_disk_;
  const uint64_t device_;  // with `number_`, which file of the system it is
  const uint64_t number_;
};

// Takes what pages lie within these bytes of a MappedFile out of the process's memory, until
// somebody reads them. False where the system refuses, because the process has locked its memory.
bool drop_pages(const void* bytes, size_t count);

class NewFile {
 public:
  // Nothing appears at `path` before commit(); without it, the former file stays. If `path` is a
  // link, its target is made or replaced. Errors: kStorage, also if there is something that is not
  // a file, such as a pipe.
  static Result<std::unique_ptr<NewFile>> create(const std::string& path, unsigned permissions = 0666);
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  Status write(std::string_view bytes);
  // The first bytes of another file. Where the file system can, both files share them.
  Status copy(const MappedFile& from, size_t bytes);
  uint64_t size() const { return size_; }
  // Puts it in its place; `on_disk`: a power failure a moment later does not harm it.
  Status commit(bool on_disk = true);

 private:
  NewFile(std::string path, std::string temporary, int file)
      : path_(std::move(path)), temporary_(std::move(temporary)), file_(file) {}
  Status failed(const char* what) const;

  const std::string path_;
  const std::string temporary_;  // beside it
  const int file_;
  uint64_t size_ = 0;
  bool committed_ = false;
};

}  // namespace hetero::backend
