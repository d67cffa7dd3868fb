#include "graph/optimize/channels_last.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "graph/optimize/rewrite.h"

namespace hetero::graph {
namespace {

// Images, channels, maybe depth, maybe height, and width.
constexpr int kMostDimensions = 5;

// A buffer's elements as a whole row-major tensor, and where they are with the channels last.
struct Image {
  bool exists = false;
  DType dtype = 0;
  int rank = 0;
  std::array<int64_t, kMostDimensions> sizes{}, rows{}, last{};

  Image() = default;
  explicit Image(const Window& window) : Image(window, window.sizes()[1]) {}
  // With so many channels, of which the window shows some.
  Image(const Window& window, int64_t channels) : exists(true), dtype(window.dtype), rank(window.rank) {
    std::ranges::copy(window.sizes(), sizes.begin());
    sizes[1] = channels;
    fill_row_major(std::span(sizes.data(), static_cast<size_t>(rank)), rows.data());
    last[1] = 1;
    int64_t stride = channels;
    for (int d = rank - 1; d > 1; --d) {
      last[d] = stride;
      stride *= sizes[d];
    }
    last[0] = stride;
  }
  // Whether the two layouts differ.
  bool has_two() const { return sizes[1] > 1 && rows[1] > 1; }
};

// The window of a row-major image, as strides and an offset of one with its channels last. Each of
// its dimensions goes along some dimensions of the image.
struct Moved {
  std::vector<int64_t> strides;
  int64_t offset = 0;
};

std::optional<Moved> moved(const Window& window, const Image& image) {
  if (window.dtype != image.dtype) return std::nullopt;
  Moved result;
  std::array<int64_t, kMostDimensions> furthest{};  // along each dimension
  int64_t left = window.offset;
  for (int d = 0; d < image.rank; ++d) {
    furthest[d] = left / image.rows[d];
    left %= image.rows[d];
    result.offset += furthest[d] * image.last[d];
  }
  for (int i = 0; i < window.rank; ++i) {
    const int64_t stride = window.strides()[i];
    int64_t size = window.sizes()[i];
    // The dimension of the image in which a step of this one is.
    int d = image.rank - 1;
    while (d > 0 && stride >= image.rows[d] * image.sizes[d]) --d;
    if (stride == 0 || size == 1) {
      result.strides.push_back(stride == image.rows[d] ? image.last[d] : stride);
      continue;
    }
    if (stride % image.rows[d] != 0) return std::nullopt;
    const int64_t step = stride / image.rows[d];
    result.strides.push_back(step * image.last[d]);
    // One that goes on into the dimensions before goes through whole ones.
    while (step == 1 && d > 0 && size > image.sizes[d] && size % image.sizes[d] == 0 &&
           image.last[d - 1] == image.last[d] * image.sizes[d]) {
      furthest[d] += image.sizes[d] - 1;
      size /= image.sizes[d];
      --d;
    }
    furthest[d] += step * (size - 1);
  }
  for (int d = 0; d < image.rank; ++d) {
    if (furthest[d] >= image.sizes[d]) return std::nullopt;
  }
  // Any stride is right for one pixel. PyTorch guesses the layout from those, too.
  for (int i = window.rank - 2; i > 1; --i) {
    if (window.sizes()[i] == 1) result.strides[i] = window.sizes()[i + 1] * result.strides[i + 1];
  }
  return result;
}

class Layouts {
 public:
  Layouts(Graph& graph, WindowTable& windows, const std::vector<uint8_t>& temporary, std::span<SavedImage> saved)
      : graph_(graph),
        windows_(windows),
        temporary_(temporary),
        saved_(saved),
        images_(graph_.buffers.size()),
        group_(graph_.buffers.size()) {}

  size_t run() {
    if (!filters_are_small()) return 0;
    has_signals_ = std::ranges::any_of(graph_.nodes, [&](const Node& node) {
      return is_convolution(op_table()[node.op]) && window_of(*graph_.operands_of(node)).rank == kSignal;
    });
    // What a convolution sees is an image, whatever others see, such as groups of its channels.
    for (const bool convolved : {true, false}) {
      find_images(kSignal + 1, kMostDimensions, convolved);
      if (has_signals_) find_images(kSignal, kSignal, convolved);
    }
    find_made_of_images();
    drop_what_may_not_change();
    if (std::ranges::none_of(images_, [](const Image& image) { return image.exists; })) return 0;
    while (drop_mixed()) continue;
    find_groups();
    return rewrite();
  }

