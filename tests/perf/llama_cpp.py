"""llama.cpp as a peer, by its own tool llama-bench.

It is built from the sources in PyPI's source distribution of llama-cpp-python, for this processor, into the folder of
caches: once for a version, in some minutes. Models are written as GGUF by the package `gguf` of these sources, without
a tokenizer. Every matrix gets the same format, the vocabulary too (`llama-quantize --pure`).
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

VERSION = "0.3.36"  # of llama-cpp-python
PEER = "llama.cpp"
REPETITIONS = 3  # of a measurement, after one that does not count
OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",
    "GGML_NATIVE": "ON",
    "BUILD_SHARED_LIBS": "OFF",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_SERVER": "OFF",
    "LLAMA_BUILD_APP": "OFF",
    "LLAMA_OPENSSL": "OFF",
}


class NotAvailableError(Exception):
    """llama.cpp cannot be built here; the message says why."""


def _run(command: Sequence[str | Path]) -> str:
    """What a command writes to its standard output."""
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise NotAvailableError(f"not available: {error}") from error
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        raise NotAvailableError(f"not available: {Path(command[0]).name} failed: {lines[-1]}")
    return done.stdout


@functools.cache
def folder() -> Path:
    """The folder with `source` and the built `build/bin/llama-bench`.

    Raises:
        NotAvailableError: without the sources, CMake or a compiler.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hetero"
    place = cache / f"llama.cpp-{VERSION}"
    if not (place / "source").is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as made:
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "llama-cpp-python"]
            _run([*pip, "--dest", made, f"llama-cpp-python=={VERSION}"])
            (archive,) = Path(made).glob("*.tar.gz")
            shutil.unpack_archive(archive, made)
            (sources,) = Path(made).glob("*/vendor/llama.cpp")
            place.mkdir(exist_ok=True)
            sources.rename(place / "source")
    if not (place / "build" / "bin" / "llama-bench").exists():
        print(f"building llama.cpp ({VERSION}), once: some minutes", file=sys.stderr, flush=True)
        options = [f"-D{name}={value}" for name, value in OPTIONS.items()]
        _run(["cmake", "-S", place / "source", "-B", place / "build", *options])
        jobs = str(os.cpu_count() or 1)
        _run(["nice", "cmake", "--build", place / "build", "--target", "llama-bench", "-j", jobs])
    return place


def write(model: nn.Module, path: Path, kind: str) -> Path:
    """Writes a Qwen3 model.

    Args:
        model: Of transformers, on the CPU.
        path: The file.
        kind: "BF16", "Q8_0" or "Q4_0": the format of matrices. Norms are F32.

    Raises:
        NotAvailableError: as folder().
    """
    sys.path.insert(0, str(folder() / "source" / "gguf-py"))
    try:
        import gguf
    finally:
        del sys.path[0]
    config = model.config
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[gguf.MODEL_ARCH.QWEN3])
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{kind}"])
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("no_vocab")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, config.num_hidden_layers)
    for name, weight in model.named_parameters():
        format_ = gguf.GGMLQuantizationType[kind if weight.dim() > 1 else "F32"]
        data = gguf.quants.quantize(weight.detach().float().numpy(), format_)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), data, raw_dtype=format_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


class Models:
    """A model in the formats of llama.cpp, written when they are first needed.

    Attributes:
        why_not: Why llama.cpp cannot be measured; empty where it can.
    """

    def __init__(self, model: nn.Module, made: Path) -> None:
        self._model = model
        self._made = made
        self._paths: dict[str, Path] = {}
        self.why_not = ""
        try:
            folder()
        except NotAvailableError as error:
            self.why_not = str(error)

    def seconds(self, kind: str, *, prompt: int = 0, tokens: int = 0, context: int = 0) -> float:
        """The median time of a prompt, or of a token that is generated, with as many threads as PyTorch.

        Args:
            kind: "BF16", "Q8_0" or "Q4_0".
            prompt: Tokens of a prompt; 0 to generate.
            tokens: Tokens to generate; 0 for a prompt.
            context: Tokens that are in the cache before.
        """
        if kind not in self._paths:
            self._paths[kind] = write(self._model, self._made / f"{kind}.gguf", kind)
        numbers = {"-p": prompt, "-n": tokens, "-d": context, "-t": torch.get_num_threads(), "-r": REPETITIONS}
        flags = [text for flag, value in numbers.items() for text in (flag, str(value))]
        said = _run([folder() / "build" / "bin" / "llama-bench", "-m", self._paths[kind], "-o", "json", *flags])
        (result,) = json.loads(said)
        return statistics.median(result["samples_ns"]) / 1e9 / max(tokens, 1)
