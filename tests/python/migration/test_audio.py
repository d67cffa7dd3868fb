"""Strategies of torchaudio, librosa and scipy.signal."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from strategy_checks import (
    DEVICES,
    check_one_batch,
    reason_of,
    shared_tests,
    step_of,
    strategies_of,
)

from torch_hetero.migration.constant import Constant
from torch_hetero.migration.evaluate import evaluate
from torch_hetero.migration.names import original_of
from torch_hetero.migration.recipe import host_result
from torch_hetero.migration.record import results
from torch_hetero.migration.strategy import find
from torch_hetero.migration.trial import trial

pytest.importorskip("scipy")
pytest.importorskip("librosa")
torchaudio = pytest.importorskip("torchaudio")

STRATEGIES = strategies_of("strategies.audio_torchaudio", "strategies.audio_librosa", "strategies.audio_scipy")
WAVE = torch.from_numpy(np.random.default_rng(0).uniform(-1, 1, (1, 1000)).astype(np.float32))
SPECGRAM = WAVE[:, :720].reshape(1, 20, 36).abs()
ARRAY = WAVE[0].numpy()
transforms = torchaudio.transforms


test_random_calls_are_within_the_stated_tolerance, test_calls_share_batches = shared_tests(STRATEGIES)


@pytest.mark.parametrize("target", ["torchaudio.transforms.Vol.forward", "torchaudio.transforms.Preemphasis.forward"])
def test_transforms_with_numbers_of_their_own_share_a_batch(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    transform = getattr(transforms, target.split(".")[2])
    check_one_batch(target, [((transform(0.3 + 0.1 * index), WAVE), {}) for index in range(5)], monkeypatch)


def test_equal_transforms_share_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings are compared by value: each worker has a transform of its own."""
    calls = [((transforms.MelSpectrogram(n_fft=256, n_mels=20), WAVE), {}) for _ in range(3)]
    check_one_batch("torchaudio.transforms.MelSpectrogram.forward", calls, monkeypatch)


def test_a_buffer_that_was_written_to_is_another_setting() -> None:
    scale = transforms.MelScale(n_mels=8, n_stft=20)
    first = step_of(find("torchaudio.transforms.MelScale.forward"), (scale, SPECGRAM), {}).static
    assert step_of(find("torchaudio.transforms.MelScale.forward"), (scale, SPECGRAM), {}).static is first
    scale.fb.mul_(2)
    second = step_of(find("torchaudio.transforms.MelScale.forward"), (scale, SPECGRAM), {}).static
    assert second != first
    assert torch.equal(second.tensor, 2 * first.tensor)


def test_constants_are_equal_by_their_elements_and_can_be_pickled() -> None:
    constant = Constant.of(WAVE)
    assert pickle.loads(pickle.dumps(constant)) == constant
    assert hash(copy.deepcopy(constant)) == hash(constant)
    assert Constant.of(WAVE.clone()) == constant
    assert Constant.of(WAVE.reshape(-1)) != constant
    assert Constant.of(WAVE.to(torch.float64)) != constant
    assert Constant.of(WAVE) is constant


