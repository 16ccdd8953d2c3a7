"""What Trainer, pipelines and `generate` do by a model's class name, config or arguments."""

import logging
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import log_softmax
from transformers import GenerationConfig, Trainer, TrainingArguments, pipeline

from recurrify import NoRecurrence, Past, UserError, add_recurrence
from recurrify.context import WindowJob
from support.checks import WINDOW, assert_same_state, recurrent
from support.models import PAD, text, tiny
from support.tools import MEMORIES, remembering
from support.words import word_tokenizer

every_memory = pytest.mark.parametrize("mechanism", MEMORIES)


def trainer(model: Any, folder: Path, **settings: Any) -> Trainer:
    quiet = {"report_to": [], "use_cpu": True, "disable_tqdm": True, "dataloader_pin_memory": False}
    return Trainer(model, TrainingArguments(str(folder), **quiet, **settings))


def batch(rows: int = 2, length: int = 2 * WINDOW + 3) -> dict[str, torch.Tensor]:
    ids = text(rows, length)
    return {"input_ids": ids, "labels": ids.masked_fill(torch.arange(length) % 5 == 3, -100)}


@every_memory
def test_label_smoothing_compares_with_the_next_token(mechanism: str, tmp_path: Path) -> None:
    model, inputs = remembering(mechanism).train(), batch()
    scores = log_softmax(model(inputs["input_ids"]).logits[:, :-1], -1)
    targets = inputs["labels"][:, 1:]
    scored = targets != -100
    likelihoods = scores.gather(-1, targets.clamp(min=0)[..., None])[..., 0]
    expected = -(0.9 * likelihoods + 0.1 * scores.mean(-1))[scored].mean()
    found = trainer(model, tmp_path, label_smoothing_factor=0.1).compute_loss(model, dict(inputs))
    torch.testing.assert_close(found, expected)


def test_label_smoothing_of_masked_tokens_stays_in_place(tmp_path: Path) -> None:
    model, inputs = recurrent("bert").train(), batch()
    scores = log_softmax(model(inputs["input_ids"]).logits, -1)
    likelihoods = scores.gather(-1, inputs["labels"].clamp(min=0)[..., None])[..., 0]
    expected = -(0.9 * likelihoods + 0.1 * scores.mean(-1))[inputs["labels"] != -100].mean()
    found = trainer(model, tmp_path, label_smoothing_factor=0.1).compute_loss(model, dict(inputs))
    torch.testing.assert_close(found, expected)


@every_memory
def test_trainer_counts_the_tokens_that_are_scored(mechanism: str, tmp_path: Path) -> None:
    model, inputs = remembering(mechanism).train(), batch()
    run = trainer(model, tmp_path)
    count = run._get_num_items_in_batch([inputs], torch.device("cpu"))
    assert count == (inputs["labels"][:, 1:] != -100).sum()
    found = run.compute_loss(model, dict(inputs), num_items_in_batch=count)
    torch.testing.assert_close(found, model(**inputs).loss)


def test_trainer_sees_that_windows_are_checkpointed(tmp_path: Path) -> None:
    model = remembering("carry")
    assert trainer(model, tmp_path)._build_accelerator_args()["kwargs_handlers"][0].find_unused_parameters
    model.set_recurrence(checkpoint=True)
    handlers = trainer(model, tmp_path)._build_accelerator_args()["kwargs_handlers"]
    assert not handlers[0].find_unused_parameters


