"""Peak memory of a piece of work on hetero and in eager, and what the memory plan takes beside its lower bound."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Sequence

import torch

from tests.perf.measure import DEVICE, Row, flush, missing

MEMORY_BAR = 1.0
PLAN_BAR = 1.02
MIB = 2**20
ALIGNMENT = 64  # of every storage, in eager as on hetero; hetero's figures contain it


def hetero_peak(run: Callable[[], object], prepare: Callable[[], object] = lambda: None) -> float:
    """Bytes taken at most above what was held before `run`; the median of three, each after `prepare`.

    `run` must end with its work done, not only recorded.
    """
    peaks = []
    for _ in range(3):
        prepare()
        flush()
        before = torch.hetero.memory_allocated()
        torch.hetero.reset_peak_memory_stats()
        result = run()
        flush()
        peaks.append(torch.hetero.max_memory_allocated() - before)
        del result
    return statistics.median(peaks)


def peak_row(
    what: str,
    there: Callable[[], object],
    here: Callable[[], object],
    *,
    prepare_there: Callable[[], object] = lambda: None,
    prepare_here: Callable[[], object] = lambda: None,
    held: Callable[[], Sequence[torch.Tensor]] = list,
) -> Row:
    """A row of the peaks of the same work on hetero (`there`) and in eager (`here`), in MiB above what each held.

    `held` gives the tensors of eager's that the work replaces. Call it outside of inference mode: eager's peak is
    counted under the dispatcher, which then sees composite operators only.
    """
    from eager_memory import eager_peak

    prepare_here()
    peer = eager_peak(here, held, ALIGNMENT)
    ours = hetero_peak(there, prepare_there) if DEVICE != "cpu" else peer
    return Row(f"{what}: peak memory", ours / MIB, peer / MIB, MEMORY_BAR, "MiB")


ARENA = re.compile(r"^\s*arena cpu: (\d+) bytes, lower bound (\d+)", re.MULTILINE)


def arena_row(what: str, run: Callable[[], object]) -> Row:
    """A row of the arena of the largest plan in `run` beside its lower bound: the most bytes alive at once."""
    if DEVICE == "cpu":
        return missing(_PLAN.format(what), PLAN_BAR, "bytes", "no plans", peer_name="lower bound")
    flush()
    with torch.hetero.config.override(keep_plans=True):
        run()
        flush()
        return _planned_row(what, torch.hetero.explain().plan)


def program_arena_row(what: str, program: object) -> Row:
    """The same row for a program of torch.hetero.compile."""
    return _planned_row(what, str(program))


_PLAN = "{}: memory plan over its lower bound"


def _planned_row(what: str, plan: str) -> Row:
    """The row of a plan's text."""
    what = _PLAN.format(what)
    found = ARENA.findall(plan)
    if not found:
        return missing(what, PLAN_BAR, "bytes", "the last plan has no arena", peer_name="lower bound")
    arena, bound = max((int(size), int(bound)) for size, bound in found)
    if bound == 0:
        return missing(what, PLAN_BAR, "bytes", "no arena: temporaries own their blocks", peer_name="lower bound")
    return Row(what, arena, bound, PLAN_BAR, "bytes", peer_name="lower bound")
