"""``python -m torch_hetero.migration``: runs a program with a plan, and finds plans.

python -m torch_hetero.migration run --plan plan.json script.py ...
python -m torch_hetero.migration optimize script.py --batches 50 -o plan.json
python -m torch_hetero.migration explain plan.json --report plan.html
python -m torch_hetero.migration strategies cv2
"""

from __future__ import annotations

import sys
from importlib import import_module

if __name__ == "__main__":
    # The commands are in a room that builds on this one, so it is found by name.
    sys.exit(import_module("torch_hetero.migration.optimize.command").main())
