"""The ways in which a sample of PyTorch's databases is run on the device and on the CPU, and what came of it.

A way makes *cases* of a sample: functions of a device that return a tree of tensors. Each case runs on both devices by the
rules of `harness.py`, without fusion, and comes to one of these:

- *equal*: the same bits; or both refuse it with the same exception type.
- *device's way*: the bits are the CPU's own where PyTorch takes the way there that it takes on all other devices. Autograd runs
  a backward pass on a thread of its own, and sums gradients in the order of numbers that it counts by thread. Optimizers take
  their `foreach` implementation.
- *refused*: the device refuses what the CPU accepts.
- *differ*: anything else.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.autograd.forward_ad as forward_ad
from harness import (
    ENTRIES,
    UNINITIALIZED,
    UNSTABLE,
    DrawDetector,
    Mismatch,
    Moved,
    attempt,
    call,
    compare,
    first_line,
    fusion,
    move_sample,
    seed,
    stride_mismatches,
)
from helpers import fresh
from torch.testing._internal.common_utils import noncontiguous_like
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._pytree import tree_flatten, tree_map

Run = Callable[[str], Any]


class Case(NamedTuple):
    label: str
    run: Run
    # What the CPU gives where PyTorch takes the way of a device.
    as_device: Callable[[], Any] | None = None


@dataclasses.dataclass
class Rules:
    """How a way's results are compared."""

    values: bool = True
    exactly: bool = True
    fused: bool = False
    tolerance: dict[str, float] | None = None
    results_on: str | None = None


@dataclasses.dataclass
class Tally:
    """Counts of samples, and notes of what was not equal: kind, reason, place."""

    counts: Counter[str] = dataclasses.field(default_factory=Counter)
    notes: list[tuple[str, str, str]] = dataclasses.field(default_factory=list)

    def note(self, kind: str, reason: str, place: str) -> None:
        self.counts[kind] += 1
        self.notes.append((kind, reason, place))

    def judge(self, case: Case, place: str, device: str, rules: Rules) -> None:
        """Runs a case on both devices and counts what came of it."""
        with DrawDetector() as detector:
            expected, refusal = attempt(lambda: case.run("cpu"))
        seed()
        with fusion(rules.fused):
            actual, error = attempt(lambda: case.run(device))
        if refusal is not None or error is not None:
            self._judge_errors(refusal, error, place)
            return
        values = rules.values and not detector.drawn
        found = _differences(actual, expected, values, device, rules)
        if found != ("", "") and case.as_device is not None:
            other, unlike = attempt(case.as_device)
            if unlike is None and _differences(actual, other, values, device, rules) == ("", ""):
                self.note("device's way", "", place)
                return
        difference, strides = found
        if difference:
            self.note("differ", difference, place)
            return
        self.counts["equal"] += 1
        self.counts["random"] += detector.drawn
        if strides:
            self.note("strides", strides, place)

    def _judge_errors(self, refusal: Exception | None, error: Exception | None, place: str) -> None:
        if error is None:
            self.note("differ", f"the CPU raises {type(refusal).__name__}: {first_line(refusal)}", place)
        elif refusal is None:
            kind = "differ" if isinstance(error, Mismatch) else "refused"
            self.note(kind, f"{type(error).__name__}: {first_line(error)}", place)
        elif type(refusal) is not type(error):
            kinds = f"{type(error).__name__} instead of {type(refusal).__name__}"
            self.note("differ", f"{kinds}: {first_line(error)} / {first_line(refusal)}", place)
        else:
            self.counts["equal"] += 1
            self.counts["both refuse"] += 1
            if _words(error) != _words(refusal):
                self.note("messages", f"{first_line(error)} / {first_line(refusal)}", place)


def _differences(actual: Any, expected: Any, values: bool, device: str, rules: Rules) -> tuple[str, str]:
    """What differs, or else what differs in strides."""
    try:
        compare(actual, expected, rules.results_on or device, values, rules.exactly, rules.tolerance)
    except AssertionError as difference:
        return first_line(difference), ""
    return "", next(iter(stride_mismatches(actual, expected)), "")


def _words(error: Exception) -> str:
    """A message without what names a device, an address or a line of a file."""
    text = re.sub(r"torch\.hetero\.(?=\w*Tensor)", "torch.", str(error))
    text = re.sub(r"hetero(:0)?|cpu(:0)?|PrivateUse1", "DEVICE", text, flags=re.IGNORECASE)
    return re.sub(r"0x[0-9a-f]+|at \S+:\d+", "#", text).split("\nException raised from")[0].strip()


