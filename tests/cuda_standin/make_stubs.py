"""Writes C for everything of CUDA that PyTorch may call and the stand-in does not define.

    python3 make_stubs.py SITE_PACKAGES DRIVER_STUBS standin_cuda.o standin_blas.o > stubs.c

Each stub prints its name and returns the "not supported" of its library. They are made for what PyTorch's libraries
leave undefined, and for all that the runtime and the driver export. Questions for versions and texts of errors, whose
results are not statuses, stay with NVIDIA's libraries, and so do NVRTC, NCCL, NVSHMEM and cuFile.
"""

import re
import subprocess
import sys
from pathlib import Path

NOT_SUPPORTED = {
    "cublas": 15,
    "cusparse": 10,
    "cusolver": 9,
    "cudnn": 3000,
    "cufft": 16,
    "curand": 204,
    "cuda": 801,
    "__cuda": 801,
    "cu": 801,
}
PREFIX = re.compile(r"(?:cublas|cusparse(?!Lt)|cusolver|cudnn|cufft|curand|__cuda(?=[A-Z])|cuda(?=[A-Z])|cu(?=[A-Z]))")
KEPT = re.compile(r"cuFile|cupti|Version$|ErrorString$|ErrorName$|StatusString$|StatusName$|GetProperty$")
TORCH = ["torch_cuda", "c10_cuda", "torch_cuda_linalg", "torch_python", "torch_nvshmem", "caffe2_nvrtc"]


def symbols(file: Path, which: str) -> set[str]:
    options = ["nm", which] if file.suffix == ".o" else ["nm", "-D", which]
    lines = subprocess.run([*options, str(file)], check=True, capture_output=True, text=True).stdout.splitlines()
    return {line.split()[-1].split("@")[0] for line in lines}


def main() -> None:
    site_packages, driver, *objects = map(Path, sys.argv[1:])
    wanted = symbols(driver, "--defined-only")
    wanted |= symbols(site_packages / "nvidia/cu13/lib/libcudart.so.13", "--defined-only")
    for name in TORCH:
        wanted |= symbols(site_packages / f"torch/lib/lib{name}.so", "--undefined-only")
    for file in objects:
        wanted -= symbols(file, "--defined-only")
    print("void standin_missing(const char* name);")
    for name in sorted(wanted):
        library = PREFIX.match(name)
        if library and not KEPT.search(name):
            print(f'int {name}(void) {{ standin_missing("{name}"); return {NOT_SUPPORTED[library.group()]}; }}')


if __name__ == "__main__":
    main()
