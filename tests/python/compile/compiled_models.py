"""Models for torch.compile, and what every test of it does with them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import models
import torch
from counters import COMPILED, counting
from helpers import assert_same
from torch import nn


def compiled(function: Callable[..., Any], **arguments: Any) -> Callable[..., Any]:
    return torch.compile(function, backend="hetero", fullgraph=True, **arguments)


def assert_steady(function: Callable[[], Any], programs: int = 1) -> None:
    """Repeated calls are calls of programs that were captured, and nothing else."""
    function()
    with counting() as seen:
        function()
        torch.hetero.flush()
    assert seen.recorded == 0, seen.recorded
    assert seen.captures == 0
    # With an accelerator a plan is made anew when what is learned of costs speaks for another.
    if torch.hetero.config.accelerator == "none":
        assert seen.plans_made == seen.plans_resized == 0
    assert seen.compiled_calls == programs
    assert seen.flushes == {COMPILED: programs}


def mlp() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 5))


def conv_net() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 10)
    )


def linear() -> nn.Module:
    torch.manual_seed(3)
    return nn.Linear(12, 5)


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(4))


def tokens(vocabulary: int, *shape: int) -> torch.Tensor:
    return torch.randint(vocabulary, shape, generator=torch.Generator().manual_seed(5))


MODELS: dict[str, tuple[Callable[[], nn.Module], torch.Tensor]] = {
    "linear": (linear, numbers(4, 12)),
    "mlp": (mlp, numbers(4, 12)),
    "conv net": (conv_net, numbers(3, 3, 8, 8)),
    "resnet18": (models.resnet18, numbers(4, 3, 48, 48)),
    "transformer": (models.transformer, tokens(40, 3, 7)),
    "vit": (models.vit, numbers(1, 3, 32, 32)),
    "lstm": (models.language_model, tokens(50, 3, 9)),
}


# And those of transformers.
ALL_MODELS: dict[str, tuple[Callable[[], nn.Module], torch.Tensor]] = {
    **MODELS,
    "minilm": (models.encoder, tokens(20000, 2, 9)),
    **{name: (functools.partial(models.decoder, name), tokens(64, 2, 7)) for name in ("gpt2", "llama", "qwen3")},
}


def step(model: Callable[..., torch.Tensor], inputs: torch.Tensor) -> torch.Tensor:
    loss = model(inputs).float().square().mean()
    loss.backward()
    return loss.detach()


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.grad.cpu() for name, value in model.named_parameters() if value.grad is not None}


def state(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().cpu() for name, value in model.state_dict().items()}


def both(function: Callable[..., Any], *inputs: torch.Tensor, calls: int = 2, **arguments: Any) -> None:
    """The compiled function does to hetero tensors what the function does to CPU tensors, arguments included."""
    fast = compiled(function, **arguments)
    here = [value.clone() for value in inputs]
    there = [value.to("hetero") for value in inputs]
    for _ in range(calls):
        expected = function(*here)
        actual = fast(*there)
        assert_same(torch.utils._pytree.tree_map_only(torch.Tensor, torch.Tensor.cpu, actual), expected)
        assert_same([value.cpu() for value in there], here)
