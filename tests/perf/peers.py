"""Peers beside eager: torch.compile with inductor, and JAX where it is installed (it is in no requirements file)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

import torch

Subject = TypeVar("Subject", bound=Callable[..., object])

# An earlier run's kernels must not make compiling look cheap.
os.environ.setdefault("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")


def inductor(subject: Subject) -> Subject:
    """`subject` compiled for the shapes it is called with; nothing that was compiled before is reused."""
    torch._dynamo.reset()
    return torch.compile(subject, dynamic=False)


def first_call(run: Callable[[], object]) -> float:
    """Seconds that the first call takes, which is when peers compile."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def jax_version() -> str | None:
    """The version of JAX, or None where it is not installed."""
    try:
        import jax
    except ImportError:
        return None
    return jax.__version__
