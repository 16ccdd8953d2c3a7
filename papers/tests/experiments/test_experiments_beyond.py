"""Memories beside each other and beside overlap, from made-up runs; and sizes, names and failures of all that goes
beyond the papers."""

from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from recurrify.errors import UserError
from recurrify.evaluate.flops import full_flops_per_token
from recurrify.modeling.loading import load_model
from recurrify.results import load_result
from recurrify_papers.commands.experiment import _chosen, _narrowed, _size
from recurrify_papers.experiments import (
    beyond,
    beyond_frozen,
    beyond_mechanisms,
    beyond_rivals,
    beyond_rotary,
    beyond_tokens,
)
from recurrify_papers.experiments import lab as lab_module
from recurrify_papers.experiments.beyond import NAMES as BEYOND
from recurrify_papers.experiments.catalogue import EXPERIMENTS, Experiment, Stage
from recurrify_papers.experiments.lab import Lab
from recurrify_papers.experiments.pool import Outcome
from recurrify_papers.experiments.running import run_experiments
from recurrify_papers.experiments.sizes import SIZES
from recurrify_papers.experiments.unit import Unit
from support import made_up_runs
from support.made_up_runs import BEST_RATE, LOSSES, by_name, perplexity, pretend

pytestmark = pytest.mark.usefixtures("few_samples")


# ---- mechanisms ------------------------------------------------------------------------------------------


def test_mechanisms_take_the_rate_that_validates_best(lab: Lab, rounds: list[list[Unit]]) -> None:
    rows, missing = beyond_mechanisms.mechanism_rows(lab)
    assert missing == []
    assert {unit.settings.data for unit in rounds[0]} == {lab.source("wiki")}
    assert len(rounds[0]) == 8  # two rates of plain windows and of three mechanisms
    found = by_name(rows, corpus="books")
    # Overlap 1 is what the memory tokens' cost pays for, overlap 3 what the tail's does.
    assert {o: found["plain", o]["matches"] for o in (0, 1, 3, 5)} == {
        0: [],
        1: ["memory-tokens-2"],
        3: ["tail-3"],
        5: [],
    }
    assert set(found) == {("plain", o) for o in (0, 1, 3, 5)} | {
        (name, 0) for name in ("carry-1", "tail-3", "memory-tokens-2", "plain-untrained", "tail-3-untrained")
    }
    assert found["carry-1", 0]["runs"] == [f"books-beyond-carry-1-w8-o0-s{seed}-lr0.01" for seed in (0, 1)]
    assert found["tail-3", 0]["runs"] == [f"books-beyond-tail-3-w8-o0-s{seed}-lr0.01" for seed in (0, 1)]
    # On wiki text the run that was chosen is the row's own.
    (run,) = by_name(rows, corpus="wiki")["memory-tokens-2", 0]["runs"]
    assert run in [unit.name for unit in rounds[0]]
    memory = found["memory-tokens-2", 0]
    assert memory["runs"] == ["books-beyond-memory-tokens-2-w8-o0-s0-lr0.01"]
    assert (memory["learning_rate"], memory["added_learning_rate"]) == (BEST_RATE, 2 * BEST_RATE)
    assert [one["learning_rate"] for one in memory["rates"]] == [1e-3, 1e-2]
    # The tail has both seeds, the memory tokens have one; overlap 5 is one of the usual.
    assert [found["plain", o]["seeds"] for o in (1, 3, 5)] == [[0], [0, 1], [0, 1]]


def test_rows_tell_what_a_memory_takes_and_gains(lab: Lab, rounds: list[list[Unit]]) -> None:
    found = by_name(beyond_mechanisms.mechanism_rows(lab)[0], corpus="wiki")
    memory = found["memory-tokens-2", 0]
    assert memory["scores"]["test"]["perplexity_per_word"] == pytest.approx(perplexity(2.95))
    assert memory["gain"]["test"]["relative_gain"] == pytest.approx(1 - perplexity(2.95) / perplexity(3.0))
    assert (memory["state_floats"], memory["extra_flops_per_token"]) == (16, pytest.approx(200))
    assert memory["extra_share"] == pytest.approx(0.2)
    assert memory["memory_gain"]["relative_gain"] == pytest.approx(1 - perplexity(2.95) / perplexity(2.99))
    assert memory["memory"]["state_floats"] == 16
    # Overlap 3 costs 8 / 5 of none, but for the head.
    assert found["plain", 3]["extra_share"] == pytest.approx(0.54)
    assert found["plain", 5]["gain"]["test"]["relative_gain"] == pytest.approx(1 - perplexity(2.85) / perplexity(3.0))
    assert found["carry-1", 0]["scores"]["test"]["spread"] > 0


