#include "ops/process/torch_accelerator.h"

#include <ATen/DeviceAccelerator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <optional>
#include <string_view>

namespace hetero::ops {
namespace {

// An entry of a library's procedure linkage table that is to lead elsewhere.
struct Detour {
  const char* symbol;
  void* target;
};

bool (*is_accelerator_of_torch)(c10::DeviceType) = nullptr;

std::optional<c10::DeviceType> accelerator(bool) { return c10::DeviceType::CUDA; }

bool is_accelerator(c10::DeviceType type) {
  return type != c10::DeviceType::PrivateUse1 && is_accelerator_of_torch(type);
}

// Asking CUDA itself would initialize it, and a child that is forked later could not use it any
// more.
bool machine_has_gpu() {
  for (const char* const device : {"/dev/nvidiactl", "/dev/dxg"}) {
    if (access(device, F_OK) == 0) return true;
  }
  void* const driver = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_LAZY);
  if (driver != nullptr) dlclose(driver);
  return driver != nullptr;
}

// The dynamic section of a loaded library, as far as its calls of other functions are concerned.
struct Calls {
  const ElfW(Rela) * relocations = nullptr;
  size_t count = 0;
  const ElfW(Sym) * symbols = nullptr;
  const char* names = nullptr;
};

Calls calls_of(const dl_phdr_info& library) {
  Calls calls;
  for (int i = 0; i < library.dlpi_phnum; ++i) {
    if (library.dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
    const auto* entry = reinterpret_cast<const ElfW(Dyn)*>(library.dlpi_addr + library.dlpi_phdr[i].p_vaddr);
    for (; entry->d_tag != DT_NULL; ++entry) {
      switch (entry->d_tag) {
        case DT_JMPREL:
          calls.relocations = reinterpret_cast<const ElfW(Rela)*>(entry->d_un.d_ptr);
          break;
        case DT_PLTRELSZ:
          calls.count = entry->d_un.d_val / sizeof(ElfW(Rela));
          break;
        case DT_SYMTAB:
          calls.symbols = reinterpret_cast<const ElfW(Sym)*>(entry->d_un.d_ptr);
          break;
        case DT_STRTAB:
          calls.names = reinterpret_cast<const char*>(entry->d_un.d_ptr);
          break;
        default:
          break;
      }
    }
  }
  return calls;
}

void redirect(void** entry, void* target) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  void* const begin = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(entry) & ~(page - 1));
  if (mprotect(begin, page, PROT_READ | PROT_WRITE) == 0) *entry = target;
}

int redirect_calls(dl_phdr_info* library, size_t, void* detours) {
  const std::string_view path = library->dlpi_name;
  if (path.find("/libtorch") == std::string_view::npos) return 0;
  const Calls calls = calls_of(*library);
  if (calls.relocations == nullptr || calls.symbols == nullptr || calls.names == nullptr) return 0;
  for (size_t i = 0; i < calls.count; ++i) {
    const ElfW(Rela)& relocation = calls.relocations[i];
    if (ELF64_R_TYPE(relocation.r_info) != R_X86_64_JUMP_SLOT) continue;
    const std::string_view name = calls.names + calls.symbols[ELF64_R_SYM(relocation.r_info)].st_name;
    for (const Detour& detour : *static_cast<const Detour(*)[2]>(detours)) {
      if (name == detour.symbol)
        redirect(reinterpret_cast<void**>(library->dlpi_addr + relocation.r_offset), detour.target);
    }
  }
  return 0;
}

}  // namespace

void keep_cuda_the_accelerator() {
  // at::detail::getCUDAHooks() would keep those of no CUDA, and connect_to_gpu() may load it later.
  if (!c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA) || !machine_has_gpu()) return;
  is_accelerator_of_torch = &at::accelerator::isAccelerator;
  const Detour detours[2] = {
      {"_ZN2at11accelerator14getAcceleratorEb", reinterpret_cast<void*>(&accelerator)},
      {"_ZN2at11accelerator13isAcceleratorEN3c1010DeviceTypeE", reinterpret_cast<void*>(&is_accelerator)}};
  dl_iterate_phdr(&redirect_calls, const_cast<Detour*>(detours));
}

}  // namespace hetero::ops
