"""Training steps as CUDA graphs: which steps are replayed, and that replays compute what eager steps do."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch

from recurrify import CarryConfig, NoRecurrence, RecurrentForCausalLM, TailConfig, UserError, add_recurrence
from recurrify.mechanisms.compress import CompressConfig
from recurrify.mechanisms.lookback import LookbackConfig
from recurrify.mechanisms.memory_tokens import MemoryTokensConfig
from recurrify.mechanisms.summary import SummaryConfig
from recurrify.packing import pack
from recurrify.speed import graphed
from recurrify.speed.graphed import as_built, graph_steps
from recurrify.state import State
from support.graphs import AnyDevice, OneWindow, update_alike, with_recorded_graphs, without_graphs
from support.models import text, tiny

CONFIGS = {
    "plain": NoRecurrence(window=8),
    "carry": CarryConfig(window=8, overlap=3, standardize=True),
    "tail": TailConfig(window=8, tail=4, pooled_slots=1),
}
OTHERS = {
    "gated tail": TailConfig(window=8, tail=4, gated=True),
    "memory tokens": MemoryTokensConfig(window=8, tokens=3),
    "summary": SummaryConfig(window=8, tokens=2),
    "compress": CompressConfig(window=8, tokens=2, size=4),
    "lookback": LookbackConfig(window=8, keep=4),
}
"""Tested on a GPU only: most are captured in the same way."""


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return without_graphs(monkeypatch)


@pytest.fixture
def model(replayed: list[str]) -> RecurrentForCausalLM:
    model: RecurrentForCausalLM = add_recurrence(tiny("gpt2"), CarryConfig(window=8)).train()
    model.compiled_window, model.graphed_steps = OneWindow(model), AnyDevice(model)
    return model


def steps(model: RecurrentForCausalLM, ids: torch.Tensor, number: int = 1, **more: Any) -> Any:
    for _ in range(number):
        out = model(ids, labels=ids, **more)
    return out


def test_every_shape_is_replayed_up_to_a_limit(
    model: RecurrentForCausalLM, replayed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphed, "MOST_GRAPHS", 2)
    steps(model, text(2, 24), 2)
    steps(model, text(2, 32), 2)
    assert len(replayed) == 4
    steps(model, text(2, 40), 5)
    steps(model, text(3, 24), 5)  # not the compiled number of rows
    assert len(replayed) == 4
    steps(model, text(2, 32))
    assert len(replayed) == 5


def test_other_steps_are_compiled_after_a_number_of_them(
    model: RecurrentForCausalLM, replayed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphed, "WORTH_COMPILING", 2)
    compiled: list[int] = []
    run = OneWindow.__call__
    monkeypatch.setattr(OneWindow, "takes", lambda *_: torch.is_grad_enabled())
    monkeypatch.setattr(OneWindow, "__call__", lambda self, *inputs: compiled.append(1) or run(self, *inputs))
    steps(model, text(2, 24))
    assert compiled  # for the graph
    steps(model, text(3, 24), 5)  # not the compiled number of rows; not counted
    one_window = text(2, 8)
    for expected in (0, 0, 1):
        compiled.clear()
        with torch.no_grad():
            steps(model, one_window)  # no training step
        steps(model, one_window)
        assert len(compiled) == expected


def test_other_steps_are_not_replayed(model: RecurrentForCausalLM, replayed: list[str]) -> None:
    ids = text(2, 24)
    out = steps(model, ids)
    before = len(replayed)
    steps(model, text(1, 24))  # not the compiled number of rows
    steps(model, text(2, 8))  # a single window
    steps(model, ids, state=out.state)
    steps(model, ids, return_logits=True)
    model(ids)
    with torch.no_grad():
        steps(model, ids)
    steps(model.eval(), ids)
    assert len(replayed) == before
    steps(model.train(), ids)
    assert len(replayed) == before + 1


def test_state_after_a_replay_is_that_of_the_step(model: RecurrentForCausalLM, replayed: list[str]) -> None:
    twin = copy.deepcopy(model)
    twin.graphed_steps = None
    ids = text(2, 21)  # ends in the middle of a window
    ours, theirs = steps(model, ids), steps(twin, ids)
    assert replayed == ["_pass_forward"]
    torch.testing.assert_close(ours.loss, theirs.loss)
    torch.testing.assert_close(ours.state.memory, theirs.state.memory)
    assert torch.equal(ours.state.live, theirs.state.live)
    assert torch.equal(ours.state.tokens, theirs.state.tokens)
    assert torch.equal(ours.state.lengths, theirs.state.lengths)


def test_step_that_cannot_be_captured_runs_eagerly(
    model: RecurrentForCausalLM, replayed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one warning, and the same weights and results."""
    twin = copy.deepcopy(model)
    twin.graphed_steps = None
    own = graphed.as_built(model)

    def fail(*_: Any) -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    monkeypatch.setattr(graphed.GraphedStep, "_pass_back", fail)
    ids = text(2, 24)
    with pytest.warns(RuntimeWarning, match=r"\(operation not permitted when stream is capturing\): they run compiled"):
        out = steps(model, ids)
    assert graphed.as_built(model) == own
    torch.testing.assert_close(out.loss, steps(twin, ids).loss)
    steps(model, ids, 2).loss.backward()  # a second warning would be an error
    assert not replayed
    assert model.base.transformer.wte.weight.grad is not None


