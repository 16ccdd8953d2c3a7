"""A base model from scratch: what it learns from, how it stops and goes on, and what it leaves behind."""

import json
import math
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import GPT2LMHeadModel

from recurrify.data.documents import load_documents
from recurrify.data.packed import collate_rows
from recurrify.data.tokenizers import load_tokenizer
from recurrify.data.tokens import tokenize_documents
from recurrify.errors import UserError
from recurrify.modeling.loading import load_model
from recurrify.speed.compiling import faultless
from recurrify.train import callbacks
from recurrify_papers.pretrain import training as pretraining
from recurrify_papers.pretrain.run import pretrain
from recurrify_papers.pretrain.training import Pace, PretrainSettings, new_model
from support.runs import assert_same_weights, validations, weights_of

POSITIONS, BATCH = 16, 4


def silent(text: str) -> None:
    """Nobody listens."""


@pytest.fixture(scope="session")
def settings_for(texts: Path) -> Callable[..., PretrainSettings]:
    def build(out: Path, **more: Any) -> PretrainSettings:
        tiny = {
            "vocabulary": 270,
            "layers": 2,
            "width": 16,
            "heads": 2,
            "positions": POSITIONS,
            "batch": BATCH,
            "learning_rate": 1e-2,
            "warmup_steps": 2,
            "max_tokens": 24 * POSITIONS * BATCH,
            "valid_every": 8 * POSITIONS * BATCH,
            "dropout": 0.1,
        }
        return PretrainSettings(out=str(out), **{"data": [str(texts)], **tiny, **more})

    return build


