"""albumentations 2.0 and albucore: the functions that transforms call with an image.

Transforms keep their random parameters: a `Compose` runs as it is, and these functions are computed on the device.
There are three kinds:

- Functions that call one function of cv2, such as `resize`, use its strategy. They keep a single channel.
- Functions of single bytes, such as `multiply_add`, are tables of 256 entries: the original makes them, of all bytes.
- Others have strategies of their own.

In albumentations, images are arrays [height, width] or [height, width, channels].
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from torch_hetero.migration.context import untracked
from torch_hetero.migration.spec import TORCH_DTYPES, Spec
from torch_hetero.migration.strategies.opencv import (
    BYTES_AND_FLOATS,
    NUMBERS,
    Arguments,
    OpenCV,
    by_operator,
    example_image,
    is_flag,
    is_number,
    is_whole,
    per_sample,
    saturated,
)
from torch_hetero.migration.strategy import Call, Mapped, Strategy, Tolerance, Unsupported, find, register

GEOMETRIC = "albumentations.augmentations.geometric.functional"
PIXEL = "albumentations.augmentations.pixel.functional"
BLUR = "albumentations.augmentations.blur.functional"
# Codes of `cv_color`.
RGB_TO_GRAY, RGB_TO_HSV, HSV_TO_RGB = 7, 41, 55


class Albumentations(OpenCV):
    """A function of albumentations on images of bytes."""

    library = "albumentations"
    versions = ("2.0.",)
    data = ("img",)
    channels = range(1, 5)


class Albucore:
    """Support by albucore's functions, which the strategies stand for."""

    library: ClassVar[str] = "albucore"
    versions: ClassVar[tuple[str, ...]] = ("0.0.24",)


def like(spec: Spec, shape: Sequence[int] | None = None) -> Spec:
    """Returns the spec of a result like an image, with the same or other sizes."""
    return Spec("array", tuple(shape or spec.shape), spec.dtype)


class Translated(Albumentations):
    """A function that calls one function of cv2."""

    cv2: ClassVar[str]

    def translated(self, call: Call) -> Arguments:
        """Returns the arguments of the function of cv2."""
        raise NotImplementedError

    def inner(self) -> Strategy:
        """Returns the strategy of that function."""
        strategy = find(self.cv2)
        assert strategy is not None
        return strategy

    def inner_call(self, call: Call) -> Call:
        """Returns the call of that function."""
        positional, keywords = self.translated(call)
        return Call(self.inner().bind(*positional, **keywords))

    def unsupported(self, spec: Spec) -> str | None:
        if len(spec.shape) not in (2, 3) or 0 in spec.shape:
            return "it is no image"
        if spec.channels not in self.channels:
            return f"images with {spec.channels} channels stay on the CPU"
        return None  # its strategy says more

    def limits(self, call: Call) -> str | None:
        return self.known(call) or self.inner().supports(self.inner_call(call))

    def known(self, call: Call) -> str | None:
        """Returns a reason not to migrate that cv2's function would not know."""
        return None

    def map(self, call: Call) -> Mapped:
        mapped = self.inner().map(self.inner_call(call))
        output, source = mapped.outputs, call[self.data[0]]
        keep = source.channels == 1 and len(source.shape) == 3 and len(output.shape) == 2
        output = like(output, (*output.shape, 1)) if keep else output
        return Mapped(output, static=(mapped.static, keep), sample=mapped.sample)

    def tolerance_of(self, static: Any, outputs: Sequence[Spec]) -> Tolerance:
        return self.inner().tolerance_of(static[0], outputs)

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        result = self.inner().run(inputs, static[0], sample)
        return result.unsqueeze(3) if static[1] else result


@register
class Resize(Translated):
    target = f"{GEOMETRIC}.resize"
    parameters = "img, target_shape, interpolation"
    cv2 = "cv2.resize"
    ragged = True
    tolerance = Tolerance(1, note="as cv2.resize: INTER_CUBIC of bytes is off by one")

    def known(self, call: Call) -> str | None:
        shape = call["target_shape"]
        known = isinstance(shape, (list, tuple)) and len(shape) == 2 and all(map(is_whole, shape))
        return None if known else "target_shape= is no pair of integers"

    def translated(self, call: Call) -> Arguments:
        height, width = call["target_shape"]
        return (call["img"], (width, height)), {"interpolation": call["interpolation"]}

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        image = example_image(random, random, [int(fixed.choice([0, 1, 3]))])
        shape = image.shape[:2] if fixed.integers(8) == 0 else tuple(fixed.integers(1, 30, 2).tolist())
        return (image, shape, int(fixed.choice([0, 1, 2, 3]))), {}


