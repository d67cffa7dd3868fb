"""The models of the bench: a row each. There is no model hub: libraries build them from configurations of the real
models' shapes, with random weights, or `nets.py` does."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.perf.models import nets

PROBE = "probe"
Inputs = tuple[torch.Tensor, ...]


@dataclasses.dataclass(frozen=True)
class Model:
    """One row.

    Attributes:
        name: its name on the command line.
        family: what kind of network it is; "probe" for what tells the processor's rates.
        build: makes it, on the CPU.
        inputs: makes its arguments for a batch size.
        larger: the batch size beside 1.
        optimizer: of its training step, "sgd" or "adamw".
        compared: how many of its results are compared with float64; boxes of nearly equal scores may change places.
        legacy: whether the older exporter of PyTorch makes the better ONNX graph, as it does of recurrent networks.
    """

    name: str
    family: str
    build: Callable[[], nn.Module]
    inputs: Callable[[int], Inputs]
    larger: int
    optimizer: str = "adamw"
    compared: int = 100
    legacy: bool = False

    def make(self) -> nn.Module:
        """The model for inference, always with the same weights. In training, nothing is dropped."""
        torch.manual_seed(0)
        model = self.build().eval()
        generator = torch.Generator().manual_seed(1)
        for part in model.modules():
            if type(part).__name__ in ("Dropout", "StochasticDepth"):
                part.p = 0.0
            if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.running_mean is not None:
                # Statistics of a new network would hide a wrong fold: mean 0, variance 1.
                part.running_mean.normal_(0, 0.1, generator=generator)
                part.running_var.uniform_(0.8, 1.25, generator=generator)
        return model

    def arguments(self, batch: int) -> Inputs:
        """The arguments, always the same."""
        torch.manual_seed(2)
        return self.inputs(batch)


def vision(name: str, **options: Any) -> Callable[[], nn.Module]:
    """A builder of torchvision's model."""

    def build() -> nn.Module:
        import torchvision

        return torchvision.models.get_model(name, weights=None, **options)

    return build


def transformer(
    kind: str, configuration: str, names: tuple[str, ...], result: str = "last_hidden_state", **options: Any
) -> Callable[[], nn.Module]:
    """A builder of a model of transformers from its configuration; no dropout, no cache among its results."""

    def build() -> nn.Module:
        import transformers

        config = getattr(transformers, configuration)(**options)
        for name in vars(config):
            if name.endswith(("dropout", "dropout_prob", "dropout_rate", "pdrop", "drop")):
                setattr(config, name, 0.0)
        config.use_cache = False
        return nets.Picked(getattr(transformers, kind)(config), names, result)

    return build


def images(pixels: int) -> Callable[[int], Inputs]:
    """Pictures of three channels."""
    return lambda batch: (torch.randn(batch, 3, pixels, pixels),)


def tokens(length: int, vocabulary: int) -> Callable[[int], Inputs]:
    """Tokens of texts of one length."""
    return lambda batch: (torch.randint(5, vocabulary, (batch, length)),)


def padded(length: int, vocabulary: int) -> Callable[[int], Inputs]:
    """Tokens of texts and their mask; all but the first are shorter, down to a half."""

    def make(batch: int) -> Inputs:
        lengths = torch.linspace(length, length // 2 if batch > 1 else length, batch).long()
        mask = (torch.arange(length) < lengths[:, None]).long()
        return torch.randint(5, vocabulary, (batch, length)) * mask, mask

    return make


def graph(batch: int) -> Inputs:
    """A graph of 500 nodes for each of a batch, side by side, and ten edges a node."""
    nodes = 500 * batch
    return torch.randn(nodes, 64), torch.randint(nodes, (2, 10 * nodes))


def clicks(batch: int) -> Inputs:
    """Numbers and ids of a recommender."""
    shape = (nets.Recommender.TABLES, batch, nets.Recommender.IDS)
    return torch.randn(batch, 13), torch.randint(50_000, shape)


BERT = ("input_ids", "attention_mask")
CLIP_TEXT = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 8}
CLIP_VISION = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
DEIT = {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 12, "num_attention_heads": 6}
LLAMA = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
         "num_key_value_heads": 3, "vocab_size": 49152}  # fmt: skip

