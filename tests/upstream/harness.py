"""Runs one entry of PyTorch's operator database on the device and on CPU and compares.

An entry of `op_db` is an operator (or a variant of one) with a generator of samples. Rules:

1. Samples are made on CPU in float32. An entry without float32 takes the first dtype of
   `OTHER_DTYPES` that it supports on CPU. An entry that cannot run on CPU at all is skipped.
2. Every tensor of a sample is moved with its sizes, strides and storage offset; one tensor given
   twice stays one tensor; every device that a sample names is rewritten, and a sample without any
   tensor or device runs with the device as PyTorch's default one.
3. Every result must have CPU's type, dtype, shape and bits. Strides are compared and counted.
   A sample that CPU refuses must be refused with the same exception type.
4. A sample is *random* when running it on CPU advances the CPU generator (entries that seed it
   themselves, in `wrapper_set_seed`, included). It is compared by type, dtype and shape, and must
   give the same bits when run again under the same seed.
5. An entry in `UNINITIALIZED` promises no values: it is compared by type, dtype and shape.
6. An entry in `UNSTABLE` does not give the same bits twice on CPU either: it is compared with the
   tolerances of `torch.testing.assert_close`.
7. All this is without fusion. Then every sample runs twice more, with fusion: planned, and replayed. The results have
   the CPU's bits where the entry is a unary or binary ufunc; elsewhere they are compared with those tolerances, since
   sums that are fused add in another order.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

try:
    import tomllib
except ModuleNotFoundError:
    import tomli as tomllib

import torch
import torch.testing._utils
from torch.testing._internal import common_utils
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import BinaryUfuncInfo, OpInfo, SampleInput, UnaryUfuncInfo
from torch.utils._device import _device_constructors
from torch.utils._pytree import tree_flatten

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

from counters import snapshot
from helpers import ON_HETERO, difference, fresh

# For the test class that asks for samples, which there is none of here, it reads the source of each
# function on the stack: half of the time of an entry.
common_utils.extract_test_fn = lambda: None

OTHER_DTYPES = (
    torch.int64,
    torch.complex64,
    torch.float64,
    torch.bool,
    torch.bfloat16,
    torch.float16,
    torch.float8_e4m3fn,
)

# Unary functions whose fused kernels are only near: with a sum inside, and roots, which eager takes from MKL.
NEAR_UFUNCS = {"mvlgamma", "sqrt"}

# Tolerances of entries whose samples make much of one rounding: differences of nearly equal sums that are divided by,
# and scores of attention of more than 100 (CPU's own result has an error of 1.7e-5 there, hetero's one of 1.1e-5).
ILL_CONDITIONED: dict[str, dict[str, float]] = {
    "cov": {"rtol": 1e-4, "atol": 0},
    "nn.functional.scaled_dot_product_attention": {"rtol": 1.3e-6, "atol": 1e-4},
}

UNINITIALIZED = {
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "resize_",
    "resize_as_",
}

UNSTABLE = {
    "linalg.lstsq": "LAPACK's gelsy reads a pivot array that ATen leaves uninitialized",
}

REASONS = {
    "MEMORY_ADDRESS": "the result is an address or depends on one",
    "NOT_SUPPORTED": "the device refuses it with a clear sentence",
    "VALUE": "the result differs from CPU's",
    "ERROR": "the device refuses what CPU accepts, or the other way round",
    "CRASH": "the process dies; the entry is not run",
    "UPSTREAM": "PyTorch itself cannot run it on a device that is not built in",
}

EXCLUSIONS_FILE = Path(__file__).with_name("exclusions.toml")


@dataclasses.dataclass
class Result:
    """What became of one entry."""

    entry: str
    status: str  # "passed", "failed" or "skipped"
    why: str = ""
    samples: int = 0
    random_samples: int = 0
    stride_mismatches: int = 0
    first_stride_mismatch: str = ""
    accelerator_kernels: int = 0


class Mismatch(AssertionError):
    """A result of the device is not CPU's."""


def entry_name(op: OpInfo) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


ENTRIES: dict[str, OpInfo] = {entry_name(op): op for op in op_db}


def load_exclusions(path: Path = EXCLUSIONS_FILE) -> dict[str, dict[str, str]]:
    """The rows of exclusions.toml by entry name, checked for form."""
    rows = tomllib.loads(path.read_text()).get("exclusion", [])
    table: dict[str, dict[str, str]] = {}
    for row in rows:
        if set(row) != {"name", "reason", "why"}:
            raise ValueError(f"exclusions.toml: a row needs name, reason and why, not {row}")
        if row["reason"] not in REASONS:
            raise ValueError(f"exclusions.toml: {row['name']}: unknown reason {row['reason']}")
        if row["name"] not in ENTRIES:
            raise ValueError(f"exclusions.toml: {row['name']} is not an entry of op_db")
        if row["name"] in table:
            raise ValueError(f"exclusions.toml: {row['name']} stands there twice")
        table[row["name"]] = row
    return table


