"""Whole models give CPU's bits: forward, generation, and every parameter after training."""

from __future__ import annotations

import models
import pytest
import torch
from counters import counting
from helpers import DEVICE, assert_same, fresh, needs_hetero
from torch import nn


def forward_on_both(model: nn.Module, *inputs: torch.Tensor) -> None:
    with torch.no_grad():
        expected = model(*inputs)
        model.to(DEVICE)
        actual = model(*[fresh(value) for value in inputs])
    assert actual.device.type == DEVICE
    assert_same(actual.cpu(), expected)


TEXTS = {
    "one short text": ["How do I read a file?"],
    "a batch with padding": [
        "Return the sum of a start value and an iterable of numbers.",
        "Open file and return a stream.",
        "sort",
        "A longer sentence, which makes the tokenizer pad the other ones of this batch a lot.",
    ],
}


@pytest.mark.parametrize("case", TEXTS)
def test_minilm_with_real_weights_embeds_bitwise_as_cpu(case: str, unfused: None) -> None:
    model, tokenize = models.minilm()
    batch = tokenize(TEXTS[case])

    def embed(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        with torch.no_grad():
            hidden = model(**batch).last_hidden_state
            mask = batch["attention_mask"].unsqueeze(-1).to(hidden.dtype)
            pooled = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
            return nn.functional.normalize(pooled, dim=1)

    expected = embed(batch)
    model.to(DEVICE)
    actual = embed({name: value.to(DEVICE) for name, value in batch.items()})
    assert_same(actual.cpu(), expected)
    assert abs(expected.norm(dim=1).mean().item() - 1) < 1e-5


@needs_hetero
def test_minilm_is_recorded_without_fallback_and_flushed_once() -> None:
    model, tokenize = models.minilm()
    model.to(DEVICE)
    batch = {name: value.to(DEVICE) for name, value in tokenize(["one text"]).items()}
    with torch.no_grad():
        model(**batch).last_hidden_state.cpu()
        with counting() as seen:
            model(**batch).last_hidden_state.cpu()
    assert seen.fallbacks == {}
    assert sum(seen.flushes.values()) <= 3, seen.flushes
    assert seen.typed > 10 * max(seen.boxed, 1)


@pytest.mark.parametrize("mode", ("eval", "train"))
def test_resnet18_forward_is_bitwise_cpu(mode: str, unfused: None) -> None:
    model = models.resnet18()
    model.train(mode == "train")
    forward_on_both(model, torch.randn(2, 3, 64, 64))


def test_resnet18_in_channels_last_is_bitwise_cpu(unfused: None) -> None:
    model = models.resnet18().eval().to(memory_format=torch.channels_last)
    forward_on_both(model, torch.randn(2, 3, 64, 64).to(memory_format=torch.channels_last))


def test_vit_b_16_layers_forward_is_bitwise_cpu() -> None:
    forward_on_both(models.vit(), torch.randn(2, 3, 32, 32))


def test_vit_b_16_in_full_is_bitwise_cpu() -> None:
    from torchvision.models import vit_b_16

    torch.manual_seed(0)
    forward_on_both(vit_b_16(weights=None).eval(), torch.randn(1, 3, 224, 224))


def test_lstm_language_model_forward_is_bitwise_cpu() -> None:
    forward_on_both(models.language_model(), torch.randint(50, (3, 9)))


def test_gru_and_cells_are_bitwise_cpu() -> None:
    torch.manual_seed(1)
    gru = nn.GRU(5, 7, num_layers=2, bidirectional=True)
    cell, lstm_cell = nn.GRUCell(5, 7), nn.LSTMCell(5, 7)
    inputs = torch.randn(4, 3, 5)
    with torch.no_grad():
        expected = [*gru(inputs), cell(inputs[0]), *lstm_cell(inputs[1])]
        for module in (gru, cell, lstm_cell):
            module.to(DEVICE)
        there = inputs.to(DEVICE)
        actual = [*gru(there), cell(there[0]), *lstm_cell(there[1])]
    assert_same([value.cpu() for value in actual], expected)


def test_packed_sequences_run_through_an_lstm_as_on_cpu() -> None:
    torch.manual_seed(2)
    lstm = nn.LSTM(4, 6)
    inputs, lengths = torch.randn(5, 3, 4), torch.tensor([5, 3, 2])

    def run(device: str) -> list[torch.Tensor]:
        packed = nn.utils.rnn.pack_padded_sequence(inputs.to(device), lengths)
        with torch.no_grad():
            output, (hidden, state) = lstm.to(device)(packed)
        padded, _ = nn.utils.rnn.pad_packed_sequence(output)
        return [padded.cpu(), hidden.cpu(), state.cpu()]

    assert_same(run(DEVICE), run("cpu"))


def test_transformer_forward_is_bitwise_cpu(unfused: None) -> None:
    model = models.transformer()
    forward_on_both(model, torch.randint(40, (2, 10)))
    forward_on_both(model.to("cpu").eval(), torch.randint(40, (2, 7)))


@pytest.mark.parametrize("family", ("gpt2", "llama", "qwen3"))
def test_decoder_logits_are_bitwise_cpu(family: str, unfused: None) -> None:
    model = models.causal_lm(family)
    tokens = torch.randint(3, 64, (2, 11))
    mask = torch.ones_like(tokens)
    mask[0, :4] = 0
    with torch.no_grad():
        expected = model(input_ids=tokens, attention_mask=mask).logits
        model.to(DEVICE)
        actual = model(input_ids=tokens.to(DEVICE), attention_mask=mask.to(DEVICE)).logits
    assert_same(actual.cpu(), expected)


@pytest.mark.parametrize("family", ("gpt2", "llama", "qwen3"))
def test_greedy_generation_gives_cpu_tokens(family: str) -> None:
    model = models.causal_lm(family)
    tokens = torch.randint(3, 64, (2, 5))

    def generate(device: str) -> torch.Tensor:
        prompt = tokens.to(device)
        return model.to(device).generate(
            input_ids=prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=12,
            do_sample=False,
        )

    expected = generate("cpu")
    actual = generate(DEVICE)
    assert actual.device.type == DEVICE
    assert_same(actual.cpu(), expected)
    assert actual.shape[1] > 5


def test_sampled_generation_is_reproducible_under_a_seed() -> None:
    model = models.causal_lm("gpt2").to(DEVICE)
    prompt = torch.randint(3, 64, (2, 5)).to(DEVICE)

    def generate() -> torch.Tensor:
        torch.manual_seed(5)
        return model.generate(
            input_ids=prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=8,
            do_sample=True,
            top_k=20,
            top_p=0.9,
        ).cpu()

    assert_same(generate(), generate())


def test_beam_search_gives_cpu_tokens() -> None:
    model = models.causal_lm("llama")
    prompt = torch.randint(3, 64, (1, 5))

    def generate(device: str) -> torch.Tensor:
        there = prompt.to(device)
        return (
            model.to(device)
            .generate(
                input_ids=there,
                attention_mask=torch.ones_like(there),
                max_new_tokens=6,
                num_beams=3,
                do_sample=False,
            )
            .cpu()
        )

    expected = generate("cpu")
    assert_same(generate(DEVICE), expected)


def test_half_precision_decoder_is_bitwise_cpu(unfused: None) -> None:
    model = models.causal_lm("qwen3").to(torch.bfloat16)
    tokens = torch.randint(3, 64, (1, 9))
    with torch.no_grad():
        expected = model(input_ids=tokens).logits
        actual = model.to(DEVICE)(input_ids=tokens.to(DEVICE)).logits
    assert_same(actual.cpu(), expected)


TRAINED = {
    "resnet18": (models.resnet18, lambda: (torch.randn(2, 3, 64, 64), torch.tensor([1, 7]))),
    "transformer": (
        models.transformer,
        lambda: (torch.randint(40, (2, 8)), torch.randint(40, (2, 8))),
    ),
    "lstm": (
        models.language_model,
        lambda: (torch.randint(50, (2, 6)), torch.randint(50, (2, 6))),
    ),
}


@pytest.mark.parametrize("optimizer", models.OPTIMIZERS)
@pytest.mark.parametrize("name", TRAINED)
def test_three_training_steps_leave_every_parameter_bitwise_cpu(
    name: str, optimizer: str, request: pytest.FixtureRequest
) -> None:
    if name in ("resnet18", "transformer"):  # convolutions, attention
        request.getfixturevalue("unfused")
    build, data = TRAINED[name]
    inputs, targets = data()
    expected = models.train(build, inputs, targets, optimizer, "cpu")
    actual = models.train(build, inputs, targets, optimizer, DEVICE)
    assert_same(actual, expected)
    assert expected["loss 0"] != expected["loss 2"]


def test_training_with_many_fused_and_plain_optimizers_is_bitwise_cpu() -> None:
    builders = {
        "foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
        "single": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=False),
        "amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
        "nesterov": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True),
        "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
        "adadelta": lambda p: torch.optim.Adadelta(p, lr=0.5),
        "radam": lambda p: torch.optim.RAdam(p, lr=0.01),
        "lbfgs": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=3),
    }

    def train(name: str, device: str) -> list[torch.Tensor]:
        torch.manual_seed(6)
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        inputs, targets = torch.randn(5, 3), torch.randn(5, 1)
        model, inputs, targets = model.to(device), inputs.to(device), targets.to(device)
        optimizer = builders[name](model.parameters())

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            return loss

        for _ in range(3):
            optimizer.step(closure)
        return [parameter.detach().cpu() for parameter in model.parameters()]

    for name in builders:
        assert_same(train(name, DEVICE), train(name, "cpu"))


