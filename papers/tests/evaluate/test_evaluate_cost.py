"""What recurrence costs: the structure of the table, models left as they were, tokens to a loss; no clock asserted."""

import math
from typing import Any

import pytest
import torch

from recurrify import CarryConfig, NoRecurrence, UserError, add_recurrence
from recurrify_papers import cost
from recurrify_papers.cost import convergence, measure_cost
from support.models import VOCABULARY, tiny

WINDOW = 8
SMALL: dict[str, Any] = {"rows": 2, "windows": 3, "lengths": (8, 20), "new_tokens": 3, "repeats": 2}


def plain(**more: Any) -> Any:
    return add_recurrence(tiny("gpt2", **more.pop("base", {})), NoRecurrence(**{"window": WINDOW, **more}))


def recurrent(**more: Any) -> Any:
    return add_recurrence(tiny("gpt2"), CarryConfig(**{"window": WINDOW, "hidden_size": 12, **more}))


@pytest.fixture
def slow_clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock on which the calls take 1, 2, 3, … seconds, in the order in which they are made."""
    ticks = [0.0]
    calls = [0]

    def read() -> float:
        # Odd readings begin a call, even ones end it.
        calls[0] += 1
        if calls[0] % 2 == 0:
            ticks[0] += calls[0] // 2
        return ticks[0]

    monkeypatch.setattr(cost.time, "perf_counter", read)
    monkeypatch.setattr(cost, "WARM_UP", 0)
    return ticks


def test_every_cost_is_a_row_and_ratios_are_recurrent_over_plain():
    told: list[str] = []
    found = measure_cost(plain(), recurrent(), **SMALL, say=told.append)
    assert [(row["measure"], row["setting"]) for row in found] == [
        ("parameters", "float32"),
        *[
            (measure, f"2 × 3 windows of 8{more}")
            for more in ("", ", checkpointed")
            for measure in (
                "training tokens per second",
                "training time of the same tokens",
                "peak memory of a training step",
            )
        ],
        *[
            entry
            for length in (8, 20)
            for entry in (
                ("latency of reading a document", f"1 × {length} tokens"),
                ("reading throughput", f"2 × {length} tokens"),
            )
        ],
        ("latency of a generated token", "1 × 3 tokens after 8"),
        ("generated tokens per second", "2 × 3 tokens after 8"),
    ]
    for row in found:
        if row["measure"] == "peak memory of a training step":
            assert row["plain"] is row["recurrent"] is row["ratio"] is None  # nobody counts it on a CPU
            continue
        assert row["ratio"] == row["recurrent"] / row["plain"]
        assert row["better"] == ("higher" if row["unit"] == "tokens/s" else "lower")
        if row["spread"] is not None:
            assert row["spread"][0] <= row["spread"][1]
    assert len(told) == 2 + 2 + 1


def test_the_size_is_that_of_all_parameters():
    ours, theirs = plain(), recurrent()
    row = measure_cost(ours, theirs, **SMALL)[0]
    assert row["plain"] == 4 * sum(p.numel() for p in ours.parameters()) / 2**20
    added = sum(p.numel() for p in theirs.added_parameters().values())
    assert row["recurrent"] - row["plain"] == pytest.approx(4 * added / 2**20)


@pytest.mark.usefixtures("slow_clock")
def test_numbers_are_medians_of_turns_and_spreads_the_range_of_their_ratios():
    found = measure_cost(plain(), recurrent(), **{**SMALL, "repeats": 3})
    # The first six calls are training steps without checkpointing: plain 1, 3, 5 s, recurrent 2, 4, 6 s.
    speed, hours, _ = found[1:4]
    tokens = 2 * 3 * WINDOW
    assert (speed["plain"], speed["recurrent"]) == (tokens / 3, tokens / 4)
    assert speed["spread"] == pytest.approx([1 / 2, 5 / 6])
    assert (hours["plain"], hours["recurrent"]) == (24.0, pytest.approx(32.0))
    assert hours["spread"] == pytest.approx([6 / 5, 2])
    # Calls 13 to 18 read one document of 8 tokens: plain 13, 15, 17 s, recurrent 14, 16, 18 s. 19 to 24 read two.
    latency, throughput = found[7:9]
    assert (latency["plain"], latency["recurrent"]) == (15_000, 16_000)
    assert (throughput["plain"], throughput["recurrent"]) == (2 * 8 / 21, 2 * 8 / 22)
    # Calls 37 to 42 write three tokens, one text at a time.
    assert found[-2]["plain"] == pytest.approx(39_000 / 3)


def test_overlapping_windows_count_their_tokens_once(slow_clock: list[float]):
    speed = measure_cost(plain(overlap=3), recurrent(overlap=3), **{**SMALL, "repeats": 1})[1]
    assert speed["plain"] == 2 * (8 + 5 + 5)


@pytest.mark.parametrize("fails", [False, True], ids=["done", "broken-off"])
def test_models_are_left_as_they_were(fails: bool, monkeypatch: pytest.MonkeyPatch):
    # Dropout draws random numbers, of which the caller's must not be taken.
    pair = plain(base={"resid_pdrop": 0.1}), recurrent(standardize=True, checkpoint=True)
    pair[0].train().base.transformer.h[1].eval()  # a part that was frozen by hand
    kept_gradient = torch.ones_like(next(pair[1].parameters()))
    next(pair[1].parameters()).grad = kept_gradient
    weights = [{name: value.clone() for name, value in model.state_dict().items()} for model in pair]
    modes = [[module.training for module in model.modules()] for model in pair]
    settings = [model.recurrence for model in pair]
    random_numbers = torch.get_rng_state()
    if fails:
        monkeypatch.setattr(cost, "_writing_rows", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            measure_cost(*pair, **SMALL)
    else:
        measure_cost(*pair, **SMALL)
    for model, before, modes_before, setting in zip(pair, weights, modes, settings, strict=True):
        after = model.state_dict()
        assert all(torch.equal(value, after[name]) for name, value in before.items())
        assert [module.training for module in model.modules()] == modes_before
        assert model.recurrence == setting
        assert model.config.recurrence == setting.to_dict()
    gradients = [parameter.grad for model in pair for parameter in model.parameters()]
    assert [gradient for gradient in gradients if gradient is not None] == [kept_gradient]
    assert bool((kept_gradient == 1).all())
    assert torch.equal(torch.get_rng_state(), random_numbers)


def test_a_measured_step_trains_in_training_mode(monkeypatch: pytest.MonkeyPatch):
    pair = plain(), recurrent(standardize=True)
    seen: list[tuple[bool, bool, float]] = []
    before = [next(model.parameters()).detach().clone() for model in pair]
    clear = cost.TrainingStep.clear

    def look(step: cost.TrainingStep) -> None:
        index = 0 if step.model is pair[0] else 1
        moved = (next(step.model.parameters()) - before[index]).abs().max().item()
        seen.append((step.model.training, step.model.recurrence.checkpoint, moved))
        clear(step)

    monkeypatch.setattr(cost.TrainingStep, "clear", look)
    measure_cost(*pair, **SMALL)
    assert [entry[:2] for entry in seen] == [(True, False)] * 2 + [(True, True)] * 2
    assert all(moved > 0 for *_, moved in seen)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_memory_is_each_models_own():
    sizes = {"n_embd": 64, "n_positions": 128}
    pair = [
        add_recurrence(tiny("gpt2", **sizes), config).cuda()
        for config in (NoRecurrence(window=128), CarryConfig(window=128))
    ]
    ballast = torch.zeros(2**28, device="cuda")
    rows = measure_cost(*pair, rows=2, windows=6, lengths=(8,), new_tokens=1, repeats=1)
    kept, checkpointed = (row for row in rows if row["unit"] == "GiB")
    assert 0 < checkpointed["recurrent"] < kept["recurrent"] < ballast.nbytes / 2**30
    assert 0 < kept["plain"] < kept["recurrent"]


def bad_pairs() -> dict[str, tuple[Any, Any, dict[str, Any], str]]:
    return {
        "swapped": (recurrent(), plain(), {}, "mechanism 'none'.*'carry' and 'none'"),
        "base": (plain(), tiny("gpt2"), {}, "`recurrent` must be a causal model.*GPT2LMHeadModel"),
        "window": (plain(window=6), recurrent(), {}, "same window: got 6 for plain, 8"),
        "overlap": (plain(), recurrent(overlap=2), {}, "same overlap: got 0 for plain, 2"),
        "dtype": (plain(base={"dtype": torch.float64}), recurrent(), {}, "same type of weights.*float64"),
        "width": (plain(base={"n_layer": 2}), recurrent(), {}, "same base, by its number of weights"),
        "rows": (plain(), recurrent(), {"rows": 0}, "`rows` must be at least 1: got rows=0"),
        "repeats": (plain(), recurrent(), {"repeats": 0}, "`repeats` must be at least 1"),
        "lengths": (plain(), recurrent(), {"lengths": ()}, "`lengths` must name documents"),
    }


@pytest.mark.parametrize("case", list(bad_pairs()))
def test_what_cannot_be_compared_is_refused_in_a_sentence(case: str):
    ours, theirs, more, sentence = bad_pairs()[case]
    with pytest.raises(UserError, match=sentence):
        measure_cost(ours, theirs, **{**SMALL, **more})


# ---- convergence -----------------------------------------------------------------------------------------


def history(*losses: float | None, every: int = 10) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = []
    for number, loss in enumerate(losses, start=1):
        entries += [{"step": every * number, "loss": 9.0}, {"step": every * number, "eval_loss": loss}]
    return entries


def test_tokens_to_a_loss_are_interpolated_between_validations():
    slow, fast = history(5.0, 4.0, 3.0), history(4.5, 3.0, 2.0)
    found = convergence(
        slow, fast, tokens_per_step_plain=100, tokens_per_step_recurrent=50, levels=(4.75, 3.5, 3.0, 2.5, 1.0)
    )
    assert [row["plain"] for row in found] == [1250, 2500, 3000, None, None]
    # Its first validation lies below 4.75 already: reached there, for all that is known.
    assert [row["recurrent"] for row in found] == pytest.approx([500, 500 + 500 * 2 / 3, 1000, 1250, None])
    assert [row["ratio"] for row in found] == [
        pytest.approx(expected) if expected else None for expected in (0.4, (500 + 1000 / 3) / 2500, 1 / 3, None, None)
    ]
    assert found[1]["setting"] == "loss 3.5000"


def test_levels_lead_to_where_the_slower_run_ends():
    # The best of a run counts, not its last: that is the model which is kept.
    found = convergence(history(5.0, 3.0, 3.2), history(4.0, 2.0), tokens_per_step_plain=1, tokens_per_step_recurrent=1)
    assert [row["setting"] for row in found] == ["loss 3.7500", "loss 3.5000", "loss 3.2500", "loss 3.0000"]
    assert found[-1]["plain"] == 20
    assert found[-1]["recurrent"] == 15
    assert all(row["plain"] is not None and row["recurrent"] is not None for row in found)


def test_a_loss_that_rises_again_counts_where_it_was_first_reached():
    found = convergence(
        history(5.0, 3.0, 4.0, 2.0), history(2.0), tokens_per_step_plain=1, tokens_per_step_recurrent=1, levels=(3.5,)
    )
    assert found[0]["plain"] == 17.5


def test_a_run_that_starts_where_the_other_ends_leaves_one_level():
    found = convergence(history(5.0, 4.0), history(3.0), tokens_per_step_plain=1, tokens_per_step_recurrent=1)
    assert [row["setting"] for row in found] == ["loss 4.0000"]
    assert math.isclose(found[0]["ratio"], 0.5)


@pytest.mark.parametrize(
    ("theirs", "per_step", "sentence"),
    [
        ([{"step": 1, "loss": 3.0}], 1.0, "recurrent run's history has no validation"),
        (history(None), 1.0, "recurrent run's history has no validation"),
        (history(2.0), 0.0, "`tokens_per_step_recurrent` must be a positive number: got 0.0"),
        (history(2.0), math.nan, "`tokens_per_step_recurrent` must be a positive number: got nan"),
    ],
    ids=["no-validation", "lost-number", "zero", "nan"],
)
def test_histories_that_say_nothing_are_refused(theirs: Any, per_step: float, sentence: str):
    with pytest.raises(UserError, match=sentence):
        convergence(history(3.0), theirs, tokens_per_step_plain=1.0, tokens_per_step_recurrent=per_step)


def test_random_tokens_stay_inside_the_vocabulary():
    tokens = cost._random_tokens([plain(), recurrent()], 50, 50)
    assert set(tokens.flatten().tolist()) == set(range(VOCABULARY))
