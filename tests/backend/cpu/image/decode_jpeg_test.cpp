// decode_jpeg: which files decode, and what is said of others. tests/python/host compares pixels
// with Pillow's and OpenCV's.

#include "backend/cpu/image/decode_jpeg.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "tests/catch/catch.h"

namespace hetero::backend::testing {
namespace {

// A grey image of 9 x 10 pixels, by Pillow.
constexpr std::string_view kGrey =
    "ffd8ffe000104a46494600010100000100010000ffdb0043000d090a0b0a080d0b0a0b0e0e0d0f13201513121213271c"
    "1e17202e2931302e292d2c333a4a3e333646372c2d405741464c4e525352323e5a615a50604a51524fffc0000b080009"
    "000a01011100ffc4001500010100000000000000000000000000000506ffc4001c100002020203000000000000000000"
    "0000000205220632414271ffda0008010100003f00231d8fd2a5c247d16bc0063bd0b84d17c3ffd9";
constexpr int64_t kHeight = 9;
constexpr int64_t kWidth = 10;

std::vector<uint8_t> grey_file() {
  std::vector<uint8_t> file;
  for (size_t i = 0; i < kGrey.size(); i += 2) {
    file.push_back(static_cast<uint8_t>(std::stoi(std::string(kGrey.substr(i, 2)), nullptr, 16)));
  }
  return file;
}

// Pixels with bytes behind them that nobody may write.
struct Pixels {
  static constexpr uint8_t kGuard = 0xA5;
  explicit Pixels(PixelOrder order) : bytes(static_cast<size_t>(kHeight * kWidth * channels_of(order) + 64), kGuard) {}
  bool has_guard() const {
    return std::all_of(bytes.end() - 64, bytes.end(), [](uint8_t byte) { return byte == kGuard; });
  }
  std::vector<uint8_t> bytes;
};

Status decode(const std::vector<uint8_t>& file, Pixels& pixels, PixelOrder order = PixelOrder::kGrey,
              Damage damage = Damage::kRefused) {
  return decode_jpeg(file, order, kHeight, kWidth, pixels.bytes.data(), damage);
}

}  // namespace

TEST_CASE("decode_jpeg: a file of grey pixels decodes to grey, and to equal colours") {
  if (!has_jpeg_decoder()) return;
  const std::vector<uint8_t> file = grey_file();
  const Result<JpegSize> size = read_jpeg_size(file);
  REQUIRE(size.ok());
  CHECK(size.value().height == kHeight);
  CHECK(size.value().width == kWidth);
  CHECK(size.value().channels == 1);
  Pixels grey(PixelOrder::kGrey);
  REQUIRE(decode(file, grey).ok());
  CHECK(std::vector<uint8_t>(grey.bytes.begin(), grey.bytes.begin() + 4) == std::vector<uint8_t>{1, 16, 36, 53});
  CHECK(std::accumulate(grey.bytes.begin(), grey.bytes.end() - 64, 0) == 10047);
  CHECK(grey.has_guard());
  for (const PixelOrder order : {PixelOrder::kRgb, PixelOrder::kBgr}) {
    Pixels colours(order);
    REQUIRE(decode(file, colours, order).ok());
    CHECK(colours.has_guard());
    for (size_t i = 0; i < 3 * static_cast<size_t>(kHeight * kWidth); ++i) {
      REQUIRE(colours.bytes[i] == grey.bytes[i / 3]);
    }
  }
}

TEST_CASE("decode_jpeg: a file that ends early is refused, wherever it ends") {
  if (!has_jpeg_decoder()) return;
  const std::vector<uint8_t> whole = grey_file();
  for (size_t length = 0; length < whole.size(); ++length) {
    Pixels pixels(PixelOrder::kGrey);
    const Status status = decode({whole.begin(), whole.begin() + static_cast<long>(length)}, pixels);
    INFO(length);
    REQUIRE(pixels.has_guard());
    // libjpeg 8 does without the mark of two bytes that ends a file, or its second one.
    if (status.ok() && length + 2 >= whole.size()) continue;
    REQUIRE_FALSE(status.ok());
    REQUIRE(status.error_class() == ErrorClass::kUsage);
    REQUIRE(status.message().starts_with("cannot decode the JPEG file: "));
  }
}

TEST_CASE("decode_jpeg: a damaged file is refused or decodes, and writes no byte beyond the pixels") {
  if (!has_jpeg_decoder()) return;
  std::mt19937 random(1);
  int refused = 0, allowed = 0;
  for (int i = 0; i < 4000; ++i) {
    std::vector<uint8_t> file = grey_file();
    for (uint32_t k = 0; k <= random() % 3; ++k) file[random() % file.size()] = static_cast<uint8_t>(random());
    Pixels pixels(PixelOrder::kRgb);
    const bool decodes = decode(file, pixels, PixelOrder::kRgb).ok();
    refused += !decodes;
    REQUIRE(pixels.has_guard());
    const bool decodes_damaged = decode(file, pixels, PixelOrder::kRgb, Damage::kAllowed).ok();
    allowed += decodes_damaged && !decodes;
    REQUIRE(pixels.has_guard());
    REQUIRE((decodes_damaged || !decodes));
  }
  CHECK(refused > 1000);
  CHECK(allowed > 20);
}

TEST_CASE("decode_jpeg: another size than the file's is refused with both sizes") {
  if (!has_jpeg_decoder()) return;
  Pixels pixels(PixelOrder::kGrey);
  const Status status = decode_jpeg(grey_file(), PixelOrder::kGrey, kWidth, kHeight, pixels.bytes.data());
  CHECK(status.message() == "cannot decode the JPEG file: it is 9 x 10 pixels, not 10 x 9");
  CHECK(std::ranges::count(pixels.bytes, Pixels::kGuard) == static_cast<long>(pixels.bytes.size()));
}

TEST_CASE("decode_jpeg: what is no JPEG file is refused") {
  Pixels pixels(PixelOrder::kGrey);
  const std::string text = "\x89PNG\r\n\x1a\n and so on";
  CHECK_FALSE(decode({text.begin(), text.end()}, pixels).ok());
  CHECK_FALSE(decode({}, pixels).ok());
  CHECK_FALSE(read_jpeg_size({}).ok());
}

}  // namespace hetero::backend::testing
