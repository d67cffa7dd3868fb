"""The parts of models/qwen3 that need no graph, built as a project of its own, against transformers and tokenizers."""

from __future__ import annotations

import json
import math
import random
import subprocess
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import needs_hetero
from qwen3_files import ADDED, SCRIPTS, characters, random_text, random_words, trained_tokenizer, write_tokenizer
from tokenizers import Tokenizer
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM
from transformers.generation import logits_process
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.utils.chat_template_utils import render_jinja_template

pytestmark = needs_hetero

TEXTS = 100_000


class Inspect:
    """The program qwen3_inspect."""

    def __init__(self, program: Path) -> None:
        self.program = program

    def lines(self, command: str, folder: object = "", lines: Iterable[object] = ()) -> list[Any]:
        """What it answers to each line."""
        text = "".join(json.dumps(line) + "\n" for line in lines)
        done = subprocess.run(
            [self.program, command, *([str(folder)] if folder else [])],
            input=text,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode in (0, 1), done.stderr
        return [json.loads(line) for line in done.stdout.split("\n")[:-1]]  # splitlines() also splits at U+2028

    def one(self, command: str, folder: object) -> Any:
        """What it says of a folder."""
        return self.lines(command, folder)[0]


@pytest.fixture(scope="session")
def inspect(qwen3_build: Path) -> Inspect:
    """Built against the installed package, as a user builds it."""
    return Inspect(qwen3_build / "qwen3_inspect")


# Tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tokenizer]:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer")), Tokenizer.from_str(trained_tokenizer())


@pytest.fixture(scope="module")
def texts() -> list[str]:
    generator = random.Random(1)
    return [random_text(generator, [content for content, _ in ADDED]) for _ in range(TEXTS)]


def test_random_texts_have_the_ids_of_the_tokenizers_package(inspect, tokenizer, texts) -> None:
    folder, expected = tokenizer
    ids = inspect.lines("encode", folder, texts)
    wrong = [
        text for text, one, other in zip(texts, ids, expected.encode_batch(texts), strict=True) if one != other.ids
    ]
    assert not wrong, f"{len(wrong)} of {len(texts)}, such as {ascii(wrong[0])}"
    used = {i for one in ids for i in one}
    assert len(used) > 0.8 * expected.get_vocab_size(), "the texts use a part of the vocabulary only"
    assert {expected.token_to_id(content) for content, _ in ADDED} <= used


def test_random_ids_have_the_text_of_the_tokenizers_package(inspect, tokenizer) -> None:
    folder, expected = tokenizer
    generator = random.Random(2)
    size = expected.get_vocab_size()
    lines = [
        {"ids": generator.choices(range(size + 10), k=generator.randint(0, 20)), "skip_special": bool(i % 2)}
        for i in range(20_000)
    ]
    texts = inspect.lines("decode", folder, lines)
    for line, text in zip(lines, texts, strict=True):
        assert text == expected.decode(line["ids"], skip_special_tokens=line["skip_special"]), line


def test_every_character_has_the_ids_of_the_tokenizers_package(inspect, tokenizer) -> None:
    folder, expected = tokenizer
    for before, behind in [("a", "b"), ("!", "."), ("e\u0323", "\u0301x"), (" ", "  1")]:
        texts = [before + character + behind for character in characters()]
        ids = inspect.lines("encode", folder, texts)
        wrong = [
            text for text, one, other in zip(texts, ids, expected.encode_batch(texts), strict=True) if one != other.ids
        ]
        assert not wrong, f"{len(wrong)} of {len(texts)}, such as {ascii(wrong[0])}"


@pytest.mark.parametrize(
    "change", ["merges with a space", "flags of added tokens", "no normalizer", "ByteLevel's pattern"]
)
def test_other_spellings_of_the_file_have_the_ids_of_the_tokenizers_package(inspect, tmp_path, change) -> None:
    content = json.loads(trained_tokenizer())
    if change == "merges with a space":
        content["model"]["merges"] = [" ".join(merge) for merge in content["model"]["merges"]]
    elif change == "flags of added tokens":
        for i, token in enumerate(content["added_tokens"]):
            token.update(lstrip=i % 2 == 0, rstrip=i % 3 == 0, single_word=i % 5 == 0, normalized=i % 7 == 0)
    elif change == "no normalizer":
        content["normalizer"] = None
    else:
        content["pre_tokenizer"] = {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": True,
        }
    folder = write_tokenizer(tmp_path, **content)
    expected = Tokenizer.from_file(str(folder / "tokenizer.json"))
    generator = random.Random(3)
    texts = [random_text(generator, [content for content, _ in ADDED]) for _ in range(5000)]
    ids = inspect.lines("encode", folder, texts)
    for text, one, other in zip(texts, ids, expected.encode_batch(texts), strict=True):
        assert one == other.ids, ascii(text)


def test_long_texts_have_the_ids_of_the_tokenizers_package(inspect, tokenizer) -> None:
    folder, expected = tokenizer
    generator = random.Random(4)
    texts = [random_words(script, 3000, generator) for script in SCRIPTS]
    texts += ["a" * 50_000, " " * 50_000, "ab" * 20_000 + "\n" * 1000, "e\u0301" * 10_000, "한" * 10_000]
    for text, ids in zip(texts, inspect.lines("encode", folder, texts), strict=True):
        assert ids == expected.encode(text).ids


# Configuration and checkpoint

SMALL: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "rope_theta": 1e6,
}
EXPERTS: dict[str, Any] = {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "decoder_sparse_step": 2,
    "norm_topk_prob": True,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "dense": {},
    "tied": {"tie_word_embeddings": True},
    "biased": {"attention_bias": True},
    "sliding window": {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    "linear": {"rope_scaling": {"rope_type": "linear", "factor": 2.5}},
    "dynamic": {"rope_scaling": {"rope_type": "dynamic", "factor": 3.0}},
    "yarn": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}},
    "yarn with all": {
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 8.0,
            "original_max_position_embeddings": 16,
            "beta_fast": 20.0,
            "beta_slow": 2.0,
            "mscale": 0.8,
            "mscale_all_dim": 0.6,
            "truncate": False,
        }
    },
    "llama3": {
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        }
    },
    "experts": EXPERTS,
    "experts in some layers": EXPERTS | {"decoder_sparse_step": 1, "mlp_only_layers": [1]},
    "experts with a window": EXPERTS | {"use_sliding_window": True, "sliding_window": 8},
}