def extended(value: Any, channels: int) -> Any:
    """Returns a border's value as albumentations passes it on."""
    return [value] * channels if isinstance(value, float) else value


@register
class WarpAffine(Translated):
    target = f"{GEOMETRIC}.warp_affine"
    parameters = "image, matrix, interpolation, fill, border_mode, output_shape"
    data = ("image",)
    cv2 = "cv2.warpAffine"
    ragged = True

    def known(self, call: Call) -> str | None:
        matrix, shape = call["matrix"], call["output_shape"]
        if not isinstance(matrix, np.ndarray) or matrix.shape != (3, 3) or matrix.dtype.kind != "f":
            return "matrix= is no matrix of floats [3, 3]"
        if not isinstance(shape, (list, tuple)) or len(shape) < 2 or not all(map(is_number, shape)):
            return "output_shape= is no pair of numbers"
        if np.allclose(matrix, np.eye(3, dtype=matrix.dtype)):
            return "a warp that changes nothing stays on the CPU"
        return None

    def translated(self, call: Call) -> Arguments:
        height, width = (int(np.round(entry)) for entry in call["output_shape"][:2])
        fill = extended(call["fill"], call["image"].channels)
        return (call["image"], call["matrix"][:2], (width, height)), {
            "flags": call["interpolation"], "borderMode": call["border_mode"], "borderValue": fill,
        }  # fmt: skip

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        image = example_image(random, random, [int(fixed.choice([0, 1, 3]))])
        angle, scale = random.random() * 6.3, random.random() + 0.5
        cosine, sine = np.cos(angle) * scale, np.sin(angle) * scale
        matrix = np.array([[cosine, sine, random.random() * 9], [-sine, cosine, random.random() * 9], [0, 0, 1]])
        fill = float(fixed.integers(256)) if fixed.integers(2) else tuple(fixed.integers(0, 256, 3).tolist())
        shape = tuple(fixed.integers(1, 30, 2).tolist())
        return (image, matrix, int(fixed.integers(2)), fill, int(fixed.integers(5)), shape), {}


@register
class Perspective(Translated):
    target = f"{GEOMETRIC}.perspective"
    parameters = "img, matrix, max_width, max_height, border_val, border_mode, keep_size, interpolation"
    cv2 = "cv2.warpPerspective"
    ragged = True

    def known(self, call: Call) -> str | None:
        matrix, sizes = call["matrix"], (call["max_width"], call["max_height"])
        if not isinstance(matrix, np.ndarray) or matrix.shape != (3, 3):
            return "matrix= is no matrix [3, 3]"
        if not all(map(is_whole, sizes)) or min(sizes) < 1:
            return "max_width= or max_height= is no size"
        return None if is_flag(call["keep_size"]) else "keep_size= is no bool"

    def translated(self, call: Call) -> Arguments:
        matrix, width, height = call["matrix"], call["max_width"], call["max_height"]
        if call["keep_size"]:
            rows, columns = call["img"].shape[:2]
            matrix = np.dot(np.array([[columns / width, 0, 0], [0, rows / height, 0], [0, 0, 1]]), matrix)
            width, height = columns, rows
        value = call["border_val"].tolist() if isinstance(call["border_val"], np.ndarray) else call["border_val"]
        return (call["img"], matrix, (width, height)), {
            "flags": call["interpolation"], "borderMode": call["border_mode"], "borderValue": value,
        }  # fmt: skip

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        image = example_image(fixed, random, [0, 1, 3])
        matrix = np.eye(3) + random.normal(size=(3, 3)) * [[0.1, 0.1, 2], [0.1, 0.1, 2], [0.01, 0.01, 0]]
        width, height = fixed.integers(1, 30, 2).tolist()
        keep, border = bool(fixed.integers(2)), int(fixed.integers(5))
        return (image, matrix, width, height, int(fixed.integers(256)), border, keep, int(fixed.integers(2))), {}


