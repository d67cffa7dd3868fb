"""The latest programs of this process as plain data, as a page and as a trace: ``config.keep_plans`` keeps them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from typing import Protocol

from torch_hetero import _C
from torch_hetero.report.page import write_report
from torch_hetero.report.program import Program, Transfer
from torch_hetero.report.trace import write_trace

__all__ = ["add_transfers", "programs", "report", "trace"]

_transfer_sources: list[Callable[[], Sequence[Transfer]]] = []


def add_transfers(source: Callable[[], Sequence[Transfer]]) -> None:
    """Sets a function that returns transfers to be shown in reports; stores of keys and values are in a higher room."""
    _transfer_sources.append(source)


class _HasPrograms(Protocol):
    """A prediction of ``torch.hetero.simulate``."""

    programs: list[Program]


def programs() -> list[Program]:
    """Returns what the latest programs did, 64 at most, the oldest first; ``config.keep_plans`` must be set for it.

    They are what was recorded and run, calls of ``torch.compile(backend="hetero")`` included, and calls of saved
    programs, of which only the predicted times are known. What servers and stage pipelines run is not among them.
    """
    return [json.loads(text) for text in _C.program_log()]


def report(path: str | os.PathLike[str], of: _HasPrograms | None = None) -> None:
    """Writes a page about the latest programs: graph, timeline, memory, decisions; docs/reports.md says how to read it.

    The latest transfers of the stores of keys and values that are open are shown too.

    Args:
        path: of the html file.
        of: a prediction, for its programs instead.

    Raises:
        RuntimeError: when there are none, as ``torch.hetero.config.keep_plans`` was off, and no transfers either.
        OSError: when the file cannot be written.
    """
    if of is not None:
        return write_report(path, of.programs)
    transfers = [row for source in _transfer_sources for row in source()]
    write_report(path, programs() if transfers else _logged(), transfers)


def trace(path: str | os.PathLike[str], of: _HasPrograms | None = None) -> None:
    """Writes the timeline of the latest programs for Perfetto (ui.perfetto.dev) or ``chrome://tracing``.

    Args:
        path: of the JSON file.
        of: a prediction, for its programs instead.

    Raises:
        RuntimeError: when there are none, as ``torch.hetero.config.keep_plans`` was off.
        OSError: when the file cannot be written.
    """
    write_trace(path, _logged() if of is None else of.programs)


def _logged() -> list[Program]:
    made = programs()
    if not made:
        raise RuntimeError(
            "hetero: no programs were kept; set torch.hetero.config.keep_plans = True before the program runs (what "
            "servers and stage pipelines run is not kept)"
        )
    return made
