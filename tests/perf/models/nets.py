"""Networks of the bench that no library has, small and in their usual form; and wrappers around those of libraries."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F


class Picked(nn.Module):
    """A model of transformers that takes tensors by position and returns one of its results."""

    def __init__(self, model: nn.Module, names: Sequence[str], result: str) -> None:
        super().__init__()
        self.model = model
        self.names = tuple(names)
        self.result = result

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        """The named result."""
        return getattr(self.model(**dict(zip(self.names, tensors, strict=True))), self.result)


class UNet(nn.Module):
    """Four levels of two convolutions with batch norm; halved by pooling, doubled by transposed convolutions."""

    def __init__(self, width: int = 32, classes: int = 4) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(4)]
        self.down = nn.ModuleList(self._block(i, o) for i, o in zip([3, *widths], widths, strict=False))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, stride=2) for w in reversed(widths[:-1]))
        self.merge = nn.ModuleList(self._block(2 * w, w) for w in reversed(widths[:-1]))
        self.head = nn.Conv2d(width, classes, 1)

    @staticmethod
    def _block(inputs: int, outputs: int) -> nn.Sequential:
        layers: list[nn.Module] = []
        for channels in (inputs, outputs):
            layers += [nn.Conv2d(channels, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
        return nn.Sequential(*layers)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits for each pixel."""
        kept = []
        hidden = images
        for level, block in enumerate(self.down):
            hidden = block(F.max_pool2d(hidden, 2) if level else hidden)
            kept.append(hidden)
        for up, merge, skip in zip(self.up, self.merge, reversed(kept[:-1]), strict=True):
            hidden = merge(torch.cat([skip, up(hidden)], 1))
        return self.head(hidden)


class Detector(nn.Module):
    """torchvision's SSDLite on MobileNetV3: backbone and heads, then boxes from anchors and the best 100 a image.

    Suppression of overlapping boxes is left out: its results have sizes that depend on values.
    """

    PIXELS = 320
    BEST = 100

    def __init__(self) -> None:
        super().__init__()
        from torchvision.models.detection import ssdlite320_mobilenet_v3_large
        from torchvision.models.detection.image_list import ImageList

        whole = ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None).eval()
        self.backbone, self.head = whole.backbone, whole.head
        image = torch.zeros(1, 3, self.PIXELS, self.PIXELS)
        with torch.no_grad():
            features = list(self.backbone(image).values())
            anchors = whole.anchor_generator(ImageList(image, [(self.PIXELS, self.PIXELS)]), features)[0]
        size = anchors[:, 2:] - anchors[:, :2]
        self.register_buffer("center", anchors[:, :2] + size / 2)
        self.register_buffer("size", size)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The best scores, and their boxes of shape (batch, BEST, 4) as corners."""
        found = self.head(list(self.backbone(images).values()))
        shifts = found["bbox_regression"]
        center = shifts[..., :2] * 0.1 * self.size + self.center
        half = torch.exp((shifts[..., 2:] * 0.2).clamp(max=4.0)) * self.size / 2
        boxes = torch.cat([center - half, center + half], -1).clamp(0, self.PIXELS)
        scores, index = found["cls_logits"].softmax(-1)[..., 1:].amax(-1).topk(self.BEST)
        return scores, boxes.gather(1, index.unsqueeze(-1).expand(-1, -1, 4))


class Tagger(nn.Module):
    """Embedding, a recurrent network, and a class for each token."""

    def __init__(self, kind: type[nn.RNNBase], width: int, layers: int, bidirectional: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10000, 128)
        self.layers = kind(128, width, layers, batch_first=True, bidirectional=bidirectional)
        self.head = nn.Linear(width * (1 + bidirectional), 20)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits for each token."""
        return self.head(self.layers(self.embedding(tokens))[0])


class TemporalBlock(nn.Module):
    """Two causal convolutions and a residual connection."""

    def __init__(self, inputs: int, outputs: int, dilation: int) -> None:
        super().__init__()
        self.pad = 2 * dilation
        self.first = nn.Conv1d(inputs, outputs, 3, dilation=dilation)
        self.second = nn.Conv1d(outputs, outputs, 3, dilation=dilation)
        self.skip = nn.Conv1d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, signal: torch.Tensor) -> torch.Tensor:
        """The signal, of the same length."""
        hidden = torch.relu(self.first(F.pad(signal, (self.pad, 0))))
        hidden = torch.relu(self.second(F.pad(hidden, (self.pad, 0))))
        return torch.relu(hidden + self.skip(signal))


