"""A BERT and a T5 from scratch: what they learn, how they go on, and what they are good for afterwards."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoModelForSeq2SeqLM, AutoTokenizer

from recurrify import CarryConfig, add_recurrence
from recurrify.errors import UserError
from recurrify.modeling.task_loading import load_task_model
from recurrify_papers.pretrain.run import pretrain
from recurrify_papers.pretrain.training import PretrainSettings
from support.commands import invoke
from support.runs import assert_same_weights, weights_of

POSITIONS, BATCH = 16, 4


def silent(text: str) -> None:
    """Nobody listens."""


@pytest.fixture(scope="session")
def settings_for(texts: Path) -> Callable[..., PretrainSettings]:
    def build(out: Path, objective: str, **more: Any) -> PretrainSettings:
        tiny = {
            "vocabulary": 380,
            "layers": 2,
            "width": 16,
            "heads": 2,
            "positions": POSITIONS,
            "batch": BATCH,
            "learning_rate": 1e-2,
            "warmup_steps": 2,
            "max_tokens": 24 * POSITIONS * BATCH,
            "valid_every": 8 * POSITIONS * BATCH,
        }
        return PretrainSettings(out=str(out), objective=objective, **{"data": [str(texts)], **tiny, **more})

    return build


@pytest.mark.parametrize("objective", ["mlm", "span"])
def test_a_run_learns_and_goes_on_where_it_stopped(objective: str, settings_for: Any, tmp_path: Path) -> None:
    whole = pretrain(settings_for(tmp_path / "whole", objective), silent, show_progress=False)
    losses = [entry["eval_loss"] for entry in whole["history"] if "eval_loss" in entry]
    assert len(losses) == 3
    assert losses[-1] < losses[0] < 8
    assert whole["validation"]["loss_per_token"] == losses[-1]
    assert whole["validation"]["perplexity_per_word"] is None
    stopped = pretrain(settings_for(tmp_path / "parts", objective, max_minutes=1e-9), silent, show_progress=False)
    assert not stopped["finished"]
    pretrain(settings_for(tmp_path / "parts", objective), silent, show_progress=False)
    assert_same_weights(weights_of(tmp_path / "parts"), weights_of(tmp_path / "whole"))


def test_a_bert_for_recurrence_and_questions(texts: Path, tmp_path: Path) -> None:
    sizes = ["--vocabulary", 280, "--layers", 2, "--width", 16, "--heads", 2, "--positions", 16, "--batch", 4]
    said = invoke("pretrain", "--objective", "mlm", "--data", texts, "--out", tmp_path, *sizes, "--max-tokens", 256)
    result = json.loads((tmp_path / "result.json").read_text())
    assert f"loss {result['validation']['loss_per_token']:.4f} per token to be restored" in said
    base = AutoModelForMaskedLM.from_pretrained(tmp_path / "model")
    model = add_recurrence(base, CarryConfig(window=8))
    ids = AutoTokenizer.from_pretrained(tmp_path / "model")("w5 w6 w7 w5 w6 w7", return_tensors="pt")["input_ids"]
    assert ids.shape[1] > 8
    assert torch.isfinite(model(ids, labels=ids).loss)
    answerer, _ = load_task_model(str(tmp_path))
    assert answerer.recurrence.window == 16
    assert torch.equal(
        answerer.base.bert.embeddings.word_embeddings.weight, base.bert.embeddings.word_embeddings.weight
    )


def test_a_t5_writes(texts: Path, tmp_path: Path) -> None:
    sizes = ["--vocabulary", 380, "--layers", 1, "--width", 16, "--heads", 2, "--positions", 16, "--batch", 4]
    invoke("pretrain", "--objective", "span", "--data", texts, "--out", tmp_path, *sizes, "--max-tokens", 256)
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert model.config.decoder_start_token_id == tokenizer.pad_token_id
    ids = tokenizer("w5 <extra_id_0> w6", return_tensors="pt")["input_ids"]
    written = model.generate(ids, max_new_tokens=3)
    assert written[0, 0] == tokenizer.pad_token_id
    assert written.shape[1] > 1


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"objective": "glm"}, "`objective` must be one of clm, mlm, span"),
        ({"objective": "span", "vocabulary": 300}, "at least 358"),
    ],
    ids=["objective", "vocabulary"],
)
def test_settings_that_cannot_be(more: dict[str, Any], words: str, settings_for: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=words):
        settings_for(tmp_path, **more)


def test_validation_text_of_less_than_a_sequence(settings_for: Any, tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("w5 w6")
    settings = settings_for(tmp_path / "run", "mlm", valid=str(tmp_path / "short.txt"))
    with pytest.raises(UserError, match="For validation"):
        pretrain(settings, silent, show_progress=False)
