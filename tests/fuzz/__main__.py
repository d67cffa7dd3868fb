"""Random programs in Python, on the CPU and on hetero under eight configurations; what differs is printed as a script.

    python -m tests.fuzz                              1,000 programs under each configuration
    python -m tests.fuzz --programs 50 --first 7      50 programs, from seed 7
    python -m tests.fuzz --only sync --first 7 --programs 1
    python -m tests.fuzz networks --count 50          50 random networks, saved and lazily, against float64
    python -m tests.fuzz networks --only default --ways compiled gradients compiled-gradients

A configuration is a process of its own. It stops at its third difference.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
TWO_DEVICES = {"HETERO_ACCELERATOR": "sim", "HETERO_PLACEMENT": "mixed", "HETERO_MEMORY_BUDGET": "16MiB"}
CONFIGURATIONS: dict[str, dict[str, str]] = {
    "default": {},
    "unfused": {"HETERO_FUSION": "0"},
    "sync": {"HETERO_SYNC": "1"},
    "pieces": {"HETERO_PENDING_NODES": "5"},
    "interpreted": {"HETERO_JIT": "0", "HETERO_OVERLAP": "0"},
    "two devices": TWO_DEVICES,
    "two devices, unfused": TWO_DEVICES | {"HETERO_FUSION": "0", "HETERO_VERIFY_PLANS": "1"},
    "own kernels": TWO_DEVICES | {"HETERO_TEST_HOST_KERNELS": "0"},
}
MOST_DIFFERENCES = 3
# Precedes what a network says on stderr. After a crash, the last one is shown.
NEXT = "\f"


def prepare_torch() -> None:
    """Lets PyTorch run on one thread, without warnings, and compile as often as it takes."""
    import torch

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch._dynamo.config.cache_size_limit = 1 << 20


def fuzz(first: int, count: int) -> int:
    """Runs programs in this process; returns how many differ."""
    from tests.fuzz import programs

    differing = lines = 0
    for seed in range(first, first + count):
        program = programs.draw_program(seed)
        lines += len(program)
        names = programs.differences(program, "hetero")
        if not names:
            continue
        shortest = programs.minimize(program, "hetero")
        where = ", ".join(programs.differences(shortest, "hetero") or names)
        print(f"seed {seed} differs in {where}:", *[f"    {line}" for line in shortest], sep="\n", flush=True)
        differing += 1
        if differing == MOST_DIFFERENCES:
            break
    print(f"{lines} lines", flush=True)
    return differing


def fuzz_networks(first: int, count: int, ways: list[str]) -> int:
    """Runs networks in this process by each of the ways; returns how many checks fail."""
    from tests.fuzz import networks

    failing = 0
    for seed in range(first, first + count):
        for way in ways:
            print(f"{NEXT}seed {seed}, {way}: ", end="", file=sys.stderr, flush=True)
            try:
                networks.check(seed, way)
            except AssertionError as difference:
                print(difference, flush=True)
                failing += 1
        if failing >= MOST_DIFFERENCES:
            break
    print(NEXT, end="", file=sys.stderr)
    return failing


def main() -> int:
    """Runs all configurations, or is one of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", nargs="?", choices=("programs", "networks"), default="programs")
    parser.add_argument("--programs", "--count", type=int, default=1000, dest="count", help="how many of them")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--only", choices=CONFIGURATIONS)
    parser.add_argument("--ways", nargs="+", default=["saved", "lazily"], help="how networks run: see networks.WAYS")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.what == "networks":
        from tests.fuzz.networks import WAYS

        if unknown := set(chosen.ways) - set(WAYS):
            parser.error(f"no ways: {', '.join(sorted(unknown))} (choose from {', '.join(WAYS)})")
    if chosen.here:
        prepare_torch()
        if chosen.what == "networks":
            return fuzz_networks(chosen.first, chosen.count, chosen.ways)
        return fuzz(chosen.first, chosen.count)
    failed = 0
    for name, variables in CONFIGURATIONS.items():
        if chosen.only not in (None, name):
            continue
        start = time.monotonic()
        seeds = ["--first", str(chosen.first), "--count", str(chosen.count)]
        command = [sys.executable, "-m", "tests.fuzz", chosen.what, "--here", *seeds, "--ways", *chosen.ways]
        environment = os.environ | variables
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        # A crash counts as one.
        failed += 1 if done.returncode < 0 else done.returncode
        print(f"{name}: {chosen.count} {chosen.what}, {time.monotonic() - start:.0f} s, ", end="")
        print(f"{done.returncode} differ" if done.returncode >= 0 else f"died of signal {-done.returncode}", flush=True)
        if done.returncode != 0:
            print(done.stdout, done.stderr.rpartition(NEXT)[2][-2000:], sep="\n", flush=True)
    if not failed:
        print(f"{'python' if chosen.what == 'programs' else 'network'}-fuzz: {chosen.count} seeds as they should be")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
