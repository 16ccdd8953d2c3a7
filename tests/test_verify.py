"""Compiled and captured steps are compared with the eager step on the first batch, and switched off if they differ."""

import copy
import re
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from transformers import TrainingArguments

from recurrify import CarryConfig, add_recurrence
from recurrify.data.sequences import TrainingSequences
from recurrify.data.tokens import TokenizedDocument
from recurrify.speed import verify
from recurrify.speed.compiling import workarounds
from recurrify.speed.verify import Compared, Step, compare_steps, verify_step, verify_windows
from recurrify.train import TrainSettings, finetune, loop
from recurrify.train.loop import RecurrentTrainer
from support.graphs import AnyDevice, OneWindow, without_graphs
from support.models import text, tiny

IDS = text(2, 24)
BATCH = {"input_ids": IDS, "targets": IDS.roll(-1, 1)}


class Window(OneWindow):
    """What would be compiled; its losses are right and their gradients off by `fault`, as of a wrong kernel."""

    def __init__(self, model: Any, fault: float = 0.0) -> None:
        super().__init__(model)
        self.fault = fault

    def takes(self, *_: Any) -> bool:
        return bool(self.model.training)

    def __call__(self, *inputs: Any) -> Any:
        top, *rest = super().__call__(*inputs)
        return top + self.fault * (top - top.detach()), *rest


def compiled_model(fault: float, **base: Any) -> Any:
    model = add_recurrence(tiny("gpt2", **base), CarryConfig(window=8, standardize=True)).train()
    model.compiled_window = Window(model, fault)
    return model


@pytest.mark.parametrize("base", [{}, {"resid_pdrop": 0.3}], ids=["plain", "dropout"])
def test_agreeing_step_stays_compiled_and_nothing_changes(base: dict[str, float]) -> None:
    model = compiled_model(0.0, **base)
    before, seed = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert verify_windows(model, BATCH)
    assert isinstance(model.compiled_window, Window)
    assert not model.recurrence.checkpoint
    assert torch.equal(torch.get_rng_state(), seed)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(weight.grad is None for weight in model.parameters())
    assert [module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)].count(0.3) == 6 * bool(base)


def test_wrong_compiled_gradients_are_switched_off() -> None:
    model = compiled_model(0.03)
    with pytest.warns(
        RuntimeWarning, match=rf"torch {re.escape(torch.__version__)} .*differs.*gradients of the base parameters"
    ):
        assert not verify_windows(model, BATCH)
    assert model.compiled_window is None
    assert model.graphed_steps is None


def test_wrong_captured_gradients_are_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    without_graphs(monkeypatch)
    model = compiled_model(0.03)
    model.graphed_steps = AnyDevice(model)
    with pytest.warns(RuntimeWarning, match="differs from the eager one"):
        assert not verify_windows(model, BATCH)
    assert model.graphed_steps is None


def test_failing_compiled_step_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("no such kernel\nof this GPU")

    model = compiled_model(0.0)
    monkeypatch.setattr(Window, "__call__", fail)
    with pytest.warns(RuntimeWarning, match=r"fails \(RuntimeError: no such kernel\): training continues"):
        assert not verify_windows(model, BATCH)
    assert model.compiled_window is None


def test_full_memory_is_no_failing_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")

    model = compiled_model(0.0)
    monkeypatch.setattr(Window, "__call__", fail)
    with pytest.raises(torch.OutOfMemoryError):
        verify_windows(model, BATCH)


def test_uncompiled_model_is_not_run() -> None:
    model = add_recurrence(tiny("gpt2"), CarryConfig(window=8))
    assert verify_windows(model, {})


