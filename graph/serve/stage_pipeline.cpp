// How a request goes:
//
// 1. submit() takes a frame, waiting for one if there is none, copies the inputs there and gives it
//    to the first stage's core group.
// 2. Each stage runs as a task of its group: it binds its executor to the frame, runs, and gives
//    the frame to the next stage's group. Groups run tasks in order, so frames never overtake each
//    other.
// 3. The last stage copies the outputs, gives the frame back and ends the request.
//
// A frame belongs to submit(), then to one stage at a time. The mutex guards who may take one, and
// the order of the first stage's queue.

#include "graph/serve/stage_pipeline.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <numeric>
#include <string>

#include "backend/base/size_classes.h"
#include "graph/optimize/cut_program.h"

namespace hetero {

using backend::Block;
using backend::CoreGroup;
using backend::kCpu;
using backend::Task;
using graph::BufferId;
using graph::PlanOptions;
using graph::ProgramStage;
using graph::ProgramValue;

namespace {

constexpr uint32_t kNone = UINT32_MAX;

Status usage(std::string message) { return Status(ErrorClass::kUsage, std::move(message)); }
Status stopped_error() { return {ErrorClass::kCancelled, "the pipeline was stopped before the request was done"}; }

}  // namespace

Status StageRequest::wait() const {
  ended_.wait(false, std::memory_order_acquire);
  return status_;
}

// On the thread of the last stage.
void StagePipeline::end(StageRequest& request, Status status) {
  request.status_ = std::move(status);
  request.ended_.store(true, std::memory_order_release);
  request.ended_.notify_all();
}

struct StagePipeline::Impl {
  struct Frame {
    Impl* pipeline = nullptr;
    Block memory{};
    std::vector<TensorView> views{};  // per value of a frame: its bytes
    std::vector<TensorView> outputs{};
    std::vector<std::pair<uint64_t, uint64_t>> draws{};  // per draw of the whole program
    std::shared_ptr<StageRequest> request{};
    Status status{};
    size_t stage = 0;
  };

  // An input or output of a stage.
  struct Bound {
    uint32_t value;  // of a frame
    bool lent = false;
  };

  struct Stage {
    std::unique_ptr<GraphExecutor> executor{};
    CoreGroup* group = nullptr;
    double seconds = 0;
    std::vector<Bound> inputs{};
    std::vector<Bound> outputs{};
    std::vector<size_t> draws{};  // which of the frame's
    size_t next_draw = 0;
    const Frame* frame = nullptr;  // that runs
  };

  std::shared_ptr<Model> model;
  Options options;
  // Per buffer of the whole program; kNone for those that stay inside a stage.
  std::vector<uint32_t> value_of;
  std::vector<uint64_t> bytes;  // per value of a frame
  std::vector<std::unique_ptr<Stage>> stages;
  // Per stage that is still to be made: what it may use of the accelerator's memory, as a part of
  // what they all may. Empty where there is no limit.
  std::vector<double> shares;
  std::atomic<int32_t> stopped{0};

  mutable std::mutex mutex;
  // Guarded by mutex.
  std::condition_variable room;
  size_t depth = 0;
  // As many as depth, or as are still in flight if these are more.
  std::vector<std::unique_ptr<Frame>> frames;
  std::vector<Frame*> free_frames;
  uint64_t drawn = 0;
  StageCounts counts;

  // After what their tasks use, so that they end first.
  std::vector<std::unique_ptr<CoreGroup>> own_groups;

  const graph::SavedProgram& program() const { return model->program(); }

  Status init();
  Status choose_groups();
  void choose_shares(const std::vector<ProgramStage>& cut);
  Status add_stage(ProgramStage cut, size_t index);
  uint32_t value(BufferId buffer);
  void bind_once();

  Result<std::unique_ptr<Frame>> make_frame();
  Status set_depth(size_t wanted);
  void drop_frames();

  Result<Frame*> take_frame();
  void fill(Frame& frame, std::span<const TensorView> inputs, std::span<const TensorView> outputs) const;
  Status begin(Frame& frame);
  void give_back(Frame& frame, const Status* ended);

