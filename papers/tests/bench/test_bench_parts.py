"""What a benchmark counts, checks and leaves out, on models that are too small to be worth timing."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure
from mini_bench import CPU, MINI, mini_bench
from torch import Tensor
from torch._dynamo.exc import BackendCompilerFailed
from torch.utils.flop_counter import FlopCounterMode

from recurrify.modeling.heads import RecurrentForCausalLM
from recurrify.pages.plots import ON_WHITE
from recurrify_papers.bench import evaluation, lengths, stepping
from recurrify_papers.bench.checks import EXACT, HALF, WINDOWS, Seen, compare, observe, told_apart
from recurrify_papers.bench.evaluation import measure_evaluation
from recurrify_papers.bench.lengths import measure_lengths
from recurrify_papers.bench.models import random_tokens
from recurrify_papers.bench.naive import NaiveLoop, measure_naive
from recurrify_papers.bench.peers import PEERS, body_weights, covers_installed, measure_peers
from recurrify_papers.bench.stepping import Ours, Theirs
from recurrify_papers.bench.timing import WRONG, NotMeasuredError
from recurrify_papers.bench.training import measure_training, rows_that_fit
from recurrify_papers.report.bench_page import draw_memory
from recurrify_papers.report.bench_tables import bench_tables


class TestOperations:
    @pytest.mark.parametrize("kind", ["transformers", "plain"])
    def test_a_step_takes_what_torch_counts(self, kind: str) -> None:
        """torch's counter sees the products of eager attention, and knows nothing of masks: it counts all pairs of
        positions, we the causal half."""
        stepper = Theirs(MINI, CPU) if kind == "transformers" else Ours(MINI, kind, CPU)
        base = stepper.model if kind == "transformers" else stepper.recurrent.base
        base.set_attn_implementation("eager")
        ids = random_tokens(MINI, 2, MINI.window, CPU)
        with FlopCounterMode(display=False) as counter:
            stepper.backward(stepper.rows_of(ids))
        masked = 3 * 2 * MINI.window**2 * MINI.width * MINI.layers * len(ids)
        counted = counter.get_total_flops() - masked
        assert stepper.flops_per_token * ids.numel() == pytest.approx(counted)

    def test_shares_are_of_the_ceiling(self) -> None:
        group = measure_training(mini_bench(replace(MINI, rounds=3), batches=(2,), kinds=("plain",)))["groups"][0]
        for row in group["rows"]:
            assert row["tokens"] == 2 * 3 * 8
            rate = row["tokens"] / sorted(row["seconds"])[0]
            slowest = row["tokens"] / sorted(row["seconds"])[-1]
            share = row["share_of_ceiling"] * 1e12 / row["flops_per_token"]
            assert slowest <= share <= rate
            assert row["tokens_per_second"] == pytest.approx(share)

    def test_peers_are_matched_by_their_layers(self) -> None:
        per_layer = 12 * MINI.width**2
        added = Ours(MINI, "carry", CPU).recurrent
        assert body_weights(added.base) == MINI.layers * per_layer


class TestChecks:
    def test_every_way_is_checked_and_right(self) -> None:
        result = measure_training(mini_bench(batches=(2,)))
        names = [check["name"] for check in result["checks"]]
        assert names == ["plain, eager, against transformers"] + [
            f"{kind}, eager, checkpointed" for kind in ("plain", "carry", "tail")
        ]
        assert all(check["passed"] for check in result["checks"])
        assert all(check["relative_gradient_difference"] < 1e-5 for check in result["checks"])

    def test_what_differs_does_not_pass_and_is_not_timed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loss = Ours.loss

        def wrong(self: Ours, ids: Tensor, inside_windows: bool = False) -> Tensor:
            return loss(self, ids, inside_windows) * (1.01 if self.recurrent.recurrence.checkpoint else 1)

        monkeypatch.setattr(Ours, "loss", wrong)
        result = measure_training(mini_bench(batches=(1,)))
        assert [check["passed"] for check in result["checks"]] == [True, False, False, False]
        for row in result["groups"][0]["rows"]:
            assert row["trouble"] == ("wrong results" if row["checkpoint"] else None)
            assert bool(row["seconds"]) != row["checkpoint"]

    def test_old_weights_are_found_out(self) -> None:
        """A captured step that never sees the update has the right gradient and the wrong losses."""
        stepper = Ours(MINI, "carry", CPU)
        ids = random_tokens(MINI, 2, 3 * MINI.window, CPU)
        seen = observe(stepper, ids)
        assert len(seen.losses) == 3
        stale = Seen([seen.losses[0]] * 3, seen.gradients)
        assert compare("same", seen, observe(stepper, ids), EXACT)["passed"]
        assert not compare("stale", seen, stale, EXACT)["passed"]

    def test_another_gradient_or_none_does_not_pass(self) -> None:
        seen = Seen([1.0], {"a": torch.ones(3), "b": torch.ones(2)})
        slightly = {"a": torch.ones(3), "b": torch.tensor([1.0, 1.01])}
        check = compare("slightly", seen, Seen([1.0], slightly), EXACT)
        assert check["relative_gradient_difference"] == pytest.approx(0.01 / 5**0.5, rel=1e-4)
        assert not check["passed"]
        assert not compare("missing", seen, Seen([1.0], {"a": torch.ones(3)}), EXACT)["passed"]
        assert not compare("nan", seen, Seen([float("nan")], seen.gradients), EXACT)["passed"]

    def test_the_naive_loop_computes_the_same(self) -> None:
        result = measure_naive(mini_bench())
        assert result["checks"][0]["relative_gradient_difference"] < 1e-5
        assert [row["name"] for row in result["rows"]] == ["naive loop", "ours, eager"]

    def test_every_way_beside_the_naive_loop_is_checked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loss, asked = Ours.loss, replace(MINI, rounds=1)
        monkeypatch.setattr(stepping, "compile_windows", lambda *_: None)
        monkeypatch.setattr(
            Ours, "loss", lambda self, *more: loss(self, *more) * (1.01 if self.way == "compiled" else 1)
        )
        result = measure_naive(mini_bench(asked, ways=("eager", "compiled")))
        assert [(check["name"], check["passed"]) for check in result["checks"]] == [
            ("ours against the naive loop", True),
            ("ours, compiled, against the naive loop", False),
        ]
        assert [(row["name"], row["trouble"], len(row["seconds"])) for row in result["rows"]] == [
            *(("naive loop", None, 1), ("ours, eager", None, 1), ("ours, compiled", WRONG, 0)),
        ]

    def test_the_naive_loop_has_the_same_optimiser(self) -> None:
        naive, ours = NaiveLoop(MINI, CPU).optimizer, Ours(MINI, "carry", CPU).optimizer
        assert (type(naive), naive.defaults) == (type(ours), ours.defaults)

    def test_plain_windows_that_are_wrong_are_no_measure(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loss = Ours.loss
        monkeypatch.setattr(Ours, "loss", lambda self, *more: loss(self, *more) * (1.01 if self.kind == "plain" else 1))
        rows = measure_training(mini_bench(batches=(1,), kinds=("plain", "lookback")))["groups"][0]["rows"]
        assert [(row["kind"], row["checkpoint"], row["trouble"]) for row in rows] == [
            ("transformers", False, None),
            *(("plain", False, WRONG), ("plain", True, WRONG), ("lookback", False, None), ("lookback", True, None)),
        ]
        assert all(bool(row["seconds"]) == (row["kind"] != "plain") for row in rows)

    def test_wrong_lanes_are_not_timed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        score = evaluation.evaluate_documents

        def wrong(model: RecurrentForCausalLM, documents: Any, rows: int, **more: Any) -> Any:
            found = score(model, documents, rows=rows, **more)
            if rows > 1 and model.recurrence.mechanism == "tail":
                found.nll[:] = 0
            return found

        monkeypatch.setattr(evaluation, "evaluate_documents", wrong)
        result = measure_evaluation(mini_bench(kinds=("plain", "tail")))
        assert [check["passed"] for check in result["checks"]] == [True, False]
        assert [row["name"] for row in result["rows"]] == ["plain", "plain", "tail", "tail", evaluation.THEIRS]
        for row in result["rows"]:
            assert row["trouble"] == (WRONG if row["name"] == "tail" else None)
            assert bool(row["seconds"]) == (row["name"] != "tail")

    def test_lanes_score_what_documents_alone_do(self) -> None:
        result = measure_evaluation(mini_bench())
        assert [check["passed"] for check in result["checks"]] == [True] * 3
        by = {(row["name"], row["lanes"]): row for row in result["rows"]}
        assert by["carry", 3]["tokens"] == 3 * 39
        assert by["carry", 1]["tokens"] == 2 * 39


def mix_rows(model: RecurrentForCausalLM) -> None:
    assert model.mechanism is not None
    read = model.mechanism.read
    model.mechanism.read = lambda memory: read(memory.flip(0))  # type: ignore[method-assign]


def stop_gradients(model: RecurrentForCausalLM) -> None:
    assert model.mechanism is not None
    for value in model.mechanism.parameters():
        value.register_hook(torch.zeros_like)


class TestABrokenMemory:
    """Found out with the tolerance of half precision, for which its share of all gradients is nothing."""

    SIZE = replace(MINI, width=64, window=48, positions=48)

    def seen(self, kind: str, spoil: Callable[[RecurrentForCausalLM], None] = lambda model: None) -> Seen:
        stepper = Ours(self.SIZE, kind, CPU)
        before = {name: value.clone() for name, value in stepper.recurrent.state_dict().items()}
        spoil(stepper.recurrent)
        ids = random_tokens(self.SIZE, 2, WINDOWS * self.SIZE.window, CPU)
        seen = observe(stepper, told_apart(ids, self.SIZE.window))
        assert all(torch.equal(value, before[name]) for name, value in stepper.recurrent.state_dict().items())
        return seen

    @pytest.mark.parametrize("kind", ["carry", "tail"])
    def test_in_a_training_step(self, kind: str) -> None:
        expected = self.seen(kind)
        cut = self.seen(kind, lambda model: model.set_recurrence(bptt_windows=2))
        found = [cut, self.seen(kind, mix_rows), self.seen(kind, stop_gradients)]
        checks = [compare(kind, expected, one, HALF) for one in found]
        assert not any(check["passed"] for check in checks)
        # Not by a hair: several times what half precision is forgiven.
        assert all(check["relative_memory_gradient_difference"] > 3 * HALF.memory_gradient for check in checks)
        assert compare(kind, expected, self.seen(kind), EXACT)["passed"]

    @pytest.mark.parametrize("kind", ["carry", "tail"])
    def test_in_lanes(self, kind: str) -> None:
        bench, model = mini_bench(self.SIZE), Ours(self.SIZE, kind, CPU).recurrent.eval()
        assert evaluation._check(bench, kind, model)["passed"]
        mix_rows(model)
        check = evaluation._check(bench, kind, model)
        assert check["difference"] > 1e-4
        assert not check["passed"]

    def test_each_gradient_is_judged_by_its_own_norm(self) -> None:
        expected = Seen([1.0], {"a": torch.full((4,), 100.0), "mechanism.b": torch.ones(4)})
        found = Seen([1.0], {"a": torch.full((4,), 101.0), "mechanism.b": torch.full((4,), 0.5)})
        check = compare("own", expected, found, HALF)
        assert check["relative_gradient_difference"] == pytest.approx(0.01)
        assert check["relative_memory_gradient_difference"] == pytest.approx(0.5)
        assert not check["passed"]


class TestLengths:
    def test_ours_is_checked_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        result = measure_lengths(mini_bench())
        assert [(check["name"], check["passed"]) for check in result["checks"]] == [
            ("carry, checkpointed, eager", True)
        ]
        loss = Ours.loss
        monkeypatch.setattr(
            Ours, "loss", lambda self, *more: loss(self, *more) * (1.01 if self.recurrent.recurrence.checkpoint else 1)
        )
        result = measure_lengths(mini_bench())
        assert not result["checks"][0]["passed"]
        for row in result["rows"]:
            assert row["trouble"] == (WRONG if row["name"] == "carry, checkpointed" else None)
            assert bool(row["seconds"]) == (row["name"] != "carry, checkpointed")

    def test_theirs_is_compiled_where_it_can_be(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Not the longer length, here."""
        asked: list[dict[str, Any]] = []

        def compiling(model: Any, **options: Any) -> Callable[..., Any]:
            asked.append(options)

            def run(ids: Tensor, **more: Any) -> Any:
                if ids.shape[1] > 16:
                    raise BackendCompilerFailed(lambda: None, RuntimeError("too long"), None)
                return model(ids, **more)

            return run

        monkeypatch.setattr(lengths, "ways_on", lambda device: ("eager", "compiled"))
        monkeypatch.setattr(torch, "compile", compiling)
        result = measure_lengths(mini_bench())
        assert asked == 2 * [{"dynamic": False}]
        ways = [(row["name"], row["way"], row["tokens"]) for row in result["rows"] if row["name"] == lengths.IN_ONE]
        assert ways == [(lengths.IN_ONE, "compiled", 16), (lengths.IN_ONE, "eager", 32)]
        assert all(row["seconds"] for row in result["rows"])
        axes = Figure().subplots()
        known = [{**row, "peak_bytes": 2**30} for row in result["rows"]]
        assert draw_memory(axes, {"rows": known}, ON_WHITE)
        told = [text.get_text() for text in axes.get_legend().get_texts()]
        assert told == ["carry, checkpointed (eager)", "carry (eager)", f"{lengths.IN_ONE} (compiled, eager)"]


