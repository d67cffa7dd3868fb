// Servers in Python. A lane never takes the interpreter's lock: requests that have ended go into a
// queue, from which a thread of Python takes them and completes their futures.

#include "torch_hetero/csrc/server.h"

#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "graph/program/program_sizes.h"
#include "graph/serve/server.h"
#include "ops/program/static_call.h"
#include "torch_hetero/csrc/saved.h"

namespace py = pybind11;

namespace hetero::python {
namespace {

class PythonRequest;

// Requests that have ended and were not taken yet. Thread safety: any thread.
class EndedRequests {
 public:
  void expect() {
    const std::lock_guard lock(mutex_);
    ++expected_;
  }
  void expect_no_more() {
    const std::lock_guard lock(mutex_);
    --expected_;
    changed_.notify_all();
  }
  void add(std::shared_ptr<PythonRequest> request) {
    const std::lock_guard lock(mutex_);
    ended_.push_back(std::move(request));
    changed_.notify_all();
  }
  // Blocks until there are some. None: all were taken, and stop() was called.
  std::vector<std::shared_ptr<PythonRequest>> take() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !ended_.empty() || (stopped_ && expected_ == 0); });
    expected_ -= ended_.size();
    return std::exchange(ended_, {});
  }
  void stop() {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<PythonRequest>> ended_;
  size_t expected_ = 0;  // submitted and not taken
  bool stopped_ = false;
};

// Of the program's dimensions in a call with these inputs. Raises a ValueError where the program
// does not take them.
std::vector<int64_t> sizes_of(const graph::SavedProgram& program, const std::vector<TensorView>& inputs) {
  if (program.dynamic.dimensions().empty()) return {};
  Result<std::vector<int64_t>> found = graph::find_sizes(program, inputs);
  ops::check(found.status());
  return std::move(found.value());
}

std::vector<TensorShape> output_shapes(const graph::SavedProgram& program, const std::vector<int64_t>& sizes) {
  Result<std::vector<TensorShape>> shapes = graph::output_shapes(program, sizes);
  ops::check(shapes.status());
  return std::move(shapes.value());
}

// Owns the tensors of a request.
class PythonRequest final : public Server::Request, public std::enable_shared_from_this<PythonRequest> {
 public:
  PythonRequest(uint64_t number, std::vector<at::Tensor> given, const graph::SavedProgram& program,
                std::shared_ptr<EndedRequests> ended)
      : number_(number), given_(std::move(given)), program_(program), ended_(std::move(ended)) {
    for (const at::Tensor& tensor : given_) inputs.push_back(ops::view_of(tensor));
    sizes = sizes_of(program, inputs);
    for (const TensorShape& shape : output_shapes(program, sizes)) {
      made_.push_back(ops::empty_output(shape));
      outputs.push_back(ops::view_of(made_.back()));
    }
  }

  uint64_t number() const { return number_; }
  // The results, once. Raises what went wrong. REQUIRES: it has ended.
  py::list take_results() {
    ops::check(status());
    for (size_t o = 0; o < made_.size(); ++o) ops::mark_output(program_, o, made_[o]);
    given_.clear();
    return list_of(std::exchange(made_, {}));
  }

 private:
  void on_end() noexcept override { ended_->add(shared_from_this()); }

  const uint64_t number_;
  std::vector<at::Tensor> given_;
  std::vector<at::Tensor> made_;
  const graph::SavedProgram& program_;
  const std::shared_ptr<EndedRequests> ended_;
};

// A group as Python says it: name, cores, threads, and compute queues, which count from 1 as in
// reports.
using GroupFields = std::tuple<std::string, std::vector<int>, int, std::vector<int>>;

std::vector<backend::CoreGroup::Options> lanes_from(std::vector<GroupFields> groups) {
  std::vector<backend::CoreGroup::Options> lanes;
  for (auto& [name, cores, threads, numbers] : groups) {
    backend::CoreGroup::Options& lane = lanes.emplace_back();
    lane = {.name = std::move(name), .cores = std::move(cores), .threads = threads};
    for (const int number : numbers) {
      TORCH_CHECK_VALUE(number >= 1 && number <= backend::kComputeQueues, "hetero: core group \"", lane.name,
                        "\": there is no compute queue ", number, "; choose among 1 to ", backend::kComputeQueues);
      lane.compute_queues.push_back(backend::compute_queue(number - 1));
    }
  }
  return lanes;
}

std::vector<int> queue_numbers(const backend::CoreGroup& group) {
  std::vector<int> numbers;
  for (const backend::QueueKind queue : group.compute_queues()) {
    numbers.push_back(1 + backend::compute_queue_number(queue));
  }
  for (int n = 0; group.compute_queues().empty() && n < backend::kComputeQueues; ++n) numbers.push_back(1 + n);
  return numbers;
}

