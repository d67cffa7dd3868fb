"""``CompiledModel.stage_pipeline``: one program cut into stages that work at the same time, each on another call.

A server (``server.py``) runs whole calls beside each other, each on a part of the cores. A stage pipeline gives each
part of the *program* cores, or a device, of its own: a call goes from stage to stage, and the weights of a stage stay
in the caches that belong to it. ``docs/executor.md``, "Stages", has the whole picture.
"""

from __future__ import annotations

import os
import queue
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Literal

import torch

from torch_hetero import _C
from torch_hetero.program.serving import Closing, ServedModel, checked, waits

__all__ = ["StagePipeline"]

_Submitted = tuple["_C.StageCall", Future, Sequence[torch.Tensor]]


class StagePipeline(Closing):
    """Runs calls of a `CompiledModel` by stages.

    ::

        with torch.hetero.load("model.hetero").stage_pipeline(stages=2) as pipeline:
            futures = [pipeline.submit(ids) for ids in requests]
            results = [future.result() for future in futures]

    Calls go through each stage, and end, in the order in which they were submitted. Leaving the ``with`` block waits
    for those that are on their way.
    """

    def __init__(
        self,
        model: ServedModel,
        stages: int = 2,
        depth: int = 0,
        *,
        when_full: Literal["wait", "refuse"] = "wait",
        accelerator_bytes: int | None = None,
    ) -> None:
        self.model = model
        checked("stages", stages, 1)
        checked("depth", depth)
        checked("accelerator_bytes", accelerator_bytes)
        self._core = _C.StagePipeline(model._model, stages, depth, waits(when_full), accelerator_bytes)
        self._submitted: queue.SimpleQueue[_Submitted | None] = queue.SimpleQueue()
        self._order = threading.Lock()
        self._thread = threading.Thread(
            target=_complete, args=(model, self._submitted), name="hetero-stages", daemon=True)
        self._thread.start()
        # Before the interpreter ends, too: the thread must not come back to it afterwards.
        self._end = weakref.finalize(self, _end_stages, self._core, self._submitted, self._thread, os.getpid())

    def submit(self, *args: Any, **kwargs: Any) -> Future:
        """Sends a call of the model on its way.

        Arguments are those of the model, of the example's sizes. Tensors are copied.

        Returns:
            The future of the call's result. One that is on its way cannot be cancelled alone; `close` cancels all.

        Raises:
            ValueError: for other arguments than the program was made for.
            queue.Full: where `depth` calls are on their way, with ``when_full="refuse"``.
            RuntimeError: where the stage pipeline was closed.
        """
        if not self._end.alive:
            raise RuntimeError("the stage pipeline was closed; make another with CompiledModel.stage_pipeline")
        tensors = self.model._tensors_of(args, kwargs)
        future: Future = Future()
        with self._order:
            call = self._core.submit(self.model._on_host(tensors))
            if call is None:
                raise queue.Full("the stage pipeline has no room: submit again when a call has ended, or raise the "
                                 "depth")
            future.set_running_or_notify_cancel()
            self._submitted.put((call, future, tensors))
        return future

    def close(self, *, cancel: bool = False) -> None:
        """Accepts no more calls and returns when none is left.

        Args:
            cancel: Whether calls that are on their way are stopped; their futures raise `RuntimeError` then.
        """
        if self._end.alive:
            if cancel:
                self._core.stop()
            self._core.wait_idle()
            self._end()

    @property
    def depth(self) -> int:
        """How many calls may be on their way; to be changed at any time."""
        return self._core.depth

    @depth.setter
    def depth(self, depth: int) -> None:
        self._core.set_depth(checked("depth", depth, 1))

    @property
    def predicted_seconds(self) -> list[float]:
        """What each stage is expected to take, by the cost model that made the cut."""
        return self._core.predicted_seconds

    @property
    def counters(self) -> dict[str, int]:
        """Calls so far: submitted, completed, failed; in_flight, now and at most; frames; values lent and copied."""
        return self._core.counters


def _complete(model: ServedModel, submitted: queue.SimpleQueue[_Submitted | None]) -> None:
    """Completes futures in their order, on the stage pipeline's thread."""
    while (entry := submitted.get()) is not None:
        call, future, tensors = entry
        try:
            result = model._results_of(tensors, call.wait())
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)
        del entry, call, future, tensors  # not kept until there are others


def _end_stages(core: _C.StagePipeline, submitted: queue.SimpleQueue[_Submitted | None], thread: threading.Thread,
                  process: int) -> None:
    if os.getpid() != process:
        return  # a forked child has none of the threads
    core.wait_idle()
    submitted.put(None)
    # Whoever drops the last future may be the thread itself.
    if thread is not threading.current_thread():
        thread.join()
