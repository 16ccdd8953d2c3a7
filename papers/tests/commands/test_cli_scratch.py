"""`recurrify scratch train`, `evaluate` and `report`: every architecture, options and errors."""

import json
import math
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recurrify.cli.main import main
from recurrify.pages import numbers
from recurrify_papers.scratch.run import score_run
from recurrify_papers.scratch.settings import ScratchSettings
from recurrify_papers.scratch.stepping import Stepper
from support.commands import invoke

Refused = Callable[..., str]


def sets(*assignments: str) -> list[str]:
    return [part for one in assignments for part in ("--set", one)]


TINY = sets("layers=1", "width=16", "heads=2", "head_width=8", "inner=16")
MORE: dict[str, list[str]] = {
    "xl": [*TINY, *sets("memory_length=8")],
    "rsa-xl": [*TINY, *sets("rsa.counts=0,1,1,0,0,0")],
    "brt": [*TINY, *sets("block=4", "window=8", "states=2")],
    "rsa-brt": [*TINY, *sets("block=4", "window=8", "rsa.counts=2,0,0,0,0,0")],
    "lstm": sets("width=16"),
    "gru": sets("width=16", "layers=1"),
    "transformer": TINY,
    "rsa": [*TINY, *sets("rsa.counts=0,0,0,1,0,0", "rsa.dilations=3")],
}
BUDGET = ["--steps", "3", "--batch", "2", "--length", "8", "--learning-rate", "0.01"]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("".join(f"Zeile {number % 10} ähnelt Zeile {number // 10 % 10}.\n" for number in range(60)))
    return path


