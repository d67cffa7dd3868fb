// The promises of values and codecs: what is not right in every bit is not accepted.

#include "backend/tier/remote/block_value.h"

#include <map>
#include <optional>

#include "tests/backend/tier/remote/remote_fixture.h"

using namespace hetero;
using namespace hetero::backend;
using namespace hetero::backend::testing;

namespace {

using Bytes = std::vector<std::byte>;

Bytes bytes_of(const EncodedBlock& value) {
  Bytes bytes;
  for (const iovec& part : value.parts) {
    const auto* data = static_cast<const std::byte*>(part.iov_base);
    bytes.insert(bytes.end(), data, data + part.iov_len);
  }
  REQUIRE(bytes.size() == value.bytes);
  return bytes;
}

// Gives a value to a decoder in steps of at most `step` bytes, and checks that the decoder never
// asks for more than there is.
bool accepts(BlockDecoder& decoder, const RemoteBlock& block, const Bytes& bytes, size_t step, uint64_t announced) {
  decoder.begin(block, announced);
  size_t offset = 0;
  iovec parts[3];
  while (size_t count = decoder.next(parts)) {
    size_t asked = 0;
    for (size_t i = 0; i < count; ++i) {
      REQUIRE(parts[i].iov_len > 0);
      asked += parts[i].iov_len;
    }
    REQUIRE(offset + asked <= announced);
    size_t given = std::min({asked, step, bytes.size() - std::min(offset, bytes.size())});
    if (given == 0) break;
    const size_t taken = given;
    for (size_t i = 0; given > 0; ++i) {
      const size_t now = std::min(given, parts[i].iov_len);
      std::memcpy(parts[i].iov_base, bytes.data() + offset, now);
      offset += now;
      given -= now;
    }
    decoder.advance(taken);
  }
  return decoder.accepted();
}

bool accepts(BlockDecoder& decoder, const RemoteBlock& block, const Bytes& bytes) {
  return accepts(decoder, block, bytes, SIZE_MAX, bytes.size());
}

// Writes the checksum of a header that was changed.
void sign(Bytes& bytes, const BlockGeometry& geometry) {
  const size_t last = value_header_bytes(geometry) - 8;
  const uint64_t sum = checksum(bytes.data(), last);
  std::memcpy(bytes.data() + last, &sum, sizeof(sum));
}

constexpr BlockKey kFingerprint{1, 2};
const Codec kCodecs[] = {Codec::kNone, Codec::kZstd, Codec::kLz4};

// A block that every codec makes smaller.
void make_packable(Blocks& blocks, const BlockGeometry& geometry) {
  for (int64_t piece = 0; piece < geometry.pieces; ++piece) {
    std::memset(blocks.piece(0, piece), 7, static_cast<size_t>(geometry.piece_bytes) * 4 / 5);
  }
}

}  // namespace

TEST_CASE("value: it arrives in steps of any size", "[remote]") {
  for (const BlockGeometry& geometry : {BlockGeometry{3, 4, 100}, BlockGeometry{4, 2, 4096}}) {
    for (const Codec codec : kCodecs) {
      Blocks blocks(geometry, 1);
      make_packable(blocks, geometry);
      BlockEncoder encoder(geometry, kFingerprint, codec);
      const Bytes bytes = bytes_of(encoder.encode(blocks[0]));
      REQUIRE((bytes.size() < most_value_bytes(geometry)) == (codec != Codec::kNone && has_codec(codec)));
      BlockDecoder decoder(geometry, kFingerprint);
      for (const size_t step : {1, 2, 3, 7, 64, 99, 100, 101, 1000, 100000}) {
        Blocks copies(blocks, nullptr);
        REQUIRE(accepts(decoder, copies[0], bytes, step, bytes.size()));
        REQUIRE(blocks.equal(0, copies));
      }
    }
  }
}

TEST_CASE("value: without a codec its parts are the block's own memory", "[remote]") {
  const BlockGeometry geometry{16, 3, 5000};
  Blocks blocks(geometry, 1);
  BlockEncoder encoder(geometry, kFingerprint, Codec::kNone);
  const EncodedBlock& value = encoder.encode(blocks[0]);
  REQUIRE(value.parts.size() == 4);
  for (int64_t piece = 0; piece < 3; ++piece) {
    REQUIRE(value.parts[static_cast<size_t>(piece) + 1].iov_base == blocks.piece(0, piece));
  }
}