@pytest.fixture(scope="session")
def whole(settings_for: Callable[..., PretrainSettings], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "whole"
    pretrain(settings_for(out), silent, show_progress=False)
    return out


def result_of(run: Path) -> dict[str, Any]:
    return json.loads((run / "result.json").read_text())


def test_a_tokenizer_that_lies_there_is_not_replaced(
    settings_for: Callable[..., PretrainSettings], tmp_path: Path
) -> None:
    mine = tmp_path / "tokenizer" / "tokenizer.json"
    mine.parent.mkdir()
    mine.write_text("mine")
    with pytest.raises(UserError, match=r"has tokenizer/ but no run\.json"):
        pretrain(settings_for(tmp_path), silent, show_progress=False)
    assert mine.read_text() == "mine"


class TestResult:
    def test_it_learns(self, whole: Path) -> None:
        result = result_of(whole)
        losses = [entry["loss"] for entry in result["history"] if "loss" in entry]
        assert losses[0] == pytest.approx(math.log(result["vocabulary"]), rel=0.03)
        assert losses[-1] < losses[0] - 1
        steps = [step for step, _ in validations(result)]
        assert steps == [8, 16, 24]

    def test_what_it_leaves(self, whole: Path) -> None:
        result = result_of(whole)
        assert {path.name for path in whole.iterdir()} - {"runs"} == {"model", "run.json", "result.json"}
        assert (result["kind"], result["finished"], result["steps"]) == ("pretrain", True, 24)
        assert result["tokens"] == 24 * POSITIONS * BATCH
        weights = weights_of(whole)
        assert result["parameters"] == sum(weight.numel() for weight in weights.values())
        assert result["provenance"]["config"]["heads"] == 2
        assert result["tokens_per_second"] > 0
        assert result["provenance"]["data_checksum"]

    def test_the_rate_rises_and_falls_to_a_tenth(self, whole: Path) -> None:
        rates = [entry["learning_rate"] for entry in result_of(whole)["history"] if "learning_rate" in entry]
        progress = [(step - 2) / 22 for step in range(2, 24)]
        cosine = [1e-2 * (0.1 + 0.9 * (1 + math.cos(math.pi * part)) / 2) for part in progress]
        assert rates == pytest.approx([0, 5e-3, *cosine])

    def test_its_validation_is_that_of_the_saved_model(self, whole: Path, texts: Path) -> None:
        """In plain windows of all positions; every token of a document but the first, once."""
        model = GPT2LMHeadModel.from_pretrained(whole / "model").eval()
        documents = load_documents(texts, "valid")
        nll, tokens = 0.0, 0
        for document in tokenize_documents(documents, load_tokenizer(str(whole))):
            ids = torch.from_numpy(document.ids).long()
            for start in range(0, len(ids) - 1, POSITIONS):
                targets = ids[start + 1 : start + 1 + POSITIONS]
                with torch.no_grad():
                    logits = model(ids[start : start + len(targets)][None]).logits[0]
                nll += float(cross_entropy(logits, targets, reduction="sum"))
                tokens += len(targets)
        found = result_of(whole)["validation"]
        words = sum(len(document.text.split()) for document in documents)
        characters = sum(len(document.text) for document in documents)
        assert found["loss_per_token"] == pytest.approx(nll / tokens, rel=1e-4)
        assert found["perplexity_per_word"] == pytest.approx(math.exp(nll / words), rel=1e-3)
        assert found["bits_per_character"] == pytest.approx(nll / characters / math.log(2), rel=1e-4)

    def test_it_is_a_base_model_like_any_other(self, whole: Path) -> None:
        recurrent, tokenizer = load_model(str(whole / "model"), {"mechanism": "carry", "window": 8})
        assert recurrent.recurrence.mechanism == "carry"
        ids = tokenizer("w5 w6 w7", return_tensors="pt")["input_ids"]
        plain, _ = load_model(str(whole))
        base = GPT2LMHeadModel.from_pretrained(whole / "model").eval()
        torch.testing.assert_close(plain.eval()(ids).logits, base(ids).logits)
        assert base.config.use_cache
        assert tokenizer.eos_token_id == base.config.eos_token_id


class TestLoss:
    def test_of_a_batch(self, settings_for: Callable[..., PretrainSettings], tmp_path: Path) -> None:
        """Hugging Face's own, of every token after the first of a row."""
        model = new_model(settings_for(tmp_path, dropout=0.0), vocabulary=300, end=0)
        rows = torch.randint(300, (BATCH, POSITIONS + 1))
        found = model(**collate_rows(rows.numpy())).loss
        logits = model(rows[:, :-1]).logits
        expected = -logits.log_softmax(-1).gather(-1, rows[:, 1:, None]).mean()
        torch.testing.assert_close(found, expected)


class TestGoingOn:
    def check_same_end(self, out: Path, whole: Path) -> None:
        ours, theirs = result_of(out), result_of(whole)
        assert (ours["steps"], ours["tokens"]) == (theirs["steps"], theirs["tokens"])
        assert validations(ours) == validations(theirs)
        assert_same_weights(weights_of(out), weights_of(whole))

    def test_after_its_minutes(
        self,
        settings_for: Callable[..., PretrainSettings],
        whole: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        minutes = iter(range(10_000))
        monkeypatch.setattr(callbacks, "time", SimpleNamespace(monotonic=lambda: 60.0 * next(minutes)))
        said: list[str] = []
        settings = settings_for(tmp_path / "run", max_minutes=13)
        first = pretrain(settings, said.append, show_progress=False)
        assert (first["finished"], first["interrupted"], first["steps"]) == (False, False, 13)
        assert not (tmp_path / "run" / "result.json").exists()
        second = pretrain(settings, said.append, show_progress=False)
        assert second["finished"]
        assert any("from step 13" in line for line in said)
        assert sum("making a tokenizer" in line for line in said) == 1
        self.check_same_end(tmp_path / "run", whole)

    def test_after_ctrl_c_and_a_kill_before_the_model_was_saved(
        self,
        settings_for: Callable[..., PretrainSettings],
        whole: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        settings = settings_for(tmp_path / "run")
        real = pretraining.ValidatingTrainer.training_step

        def interrupted(self: Any, *args: Any, **kwargs: Any) -> Any:
            if self.state.global_step + 1 == 5:
                signal.raise_signal(signal.SIGINT)
            return real(self, *args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(pretraining.ValidatingTrainer, "training_step", interrupted)
            first = pretrain(settings, silent, show_progress=False)
        assert (first["finished"], first["interrupted"], first["steps"]) == (False, True, 5)

        def killed(*args: Any) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr("recurrify_papers.pretrain.run._leave", killed)
            with pytest.raises(KeyboardInterrupt):
                pretrain(settings, silent, show_progress=False)
        assert not (tmp_path / "run" / "result.json").exists()
        pretrain(settings, silent, show_progress=False)
        self.check_same_end(tmp_path / "run", whole)

    def test_a_finished_run_is_left_alone(self, settings_for: Callable[..., PretrainSettings], whole: Path) -> None:
        before = {path: path.stat().st_mtime_ns for path in whole.rglob("*")}
        said: list[str] = []
        assert pretrain(settings_for(whole, max_minutes=1.0), said.append) == result_of(whole)
        assert "finished already" in said[-1]
        assert {path: path.stat().st_mtime_ns for path in whole.rglob("*")} == before

    def test_other_settings_or_another_kind_of_run(
        self, settings_for: Callable[..., PretrainSettings], whole: Path, tmp_path: Path
    ) -> None:
        with pytest.raises(UserError, match="width=16 there, 32 now"):
            pretrain(settings_for(whole, width=32), silent)
        (tmp_path / "run.json").write_text('{"out": "x", "model": "gpt2", "windows": 3}')
        with pytest.raises(UserError, match="Unknown settings"):
            pretrain(settings_for(tmp_path), silent)


class TestText:
    def test_sources_are_pooled(
        self, settings_for: Callable[..., PretrainSettings], texts: Path, whole: Path, tmp_path: Path
    ) -> None:
        other = tmp_path / "other"
        other.mkdir()
        for number in range(4):
            (other / f"{number}.txt").write_text("zebra quagga " * 40)
        settings = settings_for(
            tmp_path / "run", data=[str(texts), str(other)], tokenizer=str(whole), max_tokens=None, epochs=1.0
        )
        result = pretrain(settings, silent, show_progress=False)
        tokenizer = load_tokenizer(str(whole))
        trained = [document for source in (texts, other) for document in load_documents(source, "train")]
        packed = sum(len(document.ids) + 1 for document in tokenize_documents(trained, tokenizer))
        assert result["steps"] == (packed - 1) // POSITIONS // BATCH
        assert result["tokens"] == result["steps"] * POSITIONS * BATCH
        assert result["provenance"]["data_checksum"] != result_of(whole)["provenance"]["data_checksum"]
        assert load_tokenizer(str(tmp_path / "run")).get_vocab() == tokenizer.get_vocab()

    def test_validation_text_of_its_own(
        self, settings_for: Callable[..., PretrainSettings], texts: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "valid.txt").write_text("w5 w6 " * 30)
        said: list[str] = []
        settings = settings_for(tmp_path / "run", valid=str(tmp_path / "valid.txt"), max_tokens=1)
        pretrain(settings, said.append, show_progress=False)
        assert f"{tmp_path / 'valid.txt'} (all): 1 document, 180 characters" in said

    def test_fewer_sequences_than_a_batch(self, settings_for: Callable[..., PretrainSettings], tmp_path: Path) -> None:
        with pytest.raises(UserError, match=r"sequences of 16 tokens, too few for one batch of 5000"):
            pretrain(settings_for(tmp_path, batch=5000), silent, show_progress=False)

    def test_shorter_than_a_sequence(self, settings_for: Callable[..., PretrainSettings], tmp_path: Path) -> None:
        with pytest.raises(UserError, match=r"fewer than the 9,001 of one sequence"):
            pretrain(settings_for(tmp_path, positions=9000), silent, show_progress=False)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"heads": 3}, "3 does not divide 16"),
        ({"vocabulary": 256}, "at least 257"),
        ({"layers": 0}, "`layers` must be at least 1: got 0"),
        ({"positions": 1}, "`positions` must be at least 2"),
        ({"epochs": -1.0}, "`epochs` must be a positive number"),
        ({"learning_rate": math.nan}, "`learning_rate` must be a positive number"),
        ({"dropout": 1.0}, "`dropout` must lie between 0 and 1"),
        ({"precision": "fp16"}, "auto, bf16 or fp32"),
        ({"compile": "yes"}, "auto, on or off"),
        ({"seed": 2**32}, "`seed` must lie between"),
        ({"data": []}, "no training text"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_refused_settings(
    change: dict[str, Any], words: str, settings_for: Callable[..., PretrainSettings], tmp_path: Path
) -> None:
    with pytest.raises(UserError) as caught:
        settings_for(tmp_path, **change)
    assert words in str(caught.value)


def test_a_given_tokenizer_needs_no_vocabulary(settings_for: Callable[..., PretrainSettings], tmp_path: Path) -> None:
    assert settings_for(tmp_path, tokenizer="gpt2", vocabulary=0).tokenizer == "gpt2"


def test_spoilt_weights_are_never_saved(
    settings_for: Callable[..., PretrainSettings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = pretraining.ValidatingTrainer.training_step

    def spoilt(self: Any, *args: Any, **kwargs: Any) -> Any:
        loss = real(self, *args, **kwargs)
        if self.state.global_step == 9:
            self.model.transformer.wte.weight.grad.fill_(math.nan)
        return loss

    monkeypatch.setattr(pretraining.ValidatingTrainer, "training_step", spoilt)
    with pytest.raises(UserError, match="no longer finite at step 10"):
        pretrain(settings_for(tmp_path / "run"), silent, show_progress=False)
    assert [path.name for path in (tmp_path / "run").glob("checkpoint-*")] == ["checkpoint-8"]


class TestPace:
    @pytest.mark.parametrize(("rows", "batch", "accumulate"), [(100, 8, 1), (100, 8, 5), (17, 4, 3), (8, 8, 2)])
    def test_tokens_as_they_are_counted_one_by_one(
        self, rows: int, batch: int, accumulate: int, settings_for: Callable[..., PretrainSettings], tmp_path: Path
    ) -> None:
        pace = Pace.of(settings_for(tmp_path, batch=batch, accumulate=accumulate), rows)
        counted, steps = 0, 0
        for _epoch in range(3):
            batches = rows // batch
            while batches:
                taken = min(accumulate, batches)
                batches -= taken
                counted += taken * batch * POSITIONS
                steps += 1
                assert pace.tokens(steps) == counted

    @pytest.mark.parametrize(
        ("epochs", "max_tokens", "steps"),
        [(None, None, 12), (2.5, None, 30), (None, 16 * 8 * 40, 40), (1.0, 16 * 8 * 40, 12), (9.0, 16 * 8 * 3, 3)],
    )
    def test_whichever_ends_first(
        self,
        epochs: float | None,
        max_tokens: int | None,
        steps: int,
        settings_for: Callable[..., PretrainSettings],
        tmp_path: Path,
    ) -> None:
        settings = settings_for(tmp_path, batch=8, epochs=epochs, max_tokens=max_tokens)
        assert Pace.of(settings, rows=100).total_steps(settings) == steps


def test_speed_is_that_of_training_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty slow steps to begin with, then two seconds each; validating and saving take longer and do not count."""
    clock = SimpleNamespace(seconds=0.0)
    monkeypatch.setattr(pretraining, "time", SimpleNamespace(monotonic=lambda: clock.seconds))
    measure = pretraining.MeasureSpeed(Pace(batches_per_epoch=1000, accumulate=1, tokens_per_batch=50))
    state: Any = SimpleNamespace(global_step=7, max_steps=100)
    nothing: Any = None
    measure.on_train_begin(nothing, state, nothing)
    for step in range(1, 31):
        state.global_step = 7 + step
        clock.seconds += 100.0 if step <= 20 else 2.0
        measure.on_step_end(nothing, state, nothing)
        assert (measure.tokens_per_second is None) == (step <= 20)
        if step in (10, 25):
            clock.seconds += 500.0
            measure.on_evaluate(nothing, state, nothing)
            clock.seconds += 70.0
            measure.on_save(nothing, state, nothing)
    assert measure.tokens_per_second == 25.0


def test_norms_and_biases_do_not_decay(settings_for: Callable[..., PretrainSettings], tmp_path: Path) -> None:
    settings = replace(settings_for(tmp_path), weight_decay=0.3)
    model = new_model(settings, vocabulary=270, end=0)
    arguments = pretraining.pretraining_arguments(settings, Pace.of(settings, rows=100), validates=False)
    trainer = pretraining.ValidatingTrainer(model=model, args=arguments, validate=None)
    decay = {id(p): group["weight_decay"] for group in trainer.create_optimizer().param_groups for p in group["params"]}
    for name, parameter in model.named_parameters():
        assert decay[id(parameter)] == (0.0 if "ln_" in name or name.endswith("bias") else 0.3), name


def test_steps_are_compiled_once_without_faults_and_validation_is_not(
    settings_for: Callable[..., PretrainSettings], whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []
    training: list[bool] = []

    def compile(model: Any, **choices: Any) -> Any:
        asked.append(choices)

        class Quick(torch.nn.Module):
            def forward(self, **inputs: Any) -> Any:
                training.append(model.training)
                return model(**inputs)

        return Quick()

    monkeypatch.setattr(torch, "compile", compile)
    pretrain(settings_for(tmp_path, compile="on"), silent, show_progress=False)
    assert asked == [{"options": faultless()}]
    assert training == [True] * 24
    assert_same_weights(weights_of(tmp_path), weights_of(whole))
