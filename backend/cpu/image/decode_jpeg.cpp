#include "backend/cpu/image/decode_jpeg.h"

#ifdef HETERO_WITH_JPEG

#include <dlfcn.h>

#include <csetjmp>
#include <cstddef>
#include <cstdio>

#include <jerror.h>
#include <jpeglib.h>

#endif

#include <string>

namespace hetero::backend {
namespace {

Status refused(const std::string& why) { return Status(ErrorClass::kUsage, "cannot decode the JPEG file: " + why); }

}  // namespace

#ifndef HETERO_WITH_JPEG

bool has_jpeg_decoder() { return false; }

Result<JpegSize> read_jpeg_size(std::span<const uint8_t> /*file*/) {
  return refused("this build has no libjpeg-turbo (Debian's libjpeg62-turbo-dev)");
}

Status decode_jpeg(std::span<const uint8_t> file, PixelOrder, int64_t, int64_t, uint8_t*, Damage) {
  return read_jpeg_size(file).status();
}

#else

namespace {

// The library is loaded when the first file comes. Debian's static one is not for shared libraries,
// and a package should not need it on a machine that decodes nothing.
struct Library {
  decltype(&jpeg_std_error) std_error = nullptr;
  decltype(&jpeg_CreateDecompress) create = nullptr;
  decltype(&jpeg_destroy_decompress) destroy = nullptr;
  decltype(&jpeg_mem_src) read_from = nullptr;
  decltype(&jpeg_read_header) read_header = nullptr;
  decltype(&jpeg_start_decompress) start = nullptr;
  decltype(&jpeg_read_scanlines) read_rows = nullptr;
  decltype(&jpeg_finish_decompress) finish = nullptr;
  bool complete = false;

  // As the header says of its interface.
  static constexpr const char* kName = JPEG_LIB_VERSION >= 80 ? "libjpeg.so.8" : "libjpeg.so.62";

  Library() {
    void* const handle = dlopen(kName, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) return;
    complete = find(handle, "jpeg_std_error", std_error) && find(handle, "jpeg_CreateDecompress", create) &&
               find(handle, "jpeg_destroy_decompress", destroy) && find(handle, "jpeg_mem_src", read_from) &&
               find(handle, "jpeg_read_header", read_header) && find(handle, "jpeg_start_decompress", start) &&
               find(handle, "jpeg_read_scanlines", read_rows) && find(handle, "jpeg_finish_decompress", finish);
  }

