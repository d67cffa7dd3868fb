"""Random programs with views, in-place writes, aliases and reads give CPU's bits.

A program is a list of steps over a growing list of tensors. `Program` draws it from a seed without
running it, so that one seed always means one program: run `run(seed, device)` to look at a failure.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest
import torch
from helpers import DEVICE, assert_same
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

Step = Callable[[list[torch.Tensor]], object]

UNARY = ("neg", "abs", "tanh", "sigmoid", "relu", "exp", "sin", "floor", "square", "sign")
UNARY_IN_PLACE = ("neg_", "abs_", "tanh_", "sigmoid_", "relu_", "sin_", "zero_")
BINARY = ("add", "sub", "mul", "maximum", "minimum", "atan2")
BINARY_IN_PLACE = ("add_", "sub_", "mul_", "copy_")
VIEWS: tuple[Callable[[torch.Tensor, int], torch.Tensor], ...] = (
    lambda t, k: t.t(),
    lambda t, k: t[k % t.shape[0] :],
    lambda t, k: t[:, :: 1 + k % 2],
    lambda t, k: t[k % t.shape[0]][None],
    lambda t, k: t.narrow(1, k % t.shape[1], 1),
    lambda t, k: t.reshape(-1, t.shape[0]),
    lambda t, k: t.flatten()[k % t.numel() :][None],
    lambda t, k: t.diagonal()[None],
    lambda t, k: t.unfold(1, min(2, t.shape[1]), 1)[0],
    lambda t, k: t.detach(),
    lambda t, k: t.expand(2, *t.shape)[k % 2],
    lambda t, k: t.unsqueeze(0).transpose(1, 2)[0],
)
SHAPING: tuple[Callable[[torch.Tensor, int], torch.Tensor], ...] = (
    lambda t, k: t.clone(),
    lambda t, k: t.sum(k % 2, keepdim=True),
    lambda t, k: t.mean(0, keepdim=True),
    lambda t, k: t.amax(1, keepdim=True),
    lambda t, k: t.softmax(k % 2),
    lambda t, k: t.cumsum(k % 2),
    lambda t, k: t @ t.t(),
    lambda t, k: torch.cat([t, t.flip(0)], k % 2),
    lambda t, k: t.repeat(1 + k % 2, 1),
    lambda t, k: t.roll(k, 0),
    lambda t, k: t.sort(k % 2).values,
    lambda t, k: torch.where(t > 0, t, t * 0.5),
    lambda t, k: t.masked_fill(t > 1, float(k)),
    lambda t, k: t.index_select(0, torch.tensor([0, t.shape[0] - 1], device=t.device)),
    lambda t, k: t.to(torch.float64).to(torch.float32),
    lambda t, k: torch.nn.functional.pad(t, (1, 0)),
    lambda t, k: t.contiguous(),
    lambda t, k: torch.special.entr(t),
)
READS: tuple[Callable[[torch.Tensor], object], ...] = (
    lambda t: t.sum().item(),
    lambda t: t.cpu().clone(),
    lambda t: t.tolist(),
    lambda t: bool((t > 0).any()),
    lambda t: t[t > 0].shape[0],
)


class Program:
    """Steps drawn from a seed. `log` collects what reads saw, in order."""

    def __init__(self, seed: int, length: int) -> None:
        self.draw = random.Random(seed)
        self.seed = seed
        self.length = length

    def run(self, device: str, flush_every: int = 0) -> list[object]:
        self.draw.seed(self.seed)
        generator = torch.Generator().manual_seed(self.seed)
        tensors = [torch.randn(self.draw.randint(2, 5), self.draw.randint(2, 5), generator=generator) for _ in range(3)]
        tensors = [tensor.to(device) for tensor in tensors]
        log: list[object] = []
        for index in range(self.length):
            self.step(tensors, log)
            if flush_every and device == "hetero" and index % flush_every == 0:
                torch.hetero.flush()
        return [*log, *[tensor.cpu().clone() for tensor in tensors]]

    def step(self, tensors: list[torch.Tensor], log: list[object]) -> None:
        """One step; every random choice is made from shapes only, which CPU shares."""
        draw = self.draw
        kind = draw.choices(
            ("unary", "binary", "view", "shape", "write", "write2", "scalar", "out", "read", "drop"),
            (10, 10, 16, 10, 10, 14, 6, 4, 3, 5),
        )[0]
        target, other = draw.choice(tensors), draw.choice(tensors)
        number, choice = draw.randint(0, 9), draw.random()
        if kind == "unary":
            tensors.append(getattr(torch, pick(UNARY, choice))(target))
        elif kind == "binary" and broadcastable(target, other):
            tensors.append(getattr(torch, pick(BINARY, choice))(target, other))
        elif kind == "view" and target.numel() > 0:
            tensors.append(pick(VIEWS, choice)(target, number))
        elif kind == "shape" and target.numel() > 0:
            tensors.append(pick(SHAPING, choice)(target, number))
        elif kind == "write" and not overlaps_itself(target):
            getattr(target, pick(UNARY_IN_PLACE, choice))()
        elif kind == "write2" and not overlaps_itself(target) and expandable(other, target):
            getattr(target, pick(BINARY_IN_PLACE, choice))(other.clone())
        elif kind == "scalar" and not overlaps_itself(target):
            target.mul_(0.5).add_(number)
        elif kind == "out" and not overlaps_itself(target):
            torch.add(target.clone(), number, out=target)
        elif kind == "read":
            log.append(pick(READS, choice)(target))
        elif kind == "drop" and len(tensors) > 3:
            tensors.pop(draw.randrange(len(tensors)))
        if len(tensors) > 12 or tensors[-1].numel() > 400 or tensors[-1].numel() == 0:
            tensors.pop(0 if len(tensors) > 12 else -1)


def pick(options: tuple, choice: float) -> object:
    return options[int(choice * len(options))]


def broadcastable(one: torch.Tensor, other: torch.Tensor) -> bool:
    return all(a == b or 1 in (a, b) for a, b in zip(one.shape, other.shape, strict=True))


def expandable(source: torch.Tensor, target: torch.Tensor) -> bool:
    return all(a in (1, b) for a, b in zip(source.shape, target.shape, strict=True))


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether two elements share memory, as in expanded or unfolded tensors."""
    offsets = torch.zeros((), dtype=torch.int64)
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        offsets = offsets[..., None] + torch.arange(size) * stride
    return offsets.unique().numel() != offsets.numel()