 private:
  // [signals, channels, length], as tokens are [sequences, length, channels].
  static constexpr int kSignal = 3;

  const Window& window_of(const Operand& operand) const { return windows_[operand.window]; }
  // Three dimensions are images only where something convolves such.
  bool has_rank_of_image(const Window& window) const {
    return window.rank >= (has_signals_ ? kSignal : kSignal + 1) && window.rank <= kMostDimensions;
  }
  static bool is_convolution(const OpTraits& traits) { return traits.op_class == OpClass::kConvolution; }
  // Each operand may have another layout.
  static bool mixes(const OpTraits& traits) { return is_convolution(traits) || traits.op_class == OpClass::kCopy; }
  static bool keeps_layout(const OpTraits& traits) {
    return traits.keeps_layout || traits.op_class == OpClass::kPointwise;
  }

  // Of gradients of convolutions: whether their images gain more by the other layout than is lost
  // by their filters, which are made row-major in the program's memory and brought into the images'
  // layout by each kernel, as their gradients are brought back. On two Zen 4 cores, an element of a
  // filter costs 5 to 10 ns, and one of an image gains 1 to 3. Where the gradients are another
  // program's, the convolutions here stand for them.
  bool filters_are_small() const {
    constexpr int64_t kLeastImages = 32;  // elements for each of filters
    int64_t filters = 0, images = 0;
    for (const Node& node : graph_.nodes) {
      const std::vector<const Operand*> read = read_by_gradients(node);
      const bool is_forward = !saved_.empty() && is_convolution(op_table()[node.op]) && node.operand_count > 2;
      if (read.empty() && !is_forward) continue;
      const Window& filter = window_of(read.empty() ? graph_.operands_of(node)[1] : *read[2]);
      images += window_of(read.empty() ? graph_.operands_of(node)[0] : *read[1]).numel;
      if (filter.sizes()[1] > 1 && filter.numel > filter.sizes()[0] * filter.sizes()[1]) filters += filter.numel;
    }
    return images >= kLeastImages * filters;
  }

  template <typename Visit>
  void for_operands(const Visit& visit) {
    for (const Node& node : graph_.nodes) {
      for (int i = 0; i < node.operand_count; ++i) visit(op_table()[node.op], graph_.operands[node.first_operand + i]);
    }
  }

  void find_images(int least_rank, int most_rank, bool convolved) {
    for_operands([&](const OpTraits& traits, const Operand& operand) {
      if (convolved && !is_convolution(traits)) return;
      const Window& window = window_of(operand);
      Image& image = images_[operand.buffer];
      if (image.exists || temporary_[operand.buffer] == 0) return;
      if (window.rank < least_rank || window.rank > most_rank) return;
      const auto bytes = static_cast<int64_t>(graph_.buffers[operand.buffer].bytes);
      if (window.contiguous && window.offset == 0 && window.last_byte == bytes) {
        image = Image(window);
      } else if (convolved) {
        image = image_of_channels(window, bytes);
      }
      if (image.exists && !image.has_two()) image = Image();
    });
  }

  // Whether the operand is all of its buffer, each element once.
  bool shows_all(const Operand& operand) const {
    const Window& window = window_of(operand);
    const auto bytes = static_cast<int64_t>(graph_.buffers[operand.buffer].bytes);
    return window.offset == 0 && window.last_byte == bytes && window.numel * dtype_bytes(window.dtype) == bytes;
  }

  // Images that pointwise operators make of images, whose dimensions they see in another order, as
  // one sees tokens.
  void find_made_of_images() {
    for (const Node& node : graph_.nodes) {
      if (op_table()[node.op].op_class != OpClass::kPointwise) continue;
      const std::span<const Operand> all(graph_.operands_of(node), node.operand_count);
      for (const Operand& read : all) {
        if (!read.reads() || !images_[read.buffer].exists || !shows_all(read)) continue;
        const Window& seen = window_of(read);
        for (const Operand& made : all) {
          const Window& window = window_of(made);
          Image& image = images_[made.buffer];
          if (image.exists || made.reads() || temporary_[made.buffer] == 0 || !shows_all(made) ||
              !std::ranges::equal(window.sizes(), seen.sizes()) ||
              !std::ranges::equal(window.strides(), seen.strides()))
            continue;
          image = images_[read.buffer];
          image.dtype = window.dtype;
        }
      }
    }
  }