def ragged(*lengths: int) -> tuple[torch.Tensor, torch.Tensor]:
    mask = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
    return text(len(lengths), max(lengths)), mask.long()


@pytest.mark.parametrize(("name", "lengths"), [("plain", (9, 11)), ("carry", (29, 12)), ("tail", (5, 40))])
def test_rows_of_different_lengths(name: str, lengths: tuple[int, int], replayed: list[str]) -> None:
    """Losses, gradients, the state of each row and running statistics are those of the eager step."""
    twin = add_recurrence(tiny("gpt2"), CONFIGS[name]).train()
    model = copy.deepcopy(twin)
    model.compiled_window, model.graphed_steps = OneWindow(model), AnyDevice(model)
    model.graphed_steps.most_windows = 12
    ids, mask = ragged(*lengths)
    for _ in range(2):
        results = []
        for one in (model, twin):
            one.zero_grad()
            out = one(ids, attention_mask=mask, labels=ids, return_losses=True)
            out.loss.backward()
            results.append(out)
        torch.testing.assert_close(results[0].token_losses, results[1].token_losses)
        for (key, mine), theirs in zip(model.named_parameters(), twin.parameters(), strict=True):
            theirs_grad = torch.zeros_like(theirs) if theirs.grad is None else theirs.grad
            mine_grad = torch.zeros_like(mine) if mine.grad is None else mine.grad
            torch.testing.assert_close(mine_grad, theirs_grad, msg=key)
        for (key, mine), theirs in zip(model.named_buffers(), twin.buffers(), strict=True):
            torch.testing.assert_close(mine, theirs, msg=key)
        ours, wanted = results[0].state, results[1].state
        assert torch.equal(ours.live, wanted.live)
        assert torch.equal(ours.lengths, wanted.lengths)
        for row in range(2):
            assert torch.equal(ours.tokens[row, : ours.lengths[row]], wanted.tokens[row, : ours.lengths[row]])
            if bool(ours.live[row]):
                torch.testing.assert_close(ours.memory[row], wanted.memory[row])
    assert replayed == ["_pass_forward", "_pass_back"] * 2


