"""Calls every composed operator of ATen with arguments made from its schema, on the CPU and on hetero.

    python every_operator.py [FIRST]    prints a line for each operator, from the FIRST-th on

Composed operators have a default kernel instead of one of the CPU, and nobody asks the device before it reads bytes or
looks for an entry of a dispatch stub. The first of `RECIPES` that the CPU takes is tried on hetero.
`test_every_operator.py` reads the lines; this process may die of an operator.
"""

from __future__ import annotations

import signal
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map

COMPOSED = ("CompositeExplicitAutograd", "CompositeImplicitAutograd", "CompositeExplicitAutogradNonFunctional")
SECONDS = 20  # for one operator
RECIPES: tuple[Callable[[], torch.Tensor], ...] = (
    lambda: torch.rand(4, 4),
    lambda: torch.rand(4),
    lambda: torch.rand(2, 3, 4, 4),
    lambda: torch.arange(4),
    lambda: torch.rand(4, 4) < 0.5,
)


def argument(schema: Any, recipe: Callable[[], torch.Tensor]) -> Any:
    """A plausible value of a schema's argument. Raises LookupError if there is none."""
    kind = str(schema.type)
    if schema.has_default_value() and kind != "Tensor":
        return schema.default_value
    if kind.startswith("Optional") or kind == "Device":
        return None
    size = "size" in schema.name or "shape" in schema.name
    values: dict[str, Any] = {
        "Tensor": recipe, "List[Tensor]": lambda: [recipe(), recipe()], "int": lambda: 1, "float": lambda: 0.5,
        "number": lambda: 0.5, "bool": lambda: False, "str": lambda: "",
        "List[int]": lambda: [4, 4] if size else [1] * (schema.N or 1),
    }  # fmt: skip
    return values[kind]()


def arguments(operator: Any, recipe: Callable[[], torch.Tensor]) -> tuple[list[Any], dict[str, Any]]:
    torch.manual_seed(0)
    values = [argument(schema, recipe) for schema in operator._schema.arguments]
    pairs = list(zip(operator._schema.arguments, values, strict=True))
    return (
        [value for schema, value in pairs if not schema.kwarg_only],
        {schema.name: value for schema, value in pairs if schema.kwarg_only},
    )


def on_hetero(tree: Any) -> Any:
    return tree_map(lambda leaf: leaf.to("hetero") if isinstance(leaf, torch.Tensor) else leaf, tree)


def outcome(operator: Any, given: list[Any], named: dict[str, Any]) -> str:
    try:
        result = operator(*given, **named)
        torch.hetero.flush()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return f"gives {type(result).__name__}"


def composed() -> list[str]:
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    names = sorted(name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::"))
    return [name for name in names if any(has(name, key) for key in COMPOSED) and not has(name, "CPU")]


def main(first: int) -> None:
    """Lines: `number name cpu` before a call on the CPU, `... hetero` before one on hetero, `... = cpu | hetero`."""
    for number, name in list(enumerate(composed()))[first:]:
        base, _, overload = name.removeprefix("aten::").partition(".")
        try:
            operator = getattr(getattr(torch.ops.aten, base), overload or "default")
        except (AttributeError, RuntimeError):
            continue
        signal.alarm(SECONDS)
        for recipe in RECIPES:
            try:
                given, named = arguments(operator, recipe)
            except (LookupError, KeyError):
                break
            print(number, name, "cpu", flush=True)
            there = outcome(operator, given, named)
            if not there.startswith("gives") and recipe is not RECIPES[-1]:
                continue
            given, named = on_hetero(arguments(operator, recipe))
            for schema in operator._schema.arguments:
                if schema.kwarg_only and str(schema.type) == "Optional[Device]":
                    named[schema.name] = torch.device("hetero")
            print(number, name, "hetero", flush=True)
            print(number, name, "=", there, "|", outcome(operator, given, named), flush=True)
            break
        signal.alarm(0)
    print("end", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
