"""Generation in the benchmark: broken steps are found out and not timed, and graphs are not timed with the tokens."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from mini_bench import CPU, MINI, mini_bench
from torch import Tensor

from recurrify.modeling import generation as stepping
from recurrify.modeling.heads import RecurrentForCausalLM
from recurrify.speed import graphed_generation
from recurrify.state import State
from recurrify_papers.bench import generation
from recurrify_papers.bench.generation import GRAPHS, NOT_YET, PLAINLY, ROTARY, Clock, Writer, measure_generation
from recurrify_papers.bench.generation_check import SAME
from recurrify_papers.bench.models import base_model, random_tokens, recurrent_model, rotary_model
from recurrify_papers.bench.timing import NotMeasuredError
from recurrify_papers.report.bench_tables import bench_tables

ANEW = "re-execution, a window for each token"


def writers() -> dict[str, Writer]:
    return {writer.name: writer for writer in generation._writers(mini_bench())}


class TestWho:
    def test_is_measured_where(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(generation, "ROUNDS", 1)
        result = measure_generation(mini_bench())
        assert [check["passed"] for check in result["checks"]] == [True] * 6  # all but what is a forward pass itself
        assert all(check["largest_difference"] < SAME / 50 for check in result["checks"])
        prompts: dict[str, list[int]] = {}
        for row in result["rows"]:
            assert len(row["seconds"]) == (row["trouble"] is None)
            if row["trouble"] is None:
                prompts.setdefault(row["name"], []).append(row["prompt"])
        assert prompts.pop("transformers' generate") == [1, 20]  # 31 is the most that leaves room
        assert prompts.pop(ANEW) == [20, 100]
        assert len(prompts) == 5
        assert all(found == [1, 20, 100] for found in prompts.values())
        table = next(one for one in bench_tables({"generation": result}) if one.caption.startswith("Milliseconds"))
        assert next(row for row in table.rows if row[0] == ANEW)[1] == NOT_YET

    def test_the_checks_are_in_true_float32(self, monkeypatch: pytest.MonkeyPatch, high_precision: None) -> None:
        generate, seen = RecurrentForCausalLM.generate, []

        def noting(self: Any, *arguments: Any, **options: Any) -> Any:
            seen.append((torch.get_float32_matmul_precision(), self.dtype))
            return generate(self, *arguments, **options)

        monkeypatch.setattr(RecurrentForCausalLM, "generate", noting)
        check = writers()[PLAINLY].check
        assert check is not None
        assert check()["passed"]
        assert seen == [("highest", torch.float32)]
        assert torch.get_float32_matmul_precision() == "high"


@pytest.fixture
def high_precision() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(before)


roll_over, one_token = stepping._roll_over, stepping._one_token


def rolled(spoil: Callable[[State, State], State]) -> tuple[str, Callable[..., State]]:
    return "_roll_over", lambda model, state, full: spoil(state, roll_over(model, state, full))


BROKEN = {
    "another memory": rolled(lambda old, new: new._replace(memory=None if new.memory is None else new.memory * 0 + 7)),
    "forgotten": rolled(lambda old, new: new._replace(memory=None, live=torch.zeros_like(new.live))),
    "stale": rolled(lambda old, new: new if old.memory is None else new._replace(memory=old.memory)),
    "unread": (
        "_one_token",
        lambda model, tokens, places, memory, live, active, buffers: one_token(
            model, tokens, places, None, torch.zeros_like(live), active, buffers
        ),
    ),
    "misplaced": (
        "_one_token",
        lambda model, tokens, places, *more: one_token(model, tokens, places.clamp(max=3), *more),
    ),
}


class TestABrokenStep:
    @pytest.mark.parametrize("broken", list(BROKEN))
    def test_is_found_out(self, broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(stepping, *BROKEN[broken])
        for name in (PLAINLY, ROTARY):
            check = writers()[name].check
            assert check is not None
            found = check()
            assert not found["passed"]
            assert found["largest_difference"] > 100 * SAME

    def test_is_not_timed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(generation, "ROUNDS", 1)
        monkeypatch.setattr(stepping, *BROKEN["forgotten"])
        told: list[str] = []
        bench = mini_bench(replace(MINI, prompts=(20,)))
        bench.say = told.append
        result = measure_generation(bench)
        for row in result["rows"]:
            wrong = row["name"] in (PLAINLY, ROTARY)
            assert row["trouble"] == ("wrong results" if wrong else None)
            assert bool(row["seconds"]) != wrong
        assert len(told) == 2
        assert "and therefore not timed" in told[0]
        # Nor does what an earlier run has timed without a check stay.
        unchecked = {"rows": [{**row, "seconds": [1.0], "trouble": None} for row in result["rows"]], "checks": []}
        assert [row["seconds"] for row in measure_generation(bench, unchecked)["rows"] if row["name"] == PLAINLY] == [
            []
        ]

    @pytest.mark.parametrize("kind", ["carry", "kv"])
    @pytest.mark.parametrize("stale", [False, True], ids=["right", "stale"])
    def test_graphs(self, stale: bool, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """A replay that runs nothing gives what the capture gave."""

        def captured(function: Callable[[], Tensor], device: torch.device) -> Callable[[], Tensor]:
            first = function()
            return (lambda: first) if stale else function

        monkeypatch.setattr(graphed_generation, "can_capture", lambda model, tokens: True)
        monkeypatch.setattr(graphed_generation, "captured", captured)
        base = base_model(MINI, CPU) if kind == "carry" else rotary_model(MINI, CPU)
        check = generation._by_graphs(GRAPHS, recurrent_model(base, MINI, kind), MINI).check
        assert check is not None
        assert check()["passed"] != stale


def test_a_window_anew_is_the_same_as_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph reads where it was captured: the text moves on in that place."""
    texts: list[list[int]] = []

    class Noting(Clock):
        def put(self, value: Tensor) -> None:
            super().put(value)
            texts[-1] += value.flatten().tolist()

    def captured(function: Callable[[], Tensor], device: torch.device) -> Callable[[], Tensor]:
        place = function()
        return lambda: place.copy_(function())

    monkeypatch.setattr(generation, "Clock", Noting)
    monkeypatch.setattr(generation, "captured", captured)
    base, prompt = base_model(MINI, CPU), random_tokens(MINI, 1, 12, CPU)
    with torch.no_grad():
        for value in base.parameters():
            value.normal_()
    # Not tied to the embedding: the newest token would always be the same.
    base.lm_head.weight = torch.nn.Parameter(torch.randn(MINI.vocabulary, MINI.width))
    torch.nn.init.zeros_(base.transformer.ln_f.bias)
    for graphs in (False, True):
        texts.append([])
        generation._window_anew(mini_bench(), base, graphs)(prompt)
    assert texts[0] == texts[1]
    assert len(set(texts[0][12:])) > 1