def make_model(variant: str) -> Qwen3ForCausalLM | Qwen3MoeForCausalLM:
    changes = SMALL | VARIANTS[variant]
    is_moe = "num_experts" in changes
    config = (Qwen3MoeConfig if is_moe else Qwen3Config)(**{**changes, "eos_token_id": 5})
    return (Qwen3MoeForCausalLM if is_moe else Qwen3ForCausalLM)(config)


def checksum(tensor: torch.Tensor) -> int:
    total = 0
    for byte in tensor.contiguous().view(torch.uint8).flatten().tolist():
        total = (total * 31 + byte) % 2**64
    return total


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_checkpoint_of_transformers_is_read_as_it_is(inspect, tmp_path, variant) -> None:
    model = make_model(variant).to(torch.bfloat16)
    model.save_pretrained(tmp_path)
    found = inspect.one("config", tmp_path)
    config = model.config
    for name in (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "max_position_embeddings",
        "rms_norm_eps",
        "tie_word_embeddings",
        "attention_bias",
    ):
        assert found[name] == getattr(config, name), name
    assert found["dtype"] == "bf16"
    assert found["eos_token_ids"] == [5]
    assert found["is_moe"] == ("num_experts" in VARIANTS[variant])
    assert found["layer_is_sparse"] == [hasattr(layer.mlp, "experts") for layer in model.model.layers]
    windows = [layer.self_attn.sliding_window or 0 for layer in model.model.layers]
    assert found["layer_windows"] == windows
    if found["is_moe"]:
        for name in ("num_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob"):
            assert found[name] == getattr(config, name), name

    from safetensors.torch import load_file

    tensors = {name: tensor for file in tmp_path.glob("*.safetensors") for name, tensor in load_file(file).items()}
    expected = {name: ["bf16", list(tensor.shape), checksum(tensor)] for name, tensor in tensors.items()}
    assert inspect.one("tensors", tmp_path) == expected


