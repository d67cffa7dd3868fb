"""A small program, for the files of this folder that ask for it."""

from __future__ import annotations

import pytest
import torch
from saved_models import small_model

from torch_hetero.program.calling import CompiledModel


@pytest.fixture
def program() -> CompiledModel:
    return torch.hetero.compile(small_model(), (torch.zeros(3, 16),))
