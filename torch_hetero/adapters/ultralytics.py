"""Ultralytics' YOLO: ``device="hetero"``.

Its ``select_device`` takes strings of a list, and any ``torch.device``.

Source: ``select_device`` of ultralytics/utils/torch_utils.py, ultralytics 8.4.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import torch


def apply(module: ModuleType) -> None:
    """Adapts ``ultralytics.utils.torch_utils``."""
    original = module.select_device

    @functools.wraps(original)
    def select_device(device: Any = "", *arguments: Any, **named: Any) -> Any:
        if isinstance(device, str) and device.partition(":")[0] == "hetero":
            device = torch.device("hetero", 0)
        return original(device, *arguments, **named)

    module.select_device = select_device
