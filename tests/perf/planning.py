"""What planning costs at second sight, per node, by the device's own counters.

`torch.hetero.explain()` must have, among its figures, `plan_seconds` (all the time spent on building plans) and
`planned_nodes` (the nodes of those plans). Where it lacks them, the row says "not measured".
"""

from __future__ import annotations

import statistics

import torch

from tests.perf.first_sight import load_minilm, minilm_of
from tests.perf.measure import DEVICE, Row, flush, main, missing, quartiles

WHAT = "planning at second sight, MiniLM, per node"
BAR = 10.0  # microseconds
SHAPES = [(1 + step % 3, 9 + step) for step in range(8)]


def counters() -> tuple[float, int] | None:
    """Seconds of planning and nodes planned since the start, or None where they are not counted."""
    if DEVICE == "cpu":
        return None
    figures = torch.hetero.explain().as_dict()
    figures.update(figures.pop("others"))
    if "plan_seconds" not in figures or "planned_nodes" not in figures:
        return None
    return figures["plan_seconds"], figures["planned_nodes"]


def measure() -> list[Row]:
    """One row, without a peer: microseconds a node, the median over programs that are seen for the second time."""
    if counters() is None:
        why = "explain() has no plan_seconds and planned_nodes"
        return [missing(WHAT, BAR, "us", why, compare="absolute")]
    model = load_minilm(DEVICE)
    figures = []
    with torch.inference_mode():
        for shape in SHAPES:
            run = minilm_of(shape, DEVICE, model)
            run()
            flush()
            seconds, nodes = counters()
            run()
            flush()
            later_seconds, later_nodes = counters()
            if later_nodes > nodes:
                figures.append((later_seconds - seconds) / (later_nodes - nodes) * 1e6)
    if not figures:
        return [missing(WHAT, BAR, "us", "nothing was planned at second sight", compare="absolute")]
    middle, spread = statistics.median(figures), quartiles(figures)
    return [Row(WHAT, middle, None, BAR, "us", "", "absolute", spread=spread, best=min(figures), rounds=len(figures))]


if __name__ == "__main__":
    main(measure)