def choose_dtype(op: OpInfo) -> torch.dtype | None:
    supported = op.supported_dtypes("cpu")
    if torch.float32 in supported:
        return torch.float32
    return next((dtype for dtype in OTHER_DTYPES if dtype in supported), None)


def _move_tree(tree: Any, device: str, seen: dict[int, torch.Tensor]) -> Any:
    """Tensors and devices inside any nesting of lists, tuples (named too), dicts and slices.

    The text "cpu" is a device wherever it stands: `Tensor.to` takes it by position.
    """
    if isinstance(tree, torch.Tensor):
        if id(tree) not in seen:
            seen[id(tree)] = fresh(tree, device)
        return seen[id(tree)]
    if isinstance(tree, torch.device):
        return torch.device(device)
    if isinstance(tree, str) and tree == "cpu":
        return device
    if isinstance(tree, dict):
        return {key: _move_tree(value, device, seen) for key, value in tree.items()}
    if isinstance(tree, slice):
        parts = (tree.start, tree.stop, tree.step)
        return slice(*(_move_tree(part, device, seen) for part in parts))
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(_move_tree(item, device, seen) for item in tree))
    if isinstance(tree, (list, tuple)):
        return type(tree)(_move_tree(item, device, seen) for item in tree)
    return tree


@dataclasses.dataclass
class Moved:
    """A sample on one device."""

    device: str
    first: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def names_a_device(self) -> bool:
        """Whether a tensor or an argument says where the result goes."""
        leaves = tree_flatten((self.first, self.args, self.kwargs))[0]
        return any(isinstance(leaf, (torch.Tensor, torch.device)) or leaf == self.device for leaf in leaves)


def move_sample(sample: SampleInput, device: str) -> Moved:
    """A copy of a sample on `device`."""
    seen: dict[int, torch.Tensor] = {}
    return Moved(
        device,
        _move_tree(sample.input, device, seen),
        _move_tree(tuple(sample.args), device, seen),
        _move_tree(dict(sample.kwargs), device, seen),
    )


def call(op: Callable[..., Any], moved: Moved) -> Any:
    """What an operator gives for a sample that was moved."""
    if moved.names_a_device():
        return op(moved.first, *moved.args, **moved.kwargs)
    # transformers replaces torch.linspace while it loads a model, and torch may remember the replacement.
    _device_constructors.cache_clear()
    with torch.device(moved.device):
        return op(moved.first, *moved.args, **moved.kwargs)


