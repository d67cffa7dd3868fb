// Planes of bytes, and zstd or LZ4 over each.

#include "backend/tier/remote/codec.h"

#include <cstring>
#include <limits>

#ifdef HETERO_WITH_ZSTD
#include <zstd.h>
#endif
#ifdef HETERO_WITH_LZ4
#include <lz4.h>
#endif

namespace hetero::backend {
namespace {

// An encoded piece: the stored lengths of both planes, then the planes. A plane that is stored with
// its own length is not compressed.
struct PlaneLengths {
  uint32_t low = 0;
  uint32_t high = 0;
};

constexpr int kZstdLevel = 1;
// A long plane is compressed only if some slices of it, taken together, get shorter.
constexpr size_t kSlices = 4;
constexpr size_t kSliceBytes = 1024;
constexpr size_t kLongPlane = 16 << 10;

// What a plane must be shorter than, compressed.
size_t worth(size_t bytes) { return bytes - bytes / 16; }

size_t low_bytes(size_t bytes) { return bytes - bytes / 2; }  // an odd byte at the end is a low one

void split(const std::byte* from, size_t bytes, std::byte* low, std::byte* high) {
  const size_t pairs = bytes / 2;
  for (size_t i = 0; i < pairs; ++i) {
    low[i] = from[2 * i];
    high[i] = from[2 * i + 1];
  }
  if (bytes % 2 != 0) low[pairs] = from[bytes - 1];
}

void join(const std::byte* low, const std::byte* high, size_t bytes, std::byte* to) {
  const size_t pairs = bytes / 2;
  for (size_t i = 0; i < pairs; ++i) {
    to[2 * i] = low[i];
    to[2 * i + 1] = high[i];
  }
  if (bytes % 2 != 0) to[bytes - 1] = low[pairs];
}

}  // namespace

std::optional<Codec> codec_of(std::string_view name) {
  if (name == "none") return Codec::kNone;
  if (name == "zstd") return Codec::kZstd;
  if (name == "lz4") return Codec::kLz4;
  return std::nullopt;
}

bool has_codec(Codec codec) {
  switch (codec) {
    case Codec::kNone:
      return true;
    case Codec::kZstd:
#ifdef HETERO_WITH_ZSTD
      return true;
#else
      return false;
#endif
    case Codec::kLz4:
#ifdef HETERO_WITH_LZ4
      return true;
#else
      return false;
#endif
  }
  return false;
}

// Contexts of zstd are made when they are first needed.
struct PieceCodec::Contexts {
#ifdef HETERO_WITH_ZSTD
  ~Contexts() {
    ZSTD_freeCCtx(compression);
    ZSTD_freeDCtx(decompression);
  }
  ZSTD_CCtx* compression = nullptr;
  ZSTD_DCtx* decompression = nullptr;
#endif
};

PieceCodec::PieceCodec() : contexts_(std::make_unique<Contexts>()) {}
PieceCodec::~PieceCodec() = default;

// Returns the compressed length, or 0 if that is more than `room`.
size_t PieceCodec::compress([[maybe_unused]] Codec codec, [[maybe_unused]] const std::byte* from,
                            [[maybe_unused]] size_t bytes, [[maybe_unused]] std::byte* to,
                            [[maybe_unused]] size_t room) {
#ifdef HETERO_WITH_ZSTD
  if (codec == Codec::kZstd) {
    if (contexts_->compression == nullptr) contexts_->compression = ZSTD_createCCtx();
    if (contexts_->compression == nullptr) return 0;
    const size_t length = ZSTD_compressCCtx(contexts_->compression, to, room, from, bytes, kZstdLevel);
    return ZSTD_isError(length) ? 0 : length;
  }
#endif
#ifdef HETERO_WITH_LZ4
  if (codec == Codec::kLz4 && bytes <= LZ4_MAX_INPUT_SIZE) {
    const int length = LZ4_compress_default(reinterpret_cast<const char*>(from), reinterpret_cast<char*>(to),
                                            static_cast<int>(bytes), static_cast<int>(room));
    return length > 0 ? static_cast<size_t>(length) : 0;
  }
#endif
  return 0;
}

// False unless `from` decompresses to exactly `room` bytes.
bool PieceCodec::decompress([[maybe_unused]] Codec codec, [[maybe_unused]] const std::byte* from,
                            [[maybe_unused]] size_t bytes, [[maybe_unused]] std::byte* to,
                            [[maybe_unused]] size_t room) {
#ifdef HETERO_WITH_ZSTD
  if (codec == Codec::kZstd) {
    if (contexts_->decompression == nullptr) contexts_->decompression = ZSTD_createDCtx();
    if (contexts_->decompression == nullptr) return false;
    const size_t length = ZSTD_decompressDCtx(contexts_->decompression, to, room, from, bytes);
    return !ZSTD_isError(length) && length == room;
  }
#endif
#ifdef HETERO_WITH_LZ4
  if (codec == Codec::kLz4 && room <= LZ4_MAX_INPUT_SIZE && bytes <= LZ4_MAX_INPUT_SIZE) {
    const int length = LZ4_decompress_safe(reinterpret_cast<const char*>(from), reinterpret_cast<char*>(to),
                                           static_cast<int>(bytes), static_cast<int>(room));
    return length >= 0 && static_cast<size_t>(length) == room;
  }
#endif
  return false;
}

bool PieceCodec::promising(Codec codec, const std::byte* plane, size_t bytes) {
  if (bytes < kLongPlane) return true;
  std::byte slices[kSlices * kSliceBytes];
  std::byte room[kSlices * kSliceBytes];
  const size_t distance = (bytes - kSliceBytes) / (kSlices - 1);
  for (size_t i = 0; i < kSlices; ++i) std::memcpy(slices + i * kSliceBytes, plane + i * distance, kSliceBytes);
  return compress(codec, slices, sizeof(slices), room, worth(sizeof(slices))) != 0;
}

bool PieceCodec::encode(Codec codec, std::span<const std::byte> piece, size_t most, std::vector<std::byte>& out) {
  if (codec == Codec::kNone || !has_codec(codec)) return false;
  if (piece.size() > std::numeric_limits<int32_t>::max()) return false;
  planes_.resize(piece.size());
  const size_t plane_bytes[2] = {low_bytes(piece.size()), piece.size() / 2};
  std::byte* const planes[2] = {planes_.data(), planes_.data() + plane_bytes[0]};
  split(piece.data(), piece.size(), planes[0], planes[1]);

  const size_t start = out.size();
  out.resize(start + sizeof(PlaneLengths) + piece.size());
  uint32_t lengths[2];
  size_t end = start + sizeof(PlaneLengths);
  for (int plane = 0; plane < 2; ++plane) {
    const size_t bytes = plane_bytes[plane];
    size_t length = 0;
    if (promising(codec, planes[plane], bytes)) {
      length = compress(codec, planes[plane], bytes, out.data() + end, worth(bytes));
    }
    if (length == 0 || length >= bytes) {
      if (bytes > 0) std::memcpy(out.data() + end, planes[plane], bytes);
      length = bytes;
    }
    lengths[plane] = static_cast<uint32_t>(length);
    end += length;
  }
  if (end - start >= most) {
    out.resize(start);
    return false;
  }
  const PlaneLengths header{lengths[0], lengths[1]};
  std::memcpy(out.data() + start, &header, sizeof(header));
  out.resize(end);
  return true;
}

std::optional<size_t> PieceCodec::decode(Codec codec, std::span<const std::byte> encoded, std::byte* piece,
                                         size_t bytes) {
  if (codec == Codec::kNone || !has_codec(codec)) return std::nullopt;
  PlaneLengths header;
  if (encoded.size() < sizeof(header)) return std::nullopt;
  std::memcpy(&header, encoded.data(), sizeof(header));
  const size_t lengths[2] = {header.low, header.high};
  const size_t plane_bytes[2] = {low_bytes(bytes), bytes / 2};
  planes_.resize(bytes);
  std::byte* const room[2] = {planes_.data(), planes_.data() + plane_bytes[0]};
  const std::byte* planes[2];
  size_t end = sizeof(header);
  for (int plane = 0; plane < 2; ++plane) {
    if (lengths[plane] > plane_bytes[plane] || lengths[plane] > encoded.size() - end) return std::nullopt;
    const std::byte* stored = encoded.data() + end;
    if (lengths[plane] == plane_bytes[plane]) {
      planes[plane] = stored;
    } else {
      if (!decompress(codec, stored, lengths[plane], room[plane], plane_bytes[plane])) return std::nullopt;
      planes[plane] = room[plane];
    }
    end += lengths[plane];
  }
  join(planes[0], planes[1], bytes, piece);
  return end;
}

}  // namespace hetero::backend
