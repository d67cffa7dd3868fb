"""The module behind ``torch.hetero``: what ``torch.cuda`` is for CUDA, plus what only this device has.

There is one device, ``hetero:0``; it stands for the CPU and, where there is one, the accelerator beside it. Which of
them runs an operator is decided when recorded operators are planned, so nothing here asks the user to choose.

Every ``device`` argument takes ``None``, an index, a string or a ``torch.device``, and means ``hetero:0`` in all
cases; another index raises ``RuntimeError``, another device type ``ValueError``.
"""

from __future__ import annotations

import contextlib
import difflib
import fnmatch
import threading
import warnings
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._contextlib import _DecoratorContextManager
from torch.utils._pytree import tree_leaves

from torch_hetero import _C
from torch_hetero.settings.config import config
from torch_hetero.settings.explain import Report, explain, reset_counters
from torch_hetero.inductor import CppWrapperCodegen, PythonWrapperCodegen, Scheduling, WrapperFxCodegen  # noqa: F401
from torch_hetero.saved import CompiledModel, load
from torch_hetero.saved import compile_model as compile  # noqa: A004
from torch_hetero.server import Server
from torch_hetero.simulation import Prediction, programs, report, simulate, trace, use_profile

__all__ = [
    "CompiledModel", "DeviceProperties", "Event", "Prediction", "Report", "Server", "Stream",
    "StreamContext", "accelerator_memory_stats", "compile",
    "compiled_graphs", "config", "current_device", "current_stream", "default_generators", "default_stream",
    "device", "device_count", "device_of", "empty_cache", "explain", "flush", "get_amp_supported_dtype",
    "get_device_capability", "get_device_name", "get_device_properties", "get_memory_budget", "get_rng_state",
    "get_rng_state_all", "init", "initial_seed", "is_available", "is_bf16_supported", "is_initialized", "load",
    "manual_seed", "manual_seed_all", "max_memory_allocated", "max_memory_reserved", "mem_get_info",
    "memory_allocated", "memory_budget", "memory_reserved", "memory_stats", "memory_summary", "place", "placement",
    "programs", "report", "reset_accumulated_memory_stats", "reset_counters", "reset_peak_memory_stats", "seed",
    "seed_all", "set_device", "set_memory_budget", "set_placement_rules", "set_rng_state", "set_rng_state_all",
    "set_stream", "simulate", "stream", "synchronize", "trace", "use_profile",
]

DeviceLike = torch.device | str | int | None

_initialized = False


def _index(device: DeviceLike = None) -> int:
    """Returns the index that ``device`` means, which is 0.

    Raises:
        ValueError: for a device of another type.
        RuntimeError: for an index other than 0.
    """
    if device is None:
        return 0
    if isinstance(device, int):
        index: int | None = device
    else:
        device = torch.device(device)
        if device.type != "hetero":
            raise ValueError(f"Expected a hetero device, but got: {device}")
        index = device.index
    if index not in (None, 0):
        raise RuntimeError(f"hetero: invalid device ordinal {index}: there is one device, hetero:0")
    return 0


# -- Existence and choice of the device ------------------------------------------------------------------------------


def compiled_graphs() -> list[Any]:
    """Returns the graphs of ``torch.compile(backend="hetero")`` that are alive; printing one shows its program."""
    from torch_hetero import compiler

    return compiler.graphs()


def is_available() -> bool:
    """Returns whether hetero tensors can be made: always, as it needs no hardware beside the CPU."""
    return True


def device_count() -> int:
    """Returns 1: all compute of the machine is one device."""
    return 1


def is_initialized() -> bool:
    """Returns whether the device was used in this process (and not in a parent that forked it)."""
    return _initialized and not _is_in_bad_fork()


def init() -> None:
    """Initializes the device. There is no need to call it; the first use does.

    Raises:
        RuntimeError: in a process forked after hetero was used.
    """
    _lazy_init()


def _lazy_init() -> None:
    global _initialized
    if _is_in_bad_fork():
        raise RuntimeError(
            "Cannot re-initialize hetero in forked subprocess. To use hetero with multiprocessing, you must use the "
            "'spawn' start method"
        )
    _initialized = True


def _is_in_bad_fork() -> bool:
    return _C.in_bad_fork()


