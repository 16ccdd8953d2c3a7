"""Table 1: the published numbers, the choice of a learning rate, runs that are stopped and go on, and the summary."""

import hashlib
import math
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from recurrify import interrupts
from recurrify.errors import UserError
from recurrify.results import load_result, save_result
from recurrify_papers.forecast import table1, training
from recurrify_papers.forecast.published import SETTINGS, chosen_settings
from recurrify_papers.forecast.table1 import Plan, Recipe, Unit, do_unit, do_units, run_table1
from recurrify_papers.forecast.table1_rows import assembled
from recurrify_papers.forecast.training import STATE_FILE
from recurrify_papers.report.forecast_table1 import table1_lines, table1_statement, write_table1_page
from support.commands import invoke

TINY = Recipe(width=8, inner=8, epochs=1, batch=64, learning_rates=(1e-3, 1e-2), epoch_windows=64)
FOUND = {"table1": [], "missing": 0, "to_go": 0}
RESULTS = Path(__file__).parents[2] / "results" / "table1"
SETTING = SETTINGS[0]._replace(data="some", horizon=3, past=24, label=4)


MODELS = ("informer", "rsa-informer", "seasonal", "last-value")


@pytest.fixture
def plan(write_csv, tmp_path) -> Plan:
    folder = write_csv(rows=300).parent
    return Plan(
        folder=str(folder), root=str(tmp_path / "root"), settings=[SETTING], models=MODELS, seeds=2, recipe=TINY
    )


def test_the_published_table_is_whole():
    assert [setting.name for setting in SETTINGS] == [
        *(f"ETTh{number}-{horizon}" for number in (1, 2) for horizon in (24, 48, 168, 336)),
        *(f"ETTm1-{horizon}" for horizon in (24, 48, 96, 288)),
        *(f"WTH-{horizon}" for horizon in (24, 48, 168, 336)),
    ]
    assert all(sum(setting.counts) == 8 for setting in SETTINGS)
    # Sums of the printed columns, so that a slip of a digit shows.
    authors = [[getattr(setting.authors, model).mse for setting in SETTINGS] for model in ("informer", "rsa_informer")]
    assert [round(math.fsum(column), 3) for column in authors] == [20.832, 15.827]
    unreported = [setting.name for setting in SETTINGS if setting.students.informer is None]
    assert unreported == ["ETTm1-288", "WTH-336"]


def test_settings_are_chosen_by_name_or_by_data():
    assert [setting.name for setting in chosen_settings(["WTH-24", "ETTm1"])][:2] == ["ETTm1-24", "ETTm1-48"]
    assert len(chosen_settings(None)) == 16
    with pytest.raises(UserError, match="no setting 'ETTh3'"):
        chosen_settings(["ETTh3"])


