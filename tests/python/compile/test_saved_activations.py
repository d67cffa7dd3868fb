"""What the forward program of a training step saves for the backward program: no copies, and images in any layout."""

from __future__ import annotations

import copy
import re

import pytest
import torch
from compiled_models import compiled
from helpers import assert_same, needs_hetero
from machines import accelerator
from torch import nn

from torch_hetero.program.compiled_graph import compiled_graphs

pytestmark = [
    needs_hetero,
    # TorchDynamo and AOTAutograd warn about themselves.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]

IMAGE = r"f32\[2,\d+,12,12\]"


def network() -> nn.Module:
    """Depthwise and pointwise convolutions, norms, and activations in place."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU6(inplace=True),
        nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False), nn.BatchNorm2d(8), nn.SiLU(inplace=True),
        nn.Conv2d(8, 4, 1), nn.Hardtanh(-0.5, 0.25), nn.Conv2d(4, 2, 1)).train()


def step(model: nn.Module, forward: object, x: torch.Tensor) -> list[torch.Tensor]:
    """The loss, the gradients and the statistics of a step."""
    model.zero_grad()
    loss = forward(x).square().sum()  # type: ignore[operator]
    loss.backward()
    return [loss.detach().cpu(), *(one.grad.cpu() for one in model.parameters()), *(one.cpu() for one in model.buffers())]


def forward_text() -> str:
    """The last forward program."""
    return [str(graph) for graph in compiled_graphs() if graph.kind == "forward"][-1]


def test_a_step_is_pytorchs() -> None:
    model, x = network(), torch.randn(2, 3, 12, 12)
    truth = copy.deepcopy(model).double()
    there = copy.deepcopy(model).to("hetero")
    forward = compiled(there)
    for _ in range(3):
        actual = step(there, forward, x.to("hetero"))
        for one, other in zip(actual, step(truth, truth, x.double()), strict=True):
            torch.testing.assert_close(one.double(), other.double(), rtol=1e-3, atol=1e-4)
    text = forward_text()
    assert not re.search(rf"aten::(clone|copy_)\(.*{IMAGE}", text)
    if accelerator() == "none":
        assert re.search(rf"aten::native_batch_norm\(read b\d+:{IMAGE}{{", text)


def test_programs_without_fusion_have_their_own_layouts() -> None:
    model, x = network(), torch.randn(2, 3, 12, 12)
    there, other = copy.deepcopy(model).to("hetero"), copy.deepcopy(model).to("hetero")
    forward = compiled(there)
    step(there, forward, x.to("hetero"))
    there.load_state_dict(other.state_dict())
    torch.hetero.config.fusion = False
    unfused = step(there, forward, x.to("hetero"))
    assert_same(unfused, step(other, compiled(other), x.to("hetero")))
    assert_same(unfused, step(model, model, x))


def test_a_copy_that_the_caller_gets_is_one() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        shown = x * 2
        return shown, shown.clone()

    x = torch.randn(5)
    shown, other = compiled(function)(x.to("hetero").requires_grad_())
    shown.detach().mul_(5)
    assert_same([shown.detach().cpu(), other.detach().cpu()], [x * 2 * 5, x * 2])


def test_copies_of_parts_of_arguments_stay_copies() -> None:
    def function(state: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        first, _ = state.chunk(2)
        kept = first.clone()
        with torch.no_grad():
            state.mul_(0.5)
        return (x * kept).sum()

    found = []
    for call, device in ((function, "cpu"), (compiled(function), "hetero")):
        state, x = torch.arange(8.0).to(device), torch.ones(4).to(device).requires_grad_()
        call(state, x).backward()
        found.append([x.grad.cpu(), state.cpu()])
    assert_same(found[1], found[0])


def test_a_result_that_the_caller_writes_is_not_saved() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.relu6(x * 3)

    found = []
    for call, device in ((function, "cpu"), (compiled(function), "hetero")):
        x = torch.linspace(-3, 3, 13).to(device).requires_grad_()
        result = call(x)
        result.mul_(2)
        result.sum().backward()
        found.append([result.detach().cpu(), x.grad.cpu()])
    assert_same(found[1], found[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("limits", [(), (-0.7, 0.7)])
def test_gradients_of_what_is_at_its_limits(dtype: torch.dtype, limits: tuple[float, ...], unfused: None) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.hardtanh(x * 3, *limits).square()

    found = []
    for call, device in ((function, "cpu"), (compiled(function), "hetero")):
        x = torch.linspace(-3, 3, 61).to(dtype).to(device).requires_grad_()
        call(x).sum().backward()
        found.append(x.grad.cpu())
    assert_same(found[1], found[0])


def test_a_saved_image_that_is_seen_by_its_strides_keeps_them() -> None:
    layers = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 3, padding=1, groups=8))

    def function(layers: nn.Module, x: torch.Tensor) -> torch.Tensor:
        made = layers(x)
        part = made.as_strided((2, 8, 10), (1152, 144, 1))
        return (part * part).sum() + made.sigmoid().sum()

    there = copy.deepcopy(layers).to("hetero")
    x = torch.randn(2, 3, 12, 12)
    function(layers, x).backward()
    torch.compile(function, backend="hetero")(there, x.to("hetero")).backward()
    for mine, theirs in zip(there.parameters(), layers.parameters(), strict=True):
        torch.testing.assert_close(mine.grad.cpu(), theirs.grad, rtol=1e-4, atol=1e-4)


def test_what_the_caller_gets_keeps_its_layout() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3, padding=1, groups=8)).to("hetero")
    forward = compiled(model)
    x = torch.randn(2, 3, 12, 12).to("hetero")
    for _ in range(3):
        assert forward(x).is_contiguous()
