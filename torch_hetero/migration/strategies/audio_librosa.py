"""librosa: waveforms and spectrograms as numpy arrays [..., time] and [..., frequency, time].

librosa computes spectra of float32 in float64; here they are computed in float32. It raises an error for audio that
is not finite everywhere; here the result is not finite.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from torch_hetero.migration.constant import Constant
from torch_hetero.migration.spec import Spec
from torch_hetero.migration.strategy import Call, Mapped, Strategy, Tolerance, Unsupported, find, register

Examples = Iterator[tuple[tuple[Any, ...], dict[str, Any]]]
PAD_MODES = {"constant": "constant", "reflect": "reflect", "edge": "replicate"}


class Librosa(Strategy):
    """A function of a waveform or a spectrogram."""

    family = "audio"
    library = "librosa"
    versions = ("0.11.",)
    data = ("y",)

    def supports(self, call: Call) -> str | None:
        given = [name for name in self.data if call[name] is not None]
        if len(given) != 1:
            return f"{' and '.join(given)} are given" if given else f"{self.data[0]} is not given"
        source = call[given[0]]
        if not isinstance(source, Spec) or source.kind != "array":
            return f"{given[0]} is no array"
        if source.dtype not in (torch.float32, torch.float64):
            return f"{given[0]} has elements of {str(source.dtype).removeprefix('torch.')}"
        if not source.shape or 0 in source.shape:
            return f"{given[0]} is empty or a number"
        return self.refuses(call, source)

    def refuses(self, call: Call, source: Spec) -> str | None:
        """Returns `supports` for a call whose data is an array of floats."""
        return None


def wave(random: np.random.Generator, dtype: Any = np.float32) -> np.ndarray:
    """Returns a waveform: a tone in noise."""
    shape = [(1500,), (2, 1200)][random.integers(2)]
    tone = np.sin(np.arange(shape[-1]) * random.uniform(0.01, 1))
    return ((tone + random.normal(0, 0.1, shape)) / 2).astype(dtype)


# Spectra.


def frames_refused(call: Call, source: Spec) -> str | None:
    """Returns a reason not to compute the spectra of a waveform."""
    n_fft, hop, width = call["n_fft"], call["hop_length"], call["win_length"]
    if not isinstance(n_fft, int) or n_fft < 1:
        return "n_fft is no size"
    if not (hop is None or (isinstance(hop, int) and hop > 0)):
        return "hop_length is no size"
    if not (width is None or (isinstance(width, int) and 0 < width <= n_fft)):
        return "win_length is no size up to n_fft"
    if hop is None and (width or n_fft) < 4:
        return "hop_length is 0"
    if not isinstance(call["window"], (str, tuple, float)):
        return "the window is an array or a function"
    if call["center"] and (call["pad_mode"] not in PAD_MODES):
        return f"pad_mode {call['pad_mode']!r} stays on the CPU"
    if source.shape[-1] < n_fft:
        return "the waveform is shorter than a frame"
    return None


def frame_settings(call: Call, dtype: torch.dtype) -> tuple[Any, ...]:
    """Returns the settings of `spectra`."""
    width = call["win_length"] or call["n_fft"]
    hop = call["hop_length"] or width // 4
    mode = PAD_MODES[call["pad_mode"]] if call["center"] else ""
    return call["n_fft"], hop, width, window_of(call["window"], width, dtype), mode


@functools.lru_cache(64)
def window_of(name: Any, width: int, dtype: torch.dtype) -> Constant:
    """Returns a window."""
    import scipy.signal

    return Constant(torch.from_numpy(scipy.signal.get_window(name, width, fftbins=True)).to(dtype))


def frame_count(length: int, settings: tuple[Any, ...]) -> int:
    """Returns the number of spectra of a waveform."""
    n_fft, hop, *_, mode = settings
    return 1 + (length + (2 * (n_fft // 2) if mode else 0) - n_fft) // hop


def spectra(waves: torch.Tensor, settings: tuple[Any, ...]) -> torch.Tensor:
    """Returns the complex spectra [..., frequency, time] of waveforms [..., time]."""
    n_fft, hop, width, window, mode = settings
    flat = waves.reshape(-1, 1, waves.shape[-1])
    if mode:
        flat = torch.nn.functional.pad(flat, (n_fft // 2, n_fft // 2), mode)
    result = torch.stft(
        flat.squeeze(1), n_fft, hop, width, window.on(waves.device), center=False, return_complex=True
    )  # fmt: skip
    return result.reshape(*waves.shape[:-1], *result.shape[-2:])


def random_frames(random: np.random.Generator) -> dict[str, Any]:
    """Returns settings of spectra."""
    options = [
        {"n_fft": 256}, {"n_fft": 256, "hop_length": 100, "pad_mode": "reflect"},
        {"n_fft": 200, "win_length": 150, "window": "hamming"}, {"n_fft": 256, "hop_length": 64, "center": False},
        {"n_fft": 300, "pad_mode": "edge", "window": ("kaiser", 8.0)},
    ]  # fmt: skip
    return dict(options[random.integers(len(options))])


@register
class STFT(Librosa):
    target = "librosa.stft"
    parameters = (
        "y, *, n_fft=2048, hop_length=None, win_length=None, window='hann', center=True, dtype=None, "
        "pad_mode='constant', out=None"
    )
    tolerance = Tolerance(2e-5, 1e-5, note="spectra in float32, of amplitudes up to 1; librosa's are made in float64")

    def refuses(self, call: Call, source: Spec) -> str | None:
        return call.given("out", "dtype") or frames_refused(call, source)

    def map(self, call: Call) -> Mapped:
        source = call["y"]
        settings = frame_settings(call, source.dtype)
        shape = (*source.shape[:-1], call["n_fft"] // 2 + 1, frame_count(source.shape[-1], settings))
        return Mapped(Spec("array", shape, source.dtype.to_complex()), settings)

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        return spectra(inputs[0], static)

    def examples(self, random: np.random.Generator) -> Examples:
        while True:
            yield (wave(random, [np.float32, np.float64][random.integers(2)]),), random_frames(random)


@functools.lru_cache(64)
def mel_filters(rate: float, n_fft: int, options: tuple[tuple[str, Any], ...]) -> Constant:
    """Returns the transposed filters [frequency, mel] of librosa."""
    import librosa

    return Constant(torch.from_numpy(librosa.filters.mel(sr=rate, n_fft=n_fft, **dict(options)).T.copy()))


@register
class MelSpectrogram(Librosa):
    target = "librosa.feature.melspectrogram"
    parameters = (
        "*, y=None, sr=22050, S=None, n_fft=2048, hop_length=512, win_length=None, window='hann', center=True, "
        "pad_mode='constant', power=2.0, **keywords"
    )
    data = ("y", "S")
    tolerance = Tolerance(1e-4, 1e-4, note="spectra in float32; librosa's are made in float64")
    filters: ClassVar[tuple[str, ...]] = ("n_mels", "fmin", "fmax", "htk", "norm")

    def refuses(self, call: Call, source: Spec) -> str | None:
        for name, value in call["keywords"].items():
            if name not in self.filters or not isinstance(value, (int, float, str, bool, type(None))):
                return f"{name}= is given"
        if not isinstance(call["sr"], (int, float)) or not isinstance(call["power"], (int, float)):
            return "sr or power is no number"
        if source.dtype != torch.float32:
            return "the filters are float32, and the data is not"
        if call["S"] is None:
            return frames_refused(call, source)
        return None if len(source.shape) > 1 and source.shape[-2] > 1 else "S has no frequencies"

    def settings(self, call: Call) -> tuple[Any, tuple[int, ...]]:
        """Returns the settings of `spectrum`, and the sizes of its result."""
        from_wave = call["S"] is None
        source = call["y"] if from_wave else call["S"]
        n_fft = call["n_fft"]
        if not from_wave and (n_fft is None or n_fft // 2 + 1 != source.shape[-2]):
            n_fft = 2 * (source.shape[-2] - 1)
        try:
            bank = mel_filters(call["sr"], n_fft, tuple(sorted(call["keywords"].items())))
        except Exception as error:  # librosa's ParameterError
            raise Unsupported(f"librosa raises {type(error).__name__}: {error}") from None
        frames = frame_settings(call, source.dtype) if from_wave else None
        times = frame_count(source.shape[-1], frames) if from_wave else source.shape[-1]
        channels = source.shape[:-1] if from_wave else source.shape[:-2]
        return (frames, float(call["power"]), bank), (*channels, bank.tensor.shape[1], times)

    def map(self, call: Call) -> Mapped:
        settings, shape = self.settings(call)
        return Mapped(Spec("array", shape, torch.float32), settings)

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        return mel_spectrum(inputs[0], static)

    def examples(self, random: np.random.Generator) -> Examples:
        while True:
            keywords = [{"n_mels": 20}, {"n_mels": 16, "htk": True, "norm": None}, {"n_mels": 24, "fmin": 50.0}]
            options = keywords[random.integers(3)] | {"sr": [8000, 16000][random.integers(2)]}
            if random.random() < 0.3:
                yield (), {"S": np.square(random.normal(0, 1, (2, 129, 7))).astype(np.float32)} | options
            else:
                power = {"power": 1.0} if random.random() < 0.3 else {}
                yield (), {"y": wave(random)} | random_frames(random) | options | power


def mel_spectrum(data: torch.Tensor, settings: tuple[Any, ...]) -> torch.Tensor:
    """Returns mel spectrograms of waveforms, or of spectrograms."""
    frames, power, bank = settings
    if frames is not None:
        magnitude = spectra(data, frames).abs()
        data = magnitude.square() if power == 2 else magnitude if power == 1 else magnitude.pow(power)
    return torch.matmul(data.transpose(-1, -2), bank.on(data.device)).transpose(-1, -2)


def whole(batch: torch.Tensor) -> tuple[int, ...]:
    """Returns the dimensions of each sample."""
    return tuple(range(1, batch.dim()))


def decibels(power: torch.Tensor, reference: torch.Tensor | float, amin: float, top: float | None) -> torch.Tensor:
    """Returns decibels of powers; `top` is below the largest of each sample."""
    if isinstance(reference, torch.Tensor):
        zero = 10.0 * torch.log10(torch.clamp(reference, min=amin))
    else:
        zero = 10.0 * float(np.log10(np.maximum(amin, reference)))
    result = 10.0 * torch.log10(torch.clamp(power, min=amin)) - zero
    return result if top is None else torch.maximum(result, result.amax(whole(result), keepdim=True) - top)


@functools.lru_cache(64)
def cosines(count: int, mels: int, kind: int, norm: str | None, lifter: float, dtype: torch.dtype) -> Constant:
    """Returns the discrete cosine transform as a matrix [mel, coefficient], with librosa's lifter."""
    import scipy.fft

    matrix = scipy.fft.dct(np.eye(mels), axis=0, type=kind, norm=norm)[:count]
    if lifter > 0:
        factors = 1 + (lifter / 2) * np.sin(np.pi * np.arange(1, 1 + count) / lifter)
        matrix = matrix * factors[: len(matrix), None]
    return Constant(torch.from_numpy(matrix.T.copy()).to(dtype))


