"""Checkpointed training steps, captured window by window: replays compute what eager steps do."""

import copy
import gc
import weakref
from typing import Any

import pytest
import torch

from recurrify import CarryConfig, NoRecurrence, RecurrentForCausalLM, TailConfig, add_recurrence
from recurrify.mechanisms.compress import CompressConfig
from recurrify.mechanisms.kv import KVConfig
from recurrify.mechanisms.lookback import LookbackConfig
from recurrify.mechanisms.memory_tokens import MemoryTokensConfig
from recurrify.mechanisms.summary import SummaryConfig
from recurrify.speed import graphed
from recurrify.speed.graphed import graph_steps
from recurrify.speed.graphed_windows import CheckpointedStep
from support.graphs import AnyDevice, OneWindow, update_alike, without_graphs
from support.models import text, tiny

CONFIGS = {
    "plain": NoRecurrence(window=8, checkpoint=True),
    "carry": CarryConfig(window=8, overlap=3, standardize=True, checkpoint=True),
    "tail": TailConfig(window=8, tail=4, pooled_slots=1, checkpoint=True),
    "two windows back": TailConfig(window=8, tail=4, bptt_windows=2, checkpoint=True),
    "gated tail": TailConfig(window=8, tail=4, gated=True, checkpoint=True),
    "memory tokens": MemoryTokensConfig(window=8, tokens=3, checkpoint=True),
    "compress": CompressConfig(window=8, tokens=2, size=4, checkpoint=True),
    "summary": SummaryConfig(window=8, tokens=2, checkpoint=True),
    "kv": KVConfig(window=8, keep=4, sinks=1, checkpoint=True),
    "lookback": LookbackConfig(window=8, keep=4, checkpoint=True),
}
ROTARY = ("compress", "kv")
ON_CPU = ("carry", "two windows back", "memory tokens", "kv")
"""The others are tested on a GPU."""


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return without_graphs(monkeypatch)


def recurrent(name: str, **base: Any) -> RecurrentForCausalLM:
    model: RecurrentForCausalLM = add_recurrence(tiny("llama" if name in ROTARY else "gpt2", **base), CONFIGS[name])
    return model.train()


def with_twin(name: str, **base: Any) -> tuple[RecurrentForCausalLM, RecurrentForCausalLM]:
    twin = recurrent(name, **base)
    model = copy.deepcopy(twin)
    model.compiled_window, model.graphed_steps = OneWindow(model), AnyDevice(model)
    return model, twin


def ragged(*lengths: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    mask = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
    return text(len(lengths), max(lengths), seed=seed), mask.long()


def compare_steps(model: RecurrentForCausalLM, twin: RecurrentForCausalLM, lengths: tuple[int, int], seed: int) -> None:
    """Losses, gradients, the state of each row and running statistics are those of the eager step."""
    ids, mask = ragged(*lengths, seed=seed)
    results = []
    for one in (model, twin):
        one.zero_grad()
        torch.manual_seed(seed)
        out = one(ids, attention_mask=mask, labels=ids, return_losses=True)
        # A different weight for every token.
        (out.token_losses * torch.linspace(0.5, 1.5, ids.shape[1])).mean().backward()
        results.append((out, torch.rand(())))
    (ours, ours_next), (wanted, wanted_next) = results
    assert ours_next == wanted_next
    torch.testing.assert_close(ours.token_losses, wanted.token_losses)
    for (key, mine), theirs in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert (mine.grad is None) == (theirs.grad is None), key
        if mine.grad is not None:
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-6, msg=key)
    for (key, mine), theirs in zip(model.named_buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(mine, theirs, msg=key)
    assert torch.equal(ours.state.live, wanted.state.live)
    assert torch.equal(ours.state.lengths, wanted.state.lengths)
    for row in range(2):
        if bool(ours.state.live[row]):
            torch.testing.assert_close(ours.state.memory[row], wanted.state.memory[row])


@pytest.mark.parametrize("name", ON_CPU)
def test_replayed_windows_equal_checkpointed_ones(name: str, replays: list[str]) -> None:
    """For any number of windows, and rows of different lengths, with the same few graphs."""
    model, twin = with_twin(name)
    for step, lengths in enumerate([(24, 24), (29, 12), (5, 40)]):
        compare_steps(model, twin, lengths, seed=step)
    assert len(model.graphed_steps.steps) == 1
    assert replays.count("_pass_forward") == 1 + replays.count("_pass_back")  # one more for the shape of the memory


def summed_steps(model: RecurrentForCausalLM, twin: RecurrentForCausalLM, ids: torch.Tensor, labels: Any) -> None:
    """The loss of training and its gradients, scaled as by a gradient scaler or accumulation."""
    losses = []
    for one in (model, twin):
        one.zero_grad()
        torch.manual_seed(0)
        losses.append(one(ids, labels=labels, return_state=False).loss)
        (3 * losses[-1]).backward()
    torch.testing.assert_close(losses[0], losses[1])
    for (key, mine), theirs in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert (mine.grad is None) == (theirs.grad is None), key
        if mine.grad is not None:
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-6, msg=key)