def test_the_cut_off_of_decibels_is_each_samples_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loud sample of the batch does not lift the floor of a silent one."""
    levels = [10.0**exponent for exponent in range(-4, 4)]
    transform = transforms.AmplitudeToDB(top_db=20.0)
    calls = [((transform, level * SPECGRAM), {}) for level in levels]
    check_one_batch("torchaudio.transforms.AmplitudeToDB.forward", calls, monkeypatch)
    calls = [((level * SPECGRAM.numpy(),), {"ref": np.max, "top_db": 20.0}) for level in levels]
    check_one_batch("librosa.power_to_db", calls, monkeypatch)


# Random masks.

MASKS = [
    ("torchaudio.transforms.TimeMasking.forward", (transforms.TimeMasking(20), SPECGRAM)),
    ("torchaudio.transforms.FrequencyMasking.forward", (transforms.FrequencyMasking(15, iid_masks=True), SPECGRAM)),
    ("torchaudio.functional.mask_along_axis", (SPECGRAM, 20, 0.0, 2)),
    ("torchaudio.functional.mask_along_axis_iid", (SPECGRAM.expand(3, 20, 36), 20, 0.0, 1, 0.5)),
]


@pytest.mark.parametrize(("target", "arguments"), MASKS)
def test_masks_use_up_the_generator_as_the_original_does(target: str, arguments: tuple[Any, ...]) -> None:
    torch.manual_seed(3)
    expected = [original_of(target)(*arguments) for _ in range(20)]
    after = torch.get_rng_state()
    torch.manual_seed(3)
    values = [results(step_of(find(target), arguments, {}))[0] for _ in range(20)]
    assert torch.equal(torch.get_rng_state(), after)
    evaluate(values, torch.device("cpu"))
    assert all(torch.equal(value.row[0][value.row[1]], wanted) for value, wanted in zip(values, expected, strict=True))


@pytest.mark.parametrize(("target", "arguments"), MASKS)
def test_masks_are_the_same_on_the_host_and_draw_nothing_there(target: str, arguments: tuple[Any, ...]) -> None:
    """In another process, too: the function that replays them is pickled with the step."""
    value = results(step_of(find(target), arguments, {}))[0]
    before = torch.get_rng_state()
    again = pickle.loads(pickle.dumps(value.step.original))
    evaluate([value], torch.device("cpu"))
    computed = value.row[0][0]
    assert torch.equal(host_result(value), computed)
    assert torch.equal(again(*arguments), computed)
    assert torch.equal(torch.get_rng_state(), before)


def test_masks_that_are_refused_draw_nothing() -> None:
    before = torch.get_rng_state()
    assert reason_of("torchaudio.functional.mask_along_axis", SPECGRAM, 20, SPECGRAM, 2) == "mask_value is no number"
    assert torch.equal(torch.get_rng_state(), before)


# Against float64.

TRUTH = [
    ("torchaudio.transforms.Spectrogram.forward", lambda: (transforms.Spectrogram(n_fft=256),)),
    ("torchaudio.transforms.MelSpectrogram.forward", lambda: (transforms.MelSpectrogram(n_fft=256, n_mels=20),)),
    ("torchaudio.transforms.Resample.forward", lambda: (transforms.Resample(16000, 8000),)),
    ("librosa.stft", tuple),
    ("scipy.signal.resample_poly", tuple),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("target", "module"), TRUTH)
def test_results_are_as_near_to_float64_as_the_originals(target: str, module: Any, device: str) -> None:
    """Relative to the largest value: at most 1e-6, and four times the original's own error."""
    modules, rest = module(), (3, 4) if "poly" in target else ()
    options = {"n_fft": 256} if target == "librosa.stft" else {}
    wave: Any = WAVE if modules else ARRAY
    double = wave.double() if modules else wave.astype(np.float64)
    function = original_of(target)
    truth = np.asarray(function(*[copy.deepcopy(part).double() for part in modules], double, *rest, **options))
    original = np.asarray(function(*modules, wave, *rest, **options))
    (value,) = results(step_of(find(target), (*modules, wave, *rest), options))
    evaluate([value], torch.device(device))
    computed = value.row[0][0].cpu().numpy()
    scale = np.abs(truth).max()
    own, ours = (np.abs(result - truth).max() / scale for result in (original, computed))
    assert ours < max(4 * own, 1e-6)


# What stays on the CPU.


