"""How the arguments and the results of a saved program are nested: in tuples, lists and dictionaries.

In a file that is JSON: null where a leaf is, ``[...]`` for a list, ``{"tuple": [...]}`` for a tuple and
``{"dict": [[key, ...], ...]}`` for a dictionary, in the order of its keys. What reads it makes these and nothing else,
whatever the file says. A class that is one of them in another form is taken for it: a named tuple for a tuple, a model
output of transformers for a dictionary. `_C.Structure` takes such things apart and builds them.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import Any

from torch.utils import _pytree as pytree

__all__ = ["check", "count_leaves", "describe", "show"]

# A value of JSON, as above.
Structure = Any


def describe(spec: pytree.TreeSpec) -> Structure:
    """The structure of what pytree has flattened.

    Raises:
        ValueError: for a class that is no tuple, list or dictionary.
    """
    if spec.is_leaf():
        return None
    children = [describe(child) for child in spec.children()]
    if spec.type in (tuple, collections.namedtuple):
        return {"tuple": children}
    if spec.type in (list, collections.deque):
        return children
    if isinstance(spec.type, type) and issubclass(spec.type, Mapping):
        keys = spec.context[1] if spec.type is collections.defaultdict else spec.context
        if isinstance(keys, list) and len(keys) == len(children):
            for key in keys:
                if type(key) not in (str, int, bool):
                    raise ValueError(f"{key!r} is a key of a dictionary: a program takes and gives dictionaries whose "
                                     "keys are strings and integers")
            return {"dict": [list(pair) for pair in zip(keys, children, strict=True)]}
    raise ValueError(f"{getattr(spec.type, '__name__', spec.type)} holds arguments or results: a program takes and "
                     "gives tuples, lists and dictionaries")


def check(structure: Structure) -> None:
    """Looks at one that was read from a file.

    Raises:
        ValueError: where it is none.
    """
    for child in _children(structure):
        check(child)


def count_leaves(structure: Structure) -> int:
    """How many leaves there are."""
    return 1 if structure is None else sum(count_leaves(child) for child in _children(structure))


def show(structure: Structure) -> str:
    """As Python writes it, with a star for a leaf."""
    if structure is None:
        return "*"
    parts = [show(child) for child in _children(structure)]
    if isinstance(structure, list):
        return f"[{', '.join(parts)}]"
    if "tuple" in structure:
        return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"
    pairs = zip(structure["dict"], parts, strict=True)
    return f"{{{', '.join(f'{key!r}: {part}' for (key, _), part in pairs)}}}"


def _children(structure: Structure) -> list[Structure]:
    if structure is None:
        return []
    if isinstance(structure, list):
        return structure
    if isinstance(structure, dict) and len(structure) == 1:
        kind, children = next(iter(structure.items()))
        if kind == "tuple" and isinstance(children, list):
            return children
        if kind == "dict" and isinstance(children, list) and all(map(_is_item, children)):
            if len({key for key, _ in children}) == len(children):
                return [child for _, child in children]
    raise ValueError("arguments or results are nested in what is no tuple, list or dictionary")


def _is_item(pair: Any) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and type(pair[0]) in (str, int, bool)
