#!/usr/bin/env bash
# Makes what CUDA's host code needs on a machine without a GPU, in build/standin: libstandin_cuda.so (standin_cuda.cpp), and a libhetero_ops.so linked with it in
# place of the CUDA runtime. REQUIRES: a build with CUDA, and torch with its CUDA libraries.
#
#   tests/cuda_standin/build.sh && tests/cuda_standin/run.sh .venv/bin/python -m pytest tests/cuda_standin
set -euo pipefail
cd "$(dirname "$0")/../.."
source=tests/cuda_standin
out=build/standin
packages=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
cuda=$(sed -n 's/^CUDAToolkit_BIN_DIR:.*=\(.*\)\/bin$/\1/p' build/CMakeCache.txt)
mkdir -p "$out"

if [ ! "$out/libstandin_cuda.so" -nt "$source/standin_cuda.cpp" ] || [ ! "$out/libstandin_cuda.so" -nt "$source/standin_blas.cpp" ] ||
  [ ! "$out/libstandin_cuda.so" -nt "$source/standin_device.cpp" ] || [ ! "$out/libstandin_cuda.so" -nt "$source/standin_pieces.cpp" ] ||
  [ ! "$out/libstandin_cuda.so" -nt backend/cuda/pieces.cu ]; then
  for part in cuda device pieces blas; do
    g++ -std=c++20 -O2 -fPIC -Wall -Wextra -Wno-unknown-pragmas -I. -isystem "${cuda:-/usr/local/cuda}/include" -c "$source/standin_$part.cpp" -o "$out/$part.o"
  done
  .venv/bin/python "$source/make_stubs.py" "$packages" "${cuda:-/usr/local/cuda}/lib64/stubs/libcuda.so" "$out"/{cuda,device,pieces,blas}.o > "$out/stubs.c"
  gcc -O1 -fPIC -fno-builtin -w -c "$out/stubs.c" -o "$out/stubs.o"
  # The name by which libraries open the driver.
  g++ -shared -Wl,-soname,libcuda.so.1 -Wl,-z,defs -o "$out/libstandin_cuda.so" "$out"/{cuda,device,pieces,blas,stubs}.o -ldl
  ln -sf libstandin_cuda.so "$out/libcuda.so.1"
fi

# From the objects as they are there: the library, and the C++ tests of devices and of plans.
link() {
  (cd build && ninja -t commands -s "$1") | sed -E \
    -e "s#-o $1( |\$)#-o standin/$(basename "$1") #" \
    -e "s#[^ ]*libcudart_static\.a#-Lstandin -l:libstandin_cuda.so -Wl,-rpath,$PWD/$out#" | (cd build && sh)
}
link ops/libhetero_ops.so
link tests/backend/hetero_backend_tests
link tests/graph/hetero_graph_tests