def cotangent(tensor: torch.Tensor) -> torch.Tensor:
    """Fixed numbers of a tensor's shape and dtype, on its device, made on the CPU."""
    wide = torch.complex64 if tensor.dtype.is_complex else torch.float32
    numbers = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(1), dtype=wide).to(tensor.dtype)
    return fresh(numbers.to_sparse(layout=tensor.layout) if tensor.layout != torch.strided else numbers, tensor.device.type)


def tensors(*trees: Any) -> list[torch.Tensor]:
    """The tensors of trees, each once."""
    found = {id(leaf): leaf for leaf in tree_flatten(trees)[0] if isinstance(leaf, torch.Tensor)}
    return list(found.values())


def replaced(moved: Moved, change: Callable[[torch.Tensor], torch.Tensor]) -> Moved:
    """A sample with other tensors; one tensor given twice stays one tensor."""
    changed = {id(tensor): change(tensor) for tensor in tensors(moved.first, moved.args, moved.kwargs)}

    def other(leaf: Any) -> Any:
        return changed[id(leaf)] if isinstance(leaf, torch.Tensor) else leaf

    return Moved(moved.device, *(tree_map(other, part) for part in (moved.first, moved.args, moved.kwargs)))


def on_a_thread(function: Callable[[], Any]) -> Any:
    found: list[tuple[Any, Exception | None]] = []
    thread = threading.Thread(target=lambda: found.append(attempt(function)))
    thread.start()
    thread.join()
    result, error = found[0]
    if error is not None:
        raise error
    return result


def differentiated(outputs: Any, inputs: list[torch.Tensor], second: bool = False, apart: bool = False) -> Any:
    """The gradients of what can be differentiated, and those of these gradients."""
    results = [tensor for tensor in tensors(outputs) if tensor.requires_grad]
    if not results or not inputs:
        return None
    weights = [cotangent(result).requires_grad_(second) for result in results]

    def backward() -> tuple[torch.Tensor | None, ...]:
        return torch.autograd.grad(results, inputs, weights, create_graph=second, allow_unused=True)

    gradients = on_a_thread(backward) if apart else backward()
    again = [gradient for gradient in gradients if gradient is not None and gradient.requires_grad]
    if not second or not again:
        return gradients
    weights_again = [cotangent(gradient) for gradient in again]
    return gradients, torch.autograd.grad(again, [*inputs, *weights], weights_again, allow_unused=True)


# ---- operators


def run_forward(op: OpInfo, sample: SampleInput) -> Iterator[Case]:
    def run(device: str) -> Any:
        moved = move_sample(sample, device)
        return call(op, moved), tensors(moved.first, moved.args, moved.kwargs)

    yield Case("", run)


def _gradients(op: OpInfo, sample: SampleInput, device: str, second: bool = False, apart: bool = False) -> Any:
    moved = move_sample(sample, device)
    inputs = [tensor for tensor in tensors(moved.first, moved.args, moved.kwargs) if tensor.requires_grad]
    return differentiated(sample.output_process_fn_grad(call(op, moved)), inputs, second, apart)


def run_gradients(op: OpInfo, sample: SampleInput) -> Iterator[Case]:
    yield Case("", lambda device: _gradients(op, sample, device))


def run_second(op: OpInfo, sample: SampleInput) -> Iterator[Case]:
    yield Case(
        "",
        lambda device: _gradients(op, sample, device, second=True),
        lambda: _gradients(op, sample, "cpu", second=True, apart=True),
    )


