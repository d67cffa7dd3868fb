"""Checkpoints that keep the state of random numbers keep hetero's too, in a file of its own.

Libraries save the state of the devices they know, into a file that they read back themselves.

Source: ``save_accelerator_state`` of accelerate 1.15, ``Trainer._save_rng_state`` of transformers 5.23.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from torch_hetero.adapters.choice import is_accelerator


def _saving(save: Callable[..., Any], folder: str, process: Callable[[dict[str, Any]], int]) -> Callable[..., Any]:
    """A function that saves to its argument ``folder`` what ``save`` saves, and hetero's state."""
    signature = inspect.signature(save)

    @functools.wraps(save)
    def save_both(*arguments: Any, **named: Any) -> Any:
        result = save(*arguments, **named)
        if is_accelerator():
            bound = signature.bind(*arguments, **named).arguments
            torch.save(torch.hetero.get_rng_state(), _file(bound[folder], process(bound)))
        return result

    return save_both


def _loading(load: Callable[..., Any], folder: str, process: Callable[[dict[str, Any]], int]) -> Callable[..., Any]:
    """A function that loads from its argument ``folder`` what ``load`` loads, and hetero's state if it is there."""
    signature = inspect.signature(load)

    @functools.wraps(load)
    def load_both(*arguments: Any, **named: Any) -> Any:
        result = load(*arguments, **named)
        bound = signature.bind(*arguments, **named).arguments
        if is_accelerator() and bound[folder] is not None and _file(bound[folder], process(bound)).exists():
            torch.hetero.set_rng_state(torch.load(_file(bound[folder], process(bound)), weights_only=True))
        return result

    return load_both


def _file(folder: Any, process: int) -> Path:
    return Path(folder) / f"hetero_random_state_{process}.pth"


def _process_of_state(bound: dict[str, Any]) -> int:
    return bound["process_index"]


def _process_of_trainer(bound: dict[str, Any]) -> int:
    return bound["self"].args.process_index


def adapt_accelerate(module: ModuleType) -> None:
    """Adapts ``accelerate.checkpointing``."""
    module.save_accelerator_state = _saving(module.save_accelerator_state, "output_dir", _process_of_state)
    module.load_accelerator_state = _loading(module.load_accelerator_state, "input_dir", _process_of_state)


def adapt_trainer(module: ModuleType) -> None:
    """Adapts ``transformers.trainer``."""
    trainer = module.Trainer
    trainer._save_rng_state = _saving(trainer._save_rng_state, "output_dir", _process_of_trainer)
    trainer._load_rng_state = _loading(trainer._load_rng_state, "checkpoint", _process_of_trainer)
