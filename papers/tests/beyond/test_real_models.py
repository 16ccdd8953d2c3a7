"""The commands of `real_models`, from text to chart, on a random model of two layers."""

import json
import math
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from recurrify import CarryConfig, NoRecurrence, UserError
from recurrify.data import Document, TokenizedDocument
from recurrify.evaluate import full_flops_per_token
from recurrify.train import TrainOutcome
from recurrify_papers.beyond import real_models, real_rows
from recurrify_papers.beyond.real_rows import CONSTANT, FOUR_ROWS, TIMED, TRAINED, UNTRAINED, Row, kv, plain, with_row
from recurrify_papers.data.tokenizers import make_tokenizer

WORDS = "The river ran past the old mill and the miller counted every sack of grain. "


@pytest.fixture(scope="module")
def base() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=300,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=128,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def sources(base: LlamaForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The options that name a saved model and a folder of novels."""
    folder = tmp_path_factory.mktemp("sources")
    base.save_pretrained(folder / "model")
    make_tokenizer([Document("words", WORDS)], 300).save_pretrained(folder / "model")
    for split in ("train", "valid", "test"):
        (folder / "novels" / split).mkdir(parents=True)
        for book in range(2):
            (folder / "novels" / split / f"{book}.txt").write_text(f"{split} {book}. " + WORDS * 20)
    return ["--model", str(folder / "model"), "--novels", str(folder / "novels")]


@pytest.fixture
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short documents, windows of 32 and few rows."""
    monkeypatch.setattr(real_rows, "LENGTHS", dict.fromkeys(real_rows.LENGTHS, 150))
    memory = kv(32, 24)
    monkeypatch.setattr(real_models, "UNTRAINED", (plain(32), plain(32, 16), memory, kv(32, 28, sliding=True)))
    monkeypatch.setattr(real_models, "TIMED", (plain(32), memory))
    trained = (plain(32), memory, Row("carry", CarryConfig(window=32)))
    monkeypatch.setattr(real_models, "TRAINED", trained)
    monkeypatch.setattr(real_models, "ROWS", {row.name: row for row in (*trained, kv(32, 28))})
    monkeypatch.setattr(real_models, "READINGS", (memory,))


@pytest.mark.parametrize("rows", [UNTRAINED, CONSTANT, FOUR_ROWS, TIMED, TRAINED])
def test_names_are_unique(rows: tuple[Row, ...]) -> None:
    assert len({row.name for row in rows}) == len(rows)


@pytest.mark.usefixtures("_short")
def test_score_and_report(base: LlamaForCausalLM, sources: list[str], tmp_path: Path) -> None:
    real_models.main(["score", *sources, "--corpora", "novels", "--out", str(tmp_path / "untrained.json")])
    result = json.loads((tmp_path / "untrained.json").read_text())
    assert set(json.loads(result["provenance"]["data_checksum"])) == {"novels"}
    novels = result["corpora"]["novels"]
    assert novels["documents"]["tokens"] == [150, 150]
    rows = {row["name"]: row for row in novels["rows"]}
    memory = rows["kv 32 keep 24 sinks 4"]
    assert set(memory["gains"]) == {"same_window", "full_context", "equal_cost_overlap", "equal_cost_window"}
    assert memory["gains"]["full_context"]["than"] == "plain 128"
    for name in ("equal_cost_overlap", "equal_cost_window"):
        gain = memory["gains"][name]
        rival = rows[gain["than"]]
        window, overlap = rival["recurrence"]["window"], rival["recurrence"]["overlap"]
        cheaper = (window, overlap - 1) if overlap else (window - 1, 0)
        assert rival["flops_per_token"] >= memory["flops_per_token"] > full_flops_per_token(base, *cheaper)
        expected = 1 - memory["perplexity_per_token"] / rival["perplexity_per_token"]
        assert gain["gain"] == pytest.approx(expected, abs=1e-5)
    real_models.main(["report", "--results", str(tmp_path), "--out", str(tmp_path / "chart.png")])
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("_short")
def test_chosen_rows_of_shorter_documents(sources: list[str], tmp_path: Path) -> None:
    out, name = tmp_path / "chosen.json", "kv 32 keep 28 sinks 4"
    chosen = ["--rows", name, "--length", "100", "--documents", "1"]
    real_models.main(["score", *sources, "--corpora", "novels", *chosen, "--out", str(out)])
    novels = json.loads(out.read_text())["corpora"]["novels"]
    assert novels["documents"]["tokens"] == [100]
    assert [row["name"] for row in novels["rows"] if "gains" in row] == [name]


@pytest.mark.usefixtures("_short")
def test_distance(base: LlamaForCausalLM, sources: list[str], tmp_path: Path) -> None:
    out, row = tmp_path / "distance.json", kv(32, 24)
    real_models.main(["distance", *sources, "--rows", row.name, "--distances", "1", "2", "--out", str(out)])
    (found,) = json.loads(out.read_text())["rows"]
    assert [one["distance"] for one in found["distances"]] == [0, 1, 2]
    _, texts = real_models.load(Namespace(model=sources[1], novels=sources[3], enwik8=None))
    ids = texts.read("novels")[0].ids
    # The third and the fourth window, without memory and with that of the two windows before.
    for number, start in ((0, lambda end: end - 1), (2, lambda end: end - 3)):
        losses = []
        for end in (3, 4):
            part = torch.from_numpy(ids[start(end) * 32 : end * 32 + 1].astype(np.int64))[None]
            losses.append(
                with_row(base, row)(part[:, :-1], targets=part[:, 1:], return_losses=True).token_losses[0, -32:]
            )
        expected = float(torch.cat(losses).detach().mean())
        assert found["distances"][number]["documents"][0] == pytest.approx(expected, abs=1e-5)
    gains = np.subtract(found["distances"][0]["documents"], found["distances"][1]["documents"])
    assert found["distances"][1]["gain"] == pytest.approx(gains.mean())
    with pytest.raises(SystemExit):
        real_models.main(["distance", *sources, "--rows", row.name, "--distances", "9", "--out", str(out)])


@pytest.mark.usefixtures("_short")
def test_cost(sources: list[str], tmp_path: Path) -> None:
    out = tmp_path / "cost.json"
    real_models.main(["cost", *sources, "--length", "100", "--batches", "1", "3", "--out", str(out)])
    rows = json.loads(out.read_text())["rows"]
    assert [row["name"] for row in rows] == ["plain 32", "kv 32 keep 24 sinks 4"]
    assert [(one["documents"], one["tokens"]) for one in rows[1]["reading"]] == [(1, 100), (3, 300)]
    assert all(one["microseconds_per_token"] > 0 for row in rows for one in row["reading"])
    assert rows[1]["state_floats"] > rows[0]["state_floats"] == 0


@pytest.mark.usefixtures("_short")
def test_train(sources: list[str], tmp_path: Path) -> None:
    out = tmp_path / "fine_tuned.json"
    plan = ["--tokens", "256", "--rate-tokens", "128", "--step-tokens", "128", "--sequence-tokens", "64"]
    plan += ["--rates", "1e-3", "1e-2", "--compile", "off", "--train-tokens", "100000"]
    real_models.main(["train", *sources, *plan, "--out", str(out)])
    result = json.loads(out.read_text())
    assert result["plan"]["rates"] == [1e-3, 1e-2]
    assert result["training_text"]["documents"] == 2
    plain_row, kv_row, carry = result["rows"]
    assert "exchanged" not in plain_row
    assert set(kv_row["gains"]) - set(carry["gains"]) == {"memory_added_afterwards"}
    read_as = {row["name"] for row in plain_row["base_read_as"]}
    assert {gain["than"] for gain in carry["gains"].values()} <= read_as
    assert [row["name"] for row in carry["base_read_as"]] == ["plain 32"]
    assert kv_row["memory_alone"]["than"] == "kv 32 keep 24 sinks 4, exchanged"
    assert kv_row["exchanged"]["documents"]["nll"] != kv_row["documents"]["nll"]
    for row in result["rows"]:
        assert row["training"]["tokens"] == 256
        assert row["training"]["learning_rate"] == min(row["tries"], key=lambda run: run["valid"])["learning_rate"]
    parts = []
    for name in ("carry", "plain 32"):
        parts.append(str(tmp_path / f"{name}.json"))
        real_models.main(["train", *sources, *plan, "--rows", name, "--out", parts[-1]])
    real_models.main(["join", "--parts", *parts, "--out", str(tmp_path / "joined.json")])
    joined = json.loads((tmp_path / "joined.json").read_text())
    assert [row["name"] for row in joined["rows"]] == ["plain 32", "carry"]
    assert joined["rows"][1]["gains"] == carry["gains"]


@pytest.mark.usefixtures("_short")
def test_stopped_training_is_no_row(
    sources: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped = TrainOutcome(finished=False, steps=1, tokens=128, history=[], interrupted=True)
    monkeypatch.setattr(real_models, "train", lambda *_args, **_options: stopped)
    out = tmp_path / "fine_tuned.json"
    plan = ["--tokens", "256", "--sequence-tokens", "64", "--rates", "1e-3"]
    with pytest.raises(SystemExit) as exited:
        real_models.main(["train", *sources, *plan, "--out", str(out)])
    assert exited.value.code == 2
    assert "Stopped after 128 of 256 tokens" in capsys.readouterr().err
    assert not out.exists()


def test_fine_tuned_base_is_read_without_its_memory(base: LlamaForCausalLM) -> None:
    model = with_row(base, Row("carry", CarryConfig(window=32)))
    trained = real_models.base_of(model, base)
    assert trained.state_dict().keys() == base.state_dict().keys()


def test_missing_text_is_one_sentence(sources: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        real_models.main(["score", *sources, "--corpora", "enwik8", "--out", str(tmp_path / "untrained.json")])
    assert stopped.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1] == "Error: The corpus 'enwik8' has no text: use --enwik8."


def test_code_is_sampled_evenly_from_long_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real_rows, "LENGTHS", {"code": 9})
    monkeypatch.setattr(real_rows, "MOST_DOCUMENTS", 3)
    documents = [book("short", 9), *(book(str(index), 10) for index in range(9))]
    monkeypatch.setattr(real_rows, "read_text", lambda *_: (documents, "abc"))
    texts = real_rows.Texts(tokenizer=None)
    assert [one.name for one in texts.read("code")] == ["0", "4", "8"]
    assert texts.checksums == {"code": "abc"}


def test_sample_of_books_is_fixed_and_fits() -> None:
    books = [book(str(index), 10) for index in range(9)]
    chosen = real_models.sample_books(books, 45)
    assert [one.name for one in chosen] == [one.name for one in real_models.sample_books(books, 45)]
    assert len(chosen) == 4


def book(name: str, length: int) -> TokenizedDocument:
    return TokenizedDocument(name, np.zeros(length, dtype=np.int32), length, 4 * length, 4 * length)


def test_gains_over_rows_trained_without_memory() -> None:
    """`join` compares a memory with the first row's weights where these were read as the rival, and with other rows."""

    def row(name: str, loss: float, **more: Any) -> dict[str, Any]:
        recurrence = NoRecurrence(window=300).to_dict()
        return {"name": name, "recurrence": recurrence, "documents": {"nll": [loss, 2 * loss]}, **more}

    sizes = {"names": ["a", "b"], **{key: [100, 200] for key in ("tokens", "words", "characters", "bytes")}}
    common = {"documents": sizes, "plan": {}, "training_text": {}}
    memory = row("carry", 200.0, rivals={"same_window": "plain 300", "equal_cost_window": "plain 301"})
    parts = [row("plain 8192", 150.0), memory, row("plain 300", 300.0, base_read_as=[])]
    found = real_models.join([{**common, "rows": [one]} for one in parts])["rows"]
    assert [one["name"] for one in found] == ["plain 300", "carry", "plain 8192"]
    joined = found[1]
    assert set(joined["gains"]) == {"same_window", "trained plain 8192"}  # plain 301 was not read
    assert joined["gains"]["same_window"]["gain"] == pytest.approx(1 - math.exp(-1))
    assert joined["gains"]["trained plain 8192"]["gain"] == pytest.approx(1 - math.exp(0.5))


def test_parts_of_different_plans_are_not_joined() -> None:
    part = {"documents": {}, "plan": {"tokens": 1}, "training_text": {}, "rows": []}
    with pytest.raises(UserError, match="differ in 'plan'"):
        real_models.join([part, {**part, "plan": {"tokens": 2}}])