def test_half_precision_has_its_own_tolerance() -> None:
    for fault, agrees in ((0.02, True), (0.2, False)):
        model = compiled_model(fault)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert verify_windows(model, BATCH, lambda: torch.autocast("cpu", torch.bfloat16)) is agrees


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"loss": 1.01}, "the loss by 0.01"),
        ({"loss": float("nan")}, "the loss by nan"),
        ({"mechanism.a": 1.1}, "added parameters by 0.1"),
        ({"small": 3.0}, "gradient of small by 2 of"),
        ({"base": float("nan")}, "base parameters by nan"),
    ],
)
def test_differences_are_named(changed: dict[str, float], message: str) -> None:
    sizes = {"base": 1.0, "small": 0.002, "mechanism.a": 1.0}

    def step(factors: dict[str, float]) -> Step:
        gradients = {name: torch.tensor([size * factors.get(name, 1.0)]) for name, size in sizes.items()}
        return Step(torch.tensor(factors.get("loss", 1.0)), {**gradients, "unused": None})

    added = {"is_added": lambda name: name.startswith("mechanism.")}
    assert compare_steps(step({}), step({}), torch.float32, **added) is None
    found = compare_steps(step(changed), step({}), torch.float32, **added)
    assert found is not None
    assert message in found


@pytest.mark.parametrize(("ours", "agrees"), [(1.18, True), (0.9, True), (1.3, False)])
def test_rounding_of_the_eager_step_counts(ours: float, agrees: bool) -> None:
    """The eager step in 16 bits is 10 % away from the one in float32: twice as far is rounding, further is a fault."""

    def step(size: float) -> Step:
        return Step(torch.tensor(1.0), {"weight": torch.tensor([size])})

    # Where rounding drowns the eager step, the compiled one may be as far off, not further.
    drowned = [compare_steps(step(size), step(1.6), torch.bfloat16, exact=step(1.0)) for size in (0.0, 1.55, 1.65)]
    assert [found is None for found in drowned] == [False, True, False]
    found = compare_steps(step(ours), step(1.1), torch.bfloat16, exact=step(1.0))
    message = "the gradients of the base parameters by 0.3 of their norm from the step in float32"
    assert found == (None if agrees else f"{message}, from which the eager one differs by 0.1")