TEST_CASE("value: no flipped bit and no missing or added byte is accepted", "[remote]") {
  const BlockGeometry geometry{3, 2, 90};
  for (const Codec codec : kCodecs) {
    Blocks blocks(geometry, 1);
    make_packable(blocks, geometry);
    BlockEncoder encoder(geometry, kFingerprint, codec);
    Bytes bytes = bytes_of(encoder.encode(blocks[0]));
    BlockDecoder decoder(geometry, kFingerprint);
    Blocks copies(blocks, nullptr);
    RemoteBlock asked = copies[0];
    for (const bool with_tokens : {true, false}) {
      if (!with_tokens) asked.tokens = {};
      REQUIRE(accepts(decoder, asked, bytes));
      for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
        bytes[bit / 8] ^= std::byte{1} << (bit % 8);
        const bool accepted = accepts(decoder, asked, bytes);
        if (accepted) INFO("bit " << bit);
        // A codec may ignore a bit, as zstd does with some of its header: the block is right then.
        if (accepted) REQUIRE((codec != Codec::kNone && blocks.equal(0, copies)));
        bytes[bit / 8] ^= std::byte{1} << (bit % 8);
      }
      for (size_t length = 0; length < bytes.size(); ++length) {
        const Bytes shorter(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(length));
        REQUIRE_FALSE(accepts(decoder, asked, shorter));                          // the store says so
        REQUIRE_FALSE(accepts(decoder, asked, shorter, SIZE_MAX, bytes.size()));  // the store does not
      }
      Bytes longer = bytes;
      longer.resize(bytes.size() + 1);
      REQUIRE_FALSE(accepts(decoder, asked, longer));
      for (const uint64_t huge : {uint64_t{1} << 31, uint64_t{1} << 40, UINT64_MAX}) {
        REQUIRE_FALSE(accepts(decoder, asked, bytes, SIZE_MAX, huge));
      }
    }
  }
}

TEST_CASE("value: a header with a right checksum is compared with what was asked for, field by field", "[remote]") {
  const BlockGeometry geometry{3, 2, 90};
  for (const Codec codec : kCodecs) {
    Blocks blocks(geometry, 1);
    make_packable(blocks, geometry);
    BlockEncoder encoder(geometry, kFingerprint, codec);
    const Bytes bytes = bytes_of(encoder.encode(blocks[0]));
    BlockDecoder decoder(geometry, kFingerprint);
    Blocks copies(blocks, nullptr);
    std::mt19937_64 random(3);
    const size_t header = value_header_bytes(geometry);
    int64_t accepted = 0;
    for (int round = 0; round < 20000; ++round) {
      Bytes changed = bytes;
      const size_t place = random() % (header - 8);
      changed[place] = static_cast<std::byte>(random());
      if (random() % 4 == 0) changed[random() % changed.size()] = static_cast<std::byte>(random());
      sign(changed, geometry);
      if (accepts(decoder, copies[0], changed)) {
        REQUIRE(blocks.equal(0, copies));
        ++accepted;
      }
    }
    // What is accepted changed nothing, or unused bytes only.
    REQUIRE(accepted < 2000);
  }
}

TEST_CASE("value: a damaged payload behind a header that matches it is no block", "[remote]") {
  // The length is right, the header is signed: only the codec and the checksums of pieces stand
  // between the caller and wrong bytes.
  const BlockGeometry geometry{3, 3, 3000};
  for (const Codec codec : {Codec::kZstd, Codec::kLz4}) {
    if (!has_codec(codec)) continue;
    Blocks blocks(geometry, 1);
    make_packable(blocks, geometry);
    BlockEncoder encoder(geometry, kFingerprint, codec);
    const Bytes bytes = bytes_of(encoder.encode(blocks[0]));
    const size_t header = value_header_bytes(geometry);
    BlockDecoder decoder(geometry, kFingerprint);
    Blocks copies(blocks, nullptr);
    std::mt19937_64 random(5);
    for (int round = 0; round < 5000; ++round) {
      Bytes changed = bytes;
      const uint64_t kind = random() % 3;
      if (kind == 0) changed.resize(header + random() % (changed.size() - header) + 1);
      if (kind == 1) changed.resize(std::min<size_t>(changed.size() + random() % 100, most_value_bytes(geometry) - 1));
      const size_t changes = 1 + random() % 4;
      for (size_t i = 0; i < changes; ++i) {
        changed[header + random() % (changed.size() - header)] = static_cast<std::byte>(random());
      }
      const uint64_t payload = changed.size() - header;
      std::memcpy(changed.data() + 88, &payload, sizeof(payload));
      sign(changed, geometry);
      if (accepts(decoder, copies[0], changed)) REQUIRE(blocks.equal(0, copies));
    }
  }
}

TEST_CASE("value: random bytes are no block", "[remote]") {
  const BlockGeometry geometry{3, 2, 90};
  BlockDecoder decoder(geometry, kFingerprint);
  Blocks copies(geometry, 1);
  std::mt19937_64 random(7);
  for (int round = 0; round < 5000; ++round) {
    Bytes bytes(random() % 600);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    if (bytes.size() > 12 && round % 2 == 0) std::memcpy(bytes.data(), "HETEROKV\1\0\0\0", 12);
    REQUIRE_FALSE(accepts(decoder, copies[0], bytes));
  }
}

