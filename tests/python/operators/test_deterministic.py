"""torch.use_deterministic_algorithms(): the same bits each time, and values in memory that nobody has written."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from counters import counting
from helpers import DEVICE, assert_same, check
from torch import nn


@pytest.fixture(autouse=True)
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


UNWRITTEN: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "empty": lambda t: torch.empty(3, 5, dtype=t.dtype, device=t.device),
    "empty_like": torch.empty_like,
    "new_empty": lambda t: t.new_empty(4),
    "empty_strided": lambda t: torch.empty_strided((2, 3), (1, 2), dtype=t.dtype, device=t.device),
    "of no elements": lambda t: t.new_empty(0, 3),
    "resize_": lambda t: t.clone().resize_(5, 7),
    "resize_ to fewer": lambda t: t.clone().resize_(2),
    "resize_ behind an offset": lambda t: t.clone()[1:].resize_(11),
    "empty and written": lambda t: t.new_empty(4).copy_(torch.arange(4)) + 1,
}


DTYPES = [torch.float32, torch.bfloat16, torch.complex64, torch.int64, torch.uint8, torch.bool]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", UNWRITTEN)
def test_memory_that_nobody_has_written_has_the_cpus_values(name: str, dtype: torch.dtype) -> None:
    check(UNWRITTEN[name], torch.tensor([[0, 1, 1], [1, 0, 1]]).to(dtype))


def test_memory_is_not_filled_where_that_is_not_wanted() -> None:
    torch.utils.deterministic.fill_uninitialized_memory = False
    try:
        with counting() as seen:
            torch.empty(3, device=DEVICE)
        assert seen.recorded == 0
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = True


def test_the_first_step_gives_the_bits_of_all_later_ones() -> None:
    """What is seen for the first time is fused like what comes back; weights are used often enough to be packed."""
    torch.hetero.config.fusion = True
    torch.manual_seed(0)
    images = nn.Sequential(nn.Conv2d(16, 32, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = nn.Sequential(images, nn.Linear(32, 512), nn.GELU(), nn.Linear(512, 256), nn.LayerNorm(256), nn.Softmax(-1))
    model = model.to(DEVICE)
    x = torch.randn(80, 16, 9, 9)

    def step() -> list[torch.Tensor]:
        model.zero_grad(set_to_none=True)
        given = x.to(DEVICE).requires_grad_()
        loss = (model(given) ** 2).sum()
        loss.backward()
        return [loss.detach().cpu(), given.grad.cpu(), *(p.grad.cpu() for p in model.parameters())]

    with counting() as first:
        before = step()
    assert first.fused_nodes > 0
    with counting() as seen:
        for _ in range(20):
            assert_same(step(), before)
    assert seen.plans_replayed >= 18
    assert not [name for name in seen.own_kernels if "attention" not in name], seen.own_kernels
