#include "graph/serve/server.h"

#include <utility>

#include "graph/program/program_sizes.h"

namespace hetero {

using backend::CoreGroup;

namespace {

Status usage(std::string message) { return Status(ErrorClass::kUsage, std::move(message)); }

// The name of a state that the program changes; null where there is none.
const std::string* changed_state(const Model& model) {
  for (const graph::ProgramConstant& constant : model.program().constants) {
    if (model.is_written(constant.buffer)) return &constant.name;
  }
  return nullptr;
}

Result<std::vector<CoreGroup::Options>> groups_of_cores(int groups) {
  Result<std::vector<std::vector<int>>> parts = backend::split_cores(groups);
  if (!parts.ok()) return parts.status();
  const std::vector<std::vector<backend::QueueKind>> queues = backend::split_compute_queues(groups);
  std::vector<CoreGroup::Options> options;
  for (std::vector<int>& cores : parts.value()) {
    const size_t lane = options.size();
    options.push_back(
        {.name = "lane" + std::to_string(lane), .cores = std::move(cores), .compute_queues = queues[lane]});
  }
  return options;
}

// Calls a function on the group's thread and waits for it.
template <typename Function>
Status call_on(CoreGroup& group, Function function) {
  const Status submitted =
      group.submit({[](void* context) { (*static_cast<Function*>(context))(); }, static_cast<void*>(&function)});
  return submitted.ok() ? group.wait_idle() : submitted;
}

}  // namespace

Result<std::unique_ptr<Server>> Server::create(std::shared_ptr<Model> model, Options options) {
  if (model == nullptr) return usage("a server needs a model, and was given none");
  std::unique_ptr<Server> server(new Server(std::move(model)));
  if (Status status = server->start(std::move(options)); !status.ok()) return status;
  return server;
}

Server::Server(std::shared_ptr<Model> model) : model_(std::move(model)) {}

Server::~Server() = default;

Status Server::start(Options options) {
  if (options.lanes.empty()) {
    Result<std::vector<CoreGroup::Options>> groups = groups_of_cores(options.groups);
    if (!groups.ok()) return groups.status();
    options.lanes = std::move(groups.value());
  }
  if (const std::string* state = changed_state(*model_); state != nullptr && options.lanes.size() > 1) {
    return usage("the program changes its state '" + *state +
                 "', which every lane would have for itself; serve it with one lane");
  }
  lane_count_ = options.lanes.size();
  accelerator_bytes_ = options.accelerator_bytes;
  // One after the other: what planning measures, another lane would disturb, and the first says
  // what weights there are on the accelerator.
  for (CoreGroup::Options& group : options.lanes) {
    if (Status status = start_lane(std::move(group), options); !status.ok()) return status;
  }
  std::vector<CoreGroup*> groups;
  for (const auto& lane : lanes_) groups.push_back(lane->group.get());
  auto scheduler = graph::Scheduler::create(
      groups, {.capacity = options.capacity, .when_full = options.when_full},
      [this](size_t lane, graph::Request& request) { return run(*lanes_[lane], static_cast<Request&>(request)); });
  if (!scheduler.ok()) return scheduler.status();
  scheduler_ = std::move(scheduler.value());
  return Status();
}

Status Server::start_lane(CoreGroup::Options group, const Options& options) {
  Result<std::unique_ptr<CoreGroup>> made = CoreGroup::create(std::move(group));
  if (!made.ok()) return made.status();
  Lane& lane = *lanes_.emplace_back(std::make_unique<Lane>());
  lane.group = std::move(made.value());
  lane.lent.resize(model_->program().outputs.size());
  Status status;
  const Status called = call_on(*lane.group, [&] { status = make_executor(lane, options); });
  return called.ok() ? status : called;
}

// On the lane's thread.
Status Server::make_executor(Lane& lane, const Options& options) {
  try {
    GraphExecutor::Options chosen = options.executor ? options.executor() : GraphExecutor::Options();
    chosen.slots = 1;
    chosen.group = nullptr;
    chosen.compute_queues = lane.group->compute_queues();
    const bool shares = choose_share(chosen);
    if (!chosen.draw) {
      chosen.draw = [this] { return std::pair(uint64_t{0}, draws_.fetch_add(1, std::memory_order_relaxed)); };
    }
    Result<std::unique_ptr<GraphExecutor>> executor = GraphExecutor::Init(model_, std::move(chosen));
    if (!executor.ok()) return executor.status();
    lane.executor = std::move(executor.value());
    if (shares) *accelerator_bytes_ -= lane.executor->accelerator_share();
    return Status();
  } catch (const std::exception& error) {
    return {ErrorClass::kInternal, std::string("a lane's executor could not be made: ") + error.what(),
            std::current_exception()};
  }
}

// The first lane says how much there is, the others have what it left. False where there is no
// limit to share, or no accelerator.
bool Server::choose_share(GraphExecutor::Options& chosen) {
  const std::optional<uint64_t> bytes = bytes_to_share(chosen.devices, accelerator_bytes_);
  if (!bytes.has_value()) return false;
  chosen.accelerator_bytes = accelerator_bytes_ = bytes;
  chosen.sharers = lane_count_ + 1 - lanes_.size();
  return true;
}

// ---- submitting ---------------------------------------------------------------------------------

Status Server::submit(std::shared_ptr<Request> request, graph::RequestOptions options) {
  if (request == nullptr) return usage("the request to submit is null");
  std::vector<int64_t> sizes = request->sizes;
  const graph::SavedProgram& program = model_->program();
  if (const size_t count = program.dynamic.dimensions().size(); !sizes.empty() && sizes.size() != count) {
    return usage("the program has " + std::to_string(count) + " dimensions, and the request says " +
                 std::to_string(sizes.size()) + " sizes");
  }
  if (sizes.empty() && !program.dynamic.dimensions().empty()) {
    Result<std::vector<int64_t>> found = graph::find_sizes(program, request->inputs);
    if (!found.ok()) return found.status();
    sizes = std::move(found.value());
  }
  Status status = model_->inputs().check_request(request->inputs, sizes);
  if (status.ok()) status = model_->outputs().check_request(request->outputs, sizes);
  if (status.ok()) request->sizes_ = std::move(sizes);
  return status.ok() ? scheduler_->submit(std::move(request), options) : status;
}

Result<std::shared_ptr<Server::Request>> Server::submit(std::vector<TensorView> inputs, std::vector<TensorView> outputs,
                                                        graph::RequestOptions options) {
  auto request = std::make_shared<Request>();
  request->inputs = std::move(inputs);
  request->outputs = std::move(outputs);
  if (Status status = submit(request, options); !status.ok()) return status;
  return request;
}

// ---- running ------------------------------------------------------------------------------------

// On the lane's thread. Whatever happens, devices are done with the request's memory afterwards.
Status Server::run(Lane& lane, Request& request) {
  const Status status = run_program(lane, request);
  const Status waited = lane.executor->Wait();
  return status.ok() ? waited : status;
}

Status Server::run_program(Lane& lane, Request& request) {
  GraphExecutor& executor = *lane.executor;
  if (!request.sizes_.empty()) {
    if (Status status = executor.SetSizes(request.sizes_); !status.ok()) return status;
  }
  for (size_t i = 0; i < request.inputs.size(); ++i) {
    if (Status status = executor.OfferInput(i, request.inputs[i]); !status.ok()) return status;
  }
  for (size_t o = 0; o < request.outputs.size(); ++o) {
    const Result<bool> lent = executor.OfferOutput(o, request.outputs[o]);
    if (!lent.ok()) return lent.status();
    lane.lent[o] = lent.value();
  }
  if (Status status = executor.Run(0, &request.stop()); !status.ok()) return status;
  for (size_t o = 0; o < request.outputs.size(); ++o) {
    if (lane.lent[o] != 0) continue;
    if (Status status = executor.GetOutput(o, request.outputs[o]); !status.ok()) return status;
  }
  return Status();
}

void Server::close(WhenClosed waiting) { scheduler_->close(waiting); }
void Server::wait_idle() { scheduler_->wait_idle(); }
graph::SchedulerCounters Server::counters() const { return scheduler_->counters(); }

}  // namespace hetero
