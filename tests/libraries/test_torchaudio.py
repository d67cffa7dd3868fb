"""torchaudio on hetero: filters with a kernel of the CPU, and transforms."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torchaudio.functional as F
import torchaudio.transforms as T
from on_device import assert_same, devices_of, recording
from torch import Tensor

A, B = torch.tensor([1.0, -0.5, 0.2]), torch.tensor([0.3, 0.2, 0.1])


def waveform() -> Tensor:
    return 0.1 * torch.randn(2, 4000)


def test_a_filter_is_one_operator_of_torchaudio() -> None:
    x = waveform()
    with recording() as seen:
        result = F.lfilter(x.to("hetero"), A.to("hetero"), B.to("hetero"))
    assert_same(result, F.lfilter(x, A, B), rtol=0, atol=0)
    # It runs at once, by the CPU's kernel; a loop over 4,000 samples would be tens of thousands of operators.
    assert seen.fallbacks == {"torchaudio::_lfilter_core_loop": 1}
    assert seen.recorded < 20


def test_a_filter_has_the_cpus_gradients() -> None:
    def gradients(device: str) -> list[Tensor]:
        torch.manual_seed(0)
        inputs = [value.to(device).requires_grad_() for value in (waveform(), A, B)]
        F.lfilter(*inputs, clamp=False).square().sum().backward()
        return [value.grad for value in inputs]

    for result, expected in zip(gradients("hetero"), gradients("cpu"), strict=True):
        assert_same(result, expected, rtol=1e-3, atol=1e-4)


FILTERS: dict[str, Callable[[Tensor], Tensor]] = {
    "biquad": lambda x: F.lowpass_biquad(x, 16000, 1000.0),
    "equalizer": lambda x: F.equalizer_biquad(x, 16000, 500.0, 6.0),
    "filtfilt": lambda x: F.filtfilt(x, A.to(x.device), B.to(x.device)),
    "overdrive": lambda x: F.overdrive(x),
    "loudness": lambda x: F.loudness(x, 16000),
}


@pytest.mark.parametrize("name", FILTERS)
def test_filters_are_the_cpus(name: str) -> None:
    x = waveform()
    if name == "loudness":
        x = x.repeat(1, 4)
    with recording() as seen:
        result = FILTERS[name](x.to("hetero"))
    assert_same(result, FILTERS[name](x), rtol=1e-4, atol=1e-5)
    assert seen.recorded < 500  # no loop over samples


TRANSFORMS: dict[str, Callable[[], torch.nn.Module]] = {
    "Spectrogram": lambda: T.Spectrogram(n_fft=256),
    "MelSpectrogram": lambda: T.MelSpectrogram(16000, n_fft=256, n_mels=32),
    "MFCC": lambda: T.MFCC(16000, n_mfcc=13, melkwargs={"n_fft": 256, "n_mels": 32}),
    "Resample": lambda: T.Resample(16000, 8000),
    "AmplitudeToDB": lambda: T.AmplitudeToDB(),
    "MuLawEncoding": lambda: T.MuLawEncoding(),
    "GriffinLim": lambda: torch.nn.Sequential(T.Spectrogram(n_fft=256), T.GriffinLim(256, n_iter=4, rand_init=False)),
    "InverseSpectrogram": lambda: torch.nn.Sequential(
        T.Spectrogram(n_fft=256, power=None), T.InverseSpectrogram(n_fft=256)
    ),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_are_the_cpus(name: str) -> None:
    x = waveform()
    transform = TRANSFORMS[name]()
    expected = transform(x)
    transform.to("hetero")
    assert devices_of(transform) <= {"hetero"}
    with recording():
        result = transform(x.to("hetero"))
    assert_same(result, expected, rtol=1e-3, atol=1e-3)


def test_alignment_and_transducer_loss_run_by_their_cpu_kernels() -> None:
    scores = torch.randn(1, 20, 5).log_softmax(-1)
    targets = torch.tensor([[1, 2, 2, 3]], dtype=torch.int32)
    expected = F.forced_align(scores, targets, blank=0)
    result = F.forced_align(scores.to("hetero"), targets.to("hetero"), blank=0)
    assert torch.equal(result[0].cpu(), expected[0])
    assert_same(result[1], expected[1])

    def loss(device: str) -> tuple[Tensor, Tensor]:
        torch.manual_seed(0)
        logits = torch.randn(1, 6, 4, 5).to(device).requires_grad_()
        value = F.rnnt_loss(
            logits,
            torch.tensor([[1, 2, 3]], dtype=torch.int32, device=device),
            torch.tensor([6], dtype=torch.int32, device=device),
            torch.tensor([3], dtype=torch.int32, device=device),
            blank=0,
        )
        value.backward()
        return value.detach(), logits.grad

    for one, other in zip(loss("hetero"), loss("cpu"), strict=True):
        assert_same(one, other)