  // The row-major image of which the window shows some channels; none where it shows something
  // else. Of a single image, some channels look like some images.
  static Image image_of_channels(const Window& window, int64_t bytes) {
    const std::span<const int64_t> sizes = window.sizes(), strides = window.strides();
    int64_t pixels = 1;
    for (size_t d = sizes.size() - 1; d > 1; --d) {
      if (sizes[d] != 1 && strides[d] != pixels) return {};
      pixels *= sizes[d];
    }
    const int64_t of_all = bytes / dtype_bytes(window.dtype);
    if (window.numel == 0 || sizes[0] == 1 || (sizes[1] != 1 && strides[1] != pixels) ||
        of_all % (sizes[0] * pixels) != 0)
      return {};
    const Image image(window, of_all / (sizes[0] * pixels));
    return strides[0] == image.rows[0] ? image : Image();
  }

  void drop_what_may_not_change() {
    for_operands([&](const OpTraits& traits, const Operand& operand) {
      Image& image = images_[operand.buffer];
      if (image.exists && !may_change(traits, operand, image)) image = Image();
    });
    for (const SavedImage& saved : saved_) {
      Image& image = images_[saved.buffer];
      if (image.exists && !moved(windows_[saved.window], image)) image = Image();
    }
  }

  bool may_change(const OpTraits& traits, const Operand& operand, const Image& image) {
    const Window& window = window_of(operand);
    const std::optional<Moved> other = moved(window, image);
    if (!other || operand.bits != 0) return false;
    if (keeps_layout(traits)) {
      if (!has_channels_last(window)) return true;
      if (is_convolution(traits) || window.rank != kSignal) return false;
    }
    // It sees a permuted image, which is row-major then, or a part of one, such as the last moment
    // of signals, whose entries are no further apart.
    const bool is_part = window.rank > 0 && window.rank < image.rank && !window.contiguous;
    if (is_part && other->strides.back() <= window.strides()[window.rank - 1]) return true;
    const WindowId then = windows_.intern(window.dtype, window.sizes(), other->strides, other->offset);
    return then != kNoWindow && windows_[then].contiguous;
  }

  // Whether the operator sees images, of which the channels are last already.
  bool has_channels_last(const Window& window) const {
    if (!has_rank_of_image(window) || window.contiguous) return false;
    return window.sizes()[1] > 1 && window.strides()[1] == 1 && window.strides()[window.rank - 1] >= window.sizes()[1];
  }

  // Whether the layout of the operand matters to a kernel that takes one layout only.
  bool is_row_major_image(const Operand& operand) const {
    const Window& window = window_of(operand);
    return has_rank_of_image(window) && !has_channels_last(window) && Image(window).has_two() &&
           window.strides()[1] != 0 && window.strides()[window.rank - 1] != 0;
  }

  // Whether the operator sees a signal as tokens, which are row-major once its channels are last.
  bool turns(const Operand& operand) const {
    return images_[operand.buffer].exists && has_channels_last(window_of(operand));
  }

  // What a convolution's gradients are computed of: the gradient of its result, its input, and its
  // filter. Nothing of another node.
  std::vector<const Operand*> read_by_gradients(const Node& node) const {
    std::vector<const Operand*> read;
    for (const Operand& operand : std::span(graph_.operands_of(node), node.operand_count)) {
      if (operand.reads() && window_of(operand).rank >= kSignal) read.push_back(&operand);
    }
    if (read.size() != 3 || !is_convolution(op_table()[node.op])) read.clear();
    return read;
  }

  // Gradients of a convolution have the layout of its input, whose gradient is one of them. Returns
  // whether there were any that had not.
  bool drop_gradients(const Node& node) {
    const std::vector<const Operand*> read = read_by_gradients(node);
    if (read.empty() || images_[read[1]->buffer].exists || !is_row_major_image(*read[1])) return false;
    const Window& input = window_of(*read[1]);
    const std::span all(graph_.operands_of(node), node.operand_count);
    const bool has_gradient = std::ranges::any_of(all, [&](const Operand& operand) {
      return !operand.reads() && std::ranges::equal(window_of(operand).sizes(), input.sizes());
    });
    if (!has_gradient) return false;
    bool dropped = false;
    for (const Operand& operand : all) {
      dropped |= images_[operand.buffer].exists;
      images_[operand.buffer] = Image();
    }
    return dropped;
  }

  // The strides of what an operand sees once images have changed.
  std::vector<int64_t> strides_then(const Operand& operand) const {
    const Window& window = window_of(operand);
    if (images_[operand.buffer].exists) return moved(window, images_[operand.buffer])->strides;
    return {window.strides().begin(), window.strides().end()};
  }