@pytest.mark.parametrize(
    ("target", "positional", "keywords", "reason"),
    [
        ("torchaudio.functional.spectrogram", (WAVE, 0, torch.ones(64), 64, 32, 64, 2.0, 0), {"return_complex": True},
         "return_complex= is given"),
        ("torchaudio.transforms.Spectrogram.forward", (transforms.Spectrogram(64), ARRAY), {}, "waveform is no tensor"),
        ("torchaudio.transforms.Spectrogram.forward", (transforms.Spectrogram(64), WAVE.half()), {},
         "waveform has elements of float16"),
        ("torchaudio.transforms.Spectrogram.forward", (transforms.Spectrogram(64), WAVE.double()), {},
         "the waveform and the window have different dtypes"),
        ("torchaudio.transforms.Spectrogram.forward", (transforms.Spectrogram(64), WAVE[:, :32]), {},
         "the waveform is shorter than half a frame"),
        ("torchaudio.transforms.Spectrogram.forward", (transforms.Spectrogram(64, center=False), WAVE[:, :32]), {},
         "the waveform is shorter than a frame"),
        ("torchaudio.transforms.Spectrogram.forward", (transforms.Spectrogram(64, pad_mode="circular"), WAVE), {},
         "pad_mode 'circular' stays on the CPU"),
        ("torchaudio.transforms.Spectrogram.forward", (transforms.Spectrogram(64), WAVE[:, :0]), {},
         "waveform is empty or a number"),
        ("torchaudio.transforms.MelScale.forward", (transforms.MelScale(8, n_stft=33), SPECGRAM), {},
         "specgram has other frequencies than the filters"),
        ("torchaudio.functional.amplitude_to_DB", (WAVE[0], 10.0, 1e-10, 0.0, 80.0), {},
         "top_db= needs frequencies and times"),
        ("torchaudio.functional.amplitude_to_DB", (WAVE, 10.0, WAVE, 0.0), {}, "a setting is no number"),
        ("torchaudio.functional.resample", (WAVE, 8000, 8000), {},
         "the sample rate stays, and the waveform itself is returned"),
        ("torchaudio.functional.resample", (WAVE, 8000.5, 8000), {}, "a sample rate is no whole number"),
        ("torchaudio.functional.resample", (WAVE, 3, 4), {"resampling_method": "kaiser_window"},
         "resampling_method 'kaiser_window' stays on the CPU"),
        ("torchaudio.functional.resample", (WAVE, 3, 4), {"lowpass_filter_width": 0},
         "lowpass_filter_width is no size"),
        ("torchaudio.transforms.Resample.forward", (transforms.Resample(3, 4), WAVE.double()), {},
         "the waveform and the kernel have different dtypes"),
        ("torchaudio.transforms.Fade.forward", (transforms.Fade(2000, 0), WAVE), {},
         "the waveform is shorter than the fade"),
        ("torchaudio.transforms.Vol.forward", (transforms.Vol(0.0, "power"), WAVE), {},
         "gain_type 'power' with a gain of 0.0 stays on the CPU"),
        ("torchaudio.functional.gain", (WAVE, 0.0), {}, "gain_db is 0, and the waveform itself is returned"),
        ("torchaudio.functional.preemphasis", (WAVE, WAVE), {}, "coeff is no number"),
        ("torchaudio.functional.mu_law_encoding", (WAVE, 255.5), {}, "quantization_channels is no number"),
        ("torchaudio.functional.mu_law_encoding", (torch.arange(9), 256), {}, "x has elements of int64"),
        ("torchaudio.functional.mask_along_axis", (SPECGRAM, 3, 0.0, 0), {}, "torchaudio refuses the settings"),
        ("torchaudio.functional.mask_along_axis", (SPECGRAM, 50, 0.0, 2), {},
         "the mask is wider than the spectrogram, or empty"),
        ("torchaudio.functional.mask_along_axis", (WAVE[0], 5, 0.0, 0), {}, "specgram has less than two dimensions"),
        ("torchaudio.functional.mask_along_axis_iid", (WAVE, 5, 0.0, 1), {}, "iid masks need three dimensions"),
        ("torchaudio.functional.lfilter", (WAVE, WAVE, WAVE), {},
         "recursive filters stay on the CPU: each element needs the one before"),
        ("librosa.stft", (ARRAY.astype(int),), {}, "y has elements of int64"),
        ("librosa.stft", (ARRAY,), {}, "the waveform is shorter than a frame"),
        ("librosa.stft", (ARRAY,), {"n_fft": 256, "dtype": np.complex64}, "dtype= is given"),
        ("librosa.stft", (ARRAY,), {"n_fft": 256, "window": np.ones(256)}, "the window is an array or a function"),
        ("librosa.stft", (ARRAY,), {"n_fft": 256, "pad_mode": "wrap"}, "pad_mode 'wrap' stays on the CPU"),
        ("librosa.stft", (ARRAY,), {"n_fft": 256, "hop_length": 0}, "hop_length is no size"),
        ("librosa.stft", (ARRAY,), {"n_fft": 256, "win_length": 300}, "win_length is no size up to n_fft"),
        ("librosa.feature.melspectrogram", (), {"y": ARRAY, "S": SPECGRAM.numpy()}, "y and S are given"),
        ("librosa.feature.melspectrogram", (), {"y": ARRAY.astype(float), "n_fft": 256},
         "the filters are float32, and the data is not"),
        ("librosa.feature.melspectrogram", (), {"y": ARRAY, "n_fft": 256, "dtype": np.float64}, "dtype= is given"),
        ("librosa.feature.mfcc", (), {"y": ARRAY, "n_fft": 256, "dct_type": 4},
         "dct_type and norm are none of the usual"),
        ("librosa.feature.mfcc", (), {"y": ARRAY, "n_fft": 256, "lifter": -1}, "lifter is no number"),
        ("librosa.power_to_db", (ARRAY,), {"ref": np.median}, "ref is neither a number nor numpy.max"),
        ("librosa.power_to_db", (ARRAY,), {"amin": 0}, "amin is no positive number"),
        ("librosa.amplitude_to_db", (ARRAY,), {"top_db": -1}, "top_db is no number"),
        ("librosa.amplitude_to_db", (ARRAY.astype(np.complex64),), {}, "S has elements of complex64"),
        ("librosa.effects.preemphasis", (ARRAY,), {"return_zf": True}, "return_zf= is given"),
        ("librosa.effects.preemphasis", (ARRAY,), {"zi": [0.0]}, "zi= is given"),
        ("librosa.effects.preemphasis", (ARRAY[:1],), {}, "the waveform is shorter than two elements"),
        ("librosa.util.normalize", (ARRAY,), {"norm": 0}, "norm=0 stays on the CPU"),
        ("librosa.util.normalize", (ARRAY,), {"axis": 1}, "axis is none of the array's"),
        ("librosa.util.normalize", (ARRAY,), {"threshold": -1.0}, "threshold is no positive number"),
        ("scipy.signal.resample_poly", (ARRAY, 3, 3), {}, "the sample rate stays"),
        ("scipy.signal.resample_poly", (ARRAY, 3, 4), {"padtype": "mean"},
         "padtype 'mean' with cval=None stays on the CPU"),
        ("scipy.signal.resample_poly", (ARRAY, 3, 4), {"window": ARRAY}, "the window is an array"),
        ("scipy.signal.resample_poly", (ARRAY, 3, 0), {}, "up or down is no positive number"),
        ("scipy.signal.fftconvolve", (ARRAY, ARRAY.astype(float)), {}, "the arrays have different dtypes"),
        ("scipy.signal.fftconvolve", (ARRAY, ARRAY[None]), {}, "the arrays have different dimensions"),
        ("scipy.signal.fftconvolve", (ARRAY, ARRAY), {"axes": 0}, "axes= is given"),
        ("scipy.signal.fftconvolve", (SPECGRAM[0].numpy(), SPECGRAM[0, :9].repeat(1, 2).numpy(), "valid"), {},
         "neither array is the larger one"),
        ("scipy.signal.lfilter", ([1.0], [1.0, 0.5], ARRAY), {},
         "recursive filters stay on the CPU: each element needs the one before"),
    ],
)  # fmt: skip
def test_calls_that_stay_on_the_cpu_say_why(
    target: str, positional: tuple[Any, ...], keywords: dict[str, Any], reason: str
) -> None:
    assert reason_of(target, *positional, **keywords) == reason


def test_a_transform_with_a_part_of_the_users_stays_on_the_cpu() -> None:
    class Louder(transforms.Spectrogram):
        pass

    transform = transforms.MelSpectrogram(n_fft=256, n_mels=20)
    transform.spectrogram = Louder(256)
    reason = reason_of("torchaudio.transforms.MelSpectrogram.forward", transform, WAVE)
    assert reason == "its Spectrogram is a Louder"


def test_filters_of_mels_without_frequencies_are_librosas() -> None:
    """librosa warns of empty filters; they are the same filters."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (outcome,) = trial(
            find("librosa.feature.melspectrogram"), [((), {"y": ARRAY, "n_fft": 64, "n_mels": 100, "sr": 16000})]
        )
    assert outcome.reason is None
    assert outcome.accepted
