#include "backend/device.h"

namespace hetero::backend {

const char* to_string(QueueKind kind) {
  switch (kind) {
    case QueueKind::kCompute:
      return "compute";
    case QueueKind::kHostToDevice:
      return "h2d";
    case QueueKind::kDeviceToHost:
      return "d2h";
  }
  return "unknown";
}

}  // namespace hetero::backend
