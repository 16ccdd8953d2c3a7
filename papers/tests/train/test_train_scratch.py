"""Batch rows, scores and steps of models from scratch, compared with computations by hand."""

import math
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from recurrify import UserError
from recurrify.speed import products
from recurrify_papers import graphs
from recurrify_papers.graphs import STEPS_BEFORE_CAPTURE
from recurrify_papers.models.language import language_model
from recurrify_papers.scratch import stepping, training
from recurrify_papers.scratch.rows import BatchRows, score_rows
from recurrify_papers.scratch.settings import ScratchSettings
from recurrify_papers.scratch.stepping import Stepper, chosen_speed
from recurrify_papers.scratch.training import ScratchOutcome
from recurrify_papers.scratch.training import fit as fit_batches

SETTINGS = ScratchSettings(
    out="", arch="xl", data="", steps=10, batch=3, length=8, learning_rate=1e-2, precision="fp32", speed="eager"
)
TINY_XL = {"layers": 2, "width": 16, "heads": 2, "head_width": 8, "inner": 32, "memory_length": 12}
TINY_TRANSFORMER = {name: value for name, value in TINY_XL.items() if name != "memory_length"}
SHAPES: dict[str, dict[str, Any]] = {
    "xl": TINY_XL,
    "rsa-xl": TINY_XL | {"rsa.counts": (0, 1, 1, 0, 0, 0), "rsa.dilations": ()},
    "brt": TINY_TRANSFORMER | {"block": 4, "window": 8, "states": 4},
    "transformer": TINY_TRANSFORMER,
    "lstm": {"width": 16, "layers": 2},
}
VOCABULARY = 11


