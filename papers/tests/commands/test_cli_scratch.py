"""`recurrify train --arch`: the whole way, and what it refuses."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from recurrify.cli import options
from recurrify_papers.models.language import parse_settings
from recurrify_papers.scratch.run import score_stream, stream_for, train_scratch
from recurrify_papers.scratch.settings import ScratchSettings
from support.commands import invoke

Refused = Callable[..., str]

TINY = ["--set", "layers=1", "--set", "width=16", "--set", "heads=2", "--set", "head_width=8", "--set", "inner=16"]
MORE: dict[str, list[str]] = {
    "xl": [*TINY, "--set", "memory_length=8"],
    "rsa-xl": [*TINY, "--set", "rsa.counts=0,1,1,0,0,0"],
    "brt": [*TINY, "--set", "block=4", "--set", "window=8", "--set", "states=2"],
    "rsa-brt": [
        *TINY,
        "--set",
        "block=4",
        "--set",
        "window=8",
        "--set",
        "rsa.counts=2,0,0,0,0,0",
        "--set",
        "rsa.dilations=",
    ],
    "lstm": ["--set", "width=16"],
    "gru": ["--set", "width=16", "--set", "layers=1"],
    "transformer": TINY,
    "rsa": [*TINY, "--set", "rsa.counts=0,0,0,1,0,0", "--set", "rsa.dilations=3"],
}
BUDGET = ["--steps", "3", "--batch", "2", "--length", "8", "--learning-rate", "0.01"]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("".join(f"Line {number % 10} is like line {number // 10 % 10}.\n" for number in range(60)))
    return path


@pytest.mark.parametrize("arch", MORE)
def test_every_architecture(arch: str, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    said = invoke("train", "--arch", arch, "--data", text, "--out", out, *MORE[arch], *BUDGET)
    result = json.loads((out / "result.json").read_text())
    assert (result["arch"], result["finished"], result["steps"], result["tokens"]) == (arch, True, 3, 48)
    assert [point["step"] for point in result["history"]["training"]] == [1, 2, 3]
    assert result["unit"] == "byte"
    assert result["test"]["bits_per_symbol"] < math.log2(result["vocabulary"]) + 1
    assert f"test: {result['test']['bits_per_symbol']:.4f} bits per byte, perplexity" in said
    assert f"model: {out / 'model'}" in said
    assert (out / "model" / "model.safetensors").is_file()
    assert result["provenance"]["data_checksum"]


def test_every_option_reaches_the_settings(text: Path, tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "valid": str(text),
        "symbols": "characters",
        "steps": 4,
        "batch": 3,
        "length": 10,
        "learning_rate": 1e-3,
        "schedule": "linear",
        "warmup_steps": 1,
        "weight_decay": 0.1,
        "clip": 1.0,
        "recurrence_learning_rate": 1e-2,
        "eval_batch": 2,
        "eval_length": 5,
        "valid_every": 60,
        "valid_tokens": 40,
        "test_tokens": 30,
        "precision": "fp32",
        "speed": "eager",
        "seed": 3,
        "max_minutes": 30.0,
    }
    options = [part for name, value in given.items() for part in (f"--{name.replace('_', '-')}", value)]
    out = tmp_path / "run"
    shape = [*MORE["rsa-xl"], "--set", "memory_length=8", "--eval-set", "memory_length=20"]
    invoke("train", "--arch", "rsa-xl", "--data", text, "--out", out, *options, *shape)
    settings = ScratchSettings.read(out)
    assert settings is not None
    assert {name: getattr(settings, name) for name in given} == given
    assert settings.settings == parse_settings("rsa-xl", shape[1:-2:2]) | {"rsa.counts": [0, 1, 1, 0, 0, 0]}
    assert settings.eval_settings == {"memory_length": 20}
    result = json.loads((out / "result.json").read_text())
    assert [entry["step"] for entry in result["history"]["validation"]] == [2, 4]
    assert result["validation"]["symbols"] == result["test"]["symbols"] == 29
    assert result["test"]["bits_per_character"] == pytest.approx(result["test"]["bits_per_symbol"], rel=1e-12)
    assert result["test"]["bits_per_byte"] is None
    assert result["provenance"]["config"] == settings.to_dict()
    assert result["provenance"]["arithmetic"] == {
        "autocast": None,
        "float32_matmul": torch.get_float32_matmul_precision(),
    }
    assert {result[part][key] for part in ("validation", "test") for key in ("lanes", "length")} == {2, 5}


def test_defaults_are_the_protocol(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not those of fine-tuning, whose options they share."""
    asked: list[ScratchSettings] = []

    def train(settings: ScratchSettings, say: Any) -> dict[str, Any]:
        asked.append(settings)
        return {"finished": False, "interrupted": False}

    monkeypatch.setattr("recurrify_papers.scratch.run.train_scratch", train)
    invoke("train", "--arch", "xl", "--data", text, "--out", tmp_path / "run")
    (settings,) = asked
    assert settings == ScratchSettings(out=str(tmp_path / "run"), arch="xl", data=str(text))
    assert (settings.batch, settings.length, settings.steps, settings.learning_rate) == (22, 512, 20_000, 2.5e-4)
    assert (settings.schedule, settings.warmup_steps, settings.clip) == ("cosine", 0, 0.25)


