"""Runs an example with and without its plan, in turns, and prints both rates and whether all bytes are equal.

python examples/migration/compare.py [photos|sounds] [arguments of the example]
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROUNDS = 3


def main() -> int:
    """Returns 0 if the bytes are equal."""
    arguments = sys.argv[1:]
    name = arguments.pop(0) if arguments and not arguments[0].startswith("-") else "photos"
    script, plan = str(HERE / f"{name}.py"), str(HERE / f"{name}.json")
    commands = {
        "without": [sys.executable, script],
        "with": [sys.executable, "-m", "torch_hetero.migration", "run", "--plan", plan, script],
    }
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(HERE.parent.parent), os.environ.get("PYTHONPATH", "")])
    }
    rates: dict[str, list[float]] = {}
    digests: dict[str, list[str]] = {}
    for _ in range(ROUNDS):
        for kind, command in commands.items():
            done = subprocess.run(command + arguments, capture_output=True, text=True, env=environment, check=False)
            if done.returncode:
                print(done.stdout, done.stderr, sep="\n", file=sys.stderr)
                return done.returncode
            rates.setdefault(kind, []).append(max(map(float, re.findall(r"([\d.]+) \w+/s", done.stdout))))
            digests[kind] = re.findall(r"(?:pixels|features) (\w+)", done.stdout)
    without, moved = (statistics.median(rates[kind]) for kind in ("without", "with"))
    equal = digests["with"] == digests["without"]
    print(done.stderr)
    print(
        f"without the plan {without:.0f}/s, with it {moved:.0f}/s: {moved / without:.2f} x; bytes {'equal' if equal else 'DIFFERENT'}"
    )
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
