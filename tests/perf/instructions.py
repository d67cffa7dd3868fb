"""Compares instruction counts with the baseline; `scripts/instructions.sh` runs callgrind first and calls this.

`python -m tests.perf.instructions FOLDER [--update]`. FOLDER holds `operations`, what tests/perf/instructions.cpp
printed, and one `profile.N` of callgrind for each line of it. The exit status is 1 where an operation takes more than
5 % more instructions than in the baseline. Counts depend on the compiler and on torch: a baseline of other versions is
shown beside the counts, and nothing fails.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BASELINE = Path(__file__).with_name("instructions.json")
ALLOWED = 1.05

PROFILE_NAME = re.compile(r"^desc: Trigger: Client Request: (\w+)$", re.MULTILINE)
PROFILE_TOTAL = re.compile(r"^(?:totals|summary): (\d+)$", re.MULTILINE)


def torch_version() -> str:
    """The torch that the program was built against."""
    return (ROOT / "torch_hetero" / "lib" / "TORCH_VERSION").read_text().strip().partition("+")[0]


def totals(folder: Path) -> dict[str, int]:
    """Instructions of each profile, by the name that the program gave it."""
    found = {}
    for path in folder.glob("profile.*"):
        text = path.read_text()
        name, total = PROFILE_NAME.search(text), PROFILE_TOTAL.search(text)
        if name and total:
            found[name[1]] = int(total[1])
    return found


def measured(folder: Path) -> dict[str, Any]:
    """What was counted, in the form of the baseline: versions, and whole instructions for one operation."""
    lines = [line.split(maxsplit=1) for line in (folder / "operations").read_text().splitlines()]
    facts = dict(lines)
    compiler = facts.pop("compiler")
    profiles = totals(folder)
    missing = sorted(set(facts) - set(profiles))
    if missing or not facts:
        raise SystemExit(f"callgrind left no profile of: {', '.join(missing) or 'anything'}")
    counts = {name: round(profiles[name] / int(operations)) for name, operations in facts.items()}
    return {"compiler": compiler, "torch": torch_version(), "instructions": counts}


def compare(now: dict[str, Any], baseline: dict[str, Any]) -> int:
    """Prints a line for each operation; returns how many take too many instructions."""
    comparable = all(now[key] == baseline[key] for key in ("compiler", "torch"))
    if not comparable:
        print(
            f"the baseline is of g++ {baseline['compiler']} and torch {baseline['torch']}, this is g++ "
            f"{now['compiler']} and torch {now['torch']}: nothing is checked"
        )
    gone = sorted(set(baseline["instructions"]) - set(now["instructions"]))
    if gone:
        print(f"in the baseline, but not counted: {', '.join(gone)}")
    worse = len(gone)
    for name, count in now["instructions"].items():
        before = baseline["instructions"].get(name)
        if before is None:
            print(f"{name}: {count:,} instructions, not in the baseline: run scripts/instructions.sh --update")
            worse += comparable
            continue
        too_many = comparable and count > before * ALLOWED
        worse += too_many
        verdict = f", more than {(ALLOWED - 1) * 100:.0f} % above" if too_many else ""
        print(f"{name}: {count:,} instructions, baseline {before:,} ({count / before - 1:+.1%}){verdict}")
        if comparable and count * ALLOWED < before:
            print(f"{name} has become cheaper: scripts/instructions.sh --update keeps it so")
    return worse


def main() -> int:
    """Compares, or rewrites the baseline; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.perf.instructions", description=__doc__)
    parser.add_argument("folder", type=Path, help="what callgrind and the program wrote")
    parser.add_argument("--update", action="store_true", help="make these counts the baseline")
    options = parser.parse_args()
    now = measured(options.folder)
    if options.update:
        BASELINE.write_text(json.dumps(now, indent=2) + "\n")
        print(f"{BASELINE.relative_to(ROOT)}: {now['instructions']}")
        return 0
    return int(compare(now, json.loads(BASELINE.read_text())) > 0)


if __name__ == "__main__":
    sys.exit(main())
