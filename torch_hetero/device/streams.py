"""Recording and running: flushing, streams and events."""

from __future__ import annotations

import torch

from torch_hetero import _C
from torch_hetero.device.identity import DeviceLike, index_of

# A point in a stream. torch.Event without a device is one of the current accelerator, which hetero is; a subclass
# would not do, as elapsed_time takes torch.Event itself only.
Event = torch.Event


def flush() -> None:
    """Plans and runs everything that was recorded. Does not wait for accelerator queues; see `synchronize`.

    Raises:
        RuntimeError: the first error of an operator that ran only now.
    """
    _C.flush()


def synchronize(device: DeviceLike = None) -> None:
    """Runs everything that was recorded and waits until all of it is done."""
    index_of(device)
    _C.synchronize()


class Stream(torch.Stream):
    """An ordered queue of work, as ``torch.cuda.Stream``.

    Recorded operators keep the order of the program whatever stream they were recorded on, so streams here never make a
    program wrong; their calls are places where recorded work is run.

    Args:
        device: ``hetero:0`` in any form.
        priority: accepted for compatibility.
    """

    def __new__(cls, device: DeviceLike = None, priority: int = 0, **identity: int) -> Stream:
        """A new queue, or a handle of the one that `identity` names."""
        if identity:
            return super().__new__(cls, **identity)
        return super().__new__(cls, device=torch.device("hetero", index_of(device)), priority=priority)

    def record_event(self, event: torch.Event | None = None) -> torch.Event:
        """Records ``event``, or a new one, after all work submitted so far, and returns it."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: torch.Event) -> None:
        """Makes later work of this stream wait for ``event``."""
        event.wait(self)

    def wait_stream(self, stream: torch.Stream) -> None:
        """Makes later work of this stream wait for the work that ``stream`` has now."""
        self.wait_event(stream.record_event())

    def __repr__(self) -> str:
        return f"torch.hetero.Stream(device=hetero:{self.device_index}, id={self.stream_id})"


def _as_hetero_stream(stream: torch.Stream) -> Stream:
    return Stream(stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type)


def current_stream(device: DeviceLike = None) -> Stream:
    """Returns the stream on which this thread records."""
    return _as_hetero_stream(torch._C._accelerator_getStream(index_of(device)))


def default_stream(device: DeviceLike = None) -> Stream:
    """Returns the stream on which a thread records when it chose no other."""
    like = torch._C._accelerator_getStream(index_of(device))
    return Stream(stream_id=0, device_index=like.device_index, device_type=like.device_type)


def set_stream(stream: torch.Stream | None) -> None:
    """Makes ``stream`` the current one of this thread; None changes nothing."""
    if stream is not None:
        torch._C._accelerator_setStream(stream)


class StreamContext:
    """Context manager that makes a stream the current one; None does nothing."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream
        self._previous: list[torch.Stream] = []

    def __enter__(self) -> torch.Stream | None:
        if self.stream is not None:
            self._previous.append(current_stream())
            set_stream(self.stream)
        return self.stream

    def __exit__(self, *exc_info: object) -> None:
        if self.stream is not None:
            set_stream(self._previous.pop())


def stream(stream: torch.Stream | None) -> StreamContext:
    """Returns a context manager that makes ``stream`` the current one."""
    return StreamContext(stream)
