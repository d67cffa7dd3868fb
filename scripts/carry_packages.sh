#!/usr/bin/env bash
# Copies what a build and its tests need beside torch and a compiler into third_party/carried, for a
# machine without a network, such as one with a GPU that is lent: headers, static libraries, pytest.
# Git ignores the folder; whoever moves the tree takes it along. CMake and scripts/test.py look there
# last. REQUIRES: make setup.
set -euo pipefail
cd "$(dirname "$0")/.."

to=third_party/carried
rm -rf "$to"
mkdir -p "$to"/{include,lib,python}
for name in nlohmann xbyak catch2 gtest libdeflate.h liburing liburing.h lz4.h pcre2.h utf8proc.h xxhash.h zstd.h; do
  if [ -e "/usr/include/$name" ]; then cp -r "/usr/include/$name" "$to/include/"; else echo "without $name"; fi
done
libraries=/usr/lib/$(g++ -print-multiarch)
for name in libdeflate libgtest libgtest_main liblz4 libpcre2-8 liburing libutf8proc libzstd; do
  if [ -e "$libraries/$name.a" ]; then cp "$libraries/$name.a" "$to/lib/"; else echo "without $name"; fi
done
packages=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
# Of hypothesis a part is compiled for one version of Python.
for name in pytest _pytest pluggy iniconfig packaging pygments expecttest; do
  if [ -e "$packages/$name" ]; then cp -r "$packages/$name" "$to/python/"; else echo "without $name"; fi
done
find "$to" -name __pycache__ -prune -exec rm -r {} +
du -sh "$to"