@pytest.mark.parametrize("variant", VARIANTS)
def test_rotary_frequencies_are_those_of_transformers(inspect, tmp_path, variant) -> None:
    config = make_model(variant).config
    config.save_pretrained(tmp_path)
    found = inspect.one("config", tmp_path)
    kind = config.rope_parameters["rope_type"]
    if kind == "default":
        dim = config.head_dim
        frequencies = 1.0 / (config.rope_parameters["rope_theta"] ** (torch.arange(0, dim, 2).float() / dim))
        factor = 1.0
    else:
        frequencies, factor = ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len=config.max_position_embeddings * 2)
    assert found["inverse_frequencies"] == pytest.approx(frequencies.tolist(), rel=1e-6)
    assert found["attention_factor"] == pytest.approx(factor, rel=1e-6)


@pytest.mark.parametrize("variant", ["tied", "experts"])
def test_shards_are_the_same_checkpoint(inspect, tmp_path, variant) -> None:
    model = make_model(variant)
    model.save_pretrained(tmp_path / "one")
    model.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    assert inspect.one("tensors", tmp_path / "shards") == inspect.one("tensors", tmp_path / "one")


def test_a_checkpoint_that_does_not_fit_is_refused_in_a_sentence(inspect, tmp_path) -> None:
    make_model("dense").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["layer_types"]
    for changes, sentence in [
        ({"num_hidden_layers": 4}, "lacks the tensor"),
        ({"num_hidden_layers": 2}, "which the model does not have"),
        ({"intermediate_size": 47}, "has the shape [48, 32], and config.json asks for [47, 32]"),
        ({"num_key_value_heads": 3}, "no multiple of num_key_value_heads"),
        ({"hidden_act": "relu"}, "hidden_act"),
    ]:
        (tmp_path / "config.json").write_text(json.dumps(config | changes))
        assert sentence in inspect.one("tensors", tmp_path)["error"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    assert "is the file cut off?" in inspect.one("tensors", tmp_path)["error"]


# Chat template

# What Qwen3's templates do, as Jinja. %THINK% and %OPEN% are what differs between its three kinds.
TEMPLATE = r"""
{%- macro call(tool_call) -%}
    {%- set function = tool_call.function if tool_call.function else tool_call -%}
    {{- '<tool_call>\n{"name": "' ~ function.name ~ '", "arguments": ' -}}
    {{- function.arguments if function.arguments is string else function.arguments | tojson -}}
    {{- '}\n</tool_call>' -}}
{%- endmacro -%}
{%- set first = messages[0].content if messages[0].role == 'system' else none -%}
{%- if tools -%}
    {{- '<|im_start|>system\n' ~ (first ~ '\n\n' if first is not none else '') -}}
    {{- '# Tools\n\nYou may call one or more functions to assist with the user query.\n\n' -}}
    {{- 'You are provided with function signatures within <tools></tools> XML tags:\n<tools>' -}}
    {%- for tool in tools -%}{{- '\n' ~ (tool | tojson) -}}{%- endfor -%}
    {{- '\n</tools>\n\nFor each function call, return a json object with function name and arguments within ' -}}
    {{- '<tool_call></tool_call> XML tags:\n<tool_call>\n' -}}
    {{- '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call><|im_end|>\n' -}}
{%- elif first is not none -%}
    {{- '<|im_start|>system\n' ~ first ~ '<|im_end|>\n' -}}
{%- endif -%}
{%- set ns = namespace(last=messages | length - 1, found=false) -%}
{%- for message in messages | reverse -%}
    {%- set is_response = message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>') -%}
    {%- if not ns.found and message.role == 'user' and not is_response -%}
        {%- set ns.found = true -%}{%- set ns.last = messages | length - 1 - loop.index0 -%}
    {%- endif -%}
{%- endfor -%}
{%- for message in messages -%}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) -%}
        {{- '<|im_start|>' ~ message.role ~ '\n' ~ message.content ~ '<|im_end|>\n' -}}
    {%- elif message.role == 'assistant' -%}
        {%- set content = message.content -%}{%- set reasoning = '' -%}
        {%- if %THINK% and message.reasoning_content is string -%}
            {%- set reasoning = message.reasoning_content -%}
        {%- elif %THINK% and '</think>' in content -%}
            {%- set reasoning = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') -%}
            {%- set content = content.split('</think>')[-1].lstrip('\n') -%}
        {%- endif -%}
        {{- '<|im_start|>assistant\n' -}}
        {%- if %THINK% and loop.index0 > ns.last and (loop.last or reasoning) -%}
            {{- '<think>\n' ~ reasoning.strip('\n') ~ '\n</think>\n\n' ~ content.lstrip('\n') -}}
        {%- else -%}
            {{- content -}}
        {%- endif -%}
        {%- for tool_call in message.tool_calls or [] -%}
            {{- ('\n' if content or not loop.first else '') ~ call(tool_call) -}}
        {%- endfor -%}
        {{- '<|im_end|>\n' -}}
    {%- elif message.role == 'tool' -%}
        {{- '<|im_start|>user' if loop.first or messages[loop.index0 - 1].role != 'tool' else '' -}}
        {{- '\n<tool_response>\n' ~ message.content ~ '\n</tool_response>' -}}
        {{- '<|im_end|>\n' if loop.last or messages[loop.index0 + 1].role != 'tool' else '' -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}%OPEN%{%- endif -%}
"""
HYBRID_OPEN = (
    r"{%- if enable_thinking is defined and enable_thinking is false -%}{{- '<think>\n\n</think>\n\n' -}}{%- endif -%}"
)
# What tells the kinds apart, and the text that the program recognizes them by.
COMMON = (
    r"You are provided with function signatures <function-name> <|im_start|> tool_call.arguments | tojson \n<tool_response>\n messages[loop.index0 - 1].role != "
    + '"tool"'
)
THINKS = r" loop.index0 > ns.last_query_index reasoning_content.strip('\n') loop.last or (not loop.last and reasoning_content)"
KINDS = {
    "hybrid": ("true", HYBRID_OPEN, COMMON + THINKS + " enable_thinking is defined and enable_thinking is false"),
    "thinking": ("true", r"{{- '<think>\n' -}}", COMMON + THINKS + r" '<|im_start|>assistant\n<think>\n'"),
    "instruct": ("false", "", COMMON),
}


def random_conversation(generator: random.Random) -> dict[str, Any]:
    contents = [
        "",
        "Hello",
        "two\nlines\n",
        "\n\nnewlines around\n\n",
        "漢字 🙂",
        "<think>\nhm\n</think>\n\nyes",
        "a</think>b</think>c",
        "<tool_response>\nx\n</tool_response>",
        "<think>x<think>y\n\n</think>",
        'quote " and \\ back',
    ]
    values = [1, -2.5, 1e20, 1e-7, True, None, 'é\n"\u2028\x01', [1, {"b": 2, "a": [0.1, 100.0]}], {}]
    messages: list[dict[str, Any]] = []
    for i in range(generator.randint(1, 7)):
        role = (
            generator.choice(["system", "user", "user", "assistant", "assistant", "tool", "tool"])
            if i
            else generator.choice(["system", "user", "assistant"])
        )
        message: dict[str, Any] = {"role": role, "content": generator.choice(contents)}
        if role == "assistant" and generator.random() < 0.3:
            message["reasoning_content"] = generator.choice(["", "thought", "\n\nthought\n"])
        if role == "assistant" and generator.random() < 0.4:
            arguments: Any = {name: generator.choice(values) for name in generator.sample(["zeta", "alpha", "é"], 2)}
            calls = [
                {"name": "f", "arguments": arguments},
                {"function": {"name": "g", "arguments": json.dumps(arguments)}},
            ]
            message["tool_calls"] = generator.sample(calls, generator.randint(1, 2))
        messages.append(message)
    conversation: dict[str, Any] = {
        "messages": messages,
        "add_generation_prompt": generator.random() < 0.7,
        "enable_thinking": generator.random() < 0.5,
    }
    if generator.random() < 0.4:
        conversation["tools"] = [{"type": "function", "function": {"name": "f", "values": generator.sample(values, 3)}}]
    return conversation


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_are_those_of_jinja(inspect, tmp_path, kind) -> None:
    thinks, opens, recognized_by = KINDS[kind]
    (tmp_path / "chat_template.jinja").write_text(recognized_by)
    template = TEMPLATE.replace("%THINK%", thinks).replace("%OPEN%", opens)
    generator = random.Random(5)
    conversations = [random_conversation(generator) for _ in range(500)]
    prompts = inspect.lines("chat", tmp_path, conversations)
    for conversation, prompt in zip(conversations, prompts, strict=True):
        rendered, _ = render_jinja_template(
            [conversation["messages"]],
            tools=conversation.get("tools"),
            chat_template=template,
            add_generation_prompt=conversation["add_generation_prompt"],
            enable_thinking=conversation["enable_thinking"],
        )
        assert prompt == rendered[0], conversation


# Sampler


def processors(options: dict[str, Any], prompt: list[int]) -> logits_process.LogitsProcessorList:
    """In the order of transformers' generate(); with penalties that it lacks, as OpenAI's protocol defines them."""
    chain = logits_process.LogitsProcessorList()
    if bias := options.get("logit_bias"):
        chain.append(logits_process.SequenceBiasLogitsProcessor({(token,): value for token, value in bias}))
    if (penalty := options.get("repetition_penalty", 1.0)) != 1.0:
        chain.append(logits_process.RepetitionPenaltyLogitsProcessor(penalty))
    chain.append(logits_process.TemperatureLogitsWarper(options.get("temperature", 1.0)))
    if top_k := options.get("top_k", 0):
        chain.append(logits_process.TopKLogitsWarper(top_k))
    if (top_p := options.get("top_p", 1.0)) < 1.0:
        chain.append(logits_process.TopPLogitsWarper(top_p))
    if min_p := options.get("min_p", 0.0):
        chain.append(logits_process.MinPLogitsWarper(min_p))
    return chain


def random_sampling(generator: random.Random, torch_generator: torch.Generator) -> dict[str, Any]:
    size = generator.choice([5, 100, 3000])
    logits = torch.randn(size, generator=torch_generator) * generator.choice([0.5, 2.0, 8.0])
    options: dict[str, Any] = {"temperature": generator.choice([0.3, 0.7, 1.0, 1.7])}
    if generator.random() < 0.5:
        options["top_k"] = generator.randint(1, size + 3)
    if generator.random() < 0.5:
        options["top_p"] = generator.uniform(0.05, 0.99)
    if generator.random() < 0.3:
        options["min_p"] = generator.uniform(0.01, 0.5)
    if generator.random() < 0.5:
        options["repetition_penalty"] = generator.uniform(0.6, 1.8)
    if generator.random() < 0.5:
        options["logit_bias"] = [[token, generator.uniform(-3, 3)] for token in generator.sample(range(size), 3)]
    prompt = generator.choices(range(size), k=generator.randint(1, 20))
    return {"logits": logits.tolist(), "options": options, "prompt": prompt}


def test_probabilities_are_those_of_the_processors_of_transformers(inspect) -> None:
    generator = random.Random(6)
    torch_generator = torch.Generator().manual_seed(6)
    cases = [random_sampling(generator, torch_generator) for _ in range(300)]
    for case, answer in zip(cases, inspect.lines("sample", "", cases), strict=True):
        chain = processors(case["options"], case["prompt"])
        scores = chain(torch.tensor([case["prompt"]]), torch.tensor([case["logits"]]))
        expected = scores.softmax(-1)[0]
        difference = (torch.tensor(answer["probabilities"]) - expected).abs().max().item()
        assert difference < 1e-6, case["options"]


def test_sampled_tokens_have_the_frequencies_of_the_probabilities(inspect) -> None:
    logits = torch.randn(50, generator=torch.Generator().manual_seed(7)).mul(2).tolist()
    draws = 20_000
    case = {"logits": logits, "options": {"temperature": 0.8, "top_k": 12, "seed": 3}, "count": draws}
    answer, again, other = inspect.lines("sample", "", [case, case, case | {"options": case["options"] | {"seed": 4}}])
    assert answer["tokens"] == again["tokens"] != other["tokens"]
    counts = Counter(answer["tokens"])
    for token, probability in enumerate(answer["probabilities"]):
        bound = 5 * math.sqrt(draws * probability * (1 - probability))
        assert abs(counts[token] - draws * probability) <= bound


def test_logarithms_of_probabilities_are_those_of_log_softmax(inspect) -> None:
    logits = torch.randn(500, generator=torch.Generator().manual_seed(8)).mul(3)
    case = {"logits": logits.tolist(), "options": {"temperature": 0.5, "top_k": 5, "logprobs": 4}, "count": 10}
    (answer,) = inspect.lines("sample", "", [case])
    expected = logits.log_softmax(-1)
    values, tokens = expected.topk(4)
    for token, (logprob, top) in zip(answer["tokens"], answer["logprobs"], strict=True):
        assert logprob == pytest.approx(expected[token].item(), abs=1e-5)
        assert [entry[0] for entry in top] == tokens.tolist()
        assert [entry[1] for entry in top] == pytest.approx(values.tolist(), abs=1e-5)
