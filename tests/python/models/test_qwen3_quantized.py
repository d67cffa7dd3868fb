"""The C++ model with weights in 8 and 4 bits, and with pages in int8 and float8, against transformers."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import needs_hetero
from quantized_layers import random_checkpoint
from qwen3_checkpoints import Batch, Checkpoint, greedy, prompts
from safetensors.torch import load_file, save_file
from torch import nn

pytestmark = needs_hetero

EXPERTS = ("gate_up_proj", "down_proj")


def change_linear(model: nn.Module, change: Callable[[str, torch.Tensor], torch.Tensor]) -> None:
    """Replaces the weights of linear layers and experts, the head's apart from the embedding's."""
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear):
            module.weight = nn.Parameter(change(name, module.weight.data), requires_grad=False)
        elif hasattr(module, EXPERTS[0]):
            for part in EXPERTS:
                weight = getattr(module, part).data
                for e in range(len(weight)):
                    halves = weight[e].chunk(2) if part == EXPERTS[0] else [weight[e]]
                    weight[e] = torch.cat([change(f"{name}.{e}", half.clone()) for half in halves])


def rounded(weight: torch.Tensor, bits: int, group: int, symmetric: bool) -> torch.Tensor:
    packed, scales, zeros = torch.ops.hetero.quantize_weight(weight, bits, group, symmetric)
    return torch.ops.hetero.dequantize_weight(packed, scales, zeros, bits, group, *weight.shape)


def check(checkpoint: Checkpoint, run_batch: Batch, *options: str, error: float = 2e-3) -> None:
    """Each greedy token's logarithm of its probability is that of the model, up to the first that differs by less."""
    asked = prompts(3, 40)
    results, _ = run_batch(checkpoint.folder, [greedy(prompt, 16) for prompt in asked], *options)
    for prompt, result in zip(asked, results, strict=True):
        with torch.no_grad():
            tokens = torch.tensor([prompt + result["token_ids"]])
            logits = checkpoint.model(tokens).logits[0, len(prompt) - 1 : -1].float()
        expected = torch.log_softmax(logits, -1)
        chosen = expected[range(16), result["token_ids"]]
        torch.testing.assert_close(torch.tensor(result["logprobs"]), chosen, rtol=0, atol=error)
        assert (expected.max(-1).values - chosen).max() <= 2 * error


ASYMMETRIC = ("--bits=4", "--group=64", "--asymmetric")


@pytest.mark.parametrize(
    ("variant", "options"),
    [("tied", ("--bits=8",)), ("tied", ("--bits=4",)), ("tied", ASYMMETRIC), ("tied", ("--bits=8", "--group=0")),
     ("untied", ASYMMETRIC), ("mixture", ("--bits=8",)), ("mixture", ASYMMETRIC), ("bfloat16", ("--bits=4",))],
)
def test_layers_are_quantized_while_loading(
    run_batch: Batch, variant: str, options: tuple[str, ...], tmp_path: Path
) -> None:
    changes: dict[str, Any] = {
        "tied": {}, "untied": {"tie_word_embeddings": False}, "mixture": {"experts": 6},
        "bfloat16": {"dtype": torch.bfloat16},
    }[variant]
    checkpoint = Checkpoint(tmp_path / "m", **changes)
    bits = int(options[0][-1])
    group = int(options[1].split("=")[1]) if len(options) > 1 else 128 if bits == 8 else 32
    checkpoint.model = copy.deepcopy(checkpoint.model).float()
    change_linear(checkpoint.model, lambda name, w: w if name.endswith("mlp.gate") else
                  rounded(w, bits, group, "--asymmetric" not in options))
    check(checkpoint, run_batch, *options, error=0.15 if variant == "bfloat16" else 2e-3)


