"""Batches that are made ahead: they are uploaded while the one before is computed."""

from __future__ import annotations

import copy

import pytest
import torch
from counters import counting
from helpers import DEVICE, assert_same, needs_hetero
from simulated import MIB, Layers, accelerator_peak
from torch import nn

from torch_hetero import _C

pytestmark = [needs_hetero, pytest.mark.usefixtures("simulated_accelerator")]


def look_at_each(model: nn.Module, batches: list[torch.Tensor], ahead: bool, device: str) -> tuple[list[float], float]:
    """Something of each batch, read before the next is computed, and the virtual seconds of the last one."""
    found, seconds = [], 0.0
    batch = batches[0].to(device)
    for following in [*batches[1:], batches[0]]:
        begin = _C.virtual_seconds()
        with torch.no_grad():
            mean = model(batch).mean()
        if ahead:
            batch = following.to(device)
        found.append(mean.item())
        if not ahead:
            batch = following.to(device)
        seconds = _C.virtual_seconds() - begin
    return found, seconds


@pytest.mark.parametrize("placement", ["accelerator", "auto"])
def test_a_batch_that_is_made_ahead_is_uploaded_while_the_one_before_is_computed(placement: str) -> None:
    torch.hetero.config.placement = placement
    batches = [torch.randn(4096, 256) for _ in range(12)]
    model = Layers(16, 256)
    expected, _ = look_at_each(model, batches, True, "cpu")
    model.to(DEVICE)
    results = {}
    for ahead in (False, True):
        torch.hetero.use_profile("rtx4090")
        with counting() as seen:
            results[ahead] = look_at_each(model, batches, ahead, DEVICE)
        assert seen.copies.get("uploads_ahead", 0) == (len(batches) if ahead else 0)
    assert results[True][0] == results[False][0]
    torch.testing.assert_close(results[True][0], expected, rtol=1e-4, atol=1e-6)
    upload = 6e-6 + batches[0].nbytes / 25e9
    assert results[True][1] < max(upload, results[False][1] - upload) * 1.1


def test_batches_that_are_made_ahead_stay_within_the_budget() -> None:
    torch.hetero.config.placement = "accelerator"
    torch.hetero.set_memory_budget("10MiB")
    batches = [torch.randn(1024, 256) for _ in range(6)]
    model = Layers(2, 256).to(DEVICE)
    with torch.no_grad():
        arrived = [batch.to(DEVICE) for batch in batches]
        torch.hetero.reset_peak_memory_stats()
        for batch, here in zip(batches, arrived, strict=True):
            assert_same(model(here).cpu(), copy.deepcopy(model).cpu()(batch))
    assert accelerator_peak() <= 10 * MIB


def test_a_batch_that_was_uploaded_ahead_may_be_changed_replaced_and_dropped() -> None:
    torch.hetero.config.placement = "accelerator"
    model = Layers(2, 128).to(DEVICE)
    with torch.no_grad():
        for round_ in range(6):
            first, second = torch.randn(64, 128), torch.randn(64, 128)
            here, ahead = first.to(DEVICE), second.to(DEVICE)
            model(here).sum().item()
            if round_ == 0:
                ahead += 1
                second += 1
            elif round_ == 1:
                ahead.copy_(first)
                second = first
            elif round_ == 2:
                ahead.resize_(32, 128)
                second = second[:32]
            elif round_ == 3:
                ahead.numpy()[:] = 3.0  # the bytes themselves
                second.fill_(3.0)
            elif round_ == 4:
                ahead.untyped_storage().copy_(first.untyped_storage())
                second = first
            else:
                del ahead
                ahead = second.to(DEVICE)
            assert_same((ahead * 2).cpu(), second * 2)