@register
class MFCC(Librosa):
    target = "librosa.feature.mfcc"
    parameters = (
        "*, y=None, sr=22050, S=None, n_mfcc=20, dct_type=2, norm='ortho', lifter=0, mel_norm='slaney', **keywords"
    )
    data = ("y", "S")
    tolerance = Tolerance(5e-3, 1e-4, note="sums of decibels of spectra in float32; librosa's are made in float64")

    def mel(self, call: Call) -> tuple[MelSpectrogram, Call]:
        """Returns the strategy and the call of the mel spectrogram."""
        strategy = find("librosa.feature.melspectrogram")
        keywords = {"y": call["y"], "sr": call["sr"], "norm": call["mel_norm"]} | call["keywords"]
        try:
            return strategy, Call(strategy.bind(**keywords))
        except TypeError as error:
            raise Unsupported(str(error)) from None

    def refuses(self, call: Call, source: Spec) -> str | None:
        if call["dct_type"] not in (1, 2, 3) or call["norm"] not in ("ortho", None):
            return "dct_type and norm are none of the usual"
        if not isinstance(call["n_mfcc"], int) or call["n_mfcc"] < 1:
            return "n_mfcc is no size"
        if not isinstance(call["lifter"], (int, float)) or call["lifter"] < 0:
            return "lifter is no number"
        if call["S"] is not None:
            return None if len(source.shape) > 1 else "S has no frequencies"
        strategy, mel = self.mel(call)
        return strategy.refuses(mel, source)

    def map(self, call: Call) -> Mapped:
        if call["S"] is None:
            strategy, mel = self.mel(call)
            settings, shape = strategy.settings(mel)
        else:
            settings, shape = None, call["S"].shape
        dtype = torch.float32 if settings else call["S"].dtype
        count = min(call["n_mfcc"], shape[-2])
        matrix = cosines(count, shape[-2], call["dct_type"], call["norm"], float(call["lifter"]), dtype)
        return Mapped(Spec("array", (*shape[:-2], count, shape[-1]), dtype), (settings, matrix))

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        settings, matrix = static
        (levels,) = inputs
        if settings is not None:
            levels = decibels(mel_spectrum(levels, settings), 1.0, 1e-10, 80.0)
        return torch.matmul(levels.transpose(-1, -2), matrix.on(levels.device)).transpose(-1, -2)

    def examples(self, random: np.random.Generator) -> Examples:
        while True:
            options = [{"n_mfcc": 13}, {"n_mfcc": 10, "lifter": 22}, {"norm": None}][random.integers(3)]
            if random.random() < 0.3:
                yield (), {"S": random.normal(-30, 10, (2, 24, 7)).astype(np.float32)} | options
            else:
                yield (), {"y": wave(random), "sr": 16000, "n_mels": 24} | random_frames(random) | options