def test_what_cannot_be_captured_stops_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(function: Callable[[], Tensor], device: torch.device) -> Callable[[], Tensor]:
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    monkeypatch.setattr(generation, "captured", fails)
    write = generation._window_anew(mini_bench(), base_model(MINI, CPU), graphs=True)
    with pytest.raises(NotMeasuredError, match=r"^not captured .operation not permitted when stream is capturing.$"):
        write(random_tokens(MINI, 1, 12, CPU))


class TestTheClock:
    def test_reading_the_prompt_does_not_count(self) -> None:
        clock = Clock()
        clock.times = [0.0, 100.0, 101.0, 103.0, 106.0]
        assert clock.written() == (2.0, 0.0)

    def test_nor_do_tokens_that_come_with_a_capture(self) -> None:
        clock = Clock()
        clock.times, clock.slowed = [0.0, 100.0, 101.0, 110.0, 113.0], {3}
        assert clock.written() == (2.0, 7.0)

    def test_captures_are_told_from_tokens(self, monkeypatch: pytest.MonkeyPatch) -> None:
        now = [0.0]

        def advance(seconds: float) -> None:
            now[0] += seconds

        def captured(function: Callable[[], Tensor], device: torch.device) -> Callable[[], Tensor]:
            advance(100.0)
            return function

        monkeypatch.setattr(graphed_generation, "can_capture", lambda model, tokens: True)
        monkeypatch.setattr(graphed_generation, "captured", captured)
        monkeypatch.setattr(generation, "time", SimpleNamespace(perf_counter=lambda: now[0]))
        model = recurrent_model(base_model(MINI, CPU), MINI, "carry")
        model.register_forward_hook(lambda *_: advance(1.0))
        write = generation._by_generate(GRAPHS, model, MINI).write
        assert write(random_tokens(MINI, 1, 12, CPU)) == (1.0, 100.0)
        rows = [{"name": GRAPHS, "prompt": 12, "seconds": [1.0], "seconds_per_token": 1.0, "seconds_to_capture": 100.0}]
        table = bench_tables({"generation": {"rows": rows}})[0]
        assert table.rows == [[GRAPHS, "1000.00"], [f"{GRAPHS}: capturing, once in a text", "100000"]]
