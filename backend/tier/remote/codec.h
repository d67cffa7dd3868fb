// Codec: lossless compression of a piece of a block, for links that are slower than it.
//
// Keys and values are numbers of two bytes. The high bytes of bfloat16 have a sign and most of the
// exponent, and few of them differ; the low bytes are nearly random. So a piece is split into two
// planes of bytes, and each plane is compressed by itself, or kept as it is where that saves less
// than a sixteenth.
//
// Measured on one core of a Xeon at 2.5 GHz, with pieces of 64 KiB
// (hetero_backend_tests "codec: figures"):
//
//   data                               codec  ratio  encode      decode
//   bfloat16, normal numbers           zstd   1.45   290 MB/s    1600 MB/s
//   bfloat16, products of normal ones  zstd   1.41   370 MB/s    2060 MB/s
//   bfloat16, products of normal ones  LZ4    1.13   390 MB/s    2970 MB/s
//   float16, normal numbers            zstd   1.18   1060 MB/s   2540 MB/s
//
// So zstd saves time of a get() over links below some 500 MB/s, of a put() below some 100 MB/s, and
// a third of the store's memory anywhere. On faster links it costs time. LZ4 needs repeated bytes,
// which keys and values lack; it is for blocks that are partly empty.
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