class TestBudgets:
    def test_are_for_compiled_steps_of_carry(self, monkeypatch: pytest.MonkeyPatch) -> None:
        compiled: set[tuple[str, float]] = set()

        def noting(model: RecurrentForCausalLM, rows: int, memory_budget: float) -> None:
            compiled.add((model.recurrence.mechanism, memory_budget))

        monkeypatch.setattr(stepping, "compile_windows", noting)
        monkeypatch.setattr(torch, "compile", lambda model, **options: model)
        size = replace(MINI, rounds=2)
        bench = mini_bench(size, batches=(1,), ways=("eager", "compiled"), kinds=("plain", "carry"), budgets=(0.5,))
        result = measure_training(bench)
        assert compiled == {("none", 1.0), ("carry", 1.0), ("carry", 0.5)}
        group = result["groups"][0]
        within = [row for row in group["rows"] if row["memory_budget"] != 1]
        assert [(row["kind"], row["way"], row["checkpoint"]) for row in within] == [("carry", "compiled", False)]
        assert "carry, compiled, budget 0.5" in [check["name"] for check in result["checks"]]
        names = [one["name"] for one in group["ratios"]]
        assert "carry, compiled, budget 0.5 / carry, compiled" in names
        assert "carry, compiled, budget 0.5 / transformers, compiled" in names
        table = bench_tables({"training": result})[0]
        assert [row[0] for row in table.rows if "budget" in row[0]] == ["carry, compiled, budget 0.5"]


