"""All benchmarks, or those named: `python -m tests.perf [NAME ...] [--peers] [--depth N] [--list] [--table]`.
`models` takes hours, runs only where it is named, and has options of its own: `python -m tests.perf models --help`.

Each prints its rows when it is done, and writes them to build/bench.json. A benchmark that fails is shown as failed
and the others go on. The exit status is 1 only where one failed to run: no figure decides it.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shlex
import sys
import time
from pathlib import Path

if os.environ.get("HETERO_TEST_DEVICE", "hetero") == "cpu":
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from tests.perf import models, report
from tests.perf.measure import DEPTH, DEVICE, PEERS, Row

# In the order of the table; each is a file with a function `measure`.
BENCHMARKS = (
    "record_cpp",
    "record_python",
    "tiny_adds",
    "planning",
    "first_sight",
    "never_repeats",
    "chain",
    "norms",
    "minilm",
    "compiled",
    "saved",
    "quantized",
    "quantized_errors",
    "qwen3",
    "qwen3_cpp",
    "paged",
    "training",
    "import_time",
    "gpu",
)
# Hours; they run only where they are named.
LONG = ("models",)


def run_one(name: str) -> tuple[list[Row], str | None]:
    """The rows of one benchmark, and why it failed if it did."""
    import torch

    torch.manual_seed(0)
    try:
        return importlib.import_module(f"tests.perf.{name}").measure(), None
    except Exception as error:
        return [], f"{name} failed: {type(error).__name__}: {error}"


def head(facts: dict[str, object]) -> str:
    """What holds for all rows, in two lines."""
    lines = [
        f"{facts['device']} against its peers, torch {facts['torch']}, {facts['threads']} threads on {facts['cores']} "
        f"cores ({facts['processor']}), commit {facts['commit']}; medians of alternating runs"
    ]
    if float(str(facts["load"])) > 0.5:
        lines.append(f"The machine is not idle (load {facts['load']}): look at the quartiles before the ratios.")
    return "\n".join(lines)


def main() -> int:
    """Runs what the command line says; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.perf", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="benchmarks to run; default all")
    parser.add_argument("--peers", action="store_true", help="also inductor on whole models, minutes of compiling")
    parser.add_argument("--depth", type=int, default=28, metavar="N", help="layers of the Qwen3 shape; default 28")
    parser.add_argument("--list", action="store_true", help="print the names and end")
    parser.add_argument("--table", action="store_true", help="print build/bench.json as a markdown table and end")
    parser.add_argument("--into", type=Path, metavar="FILE", help="with --table: replace the table of FILE instead")
    if sys.argv[1:2] == ["models"] and {"-h", "--help"} & set(sys.argv):
        models.parser().print_help()
        return 0
    options, rest = parser.parse_known_args()
    if options.list:
        print("\n".join(BENCHMARKS + LONG))
        return 0
    if rest and options.names != ["models"]:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if options.table:
        text = report.markdown(BENCHMARKS)
        if options.into:
            report.replace_table(options.into, text)
        else:
            print(text)
        return 0
    known = BENCHMARKS + LONG
    unknown = sorted(set(options.names) - set(known))
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are: {', '.join(known)}")
    os.environ[models.OPTIONS] = shlex.join(rest)
    os.environ[PEERS] = str(int(options.peers))
    os.environ[DEPTH] = str(options.depth)

    print(head(report.circumstances()))
    failures: list[str] = []
    for name in options.names or BENCHMARKS:
        facts = report.circumstances()
        start = time.perf_counter()
        rows, failure = run_one(name)
        if DEVICE != "cpu":  # which tests the benchmarks themselves
            report.save(name, facts, rows, failure)
        print(f"\n{name}, {time.perf_counter() - start:.0f} s")
        print(report.table(rows), flush=True)
        if failure:
            failures.append(failure)
            print(failure, flush=True)
    if DEVICE != "cpu":
        print(f"\nwritten to {report.JSON.relative_to(report.ROOT)}")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
