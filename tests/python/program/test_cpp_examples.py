"""The programs of examples/cpp, built against the installed package as a user builds them, give what Python gives."""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from helpers import ROOT, load_module, needs_hetero

import torch_hetero

pytestmark = needs_hetero

TOKENS = 32

TEXTS = [
    "run a program and read what it prints",
    "",
    "Déjà vu: NAÏVE Ångström, crème brûlée (half-baked)!",
    "ÆØÞ and Łódź keep their letters; Ελλάδα, РОССИЯ and Йод too",
    "snake_case, CamelCase; e-mail@example.org costs $3.50 & 20%…",
    "tabs\tand\u00a0blanks\u200b, “quotes” – and — dashes",
    "漢字 and かな",
    "x" * 101 + " " + "y" * 100,
    "many words " * 40,
    "unbelievably hyperparameterized antidisestablishmentarianism 🤖",
]


def run(command: Sequence[object], text: str = "") -> str:
    done = subprocess.run([str(part) for part in command], input=text, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{command[0]}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("cmake") is None:
        pytest.skip("the examples need CMake, which is not installed")
    build = tmp_path_factory.mktemp("examples")
    run(["cmake", "-S", ROOT / "examples" / "cpp", "-B", build, f"-DCMAKE_PREFIX_PATH={torch_hetero.cmake_prefix_path}",
         f"-DPython3_EXECUTABLE={sys.executable}"])
    run(["cmake", "--build", build])
    return build


@pytest.fixture(scope="module")
def save_minilm():
    return load_module("examples/python/save_minilm.py")


@pytest.fixture(scope="module")
def minilm(examples: Path, save_minilm) -> list[Path]:
    """The command, up to its mode."""
    path = examples / "minilm.hetero"
    save_minilm.save(str(path))
    return [examples / "minilm", path, save_minilm.model_folder() / "vocab.txt"]


def perceptron_weights(count: int, phase: float) -> torch.Tensor:
    return 0.3 * torch.sin(phase + 0.7 * torch.arange(count, dtype=torch.float32))


def test_the_perceptron_gives_eagers_probabilities_and_refuses_what_does_not_fit(examples: Path) -> None:
    saved = examples / "perceptron.hetero"
    printed = run([examples / "perceptron", saved]).splitlines()
    rows = [[float(number) for number in line.split()[1:]] for line in printed if line.startswith("probabilities:")]
    w1, b1 = perceptron_weights(16 * 8, 0.1).view(16, 8), perceptron_weights(16, 0.2)
    w2, b2 = perceptron_weights(3 * 16, 0.3).view(3, 16), perceptron_weights(3, 0.4)
    x = perceptron_weights(2 * 8, 0.5).view(2, 8)
    hidden = torch.relu(torch.nn.functional.linear(x, w1, b1))
    expected = torch.softmax(torch.nn.functional.linear(hidden, w2, b2), -1)
    torch.testing.assert_close(torch.tensor(rows), expected, atol=1e-6, rtol=0)
    with pytest.raises(RuntimeError) as error:
        torch.mm(x, expected)
    assert f"refused: {error.value}" in printed
    with pytest.raises(ValueError, match="not saved by torch.hetero.compile"):
        torch.hetero.load(saved)


def test_tokens_are_those_of_transformers(minilm: list[Path]) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(minilm[2].parent)
    printed = run([*minilm, "--tokens"], "\n".join(TEXTS) + "\n").splitlines()
    assert len(printed) == len(TEXTS)
    for text, line in zip(TEXTS, printed, strict=True):
        expected = tokenizer(text, truncation=True, max_length=TOKENS)["input_ids"]
        assert [int(token) for token in line.split()] == expected, text


def test_embeddings_are_eagers(minilm: list[Path], save_minilm) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(minilm[2].parent)
    printed = run([*minilm, "--embedding"], "\n".join(TEXTS) + "\n").splitlines()
    found = torch.tensor([[float(number) for number in line.split()] for line in printed])
    tokens = tokenizer(TEXTS, truncation=True, max_length=TOKENS, padding="max_length", return_tensors="pt")
    with torch.no_grad():
        expected = save_minilm.encoder()(tokens["input_ids"], tokens["attention_mask"])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    assert math.isclose(found.norm(dim=-1).mean().item(), 1, abs_tol=1e-5)


def test_the_nearest_passage_comes_first(minilm: list[Path]) -> None:
    printed = run(minilm, "make a file smaller\nwhich mountain is hot inside?\n").splitlines()
    assert "zlib" in printed[0] and "Etna" in printed[2]


def test_a_file_that_is_no_program_is_one_sentence(minilm: list[Path]) -> None:
    done = subprocess.run([minilm[0], minilm[2], minilm[2]], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith("minilm: ") and len(done.stderr.splitlines()) == 1, done.stderr