def test_the_rival_is_the_best_that_costs_no_more(lab: Lab, rounds: list[list[Unit]]) -> None:
    found = by_name(beyond_mechanisms.mechanism_rows(lab)[0], corpus="books")
    # Overlap 1 costs 1129 and overlap 2 1300, the memory tokens 1200; overlap 3 costs 1540 and overlap 4 1900, the
    # tail 1700.
    rival = found["memory-tokens-2", 0]["rival"]
    assert (rival["overlap"], rival["seeds"]) == (1, 1)
    assert rival["relative_gain"] == pytest.approx(1 - perplexity(2.95) / perplexity(2.97))
    rival = found["tail-3", 0]["rival"]
    assert (rival["overlap"], rival["seeds"]) == (3, 2)
    both = [perplexity(2.9) + perplexity(2.901), perplexity(2.91) + perplexity(2.911)]
    assert rival["relative_gain"] == pytest.approx(1 - both[0] / both[1])
    assert found["carry-1", 0]["rival"]["overlap"] == 0
    assert found["plain", 3]["rival"] is None


def test_rows_are_ranked_on_the_seeds_that_all_have(
    lab: Lab, rounds: list[list[Unit]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here the second seed is far better. Plain windows have it without overlap, at the tail's and at the usual."""
    monkeypatch.setattr(made_up_runs, "SEED", -1.0)
    found = by_name(beyond_mechanisms.mechanism_rows(lab)[0], corpus="books")
    bare, memory, tail = found["plain", 0], found["memory-tokens-2", 0], found["tail-3", 0]
    assert bare["scores"]["test"]["perplexity_per_word"] < found["plain", 1]["scores"]["test"]["perplexity_per_word"]
    assert memory["rival"]["overlap"] == 1
    assert {tuple(row["shared"]["seeds"]) for row in found.values()} == {(0,)}
    assert bare["shared"]["perplexity_per_word"]["test"] == pytest.approx(perplexity(3.0))
    assert tail["shared"]["perplexity_per_word"]["test"] == pytest.approx(perplexity(2.9))
    assert tail["shared"]["gain"]["test"]["relative_gain"] == pytest.approx(1 - perplexity(2.9) / perplexity(3.0))
    assert (tail["shared"]["gain"]["test"]["seeds"], tail["gain"]["test"]["seeds"]) == (1, 2)


@pytest.mark.parametrize(
    ("carry", "reached"), [(2.98, True), (2.95, None), (2.94, False), (3.01, True)], ids=["", "just", "no", "worse"]
)
def test_the_best_by_validation_is_held_against_twice_the_papers_gain(
    carry: float, reached: bool | None, lab: Lab, rounds: list[list[Unit]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory tokens would be better, but have one seed of two."""
    monkeypatch.setitem(LOSSES, "carry", carry)
    monkeypatch.setitem(LOSSES, "memory_tokens", 2.5)
    found = by_name(beyond_mechanisms.mechanism_rows(lab)[0], corpus="books")
    assert [key for key, row in found.items() if row["chosen"]] == [("tail-3", 0)]
    held = found["tail-3", 0]["beyond_papers"]
    gains = [1 - perplexity(loss) / perplexity(3.0) for loss in (2.9, carry)]
    assert held["relative_gain"] == pytest.approx(gains[0] - 2 * gains[1], abs=1e-9)
    assert (held["seeds"], held["times"]) == (2, 2.0)
    if carry != 2.95:  # there the two are nearly the same
        assert held["reached"] is reached
    # Overlap 3 costs 1540 and overlap 5 2500, the tail 1700.
    beaten = found["tail-3", 0]["beaten_by"]
    assert [(one["label"], one["overlap"], one["seeds"]) for one in beaten] == [("plain", 5, 2)]
    assert beaten[0]["relative_gain"] == pytest.approx(1 - perplexity(2.85) / perplexity(2.9))


def test_memories_are_scored_as_they_start_too(lab: Lab, rounds: list[list[Unit]]) -> None:
    lab.size = replace(lab.size, beyond=replace(lab.size.beyond, untrained=("plain", "memory-tokens-2")))
    rows, missing = beyond_mechanisms.mechanism_rows(lab)
    assert missing == []
    found = by_name(rows, corpus="wiki")
    plain, memory = found["plain-untrained", 0], found["memory-tokens-2-untrained", 0]
    assert (plain["kind"], memory["kind"]) == ("plain", "memory_tokens")
    assert plain["runs"] == ["wiki-beyond-plain-untrained-w8-o0-s0-lr0.01"]
    run = next(unit for round in rounds for unit in round if unit.name == memory["runs"][0])
    assert run.settings.recurrence["tokens"] == 2
    assert run.settings.max_tokens == 1
    assert run.settings.warmup_steps >= 1  # so that its one step has a learning rate of nothing
    assert memory["memory_gain"]["seeds"] == 1
    assert plain["memory_gain"] is None
    assert memory["rates"] == []
    assert memory["gain"]["test"]["relative_gain"] == pytest.approx(1 - perplexity(2.95) / perplexity(3.0))
    assert memory["shared"]["gain"]["test"]["relative_gain"] == memory["gain"]["test"]["relative_gain"]
    assert {row["label"] for row in found.values() if not row["trained"]} == {plain["label"], memory["label"]}
    # They are no rivals, and cost the others no seed.
    assert (memory["rival"], memory["chosen"], plain["chosen"]) == (None, False, False)
    tail = found["tail-3", 0]
    assert "untrained" not in tail["rival"]["label"]
    assert [key for key, row in found.items() if row["chosen"]] == [("tail-3", 0)]


def test_what_the_aims_are_judged_by_is_run_first_on_both_texts(lab: Lab, rounds: list[list[Unit]]) -> None:
    lab.size = replace(lab.size, beyond=replace(lab.size.beyond, ours="memory-tokens-2"))
    beyond_mechanisms.mechanism_rows(lab)
    mechanisms = [unit.settings.recurrence["mechanism"] for unit in rounds[1]]
    # Plain windows and the paper's mechanism have two seeds, ours has one; then come tails and what is not trained,
    # and last the tails' other seeds.
    once = ["none"] * 2 + ["carry"] * 2 + ["memory_tokens"]
    assert mechanisms[:10] == once * 2
    assert set(mechanisms[10:-2]) == {"tail", "none"}
    assert [(unit.settings.recurrence["mechanism"], unit.settings.seed) for unit in rounds[1][-2:]] == [("tail", 1)] * 2
    assert {unit.settings.seed for unit in rounds[1][10:-2]} == {0}


def test_longer_windows_are_rivals_too(lab: Lab, rounds: list[list[Unit]]) -> None:
    lab.size = replace(lab.size, beyond=replace(lab.size.beyond, longer=("plain", "tail-3"), longer_window=16))
    rows, missing = beyond_mechanisms.mechanism_rows(lab)
    assert missing == []
    found = by_name(rows, corpus="books")
    assert {key for key in found if key[0].endswith("w16")} == {
        *(("plain-w16", overlap) for overlap in (0, 2, 3, 5, 6)),
        ("tail-3-w16", 0),
    }
    # Two of them beside the usual ones, as dear as memories in windows of 8 and of 16.
    assert [found["plain-w16", overlap]["matches"] for overlap in (2, 6)] == [
        ["memory-tokens-2"],
        ["tail-3", "tail-3-w16"],
    ]
    plain, memory = found["plain-w16", 0], found["tail-3-w16", 0]
    assert plain["runs"] == ["books-beyond-plain-w16-o0-s0-lr0.01"]
    assert memory["runs"] == ["books-beyond-tail-3-w16-o0-s0-lr0.01"]
    trained = next(unit.settings for round in rounds for unit in round if unit.name == plain["runs"][0])
    assert (trained.windows, lab.size.training["windows"]) == (2, 3)
    # The same loss as in the usual windows, and 50 FLOPs more.
    assert plain["gain"]["test"]["relative_gain"] == pytest.approx(0)
    assert plain["extra_flops_per_token"] == pytest.approx(50)
    assert memory["extra_flops_per_token"] == pytest.approx(750)
    assert [row["label"] for row in found.values() if row["chosen"]] == ["tail-3"]
    assert (memory["rival"]["label"], memory["rival"]["window"], memory["rival"]["overlap"]) == ("plain-w16", 16, 6)


@pytest.mark.parametrize("window", [8, 31])
def test_no_larger_overlap_is_as_cheap(lab: Lab, window: int) -> None:
    """By FLOPs counted of the models that are trained, each overlap for itself."""
    lab.size = replace(lab.size, window=window)
    names = {
        "none": {},
        "carry": {"slots": 2},
        "tail": {"tail": 3},
        "memory_tokens": {"tokens": 2},
        "lookback": {"keep": 4},
        "summary": {"tokens": 2},
        "compress": {"size": 4},
    }
    units = {
        name: lab.unit("books", "best", label=name, recurrence={"mechanism": name, **more})
        for name, more in names.items()
    }
    models = {name: load_model(lab.base(), unit.settings.recurrence)[0] for name, unit in units.items()}
    found = {name: beyond_rivals.dearest_overlap(unit, units["none"]) for name, unit in units.items()}
    costs = [full_flops_per_token(models["none"], overlap=overlap) for overlap in range(window)]
    assert found == {
        name: sum(cost <= full_flops_per_token(model) for cost in costs) - 1 for name, model in models.items()
    }
    assert found["none"] == 0
    assert found["tail"] > 0


def test_without_a_learning_rate_a_row_is_missing_and_what_failed_is_told(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def finish(lab: Lab, units: Iterable[Unit]) -> Outcome:
        for unit in units:
            if "memory-tokens-2" not in unit.name:
                pretend(unit)
        return Outcome(True, ["books-x failed"])

    monkeypatch.setattr(Lab, "finish", finish)
    rows, missing = beyond_mechanisms.mechanism_rows(lab)
    assert "books, memory-tokens-2, overlap 0" in missing
    assert "books-x failed" in missing
    assert ("tail-3", 0) in by_name(rows, corpus="books")


def test_rounds_end_where_time_does(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(Lab, "finish", lambda lab, units: Outcome(False, []))
    beyond.finish_in_turn(lab, [lambda: asked.append(1) or [], lambda: asked.append(2) or []])  # type: ignore[func-returns-value]
    assert asked == [1]


# ---- sizes and names -------------------------------------------------------------------------------------


def test_the_small_size_takes_as_many_tokens_as_is_said(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beyond, "chosen_rate", lambda tried: min(tried))
    monkeypatch.setattr(beyond_frozen, "chosen_rate", lambda tried: min(tried))
    monkeypatch.setattr(beyond_rivals, "costs", lambda unit: (1.0, 1.0))
    lab.size = replace(SIZES["small"], base="gpt2")
    units = {
        "mechanisms": [*beyond_mechanisms.rate_units(lab), *beyond_mechanisms.main_units(lab)],
        "tokens": beyond_tokens.token_units(lab),
        "starts": [
            unit
            for name in beyond_tokens.STARTS
            for seed in lab.size.seeds
            for unit in beyond_tokens.stages(lab, name, seed)
        ],
        "frozen": [*beyond_frozen.rate_units(lab), *beyond_frozen.main_units(lab)],
    }
    counts = {}
    seen: set[str] = set()
    for name, own in units.items():
        new = {unit.name: unit.settings.max_tokens or 0 for unit in own if unit.name not in seen}
        seen |= set(new)
        counts[name] = round(sum(new.values()) / 1e6)
    assert counts == {"mechanisms": 519, "tokens": 876, "starts": 153, "frozen": 206}
    monkeypatch.setattr(beyond_rotary, "positions", lambda name: 1024)
    monkeypatch.setattr(beyond_rotary, "chosen_rate", lambda tried: min(tried))
    rotary = beyond_rotary.rotary_lab(lab)
    assert rotary.size.window == 300
    own = {unit.name: unit for unit in (*beyond_rotary.rate_units(rotary), *beyond_rotary.main_units(rotary))}
    assert sum(unit.settings.max_tokens or 0 for unit in own.values()) == pytest.approx(117e6, rel=1e-3)


def test_groups_of_names_are_spelled_out_once() -> None:
    assert _chosen(["table2", "beyond", "tokens"]) == ["table2", *BEYOND]
    assert not set(_chosen(["all"])) & set(BEYOND)
    assert "table3" not in _chosen(["all"])


def test_the_model_of_rotary_can_be_named() -> None:
    assert _size("tiny", "some/model").beyond.rotary_model == "some/model"
    assert _size("small", None).beyond.rotary_model == "HuggingFaceTB/SmolLM2-135M"


def test_a_comparison_can_be_narrowed_and_keeps_what_it_is_held_against(lab: Lab, rounds: list[list[Unit]]) -> None:
    narrow = replace(lab, size=_narrowed(lab.size, ["carry-1"], ["mechanisms", "starts", "frozen"]))
    rows, missing = beyond_mechanisms.mechanism_rows(narrow)
    assert missing == []
    assert {row["label"] for row in rows} == {"plain", "plain-untrained", "carry-1", "memory-tokens-2"}
    assert not any("tail" in unit.name for units in rounds for unit in units)
    assert all("slots" not in name for name in beyond_tokens.starts(narrow))
    assert "slots" in beyond_tokens.starts(lab)
    # Both take the learning rate from the same runs.
    assert {unit.name for unit in beyond_mechanisms.rate_units(narrow)} <= {
        unit.name for unit in beyond_mechanisms.rate_units(lab)
    }
    assert _narrowed(lab.size, [], ["table2"]) is lab.size
    with pytest.raises(
        UserError, match=r"no mechanism 'tail-4' to compare at this size: choose from carry-1, tail-3, memory"
    ):
        _narrowed(lab.size, ["tail-4"], ["mechanisms"])
    with pytest.raises(UserError, match=r"--only says nothing to 'tokens': it narrows mechanisms, frozen, starts"):
        _narrowed(lab.size, ["tail-3"], ["mechanisms", "tokens"])
    with pytest.raises(UserError, match=r"--only tail-3 changes nothing in frozen: choose from memory-tokens-2\."):
        _narrowed(lab.size, ["tail-3"], ["frozen"])
    assert _narrowed(lab.size, ["tail-3"], ["frozen", "starts"]).beyond.only is not None
    told = {name: EXPERIMENTS[name].differences(narrow)[-1] for name in ("mechanisms", "frozen", "starts", "tokens")}
    assert told["mechanisms"] == "Compared are plain windows and carry-1, memory-tokens-2 alone (--only)."
    assert told["frozen"] == "Compared are plain windows and memory-tokens-2 alone (--only)."
    assert told["starts"] == told["tokens"] == beyond.differences(lab)[-1]


def test_a_run_that_failed_counts_until_it_is_done(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever round it belongs to: `experiment run` ends with these failures."""
    failure = "a ended with 'no numbers', see a.log"
    outcomes = iter([Outcome(True, [failure]), Outcome(False, []), Outcome(True, [])])
    monkeypatch.setattr(lab_module, "do_units", lambda *_: next(outcomes))
    a, b = (SimpleNamespace(name=name, is_xlnet=False) for name in "ab")
    found = []
    for units in ([a], [b], [a, b]):
        lab.finish(units)  # type: ignore[arg-type]
        found.append((lab.failures, lab.stopped))
    assert found == [([failure], False), ([failure], True), ([], False)]


def test_failures_of_later_rounds_fail_the_command(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(lab: Lab) -> Any:
        lab.failures = ["books-carry ended with 'no numbers', see its log"]
        return [{"row": "one"}], ["another"]

    experiment = Experiment(
        "late", "Late", beyond.OURS, "mechanisms", lambda lab: [], rows, Stage.NOTHING, one_recipe=False
    )
    monkeypatch.setitem(EXPERIMENTS, "late", experiment)
    with pytest.raises(UserError, match=r"1 runs failed: books-carry ended with"):
        run_experiments(["late"], lab)
    written = load_result(lab.folder / "late.json")
    assert written["missing"] == ["another"]
    assert written["hyperparameters"] == []


def test_each_family_has_a_run_before_any_has_a_second(lab: Lab, monkeypatch: Any) -> None:
    """Which then finds what the first had to compile."""
    rounds: list[list[str]] = []

    def do_units(units: Any, *_: Any) -> Outcome:
        rounds.append([unit.name for unit in units])
        return Outcome(False, [])

    monkeypatch.setattr(lab_module, "do_units", do_units)
    assert run_experiments(["mechanisms"], lab) == []
    tried, families = rounds[0], {beyond.family(one) for one in lab.size.beyond.mechanisms.values()}
    assert len(tried) == len(set(tried)) == len(lab.size.candidates) * len({*families, "none"})
    runs = [name.rpartition("-lr")[0] for name in tried]
    assert len(set(runs[: len(runs) // 2])) == len(runs) // 2  # two candidates