class Decibels(Librosa):
    """Decibels of a spectrogram, against a number or its largest element."""

    data = ("S",)
    tolerance = Tolerance(2e-5, 1e-6, note="numpy's and torch's logarithms differ in the last digit")

    def refuses(self, call: Call, source: Spec) -> str | None:
        reference, amin, top = call["ref"], call["amin"], call["top_db"]
        if not isinstance(reference, (int, float)) and not of_largest(reference):
            return "ref is neither a number nor numpy.max"
        if not isinstance(amin, (int, float)) or amin <= 0:
            return "amin is no positive number"
        if not (top is None or (isinstance(top, (int, float)) and top >= 0)):
            return "top_db is no number"
        return None

    def map(self, call: Call) -> Mapped:
        reference, top = call["ref"], call["top_db"]
        number = None if of_largest(reference) else abs(float(reference))
        return Mapped(call["S"], (number, float(call["amin"]), None if top is None else float(top)))

    def examples(self, random: np.random.Generator) -> Examples:
        while True:
            options = [{}, {"ref": np.max}, {"top_db": None}, {"ref": 2.0, "amin": 1e-6, "top_db": 20.0}]
            spectrum = random.random([(17, 9), (2, 17, 9)][random.integers(2)]).astype(np.float32) ** 6
            yield (spectrum,), options[random.integers(4)]