TEST_CASE("codec: every piece comes back, and is encoded only where that is shorter", "[remote]") {
  std::mt19937_64 random(11);
  for (const Codec codec : {Codec::kZstd, Codec::kLz4}) {
    if (!has_codec(codec)) {
      WARN("this build lacks a codec");
      continue;
    }
    PieceCodec pieces;
    for (const size_t bytes : {0, 1, 2, 3, 15, 16, 17, 1000, 1001, 65536, 1 << 20}) {
      for (int kind = 0; kind < 4; ++kind) {
        Bytes piece(bytes);
        if (kind == 1) {
          for (std::byte& byte : piece) byte = static_cast<std::byte>(random());
        } else if (kind >= 2) {
          fill_like_keys(piece.data(), bytes, random());
        }
        if (kind == 3) std::fill(piece.begin() + static_cast<ptrdiff_t>(bytes / 3), piece.end(), std::byte{3});
        Bytes out(5, std::byte{9});
        const bool encoded = pieces.encode(codec, piece, bytes, out);
        if (!encoded) {
          REQUIRE(out.size() == 5);
          REQUIRE(((kind == 1) || bytes < 100 || codec == Codec::kLz4));
          continue;
        }
        REQUIRE(out.size() - 5 < bytes);
        Bytes back(bytes);
        const auto encoded_bytes = std::span<const std::byte>(out).subspan(5);
        REQUIRE(pieces.decode(codec, encoded_bytes, back.data(), bytes) == encoded_bytes.size());
        REQUIRE(back == piece);
        REQUIRE_FALSE(pieces.decode(codec, encoded_bytes.first(encoded_bytes.size() - 1), back.data(), bytes));
        Bytes other(bytes + 2);
        REQUIRE_FALSE(pieces.decode(codec, encoded_bytes, other.data(), bytes + 2));
        if (bytes > 2) REQUIRE_FALSE(pieces.decode(codec, encoded_bytes, other.data(), bytes - 2));
      }
    }
  }
}

TEST_CASE("codec: what this build or this version does not know decodes nothing", "[remote]") {
  PieceCodec pieces;
  Bytes some(100), out;
  REQUIRE_FALSE(pieces.encode(Codec::kNone, some, 100, out));
  REQUIRE_FALSE(pieces.encode(static_cast<Codec>(77), some, 100, out));
  REQUIRE_FALSE(pieces.decode(Codec::kNone, some, some.data(), 10));
  REQUIRE_FALSE(pieces.decode(static_cast<Codec>(77), some, some.data(), 10));
  REQUIRE_FALSE(has_codec(static_cast<Codec>(77)));
}

// Prints how much the codecs save and how fast they are on data like keys and values.
TEST_CASE("codec: figures", "[.figures]") {
  constexpr size_t kBytes = 64 << 10;
  constexpr size_t kPieces = 256;
  Bytes data(kBytes * kPieces);
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal;
  for (const char* kind : {"normal", "product", "float16"}) {
    for (size_t i = 0; i < data.size(); i += 2) {
      const float number = kind[0] == 'p' ? normal(random) * normal(random) : normal(random);
      uint16_t half;
      if (kind[0] == 'f') {
        const _Float16 rounded = static_cast<_Float16>(number);
        std::memcpy(&half, &rounded, 2);
      } else {
        uint32_t bits;
        std::memcpy(&bits, &number, sizeof(bits));
        half = static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
      }
      std::memcpy(data.data() + i, &half, 2);
    }
    for (const Codec codec : {Codec::kZstd, Codec::kLz4}) {
      PieceCodec pieces;
      double encode_seconds = 1e9, decode_seconds = 1e9;
      size_t stored = 0;
      for (int round = 0; round < 5; ++round) {
        std::vector<Bytes> out(kPieces);
        auto start = steady_clock::now();
        for (size_t i = 0; i < kPieces; ++i) pieces.encode(codec, {data.data() + i * kBytes, kBytes}, kBytes, out[i]);
        encode_seconds = std::min(encode_seconds, seconds_since(start));
        Bytes back(kBytes);
        start = steady_clock::now();
        stored = 0;
        for (size_t i = 0; i < kPieces; ++i) {
          if (!out[i].empty()) pieces.decode(codec, out[i], back.data(), kBytes);
          stored += out[i].empty() ? kBytes : out[i].size();
        }
        decode_seconds = std::min(decode_seconds, seconds_since(start));
      }
      WARN(kind << ", " << (codec == Codec::kZstd ? "zstd" : "lz4") << ": "
                << static_cast<double>(data.size()) / static_cast<double>(stored) << "x, encode "
                << static_cast<double>(data.size()) / encode_seconds / 1e6 << " MB/s, decode "
                << static_cast<double>(data.size()) / decode_seconds / 1e6 << " MB/s");
    }
  }
}
