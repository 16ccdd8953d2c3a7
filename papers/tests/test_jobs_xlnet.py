"""XLNet as a whole job: from scratch beside another model, from a trained XLNet, stopped, resumed and finished."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import logging

from recurrify import UserError
from recurrify.data.texts import read_text
from recurrify.train import callbacks
from recurrify.train.settings import TrainSettings
from recurrify_papers.thesis.xlnet import WindowedXLNet
from recurrify_papers.thesis.xlnet_evaluation import score_xlnet
from recurrify_papers.thesis.xlnet_run import XLNetMemory, load_xlnet, xlnet_run
from support.runs import assert_same_weights, model_folder, text_folder, validations, weights_of
from support.words import word_tokenizer
from support.xlnets import tiny_xlnet

MEMORY = XLNetMemory(window=8, memory=6, checkpoint=False)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    yield
    logging.set_verbosity(before)
    logging.enable_progress_bar()


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> TrainSettings:
    folder = tmp_path_factory.mktemp("xlnet")
    return TrainSettings(
        model=str(model_folder(folder / "base", resid_pdrop=0.1)),
        data=str(text_folder(folder / "texts")),
        out=str(folder / "whole"),
        recurrence=MEMORY.to_dict(),
        windows=3,
        batch=4,
        learning_rate=1e-2,
        warmup_steps=2,
        schedule="cosine",
        max_tokens=6 * 4 * 22,
        valid_every=2 * 4 * 22,
        patience=0,
    )


@pytest.fixture(scope="module")
def whole(settings: TrainSettings) -> dict[str, Any]:
    """A run without any interruption."""
    return xlnet_run(settings, lambda text: None, show_progress=False)


def test_a_run_from_scratch_leaves_a_model_that_scores_what_was_validated(
    settings: TrainSettings, whole: dict[str, Any]
):
    out = Path(settings.out)
    assert json.loads((out / "result.json").read_text())["history"] == whole["history"]
    assert (whole["kind"], whole["finished"]) == ("train", True)
    assert whole["provenance"]["config"]["recurrence"] == MEMORY.to_dict()
    model, tokenizer = load_xlnet(settings.out, MEMORY)
    assert whole["parameters"] == {"base": model.num_parameters(), "added": 0}
    assert (model.config.d_model, model.config.n_layer, model.config.attn_type) == (16, 3, "uni")
    valid, _ = read_text(settings.data, "valid", tokenizer, lambda text: None)
    found = score_xlnet(model, valid, window=8, memory=6)
    best = min(loss for _, loss in validations(whole))
    assert found.total_nll / found.tokens.sum() == pytest.approx(best, abs=1e-5)
    # It has learned that documents repeat their words: better than knowing nothing of 60 words.
    assert whole["history"][0]["loss"] > [entry["loss"] for entry in whole["history"] if "loss" in entry][-1]


def test_a_finished_run_is_not_run_again(settings: TrainSettings, whole: dict[str, Any]):
    heard: list[str] = []
    again = xlnet_run(settings, heard.append, show_progress=False)
    assert again["history"] == whole["history"]
    assert "finished already" in heard[-1]


def test_a_stopped_run_goes_on_to_the_same_end(
    settings: TrainSettings, whole: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    minutes = iter(range(10_000))
    monkeypatch.setattr(callbacks, "time", SimpleNamespace(monotonic=lambda: 60.0 * next(minutes)))
    stopped, invocations = replace(settings, out=str(tmp_path / "run"), max_minutes=3), 1
    while not (result := xlnet_run(stopped, lambda text: None, show_progress=False))["finished"]:
        invocations += 1
    assert invocations > 1
    assert validations(result) == validations(whole)
    assert_same_weights(weights_of(tmp_path / "run"), weights_of(Path(settings.out)))


def test_a_trained_xlnet_is_gone_on_with(settings: TrainSettings, tmp_path: Path):
    base = tiny_xlnet("bi")
    base.save_pretrained(tmp_path / "base")
    word_tokenizer().save_pretrained(tmp_path / "base")
    few = replace(settings, model=str(tmp_path / "base"), out=str(tmp_path / "run"), max_tokens=1, learning_rate=1e-9)
    result = xlnet_run(few, lambda text: None, show_progress=False)
    # What is written down is the attention that the model has.
    assert result["provenance"]["config"]["recurrence"]["attention"] == "bi"
    trained = WindowedXLNet.from_pretrained(tmp_path / "run" / "model")
    for ours, theirs in zip(trained.parameters(), base.parameters(), strict=True):
        assert (ours - theirs).abs().max() < 1e-6


@pytest.mark.parametrize(
    ("recurrence", "sentence"),
    [
        ({"mechanism": "carry"}, "needs the mechanism 'xlnet': got 'carry'"),
        ({"mechanism": "xlnet", "slots": 2}, "XLNet has no setting 'slots': its settings are window, memory"),
        ({"mechanism": "xlnet", "memory": -1}, "`memory` must be a whole number"),
        ({"mechanism": "xlnet", "attention": "odd"}, "`attention` must be uni"),
    ],
    ids=["mechanism", "unknown", "memory", "attention"],
)
def test_wrong_settings_are_refused_in_a_sentence(
    settings: TrainSettings, recurrence: dict[str, Any], sentence: str, tmp_path: Path
):
    with pytest.raises(UserError, match=sentence):
        xlnet_run(replace(settings, out=str(tmp_path / "x"), recurrence=recurrence), print, show_progress=False)


def test_another_runs_folder_is_not_gone_on_with(settings: TrainSettings, whole: dict[str, Any]):
    other = XLNetMemory(window=8, memory=2, checkpoint=False).to_dict()
    with pytest.raises(UserError, match="holds a run with other settings"):
        xlnet_run(replace(settings, recurrence=other), lambda text: None, show_progress=False)
