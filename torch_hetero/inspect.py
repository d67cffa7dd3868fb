"""``python -m torch_hetero.inspect m.hetero``: what a saved program is, and how it would run here.

Prints inputs, outputs, weights, memory, placement with reasons, the graph and the plan. Nothing is run.
"""

from __future__ import annotations

import argparse
import os
import sys

import torch  # noqa: F401  loads the device

from torch_hetero import _C


def main(arguments: list[str] | None = None) -> int:
    """Prints the file; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m torch_hetero.inspect", description=__doc__.splitlines()[0])
    parser.add_argument("file", help="a file of torch.hetero.compile(...).save()")
    parser.add_argument("--slots", type=int, default=1, help="sets of inputs and outputs to plan memory for")
    chosen = parser.parse_args(arguments)
    try:
        model = _C.Model.load(chosen.file)
        print(_C.GraphExecutor(model, chosen.slots).describe(), flush=True)
    except BrokenPipeError:
        # `| head` has read enough. What is left in the buffer goes nowhere when the process ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (RuntimeError, ValueError) as error:
        print(str(error).splitlines()[0], file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
