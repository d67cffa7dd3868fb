"""JPEG files: cv2, PIL and torchvision decode them to the bytes of `torch.ops.hetero.decode_jpeg`.

The file's bytes are recorded, and travel from workers. Other files, and those that `jpeg.py` refuses, are decoded by the
original: it returns or raises what it always does, at the same place.
"""

from __future__ import annotations

import functools
import io
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from torch_hetero.migration.context import untracked
from torch_hetero.migration.spec import Spec, spec_of
from torch_hetero.migration.strategies.jpeg import Header, header_of, is_jpeg, oriented
from torch_hetero.migration.strategies.pillow_sampling import has_kernels
from torch_hetero.migration.strategy import Call, Mapped, Strategy, Unsupported, register

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def read_file(path: Any) -> np.ndarray:
    """Returns the bytes of a JPEG file, uint8 [bytes].

    Raises:
        Unsupported: It is another file, or cannot be read.
    """
    if not isinstance(path, (str, bytes, os.PathLike)):
        raise Unsupported("the file has no path")
    try:
        if not os.path.isfile(path):
            raise Unsupported("there is no such file")
        with open(path, "rb") as file:
            if not is_jpeg(file.read(3)):
                raise Unsupported("it is no JPEG file")
            file.seek(0)
            return np.fromfile(file, np.uint8)
    except (OSError, ValueError) as error:
        raise Unsupported(f"the file cannot be read: {error}") from None


