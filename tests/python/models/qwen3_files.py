"""Files of small Qwen3 checkpoints, made here, since none that is published is at hand: a tokenizer, texts to try it."""

from __future__ import annotations

import json
import random
import unicodedata
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from pathlib import Path
from pydoc_data.topics import topics

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

# In the order of Qwen3's ids, with what it says of each: (content, special).
ADDED = [
    *[
        (f"<|{name}|>", True)
        for name in (
            "endoftext",
            "im_start",
            "im_end",
            "object_ref_start",
            "object_ref_end",
            "box_start",
            "box_end",
            "quad_start",
            "quad_end",
            "vision_start",
            "vision_end",
            "vision_pad",
            "image_pad",
            "video_pad",
        )
    ],
    ("<tool_call>", False),
    ("</tool_call>", False),
    *[
        (f"<|{name}|>", False)
        for name in ("fim_prefix", "fim_middle", "fim_suffix", "fim_pad", "repo_name", "file_sep")
    ],
    ("<tool_response>", False),
    ("</tool_response>", False),
    ("<think>", False),
    ("</think>", False),
]

# Blocks of Unicode whose letters make the words of a script, first and last code point.
SCRIPTS = {
    "Latin": (0x41, 0x24F),
    "Greek": (0x370, 0x3FF),
    "Cyrillic": (0x400, 0x4FF),
    "Hebrew": (0x5D0, 0x5EA),
    "Arabic": (0x620, 0x64A),
    "Devanagari": (0x900, 0x97F),
    "Thai": (0xE01, 0xE5B),
    "Hiragana": (0x3041, 0x3096),
    "Han": (0x4E00, 0x4FFF),
    "Hangul": (0xAC00, 0xACFF),
    "Jamo": (0x1100, 0x11FF),
    "Emoji": (0x1F300, 0x1F64F),
    "Mathematical": (0x1D400, 0x1D4FF),
    "Combining": (0x300, 0x36F),
    "Symbols": (0x2000, 0x22FF),
}
SPACES = [
    " ",
    "  ",
    "\t",
    "\n",
    "\r\n",
    "\n\n",
    "\u00a0",
    "\u2003",
    "\u3000",
    "\u0085",
    "\u180e",
    "\u200b",
    "\u2028",
    " \n",
    "\v\f",
]
PIECES = [
    "'s",
    "'S",
    "'re",
    "'LL",
    "'\u017f",
    "can't",
    "e\u0301",
    "\u0061\u0328\u0301",
    "👩‍👩‍👧",
    "🇩🇪",
    "\ufb01",
    "Å",
    "\u212b",
    "\x00",
    "\x1b",
    "\x7f",
    "\ufffd",
    "\ufeff",
    "<|im_",
    "|>",
    "<",
    "</",
    "\U0010fffd",
    "ĠĊ",
    "½²",
    "٣٤",
    "①",
]


PAGES = [topics[name] for name in sorted(topics)]


@cache
def letters(script: str) -> list[str]:
    """The characters of a script's block."""
    first, last = SCRIPTS[script]
    return [chr(c) for c in range(first, last + 1) if unicodedata.category(chr(c)) != "Cn"]


@lru_cache(maxsize=1)
def characters() -> list[str]:
    """Characters that every version of Unicode in use knows: each library has tables of its own."""
    category = unicodedata.ucd_3_2_0.category
    return [chr(c) for c in range(0x110000) if category(chr(c)) not in ("Cn", "Cs", "Co")]


def random_words(script: str, count: int, generator: random.Random) -> str:
    """Words of characters of one script."""
    return " ".join("".join(generator.choices(letters(script), k=generator.randint(1, 9))) for _ in range(count))


@cache
def common_words(script: str) -> list[str]:
    """The few words of a script that the tokenizer learns."""
    return random_words(script, 60, random.Random(script)).split(" ")


def training_texts() -> Iterator[str]:
    """English with code, from Python's own documentation, and words of each script."""
    yield from PAGES
    generator = random.Random(0)
    for script in SCRIPTS:
        for _ in range(60):
            yield " ".join(generator.choices(common_words(script), k=20))


@lru_cache(maxsize=1)
def trained_tokenizer() -> str:
    """tokenizer.json with the parts of Qwen3's, but a vocabulary of 4,096 tokens and the added ones behind."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=4096, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(training_texts(), trainer)
    for content, special in ADDED:
        token = AddedToken(content, special=special, normalized=False)
        (tokenizer.add_special_tokens if special else tokenizer.add_tokens)([token])
    return tokenizer.to_str()


def write_tokenizer(folder: Path, **changes: object) -> Path:
    """Writes the trained tokenizer.json, with other values at its first level where they are given."""
    folder.mkdir(parents=True, exist_ok=True)
    content = json.loads(trained_tokenizer()) | changes
    (folder / "tokenizer.json").write_text(json.dumps(content, ensure_ascii=False))
    return folder


def random_text(generator: random.Random, added: Iterable[str]) -> str:
    """A short text of everything that could be cut in another way."""
    added = list(added)
    pieces = []
    for _ in range(generator.randint(0, 12)):
        kind = generator.random()
        if kind < 0.15:
            page = generator.choice(PAGES)
            start = generator.randrange(len(page))
            pieces.append(page[start : start + generator.randint(1, 40)])
        elif kind < 0.25:
            pieces.append(" ".join(generator.choices(common_words(generator.choice(list(SCRIPTS))), k=3)))
        elif kind < 0.35:
            pieces.append(random_words(generator.choice(list(SCRIPTS)), generator.randint(1, 3), generator))
        elif kind < 0.5:
            pieces.append(generator.choice(SPACES) * generator.randint(1, 4))
        elif kind < 0.6:
            pieces.append(str(generator.randint(0, 10 ** generator.randint(1, 12))))
        elif kind < 0.7:
            pieces.append(generator.choice(PIECES))
        elif kind < 0.8:
            pieces.append(generator.choice(added))
        elif kind < 0.9:
            pieces.append("".join(generator.choices("!?.,;:-_()[]{}<>|/\\'\"`~@#$%^&*+= ", k=generator.randint(1, 5))))
        else:
            pieces.append(generator.choice(characters()))
    return "".join(pieces)
