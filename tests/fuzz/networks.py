"""Random networks of images, tokens and signals, run in each way and compared with float64.

A network is drawn from its seed while an example runs through it on the CPU, so each step is valid
there. A step is a module of PyTorch or calls ordinary functions. `STEPS` is the table of steps: the
states that they apply to, and how they are drawn.

The truth is eager's result in float64. The tolerance grows with the error of eager in float32, since
some networks amplify rounding. A failure of a compiled network counts only if the same network
compiled by PyTorch's `aot_eager` on the CPU is right.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch.nn import functional as F

from torch_hetero.program.calling import CompiledModel

Kind = Literal["image", "tokens", "signal"]
Function = Callable[..., torch.Tensor]
Tensors = list[torch.Tensor]

BATCHES = (1, 1, 1, 2, 3)
INPUT_CHANNELS = (3, 8, 16, 20, 32, 64)
OUTPUT_CHANNELS = (5, 8, 16, 24, 32, 64)
SIZES = (1, 4, 7, 8, 12, 16, 24)
# A step is refused if its result has more elements, or one of a larger magnitude.
MOST_ELEMENTS = 1 << 16
LARGEST = 1e3

ACTIVATIONS: tuple[tuple[Function, dict[str, Any]], ...] = (
    (torch.abs, {}),
    (torch.clamp, {"min": 0, "max": 6}),
    (torch.mul, {"other": 0.5}),
    (torch.sigmoid, {}),
    (torch.square, {}),
    (torch.sub, {"other": 1}),
    (torch.tanh, {}),
    (F.elu, {}),
    (F.gelu, {}),
    (F.gelu, {"approximate": "tanh"}),
    (F.hardswish, {}),
    (F.leaky_relu, {}),
    (F.mish, {}),
    (F.relu, {}),
    (F.silu, {}),
    (F.softplus, {}),
)


@dataclass(frozen=True)
class State:
    """What runs through a network. An image is [batch, channels, height, width].

    Tokens are [batch, pixels, channels], and a signal is [batch, channels, pixels].
    """

    kind: Kind
    channels: int
    height: int
    width: int

    @property
    def shorter(self) -> int:
        """The lesser of height and width."""
        return min(self.height, self.width)

    def after(self, kind: Kind, result: torch.Tensor) -> State:
        """The state when a step has made this result."""
        if kind == "image":
            return State(kind, *result.shape[1:])
        channels, pixels = result.shape[1:] if kind == "signal" else result.mT.shape[1:]
        sizes = (self.height, self.width) if self.height * self.width == pixels else (1, pixels)
        return State(kind, channels, *sizes)


class Call(nn.Module):
    """Calls a function with the state, a weight if one has these sizes, and options."""

    def __init__(self, function: Function, weight: tuple[int, ...] | None = None, **options: Any) -> None:
        super().__init__()
        self.function = function
        self.options = options
        self.weight = None if weight is None else nn.Parameter(torch.empty(weight))

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        weights = () if self.weight is None else (self.weight,)
        return self.function(state, *weights, **self.options)

    def __repr__(self) -> str:
        words = [] if self.weight is None else [f"weight={list(self.weight.shape)}"]
        words += [f"{name}={value}" for name, value in self.options.items()]
        return f"{self.function.__name__}({', '.join(words)})"


class Wrapper(nn.Module):
    """A step around another one."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner})"


class ChannelsLast(Wrapper):
    """Moves the second dimension to the end, calls a module, and moves it back."""

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        return self.inner(state.movedim(1, -1)).movedim(-1, 1)


class Joined(Wrapper):
    """Concatenates the channels of the state and of a module's result."""

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        return torch.cat([state, self.inner(state)], 1)


class Keep(nn.Identity):
    """Keeps the state for a later `Combine`."""