def current_device() -> int:
    """Returns the index of the current device, 0."""
    return 0


def set_device(device: DeviceLike) -> None:
    """Accepts ``hetero:0`` and nothing else; a negative index is ignored, as in ``torch.cuda``."""
    if not (isinstance(device, int) and device < 0):
        _index(device)


def _exchange_device(device: int) -> int:
    if device >= 0:
        _index(device)
    return 0


_maybe_exchange_device = _exchange_device


class device:  # noqa: N801, the name torch's device modules use
    """Context manager that selects a device, for code that is written for machines with several.

    Args:
        device: ``hetero:0`` in any form; a negative index or None does nothing.
    """

    def __init__(self, device: DeviceLike) -> None:
        self.idx = device if isinstance(device, int) and device < 0 else _index(device)
        self.prev_idx = 0

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exc_info: object) -> None:
        return None


class device_of(device):  # noqa: N801
    """Context manager that selects the device of a tensor; does nothing for a tensor that is elsewhere."""

    def __init__(self, obj: torch.Tensor) -> None:
        super().__init__(obj.get_device() if obj.device.type == "hetero" else -1)


@dataclass(frozen=True)
class DeviceProperties:
    """What the device consists of.

    Attributes:
        name: the CPU and the accelerator, as text.
        total_memory: bytes that tensors may occupy: the configured limit, else the machine's memory.
        multi_processor_count: threads that an operator uses on the CPU.
        accelerator: name of the accelerator, or "none".
    """

    name: str
    total_memory: int
    multi_processor_count: int
    accelerator: str


def get_device_properties(device: DeviceLike = None) -> DeviceProperties:
    """Returns the properties of the device."""
    return DeviceProperties(
        name=get_device_name(device),
        total_memory=mem_get_info(device)[1],
        multi_processor_count=torch.get_num_threads(),
        accelerator=_C.accelerator_name(),
    )


def get_device_name(device: DeviceLike = None) -> str:
    """Returns for example ``"hetero (cpu)"`` or ``"hetero (cpu + sim)"``."""
    _index(device)
    accelerator = _C.accelerator_name()
    return "hetero (cpu)" if accelerator in ("", "none") else f"hetero (cpu + {accelerator})"


def get_device_capability(device: DeviceLike = None) -> dict[str, Any]:
    """Returns the vector instruction set of the CPU and the name of the accelerator."""
    _index(device)
    return {"cpu": torch.backends.cpu.get_cpu_capability(), "accelerator": _C.accelerator_name()}


# -- Recording and running -------------------------------------------------------------------------------------------


def flush() -> None:
    """Plans and runs everything that was recorded. Does not wait for accelerator queues; see `synchronize`.

    Raises:
        RuntimeError: the first error of an operator that ran only now.
    """
    _C.flush()


def synchronize(device: DeviceLike = None) -> None:
    """Runs everything that was recorded and waits until all of it is done."""
    _index(device)
    _C.synchronize()


class placement(_DecoratorContextManager):  # noqa: N801
    """Forces where operators recorded by this thread run; a context manager and a decorator.

    A generator function that is decorated is placed while it runs, as ``torch.no_grad`` does it.

    Args:
        where: ``"cpu"``, ``"accelerator"`` (what it cannot run stays on the CPU), or ``"auto"``: as outside of all
            blocks, where rules and ``config.placement`` hold, and the planner decides what these leave open.

    Raises:
        ValueError: for any other word.
    """

    def __init__(self, where: str) -> None:
        if where not in ("auto", "cpu", "accelerator"):
            raise ValueError(f"placement takes 'auto', 'cpu' or 'accelerator', not {where!r}")
        self.where = where
        self._previous: list[str] = []

    def clone(self) -> placement:
        """Another one: each call of a decorated function, on any thread, has its own state."""
        return placement(self.where)

    def __enter__(self) -> placement:
        self._previous.append(_C.get_placement())
        _C.set_placement(self.where)
        return self

    def __exit__(self, *exc_info: object) -> None:
        _C.set_placement(self._previous.pop())


# Of each thread: for every placed module whose forward pass runs, innermost last, what holds again when it ends.
_entered = threading.local()


