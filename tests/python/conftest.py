"""Fixtures: each test starts seeded, on few threads, with nothing pending and default options."""

from __future__ import annotations

import os
from collections.abc import Iterator

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch
from helpers import DEVICE, ON_HETERO
from machines import reasons_to_leave_out

# On a GPU, convolutions would have 10 bits. Set once, here: torch.testing._internal forbids it when it is imported.
torch.backends.cudnn.allow_tf32 = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        machine = item.callspec.params.get("machine", "") if hasattr(item, "callspec") else ""
        # The name without the machine's.
        name = item.nodeid.replace(f"[{machine or 'here'}-", "[").replace(f"[{machine or 'here'}]", "")
        for reason in reasons_to_leave_out(name, machine):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def device() -> str:
    return DEVICE


@pytest.fixture(autouse=True)
def clean_state(machine: str) -> Iterator[None]:
    """Seeds, and gives back every option that the test changed on its machine."""
    torch.manual_seed(0)
    if not ON_HETERO:
        yield
        return
    config = torch.hetero.config
    before = config.as_dict()
    yield
    for name, value in config.as_dict().items():
        if value != before[name]:
            setattr(config, name, before[name])
    torch.hetero.flush()


@pytest.fixture
def unfused() -> None:
    """Without fusion: a program that was seen before has eager's bits also where it sums."""
    if ON_HETERO:
        torch.hetero.config.fusion = False