@pytest.mark.parametrize("seed", range(int(os.environ.get("HETERO_FUZZ_PROGRAMS", "150"))))
def test_a_random_program_gives_cpu_bits(seed: int) -> None:
    program = Program(seed, 2 + seed % 39)
    assert_same(program.run(DEVICE), program.run("cpu"))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(seed=st.integers(0, 2**31), length=st.integers(2, 40), flush_every=st.sampled_from((0, 1, 3)))
def test_a_program_gives_cpu_bits_at_any_flush_points(seed: int, length: int, flush_every: int) -> None:
    program = Program(seed, length)
    assert_same(program.run(DEVICE, flush_every), program.run("cpu"))


def test_one_seed_means_one_program() -> None:
    assert_same(Program(7, 40).run("cpu"), Program(7, 40).run("cpu"))


def test_the_programs_contain_writes_views_and_reads() -> None:
    lengths = [len(Program(seed, 40).run("cpu")) for seed in range(20)]
    assert min(lengths) >= 1 and max(lengths) > 6


@pytest.mark.parametrize("seed", range(40))
def test_a_random_differentiable_program_has_cpu_gradients(seed: int) -> None:
    def run(device: str) -> list[torch.Tensor]:
        draw = random.Random(seed)
        generator = torch.Generator().manual_seed(seed)
        leaf = torch.randn(4, 4, generator=generator).to(device).requires_grad_()
        value = leaf * 1.0
        for _ in range(draw.randint(2, 12)):
            kind, number = draw.choice("uvwms"), draw.randint(0, 3)
            if kind == "u":
                value = getattr(torch, draw.choice(("tanh", "sigmoid", "sin", "exp")))(value * 0.5)
            elif kind == "v":
                value = value.t() + leaf
            elif kind == "w":
                value = value.clone()
                value[number].mul_(leaf[0])
                value[:, number] += 1
            elif kind == "m":
                value = value @ leaf / 4
            else:
                value = value.softmax(number % 2) * leaf
        (value**2).sum().backward()
        return [value.detach().cpu(), leaf.grad.cpu()]

    assert_same(run(DEVICE), run("cpu"))