class _Placed:
    """The hooks of a placed module. They keep nothing of a call, so threads may share them and files may hold them."""

    def __init__(self, where: str) -> None:
        self.where = where

    def enter(self, *_: Any) -> None:
        before = _C.get_placement()
        _C.set_placement(self.where)
        if not hasattr(_entered, "blocks"):
            _entered.blocks = []
        _entered.blocks.append((self, before, torch.autograd._get_sequence_nr()))

    def leave(self, _module: torch.nn.Module, _inputs: Any, results: Any) -> None:
        blocks = getattr(_entered, "blocks", [])
        if blocks and blocks[-1][0] is self:  # not so where a hook before enter() has raised
            _, before, first_number = blocks.pop()
            _C.set_placement(before)
            _place_backward(results, first_number, self.where)


def _place_backward(results: Any, first_number: int, where: str) -> None:
    """Places the backward pass of what this thread has computed since autograd's counter was at ``first_number``.

    A node that has a place, that of a module inside, keeps it. Autograd runs each node with the placement of the thread
    that called ``backward``, so what a hook sets ends with its node.
    """
    def set_placement(_gradients: Any) -> None:
        _C.set_placement(where)

    found = [value.grad_fn for value in tree_leaves(results) if isinstance(value, torch.Tensor)]
    seen = set()
    while found:
        node = found.pop()
        # A parameter's node, of which there is one for all that use it, has no inputs.
        if node is None or node in seen or not node.next_functions or node._sequence_nr() < first_number:
            continue
        seen.add(node)
        found += [source for source, _ in node.next_functions]
        if node.metadata.setdefault("hetero placement", where) == where:
            node.register_prehook(set_placement)


def place(module: torch.nn.Module, where: str) -> torch.nn.Module:
    """Makes a module record its forward and backward pass in a `placement` block, wherever it is called.

    Sums of gradients, where a parameter or value is used several times, are placed by what is around ``backward()``.
    ``"auto"`` takes an earlier call back. The module may run on several threads, and copies of it, from ``pickle`` too,
    are placed as it is. Returns the module.

    Args:
        module: any module; its submodules follow, unless they were placed themselves.
        where: as for `placement`.

    Raises:
        ValueError: for any other word.
    """
    placement(where)  # checks the word
    for handle in getattr(module, "_hetero_placement", ()):
        handle.remove()
    module._hetero_placement = ()
    if where == "auto":
        return module
    hooks = _Placed(where)
    module._hetero_placement = (
        module.register_forward_pre_hook(hooks.enter, prepend=True),
        module.register_forward_hook(hooks.leave, always_call=True),
    )
    return module


def set_placement_rules(rules: Iterable[tuple[Any, str]] | dict[Any, str] = ()) -> None:
    """Says by their names where operators run that are recorded outside of `placement` blocks. Holds for the process.

    Example::

        torch.hetero.set_placement_rules({"aten::embedding*": "cpu", "aten::*mm": "accelerator"})
        torch.hetero.set_placement_rules({torch.ops.aten.mm: "cpu"})
        torch.hetero.set_placement_rules()  # none

    Args:
        rules: pairs of a pattern and ``"auto"``, ``"cpu"`` or ``"accelerator"``. A pattern is one of a shell, over
            names as `explain` prints them (``aten::mm``, ``aten::add.Tensor``); the first that matches holds. A name
            without an overload stands for all of them, and so does an operator of ``torch.ops``.

    Raises:
        ValueError: for any other word, and for the name of an operator that is not registered. A pattern with
            wildcards that matches none is warned of.
        TypeError: for other patterns, and for rules that are no pairs.
    """
    if isinstance(rules, str):
        raise TypeError("hetero: placement rules are pairs of a pattern and a placement, or a dict of them, not a str")
    pairs = list(rules.items() if isinstance(rules, dict) else rules)
    for pair in pairs:
        if isinstance(pair, str) or len(pair) != 2:
            raise TypeError(f"hetero: a placement rule is a pattern and a placement, not {pair!r}")
    _C.set_placement_rules([
        (name, str(where)) for pattern, where in pairs for name in _operator_names(pattern)
    ])


