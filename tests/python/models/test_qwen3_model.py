"""The C++ model gives transformers' tokens: every variant of checkpoint, alone and among others, with little memory."""

from __future__ import annotations

import os
import random
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import needs_hetero
from qwen3_checkpoints import Batch, Checkpoint, greedy, prompts

from torch_hetero.profiles import load_profile

pytestmark = needs_hetero

VARIANTS: dict[str, dict[str, Any]] = {
    "dense": {"tie_word_embeddings": False},
    "tied": {},
    "mixture": {"experts": 6},
    "mixture_and_dense": {"experts": 4, "mlp_only_layers": [1], "norm_topk_prob": False},
    "sharded": {"shard": "1MB"},
    "sliding_window": {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 2},
    "linear": {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}},
    "yarn": {
        "rope_parameters": {
            "rope_type": "yarn",
            "factor": 4.0,
            "rope_theta": 10000.0,
            "original_max_position_embeddings": 64,
        }
    },
    "llama3": {
        "rope_parameters": {
            "rope_type": "llama3",
            "factor": 8.0,
            "rope_theta": 10000.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        }
    },
    "dynamic": {
        "rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0},
        "max_position_embeddings": 24,
    },
    "biases": {"attention_bias": True},
    "one_head": {"num_attention_heads": 2, "num_key_value_heads": 1},
}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return Checkpoint(tmp_path_factory.mktemp("small"))


@pytest.mark.parametrize("variant", VARIANTS)
def test_greedy_tokens_are_those_of_transformers(run_batch: Batch, variant: str, tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "m", **VARIANTS[variant])
    asked = prompts(3, 40)
    results, _ = run_batch(checkpoint.folder, [greedy(prompt, 24) for prompt in asked])
    assert len(results) == 3
    for prompt, result in zip(asked, results, strict=True):
        tokens, logits = checkpoint.expected(prompt, 24)
        assert result["token_ids"] == tokens
        expected = torch.log_softmax(logits.float(), -1)[range(24), tokens]
        torch.testing.assert_close(torch.tensor(result["logprobs"]), expected, rtol=0, atol=1e-4)


def test_requests_that_join_and_leave_are_as_if_alone(run_batch: Batch, small: Checkpoint) -> None:
    generator = random.Random(5)
    asked = prompts(64, 30, seed=1)
    lengths = [generator.randint(1, 40) for _ in asked]
    joins = sorted(generator.randint(0, 60) for _ in asked)
    requests = [
        greedy(prompt, length, after_steps=after) for prompt, length, after in zip(asked, lengths, joins, strict=True)
    ]
    results, report = run_batch(small.folder, requests, "--most-sequences=16", "--step-tokens=48")
    assert "0 requests preempted" in report
    for prompt, length, result in zip(asked, lengths, results, strict=True):
        assert result["token_ids"] == small.expected(prompt, length)[0]
        assert result["finish_reason"] == "length"


@pytest.mark.parametrize("options", [(), ("--offload-cache=4M",), ("--offload-cache=4M", "--offload=by_pressure")])
def test_with_few_pages_requests_are_preempted_and_give_the_same(
    run_batch: Batch, small: Checkpoint, options: tuple[str, ...]
) -> None:
    # 4 layers, keys and values of 2 heads of 32 numbers, 16 tokens in 4 bytes each: 32 KiB a page.
    asked = prompts(8, 60, seed=2)
    results, report = run_batch(small.folder, [greedy(prompt, 60) for prompt in asked], "--cache=640K", *options)
    assert "; 0 requests preempted" not in report
    for prompt, result in zip(asked, results, strict=True):
        assert result["token_ids"] == small.expected(prompt, 60)[0]


def test_prompts_that_begin_alike_share_pages(run_batch: Batch, small: Checkpoint) -> None:
    begin = prompts(1, 1, seed=3)[0] * 50 + list(range(100, 150))
    asked = [begin + [n] for n in range(4)]
    requests = [greedy(prompt, 8, after_steps=20 * n) for n, prompt in enumerate(asked)]
    results, report = run_batch(small.folder, requests)
    assert "(288 more found in pages)" in report, report  # three times six pages of 16
    for prompt, result in zip(asked, results, strict=True):
        assert result["token_ids"] == small.expected(prompt, 8)[0]


