"""What AOTAutograd's graph of a forward and a backward pass is freed of, before it is divided into two.

Such a graph writes nothing but arguments, behind all that reads them, so a copy of another value is the value. Operators
in place, such as ``ReLU6(inplace)``, save a copy of what they overwrite, and AOTAutograd keeps it.
"""

from __future__ import annotations

import torch
from torch import fx
from torch.multiprocessing.reductions import StorageWeakRef
from torch.ops import aten

__all__ = ["depends_on_strides", "simplify"]

# They see memory and not numbers.
_BY_STRIDES = (aten.as_strided.default, aten.as_strided_scatter.default, aten.view.dtype)
_LIMITS = (-1, 1)  # of a hardtanh that names none


def depends_on_strides(joint: fx.GraphModule) -> bool:
    """Says whether what is saved for the backward pass must have the strides that it had in the forward pass."""
    return any(node.target in _BY_STRIDES for node in joint.graph.nodes)


def simplify(joint: fx.GraphModule) -> None:
    """Makes the graph save less for its backward pass; every value stays what it is, bit for bit."""
    # Arguments and results may be written before the backward pass; what has no storage is not looked at.
    others = joint.graph.output_node().all_input_nodes + joint.graph.find_nodes(op="placeholder")
    written = {None, *map(_storage, others)}
    for node in list(joint.graph.nodes):
        if node.target is aten.clone.default:
            _drop_copy(node, written)
        elif node.target is aten.hardtanh_backward.default:
            _read_result(node, written)
    joint.graph.lint()
    joint.recompile()


def _storage(node: fx.Node) -> StorageWeakRef | None:
    value = node.meta.get("val")
    has_storage = isinstance(value, torch.Tensor) and value.layout == torch.strided
    return StorageWeakRef(value.untyped_storage()) if has_storage else None


def _drop_copy(copy: fx.Node, written: set[StorageWeakRef | None]) -> None:
    (source,) = copy.all_input_nodes
    if _storage(copy) in written or _storage(source) in written:
        return
    if copy.meta["val"].stride() != source.meta["val"].stride():
        return
    copy.replace_all_uses_with(source)
    copy.graph.erase_node(copy)


def _read_result(gradient: fx.Node, written: set[StorageWeakRef | None]) -> None:
    # The gradient passes where the input was between the limits, and there alone the result is. Results of smaller
    # types are limited to numbers of these types, and gradients are not.
    if gradient.meta["val"].dtype not in (torch.float32, torch.float64):
        return
    outer, source, *limits = gradient.args
    for user in source.users:
        if user.target is not aten.hardtanh.default or not user < gradient or _storage(user) in written:
            continue
        if [*user.args[1:], *_LIMITS[len(user.args) - 1 :]] == limits:
            gradient.args = (outer, user, *limits)
            return