def of_largest(reference: Any) -> bool:
    """Whether a function is numpy.max; patched or not."""
    return getattr(reference, "__module__", "") == "numpy" and getattr(reference, "__name__", "") in ("max", "amax")


@register
class PowerToDB(Decibels):
    target = "librosa.power_to_db"
    parameters = "S, *, ref=1.0, amin=1e-10, top_db=80.0"

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        reference, amin, top = static
        (power,) = inputs
        return decibels(power, power.amax(whole(power), keepdim=True) if reference is None else reference, amin, top)


@register
class AmplitudeToDB(Decibels):
    target = "librosa.amplitude_to_db"
    parameters = "S, *, ref=1.0, amin=1e-5, top_db=80.0"

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        reference, amin, top = static
        magnitude = inputs[0].abs()
        largest = magnitude.amax(whole(magnitude), keepdim=True).square() if reference is None else reference**2
        return decibels(magnitude.square(), largest, amin**2, top)


# Waveforms, and arrays of numbers.


@register
class Preemphasis(Librosa):
    target = "librosa.effects.preemphasis"
    parameters = "y, *, coef=0.97, zi=None, return_zf=False"
    tolerance = Tolerance(2.4e-7, 0, note="a product and a sum may be rounded as one, of amplitudes up to 1")

    def refuses(self, call: Call, source: Spec) -> str | None:
        if call["return_zf"]:
            return "return_zf= is given"
        if not isinstance(call["coef"], (int, float)):
            return "coef is no number"
        return call.given("zi") or ("the waveform is shorter than two elements" if source.shape[-1] < 2 else None)

    def map(self, call: Call) -> Mapped:
        return Mapped(call["y"], None, (float(call["coef"]),))

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        (waves,) = inputs
        factor = sample[0].to(waves.dtype).reshape(-1, *[1] * (waves.dim() - 1))
        first, second = waves[..., :1], waves[..., 1:2]
        return torch.cat([first + (2 * first - second), waves[..., 1:] - factor * waves[..., :-1]], -1)

    def examples(self, random: np.random.Generator) -> Examples:
        while True:
            options = {"coef": float(random.uniform(0.5, 1))} if random.random() < 0.5 else {}
            yield (wave(random, [np.float32, np.float64][random.integers(2)]),), options


