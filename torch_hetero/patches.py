"""The places where Python leaves torch's dispatcher, and what hetero does there.

An operator reaches hetero through the dispatcher. The few calls below do not: they read a tensor's bytes or its address
straight away, and hetero's addresses are only identities. Each is wrapped once; the wrapper asks for the device of its
argument and hands everything that is not hetero's to the original, unchanged.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
import torch.utils.dlpack
from torch import _tensor_str
from torch.multiprocessing import reductions
from torch.overrides import has_torch_function_unary

from torch_hetero import _C

_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)

# The functions that were replaced, by the name of their place.
originals: dict[str, Callable[..., Any]] = {}


def _is_hetero(tensor: torch.Tensor) -> bool:
    """Whether this very tensor is ours and has bytes.

    Subclasses with their own torch function or dispatch (FakeTensor is one) speak for themselves, and so do the
    wrappers of torch.func, which have no storage.
    """
    return (
        not has_torch_function_unary(tensor)
        and tensor.device.type == "hetero"
        and torch._C._has_storage(tensor)
        and not torch._C._dispatch_keys(tensor).has(torch._C.DispatchKey.Python)
    )


def _host_view(tensor: torch.Tensor, *, shared: bool = True) -> torch.Tensor:
    """Returns a CPU tensor over the same bytes, with the value already there.

    While a shared one lives, each operator that uses those bytes runs at once. One that is not shared is only read.
    """
    host = _C.host_view(tensor.detach(), shared)
    if tensor.is_conj() and not host.is_conj():
        host = host.conj()
    if tensor.is_neg() and not host.is_neg():
        host = torch._neg_view(host)
    return host


def _replace(owner: Any, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: puts ``make(original)`` in the place of ``owner.name``."""

    def decorate(make: Callable[..., Any]) -> Callable[..., Any]:
        original = getattr(owner, name)
        originals[f"{owner.__name__}.{name}"] = original
        setattr(owner, name, functools.wraps(original)(make(original)))
        return make

    return decorate


def _patch_printing() -> None:
    # Formatting slices, masks and reduces its argument, dozens of tiny operators each with a read. The suffix
    # device='hetero:0' is made by the caller, from the tensor itself.
    @_replace(_tensor_str, "_tensor_str")
    def _(original: Callable[..., str]) -> Callable[..., str]:
        def tensor_str(self: torch.Tensor, indent: int) -> str:
            if self.device.type == "hetero":
                if type(self) in _PLAIN_TYPES:
                    self = _host_view(self, shared=False)
                else:
                    self = self.detach().cpu()
            return original(self, indent)

        return tensor_str


def _patch_numpy() -> None:
    # The conversion accepts CPU tensors only and does not ask the backend. __array__ calls this method.
    @_replace(torch.Tensor, "numpy")
    def _(original: Callable[..., Any]) -> Callable[..., Any]:
        def numpy(self: torch.Tensor, *, force: bool = False) -> Any:
            if force or not _is_hetero(self):
                return original(self, force=force)
            host = _host_view(self)
            if self.requires_grad:  # raises what a CPU tensor raises
                host.requires_grad_()
            return original(host)

        return numpy


def _patch_dlpack() -> None:
    # Consumers of DLPack dereference the address. They get the CPU copy, as a CPU tensor.
    @_replace(torch.Tensor, "__dlpack__")
    def _(original: Callable[..., Any]) -> Callable[..., Any]:
        def __dlpack__(self: torch.Tensor, **arguments: Any) -> Any:
            if not _is_hetero(self):
                return original(self, **arguments)
            if self.requires_grad:
                raise BufferError(
                    "Can't export tensors that require gradient, use tensor.detach()"
                )
            if self.is_conj():
                raise BufferError("Can't export tensors with the conjugate bit set")
            arguments["stream"] = None  # the bytes are there when the call returns
            return original(_host_view(self), **arguments)

        return __dlpack__

    @_replace(torch.Tensor, "__dlpack_device__")
    def _(original: Callable[..., Any]) -> Callable[..., Any]:
        def __dlpack_device__(self: torch.Tensor) -> Any:
            if not _is_hetero(self):
                return original(self)
            return torch.utils.dlpack.DLDeviceType.kDLCPU, 0

        return __dlpack_device__

    def make_to_dlpack(original: Callable[..., Any]) -> Callable[..., Any]:
        def to_dlpack(tensor: torch.Tensor) -> Any:
            return original(_host_view(tensor) if _is_hetero(tensor) else tensor)

        return to_dlpack

    _replace(torch.utils.dlpack, "to_dlpack")(make_to_dlpack)
    _replace(torch, "to_dlpack")(make_to_dlpack)