  // Whether two tensors of the same sizes have their elements in one order. Expanded dimensions
  // have none.
  static bool in_one_order(std::span<const int64_t> sizes, std::span<const int64_t> a, std::span<const int64_t> b) {
    for (size_t d = 0; d < sizes.size(); ++d) {
      for (size_t e = 0; e < d; ++e) {
        if (sizes[d] == 1 || sizes[e] == 1 || a[d] * a[e] == 0 || b[d] * b[e] == 0) continue;
        if ((a[d] < a[e]) != (b[d] < b[e])) return false;
      }
    }
    return true;
  }

  // The bytes of tensors that an operator has in another order than its first result: once images
  // have changed, or now. Products and copies read either order.
  int64_t bytes_across(const Node& node, bool then) const {
    const OpTraits& traits = op_table()[node.op];
    if (traits.op_class != OpClass::kPointwise && traits.op_class != OpClass::kNormalization) return 0;
    const std::span<const Operand> all(graph_.operands_of(node), node.operand_count);
    const auto made = std::ranges::find_if(all, [](const Operand& operand) { return operand.writes(); });
    if (made == all.end()) return 0;
    const auto strides = [&](const Operand& operand) {
      const std::span<const int64_t> now = window_of(operand).strides();
      return then ? strides_then(operand) : std::vector<int64_t>(now.begin(), now.end());
    };
    const std::vector<int64_t> order = strides(*made);
    int64_t bytes = 0;
    for (const Operand& operand : all) {
      const Window& window = window_of(operand);
      if (!std::ranges::equal(window.sizes(), window_of(*made).sizes())) continue;
      if (!in_one_order(window.sizes(), strides(operand), order)) bytes += window.numel * dtype_bytes(window.dtype);
    }
    return bytes;
  }

  // Takes images from operators that would have operands of two layouts. Returns whether there were
  // any.
  bool drop_mixed() {
    bool dropped = false;
    for (const Node& node : graph_.nodes) {
      const OpTraits& traits = op_table()[node.op];
      if (is_convolution(traits)) dropped |= drop_gradients(node);
      if (mixes(traits) || !keeps_layout(traits)) continue;
      const std::span<const Operand> all(graph_.operands_of(node), node.operand_count);
      bool image = false, signal = false, turned = false;  // what would change
      bool row_major = false, last = false;                // what stays
      for (const Operand& operand : all) {
        const Window& window = window_of(operand);
        if (turns(operand)) {
          turned = true;
        } else if (images_[operand.buffer].exists) {
          (has_signals_ && window.rank == kSignal ? signal : image) = true;
        } else if (has_channels_last(window)) {
          last = true;
        } else if (is_row_major_image(operand)) {
          row_major = true;
        }
      }
      const bool drops_seen = (image && signal) || turned || row_major;
      const bool drops_turned = turned && last;
      for (const Operand& operand : all) {
        if (!images_[operand.buffer].exists || !(turns(operand) ? drops_turned : drops_seen)) continue;
        images_[operand.buffer] = Image();
        dropped = true;
      }
    }
    return dropped;
  }

  BufferId root(BufferId buffer) {
    while (group_[buffer] != buffer) buffer = group_[buffer] = group_[group_[buffer]];
    return buffer;
  }

  // Images that operators take together, and which of these groups convolutions touch and gain.
  void find_groups() {
    std::iota(group_.begin(), group_.end(), BufferId{0});
    std::vector<BufferId> convolved;
    for (const Node& node : graph_.nodes) {
      const OpTraits& traits = op_table()[node.op];
      const bool convolves = is_convolution(traits);
      if (mixes(traits) && !convolves) continue;
      // What is seen as tokens changes together as well.
      BufferId image = kNoBuffer, tokens = kNoBuffer;
      for (const Operand& operand : std::span(graph_.operands_of(node), node.operand_count)) {
        const BufferId buffer = operand.buffer;
        if (!images_[buffer].exists) continue;
        const bool turned = turns(operand);
        if (turned && (convolves || !keeps_layout(traits))) continue;
        BufferId& first = turned ? tokens : image;
        if (convolves) {
          convolved.push_back(buffer);
        } else if (first == kNoBuffer) {
          first = buffer;
        } else {
          group_[root(buffer)] = root(first);
        }
      }
    }
    wanted_.assign(graph_.buffers.size(), 0);
    for (const BufferId buffer : convolved) wanted_[root(buffer)] = 1;
    drop_parted_groups();
  }

