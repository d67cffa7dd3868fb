"""Contexts on other threads: work that is handed to a thread keeps the context in which it was handed over."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from torch_hetero.migration.context import inherit
from torch_hetero.migration.injector import Injector

__all__ = ["install"]


def install(injector: Injector) -> None:
    """Patches how work gets to threads. REQUIRES: a rule has a key of several callables; others need no context."""
    submit, start = ThreadPoolExecutor.submit, threading.Thread.start

    def submit_in_context(self: ThreadPoolExecutor, function: Any, /, *positional: Any, **keywords: Any) -> Any:
        return submit(self, inherit(function), *positional, **keywords)

    def start_in_context(self: threading.Thread) -> None:
        run = inherit(self.run)
        if run is not self.run and "run" not in vars(self):
            self.run = run  # type: ignore[method-assign]
        start(self)

    injector.set(ThreadPoolExecutor, "submit", submit, submit_in_context)
    injector.set(threading.Thread, "start", start, start_in_context)
