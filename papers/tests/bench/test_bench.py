"""What the benchmark checks before it times, what it leaves out, and its command."""

import json
import sys
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

import pytest
import torch
from mini_bench import CPU, LLAMA, MINI, mini_bench
from torch.utils.flop_counter import FlopCounterMode

from recurrify_papers.bench import bench as bench_module
from recurrify_papers.bench.checks import check_generation, compare, distinct_windows, observe
from recurrify_papers.bench.inference import measure_batching, measure_generation, measure_reading
from recurrify_papers.bench.models import NaiveLoop, Recurrent, Transformers, memories, random_tokens, recurrent_model
from recurrify_papers.bench.peers import PEERS, layer_weights, measure_peers
from recurrify_papers.bench.sizes import GPT2, LLAMA_1B, SIZES, SMOLLM2, Size, size_for
from recurrify_papers.bench.timing import (
    OUT_OF_MEMORY,
    WRONG,
    Entrant,
    NotMeasuredError,
    attempt,
    interleave,
    ratio,
)
from recurrify_papers.bench.training import measure_lengths, measure_naive, measure_start, measure_training
from support.commands import invoke

Refused = Callable[..., str]


@pytest.fixture(autouse=True)
def _quick_ceiling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_module, "measure_ceiling", lambda size, device: 1e12)


class TestTimings:
    def test_entrants_take_turns(self) -> None:
        order: list[str] = []
        entrants = [Entrant(name, lambda name=name: order.append(name)) for name in "ab"]
        found = interleave(entrants, 2, CPU)
        assert [name for name, _ in groupby(order)] == ["a", "b"] * 2
        assert [len(one.seconds) for one in found] == [2, 2]

    def test_expected_problems_are_kept_and_others_raised(self) -> None:
        def fail(error: Exception) -> Callable[[], None]:
            def run() -> None:
                raise error

            return run

        assert attempt(fail(NotMeasuredError("not here")), CPU) == "not here"
        assert attempt(fail(torch.OutOfMemoryError("full")), CPU) == OUT_OF_MEMORY
        with pytest.raises(ValueError, match="a bug"):
            attempt(fail(ValueError("a bug")), CPU)

    def test_ratio_is_the_median_over_rounds(self) -> None:
        assert ratio("a / b", [1.0, 2.0, 1.0], [2.0, 2.0, 3.0]) == [
            {"name": "a / b", "ratio": 2.0, "low": 1, "high": 3}
        ]
        assert ratio("a / b", [], [1.0]) == []


