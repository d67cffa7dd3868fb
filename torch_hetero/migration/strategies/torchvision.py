"""torchvision.transforms: functionals that convert images and change their colours, of both versions.

Unchanged transforms draw their random parameters themselves and call these. A functional on a PIL image reduces to
Pillow's arithmetic, which `pillow.py` has. One on a tensor is computed by `torchvision_tensors.py`.
"""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from torch_hetero.migration.spec import Spec
from torch_hetero.migration.strategies import pillow_filters as filters
from torch_hetero.migration.strategies import pillow_pixels as pixels
from torch_hetero.migration.strategies import torchvision_tensors as tensors
from torch_hetero.migration.strategies.pillow import (
    BRIGHTNESS,
    COLOR,
    CONTRAST,
    MODES,
    Calls,
    Plan,
    key_of_plan,
    on_lists,
    plan_enhance,
    random_images,
    run_plan,
    size_of,
    with_bands,
)  # fmt: skip
from torch_hetero.migration.strategy import EXACT, Call, Mapped, Strategy, Tensors, Tolerance, Unsupported, register

__all__ = ["NEARLY", "Functional", "functional", "of_image", "of_tensor", "random_inputs"]

MODULES = {1: "torchvision.transforms.functional", 2: "torchvision.transforms.v2.functional"}

# Floats may differ in their last bits, where a sum has another order.
NEARLY = Tolerance(absolute=2e-6, note="sums of floats in another order")


def random_inputs(
    random: np.random.Generator, version: int, modes: Sequence[str] = MODES, channels: Sequence[int] = (1, 3),
    dtypes: Sequence[torch.dtype] = (torch.uint8, torch.float32), largest: int = 24, smallest: int = 1,
) -> Iterator[Any]:  # fmt: skip
    """Yields images and tensors without end; some share a batch."""
    images = random_images(random, modes, largest, smallest) if modes else None
    while True:
        if images is not None and random.random() < 0.4:
            yield next(images)
        elif channels:
            shape = (int(random.choice(channels)), *(int(size) for size in random.integers(smallest, largest, 2)))
            dtype = dtypes[int(random.integers(0, len(dtypes)))]
            classed = version == 2 and random.random() < 0.5
            for _ in range(int(random.integers(1, 4))):
                if dtype.is_floating_point:
                    data = torch.from_numpy(random.random(shape, dtype=np.float32)).to(dtype)
                else:
                    data = torch.from_numpy(random.integers(0, 256, shape, dtype=np.uint8)).to(dtype)
                yield tv_image(data) if classed else data


def tv_image(tensor: torch.Tensor) -> Any:
    """Returns a tensor as `torchvision.tv_tensors.Image`."""
    from torchvision.tv_tensors import Image

    return Image(tensor)


def of_image(source: Spec, plan: Plan, mode: str = "") -> Mapped:
    """Returns what `Functional.image` returns, for a plan."""
    return Mapped(Spec.image(plan.size, mode or source.mode), (plan.kind, *plan.static), plan.sample)


def of_tensor(source: Spec, shape: Sequence[int] | None = None, static: Any = None, sample: tuple = ()) -> Mapped:
    """Returns what `Functional.tensor` returns: a result of the source's dtype and class."""
    result = source if shape is None else Spec(source.kind, tuple(shape), source.dtype, source.mode)
    return Mapped(result, static, sample)