def test_learning_rate_schedules_take_effect_as_on_cpu() -> None:
    def train(device: str) -> torch.Tensor:
        weight = nn.Parameter(torch.ones(3, device=device))
        optimizer = torch.optim.SGD([weight], lr=1.0)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)
        for _ in range(5):
            optimizer.zero_grad()
            (weight**2).sum().backward()
            optimizer.step()
            schedule.step()
        return weight.detach().cpu()

    assert_same(train(DEVICE), train("cpu"))


LAYERS = {
    "conv1d": (lambda: nn.Conv1d(3, 4, 3, padding=1), (2, 3, 8)),
    "conv2d_grouped": (lambda: nn.Conv2d(4, 8, 3, groups=2, stride=2), (2, 4, 9, 9)),
    "conv2d_dilated": (lambda: nn.Conv2d(2, 3, 3, dilation=2, padding="same"), (1, 2, 8, 8)),
    "conv2d_reflect": (lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), (1, 2, 6, 6)),
    "conv3d": (lambda: nn.Conv3d(2, 3, 2), (1, 2, 4, 4, 4)),
    "conv_transpose2d": (lambda: nn.ConvTranspose2d(3, 2, 3, stride=2), (1, 3, 4, 4)),
    "batch_norm": (lambda: nn.BatchNorm2d(3), (4, 3, 5, 5)),
    "instance_norm": (lambda: nn.InstanceNorm2d(3, affine=True), (2, 3, 5, 5)),
    "group_norm": (lambda: nn.GroupNorm(2, 4), (2, 4, 5)),
    "layer_norm": (lambda: nn.LayerNorm([3, 4]), (2, 3, 4)),
    "rms_norm": (lambda: nn.RMSNorm(4), (2, 3, 4)),
    "max_pool": (lambda: nn.MaxPool2d(2), (1, 2, 6, 6)),
    "avg_pool": (lambda: nn.AvgPool2d(3, 2, 1), (1, 2, 6, 6)),
    "adaptive_pool": (lambda: nn.AdaptiveAvgPool2d((2, 3)), (1, 2, 7, 7)),
    "upsample": (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), (1, 2, 3, 3)),
    "pixel_shuffle": (lambda: nn.PixelShuffle(2), (1, 4, 3, 3)),
    "bilinear": (lambda: nn.Sequential(nn.Linear(4, 4), nn.Softplus(), nn.GLU()), (3, 4)),
    "activations": (
        lambda: nn.Sequential(nn.SiLU(), nn.Mish(), nn.ELU(), nn.LeakyReLU(), nn.Hardswish()),
        (3, 4),
    ),
    "attention": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
        (2, 5, 8),
    ),
    "prelu": (lambda: nn.PReLU(3), (2, 3, 4)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layer_forward_and_backward_are_bitwise_cpu(name: str, request: pytest.FixtureRequest) -> None:
    if name.startswith("conv") or name in ("attention", "batch_norm", "group_norm", "instance_norm"):
        request.getfixturevalue("unfused")
    build, size = LAYERS[name]

    def run(device: str) -> list[torch.Tensor]:
        torch.manual_seed(7)
        layer = build().to(device)
        inputs = torch.randn(size).to(device).requires_grad_()
        output = layer(inputs)
        (output**2).sum().backward()
        gradients = [parameter.grad for parameter in layer.parameters()]
        results = [output.detach(), inputs.grad, *gradients, *layer.buffers()]
        return [value.cpu() for value in results]

    assert_same(run(DEVICE), run("cpu"))


def test_losses_forward_and_backward_are_bitwise_cpu(unfused: None) -> None:
    torch.manual_seed(8)
    logits, classes = torch.randn(4, 5), torch.tensor([0, 2, 4, 1])
    values = torch.rand(4, 5)
    losses = {
        "cross_entropy": lambda x, c, v: nn.functional.cross_entropy(x, c, label_smoothing=0.1),
        "ignore_index": lambda x, c, v: nn.functional.cross_entropy(x, c, ignore_index=2),
        "nll": lambda x, c, v: nn.functional.nll_loss(x.log_softmax(1), c),
        "mse": lambda x, c, v: nn.functional.mse_loss(x, v),
        "l1": lambda x, c, v: nn.functional.l1_loss(x, v),
        "smooth_l1": lambda x, c, v: nn.functional.smooth_l1_loss(x, v),
        "huber": lambda x, c, v: nn.functional.huber_loss(x, v),
        "bce": lambda x, c, v: nn.functional.binary_cross_entropy_with_logits(x, v),
        "kl": lambda x, c, v: nn.functional.kl_div(x.log_softmax(1), v, reduction="batchmean"),
        "cosine": lambda x, c, v: nn.functional.cosine_similarity(x, v).sum(),
        "hinge": lambda x, c, v: nn.functional.multi_margin_loss(x, c),
        "ctc": lambda x, c, v: nn.functional.ctc_loss(x.log_softmax(1)[:, None], c[None, :2] + 0 * c[:2] + 1, [4], [2]),
    }

    def run(name: str, device: str) -> list[torch.Tensor]:
        leaf = logits.clone().to(device).requires_grad_()
        loss = losses[name](leaf, classes.to(device), values.to(device))
        loss.backward()
        return [loss.detach().cpu(), leaf.grad.cpu()]

    for name in losses:
        assert_same(run(name, DEVICE), run(name, "cpu"))
