"""Every experiment, run at a size of next to nothing: results, tables and pages."""

import json
from pathlib import Path
from typing import Any

import pytest

from recurrify.results import load_result
from recurrify_papers.experiment import experiments, run_experiments
from recurrify_papers.sizes import SIZES, Size
from support.commands import invoke

NAMES = [name for name in experiments() if name != "unfamiliar"]
"""`unfamiliar` needs a size that pretrains its base."""


def rows(root: Path, name: str, **where: Any) -> list[dict[str, Any]]:
    found = load_result(root / "tiny" / f"{name}.json")["rows"]
    return [row for row in found if all(row.get(key) == value for key, value in where.items())]


@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_writes_a_whole_result(done: Path, name: str) -> None:
    result = load_result(done / "tiny" / f"{name}.json")
    assert result["missing"] == []
    assert result["rows"] or result["texts"]
    assert result["provenance"]["config"]["size"] == "tiny"
    assert result["title"] == experiments()[name].title


def test_runs_are_shared_and_not_repeated(done: Path, mini: Size, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recurrify_papers.runner.call", lambda *_: pytest.fail("a run was repeated"))
    before = load_result(done / "tiny" / "table2.json")["rows"]
    run_experiments([experiments()["table2"]], mini, done, lambda text: None)
    assert load_result(done / "tiny" / "table2.json")["rows"] == before


def test_table2_compares_with_published_values(done: Path) -> None:
    where = {"label": "recurrent, as in the paper", "overlap": 0, "split": "test"}
    (carry,) = rows(done, "table2", metric="perplexity_per_word", **where)
    assert carry["published"] == 133.02
    assert carry["low"] < carry["value"] < carry["high"]
    (gain,) = rows(done, "table2", metric="gain", **where)
    (plain,) = rows(done, "table2", metric="perplexity_per_word", label="plain windows", overlap=0, split="test")
    assert gain["value"] == pytest.approx(1 - carry["value"] / plain["value"])
    assert gain["published"] == pytest.approx(1 - 133.02 / 147.71)
    assert {row["overlap"] for row in rows(done, "table2", label="plain windows")} == {0, 3}


def test_best_mechanism_is_the_variant_that_validates_best(done: Path) -> None:
    values = {row["label"]: row["value"] for row in rows(done, "variants", metric="perplexity_per_token")}
    winner = min(("tail-1", "tail-4"), key=lambda name: values[name])
    config = load_result(done / "tiny/runs/books-best-w8-o0-s0/result.json")["provenance"]["config"]
    assert config["recurrence"]["tail"] == int(winner.removeprefix("tail-"))


def test_figure5_counts_flops_of_overlap(done: Path) -> None:
    (bare,) = rows(done, "figure5", metric="perplexity_per_word", model="plain", window=8, overlap=0)
    (shared,) = rows(done, "figure5", metric="perplexity_per_word", model="plain", window=8, overlap=3)
    assert shared["flops"] / bare["flops"] == pytest.approx(8 / 5)


def test_xlnet_is_scored_on_the_same_tokens(done: Path) -> None:
    runs = done / "tiny" / "runs"
    tokens = {
        load_result(runs / name / "result.json")["evaluation"]["tokens"]
        for name in ("wiki-xlnet-w8-o0-s0-lr0.01-test-o0", "wiki-plain-w8-o0-s0-test-o0")
    }
    assert len(tokens) == 1
    (xlnet,) = rows(done, "thesis-enwik8", label="XLNet with its own memory", metric="bits_per_byte", split="test")
    assert xlnet["value"] > 0


def test_continuations_and_topics_cover_every_model(done: Path) -> None:
    text = load_result(done / "tiny/continuations.json")["texts"][0]
    assert set(text) == {
        "context",
        "topic",
        "plain windows",
        "recurrent, as in the paper",
        "recurrent, best found here",
    }
    assert {row["model"] for row in rows(done, "topics", metric="divergence")} == {"plain", "carry", "best"}
    assert {row["published"] for row in rows(done, "topics", metric="divergence", model="carry")} == {0.5331}


def test_cost_metrics_and_convergence_have_rows(done: Path) -> None:
    assert rows(done, "thesis-cost", metric="training tokens per second, ratio")[0]["value"] > 0
    assert {row["metric"] for row in rows(done, "thesis-metrics")} >= {"accuracy", "f1_macro", "auc_roc"}
    assert rows(done, "thesis-convergence", metric="training tokens")


def test_exchanged_memories_are_a_control(done: Path) -> None:
    found = rows(done, "mechanisms", metric="gain by memory", dataset="books", split="test")
    assert {row["label"] for row in found} >= {"carry-1", "memory-tokens-2"}


def test_plain_windows_are_matched_to_the_cost_of_memories(done: Path) -> None:
    matched = [
        row for row in rows(done, "mechanisms", metric="perplexity_per_word") if "costs as" in row.get("note", "")
    ]
    assert matched
    assert rows(done, "mechanisms", metric="gain over cheaper rival")


def test_question_answering_reports_both_kinds_and_their_difference(done: Path) -> None:
    found = {row["label"]: row for row in rows(done, "table3", metric="f1", split="test")}
    assert found["difference"]["value"] == pytest.approx(found["recurrent"]["value"] - found["disjoint"]["value"])
    assert found["difference"]["published"] == pytest.approx(0.95)
    assert found["recurrent"]["seeds"] == 2


def test_report_has_a_page_for_each_experiment(done: Path, tmp_path: Path) -> None:
    picture = tmp_path / "picture.png"
    invoke("experiment", "report", "--root", done, "--out", tmp_path, "--picture", picture)
    assert picture.read_bytes()[:4] == b"\x89PNG"
    index = (tmp_path / "index.html").read_text(encoding="utf-8")
    for name in NAMES:
        assert f"{name}-tiny.html" in index
    page = (tmp_path / "table2-tiny.html").read_text(encoding="utf-8")
    assert page.index("published: 9.9") < page.index("perplexity per word")
    assert "133.0" in page


@pytest.mark.parametrize("size", SIZES.values(), ids=list(SIZES))
@pytest.mark.parametrize("name", list(experiments()))
def test_every_run_that_is_needed_is_declared(name: str, size: Size) -> None:
    runs = experiments()[name].runs(size)
    names = {run.name for run in runs}
    assert all(need in names for run in runs for need in run.needs)
    for run in runs:
        json.dumps(dict(run.settings))
        assert run.function.startswith("recurrify_papers.")


def test_every_size_carries_something_between_windows() -> None:
    for size in SIZES.values():
        tokens = size.training["windows"] * size.window
        assert all(round(tokens / window) >= 2 for window in size.window_sizes)
