"""Who takes turns with whom, what of them is timed, and what is made of the times."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from mini_bench import CPU

from recurrify_papers.bench import timing
from recurrify_papers.bench.memory import PeakMemory
from recurrify_papers.bench.timing import DOES_NOT_FIT, NO_TIME, Entrant, NotMeasuredError, Turns, ratio
from recurrify_papers.bench.training import ratios


class TestTurns:
    def test_all_take_turns_and_trouble_stops_nobody_else(self) -> None:
        order: list[str] = []

        def too_large() -> None:
            order.append("large")
            raise torch.OutOfMemoryError("CUDA out of memory")

        def refused() -> None:
            raise NotMeasuredError("wrong results")

        entrants = [
            Entrant("first", lambda: order.append("first"), rest=lambda: order.append("rest")),
            Entrant("large", too_large),
            Entrant("refused", lambda: order.append("never"), wake=refused),
            Entrant("last", lambda: order.append("last")),
        ]
        found = Turns(CPU, rounds=2, warm_ups=1).take(entrants)
        # Twice for the memory, then twice in each turn, of which the second time counts.
        turn = ["first", "first", "rest", "last", "last"]
        assert order == ["first", "first", "rest", "large", "last", "last", *turn, *turn]
        assert [timed.trouble for timed in found] == [None, DOES_NOT_FIT, "wrong results", None]
        assert [len(timed.seconds) for timed in found] == [2, 0, 0, 2]

    def test_nothing_is_freed_between_a_run_and_the_timed_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        log: list[str] = []
        clock = iter(range(100))

        class Memory:
            def __init__(self, device: torch.device, reserved: bool = False) -> None:
                log.append("empty")

            def so_far(self) -> int:
                return 5

        def tick() -> int:
            log.append("clock")
            return next(clock)

        monkeypatch.setattr(timing, "PeakMemory", Memory)
        monkeypatch.setattr(timing, "free_memory", lambda device, thoroughly: log.append("empty"))
        monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=tick))
        entrant = Entrant("a", lambda: log.append("run"), wake=lambda: log.append("wake"), own_bytes=lambda: 2)
        found = Turns(CPU, rounds=2).take([entrant, replace(entrant, holds_graphs=True)])
        untimed, graphs_untimed = ["wake", "run", "empty", "run", "empty"], ["empty", "wake", "run", "run", "empty"]
        assert log == untimed + graphs_untimed + 4 * ["wake", "run", "clock", "run", "clock", "empty"]
        assert [(one.seconds, one.peak_bytes) for one in found] == [([1, 1], 7)] * 2

    @pytest.mark.parametrize("mebibytes", [1, 200])
    def test_memory_of_a_cpu_is_told_where_it_can_be(self, mebibytes: int) -> None:
        memory = PeakMemory(CPU)
        if memory.before is None:
            pytest.skip("nobody counts memory here")
        torch.ones(mebibytes * 2**18).sum()
        told = memory.so_far()
        if mebibytes == 1:
            assert told is None
        else:
            assert told is not None
            assert 0.9 < told / 2**20 / mebibytes < 1.5

    def test_an_error_that_nobody_expects_is_not_hidden(self) -> None:
        with pytest.raises(ZeroDivisionError):
            Turns(CPU, rounds=1).take([Entrant("broken", lambda: 1 / 0)])

    def test_no_time_keeps_what_there_is(self) -> None:
        left = iter(5 * [False] + [True])
        found = Turns(CPU, 2, out_of_time=lambda: next(left)).take([Entrant("a", int), Entrant("b", int)])
        assert [(len(one.seconds), one.trouble) for one in found] == [(2, None), (1, NO_TIME)]

    def test_a_ratio_is_the_median_of_turns(self) -> None:
        found = ratio("ours / theirs", [1.0, 2.0, 4.0], [3.0, 4.0, 4.0])
        assert found == {"name": "ours / theirs", "ratio": 2.0, "low": 1.0, "high": 3.0}
        assert ratio("ours / theirs", [1.0], [3.0]) is None  # a single turn says nothing

    def test_what_is_compared_with_what(self) -> None:
        rows = [
            {"kind": kind, "way": way, "checkpoint": False, "seconds": 2 * [1.0 + len(kind)]}
            for kind in ("transformers", "plain", "carry")
            for way in ("eager", "compiled")
        ] + [{"kind": "carry", "way": "graphs", "checkpoint": False, "seconds": [1.0, 1.0]}]
        names = [one["name"] for one in ratios(rows)]
        assert "carry, compiled / plain, compiled" in names
        assert "carry, graphs / transformers, compiled" in names
        assert "carry, eager / transformers, compiled" not in names