  static void run_task(void* frame);
  void run(Frame& frame);
  Status run_stage(Stage& stage, const Frame& frame);
  void finish(Frame& frame);
};

// ---- making it ----------------------------------------------------------------------------------

Result<std::unique_ptr<StagePipeline>> StagePipeline::create(std::shared_ptr<Model> model, Options options) {
  auto impl = std::make_unique<Impl>();
  impl->model = std::move(model);
  impl->options = std::move(options);
  if (Status status = impl->init(); !status.ok()) return status;
  return std::unique_ptr<StagePipeline>(new StagePipeline(std::move(impl)));
}

Status StagePipeline::Impl::init() {
  if (options.plans.empty()) options.plans.assign(options.stages, static_plan_options(options.devices));
  if (options.plans.size() != options.stages) {
    return usage("a pipeline has options of planning for each stage, or none: " + std::to_string(options.stages) +
                 " stages, " + std::to_string(options.plans.size()) + " options");
  }
  const std::shared_ptr<const graph::SavedProgram> shared(model, &program());
  Result<std::vector<ProgramStage>> cut = graph::cut_program(shared, options.plans);
  if (!cut.ok()) return cut.status();
  if (Status status = choose_groups(); !status.ok()) return status;
  value_of.assign(program().graph.buffers.size(), kNone);
  for (const ProgramValue& input : program().inputs) value(input.buffer);
  for (const ProgramValue& output : program().outputs) value(output.buffer);
  choose_shares(cut.value());
  for (size_t s = 0; s < options.stages; ++s) {
    if (Status status = add_stage(std::move(cut.value()[s]), s); !status.ok()) return status;
  }
  if (Status status = set_depth(options.depth == 0 ? 2 * options.stages : options.depth); !status.ok()) return status;
  bind_once();
  return Status();
}

Status StagePipeline::Impl::choose_groups() {
  std::vector<CoreGroup*>& groups = options.groups;
  if (groups.size() == 1) groups.resize(options.stages, groups[0]);
  if (!groups.empty() && (groups.size() != options.stages || std::ranges::count(groups, nullptr) != 0)) {
    return usage("a pipeline has a core group for each stage, or one for all, or none");
  }
  if (!groups.empty()) return Status();
  const auto count = static_cast<int>(options.stages);
  Result<std::vector<std::vector<int>>> parts = backend::split_cores(count);
  const std::vector<std::vector<backend::QueueKind>> queues = backend::split_compute_queues(count);
  for (size_t s = 0; s < options.stages; ++s) {
    CoreGroup::Options group{
        .name = "stage" + std::to_string(s), .threads = parts.ok() ? 0 : 1, .compute_queues = queues[s]};
    if (parts.ok()) group.cores = parts.value()[s];
    Result<std::unique_ptr<CoreGroup>> made = CoreGroup::create(std::move(group));
    if (!made.ok()) return made.status();
    groups.push_back(made.value().get());
    own_groups.push_back(std::move(made.value()));
  }
  return Status();
}

namespace {

// The most that the program's values take at once in the order of its nodes: about what a device
// needs that computes all of it.
double bytes_at_once(const graph::SavedProgram& program) {
  const graph::Graph& graph = program.graph;
  constexpr size_t kUnused = SIZE_MAX;
  std::vector<size_t> first(graph.buffers.size(), kUnused);
  std::vector<size_t> last(graph.buffers.size(), 0);
  const size_t end = graph.nodes.size();
  for (size_t n = 0; n < end; ++n) {
    for (const graph::Operand& operand : std::span(graph.operands_of(graph.nodes[n]), graph.nodes[n].operand_count)) {
      first[operand.buffer] = std::min(first[operand.buffer], n);
      last[operand.buffer] = n;
    }
  }
  const auto keep = [&](BufferId buffer) {
    first[buffer] = 0;
    last[buffer] = end;
  };
  for (const graph::ProgramConstant& constant : program.constants) keep(constant.buffer);
  for (const ProgramValue& input : program.inputs) keep(input.buffer);
  for (const ProgramValue& output : program.outputs) keep(output.buffer);
  std::vector<double> change(end + 2, 0);
  for (BufferId b = 0; b < graph.buffers.size(); ++b) {
    if (first[b] == kUnused) continue;
    const auto bytes = static_cast<double>(backend::round_to_alignment(graph.buffers[b].bytes));
    change[first[b]] += bytes;
    change[last[b] + 1] -= bytes;
  }
  double most = 0;
  double now = 0;
  for (const double bytes : change) most = std::max(most, now += bytes);
  return most;
}

}  // namespace

void StagePipeline::Impl::choose_shares(const std::vector<ProgramStage>& cut) {
  const std::optional<uint64_t> all = bytes_to_share(options.devices, options.accelerator_bytes);
  if (!all.has_value()) return;
  options.accelerator_bytes = all;
  for (size_t s = 0; s < options.stages; ++s) {
    shares.push_back(options.plans[s].machine.has_accelerator() ? bytes_at_once(*cut[s].program) : 0);
  }
}

uint32_t StagePipeline::Impl::value(BufferId buffer) {
  if (value_of[buffer] == kNone) {
    value_of[buffer] = static_cast<uint32_t>(bytes.size());
    bytes.push_back(program().graph.buffers[buffer].bytes);
  }
  return value_of[buffer];
}

Status StagePipeline::Impl::add_stage(ProgramStage cut, size_t index) {
  Stage& stage = *stages.emplace_back(std::make_unique<Stage>());
  stage.group = options.groups[index];
  stage.seconds = cut.seconds;
  stage.draws = std::move(cut.draws);
  for (const ProgramValue& input : cut.program->inputs) stage.inputs.push_back({value(cut.buffers[input.buffer])});
  for (const ProgramValue& output : cut.program->outputs) stage.outputs.push_back({value(cut.buffers[output.buffer])});
  Result<std::shared_ptr<Model>> part = Model::create(std::move(cut.program));
  if (!part.ok()) return part.status();
  GraphExecutor::Options chosen;
  chosen.slots = 1;
  chosen.compute_queues = stage.group->compute_queues();
  chosen.devices = options.devices;
  if (!options.plans[index].machine.has_accelerator()) chosen.devices = {chosen.devices[backend::kCpu]};
  chosen.plan = std::make_unique<PlanOptions>(options.plans[index]);
  if (!shares.empty()) {
    // What the stages before have left of their parts is for those behind.
    const double rest = std::accumulate(shares.begin() + static_cast<ptrdiff_t>(index), shares.end(), 0.0);
    const double share = rest > 0 ? shares[index] / rest : 0;
    chosen.accelerator_bytes = static_cast<uint64_t>(share * static_cast<double>(*options.accelerator_bytes));
  }
  chosen.draw = [&stage] { return stage.frame->draws[stage.draws[stage.next_draw++]]; };
  Result<std::unique_ptr<GraphExecutor>> executor = GraphExecutor::Init(std::move(part.value()), std::move(chosen));
  if (!executor.ok()) return executor.status();
  stage.executor = std::move(executor.value());
  if (!shares.empty()) {
    const uint64_t taken = backend::round_to_alignment(stage.executor->bytes(options.plans[index].searched)) +
                           backend::round_to_alignment(stage.executor->weight_bytes());
    *options.accelerator_bytes -= std::min(*options.accelerator_bytes, taken);
  }
  return Status();
}

// What an executor can be lent does not depend on the frame.
void StagePipeline::Impl::bind_once() {
  const Frame& frame = *frames[0];
  for (const auto& stage : stages) {
    for (size_t i = 0; i < stage->inputs.size(); ++i) {
      stage->inputs[i].lent = stage->executor->SetInputZeroCopy(i, frame.views[stage->inputs[i].value]).ok();
      ++(stage->inputs[i].lent ? counts.lent : counts.copied);
    }
    for (size_t i = 0; i < stage->outputs.size(); ++i) {
      stage->outputs[i].lent = stage->executor->SetOutputZeroCopy(i, frame.views[stage->outputs[i].value]).ok();
      ++(stage->outputs[i].lent ? counts.lent : counts.copied);
    }
  }
}

// ---- frames -------------------------------------------------------------------------------------

Result<std::unique_ptr<StagePipeline::Impl::Frame>> StagePipeline::Impl::make_frame() {
  uint64_t total = 0;
  for (const uint64_t size : bytes) total += backend::round_to_alignment(size);
  Result<Block> block = options.devices[kCpu]->allocate(total);
  if (!block.ok()) return block.status();
  auto frame = std::make_unique<Frame>();
  frame->pipeline = this;
  frame->memory = std::move(block.value());
  frame->draws.resize(program().draws.size());
  auto* at = static_cast<std::byte*>(frame->memory.data());
  for (const uint64_t size : bytes) {
    frame->views.push_back(TensorView::row_major(at, "u8", {static_cast<int64_t>(size)}));
    at += backend::round_to_alignment(size);
  }
  return frame;
}

Status StagePipeline::Impl::set_depth(size_t wanted) {
  if (wanted == 0) return usage("a pipeline needs a depth of one at least");
  const std::lock_guard lock(mutex);
  while (frames.size() < wanted) {
    Result<std::unique_ptr<Frame>> frame = make_frame();
    if (!frame.ok()) {
      drop_frames();
      return frame.status();
    }
    frames.push_back(std::move(frame.value()));
    free_frames.reserve(frames.size());
    free_frames.push_back(frames.back().get());
  }
  depth = wanted;
  drop_frames();
  room.notify_all();
  return Status();
}

// Those that are free and too many. REQUIRES: the mutex is held.
void StagePipeline::Impl::drop_frames() {
  while (frames.size() > depth && !free_frames.empty()) {
    std::erase_if(frames, [&](const auto& frame) { return frame.get() == free_frames.back(); });
    free_frames.pop_back();
  }
}

Result<StagePipeline::Impl::Frame*> StagePipeline::Impl::take_frame() {
  std::unique_lock lock(mutex);
  const auto full = [this] { return counts.in_flight >= static_cast<int64_t>(depth); };
  if (options.when_full == WhenFull::kWait) room.wait(lock, [&] { return stopped.load() != 0 || !full(); });
  if (stopped.load() != 0) return stopped_error();
  if (full()) {
    return Status(ErrorClass::kResource,
                  "the pipeline has no room: " + std::to_string(counts.in_flight) +
                      " requests are in flight; submit again when one has ended, or raise the depth");
  }
  counts.most_in_flight = std::max(counts.most_in_flight, ++counts.in_flight);
  Frame* const frame = free_frames.back();
  free_frames.pop_back();
  return frame;
}

// `ended`: how its request has; null where there was none.
void StagePipeline::Impl::give_back(Frame& frame, const Status* ended) {
  const std::lock_guard lock(mutex);
  --counts.in_flight;
  if (ended != nullptr) ++(ended->ok() ? counts.completed : counts.failed);
  free_frames.push_back(&frame);
  drop_frames();
  room.notify_one();
}

// ---- requests -----------------------------------------------------------------------------------

void StagePipeline::Impl::fill(Frame& frame, std::span<const TensorView> inputs,
                               std::span<const TensorView> outputs) const {
  for (size_t i = 0; i < inputs.size(); ++i) {
    const ProgramValue& input = program().inputs[i];
    graph::copy_in(inputs[i], program().windows[input.window], frame.views[value_of[input.buffer]].data);
  }
  frame.outputs.assign(outputs.begin(), outputs.end());
  frame.stage = 0;
}

Status StagePipeline::Impl::begin(Frame& frame) {
  const std::lock_guard lock(mutex);
  for (auto& draw : frame.draws) draw = options.draw ? options.draw() : std::pair<uint64_t, uint64_t>{0, drawn++};
  Status status = stages[0]->group->submit({&run_task, &frame});
  if (status.ok()) ++counts.submitted;
  return status;
}

Result<std::shared_ptr<StageRequest>> StagePipeline::submit(std::span<const TensorView> inputs,
                                                            std::span<const TensorView> outputs) {
  Impl& impl = *impl_;
  Status status = impl.model->inputs().check_request(inputs);
  if (status.ok()) status = impl.model->outputs().check_request(outputs);
  if (!status.ok()) return status;
  auto request = std::make_shared<StageRequest>();
  const Result<Impl::Frame*> taken = impl.take_frame();
  if (!taken.ok()) return taken.status();
  Impl::Frame& frame = *taken.value();
  impl.fill(frame, inputs, outputs);
  frame.request = request;
  if (status = impl.begin(frame); status.ok()) return request;
  frame.request.reset();
  impl.give_back(frame, nullptr);
  return status;
}

void StagePipeline::Impl::run_task(void* frame) {
  auto& running = *static_cast<Frame*>(frame);
  running.pipeline->run(running);
}

void StagePipeline::Impl::run(Frame& frame) {
  if (frame.status.ok() && stopped.load(std::memory_order_relaxed) != 0) frame.status = stopped_error();
  if (frame.status.ok()) {
    try {
      frame.status = run_stage(*stages[frame.stage], frame);
    } catch (const std::exception& error) {
      frame.status = {ErrorClass::kResource, error.what(), std::current_exception()};
    }
  }
  if (++frame.stage == stages.size()) return finish(frame);
  // The next stage has the frame from here on.
  Status status = stages[frame.stage]->group->submit({&run_task, &frame});
  if (status.ok()) return;
  frame.status = std::move(status);
  finish(frame);
}

Status StagePipeline::Impl::run_stage(Stage& stage, const Frame& frame) {
  GraphExecutor& executor = *stage.executor;
  stage.frame = &frame;
  stage.next_draw = 0;
  for (size_t i = 0; i < stage.inputs.size(); ++i) {
    const TensorView& view = frame.views[stage.inputs[i].value];
    Status status = stage.inputs[i].lent ? executor.SetInputZeroCopy(i, view) : executor.SetInput(i, view);
    if (!status.ok()) return status;
  }
  for (size_t i = 0; i < stage.outputs.size(); ++i) {
    if (!stage.outputs[i].lent) continue;
    Status status = executor.SetOutputZeroCopy(i, frame.views[stage.outputs[i].value]);
    if (!status.ok()) return status;
  }
  Status status = executor.Run(0, &stopped);
  // Also after an error, which the executor forgets by this.
  if (Status ended = executor.Wait(0); status.ok()) status = std::move(ended);
  for (size_t i = 0; status.ok() && i < stage.outputs.size(); ++i) {
    if (!stage.outputs[i].lent) status = executor.GetOutput(i, frame.views[stage.outputs[i].value]);
  }
  return status;
}

void StagePipeline::Impl::finish(Frame& frame) {
  for (size_t i = 0; frame.status.ok() && i < frame.outputs.size(); ++i) {
    const ProgramValue& output = program().outputs[i];
    graph::copy_out(program().windows[output.window], frame.views[value_of[output.buffer]].data, frame.outputs[i]);
  }
  const std::shared_ptr<StageRequest> request = std::move(frame.request);
  Status status = std::exchange(frame.status, Status());
  // Whoever has waited for the request finds room.
  give_back(frame, &status);
  end(*request, std::move(status));
}

// ---- the rest -----------------------------------------------------------------------------------

StagePipeline::StagePipeline(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

StagePipeline::~StagePipeline() {
  stop();
  (void)wait_idle();
}

Status StagePipeline::set_depth(size_t depth) { return impl_->set_depth(depth); }

size_t StagePipeline::depth() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->depth;
}

void StagePipeline::stop() {
  const std::lock_guard lock(impl_->mutex);
  impl_->stopped.store(1);
  impl_->room.notify_all();
}

// Each stage in turn: when it has run what it had, the next has been given all of it.
Status StagePipeline::wait_idle() {
  for (const auto& stage : impl_->stages) {
    if (Status status = stage->group->wait_idle(); !status.ok()) return status;
  }
  return Status();
}

size_t StagePipeline::stages() const { return impl_->stages.size(); }
const GraphExecutor& StagePipeline::executor(size_t stage) const { return *impl_->stages[stage]->executor; }
double StagePipeline::predicted_seconds(size_t stage) const { return impl_->stages[stage]->seconds; }

StageCounts StagePipeline::counts() const {
  const std::lock_guard lock(impl_->mutex);
  StageCounts counts = impl_->counts;
  counts.frames = static_cast<int64_t>(impl_->frames.size());
  return counts;
}

}  // namespace hetero
