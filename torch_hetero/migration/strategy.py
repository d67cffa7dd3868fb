"""Strategies: how a function of a library is computed on a device, for many samples at once.

A strategy stands for one function or method, its `target`. It says which calls it covers (`supports`), turns a call's
arguments into settings (`map`), and computes the results of a batch of such calls with torch operators (`run`)::

    @register
    class Flip(Strategy):
        target = "cv2.flip"
        parameters = "src, flipCode, dst=None"
        data = ("src",)

        def supports(self, call):
            return None if call["dst"] is None else "dst= is given"

        def map(self, call):
            return Mapped(call["src"], static=call["flipCode"])

        def run(self, inputs, static, sample):
            (images,) = inputs  # [batch, height, width] or [batch, height, width, channels]
            return images.flip([1] if static == 0 else [2] if static > 0 else [1, 2])

Strategies of others come from the entry points of the group ``torch_hetero.migration``, which name functions or modules
to import, and from the section ``strategies`` of a plan, which names modules.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import inspect
import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from torch_hetero.migration.spec import Spec

__all__ = [
    "EXACT",
    "Call",
    "Mapped",
    "OnHost",
    "Strategy",
    "Tensors",
    "Tolerance",
    "Unsupported",
    "all_strategies",
    "find",
    "load_entry_points",
    "mark_views",
    "register",
]

ENTRY_POINTS = "torch_hetero.migration"

Tensors = torch.Tensor | tuple[torch.Tensor, ...]


class Unsupported(Exception):
    """A call that a strategy does not cover. Its text is the reason that reports show."""


@dataclass(frozen=True)
class Tolerance:
    """How far a strategy's results may be from the original's.

    An element is right if it differs by at most `absolute` + `relative` x |original|.

    Attributes:
        absolute: In units of the elements; 1 for bytes that are rounded the other way.
        relative: As a share of the original's value.
        outliers: The share of elements that may be wrong, such as pixels at an edge that is rounded the other way.
        note: The reason, for people.
    """

    absolute: float = 0.0
    relative: float = 0.0
    outliers: float = 0.0
    note: str = ""

    @property
    def exact(self) -> bool:
        """Whether each bit must be equal."""
        return self.absolute == self.relative == self.outliers == 0

    def wrong(self, result: np.ndarray, original: np.ndarray) -> float:
        """Returns the share of wrong elements, 1 if the arrays have different shapes or dtypes. NaN equals NaN."""
        if result.shape != original.shape or result.dtype != original.dtype:
            return 1.0
        if result.size == 0:
            return 0.0
        if self.exact:
            return float(np.mean(~((result == original) | ((result != result) & (original != original)))))
        wide = np.complex128 if original.dtype.kind == "c" else np.float64
        close = np.isclose(result.astype(wide), original.astype(wide), self.relative, self.absolute, equal_nan=True)
        return float(np.mean(~close))

    def accepts(self, result: np.ndarray, original: np.ndarray) -> bool:
        """Whether a result is near enough."""
        return self.wrong(result, original) <= self.outliers

    def __str__(self) -> str:
        if self.exact:
            return "exact"
        parts = [
            f"{self.absolute:g}" if self.absolute else "",
            f"{self.relative:g} of the value" if self.relative else "",
        ]
        text = "within " + " + ".join(part for part in parts if part) if any(parts) else "equal"
        text += f" in all but {self.outliers:.2%} of elements" if self.outliers else ""
        return f"{text}: {self.note}" if self.note else text


EXACT = Tolerance()


class Call:
    """The arguments of a call by the target's parameter names. Data is there as `Spec`s, settings as they were given.

    A data parameter that was given something else, such as the number in ``cv2.add(image, 3)``, is a setting.

    Attributes:
        arguments: The arguments, by name.
        elements_of: Returns the elements of a data parameter on the CPU, for strategies whose results have sizes that
            depend on them, such as those that decode files. Raises `Unsupported` if they are not computed yet.
    """

    __slots__ = ("arguments", "elements_of")

    def __init__(self, arguments: dict[str, Any], elements_of: Callable[[str], torch.Tensor] | None = None) -> None:
        self.arguments, self.elements_of = arguments, elements_of

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    def given(self, *names: str) -> str | None:
        """Returns a reason not to migrate if one of these parameters is not None."""
        for name in names:
            if self.arguments[name] is not None:
                return f"{name}= is given"
        return None


@dataclass(frozen=True, slots=True)
class Mapped:
    """A call, as settings for `Strategy.run`.

    Attributes:
        outputs: The result's spec, or one for each of the results that are data, in order.
        static: Settings that calls of one batch have in common.
        sample: Settings of this call alone: numbers, or arrays of one shape for all calls. `run` gets each as a tensor
            with a first dimension for the batch, float64, int64 or bool.
        build: From the data results as user code sees them to the call's result, for functions that return more than
            data, such as ``cv2.threshold``. None for the data itself: one object, or a tuple of several.
        original: Called in place of the target's original, with the same arguments, by whoever computes the call on
            the host. For functions that draw random numbers: `map` draws them, as the original would, and this
            function has them. It can be pickled.
    """

    outputs: Spec | tuple[Spec, ...]
    static: Hashable = None
    sample: tuple[Any, ...] = ()
    build: Callable[..., Any] | None = None
    original: Callable[..., Any] | None = None


class Strategy:
    """One function or method, and how a batch of its calls is computed. The module's text has an example.

    Attributes:
        target: The dotted name of the function, method or class of callable objects, as it is imported.
        parameters: The target's parameters as in a `def`, since functions written in C have no signature.
        data: The parameters that may be data, in the order in which `run` gets them. They may be lists of data.
        tolerance: The largest difference from the original's results. `EXACT` strategies are tested by bits.
        exact_bytes: Whether results of bytes have the original's bits, although others have only `tolerance`.
        ragged: Whether `run` takes samples of different sizes: then each input is a list of tensors without a batch
            dimension, even if sizes are equal. `takes_lists` says so of single calls.
        stacks: Whether `run` takes the data of a call whose specs are all equal as one input [batch, number, ...]. It
            is no copy if they are the rows of one batch, in order. Data of different specs comes as usual.
        views: Whether the original's result shares memory with its first argument, or may be that argument. So calls with
            the program's own data stay on the CPU, and results of handles become views of them.
        constants: Arrays and CPU tensors with up to this many elements are settings, not data. Handles are data.
        family: "vision", "audio", "text" or "generic".
        library: The distribution with the target, such as "opencv-python-headless", and `versions`, those in which the
            strategy was tested, as prefixes. Others are tested when a plan is activated.
    """

    target: ClassVar[str]
    parameters: ClassVar[str]
    data: ClassVar[tuple[str, ...]]
    tolerance: Tolerance = EXACT
    exact_bytes: ClassVar[bool] = False
    ragged: ClassVar[bool] = False
    stacks: ClassVar[bool] = False
    views: bool = False
    constants: ClassVar[int] = 0
    family: ClassVar[str] = "generic"
    library: ClassVar[str] = ""
    versions: ClassVar[tuple[str, ...]] = ()

    # From positional and keyword arguments to a dict by parameters; made by `register`.
    bind: Callable[..., dict[str, Any]]

    def read(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Returns arguments that stand for others, by name: the bytes of a file in place of its path.

        Where there are some, the original that computes the call is `Mapped.original`, which gets all arguments by name.
        May raise `Unsupported`.
        """
        return {}

    def supports(self, call: Call) -> str | None:
        """Returns None if `run` can compute this call, else the reason: "16-bit images stay on the CPU"."""
        return None

    def map(self, call: Call) -> Mapped:
        """Returns the settings and the specs of the results. May raise `Unsupported`."""
        raise NotImplementedError

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> Tensors:
        """Computes a batch of calls on the device of its inputs.

        Args:
            inputs: For each data parameter that was data, in order, a tensor [batch, ...]; a list if `ragged`.
            static: As `map` returned it.
            sample: As `map` returned it, [batch, ...] each.

        Returns:
            [batch, ...] with the shape and dtype that `map` said, or a tuple of such, one for each output.
        """
        raise NotImplementedError

    def takes_lists(self, static: Any, device: torch.device) -> bool:
        """Returns whether inputs are lists in `run` with these settings; see `ragged`."""
        return self.ragged

    def batch_key(self, static: Any, lists: bool) -> Hashable:
        """Returns what is equal for calls that may run as one batch, by the `run` and the settings of any of them."""
        return self.target, static

    def examples(self, random: np.random.Generator) -> Iterable[tuple[tuple[Any, ...], dict[str, Any]]]:
        """Yields calls (positional, keywords) that are supported, without end, for tests: small, and of every kind."""
        raise NotImplementedError

    def tolerance_of(self, static: Any, outputs: Sequence[Spec]) -> Tolerance:
        """Returns the tolerance of calls with these settings and results, for strategies of which some are exact."""
        return EXACT if self.exact_bytes and all(spec.dtype == torch.uint8 for spec in outputs) else self.tolerance

    def returned(self, result: Any, opened: Callable[[], Any]) -> Any:
        """Returns what user code gets for a recorded call, where the handle lacks something. May raise `Unsupported`.

        Args:
            result: The handle, or what `Mapped.build` made.
            opened: Makes the call by the original.
        """
        return result

    def data_results(self, result: Any) -> tuple[Any, ...]:
        """Returns the data in what the original returned, in the order of `Mapped.outputs`."""
        return result if type(result) is tuple else (result,)


