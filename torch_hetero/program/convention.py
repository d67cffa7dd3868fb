"""How Python calls a program: what stands in the metadata of its file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from torch_hetero import _C
from torch_hetero.program import structure
from torch_hetero.program.leaves import is_plain

__all__ = ["Convention", "metadata_of"]

_INPUTS = "python.inputs"
_OUTPUTS = "python.outputs"
_ARGUMENTS = "python.arguments"
_RESULTS = "python.results"
_UPDATES = "python.updates"
_PARAMETERS = "python.parameters"


def metadata_of(arguments: Any, given: Sequence[Any], results: Any, made: Sequence[Any], updates: Sequence[list[int]],
                parameters: Sequence[str]) -> dict[str, str]:
    """What `Convention` reads.

    Args:
        arguments: The structure of the arguments.
        given: What each leaf of them is, as `Convention.given` returns it.
        results: The structure of the results.
        made: What each leaf of them is, as `Convention.results` returns it.
        updates: As `Convention.updates` returns them.
        parameters: The names of the model's parameters.
    """
    said = {_INPUTS: given, _OUTPUTS: made, _ARGUMENTS: arguments, _RESULTS: results, _PARAMETERS: parameters,
            _UPDATES: updates}
    return {key: json.dumps(value) for key, value in said.items()}


class Convention:
    """How Python calls a program, by the metadata of its file, which may say anything."""

    def __init__(self, model: _C.Model) -> None:
        self._metadata = model.metadata
        if _ARGUMENTS not in self._metadata:
            raise ValueError("the file was not saved by torch.hetero.compile of this version, so Python does not know "
                             "how to call it; GraphExecutor in C++ does")
        self._inputs, self._outputs = model.inputs, model.outputs

    def arguments(self) -> tuple[Any, int, list[str]]:
        """Their structure, how many are given by position, and the names of the others."""
        arguments = self._nested(_ARGUMENTS)
        pair = arguments.get("tuple", []) if isinstance(arguments, dict) else []
        if [list(part) for part in pair if isinstance(part, dict)] != [["tuple"], ["dict"]]:
            raise _damaged(_ARGUMENTS)
        keywords = [name for name, _ in pair[1]["dict"]]
        if not all(isinstance(name, str) for name in keywords):
            raise _damaged(_ARGUMENTS)
        return arguments, len(pair[0]["tuple"]), keywords

    def given(self, arguments: Any) -> list[Any]:
        """What each leaf of the arguments is: ``{"tensor": name}``, or the value that it has."""
        leaves = self._leaves(_INPUTS, arguments)
        if [leaf["tensor"] for leaf in leaves if isinstance(leaf, dict)] != [name for name, _ in self._inputs]:
            raise _damaged(_INPUTS)
        return leaves

    def results(self) -> tuple[Any, list[Any]]:
        """Their structure, and what each leaf is: ``{"tensor": index of an output}``, or its value."""
        results = self._nested(_RESULTS)
        leaves = self._leaves(_OUTPUTS, results)
        if not all(self._is_output(leaf["tensor"]) for leaf in leaves if isinstance(leaf, dict)):
            raise _damaged(_OUTPUTS)
        return results, leaves

    def updates(self) -> list[list[int]]:
        """Inputs that are updated in place, by index, and the outputs that they become."""
        updates = self._read(_UPDATES)
        for pair in updates if isinstance(updates, list) else [None]:
            known = isinstance(pair, list) and len(pair) == 2 and type(pair[0]) is int and self._is_output(pair[1])
            if not known or not 0 <= pair[0] < len(self._inputs):
                raise _damaged(_UPDATES)
            if self._inputs[pair[0]][1] != self._outputs[pair[1]][1]:
                raise _damaged(_UPDATES)
        return updates

    def parameters(self) -> list[str]:
        """The names of the model's parameters, in their order; none where nobody knows them."""
        names = self._read(_PARAMETERS) if _PARAMETERS in self._metadata else []
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise _damaged(_PARAMETERS)
        return names

    def _is_output(self, index: Any) -> bool:
        return type(index) is int and 0 <= index < len(self._outputs)

    def _nested(self, key: str) -> Any:
        nested = self._read(key)
        try:
            structure.check(nested)
        except (ValueError, RecursionError):
            raise _damaged(key) from None
        return nested

    def _leaves(self, key: str, nested: Any) -> list[Any]:
        leaves = self._read(key)
        if not isinstance(leaves, list) or len(leaves) != structure.count_leaves(nested):
            raise _damaged(key)
        for leaf in leaves:
            if not (isinstance(leaf, dict) and list(leaf) == ["tensor"]) and not is_plain(leaf):
                raise _damaged(key)
        return leaves

    def _read(self, key: str) -> Any:
        try:
            return json.loads(self._metadata[key])
        except (KeyError, ValueError, RecursionError):
            raise _damaged(key) from None


def _damaged(key: str) -> ValueError:
    return ValueError(f"the file is damaged: {key} in its metadata is not what torch.hetero.compile writes")