@pytest.fixture(scope="module")
def runs(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of each architecture, and what each wrote to `said.txt`."""
    folder = tmp_path_factory.mktemp("runs")
    for arch, shape in MORE.items():
        said = invoke("scratch", "train", "--arch", arch, "--data", text, "--out", folder / arch, *shape, *BUDGET)
        (folder / arch / "said.txt").write_text(said)
    return folder


@pytest.mark.parametrize("arch", MORE)
def test_every_architecture(arch: str, runs: Path) -> None:
    out = runs / arch
    result, said = json.loads((out / "result.json").read_text()), (out / "said.txt").read_text()
    assert (result["arch"], result["finished"], result["steps"], result["tokens"]) == (arch, True, 3, 48)
    assert [point["step"] for point in result["history"]["training"]] == [1, 2, 3]
    scored = result["test"]
    assert scored["bits_per_symbol"] < math.log2(result["vocabulary"]) + 1
    assert scored["bits_per_byte"] == pytest.approx(scored["bits_per_symbol"])
    assert f"test: {scored['bits_per_byte']:.4f} bits per byte, perplexity" in said
    assert f"model: {out / 'model'}" in said
    assert (out / "model" / "model.safetensors").is_file()
    assert result["provenance"]["data_checksum"]


def test_options_and_settings(text: Path, tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "valid": str(text),
        "symbols": "characters",
        "steps": 4,
        "batch": 3,
        "length": 10,
        "schedule": "linear",
        "weight_decay": 0.1,
        "recurrence_learning_rate": 1e-2,
        "eval_batch": 2,
        "eval_length": 5,
        "valid_every": 60,
        "valid_tokens": 40,
        "test_tokens": 30,
    }
    options = [part for name, value in given.items() for part in (f"--{name.replace('_', '-')}", value)]
    shape = [*MORE["rsa-xl"], "--set", "memory_length=8"]
    out = tmp_path / "run"
    evaluated = ["--set", "eval.memory_length=20"]
    invoke("scratch", "train", "--arch", "rsa-xl", "--data", text, "--out", out, *options, *shape, *evaluated)
    settings = ScratchSettings.read(out)
    assert settings is not None
    assert {name: getattr(settings, name) for name in given} == given
    own = {"layers": 1, "width": 16, "heads": 2, "head_width": 8, "inner": 16, "memory_length": 8}
    assert settings.model_settings == own | {"rsa.counts": [0, 1, 1, 0, 0, 0]}
    assert settings.eval_settings == {"memory_length": 20}
    page = invoke("scratch", "train", "--help-all")
    assert "Gradient-norm clipping" in " ".join(page.split())
    result = json.loads((out / "result.json").read_text())
    assert [entry["step"] for entry in result["history"]["validation"]] == [2, 4]
    assert result["validation"]["symbols"] == result["test"]["symbols"] == 29
    assert result["test"]["bits_per_byte"] is None  # of characters, only the whole part is known
    assert result["provenance"]["config"] == settings.to_dict()
    assert {result[part][key] for part in ("validation", "test") for key in ("rows", "length")} == {2, 5}


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)])
def test_signal_saves_and_sets_the_exit_code(
    number: signal.Signals, code: int, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Stepper.__call__

    def interrupted(self: Stepper, step: int) -> Any:
        if step == 1:
            signal.raise_signal(number)
        return real(self, step)

    monkeypatch.setattr(Stepper, "__call__", interrupted)
    given = ["scratch", "train", "--arch", "gru", "--data", text, "--out", tmp_path, *MORE["gru"], *BUDGET]
    monkeypatch.setattr(sys, "argv", ["recurrify", *map(str, given)])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == code
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-2"]


class TestEvaluate:
    def test_scores(self, runs: Path, text: Path, tmp_path: Path) -> None:
        out = tmp_path / "found.json"
        given = ["--data", text, "--rows", 5, "--length", 3, "--out", out]
        said = invoke("scratch", "evaluate", runs / "xl", runs / "gru" / "model", *given)
        found = json.loads(out.read_text())
        for row, arch in zip(found["rows"], ("xl", "gru"), strict=True):
            expected = score_run(runs / arch, str(text), rows=5, length=3)
            assert (row["arch"], row["loss"]) == (arch, expected["loss"])
            assert f"{row['model']} ({arch}): {expected['bits_per_symbol']:.4f} bits per byte" in said
        assert found["provenance"]["config"]["data"] == str(text)

    def test_first_symbols(self, runs: Path, text: Path) -> None:
        said = invoke("scratch", "evaluate", runs / "xl", "--data", text, "--symbols", 20)
        assert "19 bytes scored" in said

    def test_other_models_are_an_error(self, runs: Path, text: Path, tmp_path: Path, refused: Refused) -> None:
        said = refused("scratch", "evaluate", "shipped:base", "--data", text)
        assert "'shipped:base' is not a folder" in said
        begun = ["--data", text, "--out", tmp_path / "run", *MORE["lstm"], *BUDGET, "--max-minutes", "1e-9"]
        invoke("scratch", "train", "--arch", "lstm", *begun)
        assert "is not finished" in refused("scratch", "evaluate", tmp_path / "run", "--data", text)


class TestReport:
    def test_page(self, runs: Path, text: Path, tmp_path: Path) -> None:
        begun = ["--data", text, "--out", tmp_path / "begun", *MORE["gru"], *BUDGET, "--max-minutes", "1e-9"]
        invoke("scratch", "train", "--arch", "gru", *begun)
        said = invoke("scratch", "report", runs, tmp_path, "--out", tmp_path / "page")
        assert f"not finished: {tmp_path / 'begun'}" in said
        score = json.loads((runs / "xl" / "result.json").read_text())["test"]["bits_per_symbol"]
        rows = {line.split()[0]: line.split() for line in said.splitlines() if line.startswith(tuple(MORE))}
        assert rows.keys() == MORE.keys()
        assert rows["xl"][2] == numbers.bits(score)
        page = (tmp_path / "page" / "index.html").read_text()
        for words in ("Validation by step", "Validation by training time", "rsa-brt"):
            assert words in page

    def test_no_runs_is_an_error(self, tmp_path: Path, refused: Refused) -> None:
        assert "no finished run of `scratch train`" in refused("scratch", "report", tmp_path)


def test_foreign_files_are_not_overwritten(text: Path, tmp_path: Path, refused: Refused) -> None:
    file = tmp_path / "run" / "model" / "weights.bin"
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    said = refused(
        "scratch", "train", "--arch", "lstm", "--data", text, "--out", tmp_path / "run", *MORE["lstm"], *BUDGET
    )
    assert f"'{tmp_path / 'run'}' has model/ but no run.json" in said
    assert file.read_text() == "mine"


@pytest.mark.parametrize(
    ("arch", "options", "words"),
    [
        ("mamba", [], "`arch` must be xl, rsa-xl, brt"),
        ("lstm", ["--set", "depth=3"], "lstm has no setting `depth`"),
        ("lstm", ["--set", "width"], "is name=value"),
        ("lstm", ["--set", "target_length=16"], "use --length"),
        ("rsa-xl", ["--set", "rsa.counts=1,0,0,0,1,1"], "set one for each with --set rsa.dilations=3,6."),
        ("brt", ["--length", "64"], "use --length 256 or --set block=32."),
        ("lstm", ["--set", "eval.target_length=8"], "use --eval-length"),
        ("lstm", ["--set", "eval.width=8", *MORE["lstm"], *BUDGET], "settings width after `eval.` need other weights"),
        ("lstm", ["--recurrence-learning-rate", "0.01"], "is for rsa-xl, rsa-brt, rsa: lstm has no recurrence"),
        ("lstm", ["--batch", "900"], "too few for 900 rows of 512"),
        ("lstm", ["--speed", "graph"], "no usable CUDA GPU"),
        ("lstm", ["--precision", "bf16"], "no usable CUDA GPU"),
        ("lstm", ["--symbols", "./nothing"], "no folder './nothing' with a tokenizer"),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else "",
)
def test_bad_input_is_one_sentence(
    arch: str,
    options: list[str],
    words: str,
    text: Path,
    tmp_path: Path,
    refused: Refused,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    out = tmp_path / "run"
    assert words in refused("scratch", "train", "--arch", arch, "--data", text, "--out", out, *options)
    assert not out.exists()
