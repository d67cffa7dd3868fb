"""The handle of a numpy array.

An `ArrayHandle` answers as a `numpy.ndarray`: ``isinstance`` holds, ufuncs and numpy's functions are recorded where there
is a strategy, and everything else works on the host's array. It is no ndarray below its surface, so that code in C cannot
read bytes that are not there: it asks for ``__array__``, or refuses the argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from torch_hetero.migration.holder import Holder, on_host, record_call, register_handle
from torch_hetero.migration.recipe import Value
from torch_hetero.migration.spec import NUMPY_DTYPES
from torch_hetero.migration.strategy import find

__all__ = ["ArrayHandle"]

class ArrayHandle(np.lib.mixins.NDArrayOperatorsMixin):
    """Looks like a numpy array; see the module's text. Elements are computed when the host reads them."""

    __slots__ = ("__weakref__", "_hetero_holder")

    def __init__(self, value: Value) -> None:
        self._hetero_holder = Holder(value)

    def _hetero_host(self) -> np.ndarray:
        return self._hetero_holder.host()

    @property
    def __class__(self) -> type:
        return np.ndarray

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self._hetero_host(), dtype=dtype, copy=copy)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **keywords: Any) -> Any:
        if method == "__call__":
            out = keywords.get("out")
            if out is not None and len(out) == 1 and out[0] is self and not self._hetero_holder.shared():
                done = self._hetero_update(ufunc, inputs, {name: keywords[name] for name in keywords if name != "out"})
                if done:
                    return self
            elif out is None:
                result = recorded(f"numpy.{ufunc.__name__}", ufunc, inputs, keywords)
                if result is not NotImplemented:
                    return result
        if keywords.get("out") is not None:
            result = getattr(ufunc, method)(
                *map(on_host, inputs), **{name: on_host(keywords[name]) for name in keywords}
            )
            return self if len(keywords["out"]) == 1 and keywords["out"][0] is self else result
        return getattr(ufunc, method)(*map(on_host, inputs), **{name: on_host(keywords[name]) for name in keywords})

    def _hetero_update(self, ufunc: np.ufunc, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> bool:
        """Records ``array += x``: the handle moves on to the result. Returns whether it could."""
        holder = self._hetero_holder
        if holder.data is not None:
            return False
        result = recorded(f"numpy.{ufunc.__name__}", ufunc, inputs, keywords)
        if type(result) is not ArrayHandle or result.shape != self.shape:
            return False
        if result.dtype != self.dtype:
            if not np.can_cast(result.dtype, self.dtype, "same_kind"):
                return False
            result = recorded("numpy.ndarray.astype", np.ndarray.astype, (result, self.dtype), {})
            if type(result) is not ArrayHandle:
                return False
        holder.value = result._hetero_holder.value
        return True

    def __array_function__(self, function: Any, types: Any, positional: Any, keywords: dict[str, Any]) -> Any:
        module = "numpy" if function.__module__ in ("numpy", None) else function.__module__
        result = recorded(f"{module}.{function.__name__}", function, positional, keywords)
        if result is NotImplemented:
            return function(*map(on_host, positional), **{name: on_host(keywords[name]) for name in keywords})
        return result

    def __getattr__(self, name: str) -> Any:
        if not hasattr(np.ndarray, name):
            raise AttributeError(f"'numpy.ndarray' object has no attribute {name!r}")
        if callable(getattr(np.ndarray, name)) and find(f"numpy.ndarray.{name}") is not None:
            return Method(self, name)
        return getattr(self._hetero_host(), name)

    def __getitem__(self, index: Any) -> Any:
        return Method(self, "__getitem__")(index)

    def __setitem__(self, index: Any, new: Any) -> None:
        self._hetero_host()[on_host(index)] = on_host(new)

    def __iter__(self) -> Iterator[Any]:
        if not self.shape:
            raise TypeError("iteration over a 0-d array")
        return (self[index] for index in range(self.shape[0]))

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return self._hetero_host().__array_interface__

    def __bytes__(self) -> bytes:
        return bytes(self._hetero_host())

    def __buffer__(self, flags: int) -> memoryview:  # from Python 3.12 on
        return memoryview(self._hetero_host())

    def __reduce_ex__(self, protocol: Any) -> Any:
        from torch_hetero.migration.shipping import reduce_handle

        return reduce_handle(self, protocol)

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the array's dimensions."""
        holder = self._hetero_holder
        return holder.value.spec.shape if holder.data is None else holder.data.shape

    @property
    def dtype(self) -> np.dtype:
        """The type of the elements."""
        holder = self._hetero_holder
        return NUMPY_DTYPES[holder.value.spec.dtype] if holder.data is None else holder.data.dtype

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.itemsize

    @property
    def T(self) -> Any:  # noqa: N802  numpy's name
        """The array with its dimensions in the opposite order."""
        return Method(self, "transpose")()


class Method:
    """A method of a handle's array, to be called."""

    __slots__ = ("handle", "name")

    def __init__(self, handle: ArrayHandle, name: str) -> None:
        self.handle, self.name = handle, name

    def __call__(self, *positional: Any, **keywords: Any) -> Any:
        original = getattr(np.ndarray, self.name)
        result = recorded(f"numpy.ndarray.{self.name}", original, (self.handle, *positional), keywords)
        if result is NotImplemented:
            arguments = {name: on_host(keywords[name]) for name in keywords}
            return original(self.handle._hetero_host(), *map(on_host, positional), **arguments)
        return result


def recorded(target: str, original: Callable[..., Any], positional: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Records a call of numpy. Returns NotImplemented where there is no strategy or it does not cover the call."""
    result = record_call(target, original, positional, keywords)
    if type(result) is ArrayHandle and result.shape == ():
        return result._hetero_host()[()]  # numpy returns scalars
    return result


def on_host_array(name: str) -> Callable[..., Any]:
    """Returns a special method that works on the host's array; Python looks those up in the class."""

    def method(self: ArrayHandle, *arguments: Any) -> Any:
        return getattr(self._hetero_host(), name)(*arguments)

    method.__name__ = name
    return method


for _name in (
    "__bool__", "__complex__", "__contains__", "__copy__", "__deepcopy__", "__dlpack__", "__dlpack_device__", "__float__",
    "__format__", "__index__", "__int__", "__repr__", "__str__",
):  # fmt: skip
    setattr(ArrayHandle, _name, on_host_array(_name))

register_handle("array", ArrayHandle)
