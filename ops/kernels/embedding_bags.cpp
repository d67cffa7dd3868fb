#include "ops/kernels/embedding_bags.h"

#include <ATen/native/EmbeddingBag.h>

#include <algorithm>
#include <span>

#include "backend/cpu/kernels/embedding_bags.h"
#include "ops/kernels/own_kernel.h"
#include "ops/record/call.h"

namespace hetero::ops {
namespace {

using graph::Window;

constexpr int kTable = 0, kIds = 1, kBegins = 2, kSums = 3, kBagOfId = 4, kSizeOfBag = 5, kPlaces = 6, kOperands = 7;

struct Arguments {
  bool are_means = false;
  bool has_last_end = false;
};

// False where there are weights of samples, ids to leave out, or maxima.
bool read(const graph::Invocation& invocation, Arguments& arguments) {
  if (invocation.node->operand_count != kOperands) return false;
  Decoder decoder(invocation.attributes, invocation.node->attribute_bytes);
  for (const int operand : {kTable, kIds, kBegins}) {
    if (decoder.next() != Tag::kTensor || decoder.operand() != operand) return false;
  }
  const auto read_flag = [&](bool& flag) {
    if (decoder.next() != Tag::kBoolean) return false;
    flag = decoder.get<uint8_t>() != 0;
    return true;
  };
  bool of_gradients = false;  // how they are scaled, and whether they are sparse
  if (!read_flag(of_gradients)) return false;
  const auto mode = static_cast<at::native::EmbeddingBagMode>(decoder.integer(decoder.next()));
  if (mode != at::native::EmbeddingBagMode::SUM && mode != at::native::EmbeddingBagMode::MEAN) return false;
  arguments.are_means = mode == at::native::EmbeddingBagMode::MEAN;
  if (!read_flag(of_gradients)) return false;
  if (const Tag weights = decoder.next(); weights != Tag::kNone && weights != Tag::kUndefined) return false;
  if (!read_flag(arguments.has_last_end)) return false;
  return decoder.integer(decoder.next()) < 0;  // the id that counts as none
}

const Window& window_of(const graph::Invocation& invocation, int operand) {
  return (*invocation.windows)[invocation.operands[operand].window];
}

template <typename T>
std::span<T> values(const graph::Invocation& invocation, int operand) {
  const Window& window = window_of(invocation, operand);
  return {static_cast<T*>(invocation.data[operand]) + window.offset, static_cast<size_t>(window.numel)};
}

// Results 1 to 3 are what the gradient wants; of sums it wants none of them.
template <typename Id>
void write_rest(const graph::Invocation& invocation, const backend::EmbeddingBags<Id>& call) {
  const std::span<Id> bag_of_id = values<Id>(invocation, kBagOfId), size_of_bag = values<Id>(invocation, kSizeOfBag);
  for (int64_t bag = 0; call.are_means && bag < call.bags(); ++bag) {
    for (Id i = call.begins[bag]; i < call.end_of(bag); ++i) bag_of_id[i] = static_cast<Id>(bag);
    size_of_bag[bag] = call.end_of(bag) - call.begins[bag];
  }
  if (!call.are_means) std::ranges::fill(size_of_bag, 0);
  std::ranges::copy(size_of_bag, values<Id>(invocation, kPlaces).begin());
}

template <typename Id>
bool run(const graph::Invocation& invocation, const Arguments& arguments) {
  constexpr size_t kMostValues = 32 << 10;  // to add; more are worth several threads
  const Window& table = window_of(invocation, kTable);
  const auto width = static_cast<size_t>(table.sizes()[1]);
  backend::EmbeddingBags<Id> call{.table = values<const float>(invocation, kTable).data(),
                                  .rows = table.sizes()[0],
                                  .width = table.sizes()[1],
                                  .ids = values<const Id>(invocation, kIds),
                                  .begins = values<const Id>(invocation, kBegins),
                                  .are_means = arguments.are_means,
                                  .output = values<float>(invocation, kSums).data()};
  if (arguments.has_last_end) {
    if (call.begins.empty() || call.begins.back() != static_cast<Id>(call.ids.size())) return false;
    call.begins = call.begins.first(call.begins.size() - 1);
  }
  const size_t bags = call.begins.size();
  if (bags == 0 && !call.ids.empty()) return false;  // ids of no bag
  if (width == 0 || (call.ids.size() + bags) > kMostValues / width || !backend::is_valid(call)) return false;
  const auto numel = [&](int operand) { return static_cast<size_t>(window_of(invocation, operand).numel); };
  if (numel(kSums) != bags * width || numel(kBagOfId) != (call.are_means ? call.ids.size() : 0)) return false;
  if (numel(kPlaces) != numel(kSizeOfBag) || (call.are_means && numel(kSizeOfBag) != bags)) return false;
  run_as_operator(OwnKernel::kEmbeddingBags, invocation, [&] {
    backend::run(call);
    write_rest(invocation, call);
  });
  return true;
}

}  // namespace

bool run_embedding_bags(const graph::Invocation& invocation) {
  Arguments arguments;
  if (!read(invocation, arguments)) return false;
  const auto dtype = [&](int operand) { return static_cast<c10::ScalarType>(window_of(invocation, operand).dtype); };
  for (int i = 0; i < kOperands; ++i) {
    const Window& window = window_of(invocation, i);
    if (!window.contiguous || invocation.operands[i].bits != 0) return false;
    if (window.rank != (i == kTable || i == kSums ? 2 : 1)) return false;
    if (invocation.data[i] == nullptr && window.numel != 0) return false;
    if (dtype(i) != (i == kTable || i == kSums ? c10::kFloat : dtype(kIds))) return false;
  }
  return dtype(kIds) == c10::kLong  ? run<int64_t>(invocation, arguments)
         : dtype(kIds) == c10::kInt ? run<int32_t>(invocation, arguments)
                                    : false;
}

}  // namespace hetero::ops