@register
class Remap(Translated):
    target = f"{GEOMETRIC}.remap"
    parameters = "img, map_x, map_y, interpolation, border_mode, value=None"
    data = ("img", "map_x", "map_y")
    cv2 = "cv2.remap"

    def translated(self, call: Call) -> Arguments:
        return (call["img"], call["map_x"], call["map_y"], call["interpolation"]), {
            "borderMode": call["border_mode"], "borderValue": call["value"],
        }  # fmt: skip

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        (image, columns, rows, interpolation), keywords = self.inner().example(fixed, random)
        value = keywords.get("borderValue", 0)
        return (image, columns, rows, interpolation, keywords.get("borderMode", 0), value), {}


@register
class Pad(Translated):
    target = f"{GEOMETRIC}.pad_with_params"
    parameters = "img, h_pad_top, h_pad_bottom, w_pad_left, w_pad_right, border_mode, value"
    cv2 = "cv2.copyMakeBorder"

    def translated(self, call: Call) -> Arguments:
        sizes = [call[name] for name in ("h_pad_top", "h_pad_bottom", "w_pad_left", "w_pad_right")]
        value = extended(call["value"], call["img"].channels)
        return (call["img"], *sizes, call["border_mode"]), {"value": value}

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        value = float(random.integers(256)) if fixed.integers(2) else tuple(random.integers(0, 256, 3).tolist())
        image = example_image(fixed, random, dtypes=["uint8", "float32"])
        return (image, *fixed.integers(0, 9, 4).tolist(), int(fixed.integers(5)), value), {}


class Flipped(Albucore, Translated):
    """A flip of albucore."""

    parameters = "img"
    cv2 = "cv2.flip"
    channels = range(1, 513)
    code: int

    def translated(self, call: Call) -> Arguments:
        return (call["img"], self.code), {}

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        return (example_image(fixed, random, dtypes=["uint8", "float32"]),), {}


@register
class HFlip(Flipped):
    target = "albucore.functions.hflip"
    code = 1


@register
class VFlip(Flipped):
    target = "albucore.functions.vflip"
    code = 0


@register
class BoxBlur(Translated):
    target = f"{BLUR}.box_blur"
    parameters = "img, ksize"
    cv2 = "cv2.blur"

    def translated(self, call: Call) -> Arguments:
        return (call["img"], (call["ksize"], call["ksize"])), {}

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        return (example_image(fixed, random), int(fixed.integers(1, 12))), {}


@register
class MedianBlur(Translated):
    target = f"{BLUR}.median_blur"
    parameters = "img, ksize"
    cv2 = "cv2.medianBlur"

    def translated(self, call: Call) -> Arguments:
        return (call["img"], call["ksize"]), {}

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        return (example_image(fixed, random, [0, 1, 3]), int(fixed.choice([3, 5, 7]))), {}


class Convolved(Translated):
    """A convolution of bytes. Floats are clipped to 1 and stay on the CPU."""

    parameters = "img, kernel"

    def known(self, call: Call) -> str | None:
        return None if call["img"].dtype == torch.uint8 else "images of floats stay on the CPU"


@register
class Convolve(Convolved):
    target = f"{PIXEL}.convolve"
    cv2 = "cv2.filter2D"

    def translated(self, call: Call) -> Arguments:
        return (call["img"], -1, call["kernel"]), {}

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        size = int(fixed.choice([3, 5]))
        kernel = random.random((size, size)).astype(np.float32)
        return (example_image(fixed, random, [0, 1, 3]), kernel / kernel.sum()), {}


@register
class SeparableConvolve(Convolved):
    target = f"{PIXEL}.separable_convolve"
    cv2 = "cv2.sepFilter2D"

    def translated(self, call: Call) -> Arguments:
        return (call["img"], -1, call["kernel"], call["kernel"]), {}

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        half = int(fixed.integers(0, 5))
        kernel = np.exp(-0.5 * (np.arange(-half, half + 1) / (random.random() * 2 + 0.5)) ** 2)
        return (example_image(fixed, random, [0, 1, 3]), kernel / kernel.sum()), {}