class Functional(Strategy):
    """A functional of torchvision, on a PIL image or on a tensor [channels, height, width].

    Attributes:
        names: Its names in version 1, and in version 2.
        rest: Its parameters after the first, of one version each if they differ.
        firsts: The name of the first parameter, of each version.
        more: Further data parameters.
        channels: How many channels tensors may have, or None for any number.
        dtypes: The elements that tensors may have, or None for any.
        modes: The modes that images may have; none if images are not supported.
        version: 1 or 2, set by `functional`.
        tolerance: The one of tensors of floats. PIL images have Pillow's bits, unless they are computed `as_tensors`.
        bytes_tolerance: The one of tensors of bytes.
        as_tensors: Whether the original converts images to tensors of bytes.
    """

    family = "vision"
    library = "torchvision"
    versions = ("0.26.",)
    names: ClassVar[tuple[tuple[str, ...], tuple[str, ...]]]
    rest: ClassVar[str | tuple[str, str]] = ""
    firsts: ClassVar[tuple[str, str]] = ("img", "inpt")
    more: ClassVar[tuple[str, ...]] = ()
    channels: ClassVar[tuple[int, ...] | None] = (1, 3)
    dtypes: ClassVar[tuple[torch.dtype, ...] | None] = (torch.uint8, torch.float32)
    modes: ClassVar[tuple[str, ...]] = MODES
    version: ClassVar[int]
    bytes_tolerance: ClassVar[Tolerance] = EXACT
    as_tensors: ClassVar[bool] = False

    def supports(self, call: Call) -> str | None:
        source = call[self.data[0]]
        if not isinstance(source, Spec):
            return f"{self.data[0]} is neither an image nor a tensor"
        if source.kind == "image":
            if source.mode not in self.modes:
                return f"images of mode {source.mode!r} stay on the CPU"
            return "the image has no pixels" if 0 in source.shape else self.limits(call)
        if source.kind == "array":
            return self.limits(call) if "array" in self.kinds() else "arrays stay on the CPU"
        if source.kind == "tv_image" and self.version == 1:
            return "version 1 makes plain tensors of classes of tensors; that stays on the CPU"
        if self.channels == ():
            return "tensors stay on the CPU"
        if len(source.shape) != 3 or 0 in source.shape:
            return "only tensors [channels, height, width] are migrated"
        if self.channels is not None and source.shape[0] not in self.channels:
            return f"tensors of {source.shape[0]} channels stay on the CPU"
        if self.dtypes is not None and source.dtype not in self.dtypes:
            return f"{str(source.dtype).removeprefix('torch.')} tensors stay on the CPU"
        return self.limits(call)

    def tolerance_of(self, static: Any, outputs: Sequence[Spec]) -> Tolerance:
        if static[0] == "image" and not self.as_tensors:
            return EXACT
        return self.bytes_tolerance if outputs[0].dtype == torch.uint8 else self.tolerance

    def kinds(self) -> tuple[str, ...]:
        """Returns the kinds of inputs besides images and tensors."""
        return ()

    def limits(self, call: Call) -> str | None:
        """Returns a reason not to migrate, besides the input's kind."""
        return None

    def map(self, call: Call) -> Mapped:
        source = call[self.data[0]]
        kind = "image" if source.kind == "image" else "tensor"
        mapped = self.image(source, call) if kind == "image" else self.tensor(source, call)
        return Mapped(mapped.outputs, (kind, mapped.static), mapped.sample, mapped.build, mapped.original)

    def image(self, source: Spec, call: Call) -> Mapped:
        """Maps a call on a PIL image; may raise `Unsupported`."""
        raise NotImplementedError

    def tensor(self, source: Spec, call: Call) -> Mapped:
        """Maps a call on a tensor; may raise `Unsupported`."""
        raise NotImplementedError

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> Tensors:
        kind, settings = static
        if kind == "tensor":
            return self.run_tensor(inputs, settings, sample)
        results = self.run_image([with_bands(inputs[0]), *inputs[1:]], settings, sample)
        if isinstance(results, tuple):
            return tuple(batch[..., 0] if batch.shape[3] == 1 else batch for batch in results)
        return results[..., 0] if results.dim() == 4 and results.shape[3] == 1 else results

    def has_plan(self, static: Any) -> bool:
        """Returns whether settings are those of a `Plan`."""
        return static[0] == "image" and type(self).run_image is Functional.run_image

    def takes_lists(self, static: Any, device: torch.device) -> bool:
        return self.has_plan(static) and on_lists(static[1], device)

    def batch_key(self, static: Any, lists: bool) -> Hashable:
        if not self.has_plan(static):
            return super().batch_key(static, lists)
        return "functional with a plan", key_of_plan(static[1], lists)

    def run_image(self, images: list[Any], static: Any, sample: Sequence[torch.Tensor]) -> Tensors:
        """Computes a batch of images [batch, height, width, bands], or a list if `takes_lists`."""
        return run_plan(images[0], static, sample)

    def run_tensor(self, inputs: Sequence[torch.Tensor], static: Any, sample: Sequence[torch.Tensor]) -> Tensors:
        """Computes a batch of tensors [batch, channels, height, width]."""
        raise NotImplementedError

    def inputs(self, random: np.random.Generator, smallest: int = 1) -> Iterator[Any]:
        """Yields inputs that are supported."""
        channels = (1, 2, 3) if self.channels is None else self.channels
        dtypes = (torch.uint8, torch.float32) if self.dtypes is None else self.dtypes
        return random_inputs(random, self.version, self.modes, channels, dtypes, smallest=smallest)

    def examples(self, random: np.random.Generator) -> Calls:
        for data in self.inputs(random):
            yield (data,), {}


