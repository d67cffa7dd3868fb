"""torch.autocast on the device follows CPU's casts, and GradScaler scales and skips."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from helpers import DEVICE, ON_HETERO, assert_same, check, needs_hetero
from torch import nn

DTYPES = (torch.bfloat16, torch.float16)

LOWER: dict[str, Callable[..., torch.Tensor]] = {
    "matmul": lambda x, w: x @ w,
    "mm": torch.mm,
    "addmm": lambda x, w: torch.addmm(x, x, w),
    "linear": lambda x, w: nn.functional.linear(x, w),
    "bmm": lambda x, w: torch.bmm(x[None], w[None]),
    "conv1d": lambda x, w: nn.functional.conv1d(x[None], w[:, :, None]),
    "attention": lambda x, w: nn.functional.scaled_dot_product_attention(x[None, None], w[None, None], w[None, None]),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", LOWER)
def test_matrix_operators_run_in_the_lower_precision(name: str, dtype: torch.dtype) -> None:
    if name == "attention" and ON_HETERO:
        torch.hetero.config.fusion = False  # with it, attention does not add in eager's order
    x, w = torch.randn(4, 4), torch.randn(4, 4)

    def run(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.autocast(x.device.type, dtype=dtype):
            return LOWER[name](x, w)

    assert check(run, x, w).dtype == dtype


@pytest.mark.parametrize("name", ("mse_loss", "l1_loss", "binary_cross_entropy", "cosine"))
def test_losses_run_in_float32(name: str) -> None:
    losses = {
        "mse_loss": nn.functional.mse_loss,
        "l1_loss": nn.functional.smooth_l1_loss,
        "binary_cross_entropy": nn.functional.binary_cross_entropy_with_logits,
        "cosine": nn.functional.cosine_embedding_loss,
    }
    x, y = torch.rand(3, 4).to(DEVICE, torch.bfloat16), torch.rand(3, 4).to(DEVICE)
    y = y.to(torch.bfloat16)
    arguments = (x, y, torch.ones(3, device=DEVICE)) if name == "cosine" else (x, y)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        result = losses[name](*arguments)
    assert result.device.type == DEVICE and result.isfinite().item()
    if name == "mse_loss":
        assert result.dtype == torch.float32


def test_cat_promotes_to_the_widest_type() -> None:
    a = torch.ones(2, 2, device=DEVICE, dtype=torch.bfloat16)
    b = torch.ones(2, 2, device=DEVICE)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        assert torch.cat([a, b]).dtype == torch.float32
        assert torch.stack([a, b]).dtype == torch.float32


def test_nothing_is_cast_outside_or_when_disabled() -> None:
    x = torch.ones(2, 2, device=DEVICE)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        assert (x @ x).dtype == torch.bfloat16
        with torch.autocast(DEVICE, enabled=False):
            assert (x @ x).dtype == torch.float32
        assert (x @ x).dtype == torch.bfloat16
    assert (x @ x).dtype == torch.float32


@needs_hetero
def test_autocast_of_another_device_type_does_not_touch_this_one() -> None:
    x, y = torch.ones(2, 2, device=DEVICE), torch.ones(2, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (x @ x).dtype == torch.float32 and (y @ y).dtype == torch.bfloat16
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        assert (x @ x).dtype == torch.bfloat16 and (y @ y).dtype == torch.float32


def test_autocast_state_is_visible() -> None:
    assert not torch.is_autocast_enabled(DEVICE)
    with torch.autocast(DEVICE, dtype=torch.float16):
        assert torch.is_autocast_enabled(DEVICE)
        assert torch.get_autocast_dtype(DEVICE) == torch.float16
    assert torch.amp.is_autocast_available(DEVICE)


def test_a_decorated_forward_runs_under_autocast() -> None:
    @torch.autocast(DEVICE, dtype=torch.bfloat16)
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x @ x

    assert forward(torch.ones(2, 2, device=DEVICE)).dtype == torch.bfloat16


def test_a_model_trained_under_autocast_equals_cpu() -> None:
    def train(device: str) -> list[torch.Tensor]:
        torch.manual_seed(9)
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 4))
        inputs, targets = torch.randn(6, 8).to(device), torch.randint(4, (6,)).to(device)
        model.to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            with torch.autocast(device, dtype=torch.bfloat16):
                outputs = model(inputs)
                assert outputs.dtype == torch.bfloat16
                loss = nn.functional.cross_entropy(outputs.float(), targets)
            loss.backward()
            optimizer.step()
        return [parameter.detach().cpu() for parameter in model.parameters()]

    trained = train(DEVICE)
    assert all(parameter.dtype == torch.float32 for parameter in trained)
    assert_same(trained, train("cpu"))


def test_weights_are_cast_once_inside_one_autocast_region() -> None:
    weight = torch.ones(3, 3, device=DEVICE, requires_grad=True)
    inputs = torch.ones(3, 3, device=DEVICE)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        loss = (inputs @ weight).sum() + (inputs @ weight).sum()
    loss.backward()
    assert weight.grad.dtype == torch.float32 and weight.grad.tolist() == [[6.0] * 3] * 3


def scaled_step(device: str, poison: bool) -> tuple[torch.Tensor, float, bool]:
    weight = nn.Parameter(torch.ones(2, device=device))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    scaler = torch.amp.GradScaler(device, init_scale=1024.0, growth_interval=1)
    loss = (weight * torch.tensor([1.0, float("inf") if poison else 2.0], device=device)).sum()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    return weight.detach().cpu(), scaler.get_scale(), scaler.is_enabled()


def test_grad_scaler_unscales_steps_and_grows() -> None:
    weight, scale, enabled = scaled_step(DEVICE, poison=False)
    assert enabled and weight.tolist() == [0.5, 0.0] and scale == 2048.0


def test_grad_scaler_skips_the_step_on_infinity_and_backs_off() -> None:
    weight, scale, enabled = scaled_step(DEVICE, poison=True)
    assert enabled and weight.tolist() == [1.0, 1.0] and scale == 512.0


def test_grad_scaler_state_round_trips() -> None:
    scaler = torch.amp.GradScaler(DEVICE, init_scale=64.0)
    scaler.scale(torch.ones(1, device=DEVICE))
    other = torch.amp.GradScaler(DEVICE)
    other.load_state_dict(scaler.state_dict())
    assert other.get_scale() == 64.0


def test_clip_grad_norm_equals_cpu() -> None:
    def run(gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
        parameter = nn.Parameter(torch.zeros_like(gradient))
        parameter.grad = gradient * 10
        norm = nn.utils.clip_grad_norm_([parameter], 1.0)
        nn.utils.clip_grad_value_([parameter], 0.3)
        return norm, parameter.grad

    check(run, torch.randn(7))
