// Graph: recorded nodes over buffers, in program order. Recording makes it and planning reads it.
//
// A Graph is four flat arrays of plain data. A Buffer is a storage as one trace sees it. A Node is
// one operator call. Its operands are the tensors that it reads and writes, in the order of the
// operator's arguments, followed by the outputs that it defines. There are no edges: the order
// between nodes follows from the bytes that they touch, as `conflicts()` says:
//
//   node b must run after an earlier node a
//     <=>  they touch overlapping bytes of one buffer and one of them writes.
//
// The recorder's pending trace becomes a Graph when it is cut.
//
// Thread safety: none; one owner at a time.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "backend/base/status.h"
#include "backend/device/device.h"
#include "graph/ir/layout.h"
#include "graph/ir/op.h"
#include "graph/ir/window.h"

namespace hetero::graph {

using BufferId = uint32_t;
inline constexpr BufferId kNoBuffer = UINT32_MAX;

enum class Access : uint8_t {
  kRead,
  kUpdate,  // reads and writes the window
  kWrite,   // overwrites the window without reading it
  kDefine,  // overwrites the whole buffer; the first access of a buffer born in this graph
};

// Bits that a tensor carries in addition to its window; kernels must see them.
enum OperandBits : uint8_t { kConjugate = 1, kNegative = 2, kWrappedNumber = 4 };

struct Operand {
  BufferId buffer;
  WindowId window;
  Access access;
  uint8_t bits;
  uint16_t reserved = 0;  // operands are compared as bytes

  bool reads() const { return access <= Access::kUpdate; }
  bool writes() const { return access != Access::kRead; }
};

// Where the user asked a node to run: nowhere, or on one device.
// The first accelerator; see prefer() for others.
enum class Preference : uint8_t { kAuto, kCpu, kAccelerator };
constexpr Preference prefer(backend::DeviceIndex device) { return static_cast<Preference>(device + 1); }
// REQUIRES: not kAuto.
constexpr backend::DeviceIndex device_of(Preference preference) {
  return static_cast<backend::DeviceIndex>(static_cast<int>(preference) - 1);
}

struct Node {
  OpId op;
  uint32_t first_operand;
  uint16_t operand_count;
  uint16_t output_count;  // the last `output_count` operands are defined by this node
  uint32_t attribute_offset;
  uint32_t attribute_bytes;
  uint32_t sequence;  // position in the whole program, for messages
  Preference preference;

  // Whether this byte of Graph::attributes is one of the node's.
  bool has_attribute(uint64_t place) const {
    return place >= attribute_offset && place - attribute_offset < attribute_bytes;
  }
};
static_assert(sizeof(Node) <= 64);

static_assert(sizeof(Operand) == 12);

struct Buffer {
  uint64_t bytes;  // of the block
  // Devices on which the bytes are valid before the graph runs; 0 for a buffer born in the graph
  // or never written.
  backend::DeviceSet valid_on;
  // Somebody can read the bytes after the graph has run.
  bool escapes;
  // A weight: earlier programs have read the same bytes, so later ones probably will. A hint for
  // placement.
  bool steady = false;
  // The host reads the bytes after the graph has run, so it must get them.
  bool fetched = false;
  // The buffer whose block this one takes over, with that one's bytes in place: a concatenation
  // that grows in place.
  BufferId takes = kNoBuffer;
  // Of the storage in the block. Operands' windows are of the block.
  Layout layout{};
};
static_assert(sizeof(Buffer) == 32);

struct Graph {
  std::vector<Buffer> buffers;
  std::vector<Node> nodes;
  std::vector<Operand> operands;
  std::vector<std::byte> attributes;
  const WindowTable* windows = nullptr;

  const Operand* operands_of(const Node& node) const { return operands.data() + node.first_operand; }
  void clear() {
    buffers.clear();
    nodes.clear();
    operands.clear();
    attributes.clear();
  }
};

// Whether `b` must stay after the earlier `a`.
bool conflicts(const WindowTable& windows, const Operand& a, const Operand& b);

// Whether `operand` replaces every byte of `buffer` without reading it, so that earlier writes are
// not seen afterwards.
bool overwrites(const WindowTable& windows, const Operand& operand, const Buffer& buffer);

// Text, one line a node, that parse_graph reads back to an equal Graph:
//   b0: 64 bytes, on cpu
//   b1: 64 bytes, escapes, rows of 16 every 32, takes b0
//   n0: aten::add.Tensor(read b0:f32[4,4], read b0:f32[4,4]) -> b1:f32[4,4] {attributes in hex}
std::string to_string(const Graph& graph);
Result<Graph> parse_graph(std::string_view text, WindowTable& windows);

}  // namespace hetero::graph
