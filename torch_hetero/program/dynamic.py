"""Sizes of an exported program, as ``torch.hetero.compile(..., dynamic=...)`` needs them.

``torch.export`` decides for all sizes at once what a model does, and names each size of each tensor by a symbolic
expression of those of the inputs. Here these become the language of ``graph/program/dynamic_sizes.h``: dimensions, a few
variables for what is no sum of products, and sums of products of both. The C++ side finds out which of them each number
of the program is, by looking at captures for the sizes that `Sizes.samples` proposes.
"""

from __future__ import annotations

import itertools
import math
import os
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind, TensorArgument
from torch.utils import _pytree as pytree
from torch.utils._sympy import functions
from torch.utils._sympy.numbers import int_oo

from torch_hetero.program.signature import positional_names

__all__ = ["Sizes", "export"]

# Samples have sizes of all residues, so that what is rounded is told from what is not. Where a model needs an even
# number, a multiple of 32 or whole patches of 14, later ones are.
_SIZES = random.Random(0).sample(range(5, 125), 120)
_MULTIPLES = (1, 2, 4, 8, 16, 32, 12, 14)
# How many samples of each multiple above 1, and at least of 1.
_SAMPLES = 30
# The product of a tensor's dynamic sizes in a sample is at most about this, or so many times that of the example or of
# the multiples: convolutions run for real to tell how their results lie in memory.
_POSITIONS = 1 << 13
_TIMES_EXAMPLE = 4
_TIMES_MULTIPLES = 128
# The first samples, from whose differences graph/optimize/fit_sizes.h begins, have no size of a dimension twice.
_DIFFERENT = 3
# Captures of which sizes are learned: without roundings, and with.
_FEW, _MANY = 8, 24
# By sizes times these it is told whether something holds for all; no model runs with them.
_MAGNITUDES = (1, 1000)

_TORCH = os.path.dirname(torch.__file__) + os.sep
# How sizes.txt says it: the word, whether the sides change places, and what is added to the first one.
_RELATIONS = {
    sympy.Eq: ("=", False, 0),
    sympy.Ne: ("!=", False, 0),
    sympy.Le: ("<=", False, 0),
    sympy.Lt: ("<=", False, 1),
    sympy.Ge: ("<=", True, 0),
    sympy.Gt: ("<=", True, 1),
}


def export(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic: Any
) -> tuple[ExportedProgram, dict[tuple[int, int], str]]:
    """The model by ``torch.export``, and names of sizes: by the number of a tensor among the arguments, and its axis.

    Args:
        model: The module.
        args: Positional arguments.
        kwargs: Keyword arguments.
        dynamic: True for all sizes that can be; or what ``torch.export`` calls dynamic_shapes, in which a name may
            stand for a ``Dim``: its bounds are those that the model has.

    Raises:
        ValueError: where the model cannot be exported so, with what torch.export says.
    """
    leaves, spec = pytree.tree_flatten((args, kwargs))
    marks = _marks(dynamic, args, kwargs, positional_names(model))
    names = {(tensor, axis): name for tensor, axes in marks.items() for axis, mark in axes.items()
             if (name := mark if isinstance(mark, str) else getattr(mark, "__name__", None))}
    # torch.export takes a size of 1 for one that is always 1.
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    larger = iter([_enlarged(tensor, marks.get(i, {})) for i, tensor in enumerate(tensors)])
    args, kwargs = pytree.tree_unflatten(
        [next(larger) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves], spec)
    numbers = iter(range(len(tensors)))
    shapes = pytree.tree_unflatten(
        [_for_export(marks.get(next(numbers), {})) if isinstance(leaf, torch.Tensor) else None for leaf in leaves],
        spec)
    by_position, by_name = shapes
    if by_name:
        positional = positional_names(model)
        shapes = dict(zip(positional, by_position, strict=False)) | by_name
    else:
        shapes = by_position
    try:
        exported = torch.export.export(model, args, kwargs, dynamic_shapes=shapes, strict=False)
    except Exception as error:
        raise ValueError(f"the model cannot be a program for several sizes: {_first_sentence(error)}") from error
    return exported, names