// So many seconds from now; what no clock shows is never.
graph::Request::Clock::time_point deadline_in(double seconds) {
  using Clock = graph::Request::Clock;
  TORCH_CHECK_VALUE(!std::isnan(seconds), "hetero: timeout is a number of seconds, not nan");
  const Clock::time_point now = Clock::now();
  // A second less, for the difference is rounded.
  const double most = std::chrono::duration<double>(Clock::time_point::max() - now).count() - 1;
  if (seconds >= most) return graph::Request::kNever;
  return now + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(std::max(seconds, 0.0)));
}

class PythonServer {
 public:
  // `lanes`: instead of so many groups.
  PythonServer(std::shared_ptr<Model> model, int groups, std::vector<GroupFields> lanes, size_t capacity,
               bool waits_when_full, std::optional<uint64_t> accelerator_bytes)
      : model_(std::move(model)) {
    Result<std::unique_ptr<Server>> server =
        Server::create(model_, {.groups = groups,
                                .lanes = lanes_from(std::move(lanes)),
                                .capacity = capacity,
                                .when_full = waits_when_full ? Server::WhenFull::kWait : Server::WhenFull::kRefuse,
                                .accelerator_bytes = accelerator_bytes,
                                .executor = [] { return ops::executor_options(ops::static_plan_options()); }});
    ops::check(server.status());
    server_ = std::move(server.value());
  }

  Server& server() { return *server_; }
  EndedRequests& ended() { return *ended_; }

  // Null where there was no room.
  std::shared_ptr<PythonRequest> submit(uint64_t number, const py::list& inputs, std::optional<double> seconds) {
    std::vector<at::Tensor> given = tensors_of(inputs);
    const py::gil_scoped_release released;
    auto request = std::make_shared<PythonRequest>(number, std::move(given), model_->program(), ended_);
    graph::RequestOptions options;
    if (seconds.has_value()) options.deadline = deadline_in(*seconds);
    ended_->expect();
    const Status status = server_->submit(request, options);
    if (status.ok()) return request;
    if (request->state() == graph::RequestState::kLate) {
      // It came too late, which is no error of the call but its future's.
      ended_->add(request);
      return request;
    }
    ended_->expect_no_more();
    if (status.error_class() != ErrorClass::kResource) ops::check(status);
    return nullptr;
  }

 private:
  const std::shared_ptr<Model> model_;
  const std::shared_ptr<EndedRequests> ended_ = std::make_shared<EndedRequests>();
  std::unique_ptr<Server> server_;
};

const char* state_name(const PythonRequest& request) {
  switch (request.state()) {
    case graph::RequestState::kNew:
    case graph::RequestState::kWaiting:
      return "waiting";
    case graph::RequestState::kRunning:
      return "running";
    case graph::RequestState::kDone:
      return "done";
    case graph::RequestState::kLate:
      return "late";
    case graph::RequestState::kCancelled:
    case graph::RequestState::kRefused:
      break;
  }
  return "cancelled";
}

py::dict counters_of(PythonServer& server) {
  const graph::SchedulerCounters counters = server.server().counters();
  py::dict result;
#define X(name, text) result[#name] = counters.name;
  HETERO_SCHEDULER_COUNTERS(X)
#undef X
  return result;
}

py::list lanes_of(PythonServer& server) {
  py::list lanes;
  for (size_t lane = 0; lane < server.server().lanes(); ++lane) {
    const backend::CoreGroup& group = server.server().group(lane);
    py::dict described;
    described["name"] = group.name();
    described["cores"] = group.cores();
    described["threads"] = group.threads();
    described["compute_queues"] = queue_numbers(group);
    described["plan_origin"] = server.server().executor(lane).plan().origin;
    lanes.append(described);
  }
  return lanes;
}

}  // namespace

void add_server(py::module_& m) {
  using released = py::call_guard<py::gil_scoped_release>;
  py::class_<PythonRequest, std::shared_ptr<PythonRequest>>(m, "ServerRequest")
      .def_property_readonly("number", &PythonRequest::number)
      .def_property_readonly("state", &state_name)
      .def(
          "cancel", [](PythonRequest& request) { request.cancel(); }, released())
      .def("take_results", &PythonRequest::take_results);
  py::class_<PythonServer>(m, "Server")
      .def(py::init<std::shared_ptr<Model>, int, std::vector<GroupFields>, size_t, bool, std::optional<uint64_t>>(),
           released())
      .def("submit", &PythonServer::submit)
      .def(
          "take_ended", [](PythonServer& server) { return server.ended().take(); }, released())
      .def(
          "stop", [](PythonServer& server) { server.ended().stop(); }, released())
      .def(
          "close",
          [](PythonServer& server, bool run) {
            server.server().close(run ? Server::WhenClosed::kRun : Server::WhenClosed::kCancel);
          },
          released())
      .def(
          "wait_idle", [](PythonServer& server) { server.server().wait_idle(); }, released())
      .def_property_readonly("counters", &counters_of)
      .def_property_readonly("lanes", &lanes_of);
}

}  // namespace hetero::python