def test_summed_losses_give_the_same_step(replayed: list[str]) -> None:
    """If losses are only summed, the gradients of the head are computed with them, and scaled once per step."""
    twin = add_recurrence(tiny("gpt2"), CONFIGS["carry"]).train()
    model = copy.deepcopy(twin)
    model.compiled_window, model.graphed_steps = OneWindow(model), AnyDevice(model)
    for step in range(3):
        ids = text(2, 24, seed=step)
        labels = ids.clone()
        labels[0, 3:11] = -100
        losses = []
        for one in (model, twin):
            one.zero_grad()
            losses.append(one(ids, labels=labels, return_state=False).loss)
            (3 * losses[-1]).backward()
        torch.testing.assert_close(*losses)
        for (key, mine), theirs in zip(model.named_parameters(), twin.parameters(), strict=True):
            assert (mine.grad is None) == (theirs.grad is None), key
            if mine.grad is not None:
                torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-6, msg=key)
    assert [key.summed for key in model.graphed_steps.steps] == [True]
    assert replayed.count("_pass_forward") == replayed.count("_pass_back") == 3


@pytest.mark.parametrize(("name", "checkpoint"), [("carry", False), ("tail", True), ("lookback", True)])
def test_replays_run_no_python(name: str, checkpoint: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps with changing weights and texts run only the operations of one capture, on its tensors."""
    recorded = with_recorded_graphs(monkeypatch)
    twin = add_recurrence(tiny("gpt2"), replace((CONFIGS | OTHERS)[name], checkpoint=checkpoint)).train()
    model = copy.deepcopy(twin)
    model.compiled_window, model.graphed_steps = OneWindow(model), AnyDevice(model)
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (model, twin)]
    for step in range(4):
        ids = text(2, 24, seed=step)
        losses = [one(ids, labels=ids, return_state=False).loss for one in (model, twin)]
        torch.testing.assert_close(*losses)
        for loss in losses:
            loss.backward()
        update_alike(twin, model, optimizers)
    assert len(recorded) == (4 if checkpoint else 2)  # forward and backward, of a first window and of later ones
    assert all(one.replays > 3 for one in recorded)


def test_dropout_is_part_of_the_model() -> None:
    """Otherwise captured steps would keep the old dropout. Llama and OPT have no module for it."""
    for family, module, name in (
        ("llama", "model.layers.1.self_attn", "attention_dropout"),
        ("gpt2", "transformer.drop", "p"),
    ):
        model = add_recurrence(tiny(family), CarryConfig(window=8)).train()
        before = as_built(model)
        assert as_built(model) == before
        setattr(model.base.get_submodule(module), name, 0.5)
        assert as_built(model) != before


def test_failed_capture_invalidates_the_step_before_it(model: RecurrentForCausalLM) -> None:
    """The warm-up wrote to the memory in which gradients of that step are summed."""
    waiting = model(text(2, 24), labels=text(2, 24), return_state=False).loss
    with pytest.warns(RuntimeWarning, match="could not be captured"):
        model.graphed_steps._give_up(RuntimeError("out of memory"))
    with pytest.raises(UserError, match="before the backward pass"):
        waiting.backward()


def test_frozen_model_is_not_captured(model: RecurrentForCausalLM, replayed: list[str]) -> None:
    """It is captured once it is trained."""
    model.requires_grad_(False)
    steps(model, text(2, 24))
    assert not replayed
    model.requires_grad_(True)
    steps(model, text(2, 24))
    assert replayed


def test_intermediate_results_are_not_held(model: RecurrentForCausalLM) -> None:
    held: list[graphed.Found] = []
    init = graphed.GraphedStep.__init__

    def watched(step: Any, *inputs: Any) -> None:
        init(step, *inputs)
        held.append(step.found)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graphed.GraphedStep, "__init__", watched)
        steps(model, text(2, 24))
    assert not held[0].tops
    assert not held[0].top_gradients
    assert held[0].losses.grad_fn is None


def test_numbers_of_windows_are_rounded_up(model: RecurrentForCausalLM) -> None:
    assert [graphed.round_up(number) for number in (1, 2, 5, 7, 8, 9, 13, 16, 17, 21, 33)] == [
        *(1, 2, 5, 7, 8, 10, 14, 16, 20, 24, 40)
    ]
    ids, mask = ragged(17 * 8, 3)
    steps(model, ids, attention_mask=mask)
    steps(model, text(2, 19 * 8), 1)
    steps(model, ids, attention_mask=mask)  # at most as many as the longest batch has
    assert {(key.windows, key.filled_up) for key in model.graphed_steps.steps} == {(19, False), (19, True)}


def test_longer_batches_replace_unused_graphs(model: RecurrentForCausalLM) -> None:
    for windows in (8, 9, 11, 9):
        ids, mask = ragged(windows * 8, 3)
        steps(model, ids, attention_mask=mask)
    assert [key.windows for key in model.graphed_steps.steps] == [8, 11, 10]


def exchange(module: torch.nn.Module, name: str) -> None:
    """Another parameter with the same memory."""
    module.register_parameter(name, torch.nn.Parameter(module.get_parameter(name).data))


def test_moved_weights_are_captured_again(model: RecurrentForCausalLM) -> None:
    ids = text(2, 24)
    steps(model, ids)
    (old,) = model.graphed_steps.steps.values()
    weight = model.base.transformer.wte.weight
    weight.data = weight.data.clone()
    steps(model, ids)
    (other,) = model.graphed_steps.steps.values()
    assert other is not old
    for change in (
        lambda: model.base.requires_grad_(False),
        lambda: setattr(weight, "data", weight.data.clone()),  # now frozen
        lambda: exchange(model.base.transformer.wpe, "weight"),
        lambda: model.base.transformer.drop.eval(),
    ):
        (other,) = model.graphed_steps.steps.values()
        change()
        steps(model, ids)
        assert other not in model.graphed_steps.steps.values()


def test_steps_on_a_cpu_are_never_captured() -> None:
    model = add_recurrence(tiny("gpt2"), CarryConfig(window=8)).train()
    graph_steps(model)
    ids = text(2, 24)
    for _ in range(2):
        assert not model.graphed_steps.takes(pack(ids, None, State.fresh(2)), State.fresh(2))


# ---- on a GPU --------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("name", CONFIGS | OTHERS)
def test_replayed_updates_are_the_updates(name: str) -> None:
    """Losses, gradients, statistics and weights over several updates, two batches to each."""
    config = (CONFIGS | OTHERS)[name]
    family = "llama" if name in OTHERS and name != "lookback" else "gpt2"  # its models have absolute positions
    model = add_recurrence(tiny(family), config).cuda().train()
    twin = copy.deepcopy(model)
    graph_steps(twin)
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (model, twin)]
    for update in range(5):
        for batch in range(2):
            ids = text(2, 29, seed=10 * update + batch).cuda()
            mask = torch.ones_like(ids)
            mask[1, 12 + update % 2 :] = 0  # the same graph for other lengths
            losses = [one(ids, attention_mask=mask, labels=ids).loss for one in (model, twin)]
            torch.testing.assert_close(losses[1], losses[0], rtol=1e-4, atol=1e-5)
            for loss in losses:
                loss.backward()
        update_alike(model, twin, optimizers)
    assert len(twin.graphed_steps.steps) == 1
    for (key, mine), theirs in zip(model.named_buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(theirs, mine, rtol=1e-4, atol=1e-5, msg=key)


@pytest.mark.gpu
def test_late_backward_pass_raises() -> None:
    model = add_recurrence(tiny("gpt2"), CarryConfig(window=8)).cuda().train()
    graph_steps(model)
    ids = text(2, 24).cuda()
    for _ in range(2):
        model(ids, labels=ids).loss.backward()
    first = model(ids, labels=ids).loss
    model(ids, labels=ids)
    with pytest.raises(UserError, match="call backward once after each step"):
        first.backward()
    again = model(ids, labels=ids).loss
    again.backward(retain_graph=True)
    with pytest.raises(UserError, match="call backward once after each step"):
        again.backward()