def test_a_prompt_in_parts_gives_the_same(run_batch: Batch, small: Checkpoint) -> None:
    prompt = prompts(1, 1, seed=4)[0] + list(range(200))
    for step in (7, 64):
        results, _ = run_batch(small.folder, [greedy(prompt, 10)], f"--step-tokens={step}", "--most-sequences=4")
        assert results[0]["token_ids"] == small.expected(prompt, 10)[0]


# So that what a step computes is small beside the weights, as it is in larger models.
SMALL_STEPS = ("--step-tokens=32", "--most-sequences=4")


def machine(profile: str, placement: str = "accelerator") -> dict[str, str]:
    """The variables of a simulated machine."""
    figures = load_profile(profile).as_options()
    return {
        "HETERO_ACCELERATOR": "sim",
        "HETERO_PLACEMENT": placement,
        "HETERO_SIM_FIGURES": ",".join(f"{name}={figure}" for name, figure in figures.items()),
    }


# Three digits of MiB are printed.
ROUNDED = 600


class Use:
    """What the report says of the accelerator."""

    def __init__(self, report: str) -> None:
        found = re.search(r"sim: held ([\d.]+) MiB at most; ([\d.]+) MiB copied there, .*; (\d+) launches", report)
        assert found, report
        self.held, self.copied = (float(found[n]) * 2**20 for n in (1, 2))
        self.launches = int(found[3])


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return Checkpoint(tmp_path_factory.mktemp("mixture"), **VARIANTS["mixture"])


@pytest.mark.parametrize(
    ("checkpoint", "profile"),
    [("small", "h200"), ("small", "rtx4090"), ("small", "pcie3-slow"), ("mixture", "pcie3-slow")],
)
@pytest.mark.parametrize("percent", [100, 75, 50, 25, 10])
def test_an_accelerator_with_a_part_of_the_weights_gives_the_same(
    run_batch: Batch, request: pytest.FixtureRequest, checkpoint: str, profile: str, percent: int
) -> None:
    modelled: Checkpoint = request.getfixturevalue(checkpoint)
    budget = modelled.bytes * percent // 100
    asked = prompts(3, 40, seed=8)
    results, report = run_batch(
        modelled.folder,
        [greedy(prompt, 8) for prompt in asked],
        f"--budget={budget}",
        *SMALL_STEPS,
        variables=machine(profile),
    )
    for prompt, result in zip(asked, results, strict=True):
        assert result["token_ids"] == modelled.expected(prompt, 8)[0]
    use = Use(report)
    assert 0.5 * budget < use.held <= budget + ROUNDED, report
    assert use.launches > 50


@pytest.mark.parametrize(("checkpoint", "profile"), [("small", "h200"), ("mixture", "pcie3-slow")])
def test_where_the_planner_chooses_tokens_are_the_same(
    run_batch: Batch, request: pytest.FixtureRequest, checkpoint: str, profile: str
) -> None:
    modelled: Checkpoint = request.getfixturevalue(checkpoint)
    asked = prompts(3, 40, seed=8)
    for options in ((), (f"--budget={modelled.bytes // 2}",)):
        results, _ = run_batch(
            modelled.folder,
            [greedy(prompt, 8) for prompt in asked],
            *options,
            *SMALL_STEPS,
            variables=machine(profile, "auto"),
        )
        for prompt, result in zip(asked, results, strict=True):
            assert result["token_ids"] == modelled.expected(prompt, 8)[0]


def test_weights_are_brought_to_the_accelerator_once(run_batch: Batch, small: Checkpoint) -> None:
    # Steps of many sizes: prompts of different lengths that join while others are generated.
    asked = prompts(8, 60, seed=9)
    requests = [greedy(prompt, 10, after_steps=3 * n) for n, prompt in enumerate(asked)]
    results, report = run_batch(small.folder, requests, variables=machine("h200"))
    for prompt, result in zip(asked, results, strict=True):
        assert result["token_ids"] == small.expected(prompt, 10)[0]
    steps = int(re.search(r"in (\d+) steps", report)[1])
    assert steps > 20
    assert Use(report).copied < 1.5 * small.bytes, report