class OnHost(Strategy):
    """A function that is known to stay on the CPU, and the reason, for reports."""

    reason: ClassVar[str]

    def supports(self, call: Call) -> str | None:
        """Returns the reason."""
        return self.reason

    def examples(self, random: np.random.Generator) -> Iterable[tuple[tuple[Any, ...], dict[str, Any]]]:
        """Returns no call."""
        return ()


_strategies: dict[str, Strategy] = {}


def register(strategy: type[Strategy]) -> type[Strategy]:
    """Class decorator: adds a strategy. One for the same target is replaced, so that users can bring their own.

    Raises:
        ValueError: A data parameter is not a parameter, or the target is no dotted name.
    """
    if not re.fullmatch(r"\w+(\.\w+)+", strategy.target):
        raise ValueError(f"{strategy.__name__}.target is a dotted name such as 'cv2.resize', not {strategy.target!r}")
    names = list(inspect.signature(eval(f"lambda {strategy.parameters}: 0")).parameters)  # noqa: S307  from the class
    unknown = [name for name in strategy.data if name.lstrip("*") not in names]
    if unknown:
        raise ValueError(f"{strategy.__name__}.data names {unknown[0]!r}, which is none of {', '.join(names)}")
    body = ", ".join(f"{name!r}: {name}" for name in names)
    strategy.bind = staticmethod(eval(f"lambda {strategy.parameters}: {{{body}}}"))  # noqa: S307
    _strategies[strategy.target] = strategy()
    return strategy


def mark_views(target: str) -> None:
    """Says of a registered strategy that results share memory with the first argument: `Strategy.views`."""
    if target in _strategies:
        _strategies[target].views = True


def find(target: str) -> Strategy | None:
    """Returns the strategy for a dotted name."""
    load_builtin()
    return _strategies.get(target)


def all_strategies() -> list[Strategy]:
    """Returns all strategies, by target."""
    load_builtin()
    return [_strategies[target] for target in sorted(_strategies)]


def load_builtin() -> None:
    """Imports this package's strategies; they import their libraries when they are used."""
    importlib.import_module("torch_hetero.migration.strategies")


@functools.cache
def load_entry_points() -> tuple[str, ...]:
    """Loads strategies that other distributions offer, once; returns one sentence for each that cannot be loaded."""
    problems: list[str] = []
    for point in importlib.metadata.entry_points(group=ENTRY_POINTS):
        try:
            loaded = point.load()
            if inspect.isfunction(loaded):
                loaded()
        except Exception as error:  # whatever others' modules raise
            problems.append(
                f"the strategies of entry point {point.name!r} cannot be loaded: {type(error).__name__}: {error}"
            )
    return tuple(problems)
