#include "ops/process/kineto.h"

#ifdef HETERO_KINETO

#include <kineto/libkineto.h>

#include <array>
#include <memory>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "graph/report/describe.h"
#include "ops/run/profile.h"

namespace hetero::ops {
namespace {

using libkineto::ActivityType;
using libkineto::GenericTraceActivity;

constexpr int32_t kRuns = graph::kMaxQueues;  // the row below the queues

ActivityType type_of(ProfiledSpan::Kind kind) {
  constexpr std::array kTypes = {ActivityType::CONCURRENT_KERNEL, ActivityType::GPU_MEMCPY,
                                 ActivityType::GPU_USER_ANNOTATION};
  return kTypes[static_cast<size_t>(kind)];
}

// Newer ones are plain structs, with their members in another order.
template <typename Info>
Info resource_info(int32_t row, const std::string& name) {
  if constexpr (std::is_aggregate_v<Info>) {
    return Info{.id = row, .sortIndex = row, .deviceId = 0, .name = name};
  } else {
    return Info(/*deviceId=*/0, /*id=*/row, /*sortIndex=*/row, name);
  }
}

class Session final : public libkineto::IActivityProfilerSession {
 public:
  explicit Session(std::set<ActivityType> types) : types_(std::move(types)) {}

  void start() override {
    begun_ = profiler_time();
    profile().start();
  }
  void stop() override {
    spans_ = profile().stop();
    ended_ = profiler_time();
  }
  std::vector<std::string> errors() override { return {}; }

  void processTrace(libkineto::ActivityLogger& logger) override { processTrace(logger, {}, 0, 0); }
  void processTrace(libkineto::ActivityLogger& logger, libkineto::getLinkedActivityCallback linked, int64_t,
                    int64_t) override {
    buffer_ = std::make_unique<libkineto::CpuTraceBuffer>();
    buffer_->span = libkineto::TraceSpan(begun_, ended_, "hetero");
    buffer_->gpuOpCount = static_cast<int>(spans_.size());
    uint32_t flow = 0;
    for (const ProfiledSpan& span : spans_) {
      // Runs are shown wherever kernels are, which every session shows.
      if (span.kind == ProfiledSpan::Kind::kCopy && !types_.contains(ActivityType::GPU_MEMCPY)) continue;
      const auto operation = static_cast<int32_t>(span.note.operation);
      const libkineto::ITraceActivity* const operator_of = linked && operation != 0 ? linked(operation) : nullptr;
      if (operator_of != nullptr && types_.contains(ActivityType::PRIVATEUSE1_RUNTIME)) {
        log_recording(span, *operator_of, ++flow, logger);
      }
      log(span, operator_of, flow, logger);
    }
    buffer_->span.opCount = static_cast<int>(buffer_->activities.size());
  }

  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override {
    constexpr int64_t kBelowProcesses = 5'000'000;  // as Kineto sorts GPUs
    return std::make_unique<libkineto::DeviceInfo>(0, kBelowProcesses, "hetero", "hetero 0");
  }
  std::vector<libkineto::ResourceInfo> getResourceInfos() override {
    std::vector<libkineto::ResourceInfo> infos;
    for (const int32_t row : rows_) {
      infos.push_back(resource_info<libkineto::ResourceInfo>(
          row, row == kRuns ? "runs" : graph::queue_word(static_cast<graph::QueueId>(row))));
    }
    return infos;
  }
  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override { return std::move(buffer_); }

  void pushCorrelationId(uint64_t id) override { begin_operation(id); }
  void popCorrelationId() override { end_operation(); }
  void pushUserCorrelationId(uint64_t id) override { begin_operation(id); }
  void popUserCorrelationId() override { end_operation(); }

 private:
  GenericTraceActivity& make(ActivityType type, const std::string& name) {
    buffer_->emplace_activity(buffer_->span, type, name);
    return *buffer_->activities.back();
  }

  // On the thread of the operator, where it was recorded: the arrow to what ran begins there.
  void log_recording(const ProfiledSpan& span, const libkineto::ITraceActivity& operator_of, uint32_t flow,
                     libkineto::ActivityLogger& logger) {
    const char* const name = span.run == 0 ? "call" : span.kind == ProfiledSpan::Kind::kCopy ? "copy" : "record";
    GenericTraceActivity& activity = make(ActivityType::PRIVATEUSE1_RUNTIME, name);
    activity.startTime = activity.endTime = span.run == 0 ? span.begin : span.note.nanoseconds;
    activity.id = operator_of.correlationId();
    activity.device = operator_of.deviceId();
    activity.resource = operator_of.resourceId();
    activity.threadId = span.note.thread;
    activity.linked = &operator_of;
    activity.flow.id = flow;
    activity.flow.type = libkineto::kLinkAsyncCpuGpu;
    activity.flow.start = 1;
    activity.log(logger);
  }

  void log(const ProfiledSpan& span, const libkineto::ITraceActivity* operator_of, uint32_t flow,
           libkineto::ActivityLogger& logger) {
    GenericTraceActivity& activity = make(type_of(span.kind), span.name);
    activity.startTime = span.begin;
    activity.endTime = span.end;
    activity.device = 0;
    activity.resource = span.kind == ProfiledSpan::Kind::kRun ? kRuns : span.queue;
    activity.threadId = activity.resource;
    rows_.insert(activity.resource);
    if (span.run != 0) activity.addMetadata("run", span.run);
    if (span.kind == ProfiledSpan::Kind::kCopy) {
      activity.addMetadata("bytes", span.bytes);
    } else {
      activity.addMetadata("nodes", span.nodes);
    }
    if (operator_of != nullptr) {
      activity.id = operator_of->correlationId();
      activity.linked = operator_of;
      activity.flow.id = flow;
      activity.flow.type = libkineto::kLinkAsyncCpuGpu;
    }
    activity.log(logger);
  }

  const std::set<ActivityType> types_;
  std::vector<ProfiledSpan> spans_;
  std::unique_ptr<libkineto::CpuTraceBuffer> buffer_;
  std::set<int32_t> rows_;
  int64_t begun_ = 0;
  int64_t ended_ = 0;
};

class Profiler final : public libkineto::IActivityProfiler {
 public:
  const std::string& name() const override { return name_; }
  const std::set<ActivityType>& availableActivities() const override { return types_; }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(const std::set<ActivityType>& types,
                                                                 const libkineto::Config&) override {
    if (!types.contains(ActivityType::CONCURRENT_KERNEL)) return nullptr;
    return std::make_unique<Session>(types);
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(int64_t, int64_t, const std::set<ActivityType>& types,
                                                                 const libkineto::Config& config) override {
    return configure(types, config);
  }

 private:
  const std::string name_ = "hetero";
  const std::set<ActivityType> types_ = {ActivityType::CONCURRENT_KERNEL, ActivityType::GPU_MEMCPY,
                                         ActivityType::GPU_USER_ANNOTATION, ActivityType::PRIVATEUSE1_RUNTIME};
};

}  // namespace

void register_kineto() {
  libkineto::api().registerProfilerFactory([] { return std::make_unique<Profiler>(); });
}

}  // namespace hetero::ops

#else

namespace hetero::ops {
void register_kineto() {}
}  // namespace hetero::ops

#endif
