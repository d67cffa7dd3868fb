"""Pieces of a program that run while the rest is recorded: the same results, whatever a program does in between."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from helpers import DEVICE, assert_same, needs_hetero, run_python_ok
from torch import nn

pytestmark = needs_hetero
PIECES = 4


@pytest.fixture(autouse=True)
def pieces() -> Iterator[None]:
    """Every program is divided as soon as it was seen."""
    from torch_hetero import _C

    _C.force_overlap(PIECES)
    yield
    _C.force_overlap(0)


def flights() -> int:
    """How many pieces ran while their program was still being recorded."""
    return torch.hetero.explain().flushes.get("run while recording goes on", 0)


def test_a_model_in_pieces_gives_the_same_values_every_time() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 3)  # eval() would make each layer one operator
    inputs = [torch.randn(2, 6, 16) for _ in range(3)]
    with torch.no_grad():
        expected = [model(x) for x in inputs]
        model.to(DEVICE)
        before = flights()
        for _ in range(6):
            for x, y in zip(inputs, expected, strict=True):
                torch.testing.assert_close(model(x.to(DEVICE)).cpu(), y)
    assert flights() > before


def test_training_in_pieces_gives_the_losses_of_the_cpu() -> None:
    def losses(device: str) -> list[float]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4)).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        x, y = torch.randn(8, 16).to(device), torch.randint(4, (8,)).to(device)
        result = []
        for _ in range(12):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            result.append(loss.item())
        return result

    before = flights()
    torch.testing.assert_close(losses(DEVICE), losses("cpu"))
    assert flights() > before


def test_growing_sequences_are_resized_in_pieces() -> None:
    def grow(device: str) -> torch.Tensor:
        cache = torch.ones(1, 4, device=device)
        for step in range(20):
            row = torch.tanh(cache.sum(0, keepdim=True) * 0.1) + step
            scores = torch.softmax(row @ cache.t(), -1)
            cache = torch.cat([cache, scores @ cache])
            _ = cache[-1].sum().item()
        return cache.cpu()

    torch.testing.assert_close(grow(DEVICE), grow("cpu"))


def test_what_numpy_sees_is_complete() -> None:
    for _ in range(8):
        value = torch.ones(4, device=DEVICE)
        for _ in range(12):
            value = value * 2 + 1
        assert value.numpy(force=True).tolist() == [8191.0] * 4


def test_an_exception_while_recording_leaves_the_rest_intact() -> None:
    for _ in range(8):
        value = torch.ones(4, device=DEVICE)
        for step in range(12):
            value = value * 2 + 1
            if step == 8:
                with pytest.raises(RuntimeError):
                    value + torch.ones(3, device=DEVICE)
        assert_same(value, torch.full((4,), 8191.0))


@pytest.mark.parametrize("ending", ["pass", "sys.exit(0)", "os.fork() or os._exit(0); print(value.sum().item())"])
def test_a_process_may_end_or_fork_with_pieces_in_flight(ending: str) -> None:
    run_python_ok(
        f"""
        import os, sys, torch
        from torch_hetero import _C
        _C.force_overlap({PIECES})
        for _ in range(8):
            value = torch.ones(300, 300, device="hetero")
            for _ in range(12):
                value = torch.tanh(value @ value)
            if _ < 7:
                value.sum().item()
        {ending}
        """
    )
