#!/usr/bin/env bash
# Checks that need no build. ruff and clang-format run where they are installed.
#
#   scripts/lint.sh             formatters look at all files
#   scripts/lint.sh --changed   formatters look at the files that differ from the last commit
set -euo pipefail
cd "$(dirname "$0")/.."

.venv/bin/python scripts/check_includes.py
.venv/bin/python scripts/check_sources.py
.venv/bin/python scripts/write_options.py --check
.venv/bin/python scripts/operators.py --check
.venv/bin/python scripts/check_docs.py

if [ "${1:-}" = --changed ]; then
  files=$(git diff --name-only --diff-filter=d HEAD && git ls-files --others --exclude-standard)
else
  files=$(git ls-files backend graph ops models torch_hetero scripts tests examples setup.py)
fi
format() { # endings of names, command
  local endings=$1
  shift
  if ! command -v "$1" >/dev/null; then
    echo "$1 is not installed: skipped"
    return
  fi
  { grep -E "\.($endings)\$" <<<"$files" || true; } | xargs --no-run-if-empty "$@"
}
format py ruff check
format 'h|cpp|cu' clang-format --dry-run --Werror
