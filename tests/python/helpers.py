"""What every Python test uses: the device under test, copies that keep strides, bitwise equality.

The oracle for values is eager CPU, and the comparison is of bits. With HETERO_TEST_DEVICE=cpu the
same tests run against eager CPU itself, which proves the logic of a test without the device. With
HETERO_ACCELERATOR=cuda floats need only be close: a GPU has other kernels, which sum in another order.
"""

from __future__ import annotations

import copy
import importlib.util
import os
import subprocess
import sys
import textwrap
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_map

ROOT = Path(__file__).resolve().parents[2]
DEVICE = os.environ.get("HETERO_TEST_DEVICE", "hetero")
ON_HETERO = DEVICE == "hetero"
needs_hetero = pytest.mark.skipif(not ON_HETERO, reason="asks for what only hetero has")


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill one block of memory without gaps or overlap, in any order."""
    expected = 1
    sizes_by_stride = sorted(zip(tensor.stride(), tensor.size(), strict=True))
    for stride, size in sizes_by_stride:
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def fresh(tensor: torch.Tensor, device: str = DEVICE) -> torch.Tensor:
    """A copy on `device` with the same sizes, strides, offset, flags; it shares nothing.

    A tensor with gaps or overlap is moved together with the whole storage it looks at, since
    `Tensor.to` would make it dense.
    """
    source = tensor.detach()
    if source.layout != torch.strided:
        return source.clone().to(device)
    if source.is_conj():
        moved = fresh(source.conj(), device).conj()
    elif source.is_neg():
        moved = fresh(torch._neg_view(source), device)._neg_view()
    elif is_dense(source) and source.storage_offset() == 0:
        moved = source.clone().to(device)
    else:
        storage = source.untyped_storage()
        count = storage.nbytes() // source.element_size()
        flat = torch.empty(0, dtype=source.dtype).set_(storage, 0, (count,), (1,))
        moved = flat.clone().to(device)
        moved = moved.as_strided(source.size(), source.stride(), source.storage_offset())
    if tensor.requires_grad:
        moved.requires_grad_()
    return moved


def fresh_tree(tree: Any, device: str = DEVICE) -> Any:
    """`fresh` for every tensor of nested lists, tuples and dicts; one tensor stays one tensor."""
    seen: dict[int, torch.Tensor] = {}

    def move(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if id(leaf) not in seen:
            seen[id(leaf)] = fresh(leaf, device)
        return seen[id(leaf)]

    return tree_map(move, tree)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.reshape(-1).clone(memory_format=torch.contiguous_format)
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    return flat.view(torch.uint8).reshape(flat.numel(), flat.element_size())


# The relative and the absolute difference that is close, of results of several operators; exact for other types.
CLOSE = defaultdict(
    lambda: (0.0, 0.0),
    {
        torch.float64: (1e-7, 1e-7),
        torch.complex128: (1e-7, 1e-7),
        torch.float32: (1e-4, 1e-4),
        torch.complex64: (1e-4, 1e-4),
        torch.float16: (1e-2, 1e-2),
        torch.bfloat16: (5e-2, 5e-2),
    },
)


def difference(actual: Any, expected: Any) -> str | None:
    """Why `actual` is not `expected`, or None where they are equal to the last bit; on a GPU, where they are close.

    Any NaN equals any NaN; 0.0 does not equal -0.0. Strides are not part of the comparison.
    """
    if not isinstance(expected, torch.Tensor):
        same_nan = isinstance(expected, float) and expected != expected and actual != actual
        if type(actual) is not type(expected) or not (actual == expected or same_nan):
            return f"{actual!r} instead of {expected!r}"
        return None
    if not isinstance(actual, torch.Tensor):
        return f"{type(actual).__name__} instead of a tensor"
    if actual.dtype != expected.dtype:
        return f"dtype {actual.dtype} instead of {expected.dtype}"
    if actual.shape != expected.shape:
        return f"shape {tuple(actual.shape)} instead of {tuple(expected.shape)}"
    if actual.layout != expected.layout:
        return f"layout {actual.layout} instead of {expected.layout}"
    actual, expected = actual.detach().cpu(), expected.detach().cpu()
    if expected.layout != torch.strided:
        actual, expected = actual.to_dense(), expected.to_dense()
    actual, expected = actual.resolve_conj().resolve_neg(), expected.resolve_conj().resolve_neg()
    if expected.is_quantized:
        actual, expected = actual.int_repr(), expected.int_repr()
    if expected.numel() == 0:
        return None
    wrong = (_bits(actual) != _bits(expected)).any(dim=1)
    if not wrong.any():
        return None
    values, oracle = actual.reshape(-1), expected.reshape(-1)
    if expected.is_complex():
        values = torch.view_as_real(values).reshape(-1)
        oracle = torch.view_as_real(oracle).reshape(-1)
    if expected.is_floating_point() or expected.is_complex():
        wrong &= ~(torch.isnan(values) & torch.isnan(oracle))
    if not wrong.any():
        return None
    on_gpu = os.environ.get("HETERO_ACCELERATOR") == "cuda"
    if on_gpu and torch.allclose(values, oracle, *CLOSE[expected.dtype], equal_nan=True):
        return None
    first = int(wrong.nonzero()[0])
    return (
        f"{int(wrong.sum())} of {wrong.numel()} elements differ; "
        f"element {first} is {values[first].item()!r} instead of {oracle[first].item()!r}"
    )


def assert_same(actual: Any, expected: Any) -> None:
    """Both trees have the same structure and every leaf is equal to the last bit."""
    actual_leaves, actual_spec = tree_flatten(actual)
    expected_leaves, expected_spec = tree_flatten(expected)
    assert str(actual_spec) == str(expected_spec)
    for index, (one, other) in enumerate(zip(actual_leaves, expected_leaves, strict=True)):
        why = difference(one, other)
        assert why is None, f"leaf {index}: {why}"


def assert_close_in_scale(actual: Any, expected: Any, bound: float, floor: float = 0.0) -> None:
    """No element of a tensor is off by more than `bound` of the tensor's largest element, and by `floor`.

    An absolute tolerance would hide a wrong scale of small tensors, a relative one tells of elements that cancel.
    """
    actual_leaves, actual_spec = tree_flatten(actual)
    expected_leaves, expected_spec = tree_flatten(expected)
    assert str(actual_spec) == str(expected_spec)
    for index, (one, other) in enumerate(zip(actual_leaves, expected_leaves, strict=True)):
        assert one.shape == other.shape
        worst, largest = (one.cpu().float() - other.cpu().float()).abs().max().item(), other.abs().max().item()
        assert worst <= bound * largest + floor, f"leaf {index}: off by {worst:.2e}, the largest element is {largest:.2e}"


def check(function: Callable[..., Any], *args: Any) -> Any:
    """Runs `function` on CPU and on the device; results and changed arguments must be equal.

    Returns what it gave on the device.
    """
    oracle_args = fresh_tree(args, "cpu")
    device_args = fresh_tree(args)
    expected = function(*oracle_args)
    actual = function(*device_args)
    for leaf in tree_flatten(actual)[0]:
        if isinstance(leaf, torch.Tensor):
            assert leaf.device.type == DEVICE
    assert_same(actual, expected)
    assert_same(device_args, oracle_args)
    return actual


def check_gradients(function: Callable[..., torch.Tensor], *args: torch.Tensor) -> None:
    """Output and every argument's gradient are equal to CPU's."""

    def run(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        leaves = [t.detach().requires_grad_() for t in tensors]
        output = function(*leaves)
        gradients = torch.autograd.grad(output.sum(), leaves)
        return (output.detach(), *gradients)

    check(run, *args)


def outcome(function: Callable[..., Any], *args: Any) -> tuple[type | None, str]:
    """Type and text of the exception of a call, reading its result to be sure that it ran."""
    try:
        result = function(*args)
        for leaf in tree_flatten(result)[0]:
            if isinstance(leaf, torch.Tensor):
                leaf.cpu()
    except Exception as error:
        return type(error), str(error)
    return None, ""


def run_python(
    code: str,
    environment: dict[str, str] | None = None,
    arguments: Iterable[str] = (),
    timeout: float = 180,
) -> subprocess.CompletedProcess[str]:
    """Runs `code` in a new interpreter in which DEVICE names the device under test."""
    process = start_python(code, environment, arguments)
    with process:
        try:
            output, errors = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def start_python(
    code: str, environment: dict[str, str] | None = None, arguments: Iterable[str] = ()
) -> subprocess.Popen[str]:
    """The new interpreter of `run_python`, which goes on meanwhile; its output and errors are pipes."""
    variables = dict(os.environ, OMP_NUM_THREADS="1", **(environment or {}))
    if not ON_HETERO:
        variables["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    body = f"DEVICE = {DEVICE!r}\n" + textwrap.dedent(code)
    here = os.path.dirname(os.path.abspath(__file__))
    variables["PYTHONPATH"] = os.pathsep.join(part for part in (here, variables.get("PYTHONPATH", "")) if part)
    return subprocess.Popen(
        [sys.executable, *arguments, "-c", body],
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_python_ok(code: str, environment: dict[str, str] | None = None) -> str:
    """Standard output of `run_python`, which must end with status 0."""
    done = run_python(code, environment)
    assert done.returncode == 0, f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def load_module(path: str) -> ModuleType:
    """Runs a file of this project, by its path there, as a module of its own: a script or an example."""
    name = f"{Path(path).stem}_by_path"
    spec = importlib.util.spec_from_file_location(name, ROOT / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses ask for it
    spec.loader.exec_module(module)
    return module


def sum_of_ones(device: str) -> float:
    """What a spawned process computes in test_fork.py; it must be importable there."""
    return (torch.ones(3, device=device) + 1).sum().item()


def in_threads(count: int, work: Callable[[int], object]) -> list[object]:
    """The results of `work(0..count-1)`, started together; an exception of any is raised here."""
    barrier = threading.Barrier(count)

    def start(index: int) -> object:
        barrier.wait()
        return work(index)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(start, range(count)))


def call_of(way: str, model: nn.Module, *inputs: torch.Tensor | None) -> Callable[[], object]:
    """A call of the model on the device, "lazily", "compiled" or "saved", whose results are on the CPU."""
    if way == "saved":
        program = torch.hetero.compile(model, inputs)
        return lambda: program(*inputs)
    there = copy.deepcopy(model).to(DEVICE)
    function = torch.compile(there, backend="hetero", dynamic=False) if way == "compiled" else there
    moved = [None if tensor is None else tensor.to(DEVICE) for tensor in inputs]

    def call() -> object:
        found = function(*moved)
        return found.cpu() if isinstance(found, torch.Tensor) else tuple(one.cpu() for one in found)

    return call
