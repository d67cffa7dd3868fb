// run_saved FOLDER...: in each, runs the program `m.hetero` on the bytes of `input0`, `input1` and
// so on, and writes those of `output0` and so on. Where a step is refused, its sentence goes to
// standard output, and the next folder follows.

#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "graph/serve/graph_executor.h"
#include "ops/process/start.h"

namespace {

using hetero::GraphExecutor;
using hetero::Status;
using hetero::TensorView;

// Row-major, over `bytes`.
TensorView view_of(const GraphExecutor& executor, const hetero::graph::ProgramValue& value, std::vector<char>& bytes) {
  const hetero::graph::Window& window = executor.program().windows[value.window];
  TensorView view;
  view.dtype = window.dtype;
  view.sizes.assign(window.sizes().begin(), window.sizes().end());
  bytes.resize(static_cast<size_t>(window.numel) * hetero::graph::dtype_bytes(window.dtype));
  view.data = bytes.data();
  return view;
}

Status run(const std::string& folder) {
  auto made = GraphExecutor::Init(folder + "/m.hetero", {});
  if (!made.ok()) return made.status();
  GraphExecutor& executor = *made.value();
  for (size_t i = 0; i < executor.inputs().size(); ++i) {
    std::vector<char> bytes;
    const TensorView view = view_of(executor, executor.inputs()[i], bytes);
    std::ifstream(folder + "/input" + std::to_string(i), std::ios::binary)
        .read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    if (Status status = executor.SetInput(i, view); !status.ok()) return status;
  }
  if (Status status = executor.Run(); !status.ok()) return status;
  for (size_t i = 0; i < executor.outputs().size(); ++i) {
    std::vector<char> bytes;
    if (Status status = executor.GetOutput(i, view_of(executor, executor.outputs()[i], bytes)); !status.ok()) {
      return status;
    }
    std::ofstream(folder + "/output" + std::to_string(i), std::ios::binary)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
  return Status();
}

}  // namespace

int main(int count, char** arguments) {
  if (!hetero::start().ok()) return 2;
  for (int i = 1; i < count; ++i) {
    if (const Status status = run(arguments[i]); !status.ok()) {
      std::printf("%s: %s\n", arguments[i], status.message().c_str());
    }
  }
  return 0;
}
