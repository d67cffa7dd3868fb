"""Where operators run, as far as the program says it: blocks, modules and rules by name."""

from __future__ import annotations

import difflib
import fnmatch
import threading
import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._contextlib import _DecoratorContextManager
from torch.utils._pytree import tree_leaves

from torch_hetero import _C


class placement(_DecoratorContextManager):  # noqa: N801
    """Forces where operators recorded by this thread run; a context manager and a decorator.

    A generator function that is decorated is placed while it runs, as ``torch.no_grad`` does it.

    Args:
        where: ``"cpu"``, ``"accelerator"`` (what it cannot run stays on the CPU), or ``"auto"``: as outside of all
            blocks, where rules and ``config.placement`` hold, and the planner decides what these leave open. Of
            several accelerators, ``"accelerator:1"`` is the second; ``"sim:1"`` too, where they are simulated.

    Raises:
        ValueError: for any other word.
    """

    def __init__(self, where: str) -> None:
        if where not in ("auto", "cpu", "accelerator"):
            if not isinstance(where, str) or ":" not in where:
                raise ValueError(f"placement takes 'auto', 'cpu' or 'accelerator', not {where!r}")
            _C.check_placement(where)
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
