"""What AOTAutograd's graph of a forward and a backward pass is freed of, before it is divided into two.

Such a graph writes nothing in place, so a copy of a value is the value. Operators in place, such as ``ReLU6(inplace)``,
save a copy of what they overwrite, and AOTAutograd keeps it.
"""

from __future__ import annotations

from torch import fx
from torch._ops import OpOverload
from torch.ops import aten

__all__ = ["simplify"]


def simplify(joint: fx.GraphModule) -> None:
    """Makes the graph save less for its backward pass; every value stays what it is, bit for bit."""
    returned = {_base(result) for result in joint.graph.output_node().all_input_nodes}
    for node in list(joint.graph.nodes):
        if node.target is aten.clone.default:
            _drop_copy(node, returned)
        elif node.target is aten.hardtanh_backward.default:
            _read_result(node)
    joint.graph.lint()
    joint.recompile()


def _base(node: fx.Node) -> fx.Node:
    """What the node is a view of, or itself."""
    while isinstance(node.target, OpOverload) and any(result.alias_info for result in node.target._schema.returns):
        node = node.all_input_nodes[0]
    return node


def _drop_copy(copy: fx.Node, returned: set[fx.Node]) -> None:
    (source,) = copy.all_input_nodes
    if copy.meta["val"].stride() != source.meta["val"].stride():
        return
    # Arguments and results may be written before the backward pass.
    if copy in returned or _base(source) in returned or _base(source).op == "placeholder":
        return
    copy.replace_all_uses_with(source)
    copy.graph.erase_node(copy)


def _read_result(gradient: fx.Node) -> None:
    # The gradient passes where the input was between the limits, and there alone the result is.
    _, source, *limits = gradient.args
    for user in source.users:
        if user.target is aten.hardtanh.default and [*user.args[1:]] == limits:
            gradient.replace_input_with(source, user)
            return