class Combine(nn.Module):
    """A residual connection: the state, and one that was kept."""

    def __init__(self, function: Function, index: int) -> None:
        super().__init__()
        self.function = function
        self.index = index

    def forward(self, state: torch.Tensor, kept: Tensors) -> torch.Tensor:
        return self.function(state, kept[self.index])

    def extra_repr(self) -> str:
        return f"{self.function.__name__}, kept[{self.index}]"


class Network(nn.Module):
    """Steps in a row. Returns the last state and, if `both`, the first that was kept."""

    def __init__(self, steps: list[nn.Module], names: list[str], both: bool) -> None:
        super().__init__()
        self.steps = nn.ModuleList(steps)
        self.names = names
        self.both = both

    def forward(self, state: torch.Tensor) -> tuple[torch.Tensor, ...]:
        kept: Tensors = []
        for step in self.steps:
            if isinstance(step, Combine):
                state = step(state, kept)
            else:
                state = step(state)
            if isinstance(step, Keep):
                kept.append(state)
        return (state, *kept[:1]) if self.both else (state,)

    def description(self) -> str:
        """Its steps, each on a line: the name in `STEPS`, and the module."""
        lines = [f"    {name}: {step}" for name, step in zip(self.names, self.steps, strict=True)]
        lines.append("    returns the first kept state, too" if self.both else "    returns the last state")
        return "\n".join(lines)


def gate(state: torch.Tensor) -> torch.Tensor:
    one, other = state.chunk(2, 1)
    return one * torch.sigmoid(other)


def excite(image: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return image * torch.sigmoid(F.conv2d(image.mean((2, 3), keepdim=True), weight))


def write_in_place(state: torch.Tensor) -> torch.Tensor:
    return state.clone().mul_(1.5).add_(0.25).relu_()


def shuffle_channels(image: torch.Tensor) -> torch.Tensor:
    return image.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2)


def crop(image: torch.Tensor) -> torch.Tensor:
    return image[:, :, 1:-1]


def square_of_views(image: torch.Tensor) -> torch.Tensor:
    return image * image.transpose(2, 3).transpose(2, 3) + 1


def tokens_of_image(image: torch.Tensor) -> torch.Tensor:
    return image.flatten(2).transpose(1, 2)


def image_of_tokens(tokens: torch.Tensor, height: int, width: int) -> torch.Tensor:
    return tokens.transpose(1, 2).reshape(tokens.shape[0], -1, height, width)


def center(tokens: torch.Tensor) -> torch.Tensor:
    return tokens - tokens.mean(1, keepdim=True)


def heads_of(tokens: torch.Tensor, heads: int) -> torch.Tensor:
    return tokens.unflatten(2, (heads, -1)).transpose(1, 2)


def attend_to_itself(tokens: torch.Tensor, heads: int) -> torch.Tensor:
    split = heads_of(tokens.contiguous(), heads)
    return F.scaled_dot_product_attention(split, split, split).transpose(1, 2).flatten(2)


def attend(tokens: torch.Tensor, weight: torch.Tensor, heads: int) -> torch.Tensor:
    query, key, value = (heads_of(part, heads) for part in F.linear(tokens, weight).chunk(3, 2))
    return F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)


def draw_activation(draw: random.Random, state: State) -> nn.Module:
    function, options = draw.choice(ACTIVATIONS)
    return Call(function, **options)


