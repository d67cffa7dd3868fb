// BlockValue: the bytes of a block in a remote store.
//
// A value is a header and a payload. The header says whose block it is: the fingerprint, the key,
// the parent's key, the tokens, the geometry, the codec, the length of the payload, a checksum of
// each decoded piece, and a checksum of the header itself. Its length follows from the geometry.
// The payload is the pieces without their padding, one behind the other; or the pieces encoded
// (codec.h), if that is shorter. So the length of a value tells whether it is encoded, and pieces
// that are not can go straight from a socket to their places, before the header was looked at.
//
//   BlockEncoder encoder(geometry, fingerprint, Codec::kNone);
//   const EncodedBlock& value = encoder.encode(block);     // parts in the block's memory
//   BlockDecoder decoder(geometry, fingerprint);
//   decoder.begin(block, bytes);                           // the block that is asked for
//   while (size_t count = decoder.next(parts)) decoder.advance(read(parts, count));
//   if (decoder.accepted()) ...
//
// The decoder trusts nothing: neither the lengths nor the contents of what arrives. A value is
// accepted if all of it arrived and each part is what was asked for. The memory of a block that is
// not accepted may have been written.
//
// Values are of machines with the same byte order (little-endian).
//
// Thread safety: an encoder or decoder belongs to one thread.

#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/tier/block_geometry.h"
#include "backend/tier/block_key.h"
#include "backend/tier/remote/codec.h"
#include "backend/tier/remote_tier.h"

namespace hetero::backend {

// Of the header of a value.
size_t value_header_bytes(const BlockGeometry& geometry);
// Of a value whose pieces are not encoded, which is the longest one.
uint64_t most_value_bytes(const BlockGeometry& geometry);

struct EncodedBlock {
  std::span<const iovec> parts;  // the header, then the payload
  uint64_t bytes = 0;            // of all parts
};

class BlockEncoder {
 public:
  BlockEncoder(const BlockGeometry& geometry, const BlockKey& fingerprint, Codec codec);

  // The value of a block. It refers to the block's and the encoder's memory, until the next call.
  // REQUIRES: block.tokens.size() <= geometry.tokens.
  const EncodedBlock& encode(const RemoteBlock& block);

 private:
  const BlockGeometry geometry_;
  const BlockKey fingerprint_;
  const Codec codec_;
  std::vector<std::byte> header_;
  std::vector<std::byte> payload_;  // where it is encoded
  std::vector<iovec> parts_;
  EncodedBlock value_;
  PieceCodec piece_codec_;
};

class BlockDecoder {
 public:
  BlockDecoder(const BlockGeometry& geometry, const BlockKey& fingerprint);

  // A value of so many bytes will arrive for this block. Its tokens and parent are compared unless
  // block.tokens is empty.
  void begin(const RemoteBlock& block, uint64_t bytes);
  // Where the next bytes go: as many parts as there is room for. 0 if it is complete or rejected.
  size_t next(std::span<iovec> parts) const;
  // So many of them arrived. REQUIRES: no more than next() asked for.
  void advance(size_t bytes);
  // Something is wrong; the rest need not be read.
  bool rejected() const { return state_ == State::kRejected; }
  bool accepted() const { return state_ == State::kAccepted; }

 private:
  enum class State { kHeader, kPieces, kEncoded, kAccepted, kRejected };
  bool check_header();
  void check_pieces();
  void decode_pieces();

  const BlockGeometry geometry_;
  const BlockKey fingerprint_;
  const uint64_t header_bytes_;
  RemoteBlock block_;
  uint64_t bytes_ = 0;    // of the value
  uint64_t arrived_ = 0;  // of them
  int64_t checked_ = 0;   // pieces
  Codec codec_ = Codec::kNone;
  State state_ = State::kRejected;
  std::vector<std::byte> header_;
  std::vector<std::byte> payload_;  // where it is encoded
  PieceCodec piece_codec_;
};

}  // namespace hetero::backend
