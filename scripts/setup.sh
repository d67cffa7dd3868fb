#!/usr/bin/env bash
# Prepares a machine for building and testing hetero: system packages, .venv, pinned requirements.
# Does nothing when it was done before: the stamp in .venv holds a hash of what it depends on.
#
#   scripts/setup.sh           for everything
#   scripts/setup.sh product   without the system packages that only tests need
set -euo pipefail
cd "$(dirname "$0")/.."

what=${1:-all}
wanted=$(cat scripts/setup.sh requirements.txt requirements-migration.txt | sha256sum)
is_done() { [ "$(cat ".venv/hetero-setup-$1" 2>/dev/null)" = "$wanted" ]; }
if is_done all || is_done "$what"; then
  exit 0
fi

# System packages, where they are missing and may be installed.
required=(g++ cmake python3-venv python3-dev nlohmann-json3-dev libxxhash-dev)
helpful=(ninja-build libxbyak-dev libdeflate-dev liburing-dev libjpeg62-turbo-dev libzstd-dev liblz4-dev ccache mold)
if [ "$what" = all ]; then
  required+=(libgtest-dev catch2)
  helpful+=(libbenchmark-dev redis-server fio valgrind chromium libcpp-httplib-dev libpcre2-dev libutf8proc-dev)
fi
missing() {
  for package in "$@"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || echo "$package"
  done
}
if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
  needed=$(missing "${required[@]}")
  nice=$(missing "${helpful[@]}")
  if [ -n "$needed$nice" ]; then
    echo "setup: installing" $needed $nice
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq || true
    # One by one where all at once fails: a helpful package that does not exist here must not stop the others.
    if [ -n "$needed" ]; then apt-get install -y -qq --no-install-recommends $needed >/dev/null; fi
    for package in $nice; do
      apt-get install -y -qq --no-install-recommends "$package" >/dev/null 2>&1 || echo "setup: without $package"
    done
  fi
fi
for tool in g++ cmake; do
  command -v "$tool" >/dev/null || { echo "setup: $tool is missing; please install: ${required[*]}" >&2; exit 1; }
done

# Python 3.10 or newer.
if [ ! -x .venv/bin/python ]; then
  chosen=
  for candidate in ${PYTHON:-} python3 python3.13 python3.12 python3.11 python3.10; do
    if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
      chosen=$candidate
      break
    fi
  done
  [ -n "$chosen" ] || { echo "setup: Python 3.10 or newer with venv is needed" >&2; exit 1; }
  echo "setup: creating .venv with $("$chosen" --version)"
  "$chosen" -m venv .venv
fi

if [ "$what" = all ] || ! is_done product; then
  # pip unpacks on one core for minutes. Meanwhile the others build what needs no torch.
  early=
  if [ ! -e build/CMakeCache.txt ]; then
    mkdir -p build
    scripts/build.sh torch-free >build/torch-free.log 2>&1 &
    early=$!
  fi
  echo "setup: installing requirements into .venv"
  export PIP_DISABLE_PIP_VERSION_CHECK=1
  requirements=(-r requirements.txt)
  if [ "$what" = all ]; then requirements+=(-r requirements-migration.txt); fi
  .venv/bin/pip install --quiet "${requirements[@]}"
  # What failed there fails again where everything is built, and is shown.
  if [ -n "$early" ]; then wait "$early" || true; fi
fi
# Registers the package, its entry point and the source folder; `make build` makes the libraries.
HETERO_NO_BUILD=1 .venv/bin/pip install --quiet --no-build-isolation --no-deps -e .
cp torch_hetero/migration/hetero_migration.pth "$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
echo "$wanted" >".venv/hetero-setup-$what"
echo "setup: $SECONDS s"
