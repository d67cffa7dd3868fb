"""torchaudio: functions, and the forward methods of transforms. `self` is a setting: its numbers and buffers.

Random masks are drawn when a call is recorded, from the generator and in the order of the original.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from torch_hetero.migration.constant import Constant
from torch_hetero.migration.spec import Spec
from torch_hetero.migration.strategy import Call, Mapped, OnHost, Strategy, Tolerance, Unsupported, find, register

Examples = Iterator[tuple[tuple[Any, ...], dict[str, Any]]]


class Audio(Strategy):
    """A function of a waveform [..., time], or of a spectrogram [..., frequency, time]."""

    family = "audio"
    library = "torchaudio"
    versions = ("2.11.",)
    data = ("waveform",)
    dtypes: ClassVar[tuple[torch.dtype, ...]] = (torch.float32, torch.float64)

    def source(self, call: Call) -> Spec:
        """Returns the call's waveform or spectrogram."""
        return call[self.data[0]]

    def supports(self, call: Call) -> str | None:
        source = self.source(call)
        if source.kind != "tensor":
            return f"{self.data[0]} is no tensor"
        if source.dtype not in self.dtypes:
            return f"{self.data[0]} has elements of {str(source.dtype).removeprefix('torch.')}"
        if not source.shape or 0 in source.shape:
            return f"{self.data[0]} is empty or a number"
        return self.refuses(call)

    def refuses(self, call: Call) -> str | None:
        """Returns `supports` for a call whose data is a tensor of numbers."""
        return None


def noise(random: np.random.Generator, shape: Sequence[int] | None = None) -> torch.Tensor:
    """Returns a waveform: a tone in noise."""
    if shape is None:
        shape = [(1, 1000), (2, 1000), (800,), (2, 1, 640)][random.integers(4)]
    tone = np.sin(np.arange(shape[-1]) * random.uniform(0.01, 1))
    return torch.from_numpy((tone + random.normal(0, 0.1, shape)).astype(np.float32) / 2)


def transforms() -> Any:
    """Returns torchaudio's module of transforms."""
    import torchaudio

    return torchaudio.transforms


# Spectrograms.

# For each function: as measured against the original, for tones and noise of amplitudes up to 1.
SPECTRUM = Tolerance(1e-4, 1e-4, note="FFTs in float32 round differently; near silence the relative error is larger")
DECIBELS = Tolerance(2e-3, 1e-4, note="decibels of what is near silence")