def _operator_names(pattern: Any) -> list[str]:
    """The patterns of names that a pattern of `set_placement_rules` stands for."""
    if isinstance(pattern, torch._ops.OpOverload):
        return [pattern.name()]
    if isinstance(pattern, torch._ops.OpOverloadPacket):
        name = pattern._qualified_op_name
        return [name, f"{name}.*"]
    if not isinstance(pattern, str):
        raise TypeError(
            f"hetero: a pattern of a placement rule is text or an operator of torch.ops, not a {type(pattern).__name__}"
        )
    registered = torch._C._dispatch_get_all_op_names()
    if any(character in pattern for character in "*?["):
        if not fnmatch.filter(registered, pattern):
            warnings.warn(
                f"hetero: the placement rule {pattern!r} matches no operator that is registered now", stacklevel=4
            )
        return [pattern]
    patterns = [pattern] if "." in pattern else [pattern, f"{pattern}.*"]
    if not any(fnmatch.filter(registered, one) for one in patterns):
        known = {name.partition(".")[0] for name in registered}
        near = difflib.get_close_matches(pattern if "::" in pattern else f"aten::{pattern}", known, 3)
        hint = f"; did you mean {' or '.join(near)}?" if near else ", as explain() prints them"
        raise ValueError(f"hetero: no operator is named {pattern!r}{hint}")
    return patterns


# -- Streams and events ----------------------------------------------------------------------------------------------


# A point in a stream. torch.Event without a device is one of the current accelerator, which hetero is; a subclass
# would not do, as elapsed_time takes torch.Event itself only.
Event = torch.Event


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
        return super().__new__(cls, device=torch.device("hetero", _index(device)), priority=priority)

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
    return _as_hetero_stream(torch._C._accelerator_getStream(_index(device)))


def default_stream(device: DeviceLike = None) -> Stream:
    """Returns the stream on which a thread records when it chose no other."""
    like = torch._C._accelerator_getStream(_index(device))
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


# -- Random numbers --------------------------------------------------------------------------------------------------

default_generators: tuple[torch.Generator, ...] = (_C.default_generator(),)


