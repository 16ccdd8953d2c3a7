"""Frozen bases, other lengths and starts of training, rotary positions: which runs are made, and their rows from
made-up runs."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from recurrify.errors import UserError
from recurrify.results import load_result, save_result
from recurrify_papers.experiments import beyond, beyond_frozen, beyond_rotary, beyond_tokens
from recurrify_papers.experiments import lab as lab_module
from recurrify_papers.experiments.catalogue import EXPERIMENTS
from recurrify_papers.experiments.lab import Lab
from recurrify_papers.experiments.pool import Outcome
from recurrify_papers.experiments.sizes import SIZES
from recurrify_papers.experiments.unit import Unit, do_unit
from support import made_up_runs
from support.made_up_runs import by_name, perplexity, pretend
from support.runs import model_folder, weights_of

pytestmark = pytest.mark.usefixtures("few_samples")


# ---- frozen ----------------------------------------------------------------------------------------------


def test_frozen_runs_train_only_what_was_added_at_a_rate_of_their_own(lab: Lab, rounds: list[list[Unit]]) -> None:
    rows, missing = beyond_frozen.frozen_rows(lab)
    assert missing == []
    found = {(row["label"], row["trained"]): row for row in rows}
    frozen = found["memory-tokens-2", "frozen"]
    units = {unit.name: unit.settings for unit in rounds[1]}
    settings = units[frozen["runs"][0]]
    assert settings.freeze_base
    assert settings.learning_rate == settings.added_learning_rate == 1e-2
    assert not units[found["memory-tokens-2", "trained"]["runs"][0]].freeze_base
    assert frozen["added_kilobytes"] == 1.0
    # Memories of other documents cost a frozen model 0.02 and a trained one 0.04.
    gains = [1 - perplexity(3.0) / perplexity(3.0 + loss) for loss in (0.02, 0.04)]
    assert frozen["memory_gain"]["relative_gain"] == pytest.approx(gains[0])
    assert frozen["remaining"] == pytest.approx(gains[0] / gains[1])
    assert found["plain", "base"]["memory_gain"] is None
    assert found["plain", "base"]["gain"] is None


def test_the_base_that_is_said_to_be_untouched_is(lab: Lab) -> None:
    unit = beyond_frozen.base_unit(lab)
    assert do_unit(unit, lambda text: None, show_progress=False)
    ours, base = weights_of(unit.run_folder), weights_of(Path(lab.base()).parent / "base-as-run")
    assert base
    assert all((ours[f"base.{name}"] == value).all() for name, value in base.items())


@pytest.fixture(autouse=True)
def _base_as_run(lab: Lab) -> None:
    """The base's weights where `weights_of` looks for those of a run."""
    folder = Path(lab.base()).parent / "base-as-run" / "model"
    if not folder.exists():
        folder.parent.mkdir()
        folder.symlink_to(lab.base())


# ---- tokens and starts -----------------------------------------------------------------------------------


def test_each_length_is_a_run_of_its_own_beside_plain_of_the_same_length(lab: Lab, rounds: list[list[Unit]]) -> None:
    assert beyond_tokens.token_units(lab) == []  # before learning rates have been chosen
    lab.finish(EXPERIMENTS["tokens"].units(lab))
    units = beyond_tokens.token_units(lab)
    # The shorter ones have both seeds, the longer ones two learning rates.
    assert [unit.settings.max_tokens for unit in units] == [100] * 6 + [300] * 6
    assert {unit.settings.schedule for unit in units} == {"cosine"}
    ours = [unit.settings for unit in units if unit.settings.recurrence["mechanism"] == "memory_tokens"]
    rates = [(one.max_tokens, one.seed, one.learning_rate, one.added_learning_rate) for one in ours]
    assert rates == [(100, 0, 1e-2, 2e-2), (100, 1, 1e-2, 2e-2), (300, 0, 1e-2, 2e-2), (300, 0, 2e-2, 4e-2)]
    rows, missing = beyond_tokens.token_rows(lab)
    assert missing == []
    assert [(row["wanted_tokens"], row["kind"]) for row in rows] == [
        (tokens, kind) for tokens in (100, 300) for kind in ("plain", "carry", "best")
    ]
    assert rows[4]["gain"]["test"]["relative_gain"] == pytest.approx(1 - perplexity(2.98) / perplexity(3.0))
    assert [row["gain"]["test"]["seeds"] for row in (rows[1], rows[4])] == [2, 1]


