"""What planning costs at second sight, per node, by the device's own counters (`plans` of `torch.hetero.explain()`)."""

from __future__ import annotations

import statistics

import torch

from tests.perf.first_sight import load_minilm
from tests.perf.measure import DEVICE, Row, flush, main, missing, quartiles

WHAT = "planning at second sight, MiniLM, per node"
BAR = 10.0  # microseconds
SHAPE = (2, 16)
PROGRAMS = 8


def counters() -> tuple[float, float]:
    """Seconds of planning and nodes planned since the start."""
    plans = torch.hetero.explain().plans
    return plans["planning_seconds"], plans["planned_nodes"]


def measure() -> list[Row]:
    """One row, without a peer: microseconds a node, the median over programs that are seen for the second time."""
    if DEVICE == "cpu":
        return [missing(WHAT, BAR, "us", "there is nothing to plan on the CPU", compare="absolute")]
    model = load_minilm(DEVICE)
    tokens = torch.randint(1000, 20000, SHAPE)
    inputs = {"input_ids": tokens.to(DEVICE), "attention_mask": torch.ones_like(tokens).to(DEVICE)}
    figures = []
    with torch.inference_mode():
        for extra in range(PROGRAMS):
            # Each program is the model with another number of operators behind it.
            for sight in (1, 2):
                flush()
                seconds, nodes = counters()
                hidden = model(**inputs).last_hidden_state
                for _ in range(extra + 1):
                    hidden = hidden + 1
                hidden.cpu()
                later_seconds, later_nodes = counters()
                if sight == 2 and later_nodes > nodes:
                    figures.append((later_seconds - seconds) / (later_nodes - nodes) * 1e6)
    if not figures:
        return [missing(WHAT, BAR, "us", "nothing was planned at second sight", compare="absolute")]
    middle, spread = statistics.median(figures), quartiles(figures)
    return [Row(WHAT, middle, None, BAR, "us", "", "absolute", spread=spread, best=min(figures), rounds=len(figures))]


if __name__ == "__main__":
    main(measure)