@register
class Normalize(Librosa):
    target = "librosa.util.normalize"
    parameters = "S, *, norm=float('inf'), axis=0, threshold=None, fill=None"
    data = ("S",)
    tolerance = Tolerance(1e-7, 2e-7, note="norms other than the largest are sums, in another order")

    def refuses(self, call: Call, source: Spec) -> str | None:
        norm, axis, threshold, fill = call["norm"], call["axis"], call["threshold"], call["fill"]
        if not isinstance(norm, (int, float)) or not (norm > 0 or norm == -np.inf):
            return f"norm={norm!r} stays on the CPU"
        if not (axis is None or (isinstance(axis, int) and -len(source.shape) <= axis < len(source.shape))):
            return "axis is none of the array's"
        if not (threshold is None or (isinstance(threshold, (int, float)) and threshold > 0)):
            return "threshold is no positive number"
        return None if fill in (None, False, True) else "fill is no boolean"

    def map(self, call: Call) -> Mapped:
        source, axis = call["S"], call["axis"]
        axes = tuple(range(1, len(source.shape) + 1)) if axis is None else (axis % len(source.shape) + 1,)
        threshold = call["threshold"] or torch.finfo(source.dtype).tiny
        return Mapped(source, (float(call["norm"]), axes, float(threshold), call["fill"]))

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        norm, axes, threshold, fill = static
        values = inputs[0].to(torch.float64)
        magnitude = values.abs()
        if norm == np.inf:
            length = magnitude.amax(axes, keepdim=True)
        elif norm == -np.inf:
            length = magnitude.amin(axes, keepdim=True)
        else:
            length = magnitude.pow(norm).sum(axes, keepdim=True).pow(1.0 / norm)
        small = length < threshold
        result = values / torch.where(small, 1.0, length)
        if fill is not None:
            count = 1
            for axis in axes:
                count *= values.shape[axis]
            instead = 0.0 if not fill else 1.0 if abs(norm) == np.inf else count ** (-1.0 / norm)
            result = torch.where(small, instead, result)
        return result.to(inputs[0].dtype)

    def examples(self, random: np.random.Generator) -> Examples:
        while True:
            array = random.normal(0, 2, [(17, 9), (2, 17, 9)][random.integers(2)]).astype(np.float32)
            array[:, 2] = 0
            options = [{}, {"norm": 2}, {"norm": 1, "axis": -1}, {"norm": -np.inf}, {"axis": None}, {"fill": True}]
            options += [{"fill": False, "axis": 1}, {"threshold": 0.5, "norm": 2, "fill": True, "axis": 1}]
            yield (array,), options[random.integers(len(options))]
