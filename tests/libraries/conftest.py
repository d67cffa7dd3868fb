"""Programs of libraries' users, on hetero: nothing is fetched, and each test starts seeded."""

from __future__ import annotations

import os
from collections.abc import Iterator

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    """Seeds, and ends with nothing pending."""
    torch.manual_seed(0)
    yield
    torch.hetero.flush()