def write_quantized(checkpoint: Checkpoint, layout: str, bits: int, group: int, sorts: bool) -> None:
    """Turns the linear layers of a checkpoint into random ones of a layout, in its files and in its model."""
    path = checkpoint.folder / "model.safetensors"
    tensors = load_file(path)
    weights: dict[str, torch.Tensor] = {}
    for name in [n for n in tensors if n.endswith("_proj.weight")]:
        rows, columns = tensors.pop(name).shape
        layer = name.removesuffix("weight")
        made, weights[name] = random_checkpoint(layout, bits, group, sorts=sorts, rows=rows, columns=columns,
                                                largest=0.3 / 2**bits)
        tensors |= {layer + part: tensor for part, tensor in made.items()}
    save_file(tensors, path)
    config = json.loads((checkpoint.folder / "config.json").read_text())
    said = {"quant_method": "awq", "version": "gemm"} if layout == "awq" else {
        "quant_method": "gptq", "checkpoint_format": layout, "desc_act": sorts}
    config["quantization_config"] = said | {"bits": bits, "group_size": group}
    (checkpoint.folder / "config.json").write_text(json.dumps(config))
    state = checkpoint.model.state_dict()
    for name, weight in weights.items():
        if name in state:
            state[name].copy_(weight)
            continue
        layer, e, part = name.removesuffix(".weight").rsplit(".", 2)
        fused = state[f"{layer}.{'down_proj' if part == 'down_proj' else 'gate_up_proj'}"][int(e)]
        {"gate_proj": fused[: len(weight)], "up_proj": fused[len(fused) // 2 :], "down_proj": fused}[part].copy_(weight)


@pytest.mark.parametrize(
    ("layout", "bits", "group", "sorts", "experts"),
    [("gptq", 4, 32, False, 0), ("gptq", 8, 64, False, 0), ("gptq_v2", 4, -1, False, 0), ("gptq", 4, 32, True, 0),
     ("awq", 4, 64, False, 0), ("awq", 4, 32, False, 4)],
)
def test_checkpoints_of_gptq_and_awq_are_read(
    run_batch: Batch, layout: str, bits: int, group: int, sorts: bool, experts: int, tmp_path: Path
) -> None:
    checkpoint = Checkpoint(tmp_path / "m", experts=experts)
    write_quantized(checkpoint, layout, bits, group, sorts)
    check(checkpoint, run_batch)


def test_what_cannot_be_read_is_one_sentence(run_failing: Callable[..., str], tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "m", experts=4)
    assert "8 or 4 bits, not to 5" in run_failing(checkpoint.folder, "--bits=5")
    assert "multiple of 32, not 33" in run_failing(checkpoint.folder, "--bits=4", "--group=33")
    assert "not in 'int4'" in run_failing(checkpoint.folder, "--cache-dtype=int4")
    write_quantized(checkpoint, "gptq", 4, 32, sorts=True)
    assert "desc_act" in run_failing(checkpoint.folder)
    assert 'quantized already, with "gptq"' in run_failing(checkpoint.folder, "--bits=4")
    path = checkpoint.folder / "model.safetensors"
    tensors = load_file(path)
    save_file(tensors | {"model.layers.0.self_attn.q_proj.scales": torch.zeros(2, 2).half()}, path)
    assert "q_proj.scales" in run_failing(checkpoint.folder)
    tensors.pop("model.layers.1.self_attn.q_proj.qzeros")
    save_file(tensors, path)
    assert 'lacks the tensor "model.layers.1.self_attn.q_proj.qzeros"' in run_failing(checkpoint.folder)


# With the bytes of 20 pages.
@pytest.mark.parametrize(
    ("dtype", "error", "cache"),
    [("int8", 0.05, "180K"), ("float8_e4m3", 0.6, "160K"), ("bfloat16", 0.05, "320K")],
)
def test_pages_in_fewer_bits(run_batch: Batch, dtype: str, error: float, cache: str, tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "m")
    check(checkpoint, run_batch, f"--cache-dtype={dtype}", error=error)
    # Prefixes that are shared, pages that leave and come back, and tokens of requests in one step.
    asked = prompts(8, 60, seed=2)
    options = [f"--cache-dtype={dtype}", "--step-tokens=48"]
    alone = [run_batch(checkpoint.folder, [greedy(prompt, 40)], *options)[0][0] for prompt in asked[:2]]
    few = run_batch(checkpoint.folder, [greedy(prompt, 40) for prompt in asked], *options, f"--cache={cache}",
                    "--offload-cache=4M")
    assert "; 0 requests preempted" not in few[1]
    for one, other in zip(alone, few[0], strict=False):
        assert one["token_ids"] == other["token_ids"]