@register
class ToGray(Translated):
    target = f"{PIXEL}.to_gray_weighted_average"
    parameters = "img"
    cv2 = "cv2.cvtColor"

    def translated(self, call: Call) -> Arguments:
        return (call["img"], 7), {}

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        return (example_image(fixed, random, [3]),), {}


class Moved(Albumentations):
    """Moves pixels of any type."""

    dtypes = NUMBERS
    channels = range(1, 513)


@register
class Transpose(Moved):
    target = f"{GEOMETRIC}.transpose"
    parameters = "img"

    def map(self, call: Call) -> Mapped:
        height, width, *rest = call["img"].shape
        return Mapped(like(call["img"], (width, height, *rest)))

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        return inputs[0].transpose(1, 2)

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        return (example_image(fixed, random),), {}


@register
class Rot90(Moved):
    target = f"{GEOMETRIC}.rot90"
    parameters = "img, factor"

    def limits(self, call: Call) -> str | None:
        return None if is_whole(call["factor"]) else "factor= is no integer"

    def map(self, call: Call) -> Mapped:
        height, width, *rest = call["img"].shape
        turns = int(call["factor"]) % 4
        size = (width, height) if turns % 2 else (height, width)
        return Mapped(like(call["img"], (*size, *rest)), static=turns)

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        (images,) = inputs
        if static % 2 == 0:
            return images.flip([1, 2]) if static else images
        return images.transpose(1, 2).flip([1 if static == 1 else 2])

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        return (example_image(fixed, random), int(fixed.integers(4))), {}


@register
class Crop(Moved):
    """Crops of images of different sizes share a batch if the results have one size."""

    target = "albumentations.augmentations.crops.functional.crop"
    parameters = "img, x_min, y_min, x_max, y_max"
    ragged = True

    def limits(self, call: Call) -> str | None:
        left, upper, right, lower = (call[name] for name in ("x_min", "y_min", "x_max", "y_max"))
        if not all(map(is_whole, (left, upper, right, lower))):
            return "the crop's corners are no integers"
        height, width = call["img"].shape[:2]
        return (
            None if 0 <= left < right <= width and 0 <= upper < lower <= height else "the crop is not within the image"
        )

    def map(self, call: Call) -> Mapped:
        left, upper, right, lower = (int(call[name]) for name in ("x_min", "y_min", "x_max", "y_max"))
        size = (lower - upper, right - left)
        return Mapped(like(call["img"], (*size, *call["img"].shape[2:])), static=size, sample=(upper, left))

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        (images,) = inputs
        rows, columns = (
            start.unsqueeze(1) + torch.arange(size).to(start.device) for start, size in zip(sample, static, strict=True)
        )
        return torch.stack([
            image.index_select(0, rows[index]).index_select(1, columns[index]) for index, image in enumerate(images)
        ])  # fmt: skip

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        height, width = fixed.integers(1, 9, 2).tolist()
        size = (height + int(random.integers(9)), width + int(random.integers(9)))
        image = example_image(fixed, random, [int(fixed.choice([0, 1, 3]))], size=size)
        upper, left = (
            int(random.integers(outer - inner + 1)) for outer, inner in zip(size, (height, width), strict=True)
        )
        return (image, left, upper, left + width, upper + height), {}


class Table(Albumentations):
    """A function of each byte alone. The original computes it for all 256 bytes, in each channel."""

    channels = range(1, 65)

    def map(self, call: Call) -> Mapped:
        source = call[self.data[0]]
        module, _, name = self.target.rpartition(".")
        settings = {key: entry for key, entry in call.arguments.items() if key not in self.data}
        bytes_ = np.arange(256, dtype=np.uint8).reshape(256, 1)
        if len(source.shape) == 3:
            bytes_ = np.repeat(bytes_[:, :, None], source.channels, 2)
        try:
            with untracked():
                table = getattr(importlib.import_module(module), name)(bytes_, **settings)
        except Exception as error:  # the original raises it again
            raise Unsupported(f"it raises {type(error).__name__}: {error}") from None
        if table.shape != bytes_.shape or table.dtype not in TORCH_DTYPES:
            raise Unsupported(f"its results of {table.dtype} stay on the CPU")
        dtype = TORCH_DTYPES[table.dtype]
        return Mapped(Spec("array", source.shape, dtype), static=dtype, sample=(table.reshape(-1).astype(np.float64),))

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        (images,), tables = inputs, sample[0].to(static)
        return looked_up(images, tables)

    def number(self, call: Call, *names: str) -> str | None:
        """Returns a reason not to migrate if a setting is neither a number nor one for each channel."""
        for name in names:
            setting = call[name]
            if isinstance(setting, np.ndarray):
                if setting.ndim > 1 or setting.dtype.kind not in "iuf" or not np.isfinite(setting).all():
                    return f"{name}= is an image, or not finite"
            elif not is_number(setting):
                return f"{name}= is no finite number"
        return None if call.arguments.get("inplace", False) is False else "inplace= is given"

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        return (example_image(fixed, random, [0, 1, 3]), *self.example_settings(random)), {}

    def example_settings(self, random: np.random.Generator) -> tuple[Any, ...]:
        """Returns an example's other arguments."""
        return ()


