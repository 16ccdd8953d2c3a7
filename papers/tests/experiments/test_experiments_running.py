"""Whole experiments at a size of next to nothing: rows against what the runs' own scores say."""

import json
import statistics
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recurrify.errors import UserError
from recurrify.results import load_result, save_result
from recurrify_papers.experiments import pool, thesis, variants
from recurrify_papers.experiments.beyond import NAMES as BEYOND
from recurrify_papers.experiments.catalogue import EXPERIMENTS, tuning_unit
from recurrify_papers.experiments.lab import Lab
from recurrify_papers.experiments.running import origins, run_experiments
from recurrify_papers.experiments.sizes import SIZES, Size
from recurrify_papers.experiments.variants import Variant
from support.commands import invoke
from support.made_up_runs import draw_few_samples

RUNNABLE = [name for name, one in EXPERIMENTS.items() if one.later is None and name not in BEYOND]


CANDIDATES = {f"tail-{tail}": Variant("best", {"mechanism": "tail", "tail": tail}) for tail in (1, 4)}
"""For the best mechanism, in place of variants for which windows of 8 tokens and 3 layers are too few."""


@pytest.fixture(scope="module")
def done(size: Size, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Everything, run once."""
    choosing = replace(size, best_from=tuple(CANDIDATES))
    lab = Lab(choosing, tmp_path_factory.mktemp("experiments"), lambda text: None)
    fitting = {name: one for name, one in variants.TRIES.items() if one.kind != "best" and name != "carry-layer-4"}
    with pytest.MonkeyPatch.context() as patch:
        draw_few_samples(patch)  # thousands take as long as all the training
        patch.setattr(variants, "TRIES", fitting | CANDIDATES)
        run_experiments(RUNNABLE, lab)
        yield lab


def result(lab: Lab, name: str) -> dict[str, Any]:
    return load_result(lab.folder / f"{name}.json")


def test_every_experiment_leaves_a_whole_result(done: Lab) -> None:
    for name in RUNNABLE:
        found = result(done, name)
        assert found["missing"] == [], name
        assert found["rows"], name
        assert found["provenance"]["config"]["size"] == "tiny"
        runs = {run for row in found["rows"] for run in row.get("runs", [])}
        assert all((done.folder / "runs" / f"{run}.json").is_file() for run in runs)
        assert sorted(run for origin in found["trained"] for run in origin["runs"]) == sorted(runs)


def test_runs_from_elsewhere_are_told_apart_by_where_they_were_trained(tmp_path: Path) -> None:
    for name, commit, gpu in (("one", "a", "H"), ("two", "b", None), ("three", "a", "H")):
        made = {"git": {"commit": commit, "dirty": None}, "machine": {"gpu": gpu, "cpu": "C"}}
        save_result(tmp_path / "runs" / f"{name}.json", {"provenance": {**made, "libraries": {"torch": "2"}}})
    found = origins(tmp_path, [{"runs": ["one", "gone"]}, {"runs": ["one", "two", "three"]}, {}])
    assert [(one["commit"], one["device"], one["runs"]) for one in found] == [
        ("a", "H", ["one", "three"]),
        ("b", "C", ["two"]),
    ]


def test_each_kind_takes_the_rate_that_validated_best(done: Lab) -> None:
    rows = result(done, "learning-rates")["rows"]
    for kind in ("plain", "carry", "best"):
        own = [row for row in rows if row["kind"] == kind]
        assert [row["learning_rate"] for row in own] == [1e-3, 1e-2]
        best = min(own, key=lambda row: row["valid_loss"])
        assert [row for row in own if row["chosen"]] == [best]
        evaluation = tuning_unit(done, kind, best["learning_rate"]).evaluation("valid", 0)
        assert evaluation is not None
        assert best["valid_loss"] == pytest.approx(evaluation.nll.sum() / evaluation.tokens.sum())
        assert done.learning_rate(kind) == best["learning_rate"]


def test_rows_average_their_seeds_and_gain_against_plain(done: Lab) -> None:
    rows = {(row["kind"], row["overlap"]): row for row in result(done, "table2")["rows"]}
    assert set(rows) == {(kind, o) for kind in ("plain", "carry", "best") for o in (0, 3)} | {("plain", 5)}
    carry, plain = rows["carry", 0], rows["plain", 0]
    assert carry["seeds"] == plain["seeds"] == [0, 1]
    assert rows["carry", 3]["seeds"] == [0]
    per_seed = {
        kind: [done.unit("books", kind, seed=seed).evaluation("test", 0).perplexity_per_word for seed in (0, 1)]
        for kind in ("plain", "carry")
    }
    assert carry["scores"]["test"]["per_seed"] == pytest.approx(per_seed["carry"])
    assert carry["scores"]["test"]["perplexity_per_word"] == pytest.approx(statistics.mean(per_seed["carry"]))
    assert carry["scores"]["test"]["spread"] == pytest.approx(statistics.stdev(per_seed["carry"]))
    low, high = carry["scores"]["test"]["interval"]
    assert low < carry["scores"]["test"]["perplexity_per_word"] < high
    expected = 1 - statistics.mean(per_seed["carry"]) / statistics.mean(per_seed["plain"])
    assert carry["gain"]["test"]["relative_gain"] == pytest.approx(expected)
    assert carry["gain"]["test"]["seeds"] == 2
    assert plain["gain"] is None
    assert carry["published"] == {"valid": 155.27, "test": 133.02}
    assert rows["best", 0]["published"] is None


def test_every_setting_scores_the_same_tokens(done: Lab) -> None:
    for name, split in (("table2", "test"), ("figure5", "valid")):
        tokens = set()
        for row in result(done, name)["rows"]:
            for file in row["scores"][split]["files"]:
                tokens.add(load_result(done.folder / file)["evaluation"]["tokens"])
            assert row["scores"][split]["tokens"] in tokens
        assert len(tokens) == 1


def test_window_sizes_keep_the_length_of_sequences(done: Lab) -> None:
    rows = result(done, "figure4")["rows"]
    assert [(row["window"], row["kind"]) for row in rows] == [(w, k) for w in (6, 8, 12) for k in ("plain", "carry")]
    for row in rows:
        config = load_result(done.folder / "runs" / f"{row['runs'][0]}.json")["provenance"]["config"]
        assert config["windows"] * config["recurrence"]["window"] == 24


def test_the_frontier_has_plain_points_at_other_overlaps_and_their_price(done: Lab) -> None:
    rows = {(r["kind"], r["window"], r["overlap"]): r for r in result(done, "figure5")["rows"]}
    for window in (6, 8, 12):
        ratio = rows["plain", window, 3]["flops_per_token"] / rows["plain", window, 0]["flops_per_token"]
        assert ratio == pytest.approx(window / (window - 3))
        assert rows["carry", window, 0]["flops_per_token"] == rows["plain", window, 0]["flops_per_token"]


def test_variants_differ_in_what_their_names_say(done: Lab) -> None:
    def config(name: str) -> dict[str, Any]:
        return load_result(done.folder / "runs" / f"books-try-{name}-w8-o0-s0.json")["provenance"]["config"]

    assert config("carry-standardized")["recurrence"]["standardize"]
    assert config("carry-every-layer")["recurrence"]["insert_layer"] == "all"
    assert config("carry-rate-x20")["added_learning_rate"] == pytest.approx(20 * done.learning_rate("carry"))
    assert config("carry")["added_learning_rate"] == pytest.approx(2 * done.learning_rate("carry"))
    assert config("plain")["added_learning_rate"] is None
    assert config("carry-random-start")["recurrence"]["neutral_start"] is False
    assert config("carry-5-windows")["windows"] == 5


def test_the_candidate_that_validates_best_is_the_best_mechanism_everywhere(done: Lab) -> None:
    rows = {row["label"]: row for row in result(done, "variants")["rows"]}
    losses = {name: rows[name]["scores"]["valid"]["perplexity_per_token"] for name in CANDIDATES}
    winner = min(losses, key=lambda name: losses[name])
    assert [name for name, row in rows.items() if row["chosen"]] == [winner]
    for corpus in ("books", "wiki"):
        config = load_result(done.folder / "runs" / f"{corpus}-best-w8-o0-s0.json")["provenance"]["config"]
        assert config["recurrence"]["tail"] == CANDIDATES[winner].recurrence["tail"]


def test_the_best_mechanism_is_not_taken_before_it_is_chosen(lab: Lab) -> None:
    lab.size = replace(lab.size, best_from=tuple(CANDIDATES))
    with pytest.raises(UserError, match="run `recurrify experiment run variants --size tiny` first"):
        lab.unit("books", "best")


def test_xlnet_stands_beside_the_others_on_the_same_tokens(done: Lab) -> None:
    rows = {(row["kind"], row["overlap"]): row for row in result(done, "thesis-enwik8")["rows"]}
    one, other = (load_result(done.folder / rows[kind, 0]["scores"]["test"]["files"][0]) for kind in ("xlnet", "plain"))
    assert one["evaluation"]["tokens"] == other["evaluation"]["tokens"]
    assert rows["xlnet", 0]["flops_per_token"] is None
    assert rows["xlnet", 0]["gain"] == {"valid": None, "test": None}


def test_xlnet_is_shown_at_the_candidate_rate_that_validates_best(done: Lab) -> None:
    def loss(rate: str) -> float:
        path = done.folder / "scores" / f"wiki-xlnet-w8-o0-s0-lr{rate}-valid-o0.json"
        return float(load_result(path)["evaluation"]["perplexity_per_token"])

    (row,) = [row for row in result(done, "thesis-enwik8")["rows"] if row["kind"] == "xlnet"]
    best = min(("0.001", "0.01"), key=loss)
    assert row["runs"] == [f"wiki-xlnet-w8-o0-s0-lr{best}"]
    assert f"learning rate {best}, the best on validation of 0.001, 0.01" in row["label"]


def test_tokens_to_a_loss_come_from_runs_that_are_validated_often(done: Lab) -> None:
    rows = result(done, "thesis-convergence")["rows"]
    assert rows
    for kind, side in (("plain", "plain"), ("carry", "recurrent")):
        run = load_result(done.folder / "runs" / f"wiki-curve-{kind}-w8-o0-s0.json")
        losses = [entry["eval_loss"] for entry in run["history"] if "eval_loss" in entry]
        assert len(losses) >= 3  # of 300 tokens, every 100; the usual run has two
        assert any(row[side] is not None for row in rows)


def test_topics_and_metrics_have_a_row_for_each_kind(done: Lab) -> None:
    for name in ("topics", "thesis-metrics"):
        assert [row["kind"] for row in result(done, name)["rows"]] == ["plain", "carry", "best"]
    text = result(done, "continuations")["rows"][0]
    assert set(text["continuations"]) == {"plain", "carry", "best"}
    words = text["topic"].split(", ")  # of the training text, which has words of its own only
    assert len(words) == 4
    assert all(word.startswith("w") for word in words)


def test_what_starts_from_no_base_waits_for_none(done: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lab, "make_base", lambda lab: pytest.fail("a base was made"))
    run_experiments(["slides-lengths"], done)
    assert result(done, "slides-lengths")["differences"] == list(EXPERIMENTS["slides-lengths"].differences(done))
    assert result(done, "table2")["differences"] == ["everything"]


@pytest.mark.parametrize("size", list(SIZES.values()), ids=list(SIZES))
def test_every_size_has_windows_between_which_something_is_carried(size: Size) -> None:
    tokens = size.training["windows"] * size.window
    assert all(round(tokens / window) >= 2 for window in size.window_sizes)


def test_what_was_measured_is_not_measured_again(done: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    def measured_again(*_: Any, **__: Any) -> None:
        raise AssertionError

    said: list[str] = []
    monkeypatch.setattr(thesis, "measure_cost", measured_again)
    before = (done.folder / "thesis-cost.json").read_bytes()
    assert run_experiments(["thesis-cost"], replace(done, say=said.append)) == [done.folder / "thesis-cost.json"]
    assert (done.folder / "thesis-cost.json").read_bytes() == before
    assert f"delete {done.folder / 'thesis-cost.json'} to measure again" in said[-1]


def test_the_thesis_is_not_told_to_have_the_papers_settings(done: Lab) -> None:
    for name, data in (("thesis-enwik8", "enwik8"), ("table1", "WikiText-103 (raw); PG-19, first 1,250 training")):
        found = result(done, name)
        lines = {line["name"]: line for line in found["hyperparameters"]}
        assert lines["data"]["published"].startswith(data)
        assert (lines["window"]["published"] == "not printed") == (name == "thesis-enwik8")
        # XLNet's own settings stand in its row.
        assert found["provenance"]["config"]["training"]["recurrence"]["mechanism"] != "xlnet"


def test_a_second_run_trains_nothing(done: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "do_unit", lambda *_: pytest.fail("done again"))
    before = (done.folder / "table2.json").read_text(encoding="utf-8")
    run_experiments(["table2"], done)
    assert load_result(done.folder / "table2.json")["rows"] == json.loads(before)["rows"]


def test_the_report_reads_what_the_runs_wrote(done: Lab, tmp_path: Path) -> None:
    said = invoke("experiment", "report", "--root", done.root, "--out", tmp_path)
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert str(tmp_path / "index.html") in said
    for name in RUNNABLE:
        assert EXPERIMENTS[name].title in page
