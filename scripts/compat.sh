#!/usr/bin/env bash
# Builds against the newest stable torch in an environment of its own and runs a smoke test.
set -euo pipefail
cd "$(dirname "$0")/.."

export PIP_DISABLE_PIP_VERSION_CHECK=1
if [ ! -x .venv-compat/bin/python ]; then
  .venv/bin/python -m venv .venv-compat
fi
.venv-compat/bin/pip install --quiet --upgrade torch numpy setuptools wheel ninja
PATH="$PWD/.venv-compat/bin:$PATH" .venv-compat/bin/pip install --no-build-isolation --no-deps --force-reinstall .
# From another folder, so that the installed package is imported and not the sources.
smoke=$PWD/scripts/smoke.py
cd .venv-compat
exec bin/python "$smoke"