def manual_seed(seed: int) -> None:
    """Sets the seed of the device's generator. Numbers depend on the seed and the order of the program only."""
    default_generators[0].manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Sets the seed on all devices, of which there is one."""
    manual_seed(seed)


def seed() -> None:
    """Sets a seed taken from the operating system."""
    default_generators[0].seed()


def seed_all() -> None:
    """Sets a seed taken from the operating system on all devices."""
    seed()


def initial_seed() -> int:
    """Returns the seed set last."""
    return default_generators[0].initial_seed()


def get_rng_state(device: DeviceLike = "hetero") -> torch.Tensor:
    """Returns the state of the generator, a 1-D uint8 tensor on the CPU."""
    return default_generators[_index(device)].get_state()


def get_rng_state_all() -> list[torch.Tensor]:
    """Returns the state of the generator of every device."""
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state(new_state: torch.Tensor, device: DeviceLike = "hetero") -> None:
    """Restores a state that `get_rng_state` returned."""
    default_generators[_index(device)].set_state(new_state)


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Restores what `get_rng_state_all` returned."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


# -- Memory budget ---------------------------------------------------------------------------------------------------


def set_memory_budget(budget: int | str | None) -> None:
    """Caps what tensors may hold of the accelerator's memory.

    Programs that need more stream what they need, or run on the CPU, whichever is predicted to be faster. The cap may
    change at any time; what tensors hold on the accelerator leaves it then. Saved programs (`compile`, `load`) take
    their memory beforehand: below a lower cap a program gives it back at its next call, which plans anew. Those that
    change a state of their own, servers, pipelines and executors of C++ keep what they have, and count.

    Args:
        budget: bytes, also as text (``"8GiB"``; KiB, MiB, GiB or TiB); 0 or None for all that the accelerator has.

    Raises:
        ValueError: for anything else, and for sizes of 2**63 bytes or more.
    """
    config.memory_budget = 0 if budget is None else budget


def get_memory_budget() -> int:
    """Returns the cap in bytes, 0 for none."""
    return int(config.memory_budget)


@contextlib.contextmanager
def memory_budget(budget: int | str | None) -> Iterator[None]:
    """Context manager and decorator: `set_memory_budget` for the length of a block, for all threads."""
    with config.override(memory_budget=0 if budget is None else budget):
        yield


# -- Memory ----------------------------------------------------------------------------------------------------------

# Reading a figure of memory does not flush: recorded operators own no memory yet.


def accelerator_memory_stats() -> OrderedDict[str, int]:
    """Returns the figures of the accelerator's memory alone, all integers, 0 where there is no accelerator.

    The names are those of `memory_stats`: ``allocated_bytes.all.peak`` is the most that was ever held there since
    `reset_peak_memory_stats`, and never more than ``limit_bytes``, the cap of `set_memory_budget`, save for what saved
    programs held already when the cap was lowered.
    """
    return _named_figures(_C.accelerator_stats())


def memory_allocated(device: DeviceLike = None) -> int:
    """Returns the bytes that tensors occupy now."""
    _index(device)
    return _C.memory_stats()["allocated_bytes"]


def max_memory_allocated(device: DeviceLike = None) -> int:
    """Returns the most bytes that tensors occupied since the start or `reset_peak_memory_stats`."""
    _index(device)
    return _C.memory_stats()["peak_bytes"]


def memory_reserved(device: DeviceLike = None) -> int:
    """Returns the bytes held for tensors: those in use, and those cached for reuse."""
    _index(device)
    return _C.memory_stats()["reserved_bytes"]


def max_memory_reserved(device: DeviceLike = None) -> int:
    """Returns the most bytes ever held for tensors."""
    _index(device)
    stats = _C.memory_stats()
    return stats.get("peak_reserved_bytes", max(stats["peak_bytes"], stats["reserved_bytes"]))


def memory_stats(device: DeviceLike = None) -> OrderedDict[str, int]:
    """Returns the allocator's figures, all integers.

    ``allocated_bytes.all.current``, ``allocated_bytes.all.peak``, ``reserved_bytes.all.current`` and ``num_alloc``
    are named as in ``torch.cuda.memory_stats``; ``reused_blocks`` and ``reused_bytes`` count what needed no new
    memory. They add up the host's memory and the accelerator's, so a tensor that is on both counts twice, and the peak
    is the sum of the two peaks; `accelerator_memory_stats` has the accelerator's alone. ``limit_bytes`` is that of the
    host (``config.memory_limit``), 0 for none.
    """
    _index(device)
    return _named_figures(_C.memory_stats())


def _named_figures(stats: dict[str, int]) -> OrderedDict[str, int]:
    names = {
        "allocated_bytes": "allocated_bytes.all.current",
        "peak_bytes": "allocated_bytes.all.peak",
        "reserved_bytes": "reserved_bytes.all.current",
        "peak_reserved_bytes": "reserved_bytes.all.peak",
        "allocations": "num_alloc",
    }
    return OrderedDict((names.get(name, name), value) for name, value in stats.items())


def memory_summary(device: DeviceLike = None, abbreviated: bool = False) -> str:
    """Returns the figures of `memory_stats` as a table of text.

    Args:
        device: ``hetero:0`` in any form.
        abbreviated: whether to leave out figures that are 0.
    """
    stats = {name: value for name, value in memory_stats(device).items() if value or not abbreviated}
    width = max([len(name) for name in stats], default=0)
    lines = [f"memory of {get_device_name()}"]
    for name, value in stats.items():
        readable = f"  ({value / 2**20:,.1f} MiB)" if "bytes" in name else ""
        lines.append(f"  {name:<{width}}  {value:>16,}{readable}")
    return "\n".join(lines)


def reset_peak_memory_stats(device: DeviceLike = None) -> None:
    """Starts `max_memory_allocated` anew from what is allocated now."""
    _index(device)
    _C.reset_peak_memory_stats()


def reset_accumulated_memory_stats(device: DeviceLike = None) -> None:
    """Sets the counts of allocations back to 0."""
    _index(device)
    torch._C._accelerator_resetAccumulatedStats(0)


def empty_cache() -> None:
    """Gives memory that no tensor uses back to the operating system."""
    _C.empty_cache()


def mem_get_info(device: DeviceLike = None) -> tuple[int, int]:
    """Returns (free, total) bytes: of the configured limit, else of the machine's memory."""
    _index(device)
    free, total = _C.memory_info()
    return free, total


# -- Mixed precision -------------------------------------------------------------------------------------------------


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Returns the dtypes that ``torch.autocast("hetero", dtype=...)`` takes."""
    return [torch.bfloat16, torch.float16]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Returns True: bfloat16 runs everywhere, natively where the hardware can."""
    return True
