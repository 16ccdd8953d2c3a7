"""The whole demo, on models and a corpus of next to nothing."""

import json
import os
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, logging

from recurrify import add_recurrence, console
from recurrify import demo as demo_module
from recurrify.data.documents import CORPORA, Corpus
from recurrify.data.records import Document, Skipped
from recurrify.data.tokens import TokenizedDocument
from recurrify.demo import OVERLAPS, RECURRENCE, Part, run_demo, score_all
from recurrify.errors import UserError
from recurrify.evaluate import rows as evaluation
from recurrify.evaluate.bootstrap import interval, relative_gain
from recurrify.modeling import loading
from recurrify.pages import numbers
from recurrify.pages.markdown_text import summary
from recurrify.processes import processes
from recurrify.train import finetuning
from support.commands import invoke

LIVE_TOKENS = 10_000


def source_code(split: str, count: int) -> list[Document]:
    """Lines that look a little like a program, enough of them for several windows."""
    chance = random.Random(split)
    found = []
    for number in range(count):
        names = chance.sample(["first", "second", "state", "window", "overlap", "tokens", "memory"], 3)
        lines = [f"    {chance.choice(names)} = {chance.choice(names)} + {chance.randrange(9)}" for _ in range(100)]
        found.append(Document(f"{split}{number}.py", f"def function_{number}():\n" + "\n".join(lines) + "\n"))
    return found


TEXTS = {"train": source_code("train", 12), "valid": source_code("valid", 2), "test": source_code("test", 3)}


def load_texts(split: str, limit: int | None, skipped: list[Skipped]) -> list[Document]:
    return TEXTS[split][:limit]


def tokenizer() -> PreTrainedTokenizerFast:
    pieces = Tokenizer(models.BPE())
    pieces.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pieces.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    pieces.train_from_iterator((document.text for document in TEXTS["train"]), trainer)
    return PreTrainedTokenizerFast(tokenizer_object=pieces, eos_token="<|endoftext|>", bos_token="<|endoftext|>")


def ship(folder: Path) -> None:
    """base, plain and recurrent, as they are shipped."""
    words = tokenizer()
    sizes = {"n_positions": 256, "n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": len(words)}
    end = words.eos_token_id
    torch.manual_seed(0)
    base = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=end, eos_token_id=end))
    base.save_pretrained(folder / "base")
    for kind, recurrence in RECURRENCE.items():
        add_recurrence(base, recurrence).save_pretrained(folder / kind)
    for name in ("base", *RECURRENCE):
        words.save_pretrained(folder / name)


@pytest.fixture(scope="module", autouse=True)
def _tiny_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("shipped")
    verbosity = logging.get_verbosity()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "SHIPPED", folder)
        patch.setitem(CORPORA, "stdlib", Corpus("a few lines", load_texts))
        for bootstrap in (interval, relative_gain):  # thousands of samples take as long as all the rest
            patch.setattr(evaluation, bootstrap.__name__, partial(bootstrap, samples=20))
        ship(folder)
        yield
    logging.set_verbosity(verbosity)
    logging.enable_progress_bar()


@pytest.fixture(scope="module")
def demo(_tiny_world: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], list[str]]:
    out, said = tmp_path_factory.mktemp("demo") / "deep" / "run", []
    result = run_demo(out, said.append, live_tokens=LIVE_TOKENS, seeds=(0,), test_tokens=600)
    return out, result, said


def test_the_result(demo: tuple[Path, dict[str, Any], list[str]]) -> None:
    out, result, said = demo
    assert result == json.loads((out / "result.json").read_text())
    assert result["kind"] == "demo"
    rows = [(row["weights"], row["model"], row["seed"], row["overlap"]) for row in result["rows"]]
    assert rows == [
        ("shipped", "base", None, 0),
        *[("shipped", kind, None, overlap) for kind in RECURRENCE for overlap in OVERLAPS],
        *[("live", kind, 0, overlap) for kind in RECURRENCE for overlap in OVERLAPS],
    ]
    gains = [(gain["weights"], gain["overlap"], gain["seeds"]) for gain in result["gains"]]
    assert gains == [(weights, overlap, 1) for weights in ("shipped", "live") for overlap in OVERLAPS]
    settings = result["settings"]
    assert settings["test_documents"] == 3
    assert settings["test_tokens"] == 3 * 599
    assert settings["live_seeds"] == [0]
    assert settings["parameters"]["recurrent"] > settings["parameters"]["base"]
    assert {kind: len(curves) for kind, curves in result["curves"].items()} == {"plain": 1, "recurrent": 1}
    assert result["curves"]["plain"][0]["tokens"] == result["curves"]["recurrent"][0]["tokens"]
    assert len(result["continuations"]) == 3
    for entry in result["continuations"]:
        assert set(entry) == {"prompt_end", "truth", *RECURRENCE}
    assert result["provenance"]["data_checksum"]
    assert [text[:3] for text in said if text[1:3] == "/3"] == ["1/3", "2/3", "3/3"]


