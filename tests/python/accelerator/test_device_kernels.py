"""Operators on an accelerator that does not run the CPU's kernels, as a GPU: by kernels of the device, or on copies.

The simulated accelerator is told not to run the CPU's kernels (`SimOptions::host_kernels`); what CUDA's kernels would
compute, the CPU's compute there. HETERO_ACCELERATOR=cuda runs the same tests on a GPU.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from counters import counting
from helpers import DEVICE, assert_same, fresh, needs_hetero
from torch import nn

pytestmark = needs_hetero

ON_GPU = os.environ.get("HETERO_ACCELERATOR") == "cuda"


def rescues() -> dict[str, int]:
    return torch.hetero.explain().rescues


@pytest.fixture(autouse=True)
def accelerator_without_host_kernels() -> Iterator[None]:
    torch.hetero.config.fusion = False
    torch.hetero.config.memory_budget = 0
    if not ON_GPU:
        torch.hetero._C.set_sim_options([("host_kernels", 0.0)])
        torch.hetero.config.accelerator = "sim"
    torch.hetero.config.placement = "accelerator"
    yield
    if not ON_GPU:
        torch.hetero._C.set_sim_options([("host_kernels", float(os.environ.get("HETERO_TEST_HOST_KERNELS", "1")))])


def near(found: torch.Tensor, expected: torch.Tensor) -> None:
    """The same bits where the CPU's kernels stand for the device's."""
    if ON_GPU:
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    else:
        assert_same(found, expected)


def trained(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    return [tensor.detach().cpu() for tensor in (loss, *model.parameters())]


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(24, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 5)), (6, 24)),
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, groups=2),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)
        ),
        (4, 3, 12, 12),
    ),
}


@pytest.mark.parametrize("fusion", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_training_runs_on_the_device(name: str, fusion: bool) -> None:
    torch.hetero.config.fusion = fusion
    make, sizes = MODELS[name]
    model = make()
    x, y = torch.randn(sizes), torch.randint(0, 5, (sizes[0],))
    expected = trained(copy.deepcopy(model), x, y)
    before = rescues()
    with counting() as seen:
        found = trained(model.to(DEVICE), x.to(DEVICE), y.to(DEVICE))
    for one, other in zip(found, expected, strict=True):
        if fusion:
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
        else:
            near(one, other)
    assert seen.kernels_on("accelerator") > 10
    assert rescues() == before
    if not fusion:
        assert seen.kernels_on("cpu") == 0


@pytest.mark.parametrize("budget", [0, 1 << 16])
def test_a_transformer_runs_on_the_device(budget: int) -> None:
    torch.hetero.set_memory_budget(budget)
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    x = torch.randn(2, 7, 32)
    reference = copy.deepcopy(layer)
    expected = reference(x)
    expected.sum().backward()
    layer.to(DEVICE)
    for _ in range(2):
        layer.zero_grad()
        found = layer(x.to(DEVICE))
        found.sum().backward()
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-5)
    for one, other in zip(layer.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(one.grad.cpu(), other.grad, rtol=1e-3, atol=1e-4)


def attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: object) -> list[torch.Tensor]:
    inputs = [tensor.detach().requires_grad_() for tensor in (q, k, v)]
    output = F.scaled_dot_product_attention(*inputs, **options)
    (output * output).sum().backward()
    return [output.detach().cpu(), *[tensor.grad.cpu() for tensor in inputs]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", ["plain", "causal", "scaled", "mask", "few_queries", "shared_keys"])
def test_attention_is_computed_on_the_device(case: str, dtype: torch.dtype) -> None:
    queries = 1 if case == "few_queries" else 9
    groups = 2 if case == "shared_keys" else 4
    q = torch.randn(2, 4, queries, 16, dtype=dtype)
    k, v = torch.randn(2, groups, 9, 16, dtype=dtype), torch.randn(2, groups, 9, 16, dtype=dtype)
    options = {
        "causal": {"is_causal": True},
        "scaled": {"scale": 0.3},
        "mask": {"attn_mask": torch.randn(9, 9, dtype=dtype)},
        "shared_keys": {"enable_gqa": True},
    }.get(case, {})
    expected = attended(q, k, v, **options)
    there = {name: value.to(DEVICE) if isinstance(value, torch.Tensor) else value for name, value in options.items()}
    before = rescues()
    for _ in range(2):
        found = attended(fresh(q), fresh(k), fresh(v), **there)
    tolerance = 1e-4 if dtype == torch.float32 else 5e-2
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
    assert rescues() == before


def test_what_the_device_refuses_the_cpu_computes() -> None:
    q = torch.randn(2, 4, 9, 16, dtype=torch.float64)
    expected = attended(q, q, q)
    before = rescues()
    for _ in range(2):
        for one, other in zip(attended(fresh(q), fresh(q), fresh(q)), expected, strict=True):
            assert_same(one, other)
    assert sum(rescues().values()) > sum(before.values()) and any("attention" in refusal for refusal in rescues())


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_a_loss_whose_out_variant_is_wrong_is_right(reduction: str) -> None:
    x, y, weight = torch.rand(5), torch.rand(5), torch.rand(5)
    before = rescues()
    with counting() as seen:
        found = F.binary_cross_entropy(fresh(x), fresh(y), fresh(weight), reduction=reduction).cpu()
    near(found, F.binary_cross_entropy(x, y, weight, reduction=reduction))
    assert seen.kernels_on("accelerator") == 1
    assert rescues() == before


def test_errors_are_the_cpus_and_nothing_is_lost() -> None:
    x, index = torch.randn(4, 4), torch.tensor([9])
    with pytest.raises(IndexError, match="index 9 is out of bounds for dimension 0 with size 4"):
        fresh(x)[fresh(index)].cpu()
    assert_same((fresh(x) + 1).cpu(), x + 1)


def test_numbers_are_the_same_on_every_device() -> None:
    def drawn(placement: str) -> torch.Tensor:
        torch.hetero.config.placement = placement
        torch.manual_seed(3)
        x = torch.ones(64, 64, device=DEVICE)
        return (F.dropout(x, 0.3) + torch.rand(64, 64, device=DEVICE) + torch.randn_like(x)).cpu()

    assert_same(drawn("accelerator"), drawn("cpu"))


@pytest.mark.parametrize("name", ["in_place", "views", "many", "integers", "none"])
def test_operands_of_every_kind(name: str) -> None:
    def in_place(x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        x[1:3].mul_(2).clamp_(max=1)
        x.t()[0].fill_(4)
        return x.addcmul_(x, x, value=0.5)

    def views(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x[::2, 1:], x.t()[:2, :5]]).cumsum(1) @ x[:5, :3].contiguous()

    def many(x: torch.Tensor) -> torch.Tensor:
        values, places = torch.topk(x, 2)
        low, high = torch.aminmax(x, dim=1)
        return values.sum() + places.sum() + torch.std_mean(x)[0] + (high - low).sum()

    def integers(x: torch.Tensor) -> torch.Tensor:
        y = (x * 10).long()
        return torch.where(y % 3 == 0, y // 2, y << 1).sort(descending=True)[0]

    def none(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x[:0], (x[:0] * 2).relu()]).sum(0)

    function = {"in_place": in_place, "views": views, "many": many, "integers": integers, "none": none}[name]
    x = torch.randn(6, 6)
    for _ in range(3):
        near(function(fresh(x)).cpu(), function(x))


def test_saved_programs_run_on_the_device() -> None:
    model, x = MODELS["mlp"][0]().eval(), torch.randn(6, 24)
    with torch.no_grad():
        expected = model(x)
    compiled = torch.hetero.compile(model, (x,))
    before = rescues()
    for _ in range(4):
        torch.testing.assert_close(compiled(x), expected, rtol=1e-4, atol=1e-5)
    assert rescues() == before
