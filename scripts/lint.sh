#!/usr/bin/env bash
# Checks that need no build. ruff and clang-format run where they are installed.
set -euo pipefail
cd "$(dirname "$0")/.."

.venv/bin/python scripts/check_includes.py
.venv/bin/python scripts/write_options.py --check
.venv/bin/python scripts/check_docs.py
if command -v ruff >/dev/null; then
  ruff check torch_hetero scripts tests examples setup.py
else
  echo "ruff is not installed: skipped"
fi
if command -v clang-format >/dev/null; then
  find backend graph ops torch_hetero/csrc tests examples -name '*.h' -o -name '*.cpp' -o -name '*.cu' |
    xargs --no-run-if-empty clang-format --dry-run --Werror
else
  echo "clang-format is not installed: skipped"
fi