class TemporalNetwork(nn.Module):
    """Eight blocks of dilated convolutions over a signal of 16 channels."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(TemporalBlock(width if level else 16, width, 2**level) for level in range(8)))
        self.head = nn.Linear(width, 10)

    def forward(self, signal: torch.Tensor) -> torch.Tensor:
        """Classes of the last moment."""
        return self.head(self.blocks(signal)[..., -1])


class MixerBlock(nn.Module):
    """MLPs over tokens and over channels."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.tokens = nn.Sequential(nn.Linear(tokens, width // 2), nn.GELU(), nn.Linear(width // 2, tokens))
        self.channels = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden states of shape (batch, tokens, width)."""
        hidden = hidden + self.tokens(self.norms[0](hidden).transpose(1, 2)).transpose(1, 2)
        return hidden + self.channels(self.norms[1](hidden))


class Mixer(nn.Module):
    """MLP-Mixer S/16: patches, eight blocks, a class."""

    def __init__(self, width: int = 512, blocks: int = 8) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, stride=16)
        self.blocks = nn.Sequential(*(MixerBlock(196, width) for _ in range(blocks)), nn.LayerNorm(width))
        self.head = nn.Linear(width, 1000)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits of the class."""
        return self.head(self.blocks(self.patches(images).flatten(2).transpose(1, 2)).mean(1))


def tabular(layers: int, width: int, norm: bool) -> nn.Sequential:
    """An MLP over 32 columns with so many linear layers."""
    made: list[nn.Module] = []
    for index in range(layers - 1):
        made.append(nn.Linear(width if index else 32, width))
        made += [nn.BatchNorm1d(width)] if norm else []
        made.append(nn.ReLU())
    return nn.Sequential(*made, nn.Linear(width, 2))