def looked_up(images: torch.Tensor, tables: torch.Tensor) -> torch.Tensor:
    """Returns entries of tables by bytes.

    Args:
        images: [batch, height, width] or [batch, height, width, channels].
        tables: [batch, 256 x channels], channels last.
    """
    channels, indices = tables.shape[1] // 256, images.to(torch.int64)
    if channels > 1:
        indices = indices * channels + torch.arange(channels).to(images.device)
    return tables.gather(1, indices.reshape(len(images), -1)).view(images.shape)


@register
class MultiplyAdd(Albucore, Table):
    target = "albucore.functions.multiply_add"
    parameters = "img, factor, value, inplace=False"

    def limits(self, call: Call) -> str | None:
        return self.number(call, "factor", "value")

    def example_settings(self, random: np.random.Generator) -> tuple[Any, ...]:
        return float(random.random() * 2), float(random.normal() * 60)


@register
class Multiply(Albucore, Table):
    target = "albucore.functions.multiply"
    parameters = "img, value, inplace=False"

    def limits(self, call: Call) -> str | None:
        return self.number(call, "value")

    def example_settings(self, random: np.random.Generator) -> tuple[Any, ...]:
        return (float(random.random() * 2) if random.integers(2) else random.random(3) * 2,)


@register
class Normalize(Albucore, Table):
    target = "albucore.functions.normalize"
    parameters = "img, mean, denominator"

    def limits(self, call: Call) -> str | None:
        return self.number(call, "mean", "denominator")

    def example_settings(self, random: np.random.Generator) -> tuple[Any, ...]:
        if random.integers(2):
            return float(random.random() * 200), float(random.random() / 50)
        return (random.random(3) * 200).astype(np.float32), (random.random(3) / 50).astype(np.float32)


@register
class ToFloat(Albucore, Table):
    target = "albucore.functions.to_float"
    parameters = "img, max_value=None"

    def limits(self, call: Call) -> str | None:
        return None if call["max_value"] is None else self.number(call, "max_value")

    def example_settings(self, random: np.random.Generator) -> tuple[Any, ...]:
        return (None if random.integers(2) else 100.0,)


@register
class GammaTransform(Table):
    target = f"{PIXEL}.gamma_transform"
    parameters = "img, gamma"

    def limits(self, call: Call) -> str | None:
        return self.number(call, "gamma")

    def example_settings(self, random: np.random.Generator) -> tuple[Any, ...]:
        return (float(random.random() * 1.5 + 0.3),)


@register
class Invert(Table):
    target = f"{PIXEL}.invert"
    parameters = "img"


@register
class Solarize(Table):
    target = f"{PIXEL}.solarize"
    parameters = "img, threshold"

    def limits(self, call: Call) -> str | None:
        return self.number(call, "threshold")

    def example_settings(self, random: np.random.Generator) -> tuple[Any, ...]:
        return (float(random.random()),)


@register
class Posterize(Table):
    target = f"{PIXEL}.posterize"
    parameters = "img, bits"

    def limits(self, call: Call) -> str | None:
        return None if is_whole(call["bits"]) and 1 <= call["bits"] <= 7 else "bits= is no number from 1 to 7"

    def example_settings(self, random: np.random.Generator) -> tuple[Any, ...]:
        return (int(random.integers(1, 8)),)


