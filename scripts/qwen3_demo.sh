#!/usr/bin/env bash
# Qwen3 in C++: builds the program qwen3 and runs a command with a model folder.
#
#   scripts/qwen3_demo.sh [COMMAND] [options of qwen3]     MODEL=FOLDER for a published checkpoint
set -euo pipefail
cd "$(dirname "$0")/.."

python=.venv/bin/python
model=${MODEL:-}
if [ -z "$model" ]; then
  model=build/qwen3-small
  echo "qwen3-demo: no MODEL is given, so this one has random weights: its text means nothing"
  [ -f $model/model.safetensors ] || PYTHONPATH=tests/python/models $python tests/python/models/qwen3_checkpoints.py $model --dtype float32
fi
command=${1:-generate}
if [ $# -gt 0 ]; then shift; fi
if [ "$command" = generate ] && [[ " $* " != *" --prompt"* ]]; then set -- --prompt "Once upon a time" --max-tokens 48 "$@"; fi
exec $python -m torch_hetero.qwen3 "$command" "$model" "$@"
