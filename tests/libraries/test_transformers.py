"""transformers: Trainer, pipelines, loading and generation on hetero, where the program names no device or this one."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from PIL import Image
from tiny import causal_model, classifier, devices, recording, sentences, tokenizer
from transformers import (
    AutoModelForCausalLM,
    CompileConfig,
    ContinuousBatchingConfig,
    DataCollatorForSeq2Seq,
    DataCollatorWithPadding,
    GenerationConfig,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    T5Config,
    T5ForConditionalGeneration,
    TextIteratorStreamer,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessor,
    pipeline,
)
from transformers.pipelines import TextClassificationPipeline


def labelled(count: int = 24) -> Dataset:
    texts = sentences(count)
    rows = tokenizer()(texts)
    return Dataset.from_dict({**{name: rows[name] for name in ("input_ids", "attention_mask")},
                              "labels": [index % 2 for index in range(count)]})


def trainer(folder: Path, model: Any = None, **chosen: Any) -> Trainer:
    settings = dict(
        output_dir=str(folder), per_device_train_batch_size=4, num_train_epochs=1, learning_rate=1e-3, logging_steps=1,
        report_to=[], disable_tqdm=True, save_strategy="no", seed=0,
    )
    return Trainer(
        model=model or classifier(), args=TrainingArguments(**{**settings, **chosen}), train_dataset=labelled(),
        eval_dataset=labelled(), data_collator=DataCollatorWithPadding(tokenizer()), processing_class=tokenizer(),
    )


def losses(trained: Trainer) -> list[float]:
    return [entry["loss"] for entry in trained.state.log_history if "loss" in entry]


def on_cpu(folder: Path, **chosen: Any) -> Trainer:
    made = trainer(folder, use_cpu=True, **chosen)
    made.train()
    assert devices(made.model) == {"cpu"}
    return made


def test_trainer_picks_hetero_and_trains_as_on_the_cpu(tmp_path: Path) -> None:
    expected = on_cpu(tmp_path, gradient_accumulation_steps=2)
    made = trainer(tmp_path, gradient_accumulation_steps=2)
    assert made.args.device.type == "hetero"
    with recording(100):
        made.train()
        scores, reference = made.evaluate(), expected.evaluate()
        predicted = made.predict(labelled())
    assert devices(made.model) == {"hetero"}
    torch.testing.assert_close(losses(made), losses(expected), rtol=1e-3, atol=1e-4)
    assert scores["eval_loss"] == pytest.approx(reference["eval_loss"], rel=1e-3)
    torch.testing.assert_close(predicted.predictions, expected.predict(labelled()).predictions, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize(
    "chosen",
    [{"bf16": True}, {"fp16": True}, {"gradient_checkpointing": True}, {"torch_compile": True},
     {"torch_compile": True, "torch_compile_backend": "hetero"}, {"optim": "sgd"}, {"bf16_full_eval": True},
     {"auto_find_batch_size": True}, {"dataloader_num_workers": 1}, {"torch_empty_cache_steps": 1}],
    ids=lambda chosen: "+".join(f"{value}" if name.endswith("backend") else name for name, value in chosen.items()),
)
def test_trainer_options_train_as_on_the_cpu(chosen: dict[str, Any], tmp_path: Path) -> None:
    # The CPU has no fp16 training in Trainer; bfloat16 rounds alike.
    half = "bf16" in chosen or "fp16" in chosen
    reference = on_cpu(tmp_path, **{name: value for name, value in chosen.items() if "torch_compile" not in name
                                    and name != "fp16"})
    made = trainer(tmp_path, **chosen)
    seen = set()
    made.model.bert.encoder.layer[0].intermediate.dense.register_forward_hook(
        lambda module, inputs, output: seen.add(output.dtype)
    )
    before = torch.hetero.explain().compiled["calls"]
    with recording(20):
        made.train()
    assert devices(made.model) == {"hetero"}
    assert (torch.hetero.explain().compiled["calls"] > before) == ("torch_compile" in chosen)
    if half:
        assert seen == {torch.bfloat16 if "bf16" in chosen else torch.float16}
        assert {parameter.dtype for parameter in made.model.parameters()} == {torch.float32}
    tolerance = 0.05 if half else 1e-3
    torch.testing.assert_close(losses(made), losses(reference), rtol=tolerance, atol=tolerance)


def test_a_resumed_training_ends_as_one_that_never_stopped(tmp_path: Path) -> None:
    def training(folder: str, **chosen: Any) -> Trainer:
        model = classifier(hidden_dropout_prob=0.3)
        return trainer(tmp_path / folder, model, save_strategy="steps", save_steps=3, **chosen)

    class Stop(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
            control.should_training_stop = state.global_step == 3

    whole = training("whole")
    whole.train()
    stopped = training("parts")
    stopped.add_callback(Stop())
    stopped.train()
    resumed = training("parts")
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == whole.state.global_step == 6
    # Dropout too: the checkpoint has the device's random state.
    torch.testing.assert_close(resumed.model.state_dict(), whole.model.state_dict(), rtol=1e-5, atol=1e-6)


def test_pipelines_run_on_hetero_unless_they_are_told_otherwise() -> None:
    texts = sentences(4)
    expected = TextClassificationPipeline(model=classifier().eval(), tokenizer=tokenizer(), device="cpu")(texts)
    for device in (None, 0, "hetero", "hetero:0", torch.device("hetero")):
        run = pipeline("text-classification", model=classifier().eval(), tokenizer=tokenizer(), device=device)
        assert run.device.type == "hetero" and devices(run.model) == {"hetero"}
        with recording(10):
            results = run(texts, batch_size=2)
        for result, reference in zip(results, expected, strict=True):
            assert result["label"] == reference["label"]
            assert result["score"] == pytest.approx(reference["score"], abs=1e-5)
    for device in (-1, "cpu", torch.device("cpu")):
        run = pipeline("text-classification", model=classifier(), tokenizer=tokenizer(), device=device)
        assert run.device.type == "cpu" and devices(run.model) == {"cpu"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    causal_model().save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


@pytest.mark.parametrize("where", ["auto", "hetero", "hetero:0", 0, {"": "hetero"}, "sequential", "balanced",
                                   {"model.embed_tokens": 0, "model.layers": "hetero", "model.norm": 0,
                                    "model.rotary_emb": 0, "lm_head": "cpu"}], ids=str)
def test_from_pretrained_places_the_model(where: Any, saved: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(saved, device_map=where)
    assert model.model.layers[0].mlp.up_proj.weight.device.type == "hetero"
    inputs = tokenizer()(sentences(2), return_tensors="pt")
    with recording(), torch.no_grad():
        result = model(**inputs.to(model.device)).logits.cpu()
    with torch.no_grad():
        torch.testing.assert_close(result, causal_model().eval()(**inputs.to("cpu")).logits, rtol=1e-4, atol=1e-5)


def test_a_pipeline_takes_the_device_of_a_placed_model(saved: Path) -> None:
    run = pipeline("text-generation", model=str(saved), device_map="auto")
    assert run.device.type == run.model.device.type == "hetero"
    expected = pipeline("text-generation", model=str(saved), device="cpu")
    chosen = dict(max_new_tokens=5, do_sample=False)
    assert run(sentences(1), **chosen) == expected(sentences(1), **chosen)


def test_a_model_that_does_not_fit_is_offloaded(saved: Path, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(
        saved, device_map="auto", max_memory={0: "320KB", "cpu": "150KB"}, offload_folder=tmp_path
    )
    assert set(model.hf_device_map.values()) == {0, "disk"}
    inputs = tokenizer()(sentences(2), return_tensors="pt")
    with torch.no_grad():
        result = model(**inputs.to("hetero")).logits
        expected = causal_model().eval()(**inputs.to("cpu")).logits
    torch.testing.assert_close(result.cpu(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("chosen", [
    {"do_sample": False}, {"num_beams": 3}, {"do_sample": False, "cache_implementation": "static"},
    {"do_sample": False, "cache_implementation": "offloaded"}, {"do_sample": False, "use_cache": False},
    {"do_sample": False, "repetition_penalty": 1.2, "no_repeat_ngram_size": 2},
    {"do_sample": False, "prompt_lookup_num_tokens": 2},
], ids=lambda chosen: "+".join(f"{name}={value}" for name, value in chosen.items() if name != "do_sample") or "greedy")
def test_generate_gives_the_tokens_of_the_cpu(chosen: dict[str, Any]) -> None:
    rows = 1 if "prompt_lookup_num_tokens" in chosen else 3
    inputs = tokenizer()(sentences(rows), return_tensors="pt", padding=True)
    settings = dict(max_new_tokens=12, **chosen)
    if "offloaded" in chosen.values():  # needs an accelerator
        expected = causal_model().eval().generate(**inputs, max_new_tokens=12, do_sample=False)
    else:
        expected = causal_model().eval().generate(**inputs, **settings)
    model = causal_model().eval().to("hetero")
    with recording(100, values=("nonzero",) if "prompt_lookup_num_tokens" in chosen else ()):
        result = model.generate(**inputs.to("hetero"), **settings)
    assert result.device.type == "hetero"
    assert result.tolist() == expected.tolist()


def test_generate_compiles_when_it_is_told_to() -> None:
    inputs = tokenizer()(sentences(2), return_tensors="pt")
    chosen = dict(max_new_tokens=8, do_sample=False, cache_implementation="static")
    expected = causal_model().eval().generate(**inputs, **chosen)
    model, inputs = causal_model().eval().to("hetero"), inputs.to("hetero")
    for compile_config, compiles in ((None, False), (CompileConfig(), True)):
        before = torch.hetero.explain().compiled["calls"]
        result = model.generate(**inputs, **chosen, compile_config=compile_config)
        assert result.tolist() == expected.tolist()
        assert (torch.hetero.explain().compiled["calls"] > before) == compiles


def test_speculative_generation_and_streaming_give_the_tokens_of_the_cpu() -> None:
    inputs = tokenizer()(sentences(1), return_tensors="pt")
    expected = causal_model().eval().generate(**inputs, max_new_tokens=10, do_sample=False)
    model, assistant = causal_model().eval().to("hetero"), causal_model(seed=1, num_hidden_layers=1).eval().to("hetero")
    inputs = inputs.to("hetero")
    streamer = TextIteratorStreamer(tokenizer(), skip_prompt=True)
    chosen = dict(max_new_tokens=10, do_sample=False)
    result = model.generate(**inputs, assistant_model=assistant, **chosen)
    assert result.tolist() == expected.tolist()
    thread = threading.Thread(target=model.generate, kwargs={**inputs, **chosen, "streamer": streamer})
    thread.start()
    text = "".join(streamer)
    thread.join()
    assert text.split() == tokenizer().decode(expected[0, inputs["input_ids"].shape[1]:]).split()


def test_a_model_loads_in_bfloat16(saved: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(saved, dtype=torch.bfloat16, device_map="hetero")
    inputs = tokenizer()(sentences(2), return_tensors="pt")
    with recording(), torch.no_grad():
        logits = model(**inputs.to("hetero")).logits
    assert logits.dtype == torch.bfloat16
    with torch.no_grad():
        expected = causal_model().eval()(**inputs.to("cpu")).logits
    torch.testing.assert_close(logits.cpu().float(), expected, rtol=0.1, atol=0.02)


def test_a_sequence_to_sequence_trainer_generates_when_it_evaluates(tmp_path: Path) -> None:
    def make(**chosen: Any) -> Seq2SeqTrainer:
        torch.manual_seed(0)
        model = T5ForConditionalGeneration(T5Config(
            vocab_size=64, d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2, dropout_rate=0.0,
            decoder_start_token_id=0, pad_token_id=0, eos_token_id=2,
        ))
        return Seq2SeqTrainer(
            model, Seq2SeqTrainingArguments(
                output_dir=str(tmp_path), max_steps=3, per_device_train_batch_size=4, logging_steps=1, report_to=[],
                disable_tqdm=True, save_strategy="no", predict_with_generate=True, generation_max_length=8, seed=0,
                **chosen,
            ), train_dataset=rows, eval_dataset=rows, processing_class=tokenizer(),
            data_collator=DataCollatorForSeq2Seq(tokenizer()),
        )

    encoded = tokenizer()(sentences(12))["input_ids"]
    rows = Dataset.from_dict({"input_ids": encoded, "labels": encoded[::-1]})
    expected = make(use_cpu=True)
    expected.train()
    made = make()
    with recording(100):
        made.train()
        predictions = made.predict(rows).predictions
    torch.testing.assert_close(losses(made), losses(expected), rtol=1e-3, atol=1e-4)
    assert predictions.tolist() == expected.predict(rows).predictions.tolist()


def test_an_image_pipeline_runs_on_hetero(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = ViTForImageClassification(ViTConfig(
        image_size=16, patch_size=8, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        num_labels=3,
    )).eval()
    processor = ViTImageProcessor(size={"height": 16, "width": 16})
    picture = Image.fromarray(torch.randint(256, (20, 24, 3), dtype=torch.uint8).numpy())
    expected = pipeline("image-classification", model=model, image_processor=processor, device="cpu")(picture)
    run = pipeline("image-classification", model=model, image_processor=processor)
    assert run.device.type == "hetero"
    with recording(10):
        result = run(picture)
    assert [entry["label"] for entry in result] == [entry["label"] for entry in expected]
    assert [entry["score"] for entry in result] == pytest.approx([entry["score"] for entry in expected], abs=1e-5)
    assert processor(picture, return_tensors="pt", device="hetero")["pixel_values"].device.type == "hetero"


def test_a_data_set_gives_tensors_on_hetero() -> None:
    rows = Dataset.from_dict({"x": [[1.0, 2.0], [3.0, 4.0]]}).with_format("torch", device="hetero")
    assert rows[:]["x"].device.type == "hetero"
    assert rows[1]["x"].tolist() == [3, 4]


def test_sampling_follows_the_probabilities_and_the_seed() -> None:
    model = causal_model().eval().to("hetero")
    inputs = tokenizer()(sentences(2), return_tensors="pt").to("hetero")
    chosen = dict(do_sample=True, top_k=5, temperature=0.7, max_new_tokens=1, num_return_sequences=40)
    torch.manual_seed(1)
    first = model.generate(**inputs, **chosen).tolist()
    torch.manual_seed(1)
    assert model.generate(**inputs, **chosen).tolist() == first
    with torch.no_grad():
        likely = causal_model().eval()(**inputs.to("cpu")).logits[:, -1].topk(5).indices.tolist()
    for row, tokens in enumerate(first):
        assert tokens[-1] in likely[row // 40]
    assert len({tokens[-1] for tokens in first}) > 3
    assert all(len(row) > 8 for row in model.generate(**inputs, do_sample=True, top_p=0.9, max_new_tokens=4).tolist())


def test_generate_batch_gives_the_tokens_of_the_cpu_and_its_memory_back() -> None:
    requests = tokenizer()([*sentences(4), *sentences(1, length=3)])["input_ids"]

    def tokens(model: Any) -> list[list[int]]:
        results = model.generate_batch(
            requests, generation_config=GenerationConfig(max_new_tokens=6, do_sample=False, eos_token_id=-1),
            continuous_batching_config=ContinuousBatchingConfig(num_blocks=8, page_size=32, max_batch_tokens=64),
        )
        return [results[name].generated_tokens for name in sorted(results, key=lambda name: int(name.split("_")[-1]))]

    expected = tokens(causal_model(attn_implementation="sdpa").eval())
    model = causal_model(attn_implementation="sdpa").eval().to("hetero")
    before = torch.hetero.memory_allocated()
    with recording(100):
        assert tokens(model) == expected
    gc.collect()
    assert torch.hetero.memory_allocated() <= before + (64 << 10)


def test_generate_batch_keeps_to_the_memory_limit() -> None:
    requests = tokenizer()(sentences(2))["input_ids"]
    model = causal_model(attn_implementation="sdpa").eval().to("hetero")
    torch.hetero.flush()
    limit = torch.hetero.memory_allocated() + (64 << 20)
    torch.hetero.reset_peak_memory_stats()
    with torch.hetero.config.override(memory_limit=limit):
        results = model.generate_batch(
            requests, generation_config=GenerationConfig(max_new_tokens=3, do_sample=False, eos_token_id=-1),
            continuous_batching_config=ContinuousBatchingConfig(max_batch_tokens=64, max_requests_per_batch=8),
        )
    assert [len(result.generated_tokens) for result in results.values()] == [3, 3]
    assert limit // 4 < torch.hetero.max_memory_allocated() <= limit
