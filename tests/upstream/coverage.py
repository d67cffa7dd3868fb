"""All of PyTorch's databases in all ways, compared with eager CPU; writes docs/coverage.md.

    python -m tests.upstream.coverage --only gradients              prints a way's part of the page
    python -m tests.upstream.coverage --only gradients --write      writes it, and keeps the other parts
    python -m tests.upstream.coverage --only out --filter conv --verbose

Entries run in worker processes, one dtype at a time, so that a crash is one failed entry. Without `--only` all ways run, which
takes hours. The command fails where a result differs.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections import Counter, defaultdict
from pathlib import Path

if os.environ.get("HETERO_TEST_DEVICE", "hetero") == "cpu":
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

import workers
from modules import DATABASES
from programs import PROGRAMS, REASONS
from ways import OPERATORS, Tally, quiet

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "coverage.md"
DEVICE = os.environ.get("HETERO_TEST_DEVICE", "hetero")
WAYS = OPERATORS | DATABASES | PROGRAMS
COLUMNS = ("samples", "entries", "equal", "both refuse", "device's way", "differ", "refused", "strides", "messages")
EXPLAINED = {
    "differ": "Differ",
    "refused": "Refused",
    "device's way": "The bits of PyTorch's way on a device",
    "strides": "Other strides than the CPU's",
    "messages": "Other messages than the CPU's",
}
HEAD = f"""# Coverage

PyTorch has databases for its own tests: `op_db` with an entry for nearly each operator, `module_db`
and `optim_db`. Each entry has samples for each dtype. `make test` runs a part of this
(`tests/upstream`). This page is written by `python -m tests.upstream.coverage --write`, which runs
all of it on `"hetero"` and with eager CPU, torch {torch.__version__.split("+")[0]}.

Results must have the CPU's bits, unfused; those of programs, which are fused, the CPU's values.
What the CPU refuses must be refused with the same exception type, and counts as equal.

- *Entries* are pairs of an entry and a dtype, of which each has so many *samples*, or all. The
  other columns count what came of them, a sample in several forms where the way has some.
- *Both refuse* is a part of *equal*.
- *Device's way*: the CPU's own bits where a program wants backward passes on a thread of their own,
  or an optimizer takes its `foreach` implementation, as PyTorch does for devices other than the CPU
  ([design](design.md#where-results-may-differ-from-eager)).

"""


def run_way(way: str, names: list[str], jobs: int, most: int) -> dict[str, Tally]:
    """What came of each entry; a crash is one that differs."""
    command = [sys.executable, "-m", "tests.upstream.coverage", "--worker", way, "--samples", str(most)]
    tallies = {}
    for name, (answer, why) in workers.run_all(names, command, {"PYTHONPATH": str(ROOT)}, jobs).items():
        tally = Tally()
        if answer is None:
            tally.note("differ", why, name)
        else:
            tally = Tally(Counter(answer["counts"]), [tuple(note) for note in answer["notes"]])
        tallies[name] = tally
    return tallies


def general(reason: str) -> str:
    """A known reason, or the text without what differs between entries, such as numbers."""
    for words, known in REASONS.items():
        if words in reason:
            return known
    text = re.sub(r"aten::\w+(\.\w+)?", "an operator", reason)
    return re.sub(r"-?\d+(\.\d+)?(e[+-]?\d+)?", "#", text).replace("|", "/")[:160]


def section(way: str, tallies: dict[str, Tally], samples: str) -> tuple[str, str]:
    """A way's row of the table, and its part of the page."""
    total = sum((tally.counts for tally in tallies.values()), Counter())
    total["entries"] = sum(1 for tally in tallies.values() if tally.counts)
    row = " | ".join([WAYS[way].title, samples, *(str(total[column]) for column in COLUMNS[1:])])
    groups: dict[tuple[str, str], set[str]] = defaultdict(set)
    for tally in tallies.values():
        for kind, reason, place in tally.notes:
            known = general(reason) if kind in ("differ", "refused") else ""
            groups[kind, known].add(place.split(",")[0].split(" ")[0])
    lines = [f"## {WAYS[way].title}", "", *(["| what | entries |", "|---|---|"] if groups else [])]
    order = list(EXPLAINED)
    for (kind, reason), entries in sorted(groups.items(), key=lambda item: (order.index(item[0][0]), -len(item[1]), item[0])):
        why = f", {reason}" if reason else ""
        lines.append(f"| {EXPLAINED[kind]}{why} | {', '.join(f'`{entry}`' for entry in sorted(entries))} |")
    if not groups:
        lines.append("Everything is equal.")
    return f"| {row} |", "\n".join(lines) + "\n"


def page(parts: dict[str, tuple[str, str]], before: str) -> str:
    """The text of docs/coverage.md; ways that did not run now keep what stands there."""
    rows, sections = [], []
    for way, chosen in WAYS.items():
        row, text = parts.get(way, ("", ""))
        if not row:
            row = next((line for line in before.splitlines() if line.startswith(f"| {chosen.title} |")), "")
            found = re.search(rf"^## {re.escape(chosen.title)}\n.*?(?=^## |\Z)", before, re.MULTILINE | re.DOTALL)
            text = found.group().rstrip() + "\n" if found else ""
        if row:
            rows.append(row)
            sections.append(text)
    table = [f"| way | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|", *rows]
    return HEAD + "\n".join(table) + "\n\n" + "\n".join(sections)


def main() -> int:
    """Runs the ways that are asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=WAYS, nargs="*", help="run these ways")
    parser.add_argument("--filter", default="", help="run entries whose name, with the dtype, has this in it")
    parser.add_argument("--samples", type=int, default=0, help="run at most so many samples of an entry; 0: all")
    parser.add_argument("--jobs", type=int, default=2, help="worker processes")
    parser.add_argument("--verbose", action="store_true", help="a line for each sample that is not equal")
    parser.add_argument("--write", action="store_true", help="write docs/coverage.md")
    parser.add_argument("--worker", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        quiet()
        way = WAYS[options.worker]
        workers.serve(lambda name: vars(way.run(name, DEVICE, options.samples)))
        return 0
    parts, wrong = {}, 0
    for way in options.only or WAYS:
        names = [name for name in WAYS[way].names() if options.filter in name]
        tallies = run_way(way, names, options.jobs, options.samples)
        samples = str(options.samples or getattr(WAYS[way], "samples", "all"))
        parts[way] = section(way, tallies, f"{samples}, {options.filter.strip()}" if options.filter else samples)
        wrong += sum(tally.counts["differ"] for tally in tallies.values())
        if options.verbose:
            for tally in tallies.values():
                for kind, reason, place in tally.notes:
                    print(f"{kind}: {place}: {reason}")
        print(f"{' | '.join(COLUMNS)}\n{parts[way][0]}\n{parts[way][1]}", flush=True)
        if options.write:
            PAGE.write_text(page(parts, PAGE.read_text()))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
