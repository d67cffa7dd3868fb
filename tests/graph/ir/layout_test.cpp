// Blocks with gaps: windows see in them what they see in the storage, and a buffer can be made in
// the block of another.

#include "graph/ir/layout.h"

#include <functional>
#include <numeric>

#include "graph/verify/verify.h"
#include "tests/catch/catch.h"
#include "tests/graph/fixtures/program.h"

namespace hetero::graph::testing {
namespace {

using backend::kCpu;

// Calls `visit` with the offset of each element that the two windows see.
void walk(const Window& a, const Window& b, const std::function<void(int64_t, int64_t)>& visit) {
  std::vector<int64_t> index(static_cast<size_t>(a.rank));
  for (int64_t i = 0; i < a.numel; ++i) {
    const auto offset = [&](const Window& window) {
      return std::inner_product(index.begin(), index.end(), window.strides().begin(), window.offset);
    };
    visit(offset(a), offset(b));
    for (size_t d = index.size(); d-- > 0 && ++index[d] == a.sizes()[d];) index[d] = 0;
  }
}

WindowId placed(WindowTable& windows, const std::string& text, const Layout& layout) {
  const WindowId id = parse_window(text, windows);
  REQUIRE(id != kNoWindow);
  return place(windows, id, layout);
}

// b0 [4, 3] in rows of 3 every 8 floats, and one more entry for each row.
struct Growing : Program {
  Growing() {
    input(32);
    graph.buffers[from].layout = {12, 32};
    added = input(4);
    grown = empty(32);
    graph.buffers[grown].layout = {16, 32};
    graph.buffers[grown].takes = from;
    escape(grown);
    Operand result = operand(grown, Access::kDefine, {4, 4}, {8, 1}, 0);
    add(test_ops().join,
        {operand(from, Access::kRead, {4, 3}, {8, 1}, 0), operand(added, Access::kRead, {4, 1}, {1, 1}, 0), result});
    plan_ = plan(cpu_options());
    expected_ = interpret();
  }

  // The plan of the program as it was made, with `bindings`.
  Results run_bound() {
    Results results;
    results.bindings = std::move(bindings);
    Executor executor(test_devices());
    results.status = executor.run(graph, plan_, pointers(results.bindings), results.counts);
    read_values(results, test_devices());
    return results;
  }

  void check_grown(const Results& results) const {
    for (size_t row = 0; row < 4; ++row) {
      for (size_t i = 0; i < 4; ++i)
        CHECK((*results.values[grown])[row * 8 + i] == (*expected_.values[grown])[row * 8 + i]);
    }
  }

  static constexpr BufferId from = 0;
  BufferId added;
  BufferId grown;
  std::vector<Binding> bindings;

