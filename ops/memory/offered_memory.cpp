#include "ops/memory/offered_memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

namespace hetero::ops {
namespace {

struct Offer {
  void* data = nullptr;
  size_t bytes = 0;
  bool open = false;
};
thread_local constinit Offer offer;

void keep(void* /*data*/) {}

class OfferingAllocator final : public c10::Allocator {
 public:
  explicit OfferingAllocator(c10::Allocator* others) : others_(others) { delete_others = others->raw_deleter(); }

  c10::DataPtr allocate(size_t bytes) override {
    if (!offer.open || bytes != offer.bytes) return others_->allocate(bytes);
    offer.open = false;
    return {offer.data, offer.data, &keep, c10::Device(c10::kCPU)};
  }
  // oneDNN frees what it has allocated for a call by this.
  c10::DeleterFnPtr raw_deleter() const override {
    if (delete_others == nullptr) return nullptr;
    return [](void* data) {
      if (data != offer.data || data == nullptr) delete_others(data);
    };
  }
  void copy_data(void* to, const void* from, size_t bytes) const override { others_->copy_data(to, from, bytes); }

 private:
  static inline c10::DeleterFnPtr delete_others = nullptr;
  c10::Allocator* const others_;
};

}  // namespace

void register_offers() {
  // Leaked on purpose: tensors are freed while the process exits.
  c10::SetCPUAllocator(new OfferingAllocator(c10::GetCPUAllocator()));
}

OfferedMemory::OfferedMemory(void* data, size_t bytes) { offer = {data, bytes, bytes > 0}; }

OfferedMemory::~OfferedMemory() { offer = {}; }

}  // namespace hetero::ops
