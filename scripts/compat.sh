#!/usr/bin/env bash
# Builds and tests against another torch in an environment of its own, as an installed package.
#
#   scripts/compat.sh                     the newest stable torch, and a smoke test
#   scripts/compat.sh 2.14.1              this one
#   scripts/compat.sh [VERSION] --suite [arguments of pytest]   the Python suites, some 20 minutes
set -euo pipefail
cd "$(dirname "$0")/.."

version=
if [ $# -gt 0 ] && [[ $1 != --* ]]; then version===$1; shift; fi
environment=.venv-compat
python=$environment/bin/python
export PIP_DISABLE_PIP_VERSION_CHECK=1
if [ ! -x $python ]; then
  .venv/bin/python -m venv $environment
fi
$environment/bin/pip install --quiet --upgrade "torch$version" torchvision
# The rest is what the tests use with the torch of requirements.txt.
$environment/bin/pip install --quiet -r <(grep -vE '^torch' requirements.txt)
PATH="$PWD/$environment/bin:$PATH" $python -m pip install --quiet --no-build-isolation --no-deps --force-reinstall .

# From other folders, so that the installed package is imported and not the sources.
if [ "${1:-}" != --suite ]; then
  smoke=$PWD/scripts/smoke.py
  cd $environment
  exec bin/python "$smoke"
fi
shift
suite=$environment/suite
rm -rf $suite
mkdir -p $suite
# Without its __init__.py the folder torch_hetero is no package, and the installed one is found.
git ls-files --cached --others --exclude-standard -z | grep -zvx 'torch_hetero/__init__.py' | xargs -0 cp --parents -t $suite
python=$PWD/$python
cd $suite
exec "$python" -m pytest -q -n "${JOBS:-$(nproc)}" --dist worksteal tests/python tests/upstream "$@"
