"""`recurrify add`: a memory without training, from the command line to a model that transformers loads."""

import json
from pathlib import Path

import pytest

from recurrify.modeling.loading import load_model
from support.commands import TRAINING, Command, invoke
from support.runs import model_folder


def test_a_memory_that_was_added_is_of_use(tmp_path: Path) -> None:
    out, result = tmp_path / "memory", tmp_path / "scores.json"
    said = invoke("add", "--model", "shipped:base", "--window", 64, "--set", "keep=64", "--out", out)
    assert f"model: {out}" in said
    model, _ = load_model(str(out))
    assert (model.recurrence.mechanism, model.recurrence.window) == ("lookback", 64)
    scored = ["--data", "stdlib", "--tokens", 200, "--out", result]
    said = invoke("evaluate", "shipped:base", out, *scored)
    found = json.loads(result.read_text())
    (gain,) = found["gains"]
    assert gain["relative_gain"] > 0.1
    assert not gain["within_noise"]
    plain, ours = (row["perplexity_per_token"] for row in found["rows"])
    assert gain["relative_gain"] == pytest.approx(1 - ours / plain)
    # Against windows that are shorter than the base's own it is not yet known to be better than the base.
    assert "note: shipped:base was made for windows of 256, but scored with 64 like the others" in said
    assert "recurrify evaluate shipped:base --window 256" in said
    for name in ("shipped:base", str(out)):
        assert f"{found['speed'][name]['tokens_per_second']:,.0f} tokens/s" in said


def test_training_goes_on_from_it(base: Path, texts: Path, tmp_path: Path) -> None:
    start, out = tmp_path / "start", tmp_path / "run"
    invoke("add", "--model", base, "--window", 8, "--set", "keep=3", "--out", start)
    invoke("train", "--model", start, "--data", texts, "--out", out, *TRAINING, "--max-tokens", 500)
    before, after = (load_model(str(folder))[0].mechanism.shifts for folder in (start, out))
    assert not (before == after).all()
    assert (before - after).abs().max() < 0.2


def test_refusals(refused: Command, base: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    (there / "mine.txt").write_text("mine")
    sentence = refused("add", "--model", base, "--window", 8, "--set", "keep=3", "--out", there)
    assert f"'{there}' exists already" in sentence
    assert [path.name for path in there.iterdir()] == ["mine.txt"]
    out = tmp_path / "new"
    kept = ("--mechanism", "lookback", "--window", 8, "--set", "keep=64")
    assert "`keep` is 64" in refused("add", "--model", base, *kept, "--out", out)
    sentence = refused("add", "--model", base, "--mechanism", "telepathy", "--out", out)
    assert "'telepathy': known are best, carry, " in sentence
    assert "none" not in sentence
    llama = model_folder(tmp_path / "llama", "llama")
    sentence = refused(
        "add", "--model", llama, "--mechanism", "lookback", "--window", 8, "--set", "keep=3", "--out", out
    )
    assert "choose 'kv', which can turn their keys" in sentence
    assert "use --window 8" in refused("add", "--model", base, "--set", "window=8", "--out", out)
    assert "is no memory" in refused("add", "--model", base, "--mechanism", "none", "--out", out)
    assert not out.exists()
    invoke("add", "--model", base, "--window", 8, "--set", "keep=3", "--out", out)
    sentence = refused("add", "--model", out, "--window", 8, "--set", "keep=3", "--out", tmp_path / "again")
    assert f"'{out}' has a memory already, 'lookback'" in sentence
    sentence = refused("evaluate", out, "--data", "stdlib", "--window", 9)
    assert "made for windows of 8" in sentence
    # Before anything is scored: stdlib would take minutes.
    sentence = refused("evaluate", base, out, "--data", "stdlib", "--window", 8, "--overlap", 0, "--overlap", 6)
    assert f"{out} cannot be scored at --window 8 --overlap 6: `keep` is 3" in sentence
    (out / "tokenizer.json").unlink()
    (out / "tokenizer_config.json").unlink()
    assert f"save one there with tokenizer.save_pretrained('{out}')" in refused("evaluate", out, "--data", "stdlib")