def _transposed(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    base = tensor.transpose(0, -1).clone(memory_format=torch.contiguous_format)
    return base, base.transpose(0, -1)


def _stepped(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    base = tensor.repeat_interleave(2, dim=0)
    return base, base[::2]


def _expanded(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    base = tensor[:1].clone()
    return base, base.expand(tensor.shape)


def _whole(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    base = tensor.clone()
    return base, base


def run_inplace(op: OpInfo, sample: SampleInput) -> Iterator[Case]:
    """On a tensor of its own, on views of one, and on a leaf; with gradients where the sample asks for them."""
    variant = op.inplace_variant
    if variant is None or not isinstance(sample.input, torch.Tensor):
        return
    views: dict[str, Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]] = {"": _whole}
    if sample.input.layout == torch.strided and sample.input.dim() > 0:
        views |= {"x[::2]": _stepped, "expanded": _expanded}
        if sample.input.dim() > 1:
            views["x.t()"] = _transposed

    def run(device: str, view: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]) -> Any:
        moved = move_sample(sample, device)
        inputs = [tensor for tensor in tensors(moved.first, moved.args, moved.kwargs) if tensor.requires_grad]
        base, target = view(moved.first)
        result = call(variant, dataclasses.replace(moved, first=target))
        if isinstance(result, torch.Tensor) and result is not target:
            raise Mismatch("the result is not the tensor that was given")
        return base, target, differentiated((base, result), inputs)

    for label, view in views.items():
        yield Case(label, lambda device, view=view: run(device, view))
    if sample.input.requires_grad:
        yield Case("leaf", lambda device: call(variant, move_sample(sample, device)))


# What is given as out=, made of the right result.
OUT: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "": torch.ones_like,
    "empty": lambda result: result.new_empty(0),
    "other shape": lambda result: result.new_ones(result.numel() + 3),
    "noncontiguous": lambda result: noncontiguous_like(torch.ones_like(result)),
    "int64": lambda result: torch.ones_like(result, dtype=torch.int64),
    "float64": lambda result: torch.ones_like(result, dtype=torch.float64),
}


def run_out(op: OpInfo, sample: SampleInput) -> Iterator[Case]:
    """With right and wrong tensors, with an input as out=, and where a gradient is asked for, which is an error."""
    result, error = attempt(lambda: call(op, move_sample(sample, "cpu")))
    leaves = tree_flatten(result)[0]
    if error is not None or any(not isinstance(leaf, torch.Tensor) or leaf.layout != torch.strided for leaf in leaves):
        return

    def run(device: str, make: Callable[[torch.Tensor], torch.Tensor] | None, ask_for_gradient: bool = False) -> Any:
        moved = move_sample(sample, device)
        if ask_for_gradient:
            moved = replaced(moved, lambda t: t.requires_grad_(t.is_floating_point() or t.is_complex()))
        out = moved.first if make is None else tree_map(lambda leaf: fresh(make(leaf.detach()), device), result)
        moved.kwargs["out"] = out
        given = call(op, moved)
        pairs = zip(tree_flatten(given)[0], tree_flatten(out)[0], strict=True)
        if given is not None and any(one is not other for one, other in pairs):
            raise Mismatch("the result is not the tensor that was given")
        return out

    for label, make in OUT.items():
        yield Case(label, lambda device, make=make: run(device, make))
    first = sample.input
    if isinstance(first, torch.Tensor) and len(leaves) == 1 and (first.shape, first.dtype) == (leaves[0].shape, leaves[0].dtype):
        yield Case("an input", lambda device: run(device, None))
    if any(tensor.is_floating_point() or tensor.is_complex() for tensor in tensors(first, sample.args, sample.kwargs)):
        yield Case("gradient", lambda device: run(device, torch.ones_like, ask_for_gradient=True))


def run_errors(op: OpInfo, sample: SampleInput) -> Iterator[Case]:
    yield Case("", lambda device: call(op, move_sample(sample, device)))


def _negated_twice(tensor: torch.Tensor) -> torch.Tensor:
    """The same values, negated when they are read: indices and pivots stay what they are."""
    try:
        return torch._neg_view(tensor.neg())
    except (RuntimeError, NotImplementedError):  # booleans, and dtypes that the CPU does not negate
        return tensor


def run_views(op: OpInfo, sample: SampleInput) -> Iterator[Case]:
    """Arguments that are conjugated or negated when they are read, or have gaps."""

    def viewed(view: Callable[[torch.Tensor], torch.Tensor]) -> Run:
        def run(device: str) -> Any:
            moved = replaced(move_sample(sample, device), lambda t: view(t.detach()).requires_grad_(t.requires_grad))
            result = call(op, moved)
            flags = [(tensor.is_conj(), tensor.is_neg()) for tensor in tensors(result)]
            inputs = [tensor for tensor in tensors(moved.first, moved.args, moved.kwargs) if tensor.requires_grad]
            return result, flags, differentiated(sample.output_process_fn_grad(result), inputs)

        return run

    dense = all(tensor.layout == torch.strided for tensor in tensors(sample.input, sample.args, sample.kwargs))
    if not dense:
        return
    if op.test_conjugated_samples and any(tensor.is_complex() for tensor in tensors(sample.input, sample.args)):
        yield Case("conjugated", viewed(lambda t: t.conj() if t.is_complex() else t))
    if op.test_neg_view:
        yield Case("negated", viewed(_negated_twice))
    yield Case("noncontiguous", viewed(noncontiguous_like))


def run_tangents(op: OpInfo, sample: SampleInput) -> Iterator[Case]:
    """Forward-mode differentiation."""

    def run(device: str) -> Any:
        def dual(tensor: torch.Tensor) -> torch.Tensor:
            if not tensor.requires_grad:
                return tensor
            return forward_ad.make_dual(tensor.detach(), cotangent(tensor))

        with forward_ad.dual_level():
            result = call(op, replaced(move_sample(sample, device), dual))
            return [tuple(forward_ad.unpack_dual(tensor)) for tensor in tensors(result)]

    yield Case("", run)


def run_vmap(op: OpInfo, sample: SampleInput) -> Iterator[Case]:
    """torch.vmap over a batch of two of the first argument."""
    first = sample.input
    if not isinstance(first, torch.Tensor) or first.layout != torch.strided:
        return

    def run(device: str) -> Any:
        moved = move_sample(sample, device)
        batch = torch.stack([moved.first, moved.first])
        return torch.vmap(lambda x: op(x, *moved.args, **moved.kwargs), randomness="different")(batch)

    yield Case("", run)


def all_dtypes(op: OpInfo) -> set[torch.dtype]:
    return set(op.supported_dtypes("cpu"))


def backward_dtypes(op: OpInfo) -> set[torch.dtype]:
    return op.supported_backward_dtypes("cpu") & all_dtypes(op)


def spread(samples: list[Any], most: int) -> Iterator[tuple[int, Any]]:
    """At most so many of the samples, or all, with their numbers; neighbours are often much alike."""
    step = -(-len(samples) // most) if most else 1
    return itertools.islice(enumerate(samples), 0, None, max(step, 1))


class Operators(NamedTuple):
    """A way to run an entry of op_db."""

    title: str
    cases: Callable[[OpInfo, SampleInput], Iterator[Case]]
    dtypes: Callable[[OpInfo], set[torch.dtype]]
    requires_grad: Callable[[OpInfo, torch.dtype], bool] = lambda op, dtype: False
    errors: bool = False
    rules: Rules = Rules()

    def names(self) -> list[str]:
        """The tasks: an entry and a dtype."""
        if self.errors:
            return [name for name, op in ENTRIES.items() if op.error_inputs_func is not None]
        return [f"{name} {str(dtype)[6:]}" for name, op in ENTRIES.items() for dtype in sorted(self.dtypes(op), key=str)]

    def run(self, task: str, device: str, most: int) -> Tally:
        """Runs at most so many samples of an entry, or all."""
        name, _, dtype_name = task.partition(" ")
        op, tally = ENTRIES[name], Tally()
        seed()
        try:
            if self.errors:
                samples = [error.sample_input for error in op.error_inputs("cpu")]
            else:
                dtype = getattr(torch, dtype_name)
                drawn = op.sample_inputs("cpu", dtype, requires_grad=self.requires_grad(op, dtype), set_seed=False)
                samples = list(drawn)
        except Exception:  # PyTorch cannot make some on this machine
            return tally
        rules = dataclasses.replace(
            self.rules,
            values=op.name not in UNINITIALIZED,
            exactly=self.rules.exactly and op.name not in UNSTABLE,
        )
        for index, sample in spread(samples, most):
            for case in self.cases(op, sample):
                place = ", ".join(part for part in (task, f"sample {index}", case.label) if part)
                tally.judge(case, place, device, rules)
        return tally


def _differentiable(op: OpInfo, dtype: torch.dtype) -> bool:
    return dtype in backward_dtypes(op)


OPERATORS = {
    "forward": Operators("forward", run_forward, all_dtypes),
    "gradients": Operators("gradients", run_gradients, backward_dtypes, _differentiable),
    "second": Operators(
        "gradients of gradients",
        run_second,
        lambda op: backward_dtypes(op) if op.supports_gradgrad else set(),
        _differentiable,
    ),
    "out": Operators("`out=`", run_out, lambda op: all_dtypes(op) if op.supports_out else set()),
    "inplace": Operators(
        "in-place",
        run_inplace,
        lambda op: all_dtypes(op) if op.inplace_variant else set(),
        lambda op, dtype: bool(op.supports_inplace_autograd) and _differentiable(op, dtype),
    ),
    "errors": Operators("error inputs", run_errors, all_dtypes, errors=True),
    "views": Operators("conjugated, negated and noncontiguous arguments", run_views, all_dtypes, _differentiable),
    "tangents": Operators(
        "forward-mode differentiation",
        run_tangents,
        lambda op: backward_dtypes(op) if op.supports_forward_ad else set(),
        _differentiable,
    ),
    "vmap": Operators("`torch.vmap`", run_vmap, all_dtypes),
}


def quiet() -> None:
    """No warnings, one thread."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
