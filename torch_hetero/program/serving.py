"""What servers and stage pipelines share: the model they are made of, the check of their options, and how they end."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

import torch

from torch_hetero import _C

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Closing", "ServedModel", "checked", "waits"]


class ServedModel(Protocol):
    """What serving needs of a `CompiledModel`."""

    _model: _C.Model

    def _tensors_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]: ...

    def _on_host(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]: ...

    def _results_of(self, tensors: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> Any: ...


def waits(when_full: str) -> bool:
    """Whether `submit` waits for room. Raises a ValueError for what is neither "wait" nor "refuse"."""
    if when_full not in ("wait", "refuse"):
        raise ValueError(f'when_full is "wait" or "refuse", not {when_full!r}')
    return when_full == "wait"


def checked(name: str, count: int | None, least: int = 0) -> int | None:
    """The number. Raises a ValueError where it is too small, a TypeError where it is none."""
    if count is not None and operator.index(count) < least:
        raise ValueError(f"{name} is {least} or more, not {count}")
    return count


class Closing:
    """What a ``with`` block closes: by waiting, or by cancelling where an error leaves the block."""

    def close(self, *, cancel: bool = False) -> None:
        """Accepts no more calls and returns when none is left."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(cancel=kind is not None)
