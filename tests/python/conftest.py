"""Fixtures: each test starts seeded, on few threads, with nothing pending and default options."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

if os.environ.get("HETERO_TEST_DEVICE", "hetero") == "cpu":
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch
from helpers import DEVICE, ON_HETERO, OPTIONS


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        torch.set_num_threads(1)


@pytest.fixture
def device() -> str:
    return DEVICE


@pytest.fixture(autouse=True)
def clean_state() -> Iterator[None]:
    """Seeds, and gives back every option that the test changed."""
    torch.manual_seed(0)
    if not ON_HETERO:
        yield
        return
    config = torch.hetero.config
    before = {name: getattr(config, name) for name in OPTIONS}
    yield
    for name, value in before.items():
        if getattr(config, name) != value:
            setattr(config, name, value)
    torch.hetero.flush()


@pytest.fixture
def unfused() -> None:
    """Without fusion: a program that was seen before has eager's bits also where it sums."""
    if ON_HETERO:
        torch.hetero.config.fusion = False