@register
class AdjustBrightness(Table):
    target = f"{PIXEL}.adjust_brightness_torchvision"
    parameters = "img, factor"

    def limits(self, call: Call) -> str | None:
        return self.number(call, "factor")

    def example_settings(self, random: np.random.Generator) -> tuple[Any, ...]:
        return (float(random.choice([0.0, 1.0, random.random() * 2])),)


@register
class FromFloat(Albucore, Albumentations):
    target = "albucore.functions.from_float"
    parameters = "img, target_dtype, max_value=None"
    dtypes = (torch.float32,)

    def limits(self, call: Call) -> str | None:
        if isinstance(call["target_dtype"], np.ndarray) or call["target_dtype"] != np.uint8:
            return f"images of {call['target_dtype']} stay on the CPU"
        return None if call["max_value"] is None or is_number(call["max_value"]) else "max_value= is no finite number"

    def map(self, call: Call) -> Mapped:
        factor = 255.0 if call["max_value"] is None else float(call["max_value"])
        return Mapped(Spec("array", call["img"].shape, torch.uint8), sample=(factor,))

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        (images,) = inputs
        return saturated(images * per_sample(sample[0], images).float(), torch.uint8)

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        image = example_image(fixed, random)
        image = (random.random(image.shape) * 1.2 - 0.1).astype(np.float32)
        return (image, np.dtype("uint8")), {} if random.integers(2) else {"max_value": 200.0}


@register
class AddNoise(Albumentations):
    """Noise is rounded toward zero."""

    target = f"{PIXEL}.add_noise"
    parameters = "img, noise"
    data = ("img", "noise")

    def unsupported(self, spec: Spec) -> str | None:
        if spec.dtype not in (*BYTES_AND_FLOATS, torch.float64) or spec.kind != "array" or len(spec.shape) != 3:
            return "it is no image with channels"
        return None

    def limits(self, call: Call) -> str | None:
        image, noise = call["img"], call["noise"]
        if image.dtype != torch.uint8:
            return "images of floats stay on the CPU"
        if noise.dtype == torch.uint8 or noise.shape != image.shape or image.channels > 4:
            return "the noise is not one float for each element"
        return None

    def map(self, call: Call) -> Mapped:
        return Mapped(like(call["img"]))

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        images, noise = inputs
        return (images.to(torch.int32) + noise.clamp(-1000, 1000).to(torch.int32)).clamp(0, 255).to(torch.uint8)

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        image = example_image(fixed, random, [1, 3])
        noise = (random.normal(size=image.shape) * 50).astype(str(fixed.choice(["float32", "float64"])))
        return (image, abs(noise) if random.integers(4) == 0 else noise), {}


@register
class ChannelShuffle(Albumentations):
    target = f"{PIXEL}.channel_shuffle"
    parameters = "img, channels_shuffled"

    def limits(self, call: Call) -> str | None:
        order, image = call["channels_shuffled"], call["img"]
        if len(image.shape) != 3 or image.channels < 2:
            return "it is no image of several channels"
        if not isinstance(order, (list, tuple, np.ndarray)) or sorted(order) != list(range(image.channels)):
            return "channels_shuffled= is no order of the channels"
        return None

    def map(self, call: Call) -> Mapped:
        return Mapped(like(call["img"]), sample=(np.array(call["channels_shuffled"], dtype=np.int64),))

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        (images,) = inputs
        return images.gather(3, sample[0].view(len(images), 1, 1, -1).expand(images.shape))

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        image = example_image(fixed, random, [2, 3, 4])
        return (image, random.permutation(image.shape[2]).tolist()), {}


class Hued(Albumentations):
    """Changes hue, saturation and value, each by a table."""

    channels = (3,)

    def tables(self, call: Call) -> list[np.ndarray]:
        """Returns three tables of 256 bytes."""
        raise NotImplementedError

    def map(self, call: Call) -> Mapped:
        return Mapped(like(call["img"]), sample=tuple(table.astype(np.int64) for table in self.tables(call)))

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        planes = by_operator("cv_color", inputs[0], RGB_TO_HSV).unbind(3)
        planes = [looked_up(plane, table.to(torch.uint8)) for plane, table in zip(planes, sample, strict=True)]
        return by_operator("cv_color", torch.stack(planes, 3), HSV_TO_RGB)


