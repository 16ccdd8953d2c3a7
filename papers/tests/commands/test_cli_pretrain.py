"""`recurrify pretrain`: its options and errors, and its model in other commands."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from support.commands import BUDGET, TRAINING, invoke

SMALL = ["--vocabulary", 260, "--layers", 2, "--width", 16, "--heads", 2, "--positions", 16, "--batch", 4]


def test_pretrained_model_is_fine_tuned(texts: Path, tmp_path: Path) -> None:
    out = tmp_path / "base"
    said = invoke("pretrain", "--data", texts, "--out", out, *SMALL, "--max-tokens", 640, "--warmup-steps", 2)
    result = json.loads((out / "result.json").read_text())
    assert result["steps"] == 10
    assert f"loss {result['validation']['loss_per_token']:.4f} per predicted token" in said
    assert f"model: {out / 'model'}" in said
    invoke("train", "--model", out / "model", "--data", texts, "--out", tmp_path / "run", *TRAINING, *BUDGET)
    assert json.loads((tmp_path / "run" / "result.json").read_text())["finished"]


def test_help_names_the_next_step_of_each_objective() -> None:
    said = " ".join(invoke("pretrain", "--help").split())
    assert all(f"{one}: " in said for one in ("clm", "mlm", "span"))
    assert "--vocabulary" in said


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--heads", 5], "`heads` must divide `width`: got width=16, heads=5"),
        (["--tokenizer", "./nowhere"], "There is no folder './nowhere'"),
        (["--precision", "half"], "`precision` must be auto, bf16 or fp32"),
        (["--data", "./nothing.txt"], "nothing.txt does not exist"),
        (["--valid", "./nothing.txt"], "nothing.txt does not exist"),
    ],
    ids=lambda value: value[0].strip("-") if isinstance(value, list) else "",
)
def test_bad_input_is_one_sentence(
    options: list[object], words: str, refused: Callable[..., str], texts: Path, tmp_path: Path
) -> None:
    assert words in refused("pretrain", "--data", texts, "--out", tmp_path / "run", *SMALL, *options)
    assert not (tmp_path / "run" / "run.json").exists()
