"""The main job: real texts, a real model, the same lines on every device."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
from helpers import DEVICE, needs_hetero
from rich.console import Console

from torch_hetero import demo


def run(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str]:
    status = demo.main(list(options))
    return status, capsys.readouterr().out


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    (tmp_path / "animals.txt").write_text("Cats sleep most of the day.\n\nA dog guards the house.\n")
    (tmp_path / "money.py").write_text('"""Pays bills."""\n\ndef save():\n    """Puts coins into the bank."""\n')
    (tmp_path / "image.png").write_bytes(b"\x89PNG\xff\xfe")
    return tmp_path


def test_answers_come_from_the_users_own_texts(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--corpus", str(corpus), "--query", "kittens are tired", "--top", "1")
    status, text = run(capsys, "--device", DEVICE, *options)
    assert status == 0
    assert "4 of 4 texts" in text
    assert "animals.txt:1" in text and "Cats sleep" in text and "dog" not in text
    assert "right" in text and "ratio" in text


def test_texts_of_a_folder_have_their_places(corpus: Path) -> None:
    assert [passage.origin for passage in demo.files(corpus)] == [
        "animals.txt:1", "animals.txt:3", "money.py", "money.py.save",
    ]


def test_default_corpus_is_thousands_of_docstrings_and_imports_nothing() -> None:
    import sys

    before = set(sys.modules)
    passages = list(demo.standard_library())
    assert len(passages) > 3000
    assert {"shutil.copytree", "json", "argparse.ArgumentParser"} <= {passage.origin for passage in passages}
    assert "antigravity" not in set(sys.modules) - before


@needs_hetero
def test_report_says_what_the_device_did(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, text = run(capsys, "--device", "hetero", "--corpus", str(corpus))
    assert "operators recorded" in text and "flushes by reason" in text


def test_cpu_run_has_no_report_of_a_device(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, text = run(capsys, "--device", "cpu", "--corpus", str(corpus))
    assert status == 0 and "operators recorded" not in text


@needs_hetero
def test_embeddings_are_bitwise_those_of_the_cpu(unfused: None) -> None:
    texts = ["a short text", "another text which is a little longer than the first one", ""]
    embed, reference = demo.Embedder(torch.device("hetero")), demo.Embedder(torch.device("cpu"))
    result = embed(texts)
    assert result.device.type == "hetero"
    assert torch.equal(result.cpu(), reference(texts))


@needs_hetero
def test_embeddings_of_a_fused_model_are_close_to_those_of_the_cpu() -> None:
    texts = ["a short text", "another text which is a little longer than the first one", ""]
    embed, reference = demo.Embedder(torch.device("hetero")), demo.Embedder(torch.device("cpu"))
    for _ in range(3):
        torch.testing.assert_close(embed(texts).cpu(), reference(texts), rtol=1e-4, atol=1e-5)


def test_embeddings_keep_the_order_of_the_corpus() -> None:
    embed = demo.Embedder(torch.device("cpu"))
    corpus = [demo.Passage(str(length), "word " * length) for length in (9, 1, 5, 3)]
    embeddings = demo.embed_corpus(embed, corpus, 2, Console(file=io.StringIO()))
    for row, passage in zip(embeddings, corpus, strict=True):
        torch.testing.assert_close(row, embed([passage.text])[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--device", "nowhere"], "device 'nowhere' cannot be used"),
        (["--corpus", "no/such/folder"], "there is no file or folder"),
        (["--batch-size", "0"], "at least 1"),
        (["--limit", "-3"], "not a number"),
    ],
)
def test_wrong_option_is_explained_in_one_line(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        demo.main(options)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_corpus_without_text_is_said_and_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, text = run(capsys, "--device", "cpu", "--corpus", str(tmp_path))
    assert status == 2 and "no text" in text
