// What a ComputeGraph (compute_graph.h) does with tensors while it is built: it keeps them for what
// they look like. Only those of constants have bytes.
//
// Thread safety: one thread at a time. infer() takes the executor's lock.

#pragma once

#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/base/status.h"
#include "graph/program/tensor_view.h"
#include "ops/program/compiled.h"
#include "ops/program/schema_call.h"
#include "ops/tensor/storage.h"

namespace hetero::ops {

inline const c10::Device kGraphDevice(kHetero, 0);

inline Status usage(std::string message) { return Status(ErrorClass::kUsage, std::move(message)); }

// What the call raises, as a Status.
template <typename Call>
Status caught(const Call& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return Status(ErrorClass::kUsage, error.what_without_backtrace(), std::current_exception());
  } catch (const std::bad_alloc&) {
    return Status(ErrorClass::kResource, "there is not enough memory", std::current_exception());
  } catch (const std::exception& error) {
    return Status(ErrorClass::kUsage, error.what(), std::current_exception());
  }
  return Status();
}

// As in inference, whatever the thread does otherwise.
struct Inference {
  const at::NoGradGuard no_gradients{};
  const c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};
};

// Within Inference: operators run in another precision, as with torch.autocast, if it is not f32.
class Autocast {
 public:
  explicit Autocast(at::ScalarType dtype);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  const bool casts_;
  const bool enabled_before_;
  const at::ScalarType dtype_before_;
};

// Ends a capture that is not kept, however the scope is left.
struct CancelledCapture {
  CompiledProgram& program;
  ~CancelledCapture() { program.cancel_capture(); }
};

// Another look at the same bytes: operators that change how a tensor looks, such as aten::t_, leave
// the value's own alone.
at::Tensor another_look(const at::Tensor& tensor);

// What the results look like: tensors without bytes, over the operands' storages where they are
// views. Raises.
std::vector<at::Tensor> infer(const SchemaCall& call, const std::vector<at::Tensor>& operands);
// What PyTorch says of the call on the CPU, with zeros; nothing where it takes it.
std::optional<Status> find_error(const SchemaCall& call, const std::vector<at::Tensor>& operands);

at::Tensor without_bytes(graph::DType dtype, const std::vector<int64_t>& sizes);
at::Tensor copied(const TensorView& view);
// Over memory that `owner` keeps. REQUIRES: can_borrow(view).
at::Tensor borrowed(const TensorView& view, std::shared_ptr<const void> owner);
// Whether it is row-major, at an address that its elements may have.
bool can_borrow(const TensorView& view);

Status check_sizes(const std::string& name, graph::DType dtype, const std::vector<int64_t>& sizes);
TensorView look_of(const at::Tensor& tensor);

}  // namespace hetero::ops