class Decode(Strategy):
    """A function that decodes one file.

    `data` is the parameter with the file's bytes, or the path that `read` replaces by them.
    """

    family = "vision"
    ragged = True

    def supports(self, call: Call) -> str | None:
        spec = call[self.data[0]]
        if not isinstance(spec, Spec) or spec.dtype != torch.uint8 or len(spec.shape) != 1:
            return f"{self.data[0]}= is no list of bytes"
        return None

    def choose(self, call: Call, header: Header) -> tuple[int, bool, int, Spec]:
        """Returns the channels, whether blue is first, the orientation to be applied, and the spec of the result."""
        raise NotImplementedError

    def map(self, call: Call) -> Mapped:
        header = header_of(call.elements_of(self.data[0]))
        channels, bgr, orientation, spec = self.choose(call, header)
        return Mapped(spec, static=(header.height, header.width, channels, bgr, orientation, spec.kind))

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        (files,), (height, width, channels, bgr, orientation, kind) = inputs, static
        decoded = []
        for file in files:
            here = file if has_kernels(file.device) else file.cpu()
            image = torch.ops.hetero.decode_jpeg(here, height, width, channels, bgr=bgr, allow_damaged=True)
            decoded.append(image.to(file.device))
        images = decoded[0].unsqueeze(0) if len(decoded) == 1 else torch.stack(decoded)
        images = oriented(images, orientation)
        if kind == "tensor":
            return images.permute(0, 3, 1, 2)
        return images if channels == 3 else images.squeeze(3)

    def data_results(self, result: Any) -> tuple[Any, ...]:
        if result is None:
            raise ValueError(f"{self.target} returned None for a file that it was expected to decode")
        return (result,)

    def examples(self, random: np.random.Generator) -> Iterator[Arguments]:
        while True:
            height, width = random.integers(1, 50, 2).tolist()
            settings = self.settings(random)
            for _ in range(3):  # calls that share a batch
                image = random.integers(0, 256, (height // 4 + 1, width // 4 + 1, 3), dtype=np.uint8)
                image = np.kron(image, np.ones((4, 4, 1), np.uint8))[:height, :width]
                yield (self.example_file(np.ascontiguousarray(image), random), *settings), {}

    def settings(self, random: np.random.Generator) -> tuple[Any, ...]:
        """Returns the arguments of an example besides the file."""
        return ()

    def example_file(self, image: np.ndarray, random: np.random.Generator) -> Any:
        """Returns an example of the file, as the function takes it."""
        return example_path(self.encode(image, random))

    def encode(self, image: np.ndarray, random: np.random.Generator) -> bytes:
        """Returns a file with an image [height, width, 3], by the library itself."""
        raise NotImplementedError


@functools.cache
def example_folder() -> tempfile.TemporaryDirectory[str]:
    """Returns a folder for example files, which is removed when the process ends."""
    return tempfile.TemporaryDirectory(prefix="hetero-examples-")


def example_path(data: bytes) -> str:
    """Returns the path of a new file."""
    handle, path = tempfile.mkstemp(".jpg", dir=example_folder().name)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
    return path


# cv2's flags without IGNORE_ORIENTATION: whether results are gray (None: as the file is), and whether red is first.
IGNORE_ORIENTATION = 128
READ_AS = {0: (True, False), 1: (False, False), 2: (True, False), 3: (False, False), 4: (None, False),
           6: (None, False), 256: (False, True)}  # fmt: skip


class CvDecode(Decode):
    """A function of cv2."""

    library = "opencv-python-headless"
    versions = ("4.14.",)

    def supports(self, call: Call) -> str | None:
        flags = call["flags"]
        whole = isinstance(flags, (int, np.integer)) and not isinstance(flags, bool)
        if not whole or flags != -1 and (flags < 0 or int(flags) & ~IGNORE_ORIENTATION not in READ_AS):
            return f"flags={flags} stay on the CPU"
        return super().supports(call)

    def choose(self, call: Call, header: Header) -> tuple[int, bool, int, Spec]:
        flags = int(call["flags"])
        gray, rgb = (None, False) if flags == -1 else READ_AS[flags & ~IGNORE_ORIENTATION]
        orientation = 1 if flags == -1 or flags & IGNORE_ORIENTATION else header.orientation
        channels = 1 if gray or gray is None and header.channels == 1 else 3
        size = header.size(orientation)
        spec = Spec("array", size if channels == 1 else (*size, 3), torch.uint8)
        return channels, channels == 3 and not rgb, orientation, spec

    def settings(self, random: np.random.Generator) -> tuple[Any, ...]:
        return (int(random.choice([-1, 0, 1, 1, 4, 129, 256])),)

    def encode(self, image: np.ndarray, random: np.random.Generator) -> bytes:
        import cv2

        image = image[:, :, 0] if random.integers(4) == 0 else image
        settings = [cv2.IMWRITE_JPEG_QUALITY, int(random.integers(20, 100)), cv2.IMWRITE_JPEG_PROGRESSIVE,
                    int(random.integers(2)), cv2.IMWRITE_JPEG_RST_INTERVAL, int(random.integers(3)),
                    cv2.IMWRITE_JPEG_SAMPLING_FACTOR,
                    int(random.choice([0x411111, 0x221111, 0x211111, 0x121111, 0x111111]))]  # fmt: skip
        return cv2.imencode(".jpg", image, settings)[1].tobytes()


@register
class ImDecode(CvDecode):
    target = "cv2.imdecode"
    parameters = "buf, flags, dst=None"
    data = ("buf",)

    def supports(self, call: Call) -> str | None:
        spec = call["buf"]
        if isinstance(spec, Spec) and spec.kind != "array":
            return "buf= is no array"
        return call.given("dst") or super().supports(call)

    def example_file(self, image: np.ndarray, random: np.random.Generator) -> Any:
        return np.frombuffer(self.encode(image, random), np.uint8)


def decode_by_cv2(filename: np.ndarray, flags: int) -> Any:
    """Does what `cv2.imread` does with a file, of whose bytes it gets."""
    import cv2

    return cv2.imdecode(filename, flags)


@register
class ImRead(CvDecode):
    target = "cv2.imread"
    parameters = "filename, flags=1"
    data = ("filename",)

    def read(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return {"filename": read_file(arguments["filename"])}

    def map(self, call: Call) -> Mapped:
        return replace(super().map(call), original=decode_by_cv2)


def decode_by_pillow(fp: np.ndarray, mode: str, formats: Any) -> Any:
    """Does what `PIL.Image.open` does with a file, of whose bytes it gets, and decodes it."""
    from PIL import Image

    image = Image.open(io.BytesIO(fp.tobytes()), mode, formats)
    image.load()
    return image


@register
class Open(Decode):
    """The image is PIL's own; see `jpeg_handle.py`."""

    target = "PIL.Image.open"
    parameters = "fp, mode='r', formats=None"
    data = ("fp",)
    library = "pillow"
    versions = ("13.",)

    def read(self, arguments: dict[str, Any]) -> dict[str, Any]:
        file = arguments["fp"]
        if not isinstance(file, (io.RawIOBase, io.BufferedIOBase)):
            return {"fp": read_file(file)}
        try:
            if not file.seekable():
                raise Unsupported("the file cannot be read twice")
            place = file.tell()
            file.seek(0)
            try:
                head = file.read(3)
                if not is_jpeg(head):
                    raise Unsupported("it is no JPEG file")
                return {"fp": np.frombuffer(bytearray(head + file.read()), np.uint8)}
            finally:
                file.seek(place)
        except (OSError, ValueError) as error:
            raise Unsupported(f"the file cannot be read: {error}") from None

    def choose(self, call: Call, header: Header) -> tuple[int, bool, int, Spec]:
        size = (header.width, header.height)
        return header.channels, False, 1, Spec.image(size, "L" if header.channels == 1 else "RGB")

    def map(self, call: Call) -> Mapped:
        return replace(super().map(call), original=decode_by_pillow)

    def returned(self, result: Any, opened: Callable[[], Any]) -> Any:
        from PIL.JpegImagePlugin import JpegImageFile

        from torch_hetero.migration.jpeg_handle import JpegHandle

        value = result._hetero_holder.value
        with untracked():
            image = opened()
        if type(image) is not JpegImageFile or spec_of(image) != value.spec:
            raise Unsupported("PIL takes it for another kind of file")
        return JpegHandle.of(image, value)

    def encode(self, image: np.ndarray, random: np.random.Generator) -> bytes:
        from PIL import Image

        picture, stream = Image.fromarray(image), io.BytesIO()
        (picture.convert("L") if random.integers(4) == 0 else picture).save(
            stream, "JPEG", quality=int(random.integers(20, 100)), progressive=bool(random.integers(2)),
            subsampling=int(random.integers(3)), optimize=bool(random.integers(2)),
        )  # fmt: skip
        return stream.getvalue()


# torchvision's modes: whether results are gray; None: as the file is.
UNCHANGED, GRAY, RGB = 0, 1, 3
MODES = {UNCHANGED: None, GRAY: True, RGB: False}


def mode_of(mode: Any) -> int:
    """Returns the number of a mode or of its name; -1 for what is neither. The default is 0."""
    if mode == UNCHANGED and type(mode) is int:
        return mode
    if isinstance(mode, str):
        return {"UNCHANGED": UNCHANGED, "GRAY": GRAY, "RGB": RGB}.get(mode.upper(), -1)
    value = getattr(mode, "value", None)
    return value if isinstance(value, int) else -1


class TorchvisionDecode(Decode):
    """A function of torchvision, whose results are tensors [channels, height, width]."""

    library = "torchvision"
    versions = ("0.26.",)

    def supports(self, call: Call) -> str | None:
        spec = call[self.data[0]]
        if isinstance(spec, Spec) and spec.kind != "tensor":
            return f"{self.data[0]}= is no tensor"
        if mode_of(call["mode"]) not in MODES:
            return f"mode={call['mode']} stays on the CPU"
        return super().supports(call)

    def choose(self, call: Call, header: Header) -> tuple[int, bool, int, Spec]:
        gray = MODES[mode_of(call["mode"])]
        orientation = header.orientation if call["apply_exif_orientation"] else 1
        channels = 1 if gray or gray is None and header.channels == 1 else 3
        return channels, False, orientation, Spec("tensor", (channels, *header.size(orientation)), torch.uint8)

    def settings(self, random: np.random.Generator) -> tuple[Any, ...]:
        from torchvision.io import ImageReadMode

        return (ImageReadMode([UNCHANGED, GRAY, RGB][random.integers(3)]),)

    def encode(self, image: np.ndarray, random: np.random.Generator) -> bytes:
        from torchvision.io import encode_jpeg

        planes = torch.from_numpy(image).permute(2, 0, 1)
        planes = planes[:1] if random.integers(4) == 0 else planes
        return encode_jpeg(planes.contiguous(), int(random.integers(20, 100))).numpy().tobytes()


class TorchvisionRead(TorchvisionDecode):
    """A function that may take a path."""

    def read(self, arguments: dict[str, Any]) -> dict[str, Any]:
        given = arguments[self.data[0]]
        return {self.data[0]: torch.from_numpy(read_file(given))} if isinstance(given, (str, os.PathLike)) else {}

    def map(self, call: Call) -> Mapped:
        return replace(super().map(call), original=decode_by_torchvision)


def decode_by_torchvision(mode: Any, apply_exif_orientation: bool, **file: torch.Tensor) -> torch.Tensor:
    """Does what `torchvision.io.read_image` does with a file, of whose bytes it gets."""
    from torchvision.io import ImageReadMode, decode_image

    return decode_image(*file.values(), ImageReadMode(mode_of(mode)), apply_exif_orientation)


@register
class DecodeJpeg(TorchvisionDecode):
    target = "torchvision.io.image.decode_jpeg"
    parameters = "input, mode=0, device='cpu', apply_exif_orientation=False"
    data = ("input",)

    def supports(self, call: Call) -> str | None:
        return super().supports(call) or (None if str(call["device"]) == "cpu" else f"device={call['device']} is given")

    def example_file(self, image: np.ndarray, random: np.random.Generator) -> Any:
        return torch.frombuffer(bytearray(self.encode(image, random)), dtype=torch.uint8)


@register
class DecodeImage(TorchvisionRead):
    target = "torchvision.io.image.decode_image"
    parameters = "input, mode=0, apply_exif_orientation=False"
    data = ("input",)


@register
class ReadImage(TorchvisionRead):
    target = "torchvision.io.image.read_image"
    parameters = "path, mode=0, apply_exif_orientation=False"
    data = ("path",)
