"""Sizes and types of numpy arrays, PIL images and CPU tensors, and their elements as tensors."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from torch_hetero import _C

__all__ = ["BANDS", "Spec", "checksum", "from_tensor", "spec_of", "to_tensor"]

ARRAY, IMAGE, TENSOR, TV_IMAGE = "array", "image", "tensor", "tv_image"

# The modes of PIL whose pixels are bytes, and their number of bands.
BANDS = {"L": 1, "LA": 2, "RGB": 3, "YCbCr": 3, "HSV": 3, "LAB": 3, "RGBA": 4, "RGBX": 4, "CMYK": 4, "La": 2, "RGBa": 4}

NUMPY_DTYPES = {
    torch.bool: np.dtype(np.bool_), torch.uint8: np.dtype(np.uint8), torch.int8: np.dtype(np.int8),
    torch.int16: np.dtype(np.int16), torch.int32: np.dtype(np.int32), torch.int64: np.dtype(np.int64),
    torch.float16: np.dtype(np.float16), torch.float32: np.dtype(np.float32), torch.float64: np.dtype(np.float64),
    torch.complex64: np.dtype(np.complex64), torch.complex128: np.dtype(np.complex128),
}  # fmt: skip
TORCH_DTYPES = {numpy_dtype: dtype for dtype, numpy_dtype in NUMPY_DTYPES.items()}


@dataclass(frozen=True, slots=True)
class Spec:
    """The kind, size and type of a value, known before it is computed.

    Attributes:
        kind: What user code sees: "array" (numpy), "image" (PIL), or on the CPU "tensor" or "tv_image", which is
            `torchvision.tv_tensors.Image`.
        shape: Its sizes as a tensor. An image has [height, width, bands], or [height, width] if it has one band.
        dtype: Its elements as a tensor. Images have bytes.
        mode: PIL's mode of an image, else empty.
    """

    kind: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    mode: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        count = self.dtype.itemsize
        for size in self.shape:
            count *= size
        return count

    @property
    def channels(self) -> int:
        """Channels of an array [height, width, channels] or of an image; 1 without that dimension."""
        return self.shape[2] if len(self.shape) > 2 else 1

    @staticmethod
    def image(size: tuple[int, int], mode: str) -> Spec:
        """Returns the spec of a PIL image; `size` is (width, height)."""
        bands = BANDS[mode]
        return Spec(IMAGE, (size[1], size[0]) if bands == 1 else (size[1], size[0], bands), torch.uint8, mode)


def to_tensor(data: Any) -> torch.Tensor:
    """Returns a numpy array, a PIL image or a CPU tensor as a tensor, without a copy where that can be.

    REQUIRES: `spec_of` knows it.
    """
    if isinstance(data, torch.Tensor):
        return data.as_subclass(torch.Tensor).detach()
    if not isinstance(data, np.ndarray):
        return torch.from_numpy(np.array(data, copy=True))  # PIL's own memory may be in pieces
    if any(stride < 0 for stride in data.strides) or not data.flags.writeable or not data.flags.aligned:
        data = data.copy()
    return torch.from_numpy(data)


def from_tensor(tensor: torch.Tensor, spec: Spec) -> Any:
    """Returns what user code sees of a CPU tensor: a numpy array, a PIL image or the tensor."""
    if spec.kind == TENSOR:
        return tensor
    if spec.kind == TV_IMAGE:
        from torchvision.tv_tensors import Image as TvImage

        return tensor.as_subclass(TvImage)
    array = tensor.contiguous().numpy()
    if spec.kind == ARRAY:
        return array
    from PIL import Image

    # The size is given, since an image of no pixels has no rows to take its width from.
    size = (spec.shape[1], spec.shape[0])
    return Image.frombytes(spec.mode, size, array.tobytes()) if array.size else Image.new(spec.mode, size)


def spec_of(data: Any) -> Spec | None:
    """Returns the spec of a numpy array, a PIL image or a CPU tensor; None for anything else.

    Raises:
        TypeError: The elements have no torch dtype, the image's pixels are not bytes or have a transparent colour, or
            the tensor is of a class of its own.
    """
    if isinstance(data, torch.Tensor):
        if data.device.type != "cpu" or data.layout != torch.strided or data.requires_grad:
            return None
        if type(data) is torch.Tensor:
            return Spec(TENSOR, tuple(data.shape), data.dtype)
        tv_tensors = sys.modules.get("torchvision.tv_tensors")
        if tv_tensors is not None and type(data) is tv_tensors.Image:
            return Spec(TV_IMAGE, tuple(data.shape), data.dtype)
        raise TypeError(f"tensors of class {type(data).__name__} stay on the CPU")
    if isinstance(data, np.ndarray):
        if data.dtype not in TORCH_DTYPES:
            raise TypeError(f"arrays of {data.dtype} stay on the CPU")
        return Spec(ARRAY, data.shape, TORCH_DTYPES[data.dtype])
    images = sys.modules.get("PIL.Image")
    if images is not None and isinstance(data, images.Image):
        if data.mode not in BANDS:
            raise TypeError(f"images of mode {data.mode!r} stay on the CPU")
        if "transparency" in data.info:
            raise TypeError("images with a transparent colour stay on the CPU")
        return Spec.image(data.size, data.mode)
    return None


def checksum(tensor: torch.Tensor) -> int:
    """Returns a checksum of a CPU tensor's elements, by which changes are noticed."""
    dense = tensor.contiguous()
    return _C.checksum(dense.data_ptr(), dense.nbytes)
