"""Train, evaluate, generate: the whole way, through the command line."""

import importlib
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from recurrify import console
from recurrify.cli import advise as advise_cli
from recurrify.cli import evaluate as evaluate_cli
from recurrify.modeling.loading import load_model
from recurrify.train.checkpoints import last_whole_checkpoint
from recurrify.train.settings import TrainSettings
from support.commands import BUDGET, TRAINING, Command, invoke


def as_json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


class TestTrain:
    def test_run_folder(self, runs: dict[str, Path], base: Path, texts: Path) -> None:
        out = runs["recurrent"]
        settings = TrainSettings.read(out)
        assert settings is not None
        assert (settings.model, settings.data, settings.out) == (str(base), str(texts), str(out))
        assert (settings.windows, settings.batch, settings.learning_rate, settings.warmup_steps) == (3, 4, 0.01, 2)
        assert settings.recurrence["mechanism"] == "carry"
        assert settings.recurrence["window"] == 8
        assert settings.recurrence["checkpoint"] is True
        result = json.loads((out / "result.json").read_text())
        assert (result["kind"], result["finished"]) == ("train", True)
        assert result["provenance"]["config"] == settings.to_dict()
        assert result["provenance"]["data_checksum"]
        assert result["tokens"] == pytest.approx(500, rel=0.15)
        checkpoint = last_whole_checkpoint(out)
        assert checkpoint is not None
        assert checkpoint.name == f"checkpoint-{result['steps']}"
        model, tokenizer = load_model(str(out))
        assert model.recurrence.mechanism == "carry"
        assert tokenizer("w7 w8", add_special_tokens=False)["input_ids"] == [7, 8]

    def test_tensorboard(self, runs: dict[str, Path]) -> None:
        (events,) = runs["recurrent"].rglob("events.out.tfevents.*")
        found = EventAccumulator(str(events))
        found.Reload()
        assert {"train/loss", "eval/loss", "eval/perplexity_per_word"} <= set(found.Tags()["scalars"])
        history = json.loads((runs["recurrent"] / "result.json").read_text())["history"]
        logged = [entry["loss"] for entry in history if "loss" in entry]
        assert [event.value for event in found.Scalars("train/loss")] == pytest.approx(logged)

    def test_finished_run_is_reported_and_skipped(self, runs: dict[str, Path], base: Path, texts: Path) -> None:
        out = runs["recurrent"]
        before = (out / "model" / "model.safetensors").stat().st_mtime_ns
        said = invoke(
            "train", "--model", base, "--data", texts, "--out", out, "--mechanism", "carry", *TRAINING, *BUDGET
        )
        history = json.loads((out / "result.json").read_text())["history"]
        best = min((entry for entry in history if "eval_loss" in entry), key=lambda entry: entry["eval_loss"])
        assert f"perplexity {math.exp(best['eval_loss']):,.3f} per token" in said
        assert f", at step {best['step']}," in said
        assert f"{best['eval_perplexity_per_word']:.2f} per word" in said
        assert f"model: {out / 'model'}\nnext: recurrify evaluate {out} --data {texts}\n" in said
        assert (out / "model" / "model.safetensors").stat().st_mtime_ns == before

    def test_few_updates_are_reported(
        self, runs: dict[str, Path], base: Path, texts: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        said: list[str] = []
        monkeypatch.setattr("recurrify.cli.train.say", said.append)
        out = runs["plain"]
        invoke("train", "--model", base, "--data", texts, "--out", out, "--mechanism", "none", *TRAINING, *BUDGET)
        steps = json.loads((out / "result.json").read_text())["steps"]
        assert said[-1].startswith(f"{steps} updates are too few to learn from")

    def test_every_option_reaches_the_settings(self, base: Path, texts: Path, tmp_path: Path) -> None:
        given: dict[str, Any] = {
            "valid": str(texts),
            "windows": 2,
            "epochs": 0.5,
            "max_tokens": 60,
            "max_minutes": 30.0,
            "batch": 2,
            "accumulate": 3,
            "learning_rate": 1e-4,
            "compile": "off",
            "valid_every": 1_000,
            "patience": 5,
            "precision": "fp32",
            "report_to": "none",
            "seed": 11,
        }
        named = {
            "added_learning_rate": 1e-3,
            "warmup_steps": 1,
            "schedule": "cosine",
            "valid_tokens": 20,
            "group_by_length": True,
        }
        memory = {"mechanism": "carry", "window": 9, "overlap": 2}
        inner = {"bptt_windows": 2, "checkpoint": False, "pooling": "attention", "insert_layer": "all", "slots": 2}
        options = [part for name, value in (given | memory).items() for part in (f"--{name.replace('_', '-')}", value)]
        options += [part for name, value in (named | inner).items() for part in ("--set", f"{name}={as_json(value)}")]
        invoke("train", "--model", base, "--data", texts, "--out", tmp_path / "run", *options)
        settings = TrainSettings.read(tmp_path / "run")
        assert settings is not None
        assert {name: getattr(settings, name) for name in given | named} == given | named
        assert {name: settings.recurrence[name] for name in memory | inner} == memory | inner

    def test_trained_model_is_trained_further(self, runs: dict[str, Path], texts: Path, tmp_path: Path) -> None:
        """A recurrent model keeps its memory; a plain one gets the memory that works best for its base."""
        for name, mechanism in (("recurrent", "carry"), ("plain", "lookback")):
            out = tmp_path / name
            invoke("train", "--model", runs[name], "--data", texts, "--out", out, *TRAINING, "--max-tokens", 80)
            assert load_model(str(out))[0].recurrence.mechanism == mechanism


class TestEvaluate:
    @pytest.fixture(scope="class")
    def evaluated(
        self, runs: dict[str, Path], base: Path, texts: Path, tmp_path_factory: pytest.TempPathFactory
    ) -> tuple[str, dict[str, Any]]:
        out = tmp_path_factory.mktemp("results") / "evaluation.json"
        models = [runs["plain"], runs["recurrent"]]
        with pytest.MonkeyPatch.context() as patch:
            from rich.console import Console

            from recurrify.cli import evaluate as evaluating

            patch.setattr(evaluating, "out_console", Console(width=400))
            said = invoke("evaluate", *models, "--data", texts, "--overlap", 0, "--overlap", 3, "--out", out)
        return said, json.loads(out.read_text())

    def test_table_equals_file(self, evaluated: tuple[str, dict[str, Any]], runs: dict[str, Path]) -> None:
        said, result = evaluated
        assert [(row["model"], row["overlap"]) for row in result["rows"]] == [
            (str(runs[name]), overlap) for name in ("plain", "recurrent") for overlap in (0, 3)
        ]
        lines = [re.split(r"\s{2,}", line.strip()) for line in said.splitlines() if line.strip()]
        for name in ("plain", "recurrent"):
            own = [row for row in result["rows"] if row["model"] == str(runs[name])]
            speed = f"{result['speed'][str(runs[name])]['tokens_per_second']:,.0f} tokens/s"
            start = lines.index([f"{runs[name]} ({own[0]['mechanism']}), windows of 8, {speed}"])
            headers = ["overlap", "ppl/token", "95 % interval", "bits/char", "ppl/word", "all FLOPs/token"]
            assert lines[start + 1] == headers
            for line, row in zip(lines[start + 2 : start + 4], own, strict=True):
                low, high = row["perplexity_per_token_interval"]
                assert line == [
                    str(row["overlap"]),
                    f"{row['perplexity_per_token']:,.3f}",
                    f"{low:,.3f} to {high:,.3f}",
                    f"{row['bits_per_character']:.4f}",
                    f"{row['perplexity_per_word']:,.2f}",
                    console.large(row["full_flops_per_token"]),
                ]
        for gain in result["gains"]:
            change = gain["relative_gain"]
            words = f"{100 * abs(change):.1f} % {'lower' if change >= 0 else 'higher'}"
            assert f"at overlap {gain['overlap']}: perplexity per token {words}" in said

    def test_all_models_score_the_same_tokens(
        self, evaluated: tuple[str, dict[str, Any]], runs: dict[str, Path]
    ) -> None:
        _, result = evaluated
        scored = [
            [(document["name"], document["tokens"], document["words"]) for document in one["documents"]]
            for evaluations in result["documents"].values()
            for one in evaluations
        ]
        assert len(scored) == 4
        assert len(scored[0]) == 3
        assert all(one == scored[0] for one in scored)
        # A word is a token here: all but the first of each document are scored.
        assert all(tokens == words - 1 for _, tokens, words in scored[0])

    def test_gains(self, evaluated: tuple[str, dict[str, Any]], runs: dict[str, Path]) -> None:
        _, result = evaluated
        perplexity = {(row["model"], row["overlap"]): row["perplexity_per_token"] for row in result["rows"]}
        assert [gain["overlap"] for gain in result["gains"]] == [0, 3]
        for gain in result["gains"]:
            assert (gain["model"], gain["against"]) == (str(runs["recurrent"]), str(runs["plain"]))
            ratio = perplexity[gain["model"], gain["overlap"]] / perplexity[gain["against"], gain["overlap"]]
            assert gain["relative_gain"] == pytest.approx(1 - ratio)

    def test_base_model_in_plain_windows(self, base: Path, texts: Path, tmp_path: Path) -> None:
        out = tmp_path / "deep" / "result.json"
        more = ["--split", "all", "--window", 5, "--tokens", 7, "--batch", 2, "--device", "cpu"]
        said = invoke("evaluate", base, "--data", texts, "--out", out, *more)
        assert "(none)" in said
        result = json.loads(out.read_text())
        (row,) = result["rows"]
        assert (row["window"], row["overlap"], row["mechanism"]) == (5, 0, "none")
        (one,) = result["documents"][str(base)]
        assert len(one["documents"]) == 60
        assert {document["tokens"] for document in one["documents"]} == {6}
        assert result["provenance"]["config"]["tokens_per_document"] == 7

    @pytest.mark.parametrize("limit", [(), ("--tokens", 30)], ids=["all", "some"])
    def test_other_tokenizers_are_compared_per_character(self, limit: tuple[Any], base: Path, tmp_path: Path) -> None:
        (tmp_path / "one.txt").write_text("w1 w2 w3 w4 w5 w6 w7 " * 20)
        said = invoke(
            *("evaluate", base, "shipped:base", "--data", tmp_path / "one.txt", "--split", "all", "--window", 8),
            *("--out", tmp_path / "found.json", *limit),
        )
        assert f"note: shipped:base has another tokenizer than {base}: perplexities per token cannot be" in said
        found = json.loads((tmp_path / "found.json").read_text())
        bits = [row["bits_per_character"] for row in found["rows"]]
        if limit:  # the first 30 tokens of each are different texts
            assert "leave out --tokens." in said
            assert found["gains"] == []
        else:
            assert f"shipped:base compared with {base} at overlap 0: bits per character" in said
            assert found["gains"][0]["relative_gain"] == pytest.approx(1 - bits[1] / bits[0])

    def test_one_document_has_no_interval(self, base: Path, runs: dict[str, Path], tmp_path: Path) -> None:
        (tmp_path / "one.txt").write_text("w5 w6 w7 " * 9)
        said = invoke("evaluate", base, runs["plain"], "--data", tmp_path / "one.txt", "--split", "all")
        assert "one document: no interval" in said
        assert "within noise" not in said


class TestGenerate:
    def test_generate_beyond_the_positions_of_the_base(self, runs: dict[str, Path]) -> None:
        said = invoke("generate", runs["recurrent"], "--prompt", "w7 w8 w9", "--max-new-tokens", 50, "--greedy")
        words = said.split()
        assert words[:3] == ["w7", "w8", "w9"]
        assert 3 < len(words) <= 53

    def test_top_p_near_zero_is_greedy(self, runs: dict[str, Path]) -> None:
        asked = ["generate", runs["recurrent"], "--prompt", "w7 w8", "--max-new-tokens", 20, "--temperature", 5.0]
        greedy = invoke(*asked[:-2], "--greedy")
        assert invoke(*asked, "--top-p", 1e-6) == greedy
        assert invoke(*asked, "--top-p", 1.0) != greedy

    def test_seed_repeats_a_sample(self, runs: dict[str, Path]) -> None:
        said = [
            invoke("generate", runs["recurrent"], "--prompt", "w7 w8", "--max-new-tokens", 20, "--seed", seed)
            for seed in (1, 1, 2)
        ]
        assert said[0] == said[1] != said[2]

    def test_beams_and_a_prompt_file(self, runs: dict[str, Path], tmp_path: Path) -> None:
        (tmp_path / "prompt.txt").write_text("w7 w8 w9")
        said = invoke(
            "generate", runs["recurrent"], "--prompt-file", tmp_path / "prompt.txt", "--beams", 2, "--max-new-tokens", 9
        )
        assert said.split()[:3] == ["w7", "w8", "w9"]

    def test_prompt_from_standard_input(self, runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
        from typer.testing import CliRunner

        from recurrify.cli import main as cli

        arguments = ["generate", str(runs["plain"]), "--prompt-file", "-", "--max-new-tokens", "4", "--greedy"]
        found = CliRunner().invoke(cli.app, arguments, input="w11 w12", catch_exceptions=False)
        assert found.exit_code == 0
        assert found.stdout.split()[:2] == ["w11", "w12"]


def test_advise_measures_recommends_and_names_the_next_command(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("def read(path):\n    return open(path).read()\n\n\n" * 200)
    out, page = tmp_path / "advice.json", tmp_path / "advice.html"
    said = invoke(
        *("advise", "shipped:base", "--data", tmp_path / "text.txt", "--tokens", 200),
        *("--out", out, "--page", page),
    )
    result = json.loads(out.read_text())
    assert result["gains"][0]["interval"] is not None  # a single document is read in pieces
    assert {row["role"] for row in result["rows"]} >= {"memory", "windows", "overlap", "longer window"}
    assert said.startswith(result["advice"][0])
    assert "(*: recommended)" in said
    assert sum(" * " in line for line in said.splitlines()) == 1
    assert f"Next: {result['command']}" in said
    assert page.is_file()


def test_advise_on_a_text_shorter_than_the_context_suggests_the_whole_context(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("def read(path):\n    return open(path).read()\n\n\n" * 200)
    advise = ("advise", "shipped:base", "--data", tmp_path / "text.txt")
    short = invoke(*advise, "--tokens", 100)
    assert "longest piece has 99 tokens: longer windows were not measured" in short
    assert "--window 99" not in short
    assert "whole text of up to 99 is the best buy" in short
    assert "--split all --window 256" in short
    assert "not measured" not in invoke(*advise, "--tokens", 400)  # more than the model's positions
    one_piece = invoke(*advise, "--split", "test", "--tokens", 2000)
    assert "all there is of the split 'test': --split all gives a larger one" in one_piece


def test_advise_refuses_an_impossible_budget_before_it_measures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Command
) -> None:
    (tmp_path / "text.txt").write_text("def read(path):\n    return open(path).read()\n\n\n" * 50)
    module = importlib.import_module("recurrify.evaluate.advise")  # its name is that of a function
    monkeypatch.setattr(module, "measure_readings", None)
    said = refused("advise", "shipped:base", "--data", tmp_path / "text.txt", "--flops", 1)
    assert "No reading is within this budget: the cheapest takes" in said


def test_no_line_of_progress_lands_between_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text.txt").write_text("def read(path):\n    return open(path).read()\n\n\n" * 50)
    innermost: list[object] = []
    monkeypatch.setattr(advise_cli, "_show", lambda *_: innermost.extend(console._lines[-1:]))
    monkeypatch.setattr(evaluate_cli, "_print_evaluation", lambda *_: innermost.extend(console._lines[-1:]))
    invoke("advise", "shipped:base", "--data", tmp_path / "text.txt", "--tokens", 100)
    invoke("evaluate", "shipped:base", "--data", tmp_path / "text.txt", "--split", "all")
    assert innermost == [None, None]