 private:
  Plan plan_;
  Results expected_;
};

}  // namespace

TEST_CASE("layout: a window sees the same elements in a block with gaps") {
  std::mt19937 random(7);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  int seen = 0;
  for (int round = 0; round < 20000; ++round) {
    WindowTable windows;
    const int64_t length = 1 + below(12);
    const int64_t pitch = length + 1 + below(6);
    std::vector<int64_t> sizes(static_cast<size_t>(below(4)));
    std::vector<int64_t> strides(sizes.size());
    for (size_t d = 0; d < sizes.size(); ++d) {
      sizes[d] = below(5);
      strides[d] = below(3) == 0 ? length * below(4) : below(length + 2);
    }
    const WindowId id = windows.intern(parse_dtype("f32"), sizes, strides, below(3 * length));
    const auto bytes = [](int64_t elements) { return static_cast<uint64_t>(elements) * sizeof(float); };
    const WindowId in_block = place(windows, id, {bytes(length), bytes(pitch)});
    if (in_block == kNoWindow) continue;
    ++seen;
    walk(windows[id], windows[in_block],
         [&](int64_t offset, int64_t there) { REQUIRE(there == offset / length * pitch + offset % length); });
  }
  CHECK(seen > 5000);
}

TEST_CASE("layout: what can be seen in a block with gaps, and what cannot") {
  WindowTable windows;
  const Layout layout = rows_apart(24, 40);
  CHECK(!rows_apart(24, 24).has_gaps());
  CHECK(layout.block_bytes(4 * 24) == 160);
  CHECK(Layout().block_bytes(96) == 96);
  const auto text = [&](const std::string& window) {
    const WindowId id = placed(windows, window, layout);
    return id == kNoWindow ? std::string("none") : to_string(windows[id]);
  };
  CHECK(text("f32[4,6]") == "f32[4,6]{10,1}+0");
  CHECK(text("f32[4,3,2]") == "f32[4,3,2]{10,2,1}+0");
  CHECK(text("f32[3,4]{1,6}+8") == "f32[3,4]{1,10}+12");
  CHECK(text("f32[2,2]{12,3}+1") == "f32[2,2]{20,3}+1");
  CHECK(text("f32[6]{1}+6") == "f32[6]{1}+10");
  CHECK(text("i64[4,3]") == "i64[4,3]{5,1}+0");
  CHECK(text("f32[7]{0}+11") == "f32[7]{0}+15");
  CHECK(text("f32[0,9]") == "f32[0,9]");
  CHECK(text("f32[]") == "f32[]");
  for (const std::string window : {"f32[24]", "f32[3]{1}+5", "f32[4,2]{4,1}+0", "f32[2,7]{12,1}+0", "c128[3]"}) {
    CHECK(text(window) == "none");
  }
  const WindowId whole = parse_window("f32[24]", windows);
  CHECK(place(windows, whole, Layout()) == whole);

  const std::vector<float> block = {1, 2, 0, 3, 4, 0};
  std::vector<float> storage(4);
  copy_rows(storage.data(), block.data(), 16, {8, 12});
  CHECK(storage == std::vector<float>{1, 2, 3, 4});
  copy_rows(storage.data(), block.data(), 16, Layout());
  CHECK(storage == std::vector<float>{1, 2, 0, 3});
}

TEST_CASE("layout: a graph with rows apart prints, and parses back") {
  const std::string text =
      "b0: 128 bytes, on cpu, rows of 12 every 32\n"
      "b1: 128 bytes, escapes, rows of 16 every 32, takes b0\n";
  WindowTable windows;
  Result<Graph> graph = parse_graph(text, windows);
  REQUIRE(graph.ok());
  CHECK(to_string(graph.value()) == text);
  for (const std::string wrong : {"rows of 12", "rows of 0 every 4", "rows of 8 every 8", "takes", "takes n1"}) {
    CHECK(!parse_graph("b0: 128 bytes, " + wrong + "\n", windows).ok());
  }
}

TEST_CASE("layout: a buffer is made in the block of another") {
  Growing program;
  program.bindings = program.bind(test_devices());
  const void* const block = program.bindings[program.from].blocks[kCpu].data();
  const Results results = program.run_bound();
  REQUIRE(results.status.ok());
  CHECK(results.bindings[program.grown].blocks[kCpu].data() == block);
  CHECK(results.bindings[program.grown].layout == Layout{16, 32});
  CHECK(!results.bindings[program.from].blocks[kCpu]);
  CHECK(results.bindings[program.from].valid_on == 0);
  program.check_grown(results);
}

TEST_CASE("layout: a block that is too small is not taken, and the result is the same") {
  Growing program;
  program.bindings = program.bind(test_devices());
  const void* const block = program.bindings[program.from].blocks[kCpu].data();
  program.graph.buffers[program.grown].bytes += 4096;
  const Results results = program.run_bound();
  REQUIRE(results.status.ok());
  CHECK(results.bindings[program.grown].blocks[kCpu].data() != block);
  program.check_grown(results);
}

TEST_CASE("layout: what takes lost bytes is lost with them") {
  Growing program;
  program.bindings = program.bind(test_devices());
  program.bindings[program.from].error = Status(ErrorClass::kKernel, "lost");
  const Results results = program.run_bound();
  CHECK(!results.status.ok());
  CHECK(!results.bindings[program.grown].error.ok());
  CHECK(results.bindings[program.grown].valid_on == 0);
}

TEST_CASE("verify: who takes a block is alone with it") {
  const auto legal = [](const std::function<void(Growing&)>& change) {
    Growing program;
    change(program);
    return verify_graph(program.graph).ok();
  };
  CHECK(legal([](Growing&) {}));
  CHECK(!legal([](Growing& p) { p.escape(p.from); }));
  CHECK(!legal([](Growing& p) { p.graph.buffers[p.grown].escapes = false; }));
  CHECK(!legal([](Growing& p) { p.graph.buffers[p.grown].takes = 17; }));
  CHECK(!legal([](Growing& p) { p.graph.buffers[p.grown].bytes = 129; }));
  CHECK(!legal([](Growing& p) { p.graph.buffers[p.from].layout = Layout(); }));
  CHECK(!legal([](Growing& p) { p.graph.buffers[p.from].valid_on = 0; }));
  CHECK(!legal([](Growing& p) { p.add(test_ops().pointwise, {p.update(p.from)}); }));
  CHECK(!legal([](Growing& p) { p.add(test_ops().pointwise, {p.update(p.grown)}); }));
  CHECK(!legal([](Growing& p) {
    const BufferId other = p.define(test_ops().copy, 32, {p.read(p.from)});
    p.escape(other);
    p.graph.buffers[other].takes = p.from;
  }));
  CHECK(legal([](Growing& p) { p.escape(p.define(test_ops().copy, 32, {p.read(p.from)})); }));
}

}  // namespace hetero::graph::testing