def functional(strategy: type[Functional]) -> type[Functional]:
    """Class decorator: registers a strategy under its names in both versions."""
    for version, module in MODULES.items():
        first = strategy.firsts[version - 1]
        rest = strategy.rest if isinstance(strategy.rest, str) else strategy.rest[version - 1]
        for name in strategy.names[version - 1]:
            register(
                type(f"{strategy.__name__}{version}", (strategy,), {
                    "__module__": strategy.__module__, "target": f"{module}.{name}", "version": version,
                    "parameters": ", ".join(filter(None, (first, rest))), "data": (first, *strategy.more),
                })
            )  # fmt: skip
    return strategy


def channels_first(images: torch.Tensor) -> torch.Tensor:
    """Returns [batch, height, width, bands] as [batch, bands, height, width]."""
    return images.permute(0, 3, 1, 2).contiguous()


def channels_last(images: torch.Tensor) -> torch.Tensor:
    """Returns [batch, bands, height, width] as [batch, height, width, bands]."""
    return images.permute(0, 2, 3, 1).contiguous()


# Conversions.


class ToChannelsFirst(Functional):
    """A PIL image, or an array [height, width(, channels)], as a tensor."""

    channels = ()
    array: ClassVar[bool] = False

    def kinds(self) -> tuple[str, ...]:
        return ("array",) if self.array else ()

    def dtype(self, source: Spec) -> torch.dtype:
        return source.dtype

    def kind(self) -> str:
        return "tensor"

    def image(self, source: Spec, call: Call) -> Mapped:
        dtype = self.dtype(source)
        return Mapped(Spec(self.kind(), (source.channels, *source.shape[:2]), dtype), dtype)

    def tensor(self, source: Spec, call: Call) -> Mapped:
        if len(source.shape) not in (2, 3) or 0 in source.shape:
            raise Unsupported("only arrays [height, width] and [height, width, channels] are migrated")
        return self.image(source, call)

    def run_image(self, images: list[torch.Tensor], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        return self.converted(channels_first(images[0]), static)

    def run_tensor(self, inputs: Sequence[torch.Tensor], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        arrays = inputs[0] if inputs[0].dim() == 4 else inputs[0][..., None]
        return self.converted(channels_first(arrays), static)

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> Tensors:
        return self.run_tensor(inputs, static[1], sample)

    def converted(self, images: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return images

    def examples(self, random: np.random.Generator) -> Calls:
        for image in random_images(random):
            if self.array and random.random() < 0.5:
                yield (np.array(image).astype(random.choice([np.uint8, np.uint8, np.float32, np.int64])),), {}
            else:
                yield (image,), {}


@functional
class ToTensor(ToChannelsFirst):
    names = (("to_tensor",), ())
    firsts = ("pic", "")
    array = True

    def dtype(self, source: Spec) -> torch.dtype:
        return torch.get_default_dtype() if source.dtype == torch.uint8 else source.dtype

    def converted(self, images: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return tensors.over(images.to(dtype), 255.0) if images.dtype == torch.uint8 else images


@functional
class PilToTensor(ToChannelsFirst):
    names = (("pil_to_tensor",), ("pil_to_tensor",))
    firsts = ("pic", "pic")


@functional
class ToImage(ToChannelsFirst):
    names = ((), ("to_image",))
    array = True

    def kind(self) -> str:
        return "tv_image"


@functional
class ToPilImage(Functional):
    names = (("to_pil_image",), ("to_pil_image",))
    firsts = ("pic", "pic")
    rest = "mode=None"
    modes = ()
    channels = (1, 2, 3, 4)

    def tensor(self, source: Spec, call: Call) -> Mapped:
        count, height, width = source.shape
        default = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}[count]
        mode = call["mode"] or (default if source.dtype == torch.uint8 or count == 1 else "")
        allowed = {3: ("RGB", "YCbCr", "HSV"), 4: ("RGBA", "CMYK", "RGBX")}.get(count, (default,))
        if mode not in allowed:
            raise Unsupported(f"the mode {mode!r} stays on the CPU")
        return Mapped(Spec.image((width, height), mode))

    def run_tensor(self, inputs: Sequence[torch.Tensor], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        (images,) = inputs
        if images.dtype != torch.uint8:
            # numpy drops the bits above a byte.
            images = ((images * 255).to(torch.int32) & 255).to(torch.uint8)
        return images[:, 0] if images.shape[1] == 1 else channels_last(images)

    def examples(self, random: np.random.Generator) -> Calls:
        for data in self.inputs(random):
            if type(data) is torch.Tensor:
                if data.dtype == torch.uint8 or data.shape[0] == 1:
                    yield (data,), {}
                else:
                    yield (data, {2: "LA", 3: "YCbCr", 4: "CMYK"}[data.shape[0]]), {}


ELEMENTS = (torch.uint8, torch.int16, torch.int32, torch.int64, torch.float32, torch.float64)


class Elements(Functional):
    """A conversion of a tensor's elements. The library's own kernels do it: they take any shape."""

    modes = ()
    channels = None
    dtypes = ELEMENTS

    def kernel(self) -> Callable[..., torch.Tensor]:
        raise NotImplementedError

    def scaled(self, call: Call) -> bool:
        return True

    def tensor(self, source: Spec, call: Call) -> Mapped:
        dtype, scale = call["dtype"], self.scaled(call)
        if dtype not in ELEMENTS:
            raise Unsupported(f"{str(dtype).removeprefix('torch.')} tensors stay on the CPU")
        if scale and source.dtype.is_floating_point and (
            dtype == torch.int64 or (dtype == torch.int32 and source.dtype == torch.float32)
        ):  # fmt: skip
            raise Unsupported("the conversion is not safe")
        return Mapped(dataclasses.replace(source, dtype=dtype), (dtype, scale))

    def examples(self, random: np.random.Generator) -> Calls:
        for data in self.inputs(random):
            if type(data) is not torch.Tensor and self.names[1] != ("to_dtype",):
                continue
            allowed = [
                dtype
                for dtype in ELEMENTS
                if not data.dtype.is_floating_point or dtype not in (torch.int32, torch.int64)
            ]
            yield (data, allowed[int(random.integers(0, len(allowed)))]), {}


@functional
class ConvertImageDtype(Elements):
    names = (("convert_image_dtype",), ("convert_image_dtype",))
    firsts = ("image", "image")
    rest = ("dtype=torch.float", "dtype=torch.float32")

    def limits(self, call: Call) -> str | None:
        return "classes of tensors stay on the CPU" if call["image"].kind == "tv_image" else None

    def run_tensor(self, inputs: Sequence[torch.Tensor], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        return elements(inputs[0], *static, self.version)


@functional
class ToDtype(Elements):
    names = ((), ("to_dtype",))
    rest = "dtype=torch.float, scale=False"

    def scaled(self, call: Call) -> bool:
        return bool(call["scale"])

    def run_tensor(self, inputs: Sequence[torch.Tensor], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        return elements(inputs[0], *static, 2)

    def examples(self, random: np.random.Generator) -> Calls:
        for positional, _ in super().examples(random):
            yield positional, {"scale": True} if random.random() < 0.7 else {}


def elements(images: torch.Tensor, dtype: torch.dtype, scale: bool, version: int) -> torch.Tensor:
    """Converts elements; with `scale`, white stays white."""
    if images.dtype == dtype:
        return images
    if not scale:
        return images.to(dtype)
    white = {entry: 1 if entry.is_floating_point else torch.iinfo(entry).max for entry in (images.dtype, dtype)}
    if images.dtype.is_floating_point:
        return images.to(dtype) if dtype.is_floating_point else images.mul(float(white[dtype]) + 1.0 - 1e-3).to(dtype)
    if dtype.is_floating_point:
        wide = images.to(dtype)
        return tensors.over(wide, float(white[images.dtype])) if version == 1 else wide * (1.0 / white[images.dtype])
    # Powers of two: shifts.
    bits = {entry: value.bit_length() for entry, value in white.items()}
    if bits[images.dtype] > bits[dtype]:
        return (images >> (bits[images.dtype] - bits[dtype])).to(dtype)
    return images.to(dtype) << (bits[dtype] - bits[images.dtype])


@functional
class Normalize(Functional):
    names = (("normalize",), ("normalize",))
    firsts = ("tensor", "inpt")
    rest = "mean, std, inplace=False"
    modes = ()
    channels = None
    dtypes = (torch.float32, torch.float64)

    def limits(self, call: Call) -> str | None:
        return "inplace= is given" if call["inplace"] else None

    def tensor(self, source: Spec, call: Call) -> Mapped:
        mean, std = (tuple(np.atleast_1d(np.asarray(call[name], np.float64)).tolist()) for name in ("mean", "std"))
        if len(mean) not in (1, source.shape[0]) or len(std) not in (1, source.shape[0]):
            raise Unsupported("means or deviations are not one for each channel")
        if 0 in (np.float32(value) for value in std):
            raise Unsupported("a deviation is 0")
        return of_tensor(source, static=(mean, std))

    def run_tensor(self, inputs: Sequence[torch.Tensor], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        (images,) = inputs
        mean, std = (torch.tensor(values, dtype=images.dtype, device=images.device)[:, None, None] for values in static)
        return (images - mean) / std

    def examples(self, random: np.random.Generator) -> Calls:
        mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
        for data in self.inputs(random):
            count = data.shape[0] if random.random() < 0.7 else 1
            yield (data, mean[:count], tuple(std[:count])), {}


# Colours by a factor.


class Factor(Functional):
    """A change of colours by a factor of the sample's own."""

    factor: ClassVar[str]
    low: ClassVar[float] = 0.0
    high: ClassVar[float] = 3.0

    def number(self, call: Call) -> float:
        value = call[self.factor]
        if not isinstance(value, numbers.Real) or not np.isfinite(value):
            raise Unsupported(f"{self.factor} is no finite number")
        return float(value)

    def tensor(self, source: Spec, call: Call) -> Mapped:
        factor = self.number(call)
        if not self.low <= factor:
            raise Unsupported(f"{self.factor} is below {self.low:g}")
        return of_tensor(source, sample=(factor,))

    def examples(self, random: np.random.Generator) -> Calls:
        for data in self.inputs(random):
            yield (data, float(random.choice([0.0, 0.5, 1.0, random.uniform(self.low, self.high)]))), {}


def with_alpha_of(images: torch.Tensor, changed: torch.Tensor, mode: str) -> torch.Tensor:
    """Returns an image with the band of alpha of another, if its mode has one."""
    return torch.cat([changed[..., :-1], images[..., -1:]], 3) if mode in ("LA", "RGBA") else changed


class Enhanced(Factor):
    """A change that is `enhance` of a class of `PIL.ImageEnhance` on images."""

    property: ClassVar[int]

    def image(self, source: Spec, call: Call) -> Mapped:
        return of_image(source, plan_enhance(source, self.property, self.number(call)))


@functional
class AdjustBrightness(Enhanced):
    names = (("adjust_brightness",), ("adjust_brightness",))
    rest = factor = "brightness_factor"
    property = BRIGHTNESS

    def run_tensor(self, inputs: Sequence[torch.Tensor], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        return tensors.brightness(inputs[0], sample[0])


@functional
class AdjustContrast(Enhanced):
    names = (("adjust_contrast",), ("adjust_contrast",))
    rest = factor = "contrast_factor"
    property = CONTRAST
    tolerance = NEARLY

    def limits(self, call: Call) -> str | None:
        source = call[self.data[0]]
        # Larger sums of bytes are not exact as floats.
        if source.kind != "image" and source.shape[1] * source.shape[2] * 255 >= 1 << 24:
            return "tensors of more than 65,793 pixels stay on the CPU"
        return None

    def run_tensor(self, inputs: Sequence[torch.Tensor], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        return tensors.contrast(inputs[0], sample[0], self.version)


@functional
class AdjustSaturation(Enhanced):
    names = (("adjust_saturation",), ("adjust_saturation",))
    rest = factor = "saturation_factor"
    property = COLOR

    def run_tensor(self, inputs: Sequence[torch.Tensor], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        (images,) = inputs
        return images if images.shape[1] == 1 else tensors.saturation(images, sample[0], self.version)


@functional
class AdjustHue(Factor):
    names = (("adjust_hue",), ("adjust_hue",))
    rest = factor = "hue_factor"
    low = -0.5
    high = 0.5

    def number(self, call: Call) -> float:
        value = super().number(call)
        if not -0.5 <= value <= 0.5:
            raise Unsupported("hue_factor is not from -0.5 to 0.5")
        return value

    def image(self, source: Spec, call: Call) -> Mapped:
        return Mapped(source, source.mode, (int(np.int32(self.number(call) * 255).astype(np.uint8)),))

    def run_image(self, images: list[torch.Tensor], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        (image,), mode = images, static
        if mode == "L":
            return image
        hsv = image if mode == "HSV" else pixels.convert(image, pixels.conversion(mode, "HSV"))
        turned = ((hsv[..., :1] + pixels.per_sample(sample[0], hsv)) & 255).to(torch.uint8)
        hsv = torch.cat([turned, hsv[..., 1:]], 3)
        return hsv if mode == "HSV" else pixels.convert(hsv, pixels.conversion("HSV", mode))

    def run_tensor(self, inputs: Sequence[torch.Tensor], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        (images,) = inputs
        return images if images.shape[1] == 1 else tensors.hue(images, sample[0], self.version)

    def examples(self, random: np.random.Generator) -> Calls:
        for data in self.inputs(random):
            yield (data, float(random.choice([-0.5, 0.0, 0.5, random.uniform(-0.5, 0.5)]))), {}


@functional
class AdjustGamma(Factor):
    names = (("adjust_gamma",), ("adjust_gamma",))
    rest = "gamma, gain=1"
    factor = "gamma"
    tolerance = Tolerance(relative=1e-6, absolute=1e-7, note="powers of floats")

    def image(self, source: Spec, call: Call) -> Mapped:
        gamma, gain = self.number(call), call["gain"]
        if gamma < 0:
            raise Unsupported("gamma is below 0")
        table = [int((255 + 1 - 1e-3) * gain * pow(value / 255.0, gamma)) for value in range(256)]
        return Mapped(source, source.mode, (np.clip(table, 0, 255).astype(np.uint8)[None],))

    def tensor(self, source: Spec, call: Call) -> Mapped:
        gamma, gain = self.number(call), float(call["gain"])
        if gamma < 0:
            raise Unsupported("gamma is below 0")
        if source.dtype != torch.uint8:
            return of_tensor(source, sample=(gamma, gain))
        values = torch.arange(256, dtype=torch.float32)
        values = values / 255.0 if self.version == 1 else values * (1.0 / 255)
        powers = values**gamma
        if self.version == 1 or gain != 1.0:
            powers = (gain * powers).clamp(0, 1)
        table = (powers * (255 + 1.0 - 1e-3)).to(torch.uint8)
        return of_tensor(source, sample=(table.numpy()[None],))

    def run_image(self, images: list[torch.Tensor], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        (image,), mode = images, static
        image = image if mode == "RGB" else pixels.convert(image, pixels.conversion(mode, "RGB"))
        image = pixels.lookup(image, sample[0].expand(-1, 3, -1))
        return image if mode == "RGB" else pixels.convert(image, pixels.conversion("RGB", mode))

    def run_tensor(self, inputs: Sequence[torch.Tensor], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        (images,) = inputs
        if images.dtype != torch.uint8:
            return tensors.gamma(images, *sample)
        return pixels.lookup(images.reshape(len(images), -1, 1, 1), sample[0]).reshape(images.shape)

    def examples(self, random: np.random.Generator) -> Calls:
        for data in self.inputs(random):
            gain = {} if random.random() < 0.7 else {"gain": float(random.uniform(0.2, 1.5))}
            yield (data, float(random.choice([0.5, 1.0, 2.2, random.uniform(0, 3)]))), gain


@functional
class AdjustSharpness(Factor):
    names = (("adjust_sharpness",), ("adjust_sharpness",))
    rest = factor = "sharpness_factor"
    tolerance = NEARLY

    def image(self, source: Spec, call: Call) -> Mapped:
        return Mapped(source, source.mode, (self.number(call),))

    def run_image(self, images: list[torch.Tensor], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        (image,) = images
        smooth = image
        if min(image.shape[1:3]) >= 3:
            parts = [float(np.float32(part) / np.float32(13)) for part in (1, 1, 1, 1, 5, 1, 1, 1, 1)]
            smooth = filters.convolve(image, parts, 0.0)
        return pixels.blend(with_alpha_of(image, smooth, static), image, sample[0])

    def run_tensor(self, inputs: Sequence[torch.Tensor], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        (images,) = inputs
        return images if min(images.shape[2:]) <= 2 else tensors.sharpness(images, sample[0], self.version)


# Colours without a factor, or by thresholds.


@functional
class RgbToGrayscale(Functional):
    names = (("rgb_to_grayscale",), ("rgb_to_grayscale", "to_grayscale"))
    rest = "num_output_channels=1"

    def limits(self, call: Call) -> str | None:
        return None if call["num_output_channels"] in (1, 3) else "there is no result of such a number of channels"

    def image(self, source: Spec, call: Call) -> Mapped:
        mode = "L" if call["num_output_channels"] == 1 else "RGB"
        if source.mode == mode == "RGB":
            return of_image(source, plan_enhance(source, COLOR, 0.0))
        return of_image(source, Plan("grey", size_of(source), (source.mode, mode)), mode)

    def tensor(self, source: Spec, call: Call) -> Mapped:
        count = call["num_output_channels"]
        if self.version == 1 and source.shape[0] == 1:
            count = 1  # as many as there were
        return of_tensor(source, (count, *source.shape[1:]), count)

    def run_tensor(self, inputs: Sequence[torch.Tensor], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        (images,) = inputs
        grey = images if images.shape[1] == 1 else tensors.grey(images, self.version).to(images.dtype)
        return grey.expand(len(grey), static, *grey.shape[2:])

    def examples(self, random: np.random.Generator) -> Calls:
        for data in self.inputs(random):
            yield (data,), {"num_output_channels": int(random.choice([1, 3]))}


@functional
class ToGrayscale(RgbToGrayscale):
    names = (("to_grayscale",), ())
    channels = ()


@functional
class GrayscaleToRgb(Functional):
    names = ((), ("grayscale_to_rgb",))

    def image(self, source: Spec, call: Call) -> Mapped:
        return Mapped(Spec.image(size_of(source), "RGB"), source.mode)

    def tensor(self, source: Spec, call: Call) -> Mapped:
        return of_tensor(source, (3, *source.shape[1:]))

    def run_image(self, images: list[torch.Tensor], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        return images[0] if static == "RGB" else pixels.convert(images[0], pixels.conversion(static, "RGB"))

    def run_tensor(self, inputs: Sequence[torch.Tensor], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        return inputs[0].expand(len(inputs[0]), 3, *inputs[0].shape[2:])


@functional
class PermuteChannels(Functional):
    names = ((), ("permute_channels",))
    rest = "permutation"
    modes = ()
    channels = None
    dtypes = None

    def tensor(self, source: Spec, call: Call) -> Mapped:
        order = tuple(call["permutation"])
        if len(order) != source.shape[0] or not all(-len(order) <= place < len(order) for place in order):
            raise Unsupported("the permutation is not of the channels")
        return of_tensor(source, static=order)

    def run_tensor(self, inputs: Sequence[torch.Tensor], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.stack([inputs[0][:, place] for place in static], 1)

    def examples(self, random: np.random.Generator) -> Calls:
        for data in self.inputs(random):
            yield (data, random.permutation(data.shape[0]).tolist()), {}


class Pointwise(Functional):
    """An operation that PIL has for grey and RGB images."""

    modes = ("L", "RGB")

    def image(self, source: Spec, call: Call) -> Mapped:
        return Mapped(source)

    def tensor(self, source: Spec, call: Call) -> Mapped:
        return of_tensor(source)


@functional
class Invert(Pointwise):
    names = (("invert",), ("invert",))

    def run_image(self, images: list[torch.Tensor], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        return 255 - images[0]

    def run_tensor(self, inputs: Sequence[torch.Tensor], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        return tensors.invert(inputs[0])


@functional
class Posterize(Pointwise):
    names = (("posterize",), ("posterize",))
    rest = "bits"
    dtypes = (torch.uint8,)

    def limits(self, call: Call) -> str | None:
        least = 1 if call[self.data[0]].kind == "image" else 0
        return None if call["bits"] in range(least, 9) else f"bits are {least} to 8"

    def image(self, source: Spec, call: Call) -> Mapped:
        return Mapped(source, sample=(np.uint8(256 - 2 ** (8 - call["bits"])),))

    def tensor(self, source: Spec, call: Call) -> Mapped:
        return of_tensor(source, sample=(np.uint8((256 - 2 ** (8 - call["bits"])) & 255),))

    def run_image(self, images: list[torch.Tensor], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        return images[0] & pixels.per_sample(sample[0], images[0])

    run_tensor = run_image

    def examples(self, random: np.random.Generator) -> Calls:
        for data in self.inputs(random):
            yield (data, int(random.integers(1, 9))), {}


@functional
class Solarize(Pointwise):
    names = (("solarize",), ("solarize",))
    rest = "threshold"

    def limits(self, call: Call) -> str | None:
        source, threshold = call[self.data[0]], call["threshold"]
        if source.kind != "image" and threshold > tensors.largest(source.dtype):
            return "the threshold is above white"
        return None

    def image(self, source: Spec, call: Call) -> Mapped:
        return Mapped(source, sample=(float(call["threshold"]),))

    def tensor(self, source: Spec, call: Call) -> Mapped:
        return of_tensor(source, sample=(float(call["threshold"]),))

    def run_image(self, images: list[torch.Tensor], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        (image,) = images
        return torch.where(image < pixels.per_sample(sample[0], image), image, 255 - image)

    def run_tensor(self, inputs: Sequence[torch.Tensor], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        (images,) = inputs
        threshold = pixels.per_sample(sample[0].to(torch.float32), images)
        return torch.where(images >= threshold, tensors.invert(images), images)

    def examples(self, random: np.random.Generator) -> Calls:
        for data in self.inputs(random):
            white = 1 if isinstance(data, torch.Tensor) and data.dtype == torch.float32 else 255
            yield (data, float(random.choice([0, 0.4, 0.5, 1])) * white), {}


@functional
class AutoContrast(Pointwise):
    names = (("autocontrast",), ("autocontrast",))

    def run_image(self, images: list[torch.Tensor], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        return pixels.stretch(images[0], *pixels.levels(images[0]))

    def run_tensor(self, inputs: Sequence[torch.Tensor], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        return tensors.autocontrast(inputs[0], self.version)

    def examples(self, random: np.random.Generator) -> Calls:
        for data in self.inputs(random):
            if isinstance(data, torch.Tensor) and data.dtype == torch.uint8 and random.random() < 0.5:
                data = data // 3 + 70
            yield (data,), {}


@functional
class Equalize(Pointwise):
    names = (("equalize",), ("equalize",))
    dtypes = (torch.uint8,)

    def run_image(self, images: list[torch.Tensor], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        return pixels.equalize(images[0])

    def run_tensor(self, inputs: Sequence[torch.Tensor], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        return channels_first(pixels.equalize(channels_last(inputs[0])))

    def examples(self, random: np.random.Generator) -> Calls:
        for data in random_inputs(random, self.version, self.modes, (1, 3), self.dtypes, 60):
            yield (data,), {}