def test_trainer_in_half_precision_is_compared_in_half_precision(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Trainer casts inside the model's forward pass, where the comparison cannot see it."""
    model = compiled_model(0.03)  # a difference that float32 would not have
    args = TrainingArguments(output_dir=str(tmp_path), bf16=True, use_cpu=True, max_steps=1, report_to=[])
    trainer = RecurrentTrainer(model=model, args=args, validate=None, added_learning_rate=None)
    found: list[bool] = []
    monkeypatch.setattr(loop, "verify_windows", lambda *inputs: found.append(verify_windows(*inputs)))
    trainer.accelerator.prepare(model)
    trainer.current_gradient_accumulation_steps = 1
    wrapped = model.forward
    trainer.training_step(model, dict(BATCH))
    assert found == [True]
    assert model.forward is wrapped
    assert not torch.is_autocast_enabled("cpu")


def steps(model: Any, folder: Path, lengths: list[int]) -> list[int]:
    """Train on batches of so many tokens; returns the number of comparisons after each."""
    args = TrainingArguments(output_dir=str(folder), use_cpu=True, max_steps=9, report_to=[])
    trainer = RecurrentTrainer(model=model, args=args, validate=None, added_learning_rate=None)
    trainer.current_gradient_accumulation_steps = 1
    found, counts = [], []
    with mock.patch.object(loop, "verify_windows", lambda *inputs: found.append(verify_windows(*inputs))):
        for length in lengths:
            ids = text(2, length)
            trainer.training_step(model, {"input_ids": ids, "targets": ids.roll(-1, 1)})
            counts.append(len(found))
    return counts


def test_a_kind_of_step_is_compared_when_it_first_occurs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # A first window, one with a memory before it, and a last one that is not full.
    assert steps(compiled_model(0.0), tmp_path, [8, 8, 24, 16, 20, 24]) == [1, 1, 2, 2, 3, 3]
    without_graphs(monkeypatch)
    model = compiled_model(0.0)
    model.graphed_steps = AnyDevice(model)
    assert steps(model, tmp_path, [16, 16, 24, 16, 24]) == [1, 1, 2, 2, 2]


def test_a_fault_of_windows_with_a_memory_is_found_after_one_without(tmp_path: Path) -> None:
    model = compiled_model(0.0)

    class WithFault(Window):
        def __call__(self, job: Any, memory: Any, *rest: Any) -> Any:
            self.fault = 0.5 * (memory is not None)
            return super().__call__(job, memory, *rest)

    model.compiled_window = WithFault(model)
    with pytest.warns(RuntimeWarning, match="differs from the eager one"):
        assert steps(model, tmp_path, [8, 24, 24]) == [1, 2, 2]
    assert model.compiled_window is None


def test_windows_that_run_again_draw_the_same_random_numbers() -> None:
    compared, drawn = Compared(), []

    def windows() -> torch.Tensor:
        drawn.append(torch.rand(1))
        compared.check("a kind")
        return drawn[-1]

    with compared.during(torch.nn.Linear(1, 1), lambda: compared.check("a kind")):
        compared.run(windows)
        assert drawn[0] == drawn[1]
        compared.run(windows)
    assert len(drawn) == 3


def test_wrong_compiled_step_of_any_model_is_not_used() -> None:
    model = torch.nn.Linear(3, 1)
    data = torch.randn(5, 3)

    def eager() -> torch.Tensor:
        loss: torch.Tensor = model(data).square().mean()
        return loss

    def wrong() -> torch.Tensor:
        found = eager()
        return found + 0.1 * (found - found.detach())

    assert verify_step(model, eager, eager)
    with pytest.warns(RuntimeWarning, match="differs from the eager one"):
        assert not verify_step(model, wrong, eager)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # as much as rounding to 16 bits
        assert verify_step(model, eager, eager, lambda: torch.autocast("cpu", torch.bfloat16))


def test_compared_step_has_the_operations_of_dropout() -> None:
    """A compiler fault that only code with dropout has."""
    model = compiled_model(0.0, resid_pdrop=0.3)
    dropout = model.base.transformer.h[0].mlp.dropout

    class WithFault(Window):
        def __call__(self, *inputs: Any) -> Any:
            self.fault = 0.5 * (dropout.p > 0)
            return super().__call__(*inputs)

    model.compiled_window = WithFault(model)
    with pytest.warns(RuntimeWarning, match="differs from the eager one"):
        assert not verify_windows(model, BATCH)
    assert dropout.p == 0.3


def test_training_continues_eagerly(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The first batch of a run shows that the compiled step is wrong; the weights are those of an eager run."""

    def compile_wrongly(model: Any, *_: Any) -> None:
        model.compiled_window = Window(model, 0.5)

    monkeypatch.setattr(finetune, "compile_windows", compile_wrongly)
    weights = []
    for choice in ("on", "off"):
        model = add_recurrence(tiny("gpt2"), CarryConfig(window=8))
        sequences = TrainingSequences(
            [TokenizedDocument("a text", text(1, 200)[0].numpy(), 1, 1, 1)], window=8, windows=3
        )
        settings = TrainSettings(
            model="", data="", out=str(tmp_path / choice), recurrence={"mechanism": "carry", "window": 8},
            batch=2, windows=3, max_tokens=100, compile=choice, warmup_steps=0, learning_rate=1e-2, valid_every=100,
        )  # fmt: skip
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            finetune.train(model, sequences, settings, show_progress=False)
        warned = [one for one in caught if "differs from the eager one" in str(one.message)]
        assert len(warned) == (choice == "on")
        weights.append(model.state_dict())
    for name, value in weights[0].items():
        torch.testing.assert_close(value, weights[1][name], msg=name)


@pytest.mark.parametrize(
    ("version", "needed"),
    [
        ("2.9.1", ()),
        ("2.10.0", ("mix_order_reduction",)),
        ("2.13.0+cu130", ("barriers", "mix_order_reduction")),
        ("2.14.0", ()),
    ],
)
def test_kernels_are_rewritten_only_for_versions_that_need_it(version: str, needed: tuple[str, ...]) -> None:
    assert workarounds(version) == needed


def test_every_precision_of_training_has_a_tolerance() -> None:
    assert {torch.float32, torch.bfloat16, torch.float16} <= verify.TOLERANCES.keys()
