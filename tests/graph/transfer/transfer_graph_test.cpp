#include "graph/transfer/transfer_graph.h"

#include <string>

#include "tests/catch/catch.h"

namespace hetero::graph {
namespace {

TransferOp op_of(TransferType type, BlockExtents source, BlockExtents destination, int64_t position = 0) {
  return {.type = type, .source = std::move(source), .destination = std::move(destination), .position = position};
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("neighbouring blocks become one extent") {
  BlockExtents extents;
  for (const int64_t block : {4, 5, 6, 2, 3, 9}) append_block(extents, block);
  CHECK(extents == BlockExtents{{4, 3}, {2, 2}, {9, 1}});
  CHECK(block_count(extents) == 6);
}

TEST_CASE("a local GET is a valid graph, and its two fragments are independent") {
  TransferOpGraph graph;
  const uint32_t held = graph.add_op(op_of(TransferType::kH2D, {{0, 4}}, {{8, 4}}));
  const uint32_t read = graph.add_op(op_of(TransferType::kDisk2H, {{20, 2}}, {{4, 2}}, 4));
  const uint32_t rest = graph.add_op(op_of(TransferType::kH2D, {{4, 2}}, {{12, 2}}, 4));
  const Status unordered = graph.verify();
  REQUIRE(!unordered.ok());
  CHECK(contains(unordered.message(), "transfers 1 (DISK2H) and 2 (H2D) touch block 4 of the host tier"));
  graph.add_dependency(read, rest);
  graph.add_dependency(read, rest);
  CHECK(graph.ops()[rest].predecessors == std::vector<uint32_t>{read});
  CHECK(graph.verify().ok());
  CHECK(graph.ops()[held].predecessors.empty());
  CHECK(graph.blocks() == 6);
  CHECK(graph.usable_prefix() == 0);
  CHECK(contains(graph.dump(), "1 -> 2;"));
  CHECK(contains(graph.dump(), "DISK2H 20-21 to 4-5\\nPENDING"));
}

TEST_CASE("what is wrong with a graph is one sentence") {
  const auto refusal = [](TransferOp op) {
    TransferOpGraph graph;
    graph.add_op(std::move(op));
    const Status status = graph.verify();
    return status.ok() ? "" : status.message();
  };
  CHECK(contains(refusal(op_of(TransferType::kH2D, {{0, 2}}, {{0, 3}})), "takes 2 blocks to 3"));
  CHECK(contains(refusal(op_of(TransferType::kH2D, {}, {})), "takes 0 blocks"));
  CHECK(contains(refusal(op_of(TransferType::kD2H, {{-1, 2}}, {{0, 2}})), "2 blocks from -1"));
  CHECK(contains(refusal(op_of(TransferType::kD2H, {{1, 0}}, {{0, 0}})), "0 blocks from 1"));
  CHECK(contains(refusal(op_of(TransferType::kD2H, {{0, 2}}, {{3, 1}, {3, 1}})), "touch block 3"));
  TransferOpGraph cycle;
  cycle.add_op(op_of(TransferType::kH2D, {{0, 1}}, {{0, 1}}));
  cycle.add_op(op_of(TransferType::kH2D, {{1, 1}}, {{1, 1}}));
  cycle.add_dependency(0, 1);
  cycle.add_dependency(1, 0);
  CHECK(contains(cycle.verify().message(), "cycle"));
}

TEST_CASE("transfers of different layers of a block need no order") {
  TransferOpGraph graph;
  for (int32_t layer = 0; layer < 4; layer += 2) {
    TransferOp read = op_of(TransferType::kDisk2H, {{0, 1}}, {{0, 1}});
    TransferOp upload = op_of(TransferType::kH2D, {{0, 1}}, {{0, 1}});
    read.layer_id = upload.layer_id = layer;
    read.layer_granularity = upload.layer_granularity = 2;
    const uint32_t before = graph.add_op(std::move(read));
    graph.add_dependency(before, graph.add_op(std::move(upload)));
  }
  CHECK(graph.verify().ok());
}

}  // namespace hetero::graph
