// The fastest implementation of a convolution on this machine, for each shape.
//
// convolution.h measures the implementations at the first call of a shape and keeps the outcome
// here. choices.h says how choices are looked up and stored on disk.
//
// Thread safety: any thread; a lookup takes no lock.

#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "backend/cpu/convolution/geometry.h"
#include "backend/cpu/kernels/matvec.h"
#include "ops/kernels/choices.h"

namespace hetero::ops {

enum class ConvolutionImplementation : uint8_t {
  kStock,     // ATen's kernel
  kUnfolded,  // backend/cpu/convolution/convolution.h
  kPixels,    // gradients: backend/cpu/convolution/pixel_gradients.h
  // The rest keep a filter in a layout of their own (filter.h); depthwise loops may make it anew.
  kDepthwise,  // backend/cpu/convolution/depthwise.h
  kPacked,     // oneDNN's
  // Products of patches (backend/cpu/convolution/patches.h), by a packed weight of linear_choice.h:
  kPanels,
  kTiles,
  kDirect,      // by panels, which read pixels in place, or copies of few channels and of planes
  kWinograd,    // backend/cpu/winograd/winograd.h
  kFewOutputs,  // backend/cpu/few_outputs/few_outputs.h
};
inline constexpr int kConvolutionImplementations = 10;
const char* to_string(ConvolutionImplementation implementation);

// The operation of a call.
enum class ConvolutionWork : uint8_t { kForward, kForwardWithBias, kBackward, kTransposed };
// Which gradients, of a kBackward; bits.
enum ConvolutionGradient : uint8_t { kOfInput = 1, kOfWeight = 2, kOfBias = 4 };

// The properties of a call that the choice depends on.
struct ConvolutionShape {
  static constexpr const char* kKind = "convolution 12";
  backend::Element element = backend::Element::kFloat32;
  ConvolutionWork work = ConvolutionWork::kForward;
  uint8_t gradients = 0;
  int64_t rank = 4;  // of the images; the geometry of those with a depth is one of as much work
  backend::ConvolutionGeometry geometry;
  int64_t groups = 1;
  // Whether they have their channels last.
  bool input_last = false;
  bool output_last = false;
  bool weight_last = false;
  bool tiles = false;     // the tile unit may be used
  bool winograd = false;  // and that algorithm
  int64_t threads = 1;

  bool operator==(const ConvolutionShape&) const = default;
  // The shape that stands for all with a similar number of images, height and width.
  ConvolutionShape rounded() const;
  std::array<int64_t, 24> numbers() const;
};

struct ConvolutionChoice {
  // The best that needs nothing but the operands.
  ConvolutionImplementation plain = ConvolutionImplementation::kStock;
  // One that keeps a filter and is better still; kStock for none, nullopt if that was not tried.
  std::optional<ConvolutionImplementation> kept = std::nullopt;
  bool sure = true;  // false: guessed, since the machine was too busy to measure

  bool operator==(const ConvolutionChoice&) const = default;
  bool refines(const ConvolutionChoice& earlier) const { return plain == earlier.plain && kept && !earlier.kept; }
};

std::string line_of(const ConvolutionShape& shape, const ConvolutionChoice& choice);
bool parse_line(const std::string& line, ConvolutionShape& shape, ConvolutionChoice& choice);

using ConvolutionChoices = Choices<ConvolutionShape, ConvolutionChoice>;

// The choices of this process.
ConvolutionChoices& convolution_choices();

}  // namespace hetero::ops
