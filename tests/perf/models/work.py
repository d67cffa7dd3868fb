"""What a model has to compute, and the least time that takes: the floor of its rows.

1. The model runs once in eager, and a mode counts each product, convolution and attention: its multiply-adds, and the
   bytes of its operands and results.
2. Probes (a product, a convolution, a pass over memory, a pass over a cache) run by every subject. The best rates are
   the processor's.
3. An operator takes its multiply-adds at the rate of its kind, or its bytes, whichever is more. Weights come from
   memory once, activations from a cache.
4. One more pass goes over the activations between products, convolutions and attention: that is what norms, activation
   functions and residuals cost at least.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

GATHERS = ("embedding", "_embedding_bag", "_embedding_bag_forward_only", "index_select", "index_add", "gather")
# Kind, floating-point operations, bytes of activations, bytes of weights that no operator before it has read.
Operator = tuple[str, float, float, float]


def bytes_of(values: object) -> dict[int, int]:
    """The bytes of each tensor in nested values, by its address."""
    return {leaf.data_ptr(): leaf.nbytes for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)}


class Counter(TorchDispatchMode):
    """Counts under the dispatcher.

    Attributes:
        operators: what was called, of the kinds "product", "convolution" and "gather".
        between: bytes of the activations that products and convolutions read and write.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.operators: list[Operator] = []
        self.between = 0
        self._weights = {tensor.data_ptr() for tensor in model.state_dict().values()}
        self._read: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        packet = func._overloadpacket
        touched = {**bytes_of((args, kwargs)), **bytes_of(result)}
        if packet in flop_registry:
            kind = "convolution" if "conv" in packet.__name__ else "product"
            operations = float(flop_registry[packet](*args, **kwargs, out_val=result))
            activations = sum(size for address, size in touched.items() if address not in self._weights)
            weights = {address: size for address, size in touched.items() if address in self._weights - self._read}
            self._read |= set(weights)
            self.operators.append((kind, operations, float(activations), float(sum(weights.values()))))
            self.between += activations
        elif packet.__name__ in GATHERS:
            # Rows that are looked up are read and written; the table is not read as a whole.
            self.operators.append(("gather", 0.0, 2.0 * sum(bytes_of(result).values()), 0.0))
        return result


@contextlib.contextmanager
def _without_onednn() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a setting for other processors
        with torch.backends.mkldnn.flags(enabled=False):
            yield


def count(model: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> dict[str, Any]:
    """The model's operators, equal ones together, the bytes between them, and those of arguments and results."""
    # Without oneDNN a recurrent network is the products that it consists of.
    with torch.no_grad(), _without_onednn(), Counter(model) as counter:
        results = model(*inputs)
    times: dict[Operator, int] = {}
    for operator in counter.operators:
        times[operator] = times.get(operator, 0) + 1
    return {
        "operators": [[*operator, number] for operator, number in times.items()],
        "between": counter.between,
        "passed": sum(bytes_of((list(inputs), results)).values()),
    }


def operations(work: Mapping[str, Any]) -> float:
    """Floating-point operations of a call; a multiply-add is two."""
    return sum(float(amount) * number for _, amount, _, _, number in work["operators"])


def floor_us(work: Mapping[str, Any], rates: Mapping[str, float]) -> float:
    """Microseconds that the work takes at least; rates are operations a second, and bytes of "memory" and "cache"."""
    seconds = work["between"] / rates["cache"]
    for kind, amount, activations, weights, number in work["operators"]:
        moved = activations / rates["cache"] + weights / rates["memory"]
        seconds += number * max(amount / rates[kind] if amount else 0.0, moved)
    return seconds * 1e6