MODELS = (
    Model("resnet18", "residual", vision("resnet18"), images(224), 8, "sgd"),
    Model("resnet50", "residual", vision("resnet50"), images(224), 8, "sgd"),
    Model("resnext50", "grouped", vision("resnext50_32x4d"), images(224), 8, "sgd"),
    Model("regnet_x", "grouped", vision("regnet_x_800mf"), images(224), 8, "sgd"),
    Model("mobilenet_v2", "depthwise", vision("mobilenet_v2"), images(224), 8, "sgd"),
    Model("mobilenet_v3", "depthwise", vision("mobilenet_v3_large"), images(224), 8, "sgd"),
    Model("efficientnet_b0", "depthwise", vision("efficientnet_b0"),
          images(224), 8, "sgd"),
    Model("mnasnet", "depthwise", vision("mnasnet1_0"), images(224), 8, "sgd"),
    Model("densenet121", "dense", vision("densenet121"), images(224), 8, "sgd"),
    Model("vgg11", "plain", vision("vgg11"), images(224), 8, "sgd"),
    Model("convnext_tiny", "modern", vision("convnext_tiny"), images(224), 8),
    Model("unet", "u-net", nets.UNet, images(192), 4, "sgd"),
    Model("diffusion_unet", "u-net", nets.DiffusionUNet,
          lambda batch: (torch.randn(batch, 3, 32, 32), 100 * torch.rand(batch)), 4),
    Model("segformer", "segmentation", transformer("SegformerForSemanticSegmentation", "SegformerConfig",
          ("pixel_values",), "logits"), images(224), 4),
    Model("ssdlite", "detector", nets.Detector, images(nets.Detector.PIXELS), 4, "sgd", compared=1),
    Model("r3d_18", "video", vision("r3d_18"), lambda batch: (torch.randn(batch, 3, 8, 112, 112),), 4, "sgd"),
    Model("bert", "encoder", transformer("BertModel", "BertConfig", BERT), padded(128, 30000), 8),
    Model("distilroberta", "encoder", transformer("RobertaModel", "RobertaConfig", BERT, num_hidden_layers=6,
          vocab_size=50265, max_position_embeddings=514), padded(64, 50000), 16),
    Model("t5_encoder", "encoder", transformer("T5EncoderModel", "T5Config", BERT), padded(128, 32000), 8),
    Model("deit_small", "vision transformer", transformer("ViTModel", "ViTConfig", ("pixel_values",), **DEIT),
          images(224), 8),
    Model("swin_tiny", "windowed", vision("swin_t"), images(224), 8),
    Model("clip_vision", "clip", transformer("CLIPVisionModel", "CLIPVisionConfig", ("pixel_values",),
          "pooler_output", image_size=224, patch_size=32, **CLIP_VISION), images(224), 8),
    Model("clip_text", "clip", transformer("CLIPTextModel", "CLIPTextConfig", BERT, **CLIP_TEXT),
          padded(77, 49000), 8),
    Model("wav2vec2", "speech", transformer("Wav2Vec2Model", "Wav2Vec2Config", ("input_values",),
          apply_spec_augment=False, layerdrop=0.0), lambda batch: (torch.randn(batch, 16000),), 4),
    Model("gpt2", "prefill", transformer("GPT2LMHeadModel", "GPT2Config", ("input_ids",), "logits"),
          tokens(128, 50000), 4),
    Model("llama", "prefill", transformer("LlamaForCausalLM", "LlamaConfig", ("input_ids",), "logits", **LLAMA),
          tokens(128, 49000), 4),
    Model("lstm", "recurrent", lambda: nets.Tagger(nn.LSTM, 256, 2, True), tokens(50, 10000), 16, legacy=True),
    Model("gru", "recurrent", lambda: nets.Tagger(nn.GRU, 256, 2, False), tokens(50, 10000), 16, legacy=True),
    Model("tcn", "temporal", nets.TemporalNetwork, lambda batch: (torch.randn(batch, 16, 512),), 16),
    Model("mixer", "mixer", nets.Mixer, images(224), 8),
    Model("mlp2", "tabular", lambda: nets.tabular(2, 128, False), lambda batch: (torch.randn(batch, 32),), 256),
    Model("mlp5", "tabular", lambda: nets.tabular(5, 256, True), lambda batch: (torch.randn(batch, 32),), 256),
    Model("mlp12", "tabular", lambda: nets.tabular(12, 256, False), lambda batch: (torch.randn(batch, 32),), 256),
    Model("ft_transformer", "tabular", nets.ColumnTransformer, lambda batch: (torch.randn(batch, 32),), 128),
    Model("point_net", "points", nets.PointNet, lambda batch: (torch.randn(batch, 3, 1024),), 8),
    Model("dlrm", "recommender", nets.Recommender, clicks, 256, "sgd"),
    Model("graph_sage", "graph network", nets.GraphNetwork, graph, 8),
    Model("product", PROBE, lambda: nn.Linear(1024, 1024), lambda batch: (torch.randn(1024, 1024),), 1),
    Model("convolution", PROBE, lambda: nn.Conv2d(128, 128, 3, padding=1),
          lambda batch: (torch.randn(4, 128, 56, 56),), 1),
    Model("memory", PROBE, nets.Pass, lambda batch: (torch.randn(2**22),), 1),
    Model("cache", PROBE, nets.Pass, lambda batch: (torch.randn(2**17),), 1),
)  # fmt: skip
BY_NAME = {model.name: model for model in MODELS}
