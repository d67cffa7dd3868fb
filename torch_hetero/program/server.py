"""``CompiledModel.serve``: many calls of one program at once, each on cores of its own.

A server splits the process's cores, and the compute queues of its accelerator, into groups. Each group has a thread,
an executor with its own memory, and as many threads for its operators as it has cores; weights are shared. A call that
is submitted runs on the group that is free first, without the interpreter's lock, and completes a future.
``docs/serving.md`` has the whole picture.
"""

from __future__ import annotations

import itertools
import numbers
import os
import queue
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Literal, TypedDict

import torch

from torch_hetero import _C
from torch_hetero.program.serving import Closing, ServedModel, checked, waits

__all__ = ["Group", "Request", "Server"]


class Group(TypedDict, total=False):
    """A part of the machine that runs one call at a time. Groups may share what they name.

    Attributes:
        name: Of its thread too.
        cores: As the system numbers them; none: those of the process.
        threads: Of its operators; as many as cores where there is none.
        compute_queues: Of the accelerator, from 1 to 4, as reports number them; none: all. What groups of different
            compute queues launch runs at the same time there.
    """

    name: str
    cores: Sequence[int]
    threads: int
    compute_queues: Sequence[int]


def _fields_of(group: Group, number: int) -> tuple[str, list[int], int, list[int]]:
    unknown = set(group) - Group.__annotations__.keys()
    if unknown:
        known = ", ".join(Group.__annotations__)
        raise ValueError(f"a group has {known}, and no {', '.join(sorted(map(str, unknown)))}")
    return (
        group.get("name", f"lane{number}"),
        list(group.get("cores", ())),
        group.get("threads", 0),
        list(group.get("compute_queues", ())),
    )


class Request(Future):
    """The future of a call: ``concurrent.futures`` and ``asyncio.wrap_future`` take it.

    Unlike other futures, one that runs can still be cancelled: its program stops before the next operator.
    """

    def __init__(self, server: Server, tensors: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._server = server  # which lives as long as somebody waits
        self._tensors = tensors
        self._submitted: _C.ServerRequest | None = None

    def cancel(self) -> bool:
        """Says that nobody wants the result any more.

        Returns:
            Whether the call is cancelled now. One that runs is asked to stop, and may be cancelled later.
        """
        submitted = self._submitted
        if submitted is not None:
            submitted.cancel()
            if submitted.state != "cancelled":
                return self.cancelled()
        return super().cancel()

    def running(self) -> bool:
        """Whether the call runs now."""
        submitted = self._submitted
        return not self.done() and submitted is not None and submitted.state == "running"

    def _end(self, ended: _C.ServerRequest) -> None:
        """Takes over what has come of the call."""
        if ended.state == "cancelled":
            super().cancel()
        # False where it was cancelled; then those who wait for several futures are told.
        if not self.set_running_or_notify_cancel():
            return
        try:
            if ended.state == "late":
                raise TimeoutError("the request's time was up before it was done")
            result = self._server.model._results_of(self._tensors, ended.take_results())
        except BaseException as error:
            self.set_exception(error)
        else:
            self.set_result(result)
        finally:
            self._submitted = None
            self._tensors = ()


class Server(Closing):
    """Runs calls of a `CompiledModel` from many threads.

    ::

        with torch.hetero.load("model.hetero").serve(groups=2) as server:
            futures = [server.submit(ids, timeout=0.1) for ids in requests]
            results = [future.result() for future in futures]

    Calls begin in the order in which they were submitted. At most `capacity` wait; then `submit` waits too, or refuses.
    Leaving the ``with`` block runs what waits.
    """

    def __init__(
        self,
        model: ServedModel,
        groups: int | Sequence[Group] = 1,
        capacity: int = 64,
        *,
        when_full: Literal["wait", "refuse"] = "wait",
        accelerator_bytes: int | None = None,
    ) -> None:
        waits_when_full = waits(when_full)
        self.model = model
        checked("capacity", capacity, 1)
        checked("accelerator_bytes", accelerator_bytes)
        lanes = [] if isinstance(groups, int) else [_fields_of(group, number) for number, group in enumerate(groups)]
        count = groups if isinstance(groups, int) else len(lanes)
        self._core = _C.Server(model._model, count, lanes, capacity, waits_when_full, accelerator_bytes)
        self._requests: dict[int, Request] = {}
        self._numbers = itertools.count()
        self._thread = threading.Thread(
            target=_complete, args=(self._core, self._requests), name="hetero-server", daemon=True
        )
        self._thread.start()
        # Before the interpreter ends, too: the thread must not come back to it afterwards.
        self._end = weakref.finalize(self, _end_server, self._core, self._thread, os.getpid())

    def submit(self, *args: Any, timeout: float | None = None, **kwargs: Any) -> Request:
        """Puts a call of the model into the line.

        Arguments are those of the model. Tensors are used where they are: leave them alone until the call has ended.

        Args:
            *args: As in a call of the model.
            timeout: Seconds within which the call is to be done. Otherwise it is not begun, or stops before its next
                operator, and its future raises `TimeoutError`.
            **kwargs: As in a call of the model.

        Returns:
            The future of the call's result.

        Raises:
            TypeError: for a timeout that is no number.
            ValueError: for other arguments than the program was made for.
            queue.Full: where there is no room, with ``when_full="refuse"``.
            RuntimeError: where the server was closed.
        """
        if not self._end.alive:
            raise RuntimeError("the server was closed; make another with CompiledModel.serve")
        if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, numbers.Real)):
            raise TypeError(f"timeout is seconds or None, not {timeout!r}")
        tensors = self.model._tensors_of(args, kwargs)
        request = Request(self, tensors)
        number = next(self._numbers)
        self._requests[number] = request
        try:
            submitted = self._core.submit(number, self.model._on_host(tensors), timeout)
        except BaseException:
            del self._requests[number]
            raise
        if submitted is None:
            del self._requests[number]
            raise queue.Full("the server has no room: submit again when a request has ended, or raise the capacity")
        request._submitted = submitted
        return request

    def close(self, *, cancel: bool = False) -> None:
        """Accepts no more calls and returns when none is left.

        Args:
            cancel: Whether calls that wait are cancelled; otherwise they are run.
        """
        if self._end.alive:
            self._core.close(not cancel)
            self._core.wait_idle()
            self._end()

    @property
    def counters(self) -> dict[str, int]:
        """Requests so far: submitted, completed, failed, cancelled, late, refused; and waiting, now and at most."""
        return self._core.counters

    @property
    def lanes(self) -> list[dict[str, Any]]:
        """The groups: name, cores, threads, compute queues, and where the plan comes from by which each runs."""
        return self._core.lanes


def _complete(core: _C.Server, requests: dict[int, Request]) -> None:
    """Completes futures, on the server's thread, until the server has ended and nothing is left."""
    while ended := core.take_ended():
        for submitted in ended:
            requests.pop(submitted.number)._end(submitted)
        del ended, submitted  # their tensors are not kept until there are others


def _end_server(core: _C.Server, thread: threading.Thread, process: int) -> None:
    if os.getpid() != process:
        return  # a forked child has none of the threads
    core.close(False)
    core.wait_idle()
    core.stop()
    # Whoever drops the last request may be the thread itself.
    if thread is not threading.current_thread():
        thread.join()