class Recommender(nn.Module):
    """DLRM: bags of ids in eight tables, an MLP over numbers, products of all pairs, an MLP over these."""

    TABLES, IDS, WIDTH = 8, 10, 64

    def __init__(self, rows: int = 50_000) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, self.WIDTH, mode="sum") for _ in range(self.TABLES))
        self.bottom = nn.Sequential(nn.Linear(13, 256), nn.ReLU(), nn.Linear(256, self.WIDTH), nn.ReLU())
        pairs = torch.tril_indices(self.TABLES + 1, self.TABLES + 1, -1)
        self.register_buffer("rows", pairs[0])
        self.register_buffer("columns", pairs[1])
        width = self.WIDTH + pairs.shape[1]
        self.top = nn.Sequential(nn.Linear(width, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 1))

    def forward(self, numbers: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """The probability of a click; `ids` has the shape (tables, batch, ids of a bag)."""
        dense = self.bottom(numbers)
        vectors = torch.stack([dense, *(table(bag) for table, bag in zip(self.tables, ids.unbind(), strict=True))], 1)
        pairs = torch.bmm(vectors, vectors.transpose(1, 2))[:, self.rows, self.columns]
        return torch.sigmoid(self.top(torch.cat([dense, pairs], 1)))


class GraphNetwork(nn.Module):
    """Three layers of GraphSAGE with means over neighbours; edges are pairs of nodes."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        widths = [64, width, width]
        self.own = nn.ModuleList(nn.Linear(w, width) for w in widths)
        self.others = nn.ModuleList(nn.Linear(w, width, bias=False) for w in widths)
        self.head = nn.Linear(width, 16)

    def forward(self, nodes: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        """Classes of the nodes."""
        source, target = edges[0], edges[1]
        ones = nodes.new_ones(edges.shape[1])
        count = nodes.new_zeros(nodes.shape[0]).index_add(0, target, ones).clamp(min=1).unsqueeze(1)
        hidden = nodes
        for own, others in zip(self.own, self.others, strict=True):
            gathered = hidden.index_select(0, source)
            mean = hidden.new_zeros(hidden.shape).index_add(0, target, gathered) / count
            hidden = torch.relu(own(hidden) + others(mean))
        return self.head(hidden)


class PointNet(nn.Module):
    """Layers of each point alone, what is largest over the points, and an MLP: a class of a cloud of points."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in ((3, 64), (64, 64), (64, 128), (128, 1024)):
            layers += [nn.Conv1d(inputs, outputs, 1), nn.BatchNorm1d(outputs), nn.ReLU()]
        self.points = nn.Sequential(*layers)
        self.head = nn.Sequential(nn.Linear(1024, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(),
                                  nn.Linear(256, 40))  # fmt: skip

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        """Logits of the class; points have the shape (batch, 3, points)."""
        return self.head(self.points(points).amax(-1))


class DiffusionBlock(nn.Module):
    """Two convolutions behind group norms and SiLU; what is known of the time is added between them."""

    def __init__(self, inputs: int, outputs: int, time: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.GroupNorm(16, inputs), nn.GroupNorm(16, outputs)])
        self.first, self.second = nn.Conv2d(inputs, outputs, 3, padding=1), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.time = nn.Linear(time, outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, images: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        """Images of the same size."""
        hidden = self.first(F.silu(self.norms[0](images))) + self.time(F.silu(time))[:, :, None, None]
        return self.second(F.silu(self.norms[1](hidden))) + self.skip(images)


class DiffusionUNet(nn.Module):
    """Three levels of a U-Net that predicts noise at a time, with attention between the pixels of the smallest."""

    def __init__(self, width: int = 64, time: int = 128) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(64, time), nn.SiLU(), nn.Linear(time, time))
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        widths = [width, 2 * width, 4 * width]
        self.down = nn.ModuleList(DiffusionBlock(i, o, time) for i, o in zip([width, *widths], widths, strict=False))
        self.halve = nn.ModuleList(nn.Conv2d(w, w, 3, 2, 1) for w in widths[:-1])
        self.middle = DiffusionBlock(4 * width, 4 * width, time)
        self.norm, self.heads = nn.GroupNorm(16, 4 * width), nn.Conv2d(4 * width, 12 * width, 1)
        self.joined = nn.Conv2d(4 * width, 4 * width, 1)
        self.up = nn.ModuleList(DiffusionBlock(2 * w, max(w // 2, width), time) for w in reversed(widths))
        self.enlarge = nn.ModuleList(nn.Conv2d(w, w, 3, padding=1) for w in reversed(widths[:-1]))
        self.head = nn.Sequential(nn.GroupNorm(16, width), nn.SiLU(), nn.Conv2d(width, 3, 3, padding=1))

    def forward(self, images: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
        """Noise of the images' shape; times have the shape (batch,)."""
        angles = times[:, None] * torch.exp(torch.arange(32, device=images.device) * (-math.log(10000.0) / 31))
        time = self.time(torch.cat([angles.sin(), angles.cos()], -1))
        hidden, kept = self.stem(images), []
        for level, block in enumerate(self.down):
            hidden = block(self.halve[level - 1](hidden) if level else hidden, time)
            kept.append(hidden)
        hidden = self.middle(hidden, time)
        batch, channels, height, width = hidden.shape
        parts = self.heads(self.norm(hidden)).reshape(batch, 3, 4, channels // 4, height * width).transpose(-1, -2)
        seen = F.scaled_dot_product_attention(*parts.unbind(1))
        hidden = hidden + self.joined(seen.transpose(-1, -2).reshape(hidden.shape))
        for level, block in enumerate(self.up):
            if level:
                hidden = self.enlarge[level - 1](F.interpolate(hidden, scale_factor=2.0))
            hidden = block(torch.cat([hidden, kept.pop()], 1), time)
        return self.head(hidden)


class ColumnTransformer(nn.Module):
    """FT-Transformer: a token of each of 32 columns, and three layers of PyTorch's encoder over them."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(32, width)), nn.Parameter(torch.randn(32, width))
        self.first = nn.Parameter(torch.randn(1, 1, width))
        layer = nn.TransformerEncoderLayer(width, 8, 2 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(width, 2)

    def forward(self, columns: torch.Tensor) -> torch.Tensor:
        """Logits of two classes."""
        tokens = columns.unsqueeze(-1) * self.weight + self.bias
        return self.head(self.layers(torch.cat([self.first.expand(columns.shape[0], -1, -1), tokens], 1))[:, 0])


class Pass(nn.Module):
    """One pass over memory; what it takes says how fast memory is."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """The larger of each value and 0."""
        return torch.relu(values)
