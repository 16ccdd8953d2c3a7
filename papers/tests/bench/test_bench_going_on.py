"""Benchmarks in several runs: what one has left, the next does not repeat, and in the end all is there."""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from mini_bench import CPU, MINI, mini_bench, no_bar
from torch import Tensor

from recurrify_papers.bench import generation, running, sizes, training
from recurrify_papers.bench.bench import Bench
from recurrify_papers.bench.evaluation import measure_evaluation
from recurrify_papers.bench.generation import Written, measure_generation
from recurrify_papers.bench.lengths import measure_lengths
from recurrify_papers.bench.naive import measure_naive
from recurrify_papers.bench.peers import measure_peers
from recurrify_papers.bench.running import Asked, run_bench
from recurrify_papers.bench.sizes import Size
from recurrify_papers.bench.stepping import Ours
from recurrify_papers.bench.timing import DOES_NOT_FIT, NO_TIME, Entrant, Turns
from recurrify_papers.bench.training import measure_training


class Killed(BaseException):
    pass


class TestGoingOn:
    """A run that is killed after something was saved, and the one after it."""

    def killed_after(self, saves: int, measure: Callable[..., Any], size: Size) -> dict[str, Any]:
        saved: list[dict[str, Any]] = []

        def keep(found: dict[str, Any]) -> None:
            saved.append(json.loads(json.dumps(found)))
            if len(saved) == saves:
                raise Killed

        with pytest.raises(Killed):
            measure(mini_bench(size, keep=keep))
        assert saved[-1]["missing"]
        return saved[-1]

    @pytest.mark.parametrize(
        "measure", [measure_evaluation, measure_naive, measure_peers], ids=["evaluation", "naive", "peers"]
    )
    def test_with_the_rounds_that_are_missing(
        self, measure: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("recurrify_papers.bench.peers.find_spec", lambda name: None)
        size = replace(MINI, rounds=3)
        left = self.killed_after(3, measure, size)  # after the memory and two rounds
        result = measure(mini_bench(size), left)
        assert result["missing"] == []
        for row, before in zip(result["rows"], left["rows"], strict=True):
            if row["trouble"] != "not installed":
                assert row["seconds"][:2] == before["seconds"]
                assert (len(row["seconds"]), len(before["seconds"])) == (3, 2)

    def test_with_the_lengths_that_are_missing(self) -> None:
        left = self.killed_after(2, measure_lengths, MINI)
        assert left["missing"] == [32]
        result = measure_lengths(mini_bench(), left)
        assert [row["tokens"] for row in result["rows"]] == 3 * [16] + 3 * [32]
        assert result["rows"][:3] == left["rows"]
        assert result["checks"] == left["checks"]
        assert result["missing"] == []

    def test_with_the_prompts_and_rounds_that_are_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(generation, "ROUNDS", 2)
        written: list[tuple[str, int]] = []

        def writers(bench: Bench) -> list[generation.Writer]:
            def by(name: str) -> Callable[[Tensor], Written]:
                return lambda prompt: (written.append((name, prompt.shape[1])), Written(len(written)))[1]

            return [generation.Writer(name, by(name)) for name in ("ours, carry", "other")]

        monkeypatch.setattr(generation, "_writers", writers)
        size = replace(MINI, prompts=(1, 20))
        # After the checks, after both prompts once, and the first a second time.
        left = self.killed_after(4, measure_generation, size)
        assert len(left["missing"]) == 2
        written.clear()
        result = measure_generation(mini_bench(size), left)
        assert written == 2 * [("ours, carry", 20)] + 2 * [("other", 20)]  # to warm up, and to be timed
        assert [len(row["seconds"]) for row in result["rows"]] == 4 * [2]
        assert result["rows"][0] == left["rows"][0]
        assert result["missing"] == []

    def test_a_round_that_not_all_had_is_taken_again(self) -> None:
        earlier = [
            {"seconds": [1.0, 2.0], "peak_bytes": 3, "trouble": None},
            {"seconds": [1.0], "peak_bytes": 3, "trouble": NO_TIME},
            {"seconds": [], "peak_bytes": None, "trouble": DOES_NOT_FIT},
        ]
        ran: list[str] = []
        entrants = [Entrant(name, lambda name=name: ran.append(name)) for name in "abc"]
        found = Turns(CPU, 2).take(entrants, earlier)
        assert [(len(one.seconds), one.trouble) for one in found] == [(2, None), (2, None), (0, DOES_NOT_FIT)]
        assert [one.seconds[0] for one in found[:2]] == [1.0, 1.0]
        assert found[0].seconds[1] != 2.0
        assert ran == ["a", "a", "a", "b", "b", "b"]  # each warms up, and runs untimed and timed; memory is known

    def test_ways_that_are_missing_are_measured_beside_those_there(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Whole:
            def __init__(self, bench: Bench, steppers: Any, batch: int, known: Any, left: Any) -> None:
                row = {"trouble": NO_TIME if bench.out_of_time() else None}
                self.group = {"batch": batch, "ways": bench.ways, "rows": [row], "checks": []}

            def measure(self, keep: Any) -> dict[str, Any]:
                return self.group

        monkeypatch.setattr(training, "Group", Whole)
        earlier = measure_training(mini_bench(batches=(1, 4)))
        result = measure_training(mini_bench(batches=(2, 4), ways=("compiled",)), earlier)
        ways = {group["batch"]: group["ways"] for group in result["groups"]}
        assert ways == {1: ("eager",), 2: ("compiled",), 4: ("eager", "compiled")}
        left = iter([False, True])
        monkeypatch.setattr(Bench, "out_of_time", lambda self: next(left))
        late = measure_training(mini_bench(batches=(1,), ways=("compiled",)), earlier)
        assert late["groups"] == earlier["groups"]  # what was whole is not lost
        assert late["missing"] == [1]
        assert [group["ways"] for group in late["begun"]] == [("eager", "compiled")]

    def test_naive_keeps_its_ways(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Ours, "ways", ("eager",))
        assert measure_naive(mini_bench(), {"ways": ["graphs"]})["ways"] == ["eager", "graphs"]


class LittleTime:
    """Runs of the command with time for so many steps each: whoever asks whether there is some left takes one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, out: Path, steps: int) -> None:
        self.out, self.steps, self.asked = out, steps, 0
        self.told: list[str] = []
        small = replace(MINI, name="tiny", batches=(2,), prompts=(1, 20), rounds=2)
        monkeypatch.setattr(generation, "ROUNDS", 2)
        monkeypatch.setitem(sizes.SIZES, "tiny", small)
        monkeypatch.setattr("recurrify_papers.bench.peers.find_spec", lambda name: None)
        monkeypatch.setattr(Bench, "out_of_time", lambda bench: self._takes_a_step())
        self.run("ceilings")

    def _takes_a_step(self) -> bool:
        self.asked += 1
        return self.asked > self.steps

    def run(self, part: str, **more: Any) -> dict[str, Any]:
        self.asked = 0
        run_bench(Asked([part], "tiny", "cpu", ways=("eager",), **more), self.out, self.told.append, no_bar)
        found: dict[str, Any] = json.loads((self.out / f"{part}.json").read_text())
        return found

    def until_finished(self, part: str, most: int, **more: Any) -> list[dict[str, Any]]:
        runs = [self.run(part, **more)]
        while not runs[-1]["finished"] and len(runs) < most:
            runs.append(self.run(part, **more))
        return runs


def repeats(found: dict[str, Any]) -> list[list[float]]:
    return [row["seconds"] for group in found.get("groups", [found]) for row in group["rows"]]


class TestLittleTime:
    """There is time for a few checks, or for the memory of all, or for one round: never for all of them."""

    @pytest.mark.parametrize(
        ("part", "steps", "most"),
        # Three take turns in training and evaluation of plain windows and at each length, seven in generation, and two
        # else; where nobody counts memory, its pass is repeated.
        [
            *(("training", 8, 6), ("evaluation", 8, 6), ("generation", 16, 8)),
            *(("lengths", 8, 10), ("naive", 6, 5), ("peers", 6, 5)),
        ],
        ids=["training", "evaluation", "generation", "lengths", "naive", "peers"],
    )
    def test_comes_to_an_end(
        self, part: str, steps: int, most: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        runs = LittleTime(monkeypatch, tmp_path, steps).until_finished(part, most, kinds=("plain",))
        assert len(runs) > 1
        assert runs[-1]["finished"]
        for before, after in pairwise(runs):
            held = min((len(seconds) for seconds in repeats(before) if seconds), default=0)
            if all(repeats(before)):
                same = zip(repeats(before), repeats(after), strict=False)  # longer sequences may come later
                assert all(new[:held] == old[:held] for old, new in same)
            assert [check["name"] for check in before["checks"]] == [
                check["name"] for check in after["checks"][: len(before["checks"])]
            ]

    def test_checks_of_training_are_made_once(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        checked: list[str] = []
        check = training.Group._check

        def noting(self: Any, variant: Any, stepper: Any) -> Any:
            checked.append(str(variant))
            return check(self, variant, stepper)

        monkeypatch.setattr(training.Group, "_check", noting)
        little = LittleTime(monkeypatch, tmp_path, 4)
        little.run("training", kinds=("plain",))
        assert checked == ["transformers, eager", "plain, eager"]
        for _ in range(2):
            little.run("training", kinds=("plain",))
        assert checked == ["transformers, eager", "plain, eager", "plain, eager, checkpointed"]

    def test_only_checks_times_nothing_and_the_next_run_checks_nothing(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        little = LittleTime(monkeypatch, tmp_path, 100)
        checked = little.run("training", kinds=("plain",), only_checks=True)
        assert checked["missing"]
        assert len(checked["checks"]) == 2 * len(checked["groups"])
        assert all(row["seconds"] == [] for group in checked["groups"] for row in group["rows"])
        monkeypatch.setattr(training.Group, "_check", lambda *a: pytest.fail("checked again"))
        timed = little.run("training", kinds=("plain",))
        assert not timed["missing"]
        assert timed["checks"] == checked["checks"]

    @pytest.mark.parametrize("part", ["generation", "lengths", "evaluation", "naive", "profile", "peers"])
    def test_only_checks_times_no_other_part_either(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, part: str
    ) -> None:
        found = LittleTime(monkeypatch, tmp_path, 100).run(part, only_checks=True)
        assert not found["finished"]
        assert found["rows"]
        assert not any(row.get("seconds") for row in found["rows"])
        assert part in ("profile", "peers") or found["checks"]

    def test_ceilings_are_not_cut_short(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        assert LittleTime(monkeypatch, tmp_path, 1).run("ceilings")["finished"]

    def test_too_little_is_said(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        little = LittleTime(monkeypatch, tmp_path, 1)
        little.run("naive")
        little.run("naive")
        assert little.told[-1].startswith("naive: no further than before: --max-minutes may be too short")

    @pytest.mark.parametrize("only_checks", [False, True], ids=["no time", "only checks"])
    def test_a_finished_evaluation_stands_until_a_larger_one_is(
        self, only_checks: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        little = LittleTime(monkeypatch, tmp_path, 100)
        whole = little.run("evaluation", kinds=("plain",))
        assert whole["finished"]
        little.steps = 100 if only_checks else 6
        more = little.run("evaluation", kinds=("carry",), only_checks=only_checks)
        assert more["begun"][0]["kinds"] == ["plain", "carry"]
        assert {key: value for key, value in more.items() if key != "begun"} == whole
        little.steps = 100
        both = little.run("evaluation", kinds=("carry",))
        assert (both["finished"], both["kinds"], "begun" in both) == (True, ["plain", "carry"], False)
        assert both["checks"] == more["begun"][0]["checks"]  # made once

    def test_every_run_that_numbers_are_of_is_named(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        little = LittleTime(monkeypatch, tmp_path, 100)
        first = little.run("training", kinds=("plain",), batches=(1,))
        second = little.run("training", kinds=("plain",), batches=(2,))
        assert [group["batch"] for group in second["groups"]] == [1, 2]
        assert second["provenance"]["config"]["batches"] == [2]
        assert [run["config"]["batches"] for run in second["earlier_runs"]] == [[1]]
        assert first["earlier_runs"] == []

    def test_what_is_whole_stands_until_more_is(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        little = LittleTime(monkeypatch, tmp_path, 100)
        whole = little.run("training", kinds=("plain",))["groups"]
        assert whole[0]["kinds"] == ["plain"]
        assert len(whole[0]["rows"]) == 3
        little.steps = 8
        more = little.run("training", kinds=("carry",))
        assert more["groups"] == whole
        little.steps = 12
        for _ in range(5):
            more = little.run("training", kinds=("carry",))
        assert [group["kinds"] for group in more["groups"]] == [["plain", "carry"]]
        assert len(more["groups"][0]["rows"]) == 5
        assert more["begun"] == []
        assert running.PARTS["training"].covers(more, mini_bench(batches=(2,), kinds=("plain", "carry")))
        assert not running.PARTS["training"].covers(more, mini_bench(batches=(2,)))