def test_long_runs_take_the_learning_rate_that_suits_them(
    lab: Lab, rounds: list[list[Unit]], monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.finish(EXPERIMENTS["tokens"].units(lab))
    monkeypatch.setattr(made_up_runs, "BEST_RATE", 2e-2)
    rows, missing = beyond_tokens.token_rows(lab)
    assert missing == []
    assert [row["learning_rate"] for row in rows] == [1e-2] * 3 + [2e-2] * 3
    assert [[one["learning_rate"] for one in row["rates"]] for row in rows] == [[]] * 3 + [[1e-2, 2e-2]] * 3
    # Before both have been run there is no row.
    counted = beyond_tokens.counted_unit(lab, "carry", 300, times=2.0)
    assert counted is not None
    counted.run_file.unlink()
    monkeypatch.setattr(Lab, "finish", lambda lab, units: Outcome(True, []))
    assert beyond_tokens.token_rows(lab)[1] == ["carry-1, 300 tokens"]


def test_rows_tell_after_how_many_tokens_the_weights_were_kept(
    lab: Lab, rounds: list[list[Unit]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights that validate best are kept: here those of step 2 of 4, and of equals the first."""
    lab.finish(EXPERIMENTS["tokens"].units(lab))
    lab.finish(beyond_tokens.token_units(lab))
    unit = beyond_tokens.counted_unit(lab, "carry", 300)
    assert unit is not None
    run = load_result(unit.run_file)
    run["history"] = [{"step": 1, "eval_loss": 3.0}, {"step": 2, "eval_loss": 2.0}, {"step": 4, "eval_loss": 2.0}]
    save_result(unit.run_file, run)
    for split in ("valid", "test"):
        path = unit.score_file(lab.wanted(split, 0))
        save_result(path, load_result(path))
    monkeypatch.setattr(Lab, "finish", lambda lab, units: Outcome(True, []))
    found = {(row["kind"], row["wanted_tokens"]): row for row in beyond_tokens.token_rows(lab)[0]}
    assert (found["carry", 300]["tokens"], found["carry", 300]["kept_tokens"]) == (80, 40)
    assert found["carry", 100]["kept_tokens"] == 80


def test_warm_ups_take_little_of_short_runs(lab: Lab) -> None:
    lab.size = replace(SIZES["small"], best_from=())
    # 8 sequences of 10 windows of 300 tokens: 42 steps in a million tokens, 417 in ten.
    assert [beyond_tokens.warm_up(lab, tokens) for tokens in (1_000_000, 10_000_000, 100_000_000)] == [4, 41, 50]


def test_a_curriculum_goes_on_with_what_it_has_with_as_many_tokens_in_a_step(
    lab: Lab, rounds: list[list[Unit]], monkeypatch: pytest.MonkeyPatch
) -> None:
    short = {
        name: beyond_tokens.STARTS[name] for name in ("plain", "carry-curriculum", "carry-rate-x20", "slots-gated")
    }
    monkeypatch.setattr(beyond_tokens, "STARTS", short)
    choose_rates(lab, "carry-1", "tail-3")
    first, second = beyond_tokens.stages(lab, "carry-curriculum")
    assert second.settings.model == str(first.run_folder / "model")
    assert [(one.settings.windows, one.settings.batch) for one in (first, second)] == [(2, 6), (3, 4)]
    assert first.settings.max_tokens + second.settings.max_tokens == 200
    rows, missing = beyond_tokens.start_rows(lab)
    assert missing == []
    assert [unit.name for unit in rounds[1]] == [second.name, beyond_tokens.stages(lab, "carry-curriculum", 1)[1].name]
    found = {row["label"]: row for row in rows}
    assert found["plain"]["curves"] == [[[40, 3.0], [80, 2.5]]] * 2
    assert found["carry-curriculum"]["curves"] == [[[40, 3.0], [80, 2.5], [120, 3.0], [160, 2.5]]] * 2
    assert found["carry-curriculum"]["seeds"] == [0, 1]
    assert found["carry-rate-x20"]["added_learning_rate"] == pytest.approx(20 * 1e-2)


def choose_rates(lab: Lab, *names: str) -> None:
    for unit in beyond.rates_of(lab, names):
        pretend(unit)


def test_a_second_stage_trains_the_model_of_the_first(lab: Lab) -> None:
    choose_rates(lab, "carry-1")
    first, second = beyond_tokens.stages(lab, "carry-curriculum")
    assert all(do_unit(unit, lambda text: None, show_progress=False) for unit in (first, second))
    before, after = weights_of(first.run_folder), weights_of(second.run_folder)
    assert before.keys() == after.keys()
    name = "mechanism.network.0.weight"
    # Far nearer to the first stage's than one random start is to another.
    assert (after[name] - before[name]).abs().mean() < 0.2 * before[name].abs().mean()
    assert beyond_tokens.curve([first, second])[-1][0] > 150


def test_a_stage_whose_weights_are_gone_is_trained_anew_for_the_next_alone(lab: Lab) -> None:
    """Elsewhere results may be all that was kept of it."""
    choose_rates(lab, "carry-1")
    first, second = beyond_tokens.stages(lab, "carry-curriculum")
    assert do_unit(first, lambda text: None, show_progress=False)
    shutil.rmtree(first.run_folder)
    assert not second.is_finished()
    for stage in range(2):
        unit = beyond_tokens.with_needed([first, second])[stage]
        assert not unit.is_finished()
        assert do_unit(unit, lambda text: None, show_progress=False)
    shutil.rmtree(first.run_folder)
    shutil.rmtree(second.run_folder)
    assert all(unit.is_finished() for unit in beyond_tokens.with_needed([first, second]))


def test_tokens_and_starts_begin_after_what_was_asked_for_before_them(lab: Lab, rounds: list[list[Unit]]) -> None:
    """What experiments name as units is run before the rows of any: of these only what chooses learning rates."""
    for name in ("tokens", "starts", "frozen", "mechanisms"):
        units = EXPERIMENTS[name].units(lab)
        assert len({(unit.settings.learning_rate, unit.settings.freeze_base) for unit in units}) > 1
        assert {unit.settings.data for unit in units} == {lab.source("wiki")}


# ---- rotary ----------------------------------------------------------------------------------------------


def test_a_rotary_model_has_kept_keys_and_values_for_a_rival(lab: Lab, rounds: list[list[Unit]]) -> None:
    rows, missing = beyond_rotary.rotary_rows(lab)
    assert missing == []
    tuned, bare = by_name(rows, trained=True), by_name(rows, trained=False)
    # A tail of 9 does not fit into windows of 8.
    kept = {("kv-window", 0), ("sliding-window", 0)}
    assert set(tuned) == {("plain", o) for o in (0, 3, 5)} | {("tail-3", 0)} | kept
    assert set(bare) == {("plain", o) for o in (0, 3, 5)} | kept
    names = {unit.name: unit for unit in rounds[1]}
    kept, band = (names[tuned[name, 0]["runs"][0]] for name in ("kv-window", "sliding-window"))
    assert kept.settings.recurrence["keep"] == band.settings.recurrence["keep"] == 8 - 4
    assert band.settings.recurrence["sliding"]
    assert tuned["sliding-window", 0]["rival"] is None
    assert kept.settings.model == str(lab.folder / "rotary-base")
    rival = tuned["tail-3", 0]["rival"]
    assert (rival["label"], rival["relative_gain"]) == (
        "kv-window",
        pytest.approx(1 - perplexity(2.9) / perplexity(2.85)),
    )
    assert {unit.settings.max_tokens for unit in rounds[1] if "untouched" in unit.name} == {1}


def test_a_rotary_comparison_that_is_stopped_or_fails_is_told(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    failure = "books-a ended with 'no numbers', see its log"
    monkeypatch.setattr(lab_module, "do_units", lambda *_: Outcome(False, [failure]))
    beyond_rotary.rotary_rows(lab)
    assert (lab.failures, lab.stopped) == ([failure], True)


def test_a_model_without_rotary_positions_is_refused(lab: Lab, tmp_path: Path) -> None:
    lab.size = replace(lab.size, beyond=replace(lab.size.beyond, rotary_model=str(model_folder(tmp_path / "gpt2"))))
    with pytest.raises(UserError, match="is a model without rotary positions"):
        beyond_rotary.rotary_rows(lab)
