"""transformers' OpenAI-compatible server, asked by OpenAI's own client."""

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import torch
from openai import OpenAI
from transformers import AutoTokenizer, GenerationConfig

from recurrify.modeling import generation, window_loop
from recurrify.serving import ConversingForCausalLM, StatesOfTexts, serve_model
from support.checks import WINDOW
from support.commands import refused, transformers_as_before
from support.models import PAD, text, tiny
from support.processes import free_port
from support.tools import MEMORIES, saved
from support.words import word_tokenizer

__all__ = ["refused", "transformers_as_before"]

TEMPLATE = (
    "{% for message in messages %}{{ 'w6 ' if message.role == 'user' else 'w7 ' }}{{ message.content }} w8 {% endfor %}"
    "{% if add_generation_prompt %}w7 {% endif %}"
)
TURNS, NEW = 25, 6
KEPT = 5
every_memory = pytest.mark.parametrize("mechanism", MEMORIES)


@pytest.fixture
def tokens_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens go through the base, one entry for each pass."""
    passes: list[int] = []
    for module in (window_loop, generation):
        original = module.run_backbone

        def counted(base: Any, context: Any, inputs: Any, *others: Any, run: Any = original, **more: Any) -> Any:
            passes.append(inputs.get("input_ids", inputs.get("inputs_embeds")).shape[:2].numel())
            return run(base, context, inputs, *others, **more)

        monkeypatch.setattr(module, "run_backbone", counted)
    return passes


@pytest.fixture
def client_of() -> Iterator[Callable[[Any], OpenAI]]:
    servers = []

    def client(server: Any) -> OpenAI:
        servers.append(server)
        return OpenAI(base_url=f"http://localhost:{server.server.config.port}/v1", api_key="none", max_retries=0)

    yield client
    for server in servers:
        server.kill_server()


def chatting(mechanism: str, folder: Path) -> Any:
    model = saved(mechanism, folder)
    model.generation_config.eos_token_id = None
    model.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return model


def bytes_held(states: StatesOfTexts) -> int:
    """Whole storages: a small part of a large tensor keeps all of it."""
    parts = [part for state in states.states.values() for part in (state.memory, state.tokens) if part is not None]
    return sum(part.untyped_storage().nbytes() for part in parts)


@every_memory
def test_a_long_conversation_costs_the_same_in_each_turn(
    mechanism: str, tmp_path: Path, tokens_read: list[int], client_of: Any
) -> None:
    model = chatting(mechanism, tmp_path)
    server = serve_model(str(tmp_path), port=free_port(), states=KEPT, device="cpu", background=True)
    client = client_of(server)
    (served,) = (timed.model for timed in server._model_manager.loaded_models.values())
    messages: list[Any] = []
    work, held = [], []
    for turn in range(TURNS):
        messages.append({"role": "user", "content": f"w{10 + turn} w{11 + turn % 30} w{12 + turn % 20}"})
        tokens_read.clear()
        answer = client.chat.completions.create(
            model=str(tmp_path), messages=messages, max_tokens=NEW, temperature=0, stream=False
        )
        work.append(sum(tokens_read))
        held.append(bytes_held(served.kept))
        messages.append({"role": "assistant", "content": answer.choices[0].message.content})
    assert answer.usage is not None
    whole = answer.usage.prompt_tokens
    assert whole > TURNS * NEW
    # What is new, the window that is open, and the windows that fill up with both, each read again for its memory.
    new = whole // TURNS + 1 + NEW
    assert max(work[1:]) <= 3 * (new + WINDOW) < whole / 3
    assert sum(work[-10:]) <= 1.1 * sum(work[5:15])
    assert len(served.kept.states) == KEPT
    assert max(held[10:]) <= 1.1 * max(held[:10])

    # The same as without memory between the requests, also when streamed.
    expected = AutoTokenizer.from_pretrained(tmp_path).apply_chat_template(
        messages[:-1], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    tokens_read.clear()
    found = model.generate(**expected, max_new_tokens=NEW, do_sample=False)[0, -NEW:]
    assert sum(tokens_read) > whole
    assert [f"w{token}" for token in found.tolist()] == messages[-1]["content"].split()
    parts = client.chat.completions.create(
        model=str(tmp_path), messages=messages[:-1], max_tokens=NEW, temperature=0, stream=True
    )
    assert "".join(part.choices[0].delta.content or "" for part in parts) == messages[-1]["content"]


@every_memory
def test_texts_that_branch(mechanism: str, tmp_path: Path, tokens_read: list[int]) -> None:
    plain = saved(mechanism, tmp_path)
    model = ConversingForCausalLM.from_pretrained(tmp_path).eval()
    settings = GenerationConfig(max_new_tokens=NEW, do_sample=False, eos_token_id=None, pad_token_id=PAD)

    def both(ids: torch.Tensor) -> list[torch.Tensor]:
        mask = torch.ones_like(ids)
        return [one.generate(ids, settings, attention_mask=mask).clone() for one in (plain, model)]

    question, other = text(1, 6 * WINDOW), text(1, 3, seed=1)
    answered = both(question)[1]
    assert model.kept.longest(answered[0])[0] == answered.shape[1] - 1  # all but the last token was read
    changed = torch.cat([answered[:, :-4], other], dim=1)  # an answer that came back with other tokens
    for ids in (question, torch.cat([answered, other], dim=1), changed, question[:, :1], other):
        expected, found = both(ids)
        assert torch.equal(found, expected)
    tokens_read.clear()
    model.generate(changed, settings, attention_mask=torch.ones_like(changed))
    assert sum(tokens_read) < 4 * WINDOW
    before = dict(model.kept.states)
    settings.num_beams = settings.num_return_sequences = 2
    expected, found = both(question)
    assert torch.equal(found, expected)
    assert model.kept.states == before


def test_what_cannot_be_served(tmp_path: Path, refused: Any) -> None:
    tiny("gpt2").save_pretrained(tmp_path / "plain")
    word_tokenizer().save_pretrained(tmp_path / "plain")
    assert "`transformers serve`" in refused("serve", tmp_path / "plain")
    saved("carry", tmp_path / "model")
    with socket.socket() as taken:
        taken.bind(("localhost", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"Port {port} of localhost cannot be used" in refused("serve", tmp_path / "model", "--port", port)
    assert "revision" in refused("serve", (tmp_path / "model").rename(tmp_path / "a@b"))


MESSAGES = [{"role": "user", "content": "w5"}]
MALFORMED: list[tuple[str, Any, str]] = [
    ("chat/completions", b"{", "The request is not JSON"),
    ("chat/completions", b"\xff", "The request is not JSON"),
    ("chat/completions", [], "must be a JSON object: got []"),
    ("chat/completions", {}, "`messages` is missing"),
    ("chat/completions", {"messages": []}, "`messages` must be a list of messages"),
    ("chat/completions", {"messages": ["x"]}, "`messages[0]` must be an object with a `role`"),
    ("chat/completions", {"messages": [{"role": "user", "content": 3}]}, "must be text: got 3"),
    ("chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "is no text"),
    ("chat/completions", {"messages": MESSAGES, "model": "no/such"}, "requested 'no/such'"),
    ("chat/completions", {"messages": MESSAGES, "model": 3}, "`model` must be a name: got 3"),
    ("chat/completions", {"messages": MESSAGES, "max_tokens": 10**12}, "from 1 to 1e+06: got 1000000000000"),
    ("chat/completions", {"messages": MESSAGES, "max_tokens": "many"}, "`max_tokens` must be a whole number"),
    ("chat/completions", {"messages": MESSAGES, "logit_bias": {"x": 1}}, "cannot be answered: ValueError"),
    ("chat/completions", {"messages": MESSAGES, "logit_bias": [1]}, "cannot be answered: AttributeError"),
    ("chat/completions", {"messages": MESSAGES, "generation_config": "{"}, "cannot be answered: JSONDecodeError"),
    ("chat/completions", {"messages": MESSAGES, "telepathy": 1}, "Unexpected fields in the request: {'telepathy'}"),
    ("completions", {"prompt": 5}, "`prompt` must be text: got 5"),
    ("completions", {"prompt": ""}, "`prompt` is empty"),
    ("completions", {"prompt": "w5", "seed": 2**80}, "`seed` must be a whole number"),
    ("completions", b'{"prompt": "w5", "temperature": 1e999}', "`temperature` must be a number from 0 to 100"),
    ("completions", {"prompt": "w5", "top_p": -1}, "`top_p` must be a number"),
    ("completions", {"prompt": "w5", "stop": [3]}, "`stop` must be text or a list of texts"),
    ("completions", {"prompt": "w5", "stream": "yes"}, "`stream` must be true or false"),
    ("completions", {"prompt": "w5", "frequency_penalty": -1}, "cannot be answered: ValueError"),
    ("responses", {"input": 3}, "`input` must be text: got 3"),
    ("responses", {"input": [3]}, "cannot be answered"),
    ("responses", {"input": "w5", "max_output_tokens": 0}, "`max_output_tokens` must be a whole number"),
]


def test_malformed_requests_get_a_sentence(tmp_path: Path, client_of: Any) -> None:
    chatting("carry", tmp_path)
    server = serve_model(str(tmp_path), port=free_port(), device="cpu", background=True)
    client_of(server)
    for path, content, words in MALFORMED:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        request = Request(f"http://localhost:{server.server.config.port}/v1/{path}", data=body, method="POST")
        request.add_header("Content-Type", "application/json")
        with pytest.raises(HTTPError) as caught, urlopen(request, timeout=60):
            pass
        said = json.loads(caught.value.read())
        assert (caught.value.code, path, content) == (400, path, content), said
        assert words in said["error"]["message"], (path, content, said)
        caught.value.close()