def test_graphs_are_held_against_transformers_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether or not compiled steps of ours are asked for."""
    monkeypatch.setattr(torch, "compile", lambda model, **options: model)
    monkeypatch.setattr(stepping.Ours, "is_ready", lambda self: True)
    monkeypatch.setattr(stepping, "graph_steps", lambda *_: None)
    build = stepping.Ours.__init__

    def with_graphs(self: Any, *given: Any) -> None:
        build(self, *given)
        self.ways = ("eager", "compiled", "graphs")

    monkeypatch.setattr(stepping.Ours, "__init__", with_graphs)
    bench = mini_bench(replace(MINI, rounds=2), batches=(1,), ways=("graphs",), kinds=("plain",))
    (group,) = measure_training(bench)["groups"]
    ways = [(row["kind"], row["way"], row["checkpoint"]) for row in group["rows"]]
    assert ways == [("transformers", "compiled", False), ("plain", "graphs", False), ("plain", "graphs", True)]
    assert "plain, graphs / transformers, compiled" in [one["name"] for one in group["ratios"]]


@pytest.mark.parametrize("reason", ["CUDA out of memory. Tried to allocate 1.80 GiB.", "operation not permitted"])
def test_what_fits_no_graph_is_not_compiled_instead(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[str] = []
    ours = Ours(MINI, "plain", CPU)
    ours.prepare("graphs", False, 2)

    def backward(rows: Tensor) -> None:
        passes.append("pass")
        if len(passes) == 1:
            ours.recurrent.graphed_steps._give_up(RuntimeError(reason))

    monkeypatch.setattr(ours, "backward", backward)
    fits = "memory" not in reason
    expected = pytest.warns(RuntimeWarning) if fits else nullcontext()
    with expected, pytest.raises(NotMeasuredError if fits else torch.OutOfMemoryError):
        stepping.warm(ours, random_tokens(MINI, 2, MINI.window, CPU))
    assert len(passes) == (stepping.PASSES_BEFORE_GRAPHS if fits else 1)


class TestRowsThatFit:
    def test_straight_from_a_smaller_batch(self) -> None:
        known = [{"peak_bytes": 30, "fixed_bytes": 10, "rows_at_once": 2}]
        assert rows_that_fit(16, known, room=10 + 16 * 10) == 16
        assert rows_that_fit(16, known, room=10 + 16 * 10 - 1) == 8
        assert rows_that_fit(16, known, room=0) == 1

    def test_nothing_known(self) -> None:
        assert rows_that_fit(16, [{"peak_bytes": None, "fixed_bytes": 10, "rows_at_once": 2}], room=0) == 16


def test_peers_that_are_not_installed_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recurrify_papers.bench.peers.find_spec", lambda name: None)
    told: list[str] = []
    bench = mini_bench()
    bench.say = told.append
    result = measure_peers(bench)
    assert [row["name"] for row in result["rows"]] == [peer.package for peer in PEERS] + ["carry", "tail"]
    assert "pip install recurrent-memory-transformer-pytorch block-recurrent-transformer-pytorch" in told[0]


def test_peers_that_are_installed_by_now_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recurrify_papers.bench.peers.find_spec", lambda name: None)
    result = {**measure_peers(mini_bench()), "finished": True}
    assert covers_installed(result)
    monkeypatch.setattr(
        "recurrify_papers.bench.peers.find_spec", lambda name: object() if name == "x_transformers" else None
    )
    assert not covers_installed(result)