def draw_convolution(draw: random.Random, state: State) -> nn.Module:
    kernel = draw.choice((3, 3, 5))
    stride = draw.choice((1, 1, 2))
    outputs = draw.choice(OUTPUT_CHANNELS)
    return nn.Conv2d(state.channels, outputs, kernel, stride, kernel // 2, bias=draw.random() < 0.7)


def draw_wide_convolution(draw: random.Random, state: State) -> nn.Module | None:
    """3 x 3 points without strides, dilated or not, in one group or groups of 16 or 32 channels."""
    dilation = draw.choice((1, 1, 2, 3))
    padding = draw.choice((dilation, dilation, 0))
    if state.channels % 16 or state.shorter + 2 * padding <= 2 * dilation:
        return None
    width = draw.choice([width for width in (16, 32, state.channels) if state.channels % width == 0])
    groups = state.channels // width
    outputs = groups * draw.choice((16, 32))
    bias = draw.random() < 0.7
    return nn.Conv2d(state.channels, outputs, 3, 1, padding, dilation, groups, bias)


def draw_pointwise_convolution(draw: random.Random, state: State) -> nn.Module:
    stride = draw.choice((1, 1, 2))
    # With fewer channels, oneDNN's backward pass writes past its memory in eager, too
    # (uxlfoundation/oneDNN issue 6035).
    if state.channels < 16:
        stride = 1
    return nn.Conv2d(state.channels, draw.choice(OUTPUT_CHANNELS), 1, stride, bias=draw.random() < 0.7)


def draw_depthwise_convolution(draw: random.Random, state: State) -> nn.Module:
    channels, outputs = state.channels, state.channels * draw.choice((1, 1, 2))
    return nn.Conv2d(channels, outputs, 3, 1, 1, groups=channels, bias=draw.random() < 0.5)


def draw_transposed_convolution(draw: random.Random, state: State) -> nn.Module:
    return nn.ConvTranspose2d(state.channels, 8, 2, 2, bias=draw.random() < 0.5)


def draw_pool(draw: random.Random, state: State) -> nn.Module | None:
    pool = draw.choice((nn.MaxPool2d, nn.AvgPool2d))
    return pool(2) if state.shorter >= 2 else None


def draw_batch_norm(draw: random.Random, state: State) -> nn.Module:
    return nn.BatchNorm2d(state.channels) if state.kind == "image" else nn.BatchNorm1d(state.channels)


def draw_group_norm(draw: random.Random, state: State) -> nn.Module | None:
    # PyTorch refuses groups of one value.
    values = state.channels * state.height * state.width
    return nn.GroupNorm(4, state.channels) if state.channels % 4 == 0 and values > 4 else None


def draw_layer_norm(draw: random.Random, state: State) -> nn.Module:
    norm = nn.LayerNorm(state.channels)
    return norm if state.kind == "tokens" else ChannelsLast(norm)


def draw_linear(draw: random.Random, state: State) -> nn.Module:
    linear = nn.Linear(state.channels, draw.choice((8, 16, 24)), bias=draw.random() < 0.7)
    return linear if state.kind == "tokens" else ChannelsLast(linear)


def draw_moved_activation(draw: random.Random, state: State) -> nn.Module:
    return ChannelsLast(draw_activation(draw, state))


def draw_gate(draw: random.Random, state: State) -> nn.Module | None:
    return draw.choice((Call(gate), nn.GLU(1))) if state.channels % 2 == 0 else None


def draw_joined(draw: random.Random, state: State) -> nn.Module:
    return Joined(draw_activation(draw, state))


def draw_excitation(draw: random.Random, state: State) -> nn.Module:
    return Call(excite, (state.channels, state.channels, 1, 1))


def draw_upsampling(draw: random.Random, state: State) -> nn.Module:
    return nn.Upsample(scale_factor=2, mode=draw.choice(("nearest", "bilinear")))


def draw_channel_operand(draw: random.Random, state: State) -> nn.Module:
    return Call(draw.choice((torch.add, torch.mul)), (state.channels, 1, 1))


def draw_shuffle(draw: random.Random, state: State) -> nn.Module | None:
    return Call(shuffle_channels) if state.channels % 4 == 0 else None


def draw_crop(draw: random.Random, state: State) -> nn.Module | None:
    return Call(crop) if state.height > 2 else None


def draw_padding(draw: random.Random, state: State) -> nn.Module:
    return nn.ZeroPad2d((1, 0, 0, 1))


def draw_square_of_views(draw: random.Random, state: State) -> nn.Module:
    return Call(square_of_views)


def draw_write_in_place(draw: random.Random, state: State) -> nn.Module:
    return Call(write_in_place)


def draw_tokens(draw: random.Random, state: State) -> nn.Module:
    return Call(tokens_of_image) if state.kind == "image" else Call(torch.transpose, dim0=1, dim1=2)


def draw_signal(draw: random.Random, state: State) -> nn.Module:
    return nn.Flatten(2)


def draw_image(draw: random.Random, state: State) -> nn.Module:
    if state.kind == "signal":
        return nn.Unflatten(2, (state.height, state.width))
    return Call(image_of_tokens, height=state.height, width=state.width)


def draw_softmax(draw: random.Random, state: State) -> nn.Module:
    return nn.Softmax(-1)


def draw_center(draw: random.Random, state: State) -> nn.Module:
    return Call(center)


def draw_attention(draw: random.Random, state: State) -> nn.Module:
    heads = 2 if state.channels % 2 == 0 else 1
    if draw.random() < 0.5:
        return Call(attend_to_itself, heads=heads)
    return Call(attend, (3 * state.channels, state.channels), heads=heads)


def draw_signal_convolution(draw: random.Random, state: State) -> nn.Module:
    convolution = nn.Conv1d(state.channels, draw.choice((8, 12, 16)), 3, padding=1, bias=draw.random() < 0.7)
    return ChannelsLast(convolution) if state.kind == "tokens" else convolution


def draw_signal_pool(draw: random.Random, state: State) -> nn.Module | None:
    return nn.MaxPool1d(2) if state.height * state.width >= 2 else None


def draw_keep(draw: random.Random, state: State) -> nn.Module:
    return Keep()


@dataclass(frozen=True)
class Step:
    """A row of the table of steps."""

    name: str
    # The states that the step applies to.
    kinds: tuple[Kind, ...]
    # Draws the step's module; None if the state's sizes do not fit.
    draw: Callable[[random.Random, State], nn.Module | None]
    # How often it is drawn, relative to other steps.
    weight: int = 1
    # The kind of its results, where it changes.
    becomes: Kind | None = None


STEPS = (
    Step("activation", ("image", "tokens", "signal"), draw_activation, 3),
    Step("keep", ("image", "tokens", "signal"), draw_keep, 2),
    Step("moved activation", ("image", "tokens", "signal"), draw_moved_activation),
    Step("linear", ("image", "tokens", "signal"), draw_linear),
    Step("layer norm", ("image", "tokens", "signal"), draw_layer_norm),
    Step("write in place", ("image", "tokens", "signal"), draw_write_in_place),
    Step("convolution", ("image",), draw_convolution, 2),
    Step("wide convolution", ("image",), draw_wide_convolution, 4),
    Step("pointwise convolution", ("image",), draw_pointwise_convolution),
    Step("depthwise convolution", ("image",), draw_depthwise_convolution),
    Step("transposed convolution", ("image",), draw_transposed_convolution),
    Step("pool", ("image",), draw_pool, 2),
    Step("group norm", ("image",), draw_group_norm),
    Step("joined", ("image",), draw_joined),
    Step("excitation", ("image",), draw_excitation),
    Step("upsampling", ("image",), draw_upsampling),
    Step("channel operand", ("image",), draw_channel_operand),
    Step("shuffle", ("image",), draw_shuffle),
    Step("crop", ("image",), draw_crop),
    Step("padding", ("image",), draw_padding),
    Step("square of views", ("image",), draw_square_of_views),
    Step("batch norm", ("image", "signal"), draw_batch_norm),
    Step("gate", ("image", "signal"), draw_gate),
    Step("softmax", ("tokens",), draw_softmax),
    Step("center", ("tokens",), draw_center),
    Step("attention", ("tokens",), draw_attention, 2),
    Step("signal convolution", ("tokens", "signal"), draw_signal_convolution),
    Step("signal pool", ("signal",), draw_signal_pool),
    Step("tokens", ("image", "signal"), draw_tokens, 2, becomes="tokens"),
    Step("signal", ("image",), draw_signal, 2, becomes="signal"),
    Step("image", ("tokens", "signal"), draw_image, 2, becomes="image"),
)


def draw_weights(module: nn.Module) -> None:
    """Draws weights and running statistics; results keep roughly the magnitude of the state."""
    for weight in module.parameters():
        nn.init.normal_(weight, std=weight.shape[1:].numel() ** -0.5)
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        nn.init.normal_(module.running_mean)
        nn.init.uniform_(module.running_var, 0.5, 1.5)


class Writer:
    """Draws the steps of a network while an example runs through them."""

    def __init__(self, draw: random.Random, example: torch.Tensor) -> None:
        self.draw = draw
        self.value = example
        self.state = State("image", *example.shape[1:])
        self.steps: list[nn.Module] = []
        self.names: list[str] = []
        self.kept: list[State] = []
        self.kept_values: Tensors = []

    def step(self) -> None:
        """Draws a step, and perhaps connections to kept states that fit its result."""
        rows = [row for row in STEPS if self.state.kind in row.kinds]
        row = self.draw.choices(rows, [row.weight for row in rows])[0]
        module = row.draw(self.draw, self.state)
        if module is None:
            return
        draw_weights(module)
        module.eval()
        if not self.append(row.name, module, module(self.value), row.becomes or self.state.kind):
            return
        if isinstance(module, Keep):
            self.kept.append(self.state)
            self.kept_values.append(self.value)
            return
        for index, state in enumerate(self.kept):
            if state == self.state and self.draw.random() < 0.6:
                combine = Combine(self.draw.choice((torch.add, torch.mul, torch.sub)), index)
                self.append("combine", combine, combine(self.value, self.kept_values), state.kind)

    def append(self, name: str, module: nn.Module, result: torch.Tensor, kind: Kind) -> bool:
        """Adds a module that gave this result; false if the result is too large."""
        if result.numel() > MOST_ELEMENTS or not result.abs().max() <= LARGEST:
            return False
        self.steps.append(module)
        self.names.append(name)
        self.value, self.state = result, self.state.after(kind, result)
        return True


@torch.no_grad()
def draw_network(seed: int) -> tuple[Network, torch.Tensor]:
    """The network of a seed, and an example of its argument; also seeds PyTorch's generator."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    height = draw.choice(SIZES)
    width = draw.choice((height, height, 5, 8))
    example = torch.randn(draw.choice(BATCHES), draw.choice(INPUT_CHANNELS), height, width)
    writer = Writer(draw, example)
    for _ in range(draw.randint(3, 14)):
        writer.step()
    return Network(writer.steps, writer.names, draw.random() < 0.3).eval(), example


def results_of(network: nn.Module, example: torch.Tensor) -> Tensors:
    """The results of a call, on the CPU."""
    with torch.no_grad():
        return [result.cpu() for result in network(example)]


def gradients_of(network: nn.Module, example: torch.Tensor) -> Tensors:
    """The gradients of the results' mean squares, by the argument and all weights."""
    leaf = example.clone().requires_grad_()
    network.zero_grad()
    torch.stack([result.square().mean() for result in network(leaf)]).sum().backward()
    return [tensor.grad.cpu() for tensor in (leaf, *network.parameters()) if tensor.grad is not None]


def differences(found: Tensors, truth: Tensors) -> torch.Tensor:
    """The difference of each element, in float64."""
    assert [one.shape for one in found] == [one.shape for one in truth]
    return torch.cat([(one - other).flatten() for one, other in zip(found, truth, strict=True)])


def largest_error(found: Tensors, truth: Tensors) -> float:
    """The largest difference of an element, relative to 1 + its magnitude."""
    magnitudes = torch.cat([tensor.flatten() for tensor in truth]).abs()
    return (differences(found, truth).abs() / (1 + magnitudes)).max().item()


def norm_of_errors(found: Tensors, truth: Tensors) -> float:
    """The norm of all differences, relative to the norm of the truth."""
    norm = torch.cat([tensor.flatten() for tensor in truth]).norm()
    return (differences(found, truth).norm() / (norm + 1e-12)).item()


@dataclass(frozen=True)
class Measure:
    """What is compared. The error may be `floor` + `factor` * the error of eager in float32."""

    compute: Callable[[Any, torch.Tensor], Tensors]
    error: Callable[[Tensors, Tensors], float]
    floor: float
    factor: float


RESULTS = Measure(results_of, largest_error, 1e-4, 10)
GRADIENTS = Measure(gradients_of, norm_of_errors, 1e-3, 30)


def saved(network: Network, example: torch.Tensor) -> CompiledModel:
    return torch.hetero.compile(network, (example,))


def on_device(network: Network, example: torch.Tensor) -> nn.Module:
    return copy.deepcopy(network).to("hetero")


def compiled(network: Network, example: torch.Tensor) -> nn.Module:
    return torch.compile(on_device(network, example), backend="hetero", dynamic=False)


def compiled_by_pytorch(network: Network, example: torch.Tensor) -> nn.Module:
    return torch.compile(copy.deepcopy(network), backend="aot_eager", dynamic=False)


@dataclass(frozen=True)
class Way:
    """How a network runs."""

    # Turns a network and its example into a model to call.
    prepare: Callable[[Network, torch.Tensor], Any]
    # The device of the model's argument.
    device: str
    measure: Measure
    # A way without hetero. If it fails as well, a failure is PyTorch's own and does not count.
    peer: Way | None = None


WAYS = {
    "saved": Way(saved, "cpu", RESULTS),
    "lazily": Way(on_device, "hetero", RESULTS),
    "compiled": Way(compiled, "hetero", RESULTS, Way(compiled_by_pytorch, "cpu", RESULTS)),
    "gradients": Way(on_device, "hetero", GRADIENTS),
    "compiled-gradients": Way(compiled, "hetero", GRADIENTS, Way(compiled_by_pytorch, "cpu", GRADIENTS)),
}
# A plan is fused from the second call on.
CALLS = 3


def compare(way: Way, network: Network, example: torch.Tensor) -> None:
    """Raises an AssertionError if a call raises, or its values are too far from float64's."""
    measure = way.measure
    truth = measure.compute(copy.deepcopy(network).double(), example.double())
    bound = measure.floor + measure.factor * measure.error(measure.compute(network, example), truth)
    torch._dynamo.reset()
    try:
        model = way.prepare(network, example)
        found = [measure.compute(model, example.to(way.device)) for _ in range(CALLS)]
    except Exception as error:
        raise AssertionError(f"{type(error).__name__}: {error}") from error
    finally:
        torch._dynamo.reset()
    errors = [measure.error(values, truth) for values in found]
    # An error that is not a number is too large.
    if not all(error <= bound for error in errors):
        raise AssertionError(f"off by {', '.join(f'{error:.1e}' for error in errors)} where {bound:.1e} is allowed")


def check(seed: int, name: str) -> None:
    """Raises an AssertionError that lists the network's steps, if it fails in this way."""
    way = WAYS[name]
    network, example = draw_network(seed)
    try:
        compare(way, network, example)
    except AssertionError as failure:
        if way.peer is not None and fails(way.peer, network, example):
            return
        label = f"seed {seed}, {name}, argument {list(example.shape)}"
        raise AssertionError(f"{label}: {failure}\n{network.description()}") from failure


def fails(way: Way, network: Network, example: torch.Tensor) -> bool:
    try:
        compare(way, network, example)
    except AssertionError:
        return True
    return False