class Frames:
    """The settings of a short-time Fourier transform, and its sizes."""

    @staticmethod
    def refuses(source: Spec, window: Any, n_fft: int, hop: int, pad: int, center: bool, mode: str) -> str | None:
        """Returns a reason not to transform."""
        if not isinstance(window, torch.Tensor) or window.device.type != "cpu":
            return "the window is no CPU tensor"
        if window.dtype != source.dtype:
            return "the waveform and the window have different dtypes"
        if not isinstance(hop, int) or hop < 1:
            return "hop_length is no size"
        length = source.shape[-1] + 2 * pad
        if center and mode == "reflect" and n_fft // 2 >= length:
            return "the waveform is shorter than half a frame"
        if mode not in ("reflect", "constant"):
            return f"pad_mode {mode!r} stays on the CPU"
        return "the waveform is shorter than a frame" if length + 2 * (n_fft // 2) * center < n_fft else None

    @staticmethod
    def shape(source: Spec, n_fft: int, hop: int, pad: int, center: bool, onesided: bool) -> tuple[int, ...]:
        """Returns the spectrogram's sizes."""
        length = source.shape[-1] + 2 * pad + 2 * (n_fft // 2) * center
        return (*source.shape[:-1], n_fft // 2 + 1 if onesided else n_fft, 1 + (length - n_fft) // hop)


def spectrogram(waves: torch.Tensor, settings: tuple[Any, ...]) -> torch.Tensor:
    """Returns the spectrograms [..., frequency, time] of waveforms [..., time]."""
    pad, window_setting, n_fft, hop, length, power, normalized, center, mode, onesided = settings
    window = window_setting.on(waves.device)
    if pad > 0:
        waves = torch.nn.functional.pad(waves, (pad, pad))
    by_frame, by_window = normalized == "frame_length", normalized is True or normalized == "window"
    complex_spectrum = torch.stft(
        waves.reshape(-1, waves.shape[-1]), n_fft, hop, length, window, center, mode, by_frame, onesided,
        return_complex=True,
    )  # fmt: skip
    complex_spectrum = complex_spectrum.reshape(*waves.shape[:-1], *complex_spectrum.shape[-2:])
    if by_window:
        complex_spectrum = complex_spectrum / window.pow(2.0).sum().sqrt()
    if power is None:
        return complex_spectrum
    return complex_spectrum.abs() if power == 1.0 else complex_spectrum.abs().pow(power)


def settings_of(module: Any) -> tuple[Any, ...]:
    """Returns the arguments of `spectrogram` of a transform `Spectrogram`."""
    return (
        module.pad, module.window, module.n_fft, module.hop_length, module.win_length, module.power, module.normalized,
        module.center, module.pad_mode, module.onesided,
    )  # fmt: skip


class Spectrum(Audio):
    """Transforms that begin with a spectrogram."""

    tolerance = SPECTRUM

    def settings(self, call: Call) -> tuple[Any, ...]:
        """Returns the arguments of `spectrogram`, with the window as a tensor."""
        return settings_of(self.transform(call["self"]))

    def transform(self, module: Any) -> Any:
        """Returns the module's `Spectrogram`."""
        return module

    def refuses(self, call: Call) -> str | None:
        pad, window, n_fft, hop, _, power, _, center, mode, _ = self.settings(call)
        if power is not None and not isinstance(power, (int, float)):
            return "power is no number"
        return Frames.refuses(self.source(call), window, n_fft, hop, pad, center, mode)

    def framed(self, call: Call) -> tuple[tuple[Any, ...], tuple[int, ...]]:
        """Returns the settings as a static setting, and the spectrogram's sizes."""
        pad, window, n_fft, hop, length, power, normalized, center, mode, onesided = self.settings(call)
        shape = Frames.shape(self.source(call), n_fft, hop, pad, center, onesided)
        return (pad, Constant.of(window), n_fft, hop, length, power, normalized, center, mode, onesided), shape

    def map(self, call: Call) -> Mapped:
        settings, shape = self.framed(call)
        dtype = self.source(call).dtype
        return Mapped(Spec("tensor", shape, dtype if settings[5] is not None else dtype.to_complex()), settings)

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        return spectrogram(inputs[0], static)


@register
class SpectrogramFunction(Spectrum):
    target = "torchaudio.functional.spectrogram"
    parameters = (
        "waveform, pad, window, n_fft, hop_length, win_length, power, normalized, center=True, pad_mode='reflect', "
        "onesided=True, return_complex=None"
    )

    def settings(self, call: Call) -> tuple[Any, ...]:
        names = ("pad", "window", "n_fft", "hop_length", "win_length", "power", "normalized", "center", "pad_mode")
        return (*map(call.__getitem__, names), call["onesided"])

    def refuses(self, call: Call) -> str | None:
        return call.given("return_complex") or super().refuses(call)

    def examples(self, random: np.random.Generator) -> Examples:
        window = torch.hann_window(128)
        while True:
            power = [2.0, 1.0, None][random.integers(3)]
            normalized = [False, True, "frame_length"][random.integers(3)]
            center, onesided = bool(random.integers(2)), bool(random.integers(2))
            yield (noise(random), int(random.integers(2)) * 7, window, 128, 64, 128, power, normalized), {
                "center": center, "onesided": onesided, "pad_mode": ["reflect", "constant"][random.integers(2)],
            }  # fmt: skip


class Forward(Strategy):
    """The forward method of a transform: examples of a few transforms, made once."""

    kinds: ClassVar[tuple[tuple[str, dict[str, Any]], ...]]

    def modules(self) -> list[Any]:
        """Returns transforms of several settings."""
        return [getattr(transforms(), name)(**options) for name, options in self.kinds]

    def example(self, random: np.random.Generator) -> torch.Tensor:
        """Returns data for a transform."""
        return noise(random)

    def examples(self, random: np.random.Generator) -> Examples:
        modules = self.modules()
        while True:
            yield (modules[random.integers(len(modules))], self.example(random)), {}


@register
class Spectrogram(Forward, Spectrum):
    target = "torchaudio.transforms.Spectrogram.forward"
    parameters = "self, waveform"
    kinds = (
        ("Spectrogram", {"n_fft": 64}),
        ("Spectrogram", {"n_fft": 128, "hop_length": 50, "power": 1.0, "normalized": True, "pad": 3}),
        ("Spectrogram", {"n_fft": 100, "win_length": 80, "power": None, "window_fn": torch.hamming_window}),
        ("Spectrogram", {"n_fft": 64, "center": False, "onesided": False}),
    )


def parts_differ(*parts: tuple[Any, str]) -> str | None:
    """Returns a reason if a module's part is no transform of torchaudio's, but a user's."""
    for module, name in parts:
        if type(module) is not getattr(transforms(), name):
            return f"its {name} is a {type(module).__name__}"
    return None


@register
class MelSpectrogram(Forward, Spectrum):
    target = "torchaudio.transforms.MelSpectrogram.forward"
    parameters = "self, waveform"
    kinds = (
        ("MelSpectrogram", {"n_fft": 256, "n_mels": 20}),
        ("MelSpectrogram", {"n_fft": 256, "n_mels": 16, "hop_length": 100, "norm": "slaney", "mel_scale": "slaney"}),
        ("MelSpectrogram", {"sample_rate": 8000, "n_fft": 200, "n_mels": 16, "power": 1.0, "f_min": 50.0}),
    )

    def transform(self, module: Any) -> Any:
        return module.spectrogram

    def refuses(self, call: Call) -> str | None:
        module = call["self"]
        reason = parts_differ((module.spectrogram, "Spectrogram"), (module.mel_scale, "MelScale"))
        return reason or ("power is None" if module.spectrogram.power is None else super().refuses(call))

    def map(self, call: Call) -> Mapped:
        settings, shape = self.framed(call)
        bank = call["self"].mel_scale.fb
        result = Spec("tensor", (*shape[:-2], bank.shape[1], shape[-1]), self.source(call).dtype)
        return Mapped(result, (settings, Constant.of(bank)))

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        settings, bank = static
        return projected(spectrogram(inputs[0], settings), bank)


def projected(spectrum: torch.Tensor, bank: Constant) -> torch.Tensor:
    """Returns [..., filter, time] of [..., frequency, time] and filters [frequency, filter]."""
    return torch.matmul(spectrum.transpose(-1, -2), bank.on(spectrum.device)).transpose(-1, -2)


@register
class MelScale(Forward, Audio):
    target = "torchaudio.transforms.MelScale.forward"
    parameters = "self, specgram"
    data = ("specgram",)
    tolerance = Tolerance(1e-5, 1e-5, note="matrix products of batches are summed in another order")
    kinds = (("MelScale", {"n_mels": 20, "n_stft": 65}), ("MelScale", {"n_mels": 16, "n_stft": 65, "norm": "slaney"}))

    def refuses(self, call: Call) -> str | None:
        source, bank = self.source(call), call["self"].fb
        if len(source.shape) < 2 or source.shape[-2] != bank.shape[0]:
            return "specgram has other frequencies than the filters"
        return None if bank.dtype == source.dtype else "specgram and the filters have different dtypes"

    def map(self, call: Call) -> Mapped:
        shape, bank = self.source(call).shape, call["self"].fb
        result = Spec("tensor", (*shape[:-2], bank.shape[1], shape[-1]), self.source(call).dtype)
        return Mapped(result, Constant.of(bank))

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        return projected(inputs[0], static)

    def example(self, random: np.random.Generator) -> torch.Tensor:
        return noise(random, [(65, 9), (2, 65, 9)][random.integers(2)]).square()


def decibels(
    power: torch.Tensor, rank: int, multiplier: float, amin: float, reference: float, top: float | None
) -> torch.Tensor:
    """Returns decibels of samples that have `rank` dimensions; `top` is below the largest of each channel group."""
    result = multiplier * torch.log10(torch.clamp(power, min=amin)) - multiplier * reference
    if top is None:
        return result
    channels = result.shape[-3] if rank > 2 else 1
    packed = result.reshape(-1, channels, *result.shape[-2:])
    lowest = packed.amax((-3, -2, -1), keepdim=True) - top
    return torch.maximum(packed, lowest).reshape(result.shape)


@register
class AmplitudeToDBFunction(Audio):
    target = "torchaudio.functional.amplitude_to_DB"
    parameters = "x, multiplier, amin, db_multiplier, top_db=None"
    data = ("x",)
    tolerance = Tolerance(2e-5, 1e-6, note="logarithms of vectors and of single elements differ in the last digit")

    def settings(self, call: Call) -> tuple[Any, ...]:
        """Returns multiplier, amin, reference and top_db."""
        return call["multiplier"], call["amin"], call["db_multiplier"], call["top_db"]

    def refuses(self, call: Call) -> str | None:
        *numbers, top = self.settings(call)
        if any(not isinstance(number, (int, float)) for number in numbers) or not isinstance(
            top, (int, float, type(None))
        ):
            return "a setting is no number"
        if top is not None and len(self.source(call).shape) < 2:
            return "top_db= needs frequencies and times"
        return None

    def map(self, call: Call) -> Mapped:
        source = self.source(call)
        return Mapped(source, (len(source.shape), *self.settings(call)))

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        return decibels(inputs[0], *static)

    def examples(self, random: np.random.Generator) -> Examples:
        while True:
            top = [None, 20.0, 5][random.integers(3)]
            yield (self.example(random), 10.0, 1e-10, 0.0), {} if top is None else {"top_db": top}

    def example(self, random: np.random.Generator) -> torch.Tensor:
        """Returns a power spectrogram."""
        shape = [(16, 9), (2, 16, 9), (3, 2, 16, 9)][random.integers(3)]
        return torch.from_numpy((random.random(shape) ** 8).astype(np.float32))


@register
class AmplitudeToDB(Forward, AmplitudeToDBFunction):
    target = "torchaudio.transforms.AmplitudeToDB.forward"
    parameters = "self, x"
    kinds = (
        ("AmplitudeToDB", {}),
        ("AmplitudeToDB", {"stype": "magnitude", "top_db": 10.0}),
        ("AmplitudeToDB", {"top_db": 80}),
    )

    def settings(self, call: Call) -> tuple[Any, ...]:
        module = call["self"]
        return module.multiplier, module.amin, module.db_multiplier, module.top_db

    def example(self, random: np.random.Generator) -> torch.Tensor:
        return AmplitudeToDBFunction.example(self, random)


@register
class MFCC(Forward, Spectrum):
    target = "torchaudio.transforms.MFCC.forward"
    parameters = "self, waveform"
    tolerance = Tolerance(1e-2, 1e-4, note="decibels of what is near silence are added")
    kinds = (
        ("MFCC", {"n_mfcc": 13, "melkwargs": {"n_fft": 256, "n_mels": 20}}),
        ("MFCC", {"n_mfcc": 10, "log_mels": True, "norm": None, "melkwargs": {"n_fft": 256, "n_mels": 16}}),
    )

    def transform(self, module: Any) -> Any:
        return module.MelSpectrogram.spectrogram

    def refuses(self, call: Call) -> str | None:
        module, mel = call["self"], call["self"].MelSpectrogram
        reason = parts_differ((mel, "MelSpectrogram"), (module.amplitude_to_DB, "AmplitudeToDB"))
        reason = reason or parts_differ((mel.spectrogram, "Spectrogram"), (mel.mel_scale, "MelScale"))
        return reason or ("power is None" if mel.spectrogram.power is None else super().refuses(call))

    def map(self, call: Call) -> Mapped:
        settings, shape = self.framed(call)
        module = call["self"]
        scale = module.amplitude_to_DB
        levels = None if module.log_mels else (scale.multiplier, scale.amin, scale.db_multiplier, scale.top_db)
        result = Spec("tensor", (*shape[:-2], module.dct_mat.shape[1], shape[-1]), self.source(call).dtype)
        banks = Constant.of(module.MelSpectrogram.mel_scale.fb), Constant.of(module.dct_mat)
        return Mapped(result, (settings, *banks, levels))

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        settings, mel, transform, levels = static
        spectrum = projected(spectrogram(inputs[0], settings), mel)
        if levels is None:
            return projected(torch.log(spectrum + 1e-6), transform)
        return projected(decibels(spectrum, spectrum.dim() - 1, *levels), transform)


# Waveforms.


@functools.lru_cache(64)
def resampling_kernel(source: int, target: int, width: int, rolloff: float, method: str, beta: Any, dtype: torch.dtype):
    """Returns the kernel of `torchaudio.functional.resample`, as a constant, and the padding."""
    from torchaudio.functional.functional import _get_sinc_resample_kernel

    divisor = math.gcd(source, target)
    kernel, padding = _get_sinc_resample_kernel(
        source, target, divisor, width, rolloff, method, beta, torch.device("cpu"), dtype
    )
    return Constant(kernel), padding


class Resampling(Audio):
    """Another sample rate: a filter of a few kernels, applied at each `source` elements."""

    tolerance = Tolerance(2e-6, 1e-5, note="convolutions are summed in another order")

    def kernel(self, call: Call) -> tuple[Constant, int]:
        """Returns the kernel [target, 1, width] and the padding."""
        raise NotImplementedError

    def rates(self, call: Call) -> tuple[Any, Any]:
        """Returns the rate of the waveform, and the wanted one."""
        raise NotImplementedError

    def refuses(self, call: Call) -> str | None:
        source, target = self.rates(call)
        if source == target:
            return "the sample rate stays, and the waveform itself is returned"
        return None if int(source) == source > 0 and int(target) == target > 0 else "a sample rate is no whole number"

    def map(self, call: Call) -> Mapped:
        wave = self.source(call)
        source, target = map(int, self.rates(call))
        divisor = math.gcd(source, target)
        kernel, padding = self.kernel(call)
        if kernel.tensor.dtype != wave.dtype:
            raise Unsupported("the waveform and the kernel have different dtypes")
        source, target = source // divisor, target // divisor
        # As torchaudio computes it, in float32.
        length = int(torch.ceil(torch.as_tensor(target * wave.shape[-1] / source)).long())
        return Mapped(Spec("tensor", (*wave.shape[:-1], length), wave.dtype), (kernel, padding, source, length))

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        kernel, padding, stride, length = static
        (waves,) = inputs
        padded = torch.nn.functional.pad(waves.reshape(-1, 1, waves.shape[-1]), (padding, padding + stride))
        resampled = torch.nn.functional.conv1d(padded, kernel.on(waves.device), stride=stride)
        return resampled.transpose(1, 2).reshape(len(padded), -1)[:, :length].reshape(*waves.shape[:-1], length)


@register
class ResampleFunction(Resampling):
    target = "torchaudio.functional.resample"
    parameters = (
        "waveform, orig_freq, new_freq, lowpass_filter_width=6, rolloff=0.99, resampling_method='sinc_interp_hann', "
        "beta=None"
    )

    def rates(self, call: Call) -> tuple[Any, Any]:
        return call["orig_freq"], call["new_freq"]

    def refuses(self, call: Call) -> str | None:
        if call["resampling_method"] not in ("sinc_interp_hann", "sinc_interp_kaiser"):
            return f"resampling_method {call['resampling_method']!r} stays on the CPU"
        if not isinstance(call["lowpass_filter_width"], int) or call["lowpass_filter_width"] <= 0:
            return "lowpass_filter_width is no size"
        return super().refuses(call)

    def kernel(self, call: Call) -> tuple[Constant, int]:
        names = ("lowpass_filter_width", "rolloff", "resampling_method", "beta")
        source, target = map(int, self.rates(call))
        return resampling_kernel(source, target, *map(call.__getitem__, names), self.source(call).dtype)

    def examples(self, random: np.random.Generator) -> Examples:
        while True:
            source, target = [(16000, 8000), (8000, 16000), (44100, 16000), (3, 4)][random.integers(4)]
            options = [{}, {"resampling_method": "sinc_interp_kaiser"}, {"lowpass_filter_width": 12}]
            yield (noise(random), source, target), options[random.integers(3)]


@register
class Resample(Forward, Resampling):
    target = "torchaudio.transforms.Resample.forward"
    parameters = "self, waveform"
    kinds = (
        ("Resample", {"orig_freq": 16000, "new_freq": 8000}),
        ("Resample", {"orig_freq": 3, "new_freq": 4}),
        ("Resample", {"orig_freq": 44100, "new_freq": 16000, "rolloff": 0.9}),
    )

    def rates(self, call: Call) -> tuple[Any, Any]:
        return call["self"].orig_freq, call["self"].new_freq

    def kernel(self, call: Call) -> tuple[Constant, int]:
        return Constant.of(call["self"].kernel), call["self"].width


@functools.lru_cache(64)
def fade_curve(fade_in: int, fade_out: int, shape: str, length: int) -> Constant:
    """Returns the factors of a waveform's elements."""
    fade = transforms().Fade(fade_in, fade_out, shape)
    device = torch.device("cpu")
    return Constant(fade._fade_in(length, device) * fade._fade_out(length, device))


@register
class Fade(Forward, Audio):
    target = "torchaudio.transforms.Fade.forward"
    parameters = "self, waveform"
    kinds = tuple(
        ("Fade", {"fade_in_len": 100, "fade_out_len": 200, "fade_shape": shape})
        for shape in ("linear", "exponential", "logarithmic", "quarter_sine", "half_sine")
    )

    def refuses(self, call: Call) -> str | None:
        fade = call["self"]
        if max(fade.fade_in_len, fade.fade_out_len) > self.source(call).shape[-1]:
            return "the waveform is shorter than the fade"
        return None

    def map(self, call: Call) -> Mapped:
        source, fade = self.source(call), call["self"]
        return Mapped(source, (fade.fade_in_len, fade.fade_out_len, fade.fade_shape, source.shape[-1]))

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        return fade_curve(*static).on(inputs[0].device) * inputs[0]


def by_sample(number: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
    """Returns a number for each sample, in the dtype and with the dimensions of a batch."""
    return number.to(batch.dtype).reshape(-1, *[1] * (batch.dim() - 1))


@register
class Vol(Forward, Audio):
    target = "torchaudio.transforms.Vol.forward"
    parameters = "self, waveform"
    kinds = tuple(
        ("Vol", {"gain": gain, "gain_type": kind})
        for gain, kind in [
            (0.5, "amplitude"),
            (2.5, "amplitude"),
            (3.0, "db"),
            (-6.0, "db"),
            (0.25, "power"),
            (0, "db"),
        ]
    )

    def refuses(self, call: Call) -> str | None:
        vol = call["self"]
        if not isinstance(vol.gain, (int, float)):
            return "gain is no number"
        if vol.gain_type not in ("amplitude", "db", "power") or (vol.gain_type == "power" and vol.gain <= 0):
            return f"gain_type {vol.gain_type!r} with a gain of {vol.gain} stays on the CPU"
        return None

    def map(self, call: Call) -> Mapped:
        gain, kind = call["self"].gain, call["self"].gain_type
        if kind != "amplitude":
            gain = 10 ** ((gain if kind == "db" else 10 * math.log10(gain)) / 20)
        return Mapped(self.source(call), None, (float(gain),))

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.clamp(inputs[0] * by_sample(sample[0], inputs[0]), -1, 1)


@register
class Gain(Audio):
    target = "torchaudio.functional.gain"
    parameters = "waveform, gain_db=1.0"

    def refuses(self, call: Call) -> str | None:
        gain = call["gain_db"]
        if not isinstance(gain, (int, float)):
            return "gain_db is no number"
        return "gain_db is 0, and the waveform itself is returned" if gain == 0 else None

    def map(self, call: Call) -> Mapped:
        return Mapped(self.source(call), None, (10 ** (call["gain_db"] / 20),))

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        return inputs[0] * by_sample(sample[0], inputs[0])

    def examples(self, random: np.random.Generator) -> Examples:
        while True:
            yield (noise(random), float(random.uniform(-6, 6))), {}


@register
class PreemphasisFunction(Audio):
    target = "torchaudio.functional.preemphasis"
    parameters = "waveform, coeff=0.97"
    tolerance = Tolerance(1.2e-7, 0, note="a device may round the product and the difference as one")

    def coefficient(self, call: Call) -> Any:
        """Returns the factor of the element before."""
        return call["coeff"]

    def refuses(self, call: Call) -> str | None:
        return None if isinstance(self.coefficient(call), (int, float)) else "coeff is no number"

    def map(self, call: Call) -> Mapped:
        return Mapped(self.source(call), None, (float(self.coefficient(call)),))

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        (waves,) = inputs
        rest = waves[..., 1:] - by_sample(sample[0], waves) * waves[..., :-1]
        return torch.cat([waves[..., :1], rest], -1)

    def examples(self, random: np.random.Generator) -> Examples:
        while True:
            yield [(noise(random),), (noise(random), float(random.uniform(0.5, 1)))][random.integers(2)], {}


@register
class Preemphasis(Forward, PreemphasisFunction):
    target = "torchaudio.transforms.Preemphasis.forward"
    parameters = "self, waveform"
    kinds = (("Preemphasis", {}), ("Preemphasis", {"coeff": 0.9}))

    def coefficient(self, call: Call) -> Any:
        return call["self"].coeff


@register
class MuLawEncodingFunction(Audio):
    target = "torchaudio.functional.mu_law_encoding"
    parameters = "x, quantization_channels"
    data = ("x",)
    tolerance = Tolerance(0, 0, 1e-3, note="a level at whose border a logarithm is rounded otherwise is its neighbour")

    def channels(self, call: Call) -> Any:
        """Returns the number of levels."""
        return call["quantization_channels"]

    def refuses(self, call: Call) -> str | None:
        return None if isinstance(self.channels(call), int) else "quantization_channels is no number"

    def map(self, call: Call) -> Mapped:
        return Mapped(Spec("tensor", self.source(call).shape, torch.int64), self.channels(call))

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        (waves,) = inputs
        largest = torch.tensor(static - 1.0, dtype=waves.dtype)
        levels = torch.sign(waves) * torch.log1p(float(largest) * torch.abs(waves)) / float(torch.log1p(largest))
        return ((levels + 1) / 2 * float(largest) + 0.5).to(torch.int64)

    def examples(self, random: np.random.Generator) -> Examples:
        while True:
            yield (self.example(random), [256, 64][random.integers(2)]), {}

    def example(self, random: np.random.Generator) -> torch.Tensor:
        """Returns a waveform."""
        return noise(random).clamp(-1, 1)


@register
class MuLawEncoding(Forward, MuLawEncodingFunction):
    target = "torchaudio.transforms.MuLawEncoding.forward"
    parameters = "self, x"
    kinds = (("MuLawEncoding", {}), ("MuLawEncoding", {"quantization_channels": 64}))

    def channels(self, call: Call) -> Any:
        return call["self"].quantization_channels

    def example(self, random: np.random.Generator) -> torch.Tensor:
        return MuLawEncodingFunction.example(self, random)


@register
class MuLawDecodingFunction(MuLawEncodingFunction):
    target = "torchaudio.functional.mu_law_decoding"
    parameters = "x_mu, quantization_channels"
    data = ("x_mu",)
    dtypes = (torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8)
    tolerance = Tolerance(3e-7, 1e-6, note="exponentials of vectors and of single elements differ in the last digit")

    def map(self, call: Call) -> Mapped:
        source = self.source(call)
        dtype = source.dtype if source.dtype.is_floating_point else torch.float32
        return Mapped(Spec("tensor", source.shape, dtype), (self.channels(call), dtype))

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        channels, dtype = static
        largest = torch.tensor(channels - 1.0, dtype=dtype)
        levels = inputs[0].to(dtype) / float(largest) * 2 - 1.0
        return torch.sign(levels) * (torch.exp(torch.abs(levels) * float(torch.log1p(largest))) - 1.0) / float(largest)

    def example(self, random: np.random.Generator) -> torch.Tensor:
        return torch.from_numpy(random.integers(0, 64, (2, 1000)))


@register
class MuLawDecoding(Forward, MuLawDecodingFunction):
    target = "torchaudio.transforms.MuLawDecoding.forward"
    parameters = "self, x_mu"
    kinds = (("MuLawDecoding", {}), ("MuLawDecoding", {"quantization_channels": 64}))

    def channels(self, call: Call) -> Any:
        return call["self"].quantization_channels

    def example(self, random: np.random.Generator) -> torch.Tensor:
        return MuLawDecodingFunction.example(self, random)


# Random masks.

# A mask: its dimension from the end, and where it begins and ends in each spectrogram.
Mask = tuple[int, np.ndarray, np.ndarray]


def drawn(specgram: Spec, axis: int, width: int, share: float, each: bool) -> Mask | None:
    """Draws a mask as torchaudio does, from torch's default generator; None, and draws nothing, for no mask.

    Args:
        specgram: What is masked.
        axis: The masked dimension.
        width: The largest width.
        share: The largest share of the axis.
        each: Whether each spectrogram of [..., frequency, time] gets a mask of its own.
    """
    rank, size = len(specgram.shape), specgram.shape[axis]
    width = width if share == 1.0 else min(width, int(size * share))
    if width < 1:
        return None
    shape, dtype = (specgram.shape[: rank - 2], specgram.dtype) if each else ((1,), torch.float32)
    values = torch.rand(shape, dtype=dtype) * width
    starts = torch.rand(shape, dtype=dtype) * (size - values)
    begin, end = starts.long(), starts.long() + values.long()
    if not each:
        begin, end = begin.squeeze(), end.squeeze()
        if end - begin >= width:
            raise ValueError("Number of columns to be masked should be less than mask_param")
    return axis - rank, begin.numpy(), end.numpy()


def masked(
    specgrams: torch.Tensor, axis: int, begin: torch.Tensor, end: torch.Tensor, value: float | torch.Tensor
) -> torch.Tensor:
    """Returns a batch with masks; `begin` and `end` are [batch, ...] as leading dimensions of the spectrograms."""
    columns = torch.arange(specgrams.shape[axis], device=specgrams.device)
    begin, end = [bound.reshape(*bound.shape, *[1] * (specgrams.dim() - bound.dim())) for bound in (begin, end)]
    columns = columns.reshape(-1, *[1] * (-1 - axis))
    return torch.where((columns >= begin) & (columns < end), value, specgrams)


def replay(target: str, masks: tuple[Mask, ...], *positional: Any, **keywords: Any) -> torch.Tensor:
    """Computes a call on the host with the masks that were drawn."""
    strategy = find(target)
    arguments = strategy.bind(*positional, **keywords)
    specgram = arguments[strategy.data[0]].unsqueeze(0)
    bounds = [torch.from_numpy(bound[None]) for _, *pair in masks for bound in pair]
    static = tuple(axis for axis, *_ in masks), strategy.value(arguments)
    return strategy.run([specgram], static, bounds).squeeze(0)


class Masking(Audio):
    """Elements in a random range of frequencies or times become a value. `map` draws, after all that may fail."""

    data = ("specgram",)

    def settings(self, arguments: dict[str, Any], rank: int) -> tuple[int, int, float, bool]:
        """Returns the axis, the width, the share, and whether each spectrogram has a mask of its own."""
        raise NotImplementedError

    def value(self, arguments: dict[str, Any]) -> Any:
        """Returns the value of masked elements."""
        return arguments["mask_value"]

    def refuses(self, call: Call) -> str | None:
        rank = len(self.source(call).shape)
        if rank < 2:
            return f"{self.data[0]} has less than two dimensions"
        axis, width, share, each = self.settings(call.arguments, rank)
        if each and rank < 3:
            return "iid masks need three dimensions"
        if not isinstance(self.value(call.arguments), (int, float)):
            return "mask_value is no number"
        if axis not in (rank - 2, rank - 1) or not isinstance(width, int) or not 0.0 <= share <= 1.0:
            return "torchaudio refuses the settings"
        size = self.source(call).shape[axis]
        if width > size or (width if share == 1.0 else min(width, int(size * share))) < 1:
            return "the mask is wider than the spectrogram, or empty"
        return None

    def map(self, call: Call) -> Mapped:
        source = self.source(call)
        mask = drawn(source, *self.settings(call.arguments, len(source.shape)))
        replayed = functools.partial(replay, self.target, (mask,))
        return Mapped(source, ((mask[0],), self.value(call.arguments)), mask[1:], original=replayed)

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        axes, value = static
        (result,) = inputs
        for axis, begin, end in zip(axes, sample[::2], sample[1::2], strict=True):
            result = masked(result, axis, begin, end, value)
        return result


def random_specgram(random: np.random.Generator) -> torch.Tensor:
    """Returns a spectrogram."""
    return noise(random, [(2, 17, 23), (1, 17, 23), (3, 2, 17, 23)][random.integers(3)])


@register
class MaskAlongAxis(Masking):
    target = "torchaudio.functional.mask_along_axis"
    parameters = "specgram, mask_param, mask_value, axis, p=1.0"
    each = False

    def settings(self, arguments: dict[str, Any], rank: int) -> tuple[int, int, float, bool]:
        return arguments["axis"], arguments["mask_param"], arguments["p"], self.each

    def examples(self, random: np.random.Generator) -> Examples:
        while True:
            specgram = random_specgram(random)
            axis = specgram.dim() - int(random.integers(1, 3))
            yield (specgram, int(random.integers(3, 15)), 0.5, axis), {"p": 0.4} if random.random() < 0.4 else {}


@register
class MaskAlongAxisEach(MaskAlongAxis):
    target = "torchaudio.functional.mask_along_axis_iid"
    parameters = "specgrams, mask_param, mask_value, axis, p=1.0"
    data = ("specgrams",)
    each = True


@register
class FrequencyMasking(Forward, Masking):
    target = "torchaudio.transforms.FrequencyMasking.forward"
    parameters = "self, specgram, mask_value=0.0"
    kinds = (
        ("FrequencyMasking", {"freq_mask_param": 9}),
        ("FrequencyMasking", {"freq_mask_param": 7, "iid_masks": True}),
    )

    def settings(self, arguments: dict[str, Any], rank: int) -> tuple[int, int, float, bool]:
        module = arguments["self"]
        return module.axis + rank - 3, module.mask_param, module.p, module.iid_masks

    def example(self, random: np.random.Generator) -> torch.Tensor:
        return random_specgram(random)


@register
class TimeMasking(FrequencyMasking):
    target = "torchaudio.transforms.TimeMasking.forward"
    kinds = (
        ("TimeMasking", {"time_mask_param": 9}),
        ("TimeMasking", {"time_mask_param": 12, "p": 0.3}),
        ("TimeMasking", {"time_mask_param": 9, "iid_masks": True}),
    )


# Functions that stay on the CPU.


class Serial(OnHost):
    """A recursive filter."""

    family = "audio"
    library = "torchaudio"
    data = ("waveform",)
    reason = "recursive filters stay on the CPU: each element needs the one before"


@register
class LFilter(Serial):
    target = "torchaudio.functional.lfilter"
    parameters = "waveform, a_coeffs, b_coeffs, clamp=True, batching=True"


@register
class Deemphasis(Serial):
    target = "torchaudio.functional.deemphasis"
    parameters = "waveform, coeff=0.97"


@register
class DeemphasisForward(Serial):
    target = "torchaudio.transforms.Deemphasis.forward"
    parameters = "self, waveform"
