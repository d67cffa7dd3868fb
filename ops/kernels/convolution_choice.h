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

#include "backend/cpu/convolution/unfold.h"
#include "ops/kernels/choices.h"

namespace hetero::ops {

enum class ConvolutionImplementation : uint8_t {
  kStock,      // ATen's kernel
  kUnfolded,   // backend/cpu/convolution/convolution.h
  kPacked,     // oneDNN's, with a weight in its layout that is kept
  kDepthwise,  // backend/cpu/convolution/depthwise.h
};
inline constexpr int kConvolutionImplementations = 4;
const char* to_string(ConvolutionImplementation implementation);

// The operation of a call.
enum class ConvolutionWork : uint8_t { kForward, kForwardWithBias, kBackward, kTransposed };
// Which gradients, of a kBackward; bits.
enum ConvolutionGradient : uint8_t { kOfInput = 1, kOfWeight = 2, kOfBias = 4 };

// The properties of a call that the choice depends on.
struct ConvolutionShape {
  static constexpr const char* kKind = "convolution 3";
  ConvolutionWork work = ConvolutionWork::kForward;
  uint8_t gradients = 0;
  backend::ConvolutionGeometry geometry;
  int64_t groups = 1;
  // Whether images have their channels last.
  bool input_last = false;
  bool output_last = false;
  int64_t threads = 1;

  bool operator==(const ConvolutionShape&) const = default;
  // The shape that stands for all with a similar number of images, height and width.
  ConvolutionShape rounded() const;
  std::array<int64_t, 19> numbers() const;
};

struct ConvolutionChoice {
  // The best that needs nothing but the operands.
  ConvolutionImplementation plain = ConvolutionImplementation::kStock;
  // Whether a packed weight is better still; nullopt if that was not tried.
  std::optional<bool> packed = std::nullopt;
  bool sure = true;  // false: guessed, since the machine was too busy to measure

  bool operator==(const ConvolutionChoice&) const = default;
};

std::string line_of(const ConvolutionShape& shape, const ConvolutionChoice& choice);
bool parse_line(const std::string& line, ConvolutionShape& shape, ConvolutionChoice& choice);

using ConvolutionChoices = Choices<ConvolutionShape, ConvolutionChoice>;

// The choices of this process.
ConvolutionChoices& convolution_choices();

}  // namespace hetero::ops
