// The bytes of a value, written and verified.

#include "backend/tier/remote/block_value.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace hetero::backend {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr char kMagic[8] = {'H', 'E', 'T', 'E', 'R', 'O', 'K', 'V'};
constexpr uint32_t kVersion = 1;

// The first part of a header. Behind it lie the tokens, padded with zeros to the geometry's number
// of them and to 8 bytes; the checksums of the pieces; and the checksum of all of that.
struct HeaderStart {
  char magic[8];
  uint32_t version;
  uint32_t codec;
  BlockKey fingerprint;
  BlockKey key;
  BlockKey parent;
  int64_t block_tokens;
  int64_t pieces;
  int64_t piece_bytes;
  uint64_t payload_bytes;
  uint32_t tokens;  // how many the block has
  uint32_t zero;
};
static_assert(sizeof(HeaderStart) == 104 && sizeof(BlockKey) == 16);

size_t token_bytes(const BlockGeometry& geometry) { return (static_cast<size_t>(geometry.tokens) * 4 + 7) / 8 * 8; }
size_t checksums_offset(const BlockGeometry& geometry) { return sizeof(HeaderStart) + token_bytes(geometry); }
uint64_t pieces_bytes(const BlockGeometry& geometry) {
  return static_cast<uint64_t>(geometry.pieces) * static_cast<uint64_t>(geometry.piece_bytes);
}

iovec part_of(const std::byte* data, size_t bytes) { return {const_cast<std::byte*>(data), bytes}; }

}  // namespace

size_t value_header_bytes(const BlockGeometry& geometry) {
  return checksums_offset(geometry) + (static_cast<size_t>(geometry.pieces) + 1) * sizeof(uint64_t);
}

uint64_t most_value_bytes(const BlockGeometry& geometry) {
  return value_header_bytes(geometry) + pieces_bytes(geometry);
}

BlockEncoder::BlockEncoder(const BlockGeometry& geometry, const BlockKey& fingerprint, Codec codec)
    : geometry_(geometry), fingerprint_(fingerprint), codec_(codec), header_(value_header_bytes(geometry)) {}

const EncodedBlock& BlockEncoder::encode(const RemoteBlock& block) {
  const auto pieces = static_cast<size_t>(geometry_.pieces);
  const auto piece_bytes = static_cast<size_t>(geometry_.piece_bytes);
  const auto stride = static_cast<size_t>(geometry_.piece_stride());
  const uint64_t raw_bytes = pieces_bytes(geometry_);

  payload_.clear();
  bool encoded = codec_ != Codec::kNone && has_codec(codec_);
  for (size_t piece = 0; encoded && piece < pieces; ++piece) {
    // A value is encoded only if it gets shorter: the lengths of both kinds never meet.
    encoded =
        piece_codec_.encode(codec_, {block.data + piece * stride, piece_bytes}, raw_bytes - payload_.size(), payload_);
  }

  HeaderStart start{};
  std::memcpy(start.magic, kMagic, sizeof(kMagic));
  start.version = kVersion;
  start.codec = static_cast<uint32_t>(encoded ? codec_ : Codec::kNone);
  start.fingerprint = fingerprint_;
  start.key = block.key;
  start.parent = block.parent;
  start.block_tokens = geometry_.tokens;
  start.pieces = geometry_.pieces;
  start.piece_bytes = geometry_.piece_bytes;
  start.payload_bytes = encoded ? payload_.size() : raw_bytes;
  start.tokens = static_cast<uint32_t>(block.tokens.size());

  std::fill(header_.begin(), header_.end(), std::byte{0});
  std::memcpy(header_.data(), &start, sizeof(start));
  if (!block.tokens.empty()) {
    std::memcpy(header_.data() + sizeof(start), block.tokens.data(), block.tokens.size_bytes());
  }
  std::byte* place = header_.data() + checksums_offset(geometry_);
  const auto append = [&place](uint64_t number) {
    std::memcpy(place, &number, sizeof(number));
    place += sizeof(number);
  };
  for (size_t piece = 0; piece < pieces; ++piece) append(checksum(block.data + piece * stride, piece_bytes));
  append(checksum(header_.data(), header_.size() - sizeof(uint64_t)));

  parts_.clear();
  parts_.push_back(part_of(header_.data(), header_.size()));
  if (encoded) {
    parts_.push_back(part_of(payload_.data(), payload_.size()));
  } else if (stride == piece_bytes) {
    parts_.push_back(part_of(block.data, static_cast<size_t>(raw_bytes)));
  } else {
    for (size_t piece = 0; piece < pieces; ++piece) parts_.push_back(part_of(block.data + piece * stride, piece_bytes));
  }
  value_ = {parts_, header_.size() + start.payload_bytes};
  return value_;
}

BlockDecoder::BlockDecoder(const BlockGeometry& geometry, const BlockKey& fingerprint)
    : geometry_(geometry),
      fingerprint_(fingerprint),
      header_bytes_(value_header_bytes(geometry)),
      header_(value_header_bytes(geometry)) {}