def test_preempted_requests_give_the_same_with_an_accelerator(run_batch: Batch, small: Checkpoint) -> None:
    asked = prompts(6, 60, seed=2)
    options = ("--cache=640K", "--offload-cache=4M", "--offload=by_pressure", f"--budget={small.bytes // 2}")
    results, report = run_batch(
        small.folder, [greedy(prompt, 40) for prompt in asked], *options, variables=machine("rtx4090")
    )
    assert "; 0 requests preempted" not in report
    assert Use(report).launches > 50
    for prompt, result in zip(asked, results, strict=True):
        assert result["token_ids"] == small.expected(prompt, 40)[0]


def test_a_budget_without_room_for_a_layer_leaves_the_work_to_the_cpu(run_batch: Batch, small: Checkpoint) -> None:
    prompt = prompts(1, 20, seed=3)[0]
    results, report = run_batch(small.folder, [greedy(prompt, 8)], "--budget=4K", variables=machine("h200"))
    assert results[0]["token_ids"] == small.expected(prompt, 8)[0]
    assert Use(report).held <= 4096 + ROUNDED


def test_a_budget_beyond_the_accelerator_is_refused_in_a_sentence(program: Path, small: Checkpoint) -> None:
    done = subprocess.run(
        [program, "generate", str(small.folder), "--prompt=a", "--budget=1T"],
        capture_output=True,
        text=True,
        env=os.environ | machine("h200"),
    )
    assert done.returncode == 1
    assert "1.00 TiB of the accelerator's memory, and 139" in done.stderr, done.stderr


def test_a_request_that_is_late_ends_with_what_it_has(run_batch: Batch, small: Checkpoint) -> None:
    asked = prompts(3, 20, seed=4)
    late = greedy(asked[0], 30000, timeout=2.0)
    results, _ = run_batch(small.folder, [late, greedy(asked[1], 20), greedy(asked[2], 20, timeout=1e-9)])
    assert [result["finish_reason"] for result in results] == ["timeout", "length", "timeout"]
    assert 0 < len(results[0]["token_ids"]) < 30000
    assert results[1]["token_ids"] == small.expected(asked[1], 20)[0]
    assert results[2]["token_ids"] == []
    (wrong,), _ = run_batch(small.folder, [greedy(asked[0], 3, timeout=-1)])
    assert "timeout" in wrong["error"]


def test_sampling_depends_on_the_seed_and_not_on_other_requests(run_batch: Batch, small: Checkpoint) -> None:
    prompt = prompts(1, 20, seed=6)[0]
    drawn = {"temperature": 0.9, "top_k": 40, "top_p": 0.95}
    alone, _ = run_batch(small.folder, [greedy(prompt, 20, seed=9, **drawn)])
    among, _ = run_batch(
        small.folder,
        [greedy(other, 20, seed=n, **drawn) for n, other in enumerate(prompts(5, 30, seed=7))]
        + [greedy(prompt, 20, seed=9, **drawn), greedy(prompt, 20, seed=10, **drawn)],
    )
    assert among[-2]["token_ids"] == alone[0]["token_ids"] != among[-1]["token_ids"]


def test_wrong_requests_are_refused_in_a_sentence_and_the_others_run(run_batch: Batch, small: Checkpoint) -> None:
    wrong = {
        "temperature": greedy([1], 4, temperature="hot"),
        "token 9999": greedy([9999], 4),
        "at least one token": greedy([], 4) | {"prompt": ""},
        "max_tokens": greedy([1], 0),
        "context": greedy([1] * 50000, 4),
        "no JSON": "{",
        "logprobs": greedy([1], 4, logprobs=21),
        "top_p": greedy([1], 4, top_p=1.5),
    }
    requests = [request for _, request in wrong.items()]
    results, _ = run_batch(small.folder, [*requests, greedy([5, 6], 4)])
    errors = [result.get("error") for result in results]
    assert [result["request"] for result in results] == list(range(len(requests) + 1))
    for number, part in enumerate(wrong):
        assert part in errors[number], errors[number]
    assert errors[len(wrong)] is None
    assert results[-1]["token_ids"] == small.expected([5, 6], 4)[0]
