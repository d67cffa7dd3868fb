"""openai-whisper on hetero: a small model with random weights, whose buffers are sparse."""

from __future__ import annotations

import copy

import pytest
import torch
import whisper
from on_device import assert_same, devices_of, recording
from whisper.model import ModelDimensions, Whisper

SIZES = ModelDimensions(
    n_mels=80, n_audio_ctx=1500, n_audio_state=64, n_audio_head=2, n_audio_layer=1,
    n_vocab=51865, n_text_ctx=448, n_text_state=64, n_text_head=2, n_text_layer=2,
)  # fmt: skip


@pytest.fixture(scope="module")
def models() -> tuple[Whisper, Whisper]:
    torch.manual_seed(0)
    model = Whisper(SIZES).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return model, copy.deepcopy(model).to("hetero")


def audio() -> torch.Tensor:
    return 0.3 * torch.sin(torch.arange(16000 * 3) * 0.05)


def mel(device: str | None = None) -> torch.Tensor:
    return whisper.log_mel_spectrogram(whisper.pad_or_trim(audio()), device=device)


def test_the_model_and_its_sparse_buffer_live_on_hetero(models: tuple[Whisper, Whisper]) -> None:
    plain, model = models
    assert devices_of(model) == {"hetero"}
    assert model.alignment_heads.layout == torch.sparse_coo
    assert torch.equal(model.alignment_heads.indices().cpu(), plain.alignment_heads.indices())
    assert model.state_dict().keys() == plain.state_dict().keys()


def test_the_spectrogram_is_the_cpus() -> None:
    with recording(5):
        spectrogram = mel("hetero")
    assert_same(spectrogram, mel())


@pytest.mark.parametrize("choice", [{}, {"beam_size": 2}])
def test_decoding_gives_the_cpus_tokens(models: tuple[Whisper, Whisper], choice: dict[str, int]) -> None:
    options = whisper.DecodingOptions(language="en", fp16=False, sample_len=6, **choice)
    expected = whisper.decode(models[0], mel(), options)
    with recording(100):
        result = whisper.decode(models[1], mel("hetero"), options)
    assert result.tokens == expected.tokens
    assert result.avg_logprob == pytest.approx(expected.avg_logprob, rel=1e-4)
    assert result.audio_features.device.type == "hetero"


def test_the_language_is_the_cpus(models: tuple[Whisper, Whisper]) -> None:
    token, probabilities = models[1].detect_language(mel("hetero"))
    expected, _ = models[0].detect_language(mel())
    assert token.item() == expected.item()
    assert sum(probabilities.values()) == pytest.approx(1, rel=1e-4)


def test_transcribing_with_times_of_words_gives_the_cpus_text(models: tuple[Whisper, Whisper]) -> None:
    chosen = {"language": "en", "fp16": False, "sample_len": 4, "temperature": 0.0, "word_timestamps": True}
    chosen["condition_on_previous_text"] = False
    expected = models[0].transcribe(audio(), **chosen)
    result = models[1].transcribe(audio(), **chosen)
    assert result["text"] == expected["text"]

    def times(one: dict) -> list[tuple]:
        return [(word["word"], word["start"], word["end"]) for s in one["segments"] for word in s["words"]]

    assert times(result) == times(expected)


def test_half_precision_is_taken(models: tuple[Whisper, Whisper]) -> None:
    # As on a GPU: inputs are float16, weights follow them.
    options = whisper.DecodingOptions(language="en", fp16=True, sample_len=4)
    result = whisper.decode(models[1], mel("hetero").half(), options)
    assert result.audio_features.dtype == torch.float16
    assert len(result.tokens) > 0
