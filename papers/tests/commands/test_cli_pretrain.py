"""`recurrify pretrain`: every option arrives, bad ones are refused, and its model goes through the other commands."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from recurrify_papers.pretrain.training import PretrainSettings
from support.commands import BUDGET, TRAINING, invoke

Refused = Callable[..., str]
SMALL = ["--vocabulary", 260, "--layers", 2, "--width", 16, "--heads", 2, "--positions", 16, "--batch", 4]


def test_from_text_to_a_recurrent_model(texts: Path, tmp_path: Path) -> None:
    out = tmp_path / "base"
    said = invoke("pretrain", "--data", texts, "--out", out, *SMALL, "--max-tokens", 640, "--warmup-steps", 2)
    result = json.loads((out / "result.json").read_text())
    assert result["steps"] == 10
    found = result["validation"]
    assert f"loss {found['loss_per_token']:.4f} per token" in said
    assert f"model: {out / 'model'}" in said
    invoke("train", "--model", out / "model", "--data", texts, "--out", tmp_path / "run", *TRAINING, *BUDGET)
    assert json.loads((tmp_path / "run" / "result.json").read_text())["finished"]


def test_help_says_where_each_objective_goes() -> None:
    said = " ".join(invoke("pretrain", "--help").split())
    assert "clm: recurrify train --model OUT" in said
    assert "mlm: recurrify qa train --model OUT" in said
    assert "span: transformers" in said


def test_options_arrive(texts: Path, tmp_path: Path) -> None:
    (tmp_path / "valid.txt").write_text("w5 w6 " * 9)
    given = {
        "vocabulary": 258,
        "layers": 1,
        "width": 12,
        "heads": 3,
        "positions": 8,
        "epochs": 0.5,
        "max_tokens": 64,
        "max_minutes": 30.0,
        "valid_every": 40,
        "batch": 2,
        "accumulate": 2,
        "learning_rate": 0.002,
        "warmup_steps": 1,
        "weight_decay": 0.2,
        "dropout": 0.3,
        "precision": "fp32",
        "compile": "off",
        "seed": 11,
        "valid": str(tmp_path / "valid.txt"),
        "text_field": "body",
    }
    options = [part for name, value in given.items() for part in (f"--{name.replace('_', '-')}", value)]
    invoke("pretrain", "--data", texts, "--data", texts, "--out", tmp_path / "run", *options)
    settings = PretrainSettings.read(tmp_path / "run")
    assert settings is not None
    assert {name: getattr(settings, name) for name in given} == given
    assert settings.data == [str(texts), str(texts)]
    assert json.loads((tmp_path / "run" / "result.json").read_text())["steps"] == 2


def test_a_tokenizer_of_another_model(base: Path, texts: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    invoke("pretrain", "--data", texts, "--out", out, *SMALL, "--tokenizer", base, "--max-tokens", 64)
    assert json.loads((out / "model" / "config.json").read_text())["vocab_size"] == 60


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--heads", 5], "`heads` must divide the width: 5 does not divide 16"),
        (["--vocabulary", 200], "at least 257"),
        (["--positions", 100_000], "fewer than the 100,001 of one sequence"),
        (["--batch", 100_000], "too few for one batch of 100000"),
        (["--tokenizer", "./nowhere"], "There is no folder './nowhere'"),
        (["--precision", "half"], "`precision` must be auto, bf16 or fp32"),
        (["--compile", "maybe"], "`compile` must be auto, on or off"),
        (["--max-tokens", 0], "`max_tokens` must be a positive number"),
        (["--data", "./nothing.txt"], "nothing.txt does not exist"),
        (["--valid", "./nothing.txt"], "nothing.txt does not exist"),
    ],
    ids=lambda value: value[0].strip("-") if isinstance(value, list) else "",
)
def test_refused(options: list[object], words: str, refused: Refused, texts: Path, tmp_path: Path) -> None:
    sentence = refused("pretrain", "--data", texts, "--out", tmp_path / "run", *SMALL, *options)
    assert words in sentence
    assert not (tmp_path / "run" / "run.json").exists()
