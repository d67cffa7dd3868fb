// The machine code is nvcc's output for pieces.cu, a file of the build that is embedded in the
// library.

#include "backend/cuda/piece_kernel.h"

#include <algorithm>
#include <string>

#include "backend/cuda/fused/driver.h"

#ifdef HETERO_PIECES_FILE

asm(R"(
  .pushsection .rodata
  .balign 16
hetero_pieces_begin:
  .incbin ")" HETERO_PIECES_FILE R"("
hetero_pieces_end:
  .popsection
)");

extern "C" {
[[gnu::visibility("hidden")]] extern const char hetero_pieces_begin[];
[[gnu::visibility("hidden")]] extern const char hetero_pieces_end[];
}

#endif

namespace hetero::backend {
namespace {

std::string code() {
#ifdef HETERO_PIECES_FILE
  return {hetero_pieces_begin, hetero_pieces_end};
#else
  return {};
#endif
}

// More blocks make no link faster, and kernels beside this one want to run.
constexpr size_t kMostBlocks = 64;
// What a block of threads copies at once.
constexpr size_t kBlockBytes = size_t{64} * kPieceThreads;

}  // namespace

bool PieceKernel::is_there() {
  std::call_once(loaded_, [this] {
    const std::string image = code();
    const CudaDriver* const driver = image.empty() ? nullptr : CudaDriver::get();
    if (driver == nullptr) return;
    const Result<std::vector<void*>> functions = driver->load(image, {"hetero_copy_pieces"});
    if (!functions.ok()) return;
    driver_ = driver;
    function_ = functions.value().front();
  });
  return function_ != nullptr;
}

Status PieceKernel::launch(const CopyPiece* table, size_t count, size_t bytes, void* stream) const {
  const size_t parts = std::clamp(bytes / count / kBlockBytes, size_t{1}, std::max<size_t>(1, kMostBlocks / count));
  PieceArguments arguments{table, count, parts};
  const auto blocks = static_cast<unsigned>(std::min(count * parts, kMostBlocks));
  return driver_->launch(function_, blocks, kPieceThreads, &arguments, stream);
}

}  // namespace hetero::backend