def test_pipelines_know_the_class(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    for task, model in (("text-generation", recurrent("gpt2")), ("fill-mask", recurrent("bert", "masked"))):
        tokenizer = word_tokenizer()
        tokenizer.mask_token = "w9"
        pipeline(task, model=model, tokenizer=tokenizer, device="cpu")
    assert "not supported" not in caplog.text


@every_memory
def test_configs_answer_for_the_base(mechanism: str, tmp_path: Path) -> None:
    model = remembering(mechanism)
    base = model.base.config
    for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"):
        assert getattr(model.config, name) == getattr(base, name)
    assert model.config.get_text_config().max_position_embeddings > 10**9
    model.resize_token_embeddings(64, mean_resizing=False)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    assert loaded.config.vocab_size == loaded.base.config.vocab_size == 64
    assert loaded(text(1, 3)).logits.shape[-1] == 64


@every_memory
def test_standard_arguments(mechanism: str) -> None:
    model, ids = remembering(mechanism), text(2, 2 * WINDOW + 3)
    expected = model(ids)
    positions = torch.arange(ids.shape[1])[None].expand(2, -1)
    nothing = {"inputs_embeds": None, "output_hidden_states": False, "output_attentions": None}
    found = model(input_ids=ids, position_ids=positions, cache_position=positions[0], return_dict=True, **nothing)
    assert torch.equal(found.logits, expected.logits)
    assert torch.equal(model(ids, return_dict=False)[0], expected.logits)
    padded = torch.cat([torch.full((2, 3), PAD), ids], dim=1)
    mask = (torch.arange(padded.shape[1]) >= 3).long().expand(2, -1)
    counted = (mask.cumsum(1) - 1).masked_fill(mask == 0, 1)
    found = model(padded, attention_mask=mask, position_ids=counted)
    torch.testing.assert_close(found.logits[:, 3:], expected.logits)
    for name, value in (
        ("position_ids", positions % WINDOW),
        ("inputs_embeds", torch.zeros(2, 3, 16)),
        ("output_hidden_states", True),
        ("output_attentions", True),
    ):
        with pytest.raises(UserError, match=name):
            model(ids, **{name: value})


@pytest.mark.parametrize(("family", "task"), [("bert", t) for t in ("masked", "bare", "tags", "label", "answers")])
def test_every_head_takes_standard_arguments(family: str, task: str) -> None:
    model, ids = recurrent(family, task), text(2, WINDOW)
    nothing = {"inputs_embeds": None, "output_hidden_states": None, "position_ids": torch.arange(WINDOW)[None]}
    assert torch.equal(model(ids, **nothing, return_dict=False)[0], model(ids).to_tuple()[0])
    with pytest.raises(UserError, match="inputs_embeds"):
        model(inputs_embeds=torch.zeros(2, 3, 16))


@every_memory
def test_generate_in_chunks_or_with_unsupported_outputs(mechanism: str) -> None:
    model, ids = remembering(mechanism), text(2, 2 * WINDOW + 3)
    settings = {"max_new_tokens": 2 * WINDOW, "do_sample": False, "eos_token_id": None, "pad_token_id": PAD}
    expected = model.generate(ids, **settings)
    assert torch.equal(model.generate(ids, prefill_chunk_size=5, **settings), expected)
    chunks = GenerationConfig(prefill_chunk_size=5, **settings)
    assert torch.equal(model.generate(ids, generation_config=chunks), expected)
    for name in ("output_hidden_states", "output_attentions"):
        with pytest.raises(UserError, match=name):
            model.generate(ids, return_dict_in_generate=True, **{name: True}, **settings)
    with pytest.raises(UserError, match="generate_batch"):
        model.generate_batch(ids.tolist())


@every_memory
def test_models_pickle(mechanism: str, tmp_path: Path) -> None:
    model, ids = remembering(mechanism), text(1, 2 * WINDOW + 3)
    torch.save(model, tmp_path / "model.pt")
    loaded = (pickle.loads(pickle.dumps(model)), torch.load(tmp_path / "model.pt", weights_only=False))
    for other in loaded:
        assert torch.equal(other(ids).logits, model(ids).logits)
        assert_same_state(other(ids).state, model(ids).state)


@every_memory
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_keeps_its_dtype(mechanism: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model, ids = remembering(mechanism), text(1, 2 * WINDOW + 3)
    expected = model(ids).logits
    model.to(dtype).save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path, dtype="auto")
    found = loaded(ids).logits
    assert loaded.dtype == found.dtype == dtype
    torch.testing.assert_close(found.float(), expected, rtol=0.1, atol=0.1)


def test_plain_windows_are_a_model_like_others(tmp_path: Path) -> None:
    model, inputs = add_recurrence(tiny("gpt2"), NoRecurrence(window=WINDOW)).train(), batch()
    found = trainer(model, tmp_path, label_smoothing_factor=0.1).compute_loss(model, dict(inputs))
    assert found < 1.2 * model(**inputs).loss
    assert torch.equal(
        pickle.loads(pickle.dumps(model.eval()))(inputs["input_ids"]).logits, model(inputs["input_ids"]).logits
    )


@torch.no_grad()
@every_memory
def test_one_window_exports_with_state_in_and_out(mechanism: str) -> None:
    model, ids = remembering(mechanism), text(1, 2 * WINDOW)

    class OneWindow(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, tokens: Any, memory: Any) -> Any:
            job = WindowJob(tokens, targets=None, first=0, writes=True, summed=False)
            hidden, written, _ = self.model.run_job(job, Past(memory, None), self.model.mechanism.statistics())
            return self.model.family.head(self.model.base, hidden), written

    first, whole = model(ids[:, :WINDOW]).state, model(ids)
    program = torch.export.export(OneWindow(), (ids[:, WINDOW:], first.memory), strict=False)
    logits, memory = program.module()(ids[:, WINDOW:], first.memory)
    torch.testing.assert_close(logits, whole.logits[:, WINDOW:])
    torch.testing.assert_close(memory, whole.state.memory)