def stream(symbols: int) -> Tensor:
    """Every third symbol says what the next two are."""
    drawn = torch.randint(VOCABULARY, (symbols // 3 + 1, 1), generator=torch.Generator().manual_seed(7))
    return (drawn + torch.tensor([0, 1, 3])).remainder(VOCABULARY).flatten()[:symbols].to(torch.uint8)


def fit(model: nn.Module, ids: Tensor, settings: ScratchSettings, **more: Any) -> ScratchOutcome:
    return fit_batches(model, BatchRows(ids, settings.batch, settings.length), settings, **more)


class Last(NamedTuple):
    symbol: Tensor


class Repeats(nn.Module):
    """Knows nothing of its input: it predicts the last symbol of the segment before, wherever it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.sureness = nn.Parameter(torch.tensor(2.0))
        self.seen: list[list[int]] = []

    def first_state(self, batch: int) -> Last:
        return Last(torch.zeros(batch, dtype=torch.int64))

    def forward(self, ids_BN: Tensor, state: Last | None = None) -> tuple[Tensor, Last]:
        before = self.first_state(len(ids_BN)) if state is None else state
        self.seen.append(before.symbol.tolist())
        logits_BV = self.sureness * nn.functional.one_hot(before.symbol, VOCABULARY)
        return logits_BV[:, None].expand(-1, ids_BN.shape[1], -1), Last(ids_BN[:, -1])


class Bigrams(nn.Module):
    """A table of scores for the next symbol by this one."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(VOCABULARY, VOCABULARY))

    def first_state(self, batch: int) -> tuple[()]:
        return ()

    def forward(self, ids_BN: Tensor, state: tuple[()] | None = None) -> tuple[Tensor, tuple[()]]:
        return self.table[ids_BN], ()


class TestBatchRows:
    def test_each_row_reads_its_own_part_in_order(self) -> None:
        rows = BatchRows(torch.arange(100), batch=4, length=7)
        assert rows.segments == 3  # 99 targets are 24 for each row
        read = [rows.segment(number) for number in range(3)]
        for row, start in enumerate([0, 24, 48, 72]):
            inputs = torch.cat([segment[row, :-1] for segment in read])
            targets = torch.cat([segment[row, 1:] for segment in read])
            assert inputs.tolist() == list(range(start, start + 21))
            assert targets.tolist() == list(range(start + 1, start + 22))

    def test_too_few_symbols_raise(self) -> None:
        assert BatchRows(torch.arange(13), batch=3, length=4).segments == 1
        with pytest.raises(UserError, match="12 symbols, too few for 3 rows of 4"):
            BatchRows(torch.arange(12), batch=3, length=4)


class TestScore:
    @pytest.mark.parametrize(("batch", "length"), [(1, 10), (3, 1), (7, 64), (200, 10)])
    def test_every_symbol_but_the_first_is_scored_once(self, batch: int, length: int) -> None:
        ids, model = stream(95), Bigrams()
        logits = model.table.detach().double().numpy()
        log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        by_hand = -sum(log_p[this, following] for this, following in pairwise(ids.tolist()))
        ticks: list[int] = []
        found = score_rows(model, ids, batch, length, nullcontext, ticks.append)
        assert found.symbols == 94
        assert found.nats == pytest.approx(by_hand, rel=1e-6)
        assert found.bits_per_symbol == pytest.approx(by_hand / 94 / math.log(2), rel=1e-6)
        assert found.perplexity == pytest.approx(math.exp(by_hand / 94), rel=1e-6)
        assert sum(ticks) == 94

    def test_state_is_carried_along_each_row(self) -> None:
        ids, model = stream(41), Repeats().eval()
        found = score_rows(model, ids, 2, 6, nullcontext)
        # Two rows of 20 targets, in segments of 6, 6, 6 and 2.
        right = 0
        for start in (0, 20):
            for segment in range(4):
                guess = 0 if segment == 0 else int(ids[start + 6 * segment - 1])
                targets = ids[start + 6 * segment + 1 : start + min(6 * segment + 7, 21)]
                right += int((targets == guess).sum())
        by_hand = 40 * math.log(math.exp(2) + VOCABULARY - 1) - 2 * right
        assert found.nats == pytest.approx(by_hand, rel=1e-5)
        assert right > 0

    def test_score_does_not_depend_on_the_segments(self) -> None:
        model = language_model("xl", VOCABULARY, **{**TINY_XL, "memory_length": 100}).eval()
        ids = stream(61)
        whole, in_segments = (score_rows(model, ids, 1, length, nullcontext).nats for length in (60, 7))
        assert in_segments == pytest.approx(whole, rel=1e-5)

    def test_one_symbol_raises(self) -> None:
        with pytest.raises(UserError, match="fewer than two symbols"):
            score_rows(Bigrams(), stream(1), 1, 4, nullcontext)


class TestTraining:
    def test_state_is_carried_and_reset_with_each_epoch(self) -> None:
        model, ids = Repeats(), stream(61)
        fit(model, ids, replace(SETTINGS, batch=2, length=8, steps=8))  # 3 segments of 8 in rows of 30
        expected = [[0, 0], [ids[7], ids[37]], [ids[15], ids[45]]]
        assert model.seen == [expected[step % 3] for step in range(8)]

    def test_steps_equal_plain_adam(self) -> None:
        """Clipping, the schedule and the order of segments, against a loop written out."""
        settings = replace(SETTINGS, max_grad_norm=0.1, warmup_steps=2, steps=6, batch=2, length=5)
        ids = stream(64)
        model, reference = Bigrams(), Bigrams()
        reference.load_state_dict(model.state_dict())
        losses = [point["loss"] for point in fit(model, ids, settings).progress.training]

        adam = torch.optim.Adam(reference.parameters())
        expected = []
        rates = [0.5, 1.0, *(0.5 * (1 + math.cos(math.pi * done / 4)) for done in range(4))]
        for step, rate in enumerate(rates):
            adam.param_groups[0]["lr"] = rate * settings.learning_rate
            starts = [5 * step, 31 + 5 * step]
            logits = torch.cat([reference.table[ids[start : start + 5].long()] for start in starts])
            targets = torch.cat([ids[start + 1 : start + 6] for start in starts]).long()
            loss = -logits.log_softmax(1)[torch.arange(10), targets].mean()
            adam.zero_grad()
            loss.backward()
            norm = reference.table.grad.norm()
            reference.table.grad.mul_((0.1 / (norm + 1e-6)).clamp(max=1.0))
            adam.step()
            expected.append(loss.item())
        assert losses == pytest.approx(expected, rel=1e-5)
        torch.testing.assert_close(model.table, reference.table, rtol=1e-4, atol=1e-5)

    def test_non_finite_loss_names_the_last_checkpoint(self, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(training, "SECONDS_BETWEEN_SAVES", 0)
        model = Repeats()

        def spoil(entry: dict[str, float]) -> None:
            if entry["step"] == 6:
                model.sureness.data.fill_(math.nan)

        with pytest.raises(UserError, match="not finite at step 6: checkpoint-5 is still valid"):
            fit(
                model,
                stream(61),
                replace(SETTINGS, valid_every=2 * SETTINGS.symbols_per_step),
                validate=lambda now, tick: score_rows(now, stream(41), 2, 6, nullcontext),
                folder=tmp_path,
                on_validation=spoil,
            )


def with_flipped_gradients(step: Any) -> Any:
    def wrong(*inputs: Any) -> Any:
        loss, after = step(*inputs)
        return 2 * loss.detach() - loss, after

    return wrong


def capture_on_cpu(monkeypatch: pytest.MonkeyPatch, capture: Any) -> None:
    monkeypatch.setattr(stepping, "chosen_speed", lambda *_: "graph")
    monkeypatch.setattr(graphs, "on_side_stream", lambda step: step())
    monkeypatch.setattr(graphs, "capture", capture)
    monkeypatch.setattr(torch.cuda, "get_rng_state", torch.get_rng_state)
    monkeypatch.setattr(torch.cuda, "set_rng_state", torch.set_rng_state)
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)


class TestSpeed:
    def test_auto(self) -> None:
        auto = replace(SETTINGS, speed="auto")
        assert chosen_speed(auto, torch.device("cpu")) == "eager"
        assert chosen_speed(auto, torch.device("cuda")) == "graph"
        assert chosen_speed(replace(auto, arch="gru"), torch.device("cuda")) == "eager"
        with pytest.raises(UserError, match="no usable CUDA GPU to capture on"):
            chosen_speed(replace(SETTINGS, speed="graph"), torch.device("cpu"))

    def test_compiled_steps_equal_eager_ones_and_compile_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        compiled = []
        real = torch.compile

        def backend(graph: Any, inputs: Any) -> Any:
            compiled.append(graph)
            return graph.forward

        monkeypatch.setattr(torch, "compile", lambda function, **_: real(function, backend=backend, dynamic=False))
        settings = replace(SETTINGS, steps=9)
        ids = stream(3 * 8 * 6 + 1)  # an epoch is 6 steps: the memory fills up twice
        eager, quick = (losses_of(replace(settings, speed=speed), ids) for speed in ("eager", "compile"))
        assert quick == pytest.approx(eager, rel=1e-5)
        assert len(compiled) == 1

    @pytest.mark.parametrize("arch", ["rsa-xl", "brt"])
    def test_steps_in_place_equal_eager_ones(self, arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """The captured path without CUDA: replayed steps find their tensors at the addresses of the capture."""
        places: list[tuple[int, ...]] = []
        captured = []

        class Watched(Stepper):
            def _learn_in_place(self) -> Tensor:
                places.append(tuple(tensor.data_ptr() for tensor in (self.tokens_BN, *self.kept)))
                return super()._learn_in_place()

        def capture(step: Any) -> Any:
            captured.append(len(places))
            return step

        settings = replace(SETTINGS, arch=arch, steps=14)
        ids = stream(3 * 8 * 6 + 1)  # an epoch is 6 steps: the memory fills up three times
        eager = losses_of(settings, ids)
        capture_on_cpu(monkeypatch, capture)
        monkeypatch.setattr("recurrify_papers.scratch.training.Stepper", Watched)
        assert losses_of(settings, ids) == pytest.approx(eager, rel=1e-5)
        assert captured == [STEPS_BEFORE_CAPTURE + 1]  # and the step that the first replay is compared with
        assert len(places) > STEPS_BEFORE_CAPTURE + 2
        assert len(set(places)) == 1

    def test_wrong_compiled_gradients_are_not_used(self, monkeypatch: pytest.MonkeyPatch) -> None:
        settings, ids = replace(SETTINGS, steps=9), stream(3 * 8 * 6 + 1)
        eager = losses_of(settings, ids)
        monkeypatch.setattr(stepping, "compile_function", lambda step, **_: with_flipped_gradients(step))
        with pytest.warns(RuntimeWarning, match="differs from the eager one"):
            assert losses_of(replace(settings, speed="compile"), ids) == eager

    def test_wrong_captured_gradients_are_not_used(self, monkeypatch: pytest.MonkeyPatch) -> None:
        settings, ids = replace(SETTINGS, steps=14), stream(3 * 8 * 6 + 1)
        eager = losses_of(settings, ids)
        flipped = False

        def compiled(step: Any, **_: Any) -> Any:
            wrong = with_flipped_gradients(step)
            return lambda *inputs: (wrong if flipped else step)(*inputs)

        def capture(step: Any) -> Any:
            def replay() -> None:
                nonlocal flipped
                flipped = True
                step()
                flipped = False

            return replay

        capture_on_cpu(monkeypatch, capture)
        monkeypatch.setattr(stepping, "compile_function", compiled)
        with pytest.warns(RuntimeWarning, match="captured training step .* differs from the ordinary one"):
            assert losses_of(settings, ids) == eager

    @pytest.mark.parametrize("segments", [5, 9], ids=["never settles", "settles"])
    def test_only_a_settled_state_is_compiled(self, segments: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """A memory of 12 symbols takes 6 segments of 2 to fill."""
        compiled = []
        monkeypatch.setattr(torch, "compile", lambda function, **_: compiled.append(function) or function)
        settings = replace(SETTINGS, speed="compile", batch=1, length=2, steps=9)
        outcome = fit(language_model("xl", VOCABULARY, **TINY_XL), stream(2 * segments + 1), settings)
        assert (outcome.speed, len(compiled)) == (("compile", 1) if segments == 9 else ("eager", 0))

    @pytest.mark.gpu
    @pytest.mark.parametrize("arch", ["xl", "rsa-xl", "brt", "transformer"])
    def test_eager_compiled_and_captured_steps_are_equal(self, arch: str) -> None:
        settings = replace(SETTINGS, arch=arch, steps=10)
        ids = stream(3 * 8 * 8 + 1).cuda()  # the second epoch begins within these steps
        eager, compiled, graph = (
            losses_of(replace(settings, speed=speed), ids) for speed in ("eager", "compile", "graph")
        )
        assert compiled == pytest.approx(eager, rel=1e-3)
        assert graph == pytest.approx(eager, rel=1e-3)
        assert eager[-1] < eager[0]


def losses_of(settings: ScratchSettings, ids: Tensor) -> list[float]:
    torch.manual_seed(0)
    shape = {**SHAPES[settings.arch], "target_length": settings.length, "dropout": 0.0}
    model = language_model(settings.arch, VOCABULARY, **shape).to(ids.device)
    return [point["loss"] for point in fit(model, ids, settings).progress.training]


class TestSettings:
    def test_learning_rates(self) -> None:
        settings = replace(SETTINGS, learning_rate=1.0, steps=6, warmup_steps=2)
        by_schedule = {
            "constant_with_warmup": [0.5, 1, 1, 1, 1, 1],
            "linear": [0.5, 1, 1, 0.75, 0.5, 0.25],
            "cosine": [0.5, 1, 1, 0.5 + 0.25 * math.sqrt(2), 0.5, 0.5 - 0.25 * math.sqrt(2)],
        }
        for schedule, expected in by_schedule.items():
            one = replace(settings, schedule=schedule)
            assert [one.rate(step) for step in range(6)] == pytest.approx(expected)

    @pytest.mark.parametrize(
        ("changed", "symbols", "vocabulary", "memory", "rows"),
        [
            ({}, 5_000_000, 204, 512, 88),  # four times the symbols of a training step
            ({}, 500_000, 204, 512, 48),  # each of 20 memories and more
            ({}, 20_000, 204, 512, 22),  # as in training
            ({}, 5_000_000, 50_000, 512, 22),
            ({"eval_length": 80}, 5_000_000, 204, 2_100, 119),
            ({"eval_batch": 7}, 5_000_000, 204, 512, 7),
        ],
    )
    def test_rows_of_scoring(
        self, changed: dict[str, Any], symbols: int, vocabulary: int, memory: int | None, rows: int
    ) -> None:
        settings = ScratchSettings(out="", arch="xl", data="", **changed)
        assert settings.scoring_rows(symbols, vocabulary, memory) == rows


@pytest.mark.parametrize(("arch", "kept"), [("xl", False), ("lstm", True)])
def test_only_lstm_layers_use_onednn_on_arm(arch: str, kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "ON_ARM", True)
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", True)
    model = language_model(arch, VOCABULARY, **SHAPES[arch])
    seen: list[bool] = []
    model.register_forward_hook(lambda *_: seen.append(torch.backends.mkldnn.enabled))
    fit(model, stream(200), replace(SETTINGS, arch=arch, steps=2))
    assert set(seen) == {kept}


def test_recurrence_learning_rate() -> None:
    """Adam's first step moves each weight by its learning rate, whatever the gradient."""
    settings = replace(SETTINGS, arch="rsa-xl", learning_rate=1e-3, recurrence_learning_rate=2e-2, warmup_steps=4)
    model = language_model("rsa-xl", VOCABULARY, **SHAPES["rsa-xl"])
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    Stepper(model, BatchRows(stream(200), 3, 8), settings)(0)
    moved = {name: (value - before[name]).abs() for name, value in model.named_parameters() if value.numel()}
    for recurrent, rate in ((True, 0.25 * 2e-2), (False, 0.25 * 1e-3)):
        assert max(
            one.max().item() for name, one in moved.items() if ("encoding" in name) == recurrent
        ) == pytest.approx(rate, rel=1e-2)