def test_help_tells_the_defaults_that_are_not_fine_tunings() -> None:
    for option, default in (
        (options.TrainValidEvery, ScratchSettings.valid_every),
        (options.ValidTokens, ScratchSettings.valid_tokens),
    ):
        (described,) = option.__metadata__
        assert "with --arch it is" in described.help
        assert f"{default:,}" in described.help


@pytest.mark.parametrize("dilations", ["3", "7"])
def test_dilations_are_said_where_a_run_begins(dilations: str, text: Path, tmp_path: Path) -> None:
    asked = [*MORE["rsa"][1:-2:2], f"rsa.dilations={dilations}"]
    said: list[str] = []
    settings = ScratchSettings(
        out=str(tmp_path / "run"),
        arch="rsa",
        data=str(text),
        settings=parse_settings("rsa", asked),
        steps=1,
        batch=2,
        length=8,
    )
    train_scratch(settings, said.append, show_progress=False)
    assert f"recurrence in 1 of 2 heads, dilations {dilations}; " in said[0]


class TestEvaluate:
    @pytest.fixture(scope="class")
    def runs(self, text: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
        folder = tmp_path_factory.mktemp("evaluated")
        for arch in ("xl", "gru"):
            invoke("train", "--arch", arch, "--data", text, "--out", folder / arch, *MORE[arch], *BUDGET)
        return {arch: folder / arch for arch in ("xl", "gru")}

    def test_runs_are_scored_as_in_their_results(self, runs: dict[str, Path], text: Path, tmp_path: Path) -> None:
        said = invoke("evaluate", runs["xl"], runs["gru"] / "model", "--data", text, "--out", tmp_path / "found.json")
        found = json.loads((tmp_path / "found.json").read_text())
        assert [row["arch"] for row in found["rows"]] == ["xl", "gru"]
        for row, run in zip(found["rows"], runs.values(), strict=True):
            expected = json.loads((run / "result.json").read_text())["test"]
            assert {key: row[key] for key in expected} == pytest.approx(expected, rel=1e-6)
            assert f"{row['model']} ({row['arch']}): {expected['bits_per_symbol']:.4f} bits per byte" in said
        assert found["provenance"]["config"]["data"] == str(text)

    def test_other_lanes(self, runs: dict[str, Path], text: Path, tmp_path: Path) -> None:
        invoke("evaluate", runs["xl"], "--data", text, "--rows", 5, "--out", tmp_path / "found.json")
        (row,) = json.loads((tmp_path / "found.json").read_text())["rows"]
        expected = score_stream(runs["xl"], stream_for(runs["xl"], str(text)), batch=5, length=8)
        assert row["loss"] == pytest.approx(expected.loss, rel=1e-6)

    def test_other_segments(self, runs: dict[str, Path], text: Path, tmp_path: Path) -> None:
        invoke("evaluate", runs["xl"], "--data", text, "--eval-length", 3, "--out", tmp_path / "found.json")
        found = json.loads((tmp_path / "found.json").read_text())
        (row,) = found["rows"]
        expected = score_stream(runs["xl"], stream_for(runs["xl"], str(text)), batch=2, length=3)
        assert row["loss"] == pytest.approx(expected.loss, rel=1e-6)
        assert (row["length"], found["provenance"]["config"]["eval_length"]) == (3, 3)

    def test_the_beginning_alone(self, runs: dict[str, Path], text: Path, tmp_path: Path) -> None:
        out = tmp_path / "found.json"
        said = invoke("evaluate", runs["xl"], "--data", text, "--tokens-per-document", 20, "--out", out)
        found = json.loads(out.read_text())
        (row,) = found["rows"]
        beginning = stream_for(runs["xl"], str(text))._replace(ids=stream_for(runs["xl"], str(text)).ids[:20])
        expected = score_stream(runs["xl"], beginning, batch=2, length=8)
        assert (row["loss"], row["symbols"]) == (pytest.approx(expected.loss, rel=1e-6), 19)
        assert "19 scored" in said
        assert found["provenance"]["config"]["tokens_per_document"] == 20
        # A byte is a symbol, so that these are known; how many characters they spell nobody has counted.
        assert row["bits_per_byte"] == pytest.approx(row["bits_per_symbol"], rel=1e-12)
        assert row["bits_per_character"] is None
        assert "bits per byte (per character not known, for only the beginning was scored), perplexity" in said

    def test_characters_of_several_bytes(self, tmp_path: Path) -> None:
        text = tmp_path / "text.txt"
        text.write_text("".join(f"Zeile {number % 10} ähnelt Zeile {number // 10 % 10}.\n" for number in range(60)))
        out = tmp_path / "run"
        said = invoke("train", "--arch", "gru", "--data", text, "--out", out, *MORE["gru"], *BUDGET)
        scored = json.loads((out / "result.json").read_text())["test"]
        both = f"{scored['bits_per_byte']:.4f} bits per byte ({scored['bits_per_character']:.4f} per character)"
        assert scored["bits_per_character"] > scored["bits_per_byte"] + 0.01
        assert f"test: {both}, perplexity" in said
        assert f"(gru): {both}, perplexity" in invoke("evaluate", out, "--data", text)

    def test_other_kinds_and_their_options_are_refused(
        self, runs: dict[str, Path], text: Path, refused: Refused
    ) -> None:
        said = refused("evaluate", runs["xl"], "shipped:base", "--data", text)
        assert "was trained from scratch and 'shipped:base' was not" in said
        said = refused("evaluate", runs["xl"], "--data", text, "--window", 20)
        assert "`--window` is not for models from scratch" in said
        said = refused("evaluate", "shipped:base", "--data", text, "--eval-length", 20)
        assert "`--eval-length` is for models from scratch" in said

    @pytest.mark.parametrize("command", ["evaluate", "generate", "train"])
    def test_a_run_without_a_model_yet_is_said_to_be_unfinished(
        self, command: str, runs: dict[str, Path], text: Path, tmp_path: Path, refused: Refused
    ) -> None:
        out = tmp_path / "run"
        begun = ["--data", text, "--out", out, *MORE["lstm"], *BUDGET, "--max-minutes", "1e-9"]
        invoke("train", "--arch", "lstm", *begun)
        options = {
            "evaluate": [runs["xl"], out, "--data", text],
            "generate": [out, "--prompt", "It"],
            "train": ["--model", out, "--data", text, "--out", tmp_path / "other"],
        }[command]
        said = refused(command, *options)
        assert f"The run in '{out}' is not finished, and has no model yet: give its command again" in said

    @pytest.mark.parametrize("command", ["generate", "train"])
    @pytest.mark.parametrize("part", ["", "model"], ids=["run", "model"])
    def test_who_takes_such_a_model(
        self, command: str, part: str, runs: dict[str, Path], text: Path, tmp_path: Path, refused: Refused
    ) -> None:
        folder = runs["xl"] / part
        options = {
            "generate": [folder, "--prompt", "It"],
            "train": ["--model", folder, "--data", text, "--out", tmp_path / "run"],
        }[command]
        said = refused(command, *options)
        assert (
            f"'{folder}' holds a recurrify language model, not a pretrained transformer: `recurrify evaluate`" in said
        )


@pytest.mark.parametrize("there", ["result.json", "model/weights.bin", "training.safetensors", "checkpoint-3/a.bin"])
@pytest.mark.parametrize("kind", ["scratch", "fine-tuning"])
def test_what_somebody_else_left_is_not_overwritten(
    there: str, kind: str, text: Path, tmp_path: Path, refused: Refused
) -> None:
    file = tmp_path / "run" / there
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    how = ["--arch", "lstm", *MORE["lstm"], *BUDGET] if kind == "scratch" else ["--model", "shipped:base"]
    said = refused("train", *how, "--data", text, "--out", tmp_path / "run")
    name = f"{Path(there).parts[0]}{'/' if '/' in there else ''}"
    assert f"'{tmp_path / 'run'}' has {name} but no run.json" in said
    assert "choose another --out" in said
    assert [path for path in (tmp_path / "run").rglob("*") if path.is_file()] == [file]
    assert file.read_text() == "mine"


def test_a_run_does_not_hide_behind_a_model(text: Path, tmp_path: Path, refused: Refused) -> None:
    """By the folder's name that model would be loaded, not the run's."""
    (tmp_path / "config.json").write_text("{}")
    said = refused("train", "--model", "shipped:base", "--data", text, "--out", tmp_path)
    assert f"'{tmp_path}' has a config.json, as models have" in said
    assert [path.name for path in tmp_path.glob("*.json")] == ["config.json"]


def test_an_empty_folder_may_be_used(text: Path, tmp_path: Path) -> None:
    (tmp_path / "run" / "model").mkdir(parents=True)
    invoke("train", "--arch", "lstm", "--data", text, "--out", tmp_path / "run", *MORE["lstm"], *BUDGET)
    assert (tmp_path / "run" / "result.json").is_file()


class TestRefusals:
    @pytest.fixture
    def train(self, refused: Refused, text: Path, tmp_path: Path) -> Refused:
        def run(*options: object, arch: str | None = "lstm") -> str:
            named = [] if arch is None else ["--arch", arch]
            sentence = refused("train", "--data", text, "--out", tmp_path / "run", *named, *options)
            assert not (tmp_path / "run").exists()
            return sentence

        return run

    def test_neither_model_nor_architecture(self, train: Refused) -> None:
        assert "--model, or one from scratch with --arch xl | rsa-xl" in train(arch=None)

    def test_both(self, train: Refused) -> None:
        assert "`--model` gpt2" in train("--model", "gpt2")

    def test_unknown_architecture(self, train: Refused) -> None:
        assert "must be one of xl, rsa-xl, brt" in train(arch="mamba")

    @pytest.mark.parametrize(
        ("option", "way_out"),
        [
            (["--mechanism", "tail"], "leave it out"),
            (["--window", "300"], "leave it out"),
            (["--overlap", "0"], "leave it out"),
            (["--freeze-base"], "leave it out"),
            (["--epochs", "2"], "use --steps"),
            (["--compile", "on"], "use --speed"),
        ],
        ids=lambda value: value[0] if isinstance(value, list) else "",
    )
    def test_options_of_fine_tuning(self, option: list[str], way_out: str, train: Refused) -> None:
        said = train(*option)
        assert f"`{option[0]}` is for fine-tuning, not for `--arch` lstm: {way_out}." in said

    @pytest.mark.parametrize(
        "option", [["--steps", "5"], ["--symbols", "bytes"], ["--test-tokens", "9"]], ids=lambda o: o[0]
    )
    def test_options_of_models_from_scratch(self, option: list[str], train: Refused) -> None:
        said = train("--model", "gpt2", *option, arch=None)
        assert f"`{option[0]}` is for models from scratch: name one with --arch" in said

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            (["--set", "depth=3"], "lstm has no setting `depth`"),
            (["--set", "width"], "name=value"),
            (["--arch", "rsa", *MORE["rsa"], "--set", "rsa.gate_start=nan"], "`gate_start` must be finite: got nan"),
            (["--set", "target_length=16"], "give it as --length"),
            (
                ["--arch", "rsa-xl", "--set", "rsa.counts=1,0,0,0,1,1"],
                "asks for 2 dilated heads (1,0,0,0,1,1: the last three numbers), and the default dilations are for 4: "
                "give one for each with --set rsa.dilations=3,6.",
            ),
            (
                ["--arch", "brt", "--length", "64"],
                "`target_length`, a run's --length, must be a whole number of blocks, at least two, or the states "
                "never learn what to write: got target_length=64, block=128; give --length 256 or --set block=32.",
            ),
            (["--arch", "brt", "--length", "301"], "block=128; give --length 384."),
            (["--arch", "rsa", "--set", "rsa.counts=0,1,1"], "`counts` must be six numbers of heads"),
            (["--arch", "rsa-xl", "--set", "heads=3"], "gives 4 heads a recurrence: give others with --set rsa.counts"),
            (
                ["--arch", "rsa-xl", "--set", "heads=1"],
                "`heads` is 1, but the default `rsa.counts` (0,0,0,0,2,2) gives 4 heads a recurrence: give others with "
                "--set rsa.counts=1,0,0,0,0,0, or more heads.",
            ),
            (
                ["--arch", "xl", "--set", "width=64", "--set", "heads=3"],
                "got width=64, heads=3; choose heads that divide",
            ),
            (["--eval-set", "target_length=8", *MORE["lstm"], *BUDGET], "give --eval-length instead"),
            (["--eval-length", "0"], "`eval_length` must be at least 1"),
            (
                ["--recurrence-learning-rate", "0.01"],
                "is for architectures with recurrence, rsa-xl, rsa-brt, rsa: lstm",
            ),
            (["--eval-set", "width=8", *MORE["lstm"], *BUDGET], "`eval_settings` width ask for other weights"),
            (["--batch", "900"], "too few for 900 lanes of 512"),
            (["--steps", "0"], "`steps` must be at least 1"),
            (["--schedule", "cyclic"], "`schedule` must be one of"),
            (["--speed", "graph"], "no usable CUDA GPU"),
            (["--precision", "bf16"], "no usable CUDA GPU"),
            (["--symbols", "./nothing"], "no folder './nothing' with a tokenizer"),
        ],
        ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else "",
    )
    def test_values(self, options: list[str], words: str, train: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("torch.cuda.is_available", lambda: False)
        assert words in train(*options)
