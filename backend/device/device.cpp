#include "backend/device/device.h"

namespace hetero::backend {

const char* to_string(QueueKind kind) {
  switch (kind) {
    case QueueKind::kCompute:
      return "compute";
    case QueueKind::kHostToDevice:
      return "h2d";
    case QueueKind::kDeviceToHost:
      return "d2h";
    case QueueKind::kUrgentToDevice:
      return "urgent h2d";
    case QueueKind::kUrgentToHost:
      return "urgent d2h";
    case QueueKind::kCompute2:
      return "compute 2";
    case QueueKind::kCompute3:
      return "compute 3";
    case QueueKind::kCompute4:
      return "compute 4";
    case QueueKind::kFromPeer:
      return "p2p";
  }
  return "unknown";
}

Result<std::unique_ptr<Segment>> Queue::record_segment(std::span<const Task> tasks) {
  (void)tasks;
  return Status(ErrorClass::kUsage, "the device records no segments; launch the tasks one by one");
}

Status Queue::launch_segment(Segment& segment) {
  (void)segment;
  return Status(ErrorClass::kUsage, "the device has no segments; launch the tasks one by one");
}

Status Queue::copy_batch(std::span<const CopyRange> ranges) {
  for (const CopyRange& range : ranges) {
    if (Status status = copy(range.destination, range.source, range.bytes); !status.ok()) return status;
  }
  return {};
}

Result<bool> Device::run_fused(const FusedCall& call) {
  (void)call;
  return Status(ErrorClass::kUsage, name() + ": the device runs no fused kernels");
}

Result<double> Device::seconds_between(const Event& first, const Event& second) const {
  (void)first;
  (void)second;
  return Status(ErrorClass::kUsage, name() + ": the time between these events is not known");
}

}  // namespace hetero::backend