def test_both_kinds_score_the_same_tokens(demo: tuple[Path, dict[str, Any], list[str]]) -> None:
    _, result, _ = demo
    for weights in ("shipped", "live"):
        found = result["loss_by_position"][weights]
        assert len(found["plain"]) == len(found["recurrent"]) == 64
        assert None not in found["plain"] + found["recurrent"]


def test_the_files(demo: tuple[Path, dict[str, Any], list[str]]) -> None:
    out, result, _ = demo
    assert {path.name for path in out.iterdir()} == {
        "index.html",
        "picture.png",
        "tables.md",
        "result.json",
        "live-plain-0",
        "live-recurrent-0",
    }
    page = (out / "index.html").read_text(encoding="utf-8")
    assert page.lstrip().lower().startswith("<!doctype html>")
    assert "<svg" in page
    for row in result["rows"]:
        assert numbers.perplexity(row["perplexity_per_word"]) in page
    assert (out / "picture.png").read_bytes().startswith(b"\x89PNG")
    assert "plain" in (out / "tables.md").read_text(encoding="utf-8")


def test_again_trains_nothing(demo: tuple[Path, dict[str, Any], list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """The same numbers through the command line: what is trained stays, the page is written anew."""
    out, result, _ = demo
    weights = {path: path.stat().st_mtime_ns for path in out.rglob("model.safetensors")}
    assert len(weights) >= 2

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("a finished run was trained again")

    monkeypatch.setattr(finetuning, "train", never)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)  # other processes would not know this small world
    (out / "index.html").unlink()
    said = invoke("demo", "--out", out, "--live-tokens", LIVE_TOKENS, "--seeds", 1)
    assert all(line in said for line in summary(json.loads((out / "result.json").read_text())))
    assert f"The page: {out / 'index.html'}" in said.replace("\n", "")
    assert (out / "index.html").is_file()
    assert {path: path.stat().st_mtime_ns for path in out.rglob("model.safetensors")} == weights
    again = json.loads((out / "result.json").read_text())
    assert again["curves"] == result["curves"]


def test_side_by_side_scores_the_same(
    demo: tuple[Path, dict[str, Any], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process that knows of nothing but files; a second one would take seconds to start, too."""
    monkeypatch.setattr(demo_module, "processes", lambda count: processes(count - 1))
    ids = np.arange(150) % 250
    tokens = [TokenizedDocument("counting", ids, words=100, characters=500, bytes=500)]
    parts = [Part(str(demo[0] / f"live-{kind}-0"), kind, "live", 0, 16) for kind in RECURRENCE]
    for (row, found), (expected_row, expected) in zip(
        score_all(parts, tokens, 2), score_all(parts, tokens, 1), strict=True
    ):
        np.testing.assert_allclose(found.nll, expected.nll, rtol=1e-6)
        assert row["full_flops_per_token"] == expected_row["full_flops_per_token"]
        assert (found.overlap, found.tokens.sum()) == (16, 149)


def test_the_warm_up_of_the_shortest_runs_ends_before_they_do(demo: tuple[Path, dict[str, Any], list[str]]) -> None:
    for kind in RECURRENCE:
        settings, result = (
            json.loads((demo[0] / f"live-{kind}-0" / name).read_text()) for name in ("run.json", "result.json")
        )
        assert 0 < settings["warmup_steps"] < result["steps"]


def test_a_stopped_demo_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real, kinds = finetuning.train, []

    def interrupted(model: Any, *args: Any) -> Any:
        kinds.append(model.recurrence.mechanism)
        if len(kinds) == 2:
            raise KeyboardInterrupt
        return real(model, *args)

    monkeypatch.setattr(finetuning, "train", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_demo(tmp_path / "run", lambda text: None, live_tokens=LIVE_TOKENS, seeds=(0,), test_tokens=200)
    assert not (tmp_path / "run" / "result.json").exists()
    monkeypatch.setattr(console, "LINE_SECONDS", 0)
    result = run_demo(tmp_path / "run", lambda text: None, live_tokens=LIVE_TOKENS, seeds=(0,), test_tokens=200)
    assert "\nevaluating: 10,149 of 10,149, 100 %, 0.0 min left\n" in capsys.readouterr().err
    assert kinds == ["none", "lookback", "lookback"]
    assert result["continuations"] == []
    assert (tmp_path / "run" / "index.html").is_file()


def test_another_budget_needs_another_folder(demo: tuple[Path, dict[str, Any], list[str]]) -> None:
    with pytest.raises(UserError, match="max_tokens=10000 there, 20000 now"):
        run_demo(demo[0], lambda text: None, live_tokens=20_000, seeds=(0,))