class TestChecks:
    def test_a_memory_without_gradients_fails(self) -> None:
        stepper = Recurrent(MINI, "carry", CPU)
        ids = distinct_windows(random_tokens(MINI, 2, 24), MINI.window)
        expected = observe(stepper, ids)
        stepper.recurrent.set_recurrence(bptt_windows=1)
        assert not compare("cut", expected, observe(stepper, ids), CPU)["passed"]

    def test_plain_windows_equal_transformers(self) -> None:
        theirs, plain = Transformers(MINI, CPU), Recurrent(MINI, "plain", CPU)
        ids = random_tokens(MINI, 2, 24)
        expected = observe(theirs, ids, inside_windows=True)
        assert compare("plain", expected, observe(plain, ids, inside_windows=True), CPU)["passed"]

    def test_naive_loop_equals_carry(self) -> None:
        ids = distinct_windows(random_tokens(MINI, 2, 24), MINI.window)
        found = compare("naive", observe(Recurrent(MINI, "carry", CPU), ids), observe(NaiveLoop(MINI, CPU), ids), CPU)
        assert found["passed"], found

    def test_generation_that_forgets_fails(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model = recurrent_model(MINI, "carry", CPU)
        assert check_generation("carry", model, MINI)["passed"]
        other = recurrent_model(MINI, "plain", CPU)
        monkeypatch.setattr(model, "generate", other.generate)
        assert not check_generation("carry", model, MINI)["passed"]

    def test_wrong_variants_are_not_timed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("recurrify_papers.bench.training.compare", lambda name, *_: {"name": name, "passed": False})
        (group,) = measure_training(mini_bench())
        problems = {(row["model"], row["checkpoint"]): row["problem"] for row in group["rows"]}
        assert problems["carry", True] == WRONG
        assert problems["carry", False] is None
        assert not next(row for row in group["rows"] if row["model"] == "carry" and row["checkpoint"])["seconds"]


class TestParts:
    def test_flops_are_what_torch_counts(self) -> None:
        """torch counts all pairs of positions of eager attention, we the causal half."""
        stepper = Transformers(MINI, CPU)
        stepper.model.set_attn_implementation("eager")
        ids = random_tokens(MINI, 2, MINI.window)
        with FlopCounterMode(display=False) as counter:
            stepper.backward(stepper.rows_of(ids))
        masked = 3 * 2 * MINI.window**2 * MINI.width * MINI.layers * len(ids)
        assert stepper.flops_per_token * ids.numel() == pytest.approx(counter.get_total_flops() - masked)

    @pytest.mark.parametrize(
        ("size", "names"), [(MINI, ("plain", "carry", "tail", "lookback")), (LLAMA, ("plain", "carry", "kv-1", "kv"))]
    )
    def test_training_compares_every_memory(self, size: Size, names: tuple[str, ...]) -> None:
        assert set(names) <= set(memories(size))
        (group,) = measure_training(mini_bench(size, memories=names))
        assert all(check["passed"] for check in group["checks"])
        assert {row["model"] for row in group["rows"]} == {"transformers", *names}
        assert all(row["tokens_per_second"] > 0 and row["share_of_ceiling"] > 0 for row in group["rows"])
        needed = {(row["model"], row["checkpoint"]): row["estimated_bytes"] for row in group["rows"]}
        assert needed.pop(("transformers", False)) is None
        assert all(needed[name, True] != needed[name, False] for name in names)
        names = [one["name"] for one in group["ratios"]]
        assert {"carry, eager / plain", "carry, eager / transformers", "carry, eager, checkpointed / unchecked"} <= {
            *names
        }

    def test_without_checkpointed_steps(self) -> None:
        (group,) = measure_training(mini_bench(memories=("carry",), checkpoints=False))
        assert not any(row["checkpoint"] for row in group["rows"])

    def test_lengths_reading_naive(self) -> None:
        assert [group["tokens"] for group in measure_lengths(mini_bench())] == [16, 32]
        (reading,) = measure_reading(mini_bench())
        assert all(check["passed"] for check in reading["checks"])
        assert {(row["model"], row["rows"]) for row in reading["rows"]} >= {("carry", 3), ("transformers", 1)}
        (naive,) = measure_naive(mini_bench())
        assert naive["checks"][0]["passed"]
        assert any(one["name"] == "carry, eager / naive loop" for one in naive["ratios"])

    def test_continuous_batching_needs_a_gpu(self) -> None:
        groups = list(measure_batching(mini_bench()))
        assert [(group["batch"], group["prompt"]) for group in groups] == [(1, 1), (2, 1)]
        assert all("needs a GPU" in row["problem"] for group in groups for row in group["rows"])

    def test_generation_goes_beyond_the_context(self) -> None:
        groups = list(measure_generation(mini_bench()))
        assert all(check["passed"] for check in groups[0]["checks"])
        assert [(group["batch"], group["prompt"]) for group in groups] == [(1, 1), (1, 60), (2, 1)]
        problems = [{row["model"]: row["problem"] for row in group["rows"]} for group in groups]
        assert problems[0]["transformers"] is None
        assert problems[1] == {"transformers": "beyond its context", "plain": None, "carry": None}
        assert all(row["prompt_seconds"] > 0 for group in groups for row in group["rows"] if row["problem"] is None)

    def test_the_first_step_is_timed_twice(self) -> None:
        (group,) = measure_start(mini_bench(memories=("carry",)))
        assert [(row["model"], row["mode"]) for row in group["rows"]] == [
            ("carry", "eager, cold"),
            ("carry", "eager, warm"),
        ]
        assert all(row["seconds"] for row in group["rows"])

    def test_peers_that_are_missing_are_named(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr("recurrify_papers.bench.peers.find_spec", lambda name: None)
        assert list(measure_peers(mini_bench())) == []
        said = capsys.readouterr().err
        assert all(peer.package in said for peer in PEERS)
        assert layer_weights(recurrent_model(MINI, "carry", CPU).base) == MINI.layers * 12 * MINI.width**2

    def test_sizes(self) -> None:
        assert size_for("auto", CPU) is SIZES["tiny"]
        weights = {size.name: _weights(size) for size in (GPT2, SMOLLM2, LLAMA_1B)}
        assert weights["gpt2"] == pytest.approx(124e6, rel=0.01)
        assert weights["smollm2"] == pytest.approx(135e6, rel=0.01)
        assert weights["llama-1b"] == pytest.approx(1.24e9, rel=0.02)


def _weights(size: Size) -> int:
    from recurrify_papers.bench.models import base_model

    with torch.device("meta"):
        named = base_model(size, torch.device("meta")).named_parameters()
    return sum(value.numel() for name, value in named if name != "lm_head.weight")  # tied to the embedding


class TestCommand:
    def test_tables_and_a_page(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused) -> None:
        monkeypatch.setattr("recurrify_papers.bench.sizes.TINY", MINI)
        assert "No benchmark results" in refused("bench", "--only-page", "--out", tmp_path)
        said = invoke("bench", "training", "--out", tmp_path, "--batches", "2", "--mechanisms", "carry")
        assert "carry, eager, checkpointed / plain, batch 2" in said
        assert "<table" in (tmp_path / "index.html").read_text()
        result = json.loads((tmp_path / "training.json").read_text())
        assert [group["batch"] for group in result["groups"]] == [2]
        assert result["provenance"]["config"]["memories"] == ["plain", "carry"]
        # Without the packages for pages only the page is missing.
        for module in ("recurrify.pages.charts", "recurrify_papers.bench.page"):
            monkeypatch.delitem(sys.modules, module)
        monkeypatch.setitem(sys.modules, "altair", None)
        (tmp_path / "index.html").unlink()
        assert "carry, eager, checkpointed / plain, batch 2" in invoke("bench", "--only-page", "--out", tmp_path)
        assert not (tmp_path / "index.html").exists()

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            (["nothing"], "Unknown part 'nothing': choose from training, start"),
            (["--size", "huge"], "Unknown size 'huge': choose auto, tiny"),
            (["--mechanisms", "kv"], "Unknown memory 'kv': choose from plain, carry, tail, lookback-8, lookback."),
            (["--modes", "fast"], "Unknown mode 'fast'"),
            (["--modes", "graphs"], "needs a CUDA GPU"),
            (["--modes", "graphs-layers"], "Mode 'graphs-layers' needs a CUDA GPU"),
            (["--batches", "0"], "must be positive whole numbers: got '0'"),
        ],
    )
    def test_bad_input(
        self, options: list[str], words: str, refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("torch.cuda.is_available", lambda: False)
        assert words in refused("bench", *options, "--out", tmp_path)
