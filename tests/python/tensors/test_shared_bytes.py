"""Bytes that the host shares with a tensor, by numpy, DLPack or a view: both see what the other wrote, in order."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from counters import counting
from helpers import DEVICE, assert_same, needs_hetero

SHARES: dict[str, Callable[[torch.Tensor], np.ndarray]] = {
    "numpy": lambda x: x.numpy(),
    "array": lambda x: np.asarray(x),
    "dlpack": lambda x: torch.from_dlpack(x).numpy(),
    "memoryview": lambda x: np.frombuffer(memoryview(x.numpy()), dtype=np.float32),
    "a view": lambda x: x.view(2, -1).t().numpy().T.reshape(-1),
    "a cpu tensor": lambda x: torch.from_numpy(x.numpy()).numpy(),
}


@pytest.mark.parametrize("how", SHARES)
def test_what_is_recorded_before_the_host_writes_does_not_see_the_write(how: str) -> None:
    x = torch.full((4,), 1.0, device=DEVICE)
    host = SHARES[how](x)
    y = x + 1
    host[:] = 9
    z = x + 1
    host[:] = 20
    assert y.tolist() == [2.0] * 4
    assert z.tolist() == [10.0] * 4
    assert x.tolist() == [20.0] * 4


def test_clones_of_a_buffer_that_the_host_fills_again_hold_their_own_frame() -> None:
    buffer = torch.zeros(3, 8, device=DEVICE)
    host = buffer.numpy()
    frames = []
    for number in range(20):
        host[:] = number
        frames.append((buffer.clone(), buffer[1] * 2, buffer.sum()))
    for number, (clone, row, total) in enumerate(frames):
        assert clone.cpu().eq(number).all()
        assert row.cpu().eq(2 * number).all()
        assert total.item() == 24 * number


def test_views_and_aliases_share_too() -> None:
    x = torch.zeros(6, device=DEVICE)
    part = x[2:4]
    host = part.numpy()
    y = x * 1
    host[:] = 5
    z = x.view(2, 3) * 1
    x.add_(1)
    assert host.tolist() == [6.0, 6.0]
    assert y.tolist() == [0.0] * 6
    assert z.flatten().tolist() == [0.0, 0.0, 5.0, 5.0, 0.0, 0.0]


def test_parameters_that_the_host_changes_count_from_then_on() -> None:
    layer = torch.nn.Linear(4, 3).to(DEVICE)
    weight = layer.weight.detach().numpy()
    x = torch.ones(2, 4, device=DEVICE)
    with torch.no_grad():
        layer.bias.zero_()
        for number in (1.0, 2.0, 3.0):
            result = layer(x)
            weight[:] = number
            after = layer(x)
            weight[:] = -1
            assert after.cpu().eq(4 * number).all(), number
            assert not result.cpu().eq(4 * number).any()


def test_optimizers_write_where_the_host_looks() -> None:
    parameter = torch.nn.Parameter(torch.ones(3, device=DEVICE))
    host = parameter.detach().numpy()
    optimizer = torch.optim.SGD([parameter], lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        parameter.sum().backward()
        optimizer.step()
    assert host.tolist() == [-0.5] * 3


@needs_hetero
def test_compiled_programs_see_the_bytes_of_their_call() -> None:
    scale = torch.ones(4, device=DEVICE)
    compiled = torch.compile(lambda x: x * 2 + scale, backend="hetero")
    x = torch.zeros(4, device=DEVICE)
    host, host_scale = x.numpy(), scale.numpy()
    results = []
    for number in range(6):
        host[:] = number
        host_scale[:] = 10 * number
        results.append(compiled(x))
    host[:] = host_scale[:] = -1
    assert [result.tolist() for result in results] == [[12.0 * number] * 4 for number in range(6)]


@needs_hetero
def test_compiled_programs_write_where_the_host_looks() -> None:
    x = torch.zeros(4, device=DEVICE)
    host = x.numpy()

    @torch.compile(backend="hetero")
    def step(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 3

    for number in range(4):
        result = step(x)
        assert host.tolist() == [number + 1.0] * 4
        host[:] = number + 1
        assert result.tolist() == [3.0 * (number + 1)] * 4


@needs_hetero
def test_saved_programs_see_the_bytes_of_their_call() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    example = torch.zeros(2, 4)
    program = torch.hetero.compile(model, (example,))
    for device in ("cpu", DEVICE):
        x = torch.zeros(2, 4, device=device)
        host = x.numpy()
        results, inputs = [], []
        for number in range(5):
            host[:] = number
            results.append(program(x))
            inputs.append(torch.full((2, 4), float(number)))
        host[:] = 100
        for result, given in zip(results, inputs, strict=True):
            torch.testing.assert_close(result.detach().cpu(), model(given).detach())


@needs_hetero
def test_operators_run_at_once_only_while_somebody_shares() -> None:
    x, other = torch.ones(4, device=DEVICE), torch.ones(4, device=DEVICE)
    host = x.numpy()
    torch.hetero.flush()
    with counting() as counted:
        y = other + 1
    assert not counted.flushes
    with counting() as counted:
        z = x + 1
    assert counted.flushes == {"use of bytes that the host sees": 1}
    with counting() as counted:
        x.mul_(2)
    assert counted.flushes == {"use of bytes that the host sees": 1}
    assert host.tolist() == [2.0] * 4
    del host
    with counting() as counted:
        x.mul_(2)
        z = z + x
    assert not counted.flushes
    assert z.tolist() == [6.0] * 4
    assert y.tolist() == [2.0] * 4


@needs_hetero
def test_printing_shares_nothing() -> None:
    x = torch.ones(4, device=DEVICE)
    text = repr(x)
    torch.hetero.flush()
    with counting() as counted:
        x.add_(1)
        y = x + 1
    assert not counted.flushes
    assert "1., 1." in text
    assert y.tolist() == [3.0] * 4


def interleave(device: str, seed: int) -> list[np.ndarray]:
    """Operators, writes and reads of the host, and aliases that come and go, at random; returns all that was seen."""
    choose = random.Random(seed)
    tensors = [torch.arange(12, dtype=torch.float32).to(device) * (k + 1) for k in range(3)]
    hosts: list[np.ndarray | None] = [None, None, None]
    seen: list[np.ndarray] = []
    made: list[torch.Tensor] = []
    for step in range(40):
        k = choose.randrange(3)
        other = choose.choice(made) if made and choose.random() < 0.3 else tensors[choose.randrange(3)]
        what = choose.choice("share drop write write read new new in_place view copy value".split())
        host = hosts[k]
        if what == "share":
            hosts[k] = tensors[k].numpy() if choose.random() < 0.7 else torch.from_dlpack(tensors[k]).numpy()
        elif what == "drop":
            hosts[k] = host = None
        elif what == "write" and host is not None:
            host[choose.randrange(12) :] = step
        elif what == "read" and host is not None:
            seen.append(host.copy())
        elif what == "new":
            made.append(tensors[k] + other)
        elif what == "in_place":
            tensors[k].mul_(0.5).sub_(other)
        elif what == "view":
            tensors[k].view(3, 4)[1].add_(step)
        elif what == "copy":
            tensors[k].copy_(other)
        elif what == "value":
            seen.append(np.array(tensors[k][choose.randrange(12)].item(), dtype=np.float32))
    return seen + [tensor.cpu().numpy() for tensor in [*made, *tensors]]


@pytest.mark.parametrize("seeds", range(8))
def test_random_interleavings_are_those_of_the_cpu(seeds: int, unfused: None) -> None:
    for seed in range(25 * seeds, 25 * seeds + 25):
        for got, expected in zip(interleave(DEVICE, seed), interleave("cpu", seed), strict=True):
            assert_same(torch.from_numpy(got), torch.from_numpy(expected))
