"""Steps in processes side by side: who takes them, and what becomes of those that fail."""

import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from mini_bench import CPU, MINI, mini_bench

from recurrify_papers.bench import naive, running, workers
from recurrify_papers.bench.naive import covers_ways, measure_naive, steps_of
from recurrify_papers.bench.timing import WRONG, Entrant, NotMeasuredError, Turns
from recurrify_papers.bench.workers import WARM_UPS, Report, Workers
from recurrify_papers.report.bench_tables import bench_tables
from support.processes import runs

ALONE = ["naive loop", "ours, eager"]
TOGETHER = ["naive loop, 2 side by side", "ours, eager, 2 side by side"]


class Pretended(Workers):
    """Takes its steps in this process."""

    made: list["Pretended"]

    def __init__(self, build: Callable[[int], Callable[[], None]], count: int) -> None:
        super().__init__(build, count)
        self.steps = [build(number) for number in range(count)]
        self.log: list[str] = []
        Pretended.made.append(self)

    def wake(self) -> None:
        self.log.append("wake")

    def step(self) -> None:
        self.log.append("step")
        for step in self.steps:
            step()

    def rest(self) -> None:
        self.log.append("rest")


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> list[Pretended]:
    Pretended.made = []
    monkeypatch.setattr(naive, "Workers", Pretended)
    return Pretended.made


class TestRows:
    def test_are_beside_those_of_one_process(self, pretended: list[Pretended]) -> None:
        result = measure_naive(mini_bench(replace(MINI, rounds=2), side_by_side=2))
        assert [row["name"] for row in result["rows"]] == ALONE + TOGETHER
        assert [(len(row["seconds"]), row["trouble"]) for row in result["rows"]] == 4 * [(2, None)]
        against = [f"{name} / naive loop" for name in [ALONE[1], *TOGETHER]]
        assert [one["name"] for one in result["ratios"]] == [*against, f"{TOGETHER[1]} / {TOGETHER[0]}"]
        # No turn for memory, which nobody could count here.
        first, later = ["wake", *4 * ["step"], "rest"], ["wake", *2 * ["step"], "rest"]
        assert [one.log for one in pretended] == 2 * [first + later]
        table = bench_tables({"naive": result})[1]
        assert [row[0] for row in table.rows] == ALONE + TOGETHER
        assert [row[-1] for row in table.rows[2:]] == ["–", "–"]

    def test_are_only_for_steps_that_are_right_compiled_ones_too(
        self, pretended: list[Pretended], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        loss = naive.Ours.loss
        monkeypatch.setattr(naive.Ours, "loss", lambda self, *more: loss(self, *more) * 1.01)
        wrong = measure_naive(mini_bench(side_by_side=2))
        assert [row["trouble"] for row in wrong["rows"]] == [None, WRONG, None, WRONG]
        monkeypatch.setattr(naive.Ours, "ways", ("compiled",))
        monkeypatch.setattr("recurrify_papers.bench.stepping.compile_windows", lambda *_: None)
        compiled = measure_naive(mini_bench(side_by_side=2, ways=("compiled",)))
        alone = ["naive loop", "ours, compiled"]
        assert [row["name"] for row in compiled["rows"]] == [*alone, *(f"{name}, 2 side by side" for name in alone)]
        assert [row["trouble"] for row in compiled["rows"]] == [None, WRONG, None, WRONG]

    def test_go_on_from_a_result_without_them(self, pretended: list[Pretended]) -> None:
        size = replace(MINI, rounds=2)
        before = {**measure_naive(mini_bench(size)), "finished": True}
        del before["side_by_side"]  # as it was saved then
        assert covers_ways(before, mini_bench(size))
        assert not covers_ways(before, mini_bench(size, side_by_side=2))
        after = {**measure_naive(mini_bench(size, side_by_side=2), before), "finished": True}
        assert after["checks"] == before["checks"]
        assert [len(row["seconds"]) for row in after["rows"]] == 4 * [2]
        assert covers_ways(after, mini_bench(size, side_by_side=2))

    def test_as_many_as_threads_and_cores_and_none_on_a_gpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def count(cores: int | None, threads: int, device: str = "cpu") -> int:
            monkeypatch.setattr(running, "machine", lambda: {"cores": cores})
            monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
            return running._side_by_side_on(torch.device(device))

        assert [count(2, 2), count(2, 1), count(1, 2), count(64, 64), count(None, 2)] == [2, 1, 1, 4, 1]
        assert count(2, 2, "cuda") == 1


def test_a_run_of_several_is_noted_as_the_time_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 6.0])
    monkeypatch.setattr("recurrify_papers.bench.timing.time.perf_counter", lambda: next(clock))
    (found,) = Turns(CPU, rounds=1).take([Entrant("three", int, repeats=3, elsewhere=True)])
    assert (found.seconds, found.peak_bytes) == ([2.0], None)


def fails(number: int) -> Callable[[], None]:
    """At the third step that is asked for: one by an error, one without a word."""
    take = steps_of("ours", "eager", MINI, number)
    steps = iter([*(WARM_UPS + 2) * [False], True])

    def step() -> None:
        if next(steps):
            if number == 0:
                raise ValueError("a reason\nand more of it")
            os._exit(7)
        take()

    return step


def test_each_worker_takes_its_steps_with_one_thread_and_those_that_fail_are_told_and_nobody_is_left() -> None:
    """All in one, since a process takes seconds to start."""
    torch.set_num_threads(2)
    workers = Workers(fails, 2)
    processes: list[int] = []

    def wake() -> None:
        workers.wake()
        processes.extend(report.process for report in workers.reports)

    def rest() -> None:
        assert workers.reports == [Report(process, WARM_UPS + 2, 1) for process in processes]
        for notice in (workers.running[1].report, workers.running[1].ask):
            with pytest.raises(NotMeasuredError, match=r"^a process side by side ended by itself \(exit code 7\)$"):
                notice()
        workers.rest()

    try:
        (found,) = Turns(CPU, rounds=2).take([Entrant("failing", workers.step, wake, rest, elsewhere=True)])
    finally:
        torch.set_num_threads(1)
    assert (found.trouble, found.seconds) == ("a process side by side failed (ValueError: a reason)", [])
    assert len({*processes, os.getpid()}) == 3
    assert not any(runs(one) for one in processes)


def test_what_workers_are_asked_to_do_can_be_handed_to_them() -> None:
    """And there it trains."""
    asked = pickle.loads(pickle.dumps(partial(steps_of, "ours", "eager", MINI)))
    updates: list[object] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim.AdamW, "step", lambda *_, **__: updates.append(None))
        step = asked(0)
        for done in (1, 2):
            step()
            assert len(updates) == done


def test_workers_end_with_their_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything else; that who asks for this ends so is tested where it is done."""
    watched: list[int] = []

    def watch(parent: int) -> None:
        watched.append(parent)
        raise KeyboardInterrupt

    monkeypatch.setattr(workers, "end_with_parent", watch)
    built: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        workers._work(built.append, 0, 4711, "high", None)
    assert (watched, built) == ([4711], [])
