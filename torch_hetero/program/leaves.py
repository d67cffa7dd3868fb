"""What a program takes and gives beside tensors: numbers, strings and None, by a name and in plain containers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_hetero.program.signature import positional_names

__all__ = ["argument_names", "check_same_leaves", "is_plain", "name_of", "plain", "plain_leaf", "unique"]


def plain(results: Any) -> Any:
    """The results without classes that only a library knows: a model output of transformers becomes a dictionary."""
    if isinstance(results, Mapping):
        return {_plain_key(key): plain(value) for key, value in results.items()}
    if isinstance(results, (list, tuple)):
        values = [plain(value) for value in results]
        return values if isinstance(results, list) else tuple(values)
    return results


def _plain_key(key: Any) -> Any:
    """The equal string or integer for one of a class of its own, such as an enumeration's; other keys as they are."""
    if isinstance(key, bool):
        return key
    if isinstance(key, int):
        return int(key)
    return str.__str__(key) if isinstance(key, str) else key


def plain_leaf(leaf: Any, what: str) -> Any:
    """The leaf. Raises a ValueError for what a program neither takes nor gives."""
    if is_plain(leaf):
        return leaf
    kind = type(leaf).__name__
    way_out = "; use_cache=False leaves it out" if kind.endswith("Cache") else ""
    raise ValueError(f"{what} is a {kind}: a program takes and gives tensors, numbers, strings and None{way_out}")


def is_plain(leaf: Any) -> bool:
    """Whether a file can hold the value."""
    return leaf is None or isinstance(leaf, (bool, int, float, str))


def check_same_leaves(results: Any, others: Any) -> None:
    """Raises where something that is no tensor depends on sizes: a program returns it as it was."""
    for leaf, other in zip(pytree.tree_leaves(results), pytree.tree_leaves(others), strict=True):
        if not isinstance(leaf, torch.Tensor) and leaf != other:
            raise ValueError(f"the model returns {leaf!r} for one size and {other!r} for another: a program returns "
                             "tensors, and numbers that are always the same")


def name_of(path: Sequence[Any]) -> str:
    """"hidden.0" for a key path of pytree."""
    parts = [str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", "")))) for key in path]
    return ".".join(part for part in parts if part)


def unique(name: str, taken: Sequence[str]) -> str:
    """The name, with a number behind it where it is taken."""
    number, result = 1, name
    while result in taken:
        number += 1
        result = f"{name}.{number}"
    return result


def argument_names(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    """A name for each leaf of the arguments: those of the model's signature."""
    positional = positional_names(model)
    names: list[str] = []
    for path, _ in pytree.tree_flatten_with_path((args, kwargs))[0]:
        if path[0].idx == 0:
            index = path[1].idx
            head = positional[index] if index < len(positional) else f"input{index}"
        else:
            head = str(path[1].key)
        rest = name_of(path[2:])
        names.append(unique(f"{head}.{rest}" if rest else head, names))
    return names
