"""All benchmarks, or those named: `python -m tests.perf [--list] [NAME ...] [--json FILE]`.

Each prints its rows when it is done, and the whole table comes at the end. A benchmark that fails
is shown as failed and the others go on. The exit status is 1 only where one failed to run.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import os
import platform
import sys
from pathlib import Path

if os.environ.get("HETERO_TEST_DEVICE", "hetero") == "cpu":
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from tests.perf.measure import DEVICE, Row, table

BENCHMARKS = ("record_cpp", "record_python", "tiny_adds", "minilm", "resnet18", "import_time")


def run_one(name: str) -> tuple[list[Row], str | None]:
    """The rows of one benchmark, and why it failed if it did."""
    try:
        return importlib.import_module(f"tests.perf.{name}").measure(), None
    except Exception as error:
        return [], f"{name} failed: {type(error).__name__}: {error}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.perf", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="benchmarks to run; default all")
    parser.add_argument("--list", action="store_true", help="print the names and end")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    options = parser.parse_args()
    if options.list:
        print("\n".join(BENCHMARKS))
        return 0
    unknown = sorted(set(options.names) - set(BENCHMARKS))
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are: {', '.join(BENCHMARKS)}")
    import torch

    torch.manual_seed(0)
    print(
        f"{DEVICE} against eager cpu, torch {torch.__version__}, {torch.get_num_threads()} threads, "
        f"{platform.machine()}; medians of alternating runs"
    )
    rows: list[Row] = []
    failures: list[str] = []
    for name in options.names or BENCHMARKS:
        print(f"running {name}", file=sys.stderr, flush=True)
        new, failure = run_one(name)
        rows += new
        if failure:
            failures.append(failure)
    print(table(rows))
    for failure in failures:
        print(failure)
    if options.json:
        facts = [{**dataclasses.asdict(row), "figure": row.figure} for row in rows]
        options.json.write_text(json.dumps(facts, indent=1))
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
