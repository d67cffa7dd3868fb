#!/usr/bin/env bash
# Tests hetero under the libraries of tests/libraries/requirements.txt. They have an environment of their own, .venv-libraries,
# which stands on .venv: torch is not installed twice, and no library changes what the other tests use.
#
#   scripts/test_libraries.sh [arguments of pytest]
set -euo pipefail
cd "$(dirname "$0")/.."

python=.venv-libraries/bin/python
wanted=$(cat scripts/test_libraries.sh tests/libraries/requirements.txt requirements.txt | sha256sum)
if [ "$(cat .venv-libraries/hetero-setup 2>/dev/null)" != "$wanted" ]; then
  [ -x $python ] || .venv/bin/python -m venv .venv-libraries
  site() { "$1" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])'; }
  site .venv/bin/python >"$(site $python)/hetero-venv.pth"
  export PIP_DISABLE_PIP_VERSION_CHECK=1
  echo "test-libraries: installing tests/libraries/requirements.txt into .venv-libraries"
  $python -m pip install --quiet -r tests/libraries/requirements.txt -c <(grep -E '^torch' requirements.txt)
  echo "$wanted" >.venv-libraries/hetero-setup
fi
exec $python -m pytest -q tests/libraries "$@"
