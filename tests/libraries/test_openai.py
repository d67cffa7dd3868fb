"""The `openai` client with the server of the C++ program qwen3 (docs/qwen3.md)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

openai = pytest.importorskip("openai")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python" / "models"))


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    """A client of a server with a small model of random weights."""
    import qwen3_checkpoints

    from torch_hetero.qwen3 import program

    folder = qwen3_checkpoints.write(tmp_path_factory.mktemp("openai") / "tiny", qwen3_checkpoints.build())
    with subprocess.Popen(
        [program(), "serve", str(folder), "--port=0", "--no-report"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        yield openai.OpenAI(base_url=url, api_key="none")
        process.terminate()


def test_models_completions_and_chats(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    answer = client.completions.create(model="tiny", prompt="Once", max_tokens=8, temperature=0, logprobs=2)
    assert answer.usage.completion_tokens <= 8
    assert len(answer.choices[0].logprobs.tokens) == answer.usage.completion_tokens
    messages = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi"}]
    chat = client.chat.completions.create(model="tiny", messages=messages, max_tokens=8, temperature=0)
    assert chat.choices[0].message.role == "assistant" and chat.choices[0].finish_reason in ("length", "stop")
    stream = client.chat.completions.create(
        model="tiny",
        messages=messages,
        max_tokens=8,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    events = list(stream)
    pieces = [event.choices[0].delta.content or "" for event in events if event.choices]
    assert "".join(pieces) == chat.choices[0].message.content
    assert events[-1].usage == chat.usage


def test_errors_are_those_of_the_client(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.completions.create(model="tiny", prompt="a", temperature=-1)
    with pytest.raises(openai.BadRequestError, match="role"):
        client.chat.completions.create(model="tiny", messages=[{"role": "robot", "content": "x"}])


def test_a_stream_that_is_closed_leaves_the_server_free(client: openai.OpenAI) -> None:
    for _ in range(3):
        stream = client.completions.create(
            model="tiny", prompt="Once", max_tokens=4000, temperature=0, stream=True, extra_body={"ignore_eos": True}
        )
        next(iter(stream))
        stream.close()
    assert client.completions.create(model="tiny", prompt="Once", max_tokens=2, temperature=0).choices
