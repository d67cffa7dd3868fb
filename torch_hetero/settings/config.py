"""``torch.hetero.config``: the options of hetero as attributes.

The options are defined in one place, in C++; this file only gives them Python types and prints them. Each option can
also be set through the environment, ``HETERO_`` and its name in capitals, which is read once when the device is
loaded.
"""

from __future__ import annotations

import contextlib
import textwrap
import threading
from collections.abc import Iterator
from typing import Any

from torch_hetero import _C

__all__ = ["Config", "config"]


def _from_text(kind: str, text: str) -> bool | int | float | str:
    if kind == "bool":
        return text.lower() in ("1", "true", "on", "yes")
    if kind == "float":
        return float(text)
    return int(text) if kind in ("int", "bytes") else text


def _to_text(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


# What the override() blocks that are open now give back: for each option, the innermost block last.
_overridden: dict[str, list[list[str]]] = {}
_overriding = threading.RLock()


def _enter(name: str, value: Any) -> list[str]:
    """Sets an option for a block; the block's entry holds the value that it gives back."""
    with _overriding:
        entry = [_C.config_get(name)]
        _C.config_set(name, _to_text(value))
        _overridden.setdefault(name, []).append(entry)
        return entry


def _leave(name: str, entry: list[str]) -> None:
    """Ends a block. Where a later one, of another thread, is still open, that one gives back what this one would."""
    with _overriding:
        blocks = _overridden[name]
        place = next(i for i, block in enumerate(blocks) if block is entry)
        del blocks[place]
        if place == len(blocks):
            _C.config_set(name, entry[0])
        else:
            blocks[place][0] = entry[0]


class Config:
    """Every option as an attribute: reading gives its type; assigning holds for operators recorded later.

    A size in bytes also takes text with a unit, KiB, MiB, GiB or TiB::

        torch.hetero.config.pending_bytes = "64MiB"
        with torch.hetero.config.override(sync=True):
            ...  # every operator runs on its own line
        print(torch.hetero.config)  # all options with their values and meaning

    Raises:
        AttributeError: for an unknown name; the message lists the known ones.
        ValueError: for a value that does not fit the option.
    """

    __slots__ = ()

    def _option(self, name: str) -> dict[str, str]:
        options = _C.config_list()
        for option in options:
            if option["name"] == name:
                return option
        names = ", ".join(sorted(option["name"] for option in options))
        raise AttributeError(f"torch.hetero.config has no option {name!r}; the options are: {names}")

    def __getattr__(self, name: str) -> bool | int | float | str:
        if name.startswith("__"):  # what copy, pickle and inspect ask every object for
            raise AttributeError(name)
        option = self._option(name)
        return _from_text(option["type"], option["value"])

    def __setattr__(self, name: str, value: bool | int | float | str) -> None:
        self._option(name)
        _C.config_set(name, _to_text(value))

    def __dir__(self) -> list[str]:
        return sorted([*super().__dir__(), *self.as_dict()])

    def as_dict(self) -> dict[str, bool | int | float | str]:
        """Returns the value of every option by name."""
        return {option["name"]: _from_text(option["type"], option["value"]) for option in _C.config_list()}

    def options(self) -> list[dict[str, str]]:
        """Returns every option as a dict of texts: name, env, type, default, value and doc."""
        return [dict(option) for option in _C.config_list()]

    @contextlib.contextmanager
    def override(self, **values: bool | int | float | str) -> Iterator[Config]:
        """Sets options for the length of a ``with`` block or of a decorated function, for all threads.

        Where blocks of several threads overlap, the one that began last holds, and when all have ended every option is
        what it was before the first.

        Args:
            **values: options by name, as assigned to the attributes.
        """
        for name in values:
            self._option(name)  # an unknown name changes nothing
        with contextlib.ExitStack() as blocks:
            for name, value in values.items():
                blocks.callback(_leave, name, _enter(name, value))
            yield self

    def __repr__(self) -> str:
        options = _C.config_list()
        width = max((len(option["name"]) for option in options), default=0)
        values = max((len(option["value"]) for option in options), default=0)
        lines = ["torch.hetero.config"]
        for option in options:
            changed = "" if option["value"] == option["default"] else f" Default: {option['default']}."
            head = f"  {option['name']:<{width}} = {option['value']:<{values}}  "
            text = f"{option['doc']} ({option['env']}){changed}"
            lines += textwrap.wrap(text, 116, initial_indent=head, subsequent_indent=" " * len(head))
        return "\n".join(lines)


config = Config()
