// Codec: lossless compression of a piece of a block, for links that are slower than it.
//
// Keys and values are numbers of two bytes. The high bytes of bfloat16 have a sign and most of the
// exponent, and few of them differ; the low bytes are nearly random. So a piece is split into two
// planes of bytes, and each plane is compressed by itself, or kept as it is where that saves less
// than a sixteenth.
//
// A codec pays where the link is slower than it. kMeasuredCodecs below says how fast that is here.
//
// Thread safety: a PieceCodec belongs to one thread; the functions are pure.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace hetero::backend {

enum class Codec : uint32_t { kNone = 0, kZstd = 1, kLz4 = 2 };

// "none", "zstd", "lz4"; nothing for any other name.
std::optional<Codec> codec_of(std::string_view name);
// Whether this build has its library.
bool has_codec(Codec codec);

class PieceCodec {
 public:
  PieceCodec();
  ~PieceCodec();
  PieceCodec(const PieceCodec&) = delete;
  PieceCodec& operator=(const PieceCodec&) = delete;

  // Appends the encoded piece to `out`. False, with `out` unchanged, if it would be at least
  // `most` bytes long, or this build lacks the codec.
  bool encode(Codec codec, std::span<const std::byte> piece, size_t most, std::vector<std::byte>& out);

  // Decodes one piece from the front of `encoded` into exactly `bytes` bytes. Returns how many
  // bytes of `encoded` it took; nothing if they are not such a piece. Any input is safe.
  std::optional<size_t> decode(Codec codec, std::span<const std::byte> encoded, std::byte* piece, size_t bytes);

 private:
  struct Contexts;
  size_t compress(Codec codec, const std::byte* from, size_t bytes, std::byte* to, size_t room);
  bool promising(Codec codec, const std::byte* plane, size_t bytes);
  bool decompress(Codec codec, const std::byte* from, size_t bytes, std::byte* to, size_t room);

  std::unique_ptr<Contexts> contexts_;
  std::vector<std::byte> planes_;
};

}  // namespace hetero::backend
