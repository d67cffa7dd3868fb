"""How long calls take: each entry of op_db on hetero against eager CPU, and the first call of a process.

    python -m tests.upstream.calls                   all entries, some minutes; alone on the machine
    python -m tests.upstream.calls --filter linalg   those whose name has this in it
    python -m tests.upstream.calls --first           the first calls too, each in a process of its own

A call records, or runs at once where it must. The time is that of the call: what is pending runs outside of it.
Sizes are 1, 100 and 10,000 elements for entries with one kind of input (unary, binary and reducing operators), else
those of the entry's smallest, middle and largest sample. Shown are the medians from the third call on, of calls that
take more than 1.5 x eager + 3 us, and first calls above eager's + 30 ms.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator

import torch
from torch.testing._internal.opinfo.core import BinaryUfuncInfo, OpInfo, ReductionOpInfo, SampleInput, UnaryUfuncInfo
from torch.utils._pytree import tree_flatten

from tests.upstream.harness import ENTRIES, choose_dtype, load_exclusions, move_sample

SIZES = (1, 100, 10_000)
CALLS = 25
FACTOR, EXTRA_US, FIRST_MS = 1.5, 3.0, 30.0


def elements(sample: SampleInput) -> int:
    leaves = tree_flatten((sample.input, sample.args, sample.kwargs))[0]
    return max((leaf.numel() for leaf in leaves if isinstance(leaf, torch.Tensor)), default=0)


def samples_of(op: OpInfo, dtype: torch.dtype) -> Iterator[SampleInput]:
    """Up to three samples of different sizes, on the CPU."""
    drawn = [sample for _, sample in zip(range(40), op.sample_inputs("cpu", dtype), strict=False)]
    drawn.sort(key=elements)
    if isinstance(op, (UnaryUfuncInfo, BinaryUfuncInfo, ReductionOpInfo)) and drawn:
        kwargs = drawn[-1].kwargs
        for size in SIZES:
            make = lambda size=size: torch.testing.make_tensor(size, dtype=dtype, device="cpu", low=1)  # noqa: E731
            args = (make(),) if isinstance(op, BinaryUfuncInfo) else ()
            yield SampleInput(make(), args=args, kwargs=kwargs if isinstance(op, UnaryUfuncInfo) else {})
        return
    yield from {id(drawn[i]): drawn[i] for i in (0, len(drawn) // 2, len(drawn) - 1)}.values() if drawn else ()


def calls(op: OpInfo, sample: SampleInput, device: str, count: int) -> list[float]:
    """Microseconds of as many calls. What does not name a device has it as PyTorch's default."""
    moved = move_sample(sample, device)
    times = []
    with contextlib.nullcontext() if moved.names_a_device() else torch.device(device):
        for _ in range(count):
            torch.hetero.flush()
            begun = time.perf_counter_ns()
            result = op(moved.first, *moved.args, **moved.kwargs)
            times.append((time.perf_counter_ns() - begun) / 1e3)
            del result
    return times


def call_us(op: OpInfo, sample: SampleInput, device: str) -> float:
    """The median of calls from the third on, in microseconds."""
    return statistics.median(calls(op, sample, device, CALLS)[2:])


def first_call_ms(op: OpInfo, dtype: torch.dtype, device: str) -> float:
    """In a child of this process, which has called no operator: the first sample. Negative if it was refused."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        answer = -1.0
        try:
            answer = calls(op, next(iter(op.sample_inputs("cpu", dtype))), device, 1)[0] / 1e3
        finally:
            os.write(write, str(answer).encode())
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return float(text or "-1")


# What was measured, the times on hetero and on the CPU, and whether that is above the bar.
Measured = Iterator[tuple[str, float, float, bool]]


def sweep(names: list[str], measure: Callable[[OpInfo, torch.dtype], Measured], unit: str) -> int:
    """Prints what is above the bar; returns how many entries are."""
    above: list[tuple[float, str]] = []
    entries = set()
    for name in names:
        op = ENTRIES[name]
        dtype = choose_dtype(op)
        if dtype is None:
            continue
        try:
            for what, here, eager, over in measure(op, dtype):
                if over:
                    above.append((here / max(eager, 1e-3), f"{name:50} {what:>16} {here:10.1f} {eager:10.1f}"))
                    entries.add(name)
        except Exception as error:  # the gate compares what entries refuse
            print(f"{name}: not measured: {type(error).__name__}", file=sys.stderr)
    print(f"{'entry':50} {'elements':>16} {'hetero ' + unit:>10} {'eager':>10}   times")
    for ratio, line in sorted(above, reverse=True):
        print(f"{line} {ratio:7.1f}")
    print(f"{len(entries)} of {len(names)} entries above the bar")
    return len(entries)


def third_calls(op: OpInfo, dtype: torch.dtype) -> Measured:
    for sample in samples_of(op, dtype):
        eager = call_us(op, sample, "cpu")
        here = call_us(op, sample, "hetero")
        yield str(elements(sample)), here, eager, here > FACTOR * eager + EXTRA_US


def first_calls(op: OpInfo, dtype: torch.dtype) -> Measured:
    here, eager = first_call_ms(op, dtype, "hetero"), first_call_ms(op, dtype, "cpu")
    if here >= 0 and eager >= 0:
        yield "first", here, eager, here > eager + FIRST_MS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--filter", default="", help="only entries with this in their name")
    parser.add_argument("--first", action="store_true", help="the first calls of a process, in place of later ones")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    excluded = load_exclusions()
    names = [name for name in ENTRIES if options.filter in name and name not in excluded]
    torch.set_num_threads(1)
    if options.first:
        sweep(names, first_calls, "ms")
    else:
        sweep(names, third_calls, "us")
    return 0


if __name__ == "__main__":
    sys.exit(main())
