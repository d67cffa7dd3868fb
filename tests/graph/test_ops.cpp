#include "tests/graph/test_ops.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "graph/lowering.h"
#include "tests/graph/remote_kernel.h"

namespace hetero::graph::testing {
namespace {

std::atomic<int> effects{0};

constexpr backend::Block::Release kFree = [](void*, void* data, size_t) { std::free(data); };

// The address of element `i`, in row-major order of the window.
float* element(void* data, const Window& window, int64_t i) {
  int64_t position = window.offset;
  for (int d = window.rank; d-- > 0;) {
    position += i % window.dims[d] * window.dims[window.rank + d];
    i /= window.dims[d];
  }
  return static_cast<float*>(data) + position;
}

void compute(const Invocation& call) {
  const Node& node = *call.node;
  std::vector<void*> data(call.data, call.data + node.operand_count);
  for (int k = 0; k < node.operand_count; ++k) {
    if (data[k] != nullptr) continue;
    const Window& window = (*call.windows)[call.operands[k].window];
    const size_t bytes = static_cast<size_t>(window.last_byte) + (window.last_byte == 0 ? 1 : 0);
    call.brought[k] = backend::Block::adopt(std::malloc(bytes), bytes, kFree, nullptr);
    data[k] = call.brought[k].data();
  }
  float constant = 1.0f;
  if (node.attribute_bytes == sizeof(float)) std::memcpy(&constant, call.attributes, sizeof(float));
  for (int k = 0; k < node.operand_count; ++k) {
    if (!call.operands[k].writes()) continue;
    const Window& written = (*call.windows)[call.operands[k].window];
    for (int64_t i = 0; i < written.numel; ++i) {
      float value = constant;
      float factor = 0.5f;
      for (int r = 0; r < node.operand_count; ++r) {
        const Window& window = (*call.windows)[call.operands[r].window];
        if (!call.operands[r].reads() || window.numel == 0) continue;
        value += factor * *element(data[r], window, i % window.numel);
        factor *= 0.5f;
      }
      *element(data[k], written, i) = value;
    }
  }
}

void count_effect(const Invocation& call) {
  compute(call);
  ++effects;
}

void throw_error(const Invocation&) { throw std::runtime_error("broken kernel"); }

void compute_and_throw(const Invocation& call) {
  compute(call);
  throw std::runtime_error("broken kernel");
}

// --- Operators with lowerings

const Window& window_of(const Invocation& call, int k) { return (*call.windows)[call.operands[k].window]; }

// The address of the element that point `i` of `space` reads, the window being broadcast to it.
const float* broadcast_element(void* data, const Window& window, const Window& space, int64_t i) {
  int64_t position = window.offset;
  for (int d = space.rank; d-- > 0;) {
    const int64_t index = i % space.dims[d];
    i /= space.dims[d];
    const int k = d - space.rank + window.rank;
    if (k >= 0 && window.dims[k] != 1) position += index * window.dims[window.rank + k];
  }
  return static_cast<const float*>(data) + position;
}

float map_entry(const float* inputs, int count, float constant) {
  float value = constant;
  float factor = 0.5f;
  for (int k = 0; k < count; ++k) {
    value += factor * inputs[k];
    factor *= 0.5f;
  }
  return value;
}

template <int count>
void map_block(void* out, const void* const* in, const backend::Number* numbers, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    float inputs[4] = {};
    for (int k = 0; k < count; ++k) inputs[k] = static_cast<const float*>(in[k])[i];
    static_cast<float*>(out)[i] = map_entry(inputs, count, numbers[0].f32);
  }
}

float attribute_of(const std::byte* attributes) {
  float constant = 0;
  std::memcpy(&constant, attributes, sizeof(float));
  return constant;
}

int written_operand(const Operand* operands) {
  int k = 0;
  while (!operands[k].writes()) ++k;
  return k;
}

void run_map(const Invocation& call) {
  const int out = written_operand(call.operands);
  const Window& space = window_of(call, out);
  std::vector<float> results;
  for (int64_t i = 0; i < space.numel; ++i) {
    float inputs[4] = {};
    int count = 0;
    for (int k = 0; k < call.node->operand_count; ++k) {
      if (!call.operands[k].reads()) continue;
      inputs[count++] = *broadcast_element(call.data[k], window_of(call, k), space, i);
    }
    results.push_back(map_entry(inputs, count, attribute_of(call.attributes)));
  }
  for (int64_t i = 0; i < space.numel; ++i) *element(call.data[out], space, i) = results[static_cast<size_t>(i)];
}

backend::Number number_of(float value) {
  backend::Number number{.bits = 0};
  number.f32 = value;
  return number;
}

bool lower_map(const LowerRequest& request, Lowering& lowering) {
  constexpr backend::MapFunction kMaps[] = {map_block<0>, map_block<1>, map_block<2>, map_block<3>, map_block<4>};
  const DType f32 = parse_dtype("f32");
  Lowering::Value map{.kind = Lowering::Value::Kind::kMap, .dtype = f32, .number_count = 1};
  for (int k = 0; k < request.node->operand_count; ++k) {
    if (!request.operands[k].reads()) continue;
    if (map.input_count == 4) return false;
    map.inputs[map.input_count++] = lowering.operand(k, f32);
  }
  map.map = kMaps[map.input_count];
  lowering.numbers.push_back(number_of(attribute_of(request.attributes)));
  lowering.values.push_back(map);
  lowering.output(written_operand(request.operands), static_cast<Lowering::Ref>(lowering.values.size() - 1));
  return true;
}

// Sums bits without regard to order, so that it does not matter how the engine splits a row.
constexpr backend::Reducer kDigest{
    .state_bytes = sizeof(uint32_t),
    .begin = [](void* state) { *static_cast<uint32_t*>(state) = 0; },
    .add =
        [](void* state, const void* in, int64_t n, int64_t index) {
          for (int64_t i = 0; i < n; ++i) {
            uint32_t bits = 0;
            std::memcpy(&bits, static_cast<const float*>(in) + i, sizeof(bits));
            *static_cast<uint32_t*>(state) += (bits ^ bits >> 15) * (2 * static_cast<uint32_t>(index + i) + 1);
          }
        },
    .merge = [](void* state,
                const void* later) { *static_cast<uint32_t*>(state) += *static_cast<const uint32_t*>(later); },
    .finish =
        [](const void* state, void* out) {
          const uint32_t digest = *static_cast<const uint32_t*>(state);
          *static_cast<float*>(out) = static_cast<float>((digest ^ digest >> 16) & 0xffff) / 65536.0f;
        }};

uint64_t reduced_dims(const Window& in, const Window& out) {
  uint64_t reduced = 0;
  for (int d = 0; d < in.rank; ++d) {
    if (out.rank == in.rank ? out.dims[d] == 1 && in.dims[d] != 1 : d >= out.rank) reduced |= uint64_t{1} << d;
  }
  return reduced;
}

int64_t row_of(const Window& in, uint64_t reduced, int64_t i) {
  int64_t row = 0;
  int64_t rows = 1;
  for (int d = in.rank; d-- > 0;) {
    if ((reduced >> d & 1) == 0) {
      row += i % in.dims[d] * rows;
      rows *= in.dims[d];
    }
    i /= in.dims[d];
  }
  return row;
}

std::vector<float> digests(void* data, const Window& in, uint64_t reduced) {
  std::vector<float> results;
  int64_t rows = 1;
  for (int d = 0; d < in.rank; ++d) rows *= (reduced >> d & 1) != 0 ? 1 : in.dims[d];
  for (int64_t row = 0; row < rows; ++row) {
    uint32_t state = 0;
    kDigest.begin(&state);
    int64_t index = 0;
    for (int64_t i = 0; i < in.numel; ++i) {
      if (row_of(in, reduced, i) == row) kDigest.add(&state, element(data, in, i), 1, index++);
    }
    kDigest.finish(&state, &results.emplace_back());
  }
  return results;
}

void run_digest(const Invocation& call) {
  const Window& in = window_of(call, 0);
  const Window& out = window_of(call, 1);
  const std::vector<float> results = digests(call.data[0], in, reduced_dims(in, out));
  for (int64_t i = 0; i < out.numel; ++i) *element(call.data[1], out, i) = results[static_cast<size_t>(i)];
}

bool lower_digest(const LowerRequest& request, Lowering& lowering) {
  const DType f32 = parse_dtype("f32");
  lowering.reduced = reduced_dims(request.window(0), request.window(1));
  lowering.output(1, lowering.reduce(&kDigest, f32, lowering.operand(0, f32)));
  return true;
}

void run_normalize(const Invocation& call) {
  const Window& in = window_of(call, 0);
  const Window& out = window_of(call, 1);
  const uint64_t reduced = uint64_t{1} << (in.rank - 1);
  const std::vector<float> rows = digests(call.data[0], in, reduced);
  for (int64_t i = 0; i < out.numel; ++i) {
    const float inputs[] = {*element(call.data[0], in, i), rows[static_cast<size_t>(row_of(in, reduced, i))]};
    *element(call.data[1], out, i) = map_entry(inputs, 2, attribute_of(call.attributes));
  }
}

bool lower_normalize(const LowerRequest& request, Lowering& lowering) {
  const DType f32 = parse_dtype("f32");
  if (request.window(0).rank == 0) return false;
  lowering.reduced = uint64_t{1} << (request.window(0).rank - 1);
  const Lowering::Ref in = lowering.operand(0, f32);
  const Lowering::Ref row = lowering.reduce(&kDigest, f32, in);
  lowering.output(1, lowering.map(map_block<2>, f32, {in, row}, {number_of(attribute_of(request.attributes))}));
  return true;
}

void run_copy(const Invocation& call) {
  const Window& out = window_of(call, 1);
  std::vector<float> results;
  for (int64_t i = 0; i < out.numel; ++i)
    results.push_back(*broadcast_element(call.data[0], window_of(call, 0), out, i));
  for (int64_t i = 0; i < out.numel; ++i) *element(call.data[1], out, i) = results[static_cast<size_t>(i)];
}

bool lower_copy(const LowerRequest&, Lowering& lowering) {
  lowering.output(1, lowering.operand(0, parse_dtype("f32")));
  return true;
}

// The dimension along which the parts differ from the whole.
int joined_dimension(const Window& part, const Window& whole) {
  int d = 0;
  while (part.dims[d] == whole.dims[d]) ++d;
  return d;
}

void run_join(const Invocation& call) {
  const int count = call.node->operand_count - 1;
  const Window& out = window_of(call, count);
  const int cut = joined_dimension(window_of(call, 0), out);
  const int64_t length = out.dims[cut] / count;
  int64_t inner = 1;
  for (int d = cut + 1; d < out.rank; ++d) inner *= out.dims[d];
  std::vector<float> results;
  for (int64_t i = 0; i < out.numel; ++i) {
    const int64_t along = i / inner % out.dims[cut];
    const int64_t outer = i / inner / out.dims[cut];
    const int part = static_cast<int>(along / length);
    results.push_back(
        *element(call.data[part], window_of(call, part), (outer * length + along % length) * inner + i % inner));
  }
  for (int64_t i = 0; i < out.numel; ++i) *element(call.data[count], out, i) = results[static_cast<size_t>(i)];
}

bool lower_join(const LowerRequest& request, Lowering& lowering) {
  const int count = request.node->operand_count - 1;
  lowering.cut_into(count, joined_dimension(request.window(0), request.window(count)));
  for (int k = 0; k < count; ++k) lowering.output(count, lowering.piece_operand(k, parse_dtype("f32")), k);
  return true;
}

void run_product(const Invocation& call) {
  const Window& x = window_of(call, 1);
  const Window& out = window_of(call, 2);
  void* const data = call.data[2];
  for (int64_t i = 0; i < out.numel && call.part != Part::kTail; ++i) {
    *element(data, out, i) = 0.5f * *element(call.data[1], x, i % x.numel);
  }
  for (int64_t i = 0; i < out.numel && call.part != Part::kBody; ++i) {
    const float inputs[] = {*element(data, out, i), *broadcast_element(call.data[0], window_of(call, 0), out, i)};
    *element(data, out, i) = map_entry(inputs, 2, attribute_of(call.attributes));
  }
}

void run_products(const Invocation* calls, size_t count) {
  for (size_t i = count; i-- > 0;) run_product(calls[i]);
}

bool lower_product(const LowerRequest& request, Lowering& lowering) {
  const DType f32 = parse_dtype("f32");
  const Lowering::Ref out = lowering.operand(2, f32);
  const Lowering::Ref bias = lowering.operand(0, f32);
  lowering.output(2, lowering.map(map_block<2>, f32, {out, bias}, {number_of(attribute_of(request.attributes))}));
  return true;
}

void run_random(const Invocation& call) {
  uint64_t state[2] = {};
  std::memcpy(state, call.attributes, sizeof(state));
  const Window& out = window_of(call, 0);
  for (int64_t i = 0; i < out.numel; ++i) {
    const uint64_t bits = (state[0] ^ (state[1] + static_cast<uint64_t>(i)) * 0x9E3779B97F4A7C15u) >> 40;
    *element(call.data[0], out, i) = static_cast<float>(bits) / static_cast<float>(1 << 24);
  }
}

// --- What a node from a file must be like

Status unlike(const char* what) { return Status(ErrorClass::kUsage, what); }

Status check_floats(const Graph& graph, const Node& node) {
  bool writes = false;
  for (int k = 0; k < node.operand_count; ++k) {
    const Operand& operand = graph.operands_of(node)[k];
    if ((*graph.windows)[operand.window].dtype != parse_dtype("f32")) return unlike("is not of floats");
    writes |= operand.writes();
  }
  if (node.attribute_bytes != sizeof(float)) return unlike("has no number");
  return writes ? Status() : unlike("writes nothing");
}

// So many operands that are read, then one that is written.
template <int inputs>
Status check_operands(const Graph& graph, const Node& node) {
  if (Status status = check_floats(graph, node); !status.ok()) return status;
  if (node.operand_count != inputs + 1) return unlike("has another number of operands");
  for (int k = 0; k < inputs; ++k) {
    if (graph.operands_of(node)[k].writes()) return unlike("writes what it reads");
  }
  return Status();
}

Status check_join(const Graph& graph, const Node& node) {
  if (Status status = check_floats(graph, node); !status.ok()) return status;
  const int count = node.operand_count - 1;
  const Operand* const operands = graph.operands_of(node);
  const auto window = [&](int k) -> const Window& { return (*graph.windows)[operands[k].window]; };
  if (count < 1 || !operands[count].writes()) return unlike("has no whole");
  const Window& whole = window(count);
  for (int k = 0; k < count; ++k) {
    if (operands[k].writes() || window(k).rank != whole.rank) return unlike("has no parts");
    int others = 0;
    for (int d = 0; d < whole.rank; ++d) {
      if (window(k).dims[d] != window(0).dims[d]) return unlike("has parts of different sizes");
      if (window(k).dims[d] == whole.dims[d]) continue;
      ++others;
      if (window(k).dims[d] * count != whole.dims[d]) return unlike("has parts that are no parts");
    }
    if (others != 1) return unlike("has parts that differ in more than one dimension");
  }
  return Status();
}

Status check_random(const Graph& graph, const Node& node) {
  if (node.attribute_bytes != 16) return unlike("has no seed and offset");
  const Operand* const operands = graph.operands_of(node);
  if (node.operand_count != 1 || !operands[0].writes()) return unlike("writes nothing, or more");
  return (*graph.windows)[operands[0].window].dtype == parse_dtype("f32") ? Status() : unlike("is not of floats");
}

TestOps register_ops() {
  const auto add = [](const char* name, OpClass op_class, KernelFunction kernel, auto adjust) {
    OpTraits traits{
        .name = name, .op_class = op_class, .kernel = kernel, .device_kernel = kernel, .check = check_floats};
    adjust(traits);
    return op_table().add(traits);
  };
  const auto plain = [](OpTraits&) {};
  return {
      .pointwise = add("test::pointwise", OpClass::kPointwise, anywhere<compute>, plain),
      .matmul = add("test::matmul", OpClass::kMatmul, anywhere<compute>, plain),
      .indexing = add("test::indexing", OpClass::kIndexing, anywhere<compute>, plain),
      .cpu_only = add("test::cpu_only", OpClass::kOther, anywhere<compute>,
                      [](OpTraits& traits) { traits.on_accelerator = false; }),
      .brings = add("test::brings", OpClass::kPointwise, anywhere<compute>,
                    [](OpTraits& traits) { traits.brings_memory = true; }),
      .effect = add("test::effect", OpClass::kPointwise, anywhere<count_effect>,
                    [](OpTraits& traits) { traits.side_effects = true; }),
      .throws = add("test::throws", OpClass::kMatmul, anywhere<throw_error>, plain),
      .half_throws = add("test::half_throws", OpClass::kMatmul, anywhere<compute_and_throw>, plain),
      .map =
          add("test::map", OpClass::kPointwise, anywhere<run_map>, [](OpTraits& traits) { traits.lower = lower_map; }),
      .digest = add("test::digest", OpClass::kReduction, anywhere<run_digest>,
                    [](OpTraits& traits) {
                      traits.lower = lower_digest;
                      traits.check = check_operands<1>;
                    }),
      .normalize = add("test::normalize", OpClass::kNormalization, anywhere<run_normalize>,
                       [](OpTraits& traits) {
                         traits.lower = lower_normalize;
                         traits.check = check_operands<1>;
                       }),
      .copy = add("test::copy", OpClass::kCopy, anywhere<run_copy>,
                  [](OpTraits& traits) {
                    traits.lower = lower_copy;
                    traits.check = check_operands<1>;
                  }),
      .join = add("test::join", OpClass::kIndexing, anywhere<run_join>,
                  [](OpTraits& traits) {
                    traits.lower = lower_join;
                    traits.check = check_join;
                  }),
      .product = add("test::product", OpClass::kMatmul, anywhere<run_product>,
                     [](OpTraits& traits) {
                       traits.lower = lower_product;
                       traits.has_tail = true;
                       traits.shared_operand = 1;
                       traits.run_together = run_products;
                       traits.check = check_operands<2>;
                     }),
      .random = add("test::random", OpClass::kRandom, anywhere<run_random>,
                    [](OpTraits& traits) { traits.check = check_random; }),
  };
}

}  // namespace

const TestOps& test_ops() {
  static const TestOps ops = register_ops();
  return ops;
}

int effect_count() { return effects; }

}  // namespace hetero::graph::testing