@register
class ShiftHsv(Hued):
    target = f"{PIXEL}.shift_hsv"
    parameters = "img, hue_shift, sat_shift, val_shift"

    def limits(self, call: Call) -> str | None:
        shifts = [call[name] for name in ("hue_shift", "sat_shift", "val_shift")]
        if not all(is_number(shift) and abs(shift) < 10000 for shift in shifts):
            return "a shift is no number below 10,000"
        return None if any(shifts) else "a shift of nothing stays on the CPU"

    def tables(self, call: Call) -> list[np.ndarray]:
        numbers = np.arange(256)
        hues = (
            np.mod(numbers.astype(np.int16) + call["hue_shift"], 180).astype(np.uint8) if call["hue_shift"] else numbers
        )
        saturations, values = ((numbers + int(call[name])).clip(0, 255) for name in ("sat_shift", "val_shift"))
        saturations[0] = 0  # gray stays gray
        return [hues, saturations, values]

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        shifts = (random.normal(size=3) * 30).round(int(random.integers(2)))
        shifts = shifts * random.integers(0, 2, 3) if random.integers(2) else shifts
        return (example_image(fixed, random, [3], largest=90), *(shifts + [0, 0, 1]).tolist()), {}


@register
class AdjustHue(Hued):
    target = f"{PIXEL}.adjust_hue_torchvision"
    parameters = "img, factor"

    def limits(self, call: Call) -> str | None:
        if not is_number(call["factor"]) or abs(call["factor"]) > 100:
            return "factor= is no number up to 100"
        return None if call["factor"] else "a shift of nothing stays on the CPU"

    def tables(self, call: Call) -> list[np.ndarray]:
        numbers = np.arange(256)
        return [np.mod(numbers.astype(np.int16) + 180 * call["factor"], 180).astype(np.uint8), numbers, numbers]

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        return (example_image(fixed, random, [3], largest=90), float(random.random() - 0.5) or 0.1), {}


@register
class AdjustContrast(Albumentations):
    """The mean of the gray image stays."""

    target = f"{PIXEL}.adjust_contrast_torchvision"
    parameters = "img, factor"
    channels = (1, 3)

    def limits(self, call: Call) -> str | None:
        if not is_number(call["factor"]) or not isinstance(call["factor"], (int, float)):
            return "factor= is no finite number"
        return "factor=0 and factor=1 stay on the CPU" if call["factor"] in (0, 1) else None

    def map(self, call: Call) -> Mapped:
        return Mapped(like(call["img"]), sample=(float(call["factor"]),))

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        (images,), (factor,) = inputs, sample
        gray = by_operator("cv_color", images, RGB_TO_GRAY) if images.shape[3:] == (3,) else images
        mean = gray.reshape(len(images), -1).to(torch.int32).sum(1).double() / (images.shape[1] * images.shape[2])
        value = per_sample((mean * (1 - factor)).float(), images)
        scaled = images.float() * per_sample(factor.float(), images)
        return (scaled + value).clamp(0, 255).to(torch.uint8)

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        return (example_image(fixed, random, [0, 1, 3]), float(random.random() * 2 + 0.01)), {}


@register
class AdjustSaturation(Albumentations):
    """A weighted sum with the gray image, as cv2.addWeighted computes it."""

    target = f"{PIXEL}.adjust_saturation_torchvision"
    parameters = "img, factor, gamma=0"
    channels = (3,)

    def limits(self, call: Call) -> str | None:
        if (
            not is_number(call["factor"])
            or not isinstance(call["factor"], (int, float))
            or not is_number(call["gamma"])
        ):
            return "factor= or gamma= is no finite number"
        return "factor=0 and factor=1 stay on the CPU" if call["factor"] in (0, 1) else None

    def map(self, call: Call) -> Mapped:
        factor = float(call["factor"])
        return Mapped(like(call["img"]), sample=(factor, 1 - factor, float(call["gamma"])))

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        (images,) = inputs
        gray = by_operator("cv_color", images, RGB_TO_GRAY).unsqueeze(3).expand(images.shape)
        weighted = find("cv2.addWeighted")
        assert weighted is not None
        return weighted.run([images, gray], ((True, True), None), sample)

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        return (example_image(fixed, random, [3]), round(random.random() * 2 + 0.01, int(random.integers(2, 9)))), {}