void BlockDecoder::begin(const RemoteBlock& block, uint64_t bytes) {
  block_ = block;
  bytes_ = bytes;
  arrived_ = 0;
  checked_ = 0;
  codec_ = Codec::kNone;
  const bool possible = bytes > header_bytes_ && bytes <= most_value_bytes(geometry_);
  state_ = possible ? State::kHeader : State::kRejected;
}

size_t BlockDecoder::next(std::span<iovec> parts) const {
  if (state_ == State::kAccepted || state_ == State::kRejected || parts.empty()) return 0;
  size_t count = 0;
  uint64_t offset = arrived_;
  if (offset < header_bytes_) {
    parts[count++] = part_of(header_.data() + offset, static_cast<size_t>(header_bytes_ - offset));
    offset = header_bytes_;
  }
  offset -= header_bytes_;
  if (state_ == State::kEncoded) {
    parts[count++] = part_of(payload_.data() + offset, static_cast<size_t>(bytes_ - header_bytes_ - offset));
    return count;
  }
  // The length tells that the pieces are not encoded, so they can follow the header at once.
  if (bytes_ != most_value_bytes(geometry_)) return count;
  const auto piece_bytes = static_cast<uint64_t>(geometry_.piece_bytes);
  const auto stride = static_cast<uint64_t>(geometry_.piece_stride());
  uint64_t piece = offset / piece_bytes;
  uint64_t within = offset % piece_bytes;
  if (stride == piece_bytes) {
    if (count < parts.size()) {
      parts[count++] = part_of(block_.data + offset, static_cast<size_t>(pieces_bytes(geometry_) - offset));
    }
    return count;
  }
  for (; count < parts.size() && piece < static_cast<uint64_t>(geometry_.pieces); ++piece, within = 0) {
    parts[count++] = part_of(block_.data + piece * stride + within, static_cast<size_t>(piece_bytes - within));
  }
  return count;
}

void BlockDecoder::advance(size_t bytes) {
  arrived_ += bytes;
  if (state_ == State::kHeader && arrived_ >= header_bytes_) {
    if (!check_header()) {
      state_ = State::kRejected;
    } else if (codec_ == Codec::kNone) {
      state_ = State::kPieces;
    } else {
      payload_.resize(static_cast<size_t>(bytes_ - header_bytes_));
      state_ = State::kEncoded;
    }
  }
  if (state_ == State::kPieces) check_pieces();
  if (state_ == State::kEncoded && arrived_ == bytes_) decode_pieces();
}

bool BlockDecoder::check_header() {
  const size_t last = header_.size() - sizeof(uint64_t);
  uint64_t expected;
  std::memcpy(&expected, header_.data() + last, sizeof(expected));
  if (checksum(header_.data(), last) != expected) return false;
  HeaderStart start;
  std::memcpy(&start, header_.data(), sizeof(start));
  if (std::memcmp(start.magic, kMagic, sizeof(kMagic)) != 0 || start.version != kVersion) return false;
  if (start.fingerprint != fingerprint_ || start.key != block_.key) return false;
  if (BlockGeometry{start.block_tokens, start.pieces, start.piece_bytes} != geometry_) return false;
  if (start.payload_bytes != bytes_ - header_bytes_) return false;
  if (start.tokens > static_cast<uint64_t>(geometry_.tokens)) return false;
  if (!block_.tokens.empty()) {
    if (start.parent != block_.parent || start.tokens != block_.tokens.size()) return false;
    if (std::memcmp(header_.data() + sizeof(start), block_.tokens.data(), block_.tokens.size_bytes()) != 0) {
      return false;
    }
  }
  const bool encoded = bytes_ < most_value_bytes(geometry_);
  codec_ = static_cast<Codec>(start.codec);
  return encoded ? codec_ != Codec::kNone && has_codec(codec_) : codec_ == Codec::kNone;
}

// Verifies each piece as soon as it is complete, while it is still in the processor's cache.
void BlockDecoder::check_pieces() {
  const auto complete = static_cast<int64_t>((arrived_ - header_bytes_) / static_cast<uint64_t>(geometry_.piece_bytes));
  const std::byte* sums = header_.data() + checksums_offset(geometry_);
  for (; checked_ < complete; ++checked_) {
    uint64_t expected;
    std::memcpy(&expected, sums + checked_ * static_cast<int64_t>(sizeof(expected)), sizeof(expected));
    const std::byte* piece = block_.data + checked_ * geometry_.piece_stride();
    if (checksum(piece, static_cast<size_t>(geometry_.piece_bytes)) != expected) {
      state_ = State::kRejected;
      return;
    }
  }
  if (checked_ == geometry_.pieces) state_ = State::kAccepted;
}

void BlockDecoder::decode_pieces() {
  std::span<const std::byte> rest = payload_;
  for (int64_t piece = 0; piece < geometry_.pieces; ++piece) {
    const std::optional<size_t> taken = piece_codec_.decode(
        codec_, rest, block_.data + piece * geometry_.piece_stride(), static_cast<size_t>(geometry_.piece_bytes));
    if (!taken) {
      state_ = State::kRejected;
      return;
    }
    rest = rest.subspan(*taken);
  }
  if (!rest.empty()) {
    state_ = State::kRejected;
    return;
  }
  arrived_ = most_value_bytes(geometry_);
  check_pieces();
}

}  // namespace hetero::backend
