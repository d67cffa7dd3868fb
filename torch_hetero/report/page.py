"""One html page about programs. ``page.html`` says how it is made of the files beside it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from torch_hetero.report.program import Program, Transfer, plain, queues_of

__all__ = ["stylesheet", "write_report"]

_FOLDER = Path(__file__).parent
_SCRIPTS = ("values.js", "layout.js", "graph.js", "timeline.js", "transfers.js", "page.js")


def write_report(
    path: str | os.PathLike[str], programs: Sequence[Program], transfers: Sequence[Transfer] = ()
) -> None:
    """Writes one html page that shows programs: graph, queues over time, memory, decisions and nodes.

    Transfers of stores of keys and values follow, on their lanes over time, if there are some.

    The page needs no network and no other file. It holds all the data, some 300 bytes for a node and 200 for a span.

    Args:
        path: where to write it; a file that is there is replaced.
        programs: what to show, times in seconds and sizes in bytes; may be empty.
        transfers: of stores, likewise.

    Raises:
        OSError: when the file cannot be written.
        TypeError: when a value is not plain Python (dict, list, str, int, float, bool, None); nothing is written then.
    """
    data = {"queues": queues_of(programs), "programs": plain(programs), "transfers": plain(list(transfers))}
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    # In a script tag the html parser looks for "<" only; JSON has it in strings only, where this is the same letter.
    text = text.replace("<", "\\u003c")
    page = _read("page.html").replace("{{style}}", stylesheet())
    page = page.replace("{{script}}", "\n".join(map(_read, _SCRIPTS)).rstrip())
    Path(path).write_text(page.replace("{{data}}", text), encoding="utf-8")


def stylesheet() -> str:
    """Returns the style of the page, for other pages that are to look like it."""
    return _read("page.css").rstrip()


def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")
