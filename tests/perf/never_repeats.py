"""Programs that never repeat: random operators on random shapes, a new program for every round.

A seed makes the program, a list of steps over values that are there; hetero and eager run the same one, in turns.
Prediction and plans never pay here: the row shows what they cost.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import torch

from tests.perf.measure import DEVICE, Row, Times, alternate, flush, main, timed_row

BAR = 1.05
STEPS = 300
KEPT = 12  # values that later steps may take
ROUNDS = 24

Values = list[torch.Tensor]
Step = Callable[[Values], torch.Tensor]

UNARY: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    torch.relu,
    torch.tanh,
    torch.sigmoid,
    torch.neg,
    torch.abs,
    torch.cos,
    lambda x: x * 0.5,
    lambda x: x + 1.0,
    lambda x: x.clamp(-2.0, 2.0),
    lambda x: torch.softmax(x, -1),
    lambda x: x - x.mean(-1, keepdim=True),
    lambda x: x.t().contiguous(),
    lambda x: x.cumsum(0),
    lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]),
    lambda x: torch.cat([x, x], 0)[: x.shape[0]],
    lambda x: x.flip(1),
)
BINARY: tuple[Callable[[torch.Tensor, torch.Tensor], torch.Tensor], ...] = (
    torch.add,
    torch.sub,
    torch.mul,
    torch.maximum,
    lambda x, y: torch.where(x > y, x, y),
    lambda x, y: torch.lerp(x, y, 0.25),
)


def unary(index: int, function: Callable[[torch.Tensor], torch.Tensor]) -> Step:
    """A step on one value."""
    return lambda values: function(values[index])


def binary(index: int, function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Step:
    """A step on a value and its first row, which broadcasts."""
    return lambda values: function(values[index], values[index][:1])


def product(index: int, weight: torch.Tensor) -> Step:
    """A matrix product with `weight`, scaled so that values stay near one."""
    return lambda values: torch.tanh(values[index] @ weight)


def program(seed: int) -> tuple[list[tuple[int, Callable[[str], Step]]], Callable[[str], Values]]:
    """The steps of the program of a seed, each with the place its result takes, and its first values, by device."""
    choose = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    shapes = [(choose.randint(1, 96), choose.randint(1, 384)) for _ in range(KEPT)]
    first = [torch.randn(shape, generator=generator) for shape in shapes]
    steps: list[tuple[int, Callable[[str], Step]]] = []
    for _ in range(STEPS):
        index, place, kind = choose.randrange(KEPT), choose.randrange(KEPT), choose.random()
        rows, columns = shapes[index]
        if kind < 0.1:
            width = choose.randint(1, 384)
            weight = torch.randn(columns, width, generator=generator) / columns**0.5
            moved = {"cpu": weight, DEVICE: weight.to(DEVICE)}
            steps.append((place, lambda device, i=index, w=moved: product(i, w[device])))
            shapes[place] = (rows, width)
        elif kind < 0.7:
            function = choose.choice(UNARY)
            steps.append((place, lambda device, i=index, f=function: unary(i, f)))
            transposes = function is UNARY[11]
            shapes[place] = (columns, rows) if transposes else (rows, columns)
        else:
            function = choose.choice(BINARY)
            steps.append((place, lambda device, i=index, f=function: binary(i, f)))
            shapes[place] = (rows, columns)
    return steps, lambda device: [value.to(device) for value in first]


def runner(seed: int, device: str) -> Callable[[], list[float]]:
    """A call that runs the program of the seed and reads a sum of each value at its end."""
    steps, first = program(seed)
    bound = [(place, make(device)) for place, make in steps]
    begin = first(device)
    flush()

    def run() -> list[float]:
        values = list(begin)
        for place, step in bound:
            values[place] = step(values)
        return torch.stack([value.sum() for value in values]).tolist()

    return run


def measure() -> list[Row]:
    """One row; a round is a program that nothing has seen before."""
    times: Times = {"hetero": [], "eager": []}
    with torch.inference_mode():
        for seed in range(ROUNDS):
            subjects = {"hetero": runner(seed, DEVICE), "eager": runner(seed, "cpu")}
            seen = alternate(dict(reversed(subjects.items())) if seed % 2 else subjects, warmup=0, rounds=1, least=1)
            if seed >= 2:  # the first two warm up kernels and Python
                for who, seconds in seen.items():
                    times[who] += seconds
    return [timed_row(f"a program that never repeats, {STEPS} random operators, whole run", times, BAR, "ms")]


if __name__ == "__main__":
    main(measure)
