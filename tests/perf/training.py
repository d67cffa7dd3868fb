"""Whole training steps: resnet18 with SGD, a small transformer with AdamW. Time, peak memory, memory plan."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from tests.perf import peers
from tests.perf.measure import DEVICE, Row, alternate, flush, main, missing, timed_row, with_peers
from tests.perf.memory import arena_row, peak_row
from tests.perf.products import products_note

BATCH = 8
PIXELS = 64
WIDTH, LAYERS, HEADS, LENGTH, VOCABULARY = 256, 4, 4, 128, 1000
INDUCTOR_BAR = 1.0

Loss = Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]


class Transformer(nn.Module):
    """A causal transformer without dropout that predicts the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.02)
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of shape (batch, length, vocabulary) for int64 tokens of shape (batch, length)."""
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        hidden = self.tokens(tokens) + self.positions
        return self.head(self.layers(hidden, mask=mask, is_causal=True))


def loss_of(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross entropy over the last dimension of the model's output."""
    return nn.functional.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())


class Step:
    """A model with its optimizer and data; a call is one whole step, which ends when the parameters are updated."""

    def __init__(self, device: str) -> None:
        torch.manual_seed(0)
        model, self.inputs, self.targets = self.build()
        self.model = model.to(device)
        self.inputs, self.targets = self.inputs.to(device), self.targets.to(device)
        self.optimizer = self.make_optimizer()
        self.loss: Loss = loss_of
        self.update: Callable[[], object] = self.optimizer.step

    def build(self) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
        """The model, inputs and targets, on CPU."""
        raise NotImplementedError

    def make_optimizer(self) -> torch.optim.Optimizer:
        """The optimizer of the model's parameters."""
        raise NotImplementedError

    def compile(self) -> Step:
        """Lets inductor compile the model with its loss, and the optimizer's step."""
        self.loss = peers.inductor(loss_of)
        self.update = torch.compile(self.optimizer.step, dynamic=False)
        return self

    def without_gradients(self) -> None:
        """The state between two steps."""
        self.optimizer.zero_grad()

    def __call__(self) -> float:
        self.optimizer.zero_grad()
        loss = self.loss(self.model, self.inputs, self.targets)
        loss.backward()
        self.update()
        value = loss.item()
        flush()
        return value


class Resnet(Step):
    """resnet18, SGD with momentum."""

    what = f"resnet18 training step, batch {BATCH}, {PIXELS}x{PIXELS}, SGD"
    bar = 0.8

    def build(self) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
        import models

        return models.resnet18(), torch.randn(BATCH, 3, PIXELS, PIXELS), torch.randint(10, (BATCH,))

    def make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)


class SmallTransformer(Step):
    """The transformer above, AdamW."""

    what = f"{LAYERS}-layer transformer training step, d={WIDTH}, {BATCH} x {LENGTH} tokens, AdamW"
    bar = 0.6

    def build(self) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
        tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1))
        return Transformer(), tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.model.parameters(), lr=1e-4)


def measure() -> list[Row]:
    """For each model its time against eager and inductor, its peak memory and its memory plan."""
    rows = []
    for model in (Resnet, SmallTransformer):
        there, here = model(DEVICE), model("cpu")
        subjects: dict[str, Step] = {"hetero": there, "eager": here}
        compiling = 0.0
        if with_peers():
            subjects["inductor"] = model("cpu").compile()
            compiling = peers.first_call(subjects["inductor"])
        times = alternate(subjects, seconds=8.0)
        rows.append(timed_row(model.what, times, model.bar, "ms", note=products_note(here)))
        if "inductor" in times:
            note = f"inductor compiled in {compiling:.1f} s"
            rows.append(timed_row(model.what, times, INDUCTOR_BAR, "ms", peer="inductor", note=note))
        else:
            rows.append(missing(model.what, INDUCTOR_BAR, "ms", "needs --peers", peer_name="inductor"))
        prepare = {"prepare_there": there.without_gradients, "prepare_here": here.without_gradients}
        rows.append(peak_row(model.what, there, here, **prepare))
        rows.append(arena_row(model.what, there))
    return rows


if __name__ == "__main__":
    main(measure)
