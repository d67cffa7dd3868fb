"""diffusers: models, scheduler loops and pipelines with random weights, on hetero."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import (
    AutoencoderKL,
    DDIMPipeline,
    DDIMScheduler,
    DDPMPipeline,
    DDPMScheduler,
    DiTPipeline,
    DiTTransformer2DModel,
    DPMSolverMultistepScheduler,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    StableDiffusionPipeline,
    UNet2DConditionModel,
    UNet2DModel,
)
from diffusers.training_utils import EMAModel
from tiny import devices, recording
from torch import nn
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

TOLERANCE = dict(rtol=1e-3, atol=1e-4)


def unet() -> UNet2DModel:
    torch.manual_seed(0)
    return UNet2DModel(
        sample_size=16, in_channels=3, out_channels=3, layers_per_block=1, block_out_channels=(16, 32),
        norm_num_groups=8, down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"), attention_head_dim=8,
    ).eval()


def conditional_unet() -> UNet2DConditionModel:
    torch.manual_seed(0)
    return UNet2DConditionModel(
        sample_size=8, in_channels=4, out_channels=4, layers_per_block=1, block_out_channels=(16, 32),
        norm_num_groups=8, cross_attention_dim=32, attention_head_dim=8,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    ).eval()


def autoencoder() -> AutoencoderKL:
    torch.manual_seed(0)
    return AutoencoderKL(
        block_out_channels=(16, 32), down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2, latent_channels=4, norm_num_groups=8, sample_size=16,
    ).eval()


def transformer() -> DiTTransformer2DModel:
    torch.manual_seed(0)
    return DiTTransformer2DModel(
        num_attention_heads=2, attention_head_dim=16, in_channels=4, out_channels=8, num_layers=2, sample_size=8,
        patch_size=2, num_embeds_ada_norm=1000, norm_num_groups=8,
    ).eval()


@pytest.mark.parametrize("name", ["unet", "conditional_unet", "autoencoder", "transformer"])
def test_models_equal_the_cpu_forward_and_backward(name: str) -> None:
    make = globals()[name]
    inputs: dict[str, Any] = {
        "unet": dict(sample=torch.randn(2, 3, 16, 16), timestep=torch.tensor([3, 500])),
        "conditional_unet": dict(sample=torch.randn(2, 4, 8, 8), timestep=torch.tensor([3, 500]),
                                 encoder_hidden_states=torch.randn(2, 5, 32)),
        "autoencoder": dict(sample=torch.randn(2, 3, 16, 16)),
        "transformer": dict(hidden_states=torch.randn(2, 4, 8, 8), timestep=torch.tensor([3, 500]),
                            class_labels=torch.tensor([1, 7])),
    }[name]

    def run(model: nn.Module, device: str) -> tuple[torch.Tensor, list[torch.Tensor]]:
        result = model.to(device)(**{key: value.to(device) for key, value in inputs.items()}).sample
        result.square().mean().backward()
        return result.detach().cpu(), [part.grad.cpu() for part in model.parameters() if part.grad is not None]

    expected, expected_gradients = run(make(), "cpu")
    with recording(50):
        result, gradients = run(make(), "hetero")
    torch.testing.assert_close(result, expected, **TOLERANCE)
    torch.testing.assert_close(gradients, expected_gradients, **TOLERANCE)


@pytest.mark.parametrize("scheduler", [DDPMScheduler, DDIMScheduler, EulerDiscreteScheduler,
                                       DPMSolverMultistepScheduler, FlowMatchEulerDiscreteScheduler])
def test_scheduler_loops_equal_the_cpu(scheduler: Any) -> None:
    start = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(3))

    @torch.no_grad()
    def run(device: str) -> torch.Tensor:
        steps, model, sample = scheduler(), unet().to(device), start.to(device)
        steps.set_timesteps(4, device=device)
        # Noise of DDPM comes from a generator of the CPU: those of devices differ.
        chosen = dict(generator=torch.Generator().manual_seed(5)) if scheduler is DDPMScheduler else {}
        sample = sample * getattr(steps, "init_noise_sigma", 1.0)
        for step in steps.timesteps:
            scaled = steps.scale_model_input(sample, step) if hasattr(steps, "scale_model_input") else sample
            sample = steps.step(model(scaled, step).sample, step, sample, **chosen).prev_sample
        return sample.cpu()

    expected = run("cpu")
    with recording(50, values=("nonzero",)):  # where the step is among the time steps
        torch.testing.assert_close(run("hetero"), expected, rtol=1e-2, atol=1e-3)


def test_a_pipeline_moves_to_hetero_and_gives_the_pictures_of_the_cpu(tmp_path: Path) -> None:
    for kind, scheduler in ((DDPMPipeline, DDPMScheduler()), (DDIMPipeline, DDIMScheduler())):
        made = kind(unet(), scheduler)
        made.set_progress_bar_config(disable=True)
        chosen = dict(batch_size=1, num_inference_steps=3, output_type="np")
        expected = made(generator=torch.Generator().manual_seed(0), **chosen).images
        made.to("hetero")
        assert made.device.type == "hetero" and devices(made.unet) == {"hetero"}
        with recording(50):
            result = made(generator=torch.Generator().manual_seed(0), **chosen).images
        torch.testing.assert_close(torch.as_tensor(result), torch.as_tensor(expected), rtol=1e-2, atol=1e-3)
        assert made(generator=torch.Generator("hetero").manual_seed(0), **chosen).images.shape == (1, 16, 16, 3)
    made.save_pretrained(tmp_path)
    for where in ("hetero", "balanced"):
        assert devices(DDIMPipeline.from_pretrained(tmp_path, device_map=where).unet) == {"hetero"}


def stable_diffusion(folder: Path) -> StableDiffusionPipeline:
    words = ["<|startoftext|>", "<|endoftext|>", "a</w>", "b</w>", "a", "b"]
    (folder / "vocab.json").write_text(json.dumps({word: index for index, word in enumerate(words)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    torch.manual_seed(0)
    text = CLIPTextModel(CLIPTextConfig(
        vocab_size=16, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=16, bos_token_id=0, eos_token_id=1, pad_token_id=1,
    )).eval()
    names = CLIPTokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"), model_max_length=16)
    made = StableDiffusionPipeline(
        vae=autoencoder(), text_encoder=text, tokenizer=names, unet=conditional_unet(),
        scheduler=DDIMScheduler(), safety_checker=None, feature_extractor=None, requires_safety_checker=False,
    )
    made.set_progress_bar_config(disable=True)
    return made


def picture(made: StableDiffusionPipeline) -> torch.Tensor:
    return torch.as_tensor(made(
        "a b", num_inference_steps=3, generator=torch.Generator().manual_seed(0), output_type="np", height=16, width=16
    ).images)


@pytest.mark.parametrize("how", ["to", "compiled", "model offload", "model offload to hetero", "sequential offload",
                                 "group offload", "slicing"])
def test_stable_diffusion_gives_the_pictures_of_the_cpu(how: str, tmp_path: Path) -> None:
    expected = picture(stable_diffusion(tmp_path))
    made = stable_diffusion(tmp_path)
    if how == "model offload":
        made.enable_model_cpu_offload()
    elif how == "model offload to hetero":
        made.enable_model_cpu_offload(device="hetero")
    elif how == "sequential offload":
        made.enable_sequential_cpu_offload()
    elif how == "group offload":
        made.enable_group_offload(torch.device("hetero"), offload_type="leaf_level", use_stream=True)
    else:
        made.to("hetero")
    if how == "compiled":
        made.unet = torch.compile(made.unet)
    if how == "slicing":
        made.enable_attention_slicing()
        made.vae.enable_slicing()
        made.vae.enable_tiling()
    assert made._execution_device.type == "hetero"
    with recording(100):
        torch.testing.assert_close(picture(made), expected, rtol=1e-2, atol=2e-3)
    if how.startswith(("model", "sequential")):
        made.maybe_free_model_hooks()
        assert "hetero" not in devices(made.unet)


def test_a_class_conditional_pipeline_runs() -> None:
    def run(device: str) -> torch.Tensor:
        made = DiTPipeline(transformer(), autoencoder(), DDIMScheduler()).to(device)
        made.set_progress_bar_config(disable=True)
        return torch.as_tensor(made([1, 2], num_inference_steps=2, generator=torch.Generator().manual_seed(0),
                                    output_type="np").images)

    expected = run("cpu")
    with recording(100):
        torch.testing.assert_close(run("hetero"), expected, rtol=1e-2, atol=2e-3)


def test_denoising_trains_with_an_average_of_weights() -> None:
    def train(device: str) -> tuple[list[float], torch.Tensor]:
        generator = torch.Generator().manual_seed(4)
        model, schedule = unet().train().to(device), DDPMScheduler()
        average, optimizer = EMAModel(model.parameters(), decay=0.5), torch.optim.AdamW(model.parameters(), lr=1e-3)
        losses = []
        for _ in range(3):
            clean, noise = (torch.randn(2, 3, 16, 16, generator=generator).to(device) for _ in range(2))
            steps = torch.randint(1000, (2,), generator=generator).to(device)
            loss = nn.functional.mse_loss(model(schedule.add_noise(clean, noise, steps), steps).sample, noise)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            average.step(model.parameters())
            losses.append(loss.item())
        return losses, average.shadow_params[0].cpu()

    expected = train("cpu")
    with recording(100):
        torch.testing.assert_close(train("hetero"), expected, rtol=1e-2, atol=1e-3)
