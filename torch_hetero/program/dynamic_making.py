"""Programs of models for several sizes: the model is captured with some, and what follows from sizes is found."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_hetero import _C
from torch_hetero.program.calling import CompiledModel
from torch_hetero.program.capture import Captured, ModelCall, checked, quiet
from torch_hetero.program.dynamic import Sizes, export
from torch_hetero.program.leaves import check_same_leaves, plain
from torch_hetero.program.replay import on_hetero

__all__ = ["make_dynamic"]

# Captures the call with other sizes.
_Capture = Callable[[list[int]], Captured]


def make_dynamic(call: ModelCall, dynamic: Any) -> CompiledModel | None:
    """The program of a call for several sizes; None where no size is dynamic.

    Args:
        call: The call of the model with the example.
        dynamic: As for ``torch.hetero.compile``.

    Raises:
        ValueError: where the model cannot be a program for several sizes.
    """
    exported, names = call.exported, {}
    if exported is None:
        model, args, kwargs = call.on_cpu()
        with quiet():
            exported, names = export(model, args, kwargs, dynamic)
    sizes = Sizes(exported, names)
    if not sizes.names:
        return None
    run = call.runner(exported)
    tensors = [leaf for leaf in call.leaves if isinstance(leaf, torch.Tensor)]

    def capture(of: list[int]) -> Captured:
        try:
            given = sizes.tensors(tensors, of)
        except RuntimeError as error:  # a size below 0, say
            return _C.CompiledProgram(), None, str(error)
        return call.capture(run, given)

    program, results, problem = capture(sizes.own)
    if problem is not None:
        run(*call.given(on_hetero))  # some operators have to run once, see making.py
        program, results = checked(capture(sizes.own))
    samples = [(program, sizes.own), *_samples(sizes, capture, results)]
    sizes.find_requirements([of for _, of in samples])
    return _with_ones(call, sizes, capture, results, samples)


def _samples(sizes: Sizes, capture: _Capture, results: Any) -> list[tuple[_C.CompiledProgram, list[int]]]:
    """Programs for other sizes than the example's, as many as are to be looked at."""
    samples: list[tuple[_C.CompiledProgram, list[int]]] = []
    recorded, failure = [sizes.own], None
    for of in sizes.samples(recorded):
        program, other_results, problem = capture(of)
        if problem is not None:
            failure = problem
            continue
        check_same_leaves(results, other_results)
        samples.append((program, of))
        recorded.append(of)
        if len(recorded) == sizes.captures:
            return samples
    raise ValueError("the model cannot be a program for several sizes: it fails for most of them, "
                     f"the last time with: {failure}")


def _with_ones(call: ModelCall, sizes: Sizes, capture: _Capture, results: Any,
               samples: Sequence[tuple[_C.CompiledProgram, list[int]]]) -> CompiledModel:
    """The program, for sizes of 1 as well where the model does nothing else with them.

    That is sure where the same operators are recorded. Where others are, a call with the example, cut to that size,
    tells.
    """
    ones = list(sizes.least())
    own = samples[0]

    def recorded(of: list[int] | None) -> tuple[_C.CompiledProgram | None, list[int]]:
        if of is None:
            return own
        other, _, problem = capture(of)
        return (other if problem is None else None), of

    def finish(least: Sequence[tuple[_C.CompiledProgram | None, list[int]]]) -> CompiledModel:
        make = functools.partial(_C.Model.make_dynamic, samples, least, sizes.variables, sizes.factors)
        return call.finish(own[0], results, make)

    least = [recorded(of) for of in ones]
    made = finish(least)
    doubtful = [d for d, (low, _) in enumerate(made.dimensions.values()) if ones[d] is not None and low > 1]
    if not doubtful:
        return made
    trusting = [own if d in doubtful else sample for d, sample in enumerate(least)]
    tried = finish(trusting)
    wrong = [d for d in doubtful if not _agrees(call, tried, sizes.shapes(ones[d]))]
    if not wrong:
        return tried
    return finish([least[d] if d in wrong else sample for d, sample in enumerate(trusting)])


def _agrees(call: ModelCall, program: CompiledModel, shapes: Sequence[Sequence[int]]) -> bool:
    """Whether the program and the model give the same for the beginnings of the example's tensors."""
    def cut() -> tuple[tuple[Any, ...], dict[str, Any]]:
        left = iter(shapes)
        return call.given(lambda tensor: tensor[tuple(slice(size) for size in next(left))].clone())

    try:
        args, kwargs = cut()
        found = pytree.tree_leaves(program(*args, **kwargs))
        args, kwargs = pytree.tree_map_only(torch.Tensor, on_hetero, cut())
        state = {name: tensor.clone() for name, tensor in call.weights.items()}
        expected = pytree.tree_leaves(plain(call.run(args, kwargs, state)))
    except Exception:
        return False
    bound = 0.05 if call.autocasts else 1e-3
    return len(found) == len(expected) and all(
        a.shape == b.shape and a.dtype == b.dtype
        and torch.allclose(a.cpu(), b.cpu(), rtol=bound, atol=bound, equal_nan=True)
        for a, b in zip(found, expected, strict=True) if isinstance(b, torch.Tensor))