def attempt(run: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """What a function gives, read to be sure that it ran, or its exception."""
    try:
        result = run()
        for leaf in tree_flatten(result)[0]:
            if isinstance(leaf, torch.Tensor) and leaf.device.type != "cpu":
                leaf.cpu()
        return result, None
    except Exception as error:
        return None, error


@functools.cache
def _state_after_seed(seed: int) -> torch.Tensor:
    return torch.Generator().manual_seed(seed).get_state()


def seed() -> None:
    """Seeds the CPU and the device; torch.manual_seed would format its caller's stack for each other device."""
    torch.default_generator.manual_seed(0)
    if ON_HETERO:
        torch.hetero.manual_seed_all(0)


class DrawDetector:
    """Tells whether the CPU generator was drawn from while the context was open.

    `wrapper_set_seed` seeds with 42 and restores the state afterwards, which would hide a draw; so
    its `freeze_rng_state` is replaced by one that looks at the state before restoring it.
    """

    def __init__(self) -> None:
        self.drawn = False

    def __enter__(self) -> DrawDetector:
        self._original = torch.testing._utils.freeze_rng_state
        seed()
        self._before, self._seeded = _state_after_seed(0), _state_after_seed(42)

        @contextlib.contextmanager
        def freeze() -> Iterator[None]:
            with self._original():
                yield
                self.drawn |= not torch.equal(torch.get_rng_state(), self._seeded)

        torch.testing._utils.freeze_rng_state = freeze
        return self

    def __exit__(self, *_: object) -> None:
        torch.testing._utils.freeze_rng_state = self._original
        self.drawn |= not torch.equal(torch.get_rng_state(), self._before)


@contextlib.contextmanager
def fusion(on: bool) -> Iterator[None]:
    if not ON_HETERO:
        yield
        return
    torch.hetero.config.fusion = on
    try:
        yield
    finally:
        torch.hetero.config.fusion = True


def stride_mismatches(actual: Any, expected: Any) -> list[str]:
    """What differs, for each tensor of the result whose strides are not CPU's where they matter."""
    mismatches = []
    pairs = zip(tree_flatten(actual)[0], tree_flatten(expected)[0], strict=True)
    for index, (one, other) in enumerate(pairs):
        if not isinstance(other, torch.Tensor) or other.layout != torch.strided:
            continue
        if other.numel() == 0:
            continue
        significant = [(a, b) for a, b, size in zip(one.stride(), other.stride(), other.shape, strict=True) if size > 1]
        if any(a != b for a, b in significant):
            mismatches.append(f"output {index}, sizes {tuple(other.shape)}: {one.stride()} instead of {other.stride()}")
    return mismatches


def compare(
    actual: Any,
    expected: Any,
    device: str,
    with_values: bool,
    exactly: bool = True,
    tolerance: dict[str, float] | None = None,
) -> None:
    actual_leaves, actual_spec = tree_flatten(actual)
    expected_leaves, expected_spec = tree_flatten(expected)
    if str(actual_spec) != str(expected_spec):
        raise Mismatch(f"result is {actual_spec} instead of {expected_spec}")
    for one, other in zip(actual_leaves, expected_leaves, strict=True):
        if isinstance(other, torch.Tensor):
            if not isinstance(one, torch.Tensor):
                raise Mismatch(f"result is {type(one).__name__} instead of a tensor")
            if one.device.type != device:
                raise Mismatch(f"result is on {one.device} instead of {device}")
            if not with_values:
                one, other = torch.empty_like(one, device="meta"), other.to("meta")
                if (one.shape, one.dtype) != (other.shape, other.dtype):
                    raise Mismatch(f"{one.dtype}{tuple(one.shape)} instead of {other.dtype}{tuple(other.shape)}")
                continue
        elif isinstance(other, torch.device) or not with_values:
            continue
        if isinstance(other, torch.Tensor) and not exactly:
            torch.testing.assert_close(one.cpu(), other.cpu(), equal_nan=True, **(tolerance or {}))
            continue
        why = difference(one, other)
        if why is not None:
            raise Mismatch(why)


def _run_sample(op: OpInfo, sample: SampleInput, device: str, result: Result) -> None:
    on_cpu, on_device = move_sample(sample, "cpu"), move_sample(sample, device)
    with DrawDetector() as detector:
        expected, refusal = attempt(lambda: call(op, on_cpu))
    is_random = detector.drawn
    seed()
    with fusion(False):
        actual, error = attempt(lambda: call(op, on_device))
    if refusal is not None or error is not None:
        if type(refusal) is type(error):
            return
        if error is None:
            raise Mismatch(f"CPU raises {type(refusal).__name__}: {refusal}; the device does not")
        raise error
    result.random_samples += is_random
    with_values = not is_random and op.name not in UNINITIALIZED
    exactly = op.name not in UNSTABLE
    compare(actual, expected, device, with_values, exactly)
    # Fused maps keep eager's bits; fused reductions need not.
    exactly = exactly and isinstance(op, (UnaryUfuncInfo, BinaryUfuncInfo)) and op.name not in NEAR_UFUNCS
    for sight in ("planned", "replayed"):
        again, error = attempt(lambda: call(op, move_sample(sample, device)))
        if error is not None:
            raise error
        try:
            compare(again, expected, device, with_values, exactly, ILL_CONDITIONED.get(op.name))
        except (Mismatch, AssertionError) as mismatch:
            raise Mismatch(f"{sight}: {first_line(mismatch)}") from None
    mismatches = stride_mismatches(actual, expected)
    result.stride_mismatches += len(mismatches)
    if mismatches and not result.first_stride_mismatch:
        result.first_stride_mismatch = f"sample {result.samples}, {mismatches[0]}"
    if is_random:
        again_on_device = move_sample(sample, device)
        seed()
        again, _ = attempt(lambda: call(op, again_on_device))
        try:
            compare(again, actual, device, with_values=True, exactly=False)
        except (Mismatch, AssertionError) as mismatch:
            raise Mismatch(f"not reproducible under one seed: {mismatch}") from None


def _samples(op: OpInfo, dtype: torch.dtype) -> Iterator[SampleInput]:
    seed()
    yield from op.sample_inputs("cpu", dtype, requires_grad=False)


def run_entry(name: str, device: str) -> Result:
    """Runs every sample of one entry; the first difference ends it."""
    before = _accelerator_kernels()
    result = _run_entry(ENTRIES[name], Result(name, "passed"), device)
    result.accelerator_kernels = _accelerator_kernels() - before
    return result


def _accelerator_kernels() -> int:
    return snapshot()["kernels"]["accelerator"] if ON_HETERO else 0


def _run_entry(op: OpInfo, result: Result, device: str) -> Result:
    dtype = choose_dtype(op)
    if dtype is None:
        result.status, result.why = "skipped", "supports no dtype on CPU"
        return result
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            samples = list(_samples(op, dtype))
        except Exception as error:
            result.status = "skipped"
            result.why = f"PyTorch cannot make its samples on CPU: {first_line(error)}"
            return result
        for index, sample in enumerate(samples):
            try:
                _run_sample(op, sample, device, result)
            except Exception as error:
                result.status = "failed"
                kind = "" if isinstance(error, Mismatch) else f"{type(error).__name__}: "
                result.why = f"sample {index} of {len(samples)}: {kind}{first_line(error)}"
                return result
            result.samples += 1
    if result.samples == 0:
        result.status, result.why = "skipped", "has no samples"
    return result


def first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0][:300] if text else ""
