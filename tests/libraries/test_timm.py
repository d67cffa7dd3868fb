"""timm: vision models and optimizers on hetero equal those on the CPU."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import timm
import torch
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import ModelEmaV3, NativeScaler
from tiny import devices, recording
from torch import nn

MODELS: dict[str, dict[str, Any]] = {
    "resnet10t": {}, "efficientnet_lite0": {}, "mobilenetv4_conv_small_035": {}, "convnext_atto": {},
    "ghostnet_050": {}, "regnetx_002": {}, "vit_tiny_patch16_224": dict(img_size=64, depth=2),
    "test_vit2": dict(img_size=64),
    "swin_tiny_patch4_window7_224": dict(img_size=56, depths=(1, 1), num_heads=(2, 4), embed_dim=32, window_size=7),
    "mixer_s32_224": dict(img_size=64), "maxvit_pico_rw_256": dict(img_size=64, depths=(1, 1, 1, 1)),
}


def create(name: str, device: str) -> nn.Module:
    torch.manual_seed(0)
    return timm.create_model(name, num_classes=5, **MODELS.get(name, {})).to(device)


@pytest.mark.parametrize("name", MODELS)
def test_models_equal_the_cpu(name: str) -> None:
    size = MODELS[name].get("img_size", 64)
    x = torch.randn(2, 3, size, size)

    def run(device: str) -> tuple[torch.Tensor, list[torch.Tensor]]:
        model = create(name, device).eval()
        result = model(x.to(device))
        result.square().mean().backward()
        return result.detach().cpu(), [part.grad.cpu() for part in model.parameters() if part.grad is not None]

    (expected, expected_gradients) = run("cpu")
    with recording(30):
        result, gradients = run("hetero")
    torch.testing.assert_close(result, expected, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(gradients, expected_gradients, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("name", ["adamw", "lamb", "lion", "adopt", "muon", "sgd", "nadamw", "adafactor"])
def test_optimizers_equal_the_cpu(name: str) -> None:
    def train(device: str) -> list[float]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)).to(device)
        optimizer = create_optimizer_v2(model, opt=name, lr=1e-2, weight_decay=0.01)
        schedule, _ = create_scheduler_v2(optimizer, "cosine", num_epochs=4)
        x = torch.randn(8, 16, generator=torch.Generator().manual_seed(1)).to(device)
        losses = []
        for epoch in range(4):
            loss = (model(x) - x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step(epoch)
            losses.append(loss.item())
        return losses

    expected = train("cpu")
    with recording(30):
        torch.testing.assert_close(train("hetero"), expected, rtol=2e-3, atol=1e-4)


def test_the_training_loop_of_its_scripts_runs() -> None:
    def train(device: str) -> list[float]:
        model, criterion = create("resnet10t", device), SoftTargetCrossEntropy()
        optimizer = create_optimizer_v2(model, opt="sgd", lr=1e-2, momentum=0.9)
        average, scaler = ModelEmaV3(model, decay=0.9), NativeScaler(device)
        generator = torch.Generator().manual_seed(1)
        losses = []
        for step in range(3):
            x, y = torch.randn(4, 3, 32, 32, generator=generator), torch.randint(5, (4,), generator=generator)
            torch.manual_seed(step)
            numpy.random.seed(step)
            x, y = Mixup(0.2, num_classes=5)(x.to(device), y.to(device))
            loss = criterion(model(x), y)
            scaler(loss, optimizer, clip_grad=1.0, parameters=model.parameters())
            optimizer.zero_grad()
            average.update(model, step=step)
            losses.append(loss.item())
        assert devices(average) == {device}
        return losses

    expected = train("cpu")
    with recording(100):
        torch.testing.assert_close(train("hetero"), expected, rtol=1e-2, atol=1e-3)
