"""The simulated accelerator, for the files of this folder that ask for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def simulated_accelerator(unfused: None) -> Iterator[None]:
    """An accelerator, and planning decides; clean_state gives the options back, this the rules and the profile."""
    torch.hetero.config.accelerator = "sim"
    torch.hetero.config.placement = "auto"
    torch.hetero.config.memory_budget = 0
    yield
    torch.hetero.set_placement_rules()
    torch.hetero.use_profile(None)