class TestSummedLosses:
    """The gradients of the head are computed with the losses, in the forward pass."""

    @pytest.mark.parametrize("name", ON_CPU)
    def test_a_step_computes_the_same(self, name: str, replays: list[str]) -> None:
        model, twin = with_twin(name)
        for step, length in enumerate([24, 29, 40]):
            ids = text(2, length, seed=step)
            labels = ids.clone()
            labels[0, 3:11] = -100
            labels[1, -step - 1 :] = -100
            summed_steps(model, twin, ids, labels)
        assert [key.summed for key in model.graphed_steps.steps] == [True]
        assert replays

    @pytest.mark.parametrize(("trained", "tied"), [("head", False), ("body", False), ("memory", True)])
    def test_with_frozen_parts(self, trained: str, tied: bool, replays: list[str]) -> None:
        model, twin = with_twin("carry", tie_word_embeddings=tied)
        for one in (model, twin):
            head = one.base.get_output_embeddings().weight
            for name, weight in one.named_parameters():
                inside = "memory" if name.startswith("mechanism.") else "head" if weight is head else "body"
                weight.requires_grad_(trained == "all" or trained == inside)
        for step in range(2):
            ids = text(2, 24, seed=step)
            summed_steps(model, twin, ids, ids)
        assert replays

    def test_batch_without_targets_has_no_gradient(self, replays: list[str]) -> None:
        model, _ = with_twin("carry")
        ids = text(2, 24)
        model(ids, labels=torch.full_like(ids, -100), return_state=False).loss.backward()
        assert all(bool((one.grad == 0).all()) for one in model.parameters() if one.grad is not None)
        assert replays

    def test_two_forward_passes_before_a_backward_pass(self, replays: list[str]) -> None:
        model, twin = with_twin("carry")
        for one in (model, twin):
            losses = [one(ids, labels=ids, return_state=False).loss for ids in (text(2, 24), text(2, 32, seed=1))]
            (losses[0] + 2 * losses[1]).backward()
        for (key, mine), theirs in zip(model.named_parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-6, msg=key)
        assert replays

    def test_kept_gradients_are_limited(self, replays: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        """Beyond the limit none are kept, and the head runs twice."""
        model, twin = with_twin("carry")
        own = sum(weight.numel() * 4 for weight in model.parameters())
        monkeypatch.setattr(graphed, "KEPT_OF_MODEL", 2 * 32.5 * 16 * 4 / own)
        kept: list[int] = []
        back = CheckpointedStep.back

        def watched(step: CheckpointedStep, left: Any, incoming: torch.Tensor) -> Any:
            kept.append(sum(one is not None for one in left.top_gradients))
            return back(step, left, incoming)

        monkeypatch.setattr(CheckpointedStep, "back", watched)
        for length in (32, 33, 40, 40):
            ids = text(2, length, seed=length)
            summed_steps(model, twin, ids, ids)
        assert kept[0] > 0
        assert set(kept[1:]) == {0}
        assert {key.summed for key in model.graphed_steps.steps} == {True, False}

    def test_not_in_float16(self) -> None:
        """Float16 is too narrow for sums of products or gradients."""
        model = recurrent("carry")
        assert model.has_summable_head(torch.bfloat16)
        assert not model.has_summable_head(torch.float16)
        assert not model.half().has_summable_head(torch.bfloat16)


def test_frozen_base(replays: list[str]) -> None:
    """Only what a first window writes has a gradient then."""
    model, twin = with_twin("memory tokens")
    for one in (model, twin):
        one.base.requires_grad_(False)
    for step in range(2):
        compare_steps(model, twin, (24, 24), seed=step)
    assert replays


def test_graphs_are_freed_with_their_holder() -> None:
    """At once, without garbage collection: their memory is needed."""
    model = recurrent("carry")
    model.compiled_window, model.graphed_steps = OneWindow(model), AnyDevice(model)
    holder = model.graphed_steps
    holder.steps[None] = holder._window(0)
    gone = weakref.ref(holder)
    del holder
    gc.disable()
    try:
        model.graphed_steps = None
        assert gone() is None
    finally:
        gc.enable()


def test_dropout_is_the_same_in_both_passes(replays: list[str]) -> None:
    """Gradients are those of one forward pass, and later random numbers those after any such pass."""
    model, twin = with_twin("tail", resid_pdrop=0.3, embd_pdrop=0.3)
    for step in range(2):
        compare_steps(model, twin, (32, 32), seed=step)  # padding would draw random numbers too
    assert replays


def test_backward_passes_in_any_order(replays: list[str]) -> None:
    """Two forward passes before the first backward pass, which is then repeated."""
    model, twin = with_twin("carry")
    for one in (model, twin):
        one.zero_grad()
        losses = [one(ids, labels=ids).loss for ids in (text(2, 24, seed=5), text(2, 33, seed=6))]
        losses[0].backward(retain_graph=True)
        losses[1].backward()
        losses[0].backward()
    assert replays
    for (key, mine), theirs in zip(model.named_parameters(), twin.named_parameters(), strict=True):
        if theirs[1].grad is not None:
            torch.testing.assert_close(mine.grad, theirs[1].grad, rtol=1e-4, atol=1e-5, msg=key)


# ---- on a GPU --------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("name", CONFIGS)
def test_graphs_of_windows_give_the_updates(name: str) -> None:
    model = recurrent(name).cuda()
    twin = copy.deepcopy(model)
    graph_steps(twin, rows=2)
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (model, twin)]
    for update in range(5):
        ids = text(2, 24 + 5 * (update % 3), seed=update).cuda()
        losses = [one(ids, labels=ids).loss for one in (model, twin)]
        torch.testing.assert_close(losses[1], losses[0], rtol=1e-4, atol=1e-5)
        for loss in losses:
            loss.backward()
        update_alike(model, twin, optimizers)
    assert len(twin.graphed_steps.steps) == 1


@pytest.mark.gpu
def test_dropout_in_graphs_of_windows() -> None:
    """The loss changes by its gradient only if both passes drop the same; each step drops others."""
    model = recurrent("tail", resid_pdrop=0.3, embd_pdrop=0.3).cuda()
    graph_steps(model, rows=2)
    ids = text(2, 29).cuda()
    model(ids, labels=ids).loss.backward()
    weight, generator = model.base.transformer.wpe.weight, torch.cuda.default_generators[0]
    model.zero_grad()
    begun = generator.get_state()
    loss = model(ids, labels=ids).loss
    assert not torch.equal(generator.get_state(), begun)
    loss.backward()
    direction, step = weight.grad.clone(), 1e-2 / float(weight.grad.norm())
    assert model(ids, labels=ids).loss.detach() != loss.detach()
    moved = []
    for sign in (1, -1):
        with torch.no_grad():
            weight.add_(direction, alpha=sign * step)
            generator.set_state(begun)
        moved.append(float(model(ids, labels=ids).loss.detach()))
        with torch.no_grad():
            weight.sub_(direction, alpha=sign * step)
    wanted = 2 * step * float(direction.norm()) ** 2
    assert moved[0] - moved[1] == pytest.approx(wanted, rel=0.05)
