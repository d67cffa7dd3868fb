"""Ultralytics' YOLO: ``device="hetero"``, and ``amp=True`` there with a scaler of gradients.

Its ``select_device`` takes strings of a list, and any ``torch.device``. Its trainer makes a scaler for CUDA, which
switches itself off where there is no CUDA.

Source: ``select_device`` of ultralytics/utils/torch_utils.py, and ``BaseTrainer._setup_train`` of
ultralytics/engine/trainer.py, which makes the scaler and then calls ``resume_training``; ultralytics 8.4.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import torch


def adapt_devices(module: ModuleType) -> None:
    """Adapts ``ultralytics.utils.torch_utils``."""
    original = module.select_device

    @functools.wraps(original)
    def select_device(device: Any = "", *arguments: Any, **named: Any) -> Any:
        if isinstance(device, str) and device.partition(":")[0] == "hetero":
            device = torch.device("hetero", 0)
        return original(device, *arguments, **named)

    module.select_device = select_device


def adapt_trainer(module: ModuleType) -> None:
    """Adapts ``ultralytics.engine.trainer``."""
    trainer = module.BaseTrainer
    original = trainer.resume_training

    @functools.wraps(original)
    def resume_training(self: Any, *arguments: Any, **named: Any) -> None:
        if self.device.type == "hetero":
            self.scaler = torch.amp.GradScaler("hetero", enabled=self.amp and self.args.amp != "bf16")
        original(self, *arguments, **named)

    trainer.resume_training = resume_training