  // Takes the groups that would have operators read and write across more than they do now, or as
  // much, only elsewhere.
  void drop_parted_groups() {
    std::vector<int64_t> more(graph_.buffers.size(), 0);  // bytes across, per group
    std::vector<uint8_t> parted(graph_.buffers.size(), 0);
    for (const Node& node : graph_.nodes) {
      const std::span<const Operand> all(graph_.operands_of(node), node.operand_count);
      const auto image =
          std::ranges::find_if(all, [&](const Operand& operand) { return images_[operand.buffer].exists; });
      if (image == all.end()) continue;
      const int64_t change = bytes_across(node, true) - bytes_across(node, false);
      more[root(image->buffer)] += change;
      parted[root(image->buffer)] |= change > 0;
    }
    for (size_t i = 0; i < wanted_.size(); ++i) {
      if (parted[i] != 0 && more[i] >= 0) wanted_[i] = 0;
    }
  }

  // The window with the stride between images that PyTorch's kernels expect of channels that are
  // last, where there is one image and any stride is right.
  WindowId of_one_image(WindowId id) {
    const Window& window = windows_[id];
    if (!has_channels_last(window) || window.sizes()[0] != 1) return id;
    std::vector<int64_t> strides(window.strides().begin(), window.strides().end());
    strides[0] = window.sizes()[2] * window.strides()[2];
    const WindowId other = windows_.intern(window.dtype, window.sizes(), strides, window.offset);
    return other == kNoWindow ? id : other;
  }

  size_t rewrite() {
    std::vector<std::pair<WindowId*, WindowId>> others;  // what they become
    std::vector<uint8_t> changed(graph_.buffers.size(), 0);
    const auto change = [&](BufferId buffer, WindowId& id) {
      const Image& image = images_[buffer];
      if (!image.exists || wanted_[root(buffer)] == 0) return true;
      const Window& window = windows_[id];
      const Moved other = *moved(window, image);
      others.emplace_back(&id, windows_.intern(window.dtype, window.sizes(), other.strides, other.offset));
      changed[buffer] = 1;
      return others.back().second != kNoWindow;
    };
    for (const Node& node : graph_.nodes) {
      for (size_t i = node.first_operand; i < node.first_operand + node.operand_count; ++i) {
        if (!change(graph_.operands[i].buffer, graph_.operands[i].window)) return 0;
      }
    }
    for (SavedImage& saved : saved_) {
      if (!change(saved.buffer, saved.window)) return 0;
    }
    for (const Node& node : graph_.nodes) {
      const std::span<Operand> all(graph_.operands.data() + node.first_operand, node.operand_count);
      if (!keeps_layout(op_table()[node.op])) continue;
      if (std::ranges::none_of(all, [&](const Operand& operand) { return changed[operand.buffer] != 0; })) continue;
      for (Operand& operand : all) {
        if (changed[operand.buffer] == 0) others.emplace_back(&operand.window, of_one_image(operand.window));
      }
    }
    for (const auto& [window, other] : others) *window = other;
    return static_cast<size_t>(std::ranges::count(changed, uint8_t{1}));
  }

  Graph& graph_;
  WindowTable& windows_;
  const std::vector<uint8_t>& temporary_;
  const std::span<SavedImage> saved_;
  bool has_signals_ = false;
  std::vector<Image> images_;    // per buffer
  std::vector<BufferId> group_;  // per buffer: another one of its group, or itself
  std::vector<uint8_t> wanted_;  // per group
};

}  // namespace

size_t use_channels_last(Graph& graph, WindowTable& windows, const std::vector<uint8_t>& temporary,
                         std::span<SavedImage> saved) {
  const auto convolves = [](const Node& node) { return op_table()[node.op].op_class == OpClass::kConvolution; };
  if (std::ranges::none_of(graph.nodes, convolves)) return 0;
  return Layouts(graph, windows, temporary, saved).run();
}

size_t use_channels_last(SavedProgram& program) {
  if (!program.dynamic.variables.empty()) return 0;
  std::vector<uint8_t> temporary;
  for (const Buffer& buffer : program.graph.buffers) temporary.push_back(buffer.valid_on == 0 && !buffer.escapes);
  const size_t count = use_channels_last(program.graph, program.windows, temporary);
  if (count > 0) drop_plan(program);
  return count;
}

}  // namespace hetero::graph
