"""Pretraining: what a model learns, how a run stops and resumes, and what it leaves behind."""

import json
import math
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForMaskedLM, AutoModelForSeq2SeqLM, AutoTokenizer, GPT2LMHeadModel

from recurrify import CarryConfig, add_recurrence
from recurrify.data import load_documents, tokenize_documents
from recurrify.errors import UserError
from recurrify.modeling import load_model, load_task_model
from recurrify.speed import compiler_options
from recurrify_papers.data.packed import collate_rows
from recurrify_papers.data.tokenizers import load_tokenizer
from recurrify_papers.pretrain import run as running
from recurrify_papers.pretrain import training as pretraining
from recurrify_papers.pretrain.run import pretrain
from recurrify_papers.pretrain.settings import PretrainSettings
from recurrify_papers.pretrain.training import Pace, new_model
from support.runs import assert_same_end, assert_same_weights, validations, weights_of

POSITIONS, BATCH = 16, 4
OBJECTIVES = pytest.mark.parametrize("objective", ["clm", "mlm", "span"])
Build = Callable[..., PretrainSettings]


def run(settings: PretrainSettings, said: list[str] | None = None) -> dict[str, Any]:
    return pretrain(settings, ([] if said is None else said).append)


@pytest.fixture(scope="session")
def settings_for(texts: Path) -> Build:
    def build(out: Path, objective: str = "clm", **more: Any) -> PretrainSettings:
        tiny = {
            "vocabulary": 270 if objective == "clm" else 380,
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
        return PretrainSettings(out=str(out), objective=objective, **{"data": [str(texts)], **tiny, **more})

    return build


@pytest.fixture(scope="session")
def finished(settings_for: Build, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a finished run of each objective, trained once."""
    folder = tmp_path_factory.mktemp("runs")

    def train(objective: str = "clm") -> Path:
        if not (folder / objective / "result.json").is_file():
            run(settings_for(folder / objective, objective))
        return folder / objective

    return train


def result_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "result.json").read_text())


class TestResult:
    @OBJECTIVES
    def test_learns_and_writes_a_result(self, objective: str, finished: Callable[[str], Path]) -> None:
        folder = finished(objective)
        result = result_of(folder)
        assert {path.name for path in folder.iterdir()} - {"runs"} == {"model", "run.json", "result.json"}
        assert (result["kind"], result["finished"], result["steps"]) == ("pretrain", True, 24)
        assert result["tokens"] == 24 * POSITIONS * BATCH
        assert [step for step, _ in validations(result)] == [8, 16, 24]
        losses = [entry["eval_loss"] for entry in result["history"] if "eval_loss" in entry]
        assert losses[-1] < losses[0] < 8
        assert result["validation"]["loss_per_token"] == losses[-1]
        assert result["training_seconds"] > 0
        assert result["provenance"]["data_checksum"]

    def test_validation_equals_that_of_the_saved_model(self, finished: Callable[[str], Path], texts: Path) -> None:
        """The mean loss over the sequences of the validation text."""
        folder = finished("clm")
        model, tokenizer = GPT2LMHeadModel.from_pretrained(folder / "model").eval(), load_tokenizer(str(folder))
        documents = tokenize_documents(load_documents(texts, "valid"), tokenizer)
        stream = [int(token) for document in documents for token in (*document.ids, tokenizer.eos_token_id)]
        rows = [stream[start : start + POSITIONS + 1] for start in range(0, len(stream) - POSITIONS, POSITIONS)]
        ids = torch.tensor(rows)
        with torch.no_grad():
            loss = cross_entropy(model(ids[:, :-1]).logits.flatten(0, 1), ids[:, 1:].flatten())
        assert result_of(folder)["validation"]["loss_per_token"] == pytest.approx(loss.item(), rel=1e-4)

    def test_learning_rate_decays_to_a_tenth(self, finished: Callable[[str], Path]) -> None:
        rates = [entry["learning_rate"] for entry in result_of(finished("clm"))["history"] if "learning_rate" in entry]
        progress = [(step - 2) / 22 for step in range(2, 24)]
        cosine = [1e-2 * (0.1 + 0.9 * (1 + math.cos(math.pi * part)) / 2) for part in progress]
        assert rates == pytest.approx([0, 5e-3, *cosine])

    def test_loss_of_a_batch(self, settings_for: Build, tmp_path: Path) -> None:
        model = new_model(settings_for(tmp_path, dropout=0.0), vocabulary=300, end=0)
        rows = torch.randint(300, (BATCH, POSITIONS + 1))
        expected = -model(rows[:, :-1]).logits.log_softmax(-1).gather(-1, rows[:, 1:, None]).mean()
        torch.testing.assert_close(model(**collate_rows(rows.numpy())).loss, expected)


class TestModels:
    def test_gpt2_takes_a_memory(self, finished: Callable[[str], Path]) -> None:
        folder = finished("clm")
        recurrent, tokenizer = load_model(str(folder / "model"), {"mechanism": "carry", "window": 8})
        assert recurrent.recurrence.mechanism == "carry"
        ids = tokenizer("w5 w6 w7", return_tensors="pt")["input_ids"]
        base = GPT2LMHeadModel.from_pretrained(folder / "model").eval()
        torch.testing.assert_close(load_model(str(folder))[0].eval()(ids).logits, base(ids).logits)
        assert base.config.use_cache
        assert tokenizer.eos_token_id == base.config.eos_token_id

    def test_bert_takes_a_memory_and_answers_questions(self, finished: Callable[[str], Path]) -> None:
        folder = finished("mlm")
        base = AutoModelForMaskedLM.from_pretrained(folder / "model")
        model = add_recurrence(base, CarryConfig(window=8))
        ids = AutoTokenizer.from_pretrained(folder / "model")("w5 w6 w7 w5 w6 w7", return_tensors="pt")["input_ids"]
        assert torch.isfinite(model(ids, labels=ids).loss)
        answerer, _ = load_task_model(str(folder))
        assert answerer.recurrence.window == 16
        assert torch.equal(
            answerer.base.bert.embeddings.word_embeddings.weight, base.bert.embeddings.word_embeddings.weight
        )

    def test_t5_generates(self, finished: Callable[[str], Path]) -> None:
        folder = finished("span")
        model = AutoModelForSeq2SeqLM.from_pretrained(folder / "model")
        tokenizer = AutoTokenizer.from_pretrained(folder / "model")
        ids = tokenizer("w5 <extra_id_0> w6", return_tensors="pt")["input_ids"]
        written = model.generate(ids, max_new_tokens=3)
        assert written[0, 0] == tokenizer.pad_token_id
        assert written.shape[1] > 1


class TestResuming:
    @OBJECTIVES
    def test_stopped_by_time(
        self, objective: str, settings_for: Build, finished: Callable[[str], Path], tmp_path: Path
    ) -> None:
        said: list[str] = []
        first = run(settings_for(tmp_path / "run", objective, max_minutes=1e-9), said)
        assert (first["finished"], first["interrupted"], first["steps"]) == (False, False, 1)
        assert not (tmp_path / "run" / "result.json").exists()
        assert run(settings_for(tmp_path / "run", objective), said)["finished"]
        assert any("from step 1" in line for line in said)
        assert sum("training a tokenizer" in line for line in said) == 1
        assert_same_end(tmp_path / "run", finished(objective))

    def test_interrupted_and_then_killed_before_the_model_is_saved(
        self, settings_for: Build, finished: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        settings = settings_for(tmp_path / "run")
        real = pretraining.ValidatingTrainer.training_step

        def interrupted(self: Any, *args: Any, **kwargs: Any) -> Any:
            if self.state.global_step + 1 == 5:
                signal.raise_signal(signal.SIGINT)
            return real(self, *args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(pretraining.ValidatingTrainer, "training_step", interrupted)
            first = run(settings)
        assert (first["finished"], first["interrupted"], first["steps"]) == (False, True, 5)

        def killed(*args: Any) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(running, "_save", killed)
            with pytest.raises(KeyboardInterrupt):
                run(settings)
        assert not (tmp_path / "run" / "result.json").exists()
        run(settings)
        assert_same_end(tmp_path / "run", finished("clm"))

    def test_finished_run_is_not_changed(self, settings_for: Build, finished: Callable[[str], Path]) -> None:
        folder = finished("clm")
        before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
        assert run(settings_for(folder, max_minutes=1.0)) == result_of(folder)
        with pytest.raises(UserError, match="width=16 there, 32 now"):
            run(settings_for(folder, width=32))
        assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before

    def test_foreign_files_are_not_replaced(self, settings_for: Build, tmp_path: Path) -> None:
        mine = tmp_path / "tokenizer" / "tokenizer.json"
        mine.parent.mkdir()
        mine.write_text("mine")
        with pytest.raises(UserError, match=r"has tokenizer/ but no run\.json"):
            run(settings_for(tmp_path))
        assert mine.read_text() == "mine"


def test_sources_are_pooled(settings_for: Build, texts: Path, finished: Callable[[str], Path], tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    for number in range(4):
        (tmp_path / "other" / f"{number}.txt").write_text("zebra quagga " * 40)
    (tmp_path / "valid.txt").write_text("w5 w6 " * 30)
    said: list[str] = []
    sources = [str(texts), str(tmp_path / "other")]
    whole = finished("clm")
    result = run(
        settings_for(
            tmp_path / "run",
            data=sources,
            valid=str(tmp_path / "valid.txt"),
            tokenizer=str(whole),
            max_tokens=None,
            epochs=1.0,
        ),
        said,
    )
    tokenizer = load_tokenizer(str(whole))
    trained = [document for source in sources for document in load_documents(source, "train")]
    packed = sum(len(document.ids) + 1 for document in tokenize_documents(trained, tokenizer))
    assert result["steps"] == (packed - 1) // POSITIONS // BATCH
    assert f"{tmp_path / 'valid.txt'} (all): 1 document, 180 characters" in said
    assert load_tokenizer(str(tmp_path / "run")).get_vocab() == tokenizer.get_vocab()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"heads": 3}, "got width=16, heads=3; use heads=1"),
        ({"vocabulary": 256}, "at least 257"),
        ({"objective": "span", "vocabulary": 300}, "at least 358"),
        ({"objective": "glm"}, "`objective` must be clm, mlm or span"),
        ({"dropout": 1.0}, "`dropout` must be below 1"),
        ({"data": []}, "no training text"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_bad_settings_raise(change: dict[str, Any], words: str, settings_for: Build, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=words):
        settings_for(tmp_path, **change)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"batch": 5000}, "sequences of 16 tokens, too few for one update of 5000"),
        ({"positions": 9000}, "fewer than the 9,001 of one sequence"),
        ({"objective": "mlm", "valid": "short.txt"}, "For validation"),
    ],
    ids=["batch", "positions", "valid"],
)
def test_too_short_texts_raise(
    change: dict[str, Any], words: str, settings_for: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("short.txt").write_text("w5 w6")
    with pytest.raises(UserError, match=words):
        run(settings_for(tmp_path / "run", **change))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("step", "kept"), [(9, "loss is not finite at step 11"), (15, "norm of the weights")])
def test_non_finite_weights_are_never_saved(
    step: int, kept: str, settings_for: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = pretraining.ValidatingTrainer.training_step

    def spoilt(self: Any, *args: Any, **kwargs: Any) -> Any:
        loss = real(self, *args, **kwargs)
        if self.state.global_step == step:
            self.model.transformer.wte.weight.grad.fill_(math.nan)
        return loss

    monkeypatch.setattr(pretraining.ValidatingTrainer, "training_step", spoilt)
    with pytest.raises(UserError, match=kept):
        run(settings_for(tmp_path / "run"))
    assert [path.name for path in (tmp_path / "run").glob("checkpoint-*")] == ["checkpoint-8"]


class TestPace:
    @pytest.mark.parametrize(
        ("epochs", "max_tokens", "steps"),
        [(None, None, 12), (2.5, None, 30), (None, 16 * 8 * 40, 40), (1.0, 16 * 8 * 40, 12), (9.0, 16 * 8 * 3, 3)],
    )
    def test_total_steps(
        self, epochs: float | None, max_tokens: int | None, steps: int, settings_for: Build, tmp_path: Path
    ) -> None:
        settings = settings_for(tmp_path, batch=8, epochs=epochs, max_tokens=max_tokens)
        assert Pace.of(settings, rows=100).total_steps(settings) == steps

    def test_every_update_is_whole(self, settings_for: Build, tmp_path: Path) -> None:
        pace = Pace.of(settings_for(tmp_path, batch=8, accumulate=5), rows=100)
        assert (pace.updates_per_epoch, pace.sequences_per_update, pace.tokens_per_update) == (2, 40, 40 * POSITIONS)


def test_steps_are_compiled_once(
    settings_for: Build, finished: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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

    whole = finished("clm")
    monkeypatch.setattr(torch, "compile", compile)
    run(settings_for(tmp_path, compile="on"))
    assert asked == [{"options": compiler_options()}]
    assert training == [True] * 25  # the first batch is also compared with the eager step
    assert_same_weights(weights_of(tmp_path), weights_of(whole))