def test_the_table_is_run_once_and_the_rate_chosen_on_validation(plan, monkeypatch, tmp_path):
    said: list[str] = []
    result = run_table1(plan, said.append)
    row = result["table1"][0]["ours"]
    for model in ("informer", "rsa-informer"):
        trials = {rate: load_result(plan.unit(SETTING, model, rate, 0).path)["valid_mse"] for rate in (1e-3, 1e-2)}
        assert row[model]["learning_rate"] == min(trials, key=trials.__getitem__)
        assert row[model]["seeds"] == 2
        runs = [load_result(plan.unit(SETTING, model, row[model]["learning_rate"], seed).path) for seed in (0, 1)]
        values = [run["test"]["mse"] for run in runs]
        assert values[0] != values[1]
        assert row[model]["mse"]["mean"] == pytest.approx(sum(values) / 2)
        assert row[model]["mse"]["standard_error"] == pytest.approx(abs(values[0] - values[1]) / 2)
    assert row["seasonal"]["seeds"] == row["last-value"]["seeds"] == 1
    done = [line for line in said if re.match(r"\d+ of \d+: ", line)]
    assert len(done) == len({line.split(": ")[1] for line in done}) == 2 * (2 + 1) + 2  # none twice
    assert [line.split(":")[0] for line in done] == [f"{number} of 8" for number in range(1, 9)]

    monkeypatch.setattr(table1, "train_forecaster", lambda *_: pytest.fail("a finished run was run again"))
    again = run_table1(plan, said.append)
    assert again["table1"] == result["table1"]
    with pytest.raises(UserError, match="was run with another batch"):
        run_table1(replace(plan, recipe=replace(TINY, batch=32)), said.append)

    write_table1_page(load_result(tmp_path / "root" / "table1.json"), tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "0.414" in page
    assert f"{row['rsa-informer']['mse']['mean']:.3f}" in page


def test_time_that_is_up_leaves_the_rest_for_later(plan):
    result = run_table1(plan, lambda _: None, deadline=0.0)
    assert result["missing"] == 2 * 2 + 2  # two models with two seeds, two that learn nothing
    assert result["to_go"] == 2 * (2 + 1) + 2  # and another rate for each
    assert "mean_mse" not in result
    assert table1_statement(result) == "Not finished: 6 runs are missing."


class TestOneRoot:
    """What several calls leave in it goes into one table, or is refused before anything is trained."""

    @pytest.fixture
    def one(self, plan) -> Plan:
        plan = replace(plan, recipe=replace(TINY, learning_rates=(1e-3,)), seeds=1, models=("informer",))
        run_table1(plan, lambda _: None)
        return plan

    @pytest.fixture(autouse=True)
    def nothing_else(self, one, monkeypatch) -> None:
        monkeypatch.setattr(table1, "train_forecaster", lambda *a, **k: pytest.fail("trained"))

    def test_another_recipe_of_another_model(self, one):
        with pytest.raises(UserError, match=r"would be run with another epochs than .*\(epochs 9, theirs 1\)"):
            run_table1(replace(one, models=("rsa-informer",), recipe=replace(one.recipe, epochs=9)), lambda _: None)

    def test_another_file_of_the_same_name(self, one, write_csv, tmp_path):
        other = tmp_path / "other"
        other.mkdir()
        text = (Path(one.folder) / "some.csv").read_text().splitlines()
        (other / "some.csv").write_text("\n".join(text[:-5]) + "\n")
        with pytest.raises(UserError, match="another data_checksum"):
            run_table1(replace(one, folder=str(other), models=("rsa-informer",)), lambda _: None)

    def test_a_model_that_cannot_be_leaves_nothing(self, one):
        bad = replace(one, models=("rsa-informer",), recipe=replace(one.recipe, width=9))
        with pytest.raises(UserError, match="width"):
            run_table1(bad, lambda _: None)
        assert not list((Path(one.root) / "units").glob("*.training"))


def test_later_calls_add_to_the_table_and_unequal_tuning_is_told(plan):
    one = replace(plan, recipe=replace(TINY, learning_rates=(1e-3,)), seeds=1, models=("informer",))
    run_table1(one, lambda _: None)
    more = replace(one, models=("rsa-informer",), recipe=replace(TINY, learning_rates=(1e-3, 1e-2)))
    result = run_table1(more, lambda _: None)
    ours = result["table1"][0]["ours"]
    assert set(ours) == {"informer", "rsa-informer"}
    assert ours["rsa-informer"]["rates_tried"] == [1e-3, 1e-2]
    assert "Not tuned equally: in some-3 the learning rate was chosen from 0.001 for Informer and from 0.001, 0.01" in (
        table1_statement(result)
    )
    assert any(line.startswith("Learning rates chosen on validation") for line in table1_lines(result))
    equal = run_table1(replace(more, models=("informer",)), lambda _: None)
    assert "Not tuned equally" not in table1_statement(equal)


def test_a_worker_that_was_interrupted_begins_nothing_more(monkeypatch):
    begun = []

    def interrupt(unit, deadline):
        begun.append(unit)
        raise KeyboardInterrupt

    monkeypatch.setattr(table1, "do_unit", interrupt)
    monkeypatch.setattr(interrupts, "_heard_here", threading.Event())
    monkeypatch.setattr(table1.torch, "set_num_threads", lambda count: None)
    monkeypatch.setattr(table1, "compile_alone", lambda: None)
    with pytest.raises(KeyboardInterrupt):
        table1._in_worker("first", None)
    assert table1._in_worker("next", None) is False
    assert begun == ["first"]


def test_curves_are_saved_with_six_digits_and_scores_with_all(plan):
    one = plan.unit(SETTING, "rsa-informer", 1e-3, 0)
    do_units([one], 1, lambda _: None)
    result = load_result(one.path)
    curves = [result["test"]["mse_by_horizon"], *(head["weights"] for head in result["recurrence"][0]["heads"])]
    assert all(number == float(f"{number:.6g}") for curve in curves for number in curve)
    assert result["test"]["mse"] != float(f"{result['test']['mse']:.6g}")
    assert set(result["recurrence_start"][0]) == {"layer", "gate"}


def test_a_table_is_made_of_what_there_is(plan):
    """Seeds of one model alone are shown, and not summed up beside another number of them."""
    plan = replace(plan, recipe=replace(TINY, learning_rates=(1e-3,)))
    for model, seeds in (("informer", 2), ("rsa-informer", 1), ("seasonal", 1)):
        do_units([plan.unit(SETTING, model, 1e-3, seed) for seed in range(seeds)], 1, lambda _: None)
    result = run_table1(plan, lambda _: None, deadline=0.0)
    ours = result["table1"][0]["ours"]
    assert {model: one["seeds"] for model, one in ours.items()} == {"informer": 2, "rsa-informer": 1, "seasonal": 1}
    assert result["missing"] == 2
    assert "mean_mse" not in result


NUMBERS = ("best_epoch", "valid_mse", "test", "recurrence")


def without_seconds(result: dict[str, Any]) -> list[Any]:
    history = [{name: value for name, value in one.items() if name != "seconds"} for one in result["history"]]
    return [history, *(result[name] for name in NUMBERS)]


@pytest.fixture
def unit(plan) -> Unit:
    recipe = replace(TINY, epochs=2, learning_rates=(1e-2,), dropout=0.2)
    return replace(plan, recipe=recipe).unit(SETTING, "rsa-informer", 1e-2, 0)


def stop_after(epochs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is up so many epochs later, whatever the clock says."""
    real, left = training._one_epoch, iter(range(epochs))
    monkeypatch.setattr(training, "_one_epoch", lambda *given: None if next(left, None) is None else real(*given))


def test_a_unit_that_was_stopped_goes_on_to_the_same_numbers(unit, tmp_path, monkeypatch):
    whole = do_unit(replace(unit, root=str(tmp_path / "whole")))
    with monkeypatch.context() as patch:
        stop_after(1, patch)
        assert do_unit(unit, deadline=time.time() + 1000) is None
    assert not unit.path.exists()
    assert (unit.training / STATE_FILE).is_file()
    in_parts = do_unit(unit)
    assert without_seconds(in_parts) == without_seconds(whole)
    assert without_seconds(load_result(unit.path)) == without_seconds(whole)
    assert not unit.training.exists()
    assert len(whole["history"]) == 2
    lines = unit.log.read_text(encoding="utf-8").splitlines()
    for line, epoch in zip(lines, whole["history"], strict=True):
        told = f"epoch {epoch['epoch']}: training MSE {epoch['train_mse']:.4f}, validation MSE {epoch['valid_mse']:.4f}"
        assert re.fullmatch(re.escape(told) + r", \d+\.\d s", line)


def test_a_unit_goes_on_only_with_its_own_recipe_and_data(unit, plan, write_csv, monkeypatch):
    with monkeypatch.context() as patch:
        stop_after(1, patch)
        do_unit(unit)
    other = replace(unit, recipe=replace(unit.recipe, batch=32))
    with pytest.raises(UserError, match=r"holds a run with other settings \(batch=64 there, 32 now"):
        do_unit(other)
    with pytest.raises(UserError, match=re.escape(f"{unit.name}.training' holds a run with other settings")):
        do_units([replace(other, seed=1), other], 1, lambda _: pytest.fail("something was begun"))
    write_csv(rows=301)
    table1._series.cache_clear()
    with pytest.raises(UserError, match="data_checksum="):
        do_unit(unit)
    assert (unit.training / STATE_FILE).is_file()


def test_what_is_to_do_is_told_and_what_is_done_is_tidied_up(unit):
    said: list[str] = []
    do_units([unit, replace(unit, seed=1)], 1, said.append)
    assert said[0] == (
        f"2 of 2 runs to do, 0 of them begun before, 1 side by side; a line for each epoch goes to {unit.log.parent}"
    )
    unit.training.mkdir()  # as if the process had been ended before it could
    (unit.training / STATE_FILE).write_bytes(b"")
    said.clear()
    do_units([unit, replace(unit, seed=2)], 1, said.append)
    assert said[0].startswith("1 of 2 runs to do")
    assert not unit.training.exists()


def test_a_run_that_fails_does_not_stop_the_others(plan, monkeypatch):
    done = []

    def fail_at_informer(unit: Unit, deadline: float | None) -> dict[str, object]:
        if unit.model == "informer":
            raise RuntimeError("CUDA out of memory")
        done.append(unit.name)
        return {}

    monkeypatch.setattr(table1, "do_unit", fail_at_informer)
    with pytest.raises(UserError, match="2 runs failed, the others are saved; the first: some-3-informer-"):
        run_table1(plan, lambda _: None)
    assert len(done) == 4


def test_runs_of_another_file_are_not_mixed_in(plan, write_csv):
    plan = replace(plan, models=("last-value", "seasonal"))
    result = run_table1(plan, lambda _: None)
    checksum = hashlib.sha256((Path(plan.folder) / "some.csv").read_bytes()).hexdigest()
    assert result["data_checksums"] == {"some": checksum}
    write_csv(rows=301)
    with pytest.raises(UserError, match=r"last-value-0\.001-s0\.json was run with another some\.csv than the one in"):
        run_table1(plan, lambda _: None)


def test_a_run_from_before_an_option_was_known_is_finished(unit):
    unit = replace(unit, recipe=replace(unit.recipe, recurrence_learning_rate=None))
    do_unit(unit)
    result = load_result(unit.path)
    del result["provenance"]["config"]["recurrence_learning_rate"]
    save_result(unit.path, result)
    assert unit.is_finished()
    faster = replace(unit.recipe, recurrence_learning_rate=1e-2)
    with pytest.raises(UserError, match="was run with another recurrence_learning_rate"):
        replace(unit, recipe=faster).is_finished()
    assert replace(unit, model="informer", recipe=faster).settings().recurrence_learning_rate is None


def test_runs_with_and_without_mix_are_never_one(plan, unit):
    """One from before it was known has none."""
    mixed = replace(unit, recipe=replace(unit.recipe, mix=True))
    scores = [do_unit(replace(one, root=f"{unit.root}-{one.recipe.mix}"))["valid_mse"] for one in (unit, mixed)]
    assert scores[0] != scores[1]
    result = do_unit(unit)
    assert result["provenance"]["config"].pop("mix") is False
    save_result(unit.path, result)
    assert unit.is_finished()
    with pytest.raises(UserError, match="was run with another mix: repeat"):
        mixed.is_finished()
    do_unit(replace(unit, seed=1))
    assert len(assembled(unit.root, [SETTING])["table1"]) == 1
    do_unit(replace(mixed, seed=2))
    with pytest.raises(UserError, match=r"s2\.json was run with another mix than runs beside it"):
        assembled(unit.root, [SETTING])


def test_the_committed_runs_are_those_of_the_same_command(planned, monkeypatch):
    monkeypatch.setattr(table1, "file_checksum", lambda path: checksums[path.stem])
    checksums = load_result(RESULTS / "table1.json")["data_checksums"]
    same, mixed = (replace(planned("--precision", "bf16", *more), root=str(RESULTS)) for more in ([], ["--mix"]))
    assert all(unit.is_finished() for unit in same.finals())
    for unit in mixed.finals():
        with pytest.raises(UserError, match="was run with another mix"):
            unit.is_finished()


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Plan]:
    """What `table1 run` would do with these options."""
    plans: list[Plan] = []
    monkeypatch.setattr("recurrify_papers.forecast.table1.run_table1", lambda plan, *_: plans.append(plan) or FOUND)

    def plan_of(*options: str) -> Plan:
        invoke("forecast", "table1", "run", "--data", tmp_path, "--device", "cpu", *options)
        return plans[-1]

    return plan_of


def test_schedules_that_do_not_halve(planned):
    assert planned("--schedule", "cosine").recipe.halve_every == 1
    assert planned("--schedule", "published").recipe.halve_every == 4


def test_zero_windows_are_all(planned):
    recipe = planned("--epoch-windows", "0", "--valid-windows", "0").recipe
    assert (recipe.epoch_windows, recipe.valid_windows) == (None, None)


def test_a_model_named_twice_is_run_once(planned):
    assert planned("--models", "linear,seasonal, linear").models == ("linear", "seasonal")


@pytest.mark.parametrize(
    ("options", "rate"),
    [
        ([], 3e-2),
        (["--recurrence-learning-rate", "1e-2"], 1e-2),
        (["--recurrence-learning-rate", "1e-4", "--learning-rates", "1e-4"], None),
        (["--recurrence-learning-rate", "1e-4", "--learning-rates", "1e-4,3e-4"], 1e-4),
    ],
    ids=["usual", "given", "same", "same-as-one"],
)
def test_the_rate_of_the_recurrence(planned, options, rate):
    assert planned(*options).recipe.recurrence_learning_rate == rate


def test_the_command_has_the_recipe_of_the_table_that_was_run(planned):
    there = load_result(RESULTS / "table1.json")["provenance"]["config"]
    mine = planned("--precision", "bf16")
    assert asdict(mine.recipe) | {"learning_rates": list(mine.recipe.learning_rates)} == there["recipe"]
    assert (list(mine.models), mine.seeds) == (there["models"], there["seeds"])


class TestOrder:
    @pytest.fixture
    def two(self, plan) -> Plan:
        dear = SETTING._replace(horizon=4, past=48)
        return replace(plan, settings=[SETTING, dear], models=("informer",))

    def test_seeds_of_a_dear_setting_come_before_rates_of_a_cheap_one(self, two, monkeypatch):
        begun: list[str] = []
        do = table1.do_unit
        monkeypatch.setattr(table1, "do_unit", lambda unit, limit: [begun.append(unit.name), do(unit, limit)][1])
        run_table1(two, lambda _: None)
        assert [name.split("-informer")[0] for name in begun] == [two.settings[1].name] * 3 + [SETTING.name] * 3
        assert begun[2].endswith("-s1")

    def test_a_seed_that_was_begun_otherwise_is_refused_before_anything(self, two, monkeypatch):
        late = two.unit(SETTING, "informer", 1e-3, 1)
        replace(late.settings(), out=str(late.training), epochs=3, data_checksum="x").write()
        monkeypatch.setattr(table1, "train_forecaster", lambda *a, **k: pytest.fail("trained"))
        with pytest.raises(UserError, match="epochs"):
            run_table1(two, lambda _: None)

    def test_a_pool_that_is_broken_fails_its_units(self, two, monkeypatch):
        class Broken(Executor):
            def submit(self, *_: object) -> Future:
                raise BrokenProcessPool("a worker ended")

        monkeypatch.setattr(table1, "processes", lambda jobs: Broken())
        with pytest.raises(UserError, match=r"4 runs failed, the others are saved; the first: .*a worker ended"):
            run_table1(replace(two, jobs=2), lambda _: None)


def test_a_missing_file_is_named(plan):
    with pytest.raises(UserError, match=r"other\.csv does not exist"):
        run_table1(replace(plan, settings=[SETTING._replace(data="other")]), lambda _: None)


def test_what_the_recurrence_alone_has_leaves_the_others_as_they_are(plan):
    """Models without one serve tables of all its variants; variants of it are not mixed."""
    plan = replace(plan, models=("informer", "rsa-informer"), seeds=1, recipe=replace(TINY, learning_rates=(1e-3,)))
    changed = replace(plan, recipe=replace(plan.recipe, gate_start=-2.0, recurrence_learning_rate=1e-2))
    run_table1(plan, lambda _: None)
    assert changed.unit(SETTING, "informer", 1e-3, 0).is_finished()
    with pytest.raises(UserError, match=r"was run with another .*gate_start"):
        changed.unit(SETTING, "rsa-informer", 1e-3, 0).is_finished()
    do_units([replace(changed.unit(SETTING, "rsa-informer", 1e-3, 1))], 1, lambda _: None)
    with pytest.raises(UserError, match="another gate_start and recurrence_learning_rate than runs beside it"):
        assembled(plan.root)