  template <typename Function>
  static bool find(void* handle, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(handle, name));
    return function != nullptr;
  }
};

const Library& library() {
  static const Library loaded;
  return loaded;
}

// Each scan of a progressive file goes over the whole image: a small file of very many would keep
// a core busy for hours.
constexpr int kMostScans = 500;

// libjpeg leaves by longjmp, past frames of its own only: what calls it has no destructors.
struct Decoder {
  jpeg_decompress_struct jpeg;  // the first: libjpeg knows no other address
  jpeg_error_mgr errors;
  jpeg_progress_mgr progress;
  std::jmp_buf failed;
  Damage damage = Damage::kRefused;
  char message[JMSG_LENGTH_MAX] = "";
};

[[noreturn]] void leave(j_common_ptr jpeg) {
  auto& decoder = *reinterpret_cast<Decoder*>(jpeg);
  if (decoder.message[0] == '\0') jpeg->err->format_message(jpeg, decoder.message);
  std::longjmp(decoder.failed, 1);
}

// Warnings that say that pixels are lost or wrong are errors, unless damage is allowed. Others are
// about bytes that nobody needs.
void note_message(j_common_ptr jpeg, int level) {
  if (level >= 0) return;
  switch (jpeg->err->msg_code) {
    case JWRN_JPEG_EOF:
      leave(jpeg);
    case JWRN_BOGUS_PROGRESSION:
    case JWRN_HIT_MARKER:
    case JWRN_HUFF_BAD_CODE:
    case JWRN_MUST_RESYNC:
      if (reinterpret_cast<Decoder*>(jpeg)->damage == Damage::kRefused) leave(jpeg);
      return;
    default:
      return;
  }
}

void count_scans(j_common_ptr jpeg) {
  auto& decoder = *reinterpret_cast<Decoder*>(jpeg);
  if (decoder.jpeg.input_scan_number <= kMostScans) return;
  std::snprintf(decoder.message, sizeof(decoder.message), "it has more than %d scans", kMostScans);
  leave(jpeg);
}

void open(Decoder& decoder, std::span<const uint8_t> file) {
  decoder.jpeg.err = library().std_error(&decoder.errors);
  decoder.errors.error_exit = &leave;
  decoder.errors.emit_message = &note_message;
  decoder.errors.output_message = [](j_common_ptr) {};
  library().create(&decoder.jpeg, JPEG_LIB_VERSION, sizeof(decoder.jpeg));
  decoder.progress = {};
  decoder.progress.progress_monitor = &count_scans;
  decoder.jpeg.progress = &decoder.progress;
  library().read_from(&decoder.jpeg, file.data(), static_cast<unsigned long>(file.size()));
  library().read_header(&decoder.jpeg, TRUE);
}

// False after an error.
bool read_header(Decoder& decoder, std::span<const uint8_t> file) {
  if (setjmp(decoder.failed) != 0) return false;
  open(decoder, file);
  return true;
}

bool read_pixels(Decoder& decoder, PixelOrder order, uint8_t* pixels) {
  if (setjmp(decoder.failed) != 0) return false;
  jpeg_decompress_struct& jpeg = decoder.jpeg;
  jpeg.out_color_space = order == PixelOrder::kGrey ? JCS_GRAYSCALE : order == PixelOrder::kRgb ? JCS_RGB : JCS_EXT_BGR;
  jpeg.dct_method = JDCT_ISLOW;
  jpeg.do_fancy_upsampling = TRUE;
  library().start(&jpeg);
  const size_t row_bytes = size_t{jpeg.output_width} * static_cast<size_t>(jpeg.output_components);
  while (jpeg.output_scanline < jpeg.output_height) {
    JSAMPROW row = pixels + row_bytes * jpeg.output_scanline;
    library().read_rows(&jpeg, &row, 1);
  }
  library().finish(&jpeg);
  return true;
}

// What of it says how the header reads. Its address must not change.
class JpegFile {
 public:
  explicit JpegFile(std::span<const uint8_t> file) {
    if (!library().complete) {
      status_ = refused(std::string("there is no ").append(Library::kName) + " (Debian's libjpeg62-turbo)");
    } else if (file.empty()) {
      status_ = refused("it is empty");
    } else if (!read_header(decoder_, file)) {
      status_ = error();
    }
  }
  ~JpegFile() {
    if (library().complete) library().destroy(&decoder_.jpeg);
  }
  JpegFile(const JpegFile&) = delete;
  JpegFile& operator=(const JpegFile&) = delete;

  const Status& status() const { return status_; }
  JpegSize size() const {
    return {.height = decoder_.jpeg.image_height,
            .width = decoder_.jpeg.image_width,
            .channels = decoder_.jpeg.num_components};
  }
  Status decode(PixelOrder order, uint8_t* pixels, Damage damage) {
    decoder_.damage = damage;
    return read_pixels(decoder_, order, pixels) ? Status() : error();
  }

 private:
  Status error() const { return refused(decoder_.message); }

  Decoder decoder_{};
  Status status_;
};

std::string text_of(int64_t height, int64_t width) {
  return std::to_string(height).append(" x ").append(std::to_string(width));
}

}  // namespace

bool has_jpeg_decoder() { return library().complete; }

Result<JpegSize> read_jpeg_size(std::span<const uint8_t> file) {
  const JpegFile jpeg(file);
  if (!jpeg.status().ok()) return jpeg.status();
  return jpeg.size();
}

Status decode_jpeg(std::span<const uint8_t> file, PixelOrder order, int64_t height, int64_t width, uint8_t* pixels,
                   Damage damage) {
  JpegFile jpeg(file);
  if (!jpeg.status().ok()) return jpeg.status();
  const JpegSize size = jpeg.size();
  if (size.height != height || size.width != width) {
    return refused("it is " + text_of(size.height, size.width) + " pixels, not " + text_of(height, width));
  }
  if (size.channels != 1 && size.channels != 3) {
    return refused(size.channels == 4 ? "its colours are CMYK"
                                      : "it has " + std::to_string(size.channels) + " components");
  }
  return jpeg.decode(order, pixels, damage);
}

#endif

}  // namespace hetero::backend