def _patch_data_ptr() -> None:
    # Whoever asks for an address may hand it to code that reads it: the value has to exist from here on.
    @_replace(torch.Tensor, "data_ptr")
    def _(original: Callable[..., int]) -> Callable[..., int]:
        def data_ptr(self: torch.Tensor) -> int:
            if _is_hetero(self):
                _C.materialize(self, "data_ptr")
            return original(self)

        return data_ptr

    @_replace(torch.UntypedStorage, "data_ptr")
    def _(original: Callable[..., int]) -> Callable[..., int]:
        def data_ptr(self: torch.UntypedStorage) -> int:
            if self.device.type == "hetero":
                bytes_of_storage = torch.empty(0, dtype=torch.uint8, device=self.device).set_(self)
                _C.materialize(bytes_of_storage, "data_ptr")
            return original(self)

        return data_ptr


def _rebuild(rebuild: Callable[..., torch.Tensor], arguments: Any, kind: type, requires_grad: bool) -> torch.Tensor:
    """Makes a tensor that another process sent: on the device, unless this process cannot use it."""
    host = rebuild(*arguments)
    tensor = host if _C.in_bad_fork() else host.to("hetero")
    if kind is torch.nn.Parameter:
        return torch.nn.Parameter(tensor, requires_grad)
    return tensor.requires_grad_(requires_grad)


def _patch_sharing() -> None:
    # A tensor that is sent to another process goes as a copy in shared memory.
    def make_reduce(original: Callable[..., Any]) -> Callable[..., Any]:
        def reduce_tensor(tensor: torch.Tensor) -> Any:
            if not _is_hetero(tensor) or (tensor.requires_grad and not tensor.is_leaf):
                return original(tensor)
            return _rebuild, (*original(tensor.detach().cpu()), type(tensor), tensor.requires_grad)

        return reduce_tensor

    _replace(reductions, "reduce_tensor")(make_reduce)
    for kind in _PLAIN_TYPES:
        ForkingPickler.register(kind, reductions.reduce_tensor)

    # Sharing a storage in place puts it into a file. Ours is not in one.
    def make_share(original: Callable[..., Any]) -> Callable[..., Any]:
        def share(self: torch.UntypedStorage, *arguments: Any, **named: Any) -> Any:
            if self.device.type == "hetero":
                raise RuntimeError("A hetero tensor cannot be shared with another process: move it with .cpu() first.")
            return original(self, *arguments, **named)

        return share

    for name in ("_share_fd_cpu_", "_share_filename_cpu_"):
        _replace(torch.UntypedStorage, name)(make_share)


def _patch_files() -> None:
    # Pickling outside of torch.save, and the old format of torch.save, read and write a storage's bytes in place.
    @_replace(torch.UntypedStorage, "_write_file")
    def _(original: Callable[..., Any]) -> Callable[..., Any]:
        def _write_file(self: torch.UntypedStorage, *arguments: Any) -> Any:
            return original(self.cpu() if self.device.type == "hetero" else self, *arguments)

        return _write_file

    @_replace(torch.UntypedStorage, "_set_from_file")
    def _(original: Callable[..., Any]) -> Callable[..., Any]:
        def _set_from_file(self: torch.UntypedStorage, *arguments: Any) -> Any:
            if self.device.type != "hetero":
                return original(self, *arguments)
            host = torch.UntypedStorage(self.nbytes())
            original(host, *arguments)
            return self.copy_(host)

        return _set_from_file


def _register_fork_handlers() -> None:
    os.register_at_fork(
        before=_C.prepare_fork,
        after_in_parent=_C.finish_fork_in_parent,
        after_in_child=_C.finish_fork_in_child,
    )


def apply() -> None:
    """Applies everything in this file, once."""
    if originals:
        return
    _patch_printing()
    _patch_numpy()
    _patch_dlpack()
    _patch_data_ptr()
    _patch_sharing()
    _patch_files()
    _register_fork_handlers()