class Sizes:
    """The sizes of an exported program's inputs and of all tensors in it.

    Attributes:
        names: of the dimensions.
        own: the dimensions of the example with which it was exported.
        captures: how many are to be looked at.
        factors: sums that sizes of tensors are.
    """

    def __init__(self, exported: ExportedProgram, names: Mapping[tuple[int, int], str]) -> None:
        nodes = {node.name: node for node in exported.graph.nodes if node.op == "placeholder"}
        specs = exported.graph_signature.input_specs
        inputs = [nodes[spec.arg.name] for spec in specs
                  if spec.kind == InputKind.USER_INPUT and isinstance(spec.arg, TensorArgument)]
        self._replaced: dict[sympy.Symbol, sympy.Symbol] = {}  # what has one name is one dimension
        self._names: dict[sympy.Symbol, str] = {}
        self._name_sizes(inputs, names)
        self._shapes: list[list[Any]] = []  # per tensor among the arguments: integers and expressions
        self._orders: list[list[int]] = []  # axes, those of the largest strides first
        for node in inputs:
            example = node.meta["val"]
            self._shapes.append([self._expression(size) for size in example.shape])
            hints = [_hint(stride) for stride in example.stride()]
            self._orders.append(sorted(range(len(hints)), key=lambda axis: -hints[axis]))
        self.own: list[int] = []
        self._find_dimensions(inputs)
        self._symbols = list(self._names)
        self.names = list(self._names.values())
        self._bounds = [self._bounds_of(symbol, exported.range_constraints) for symbol in self._symbols]
        self._variables: dict[Any, sympy.Symbol] = {}
        self._dimensions = [f"dimension {name} {1 if low <= 2 else low}..{'any' if high is None else high}"
                            for name, (low, high) in zip(self.names, self._bounds, strict=True)]
        self._lines: list[str] = []
        self._requirements: list[str] = []
        self._guards = list(self._find_guards(inputs))
        self.factors = sorted(set(self._find_factors(exported)))
        self.captures = _MANY if self._lines else _FEW

    @property
    def variables(self) -> str:
        """Dimensions, variables and requirements, as lines of ``sizes.txt``."""
        return "\n".join(self._dimensions + self._lines + self._requirements) + "\n"

    def _find_guards(self, inputs: Sequence[Any]) -> Iterator[tuple[Any, bool]]:
        """What torch.export has found to hold while it traced, and whether the model's own code asked."""
        environments = {id(size.node.shape_env): size.node.shape_env for node in inputs
                        for size in node.meta["val"].shape if isinstance(size, torch.SymInt)}
        for environment in environments.values():
            for guard in environment.guards:
                place = getattr(guard.sloc, "framework_loc", None)
                in_torch = place is None or place.filename.startswith(_TORCH)
                expression = guard.expr.xreplace(environment.replacements).xreplace(self._replaced)
                for part in expression.args if isinstance(expression, sympy.And) else [expression]:
                    yield part, not in_torch

    def find_requirements(self, recorded: Sequence[Sequence[int]]) -> None:
        """Finds what has to hold of the sizes for the program to be the model, into `variables`.

        torch.export asks much of sizes that is of no consequence: whether a stride is that of a contiguous tensor,
        whether a size is 1. What the model's code asks decides its course. An equation that torch's own code asks for,
        such as that a size is a multiple of another, counts where no recording succeeds without it.

        Args:
            recorded: sizes for which the recordings were the same program.
        """
        tried = list(self._all_magnitudes())
        for guard, of_model in self._guards:
            if not isinstance(guard, tuple(_RELATIONS)) or not guard.free_symbols <= set(self._symbols):
                continue
            if isinstance(guard, sympy.Ne):
                # Sizes of 0 and 1 are looked at one by one.
                needed = of_model and not any(side in (0, 1) for side in guard.args)
            else:
                needed = not all(self._holds(guard, sizes) for sizes in tried) and (
                    of_model or (isinstance(guard, sympy.Eq)
                                 and all(self._holds(guard, sizes) for sizes in recorded)))
            if needed and self._holds(guard, self.own):
                self._require(guard)
        self._require_what_was_recorded(recorded)

    def _holds(self, guard: Any, sizes: Sequence[int]) -> bool:
        values = {symbol: sympy.Integer(size) for symbol, size in zip(self._symbols, sizes, strict=True)}
        try:
            return bool(guard.xreplace(values))
        except (TypeError, ZeroDivisionError):
            return False

    def _require(self, guard: Any) -> None:
        relation, swaps, more = _RELATIONS[type(guard)]
        sides = [guard.rhs, guard.lhs] if swaps else [guard.lhs, guard.rhs]
        sides[0] += more
        texts = [self._side(side) for side in sides]
        if None not in texts:
            self._add_requirement(texts[0], relation, texts[1])

    def _add_requirement(self, left: str, relation: str, right: str) -> None:
        line = f"require {left} {relation} {right}"
        if line not in self._requirements:
            self._requirements.append(line)

    def _require_what_was_recorded(self, recorded: Sequence[Sequence[int]]) -> None:
        """Requires of a minimum or maximum the side that it was in all recordings; of a quotient its only value.

        The recordings do not tell what depends on it from what depends on that side, or on no size.
        """
        seen = [self._values(sizes) for sizes in recorded]
        for (kind, a, b), made in list(self._variables.items()):
            if kind == "floor":
                values = {int(of[made]) for of in seen}
                if len(values) == 1:
                    self._add_requirement(str(made), "=", str(*values))
                continue
            signs = [int((a - b).xreplace(of)) for of in seen]
            first, second = self._side(a), self._side(b)
            assert first is not None and second is not None  # a variable has been made of them
            if all(sign <= 0 for sign in signs):
                self._add_requirement(first, "<=", second)
            elif all(sign >= 0 for sign in signs):
                self._add_requirement(second, "<=", first)

    def _values(self, sizes: Sequence[int]) -> dict[sympy.Symbol, sympy.Integer]:
        """Dimensions and variables for these sizes."""
        known = {symbol: sympy.Integer(size) for symbol, size in zip(self._symbols, sizes, strict=True)}
        for (kind, a, b), made in self._variables.items():
            left, right = int(a.xreplace(known)), int(b.xreplace(known))
            known[made] = sympy.Integer(left // right if kind == "floor" else {"min": min, "max": max}[kind](left, right))
        return known

    def _expression(self, size: Any) -> Any:
        return size.node.expr.xreplace(self._replaced) if isinstance(size, torch.SymInt) else int(size)

    def _name_sizes(self, inputs: Sequence[Any], names: Mapping[tuple[int, int], str]) -> None:
        first: dict[str, sympy.Symbol] = {}
        for (number, axis), name in names.items():
            size = inputs[number].meta["val"].shape[axis]
            expression = self._expression(size)
            if isinstance(expression, int) or expression.is_number:
                raise ValueError(f"{name} cannot be dynamic: the model needs it to be {size}")
            if isinstance(expression, sympy.Symbol):
                same = first.setdefault(name, expression)
                if same != expression:
                    self._replaced[expression] = same
                self._names[same] = name

    def _find_dimensions(self, inputs: Sequence[Any]) -> None:
        own: dict[sympy.Symbol, int] = {}
        for number, node in enumerate(inputs):
            for axis, size in enumerate(node.meta["val"].shape):
                expression = self._shapes[number][axis]
                symbols = sorted(getattr(expression, "free_symbols", ()), key=str)
                for symbol in symbols:
                    if symbol not in self._names:
                        self._names[symbol] = self._unique(f"{node.name}.{axis}")
                if len(symbols) != 1:
                    continue
                found = sympy.solve(expression - _hint(size), symbols[0])
                if len(found) == 1 and found[0].is_integer:
                    own[symbols[0]] = int(found[0])
        for symbol, name in self._names.items():
            if symbol not in own:
                raise ValueError(f"the model cannot be a program for several sizes: no input tells {name} alone")
            self.own.append(own[symbol])

    def _bounds_of(self, symbol: Any, constraints: Mapping[Any, Any]) -> tuple[int, int | None]:
        bounds = [_bounds(constraints.get(of))
                  for of in [symbol, *(old for old, new in self._replaced.items() if new == symbol)]]
        highs = [high for _, high in bounds if high is not None]
        return max(low for low, _ in bounds), min(highs) if highs else None

    def _unique(self, name: str) -> str:
        taken = set(self._names.values())
        while name in taken:
            name += "_"
        return name

    def _find_factors(self, exported: ExportedProgram) -> Iterator[str]:
        for node in exported.graph.nodes:
            value = node.meta.get("val")
            for tensor in value if isinstance(value, (list, tuple)) else [value]:
                sizes = tensor.shape if isinstance(tensor, torch.Tensor) else [tensor]
                for size in sizes:
                    if isinstance(size, torch.SymInt):
                        text = self._text(self._expression(size))
                        if text is not None:
                            yield text

    def _side(self, expression: Any) -> str | None:
        """An integer, or a sum of products."""
        return str(expression) if expression.is_Integer else self._text(expression)

    def _text(self, expression: Any) -> str | None:
        """The expression as a sum of products; None where it is none."""
        try:
            expanded = sympy.expand(self._plain(expression))
            symbols = sorted(expanded.free_symbols, key=str)
            if not symbols:
                return None
            terms = sympy.Poly(expanded, *symbols).terms()
        except (sympy.PolynomialError, NotImplementedError):
            return None
        text = ""
        for powers, factor in terms:
            if factor.q != 1:
                return None
            named = [self._name(symbol) for symbol, power in zip(symbols, powers, strict=True) for _ in range(power)]
            text += ("" if factor < 0 or not text else "+") + "*".join([str(factor), *named])
        return text

    def _name(self, symbol: Any) -> str:
        return self._names.get(symbol, str(symbol))

    def _plain(self, expression: Any) -> Any:
        """The expression with a variable for each part that is neither sum nor product."""
        if not expression.args:
            if not (expression.is_integer and (expression.is_number or expression in self._names)):
                raise NotImplementedError
            return expression
        parts = [self._plain(part) for part in expression.args]
        if isinstance(expression, (sympy.Add, sympy.Mul)):
            return expression.func(*parts)
        if isinstance(expression, sympy.Pow) and expression.exp.is_Integer and expression.exp > 0:
            return parts[0] ** parts[1]
        if isinstance(expression, functions.Identity):
            return parts[0]
        if isinstance(expression, (functions.FloorDiv, functions.CleanDiv)):
            return self._variable("floor", *parts)
        if isinstance(expression, functions.CeilDiv):
            return -self._variable("floor", -parts[0], parts[1])
        if isinstance(expression, (functions.Mod, functions.PythonMod)):
            return parts[0] - parts[1] * self._variable("floor", *parts)
        if isinstance(expression, (functions.Max, functions.Min, sympy.Max, sympy.Min)):
            kind = "max" if isinstance(expression, (functions.Max, sympy.Max)) else "min"
            made = parts[0]
            for part in parts[1:]:
                made = self._variable(kind, made, part)
            return made
        raise NotImplementedError

    def _variable(self, kind: str, a: Any, b: Any) -> Any:
        known = self._variables.get((kind, a, b))
        if known is not None:
            return known
        texts = [self._side(a), self._side(b)]
        if None in texts:
            raise NotImplementedError
        made = sympy.Symbol(f"v{len(self._variables)}", integer=True)
        self._names[made] = str(made)
        self._variables[kind, a, b] = made
        self._lines.append(f"let {made} = {kind}({texts[0]},{texts[1]})")
        return made

    def shapes(self, sizes: Sequence[int]) -> list[list[int]]:
        """What sizes the tensors among the arguments have for these dimensions."""
        values = dict(zip(self._symbols, sizes, strict=True))
        return [[int(size.subs(values)) if isinstance(size, sympy.Expr) else size for size in shape]
                for shape in self._shapes]

    def tensors(self, examples: Sequence[torch.Tensor], sizes: Sequence[int]) -> list[torch.Tensor]:
        """Tensors without values on hetero for these dimensions, whose axes lie in memory as those of the examples."""
        made = []
        for example, shape, order in zip(examples, self.shapes(sizes), self._orders, strict=True):
            flat = torch.empty([shape[axis] for axis in order], dtype=example.dtype, device="hetero")
            back = [order.index(axis) for axis in range(len(order))]
            made.append(flat.permute(back))
        return made

    def samples(self, recorded: Sequence[Sequence[int]]) -> Iterator[list[int]]:
        """Sizes to capture the model for, besides its own; some may be impossible for it.

        At first small ones. Then multiples of what all sizes that were possible are multiples of, and last those beyond
        the example's, for a model that needs large ones.

        Args:
            recorded: those that were possible, its own the first; whoever takes the samples adds to them.
        """
        for beyond in (False, True):
            looked_at: list[list[int]] = []
            for multiple in _MULTIPLES:
                steps = [math.gcd(multiple, *of_one) for of_one in zip(*recorded, strict=True)]
                if steps in looked_at:
                    continue
                looked_at.append(steps)
                for factors in itertools.islice(self._factors(), _SAMPLES if multiple > 1 else None):
                    yield self._sample(factors, steps, beyond, recorded if len(recorded) < _DIFFERENT else ())

    def _factors(self) -> Iterator[Sequence[int]]:
        count = len(self.names)
        for number in range(max(len(_SIZES) // count, _SAMPLES)):
            # Where all were taken, they are taken again in other groups.
            begin = number * count + number * count // len(_SIZES)
            yield [_SIZES[(begin + d) % len(_SIZES)] for d in range(count)]

    def _sample(self, factors: Sequence[int], steps: Sequence[int], beyond: bool,
                others: Sequence[Sequence[int]]) -> list[int]:
        """Multiples of the steps, other ones than those of others, of about as many positions as a sample may have."""
        most = max(_POSITIONS, _TIMES_EXAMPLE * self._positions(self.own), _TIMES_MULTIPLES * self._positions(steps))
        while True:
            sizes = []
            for d, (low, _) in enumerate(self._bounds):
                base = self.own[d] if beyond else -(-(low - 2) // steps[d]) * steps[d]
                sizes.append(self._within(d, base + steps[d] * factors[d], steps[d], factors[d]))
            fewer = [max(factor * 3 // 4, 2) for factor in factors]  # halved to 1, a size would be another program
            if fewer == list(factors) or self._positions(sizes) <= most:
                break
            factors = fewer
        for d, (size, (_, high)) in enumerate(zip(sizes, self._bounds, strict=True)):
            taken = {of[d] for of in others}
            while size in taken and (high is None or size + steps[d] <= high):
                size += steps[d]
            sizes[d] = size
        return sizes

    def _within(self, d: int, size: int, step: int, factor: int) -> int:
        """The size, or another multiple of the step where that is more than the dimension may be."""
        low, high = self._bounds[d]
        if high is None or size <= high:
            return max(size, low)
        first = -(-max(low, 2) // step) * step
        return first + step * (factor % max((high - first) // step + 1, 1))

    def _positions(self, sizes: Sequence[int]) -> int:
        """The largest product of a tensor's dynamic sizes."""
        values = dict(zip(self._symbols, sizes, strict=True))
        return max(math.prod(int(size.subs(values)) for size in shape if isinstance(size, sympy.Expr))
                   for shape in self._shapes)

    def _all_magnitudes(self) -> Iterator[list[int]]:
        for magnitude in _MAGNITUDES:
            for factors in itertools.islice(self._factors(), _SAMPLES):
                yield [self._within(d, factor * magnitude, 1, factor) for d, factor in enumerate(factors)]

    def least(self) -> Iterator[list[int] | None]:
        """For each dimension that may be 1 the sizes with it; None for the others."""
        for d, (low, _) in enumerate(self._bounds):
            yield [1 if i == d else size for i, size in enumerate(self.own)] if low <= 2 else None


def _hint(size: Any) -> int:
    return int(size.node.hint) if isinstance(size, torch.SymInt) else int(size)


def _bounds(constraint: Any) -> tuple[int, int | None]:
    if constraint is None:
        return 2, None
    high = constraint.upper
    return int(constraint.lower), None if high in (int_oo, sympy.oo) else int(high)


def _enlarged(tensor: torch.Tensor, marks: Mapping[int, Any]) -> torch.Tensor:
    """A tensor of the same kind whose dynamic sizes are not 1."""
    sizes = [max(size, 2) if axis in marks else size for axis, size in enumerate(tensor.shape)]
    return tensor if sizes == list(tensor.shape) else tensor.new_zeros(sizes)


def _for_export(axes: Mapping[int, Any]) -> dict[int, Any] | None:
    """torch.export finds the bounds of what has a name only."""
    return {axis: Dim.AUTO if isinstance(mark, str) else mark for axis, mark in axes.items()} or None


def _marks(
    dynamic: Any, args: tuple[Any, ...], kwargs: dict[str, Any], positional: Sequence[str]
) -> dict[int, dict[int, Any]]:
    """By the number of a tensor among the arguments: what torch.export shall know of its axes."""
    leaves = pytree.tree_leaves((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if dynamic is True:
        return {i: dict.fromkeys(range(tensor.dim()), Dim.AUTO) for i, tensor in enumerate(tensors)}
    by_name = {name: value for name, value in zip(positional, args, strict=False)} | dict(kwargs)
    if isinstance(dynamic, Mapping):
        unknown = [name for name in dynamic if name not in by_name]
        if unknown:
            raise ValueError(f"dynamic names {', '.join(map(repr, unknown))}, and the arguments are "
                             f"{', '.join(map(repr, by_name))}")
        parts = [(by_name[name], spec) for name, spec in dynamic.items()]
    elif isinstance(dynamic, (list, tuple)):
        if len(dynamic) != len(args):
            raise ValueError(f"dynamic has {len(dynamic)} entries, and there are {len(args)} positional arguments")
        parts = list(zip(args, dynamic, strict=True))
    else:
        raise ValueError("dynamic is True, or says of arguments which of their sizes are: "
                         f"{{'x': {{0: 'batch'}}}}; not {dynamic!r}")
    number = {id(tensor): i for i, tensor in enumerate(tensors)}
    marks: dict[int, dict[int, Any]] = {}
    for value, spec in parts:
        _mark(value, spec, number, marks)
    return marks


def _mark(value: Any, spec: Any, number: Mapping[int, int], marks: dict[int, dict[int, Any]]) -> None:
    if spec is None:
        return
    if isinstance(value, torch.Tensor):
        axes = spec.items() if isinstance(spec, Mapping) else enumerate(spec)
        for axis, mark in axes:
            if not -value.dim() <= axis < value.dim():
                raise ValueError(f"dynamic names dimension {axis} of a tensor that has {value.dim()}")
            if mark is None or isinstance(mark, int):
                continue
            if isinstance(mark, str):
                if not re.fullmatch("[A-Za-z_][A-Za-z_0-9]*", mark):
                    raise ValueError(f"{mark!r} cannot be the name of a dimension: letters, digits and _ can")
            marks.setdefault(number[id(value)], {})[axis % value.dim()] = mark
        return
    parts = value.items() if isinstance(value, Mapping) else enumerate(value)
    for key, part in parts:
        if isinstance(spec, Mapping) and key not in spec:
            continue
        _mark(part, spec[key], number, marks)


def _first_sentence(error: Exception) -> str:
    lines = [line.strip(" -") for line in str(error).splitlines() if line.strip()]
    # torch.export begins with where it was, and says in the next line what.
    return " ".join(lines[:2])[:400] if lines else type(error).__name__
