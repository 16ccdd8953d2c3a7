"""The head of captured steps: it uses preallocated memory, in as many parts as necessary."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - everyone's name for it

from recurrify import CarryConfig, RecurrentForCausalLM, add_recurrence
from recurrify.speed import graphed_head
from recurrify.speed.graphed_head import Head
from recurrify.speed.head_loss import ALIGNED, IGNORE
from recurrify.speed.parameter_aliases import ParameterAliases
from support.graphs import AnyDevice, OneWindow, with_recorded_graphs
from support.models import text, tiny


def head_of(model: RecurrentForCausalLM) -> tuple[Head, ParameterAliases]:
    weights = ParameterAliases(model, None)
    return Head(model, weights, None), weights


def head_inputs(model: RecurrentForCausalLM) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    targets = text(3, 7)
    targets[1, 2:5] = IGNORE
    return torch.randn(3, 7, model.base.config.hidden_size), targets


@pytest.mark.parametrize(("at_once", "learns"), [(1, True), (5 * 128, False), (2**29, True)])
def test_losses_and_gradients_are_those_of_a_plain_head(
    at_once: int, learns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice, in the same workspace: gradients of the weights add up."""
    monkeypatch.setattr(graphed_head, "LOGITS_AT_ONCE", at_once)
    model = add_recurrence(tiny("gpt2"), CarryConfig(window=8)).train()
    weight = model.base.lm_head.weight.requires_grad_(learns)
    head, weights = head_of(model)
    hidden, targets = head_inputs(model)
    hidden.requires_grad_()
    plain = F.cross_entropy((hidden @ weight.T).flatten(0, 1), targets.flatten(), reduction="none", ignore_index=IGNORE)
    plain.sum().backward()
    workspace = head.workspace(2 * targets.numel())
    assert workspace.logits.numel() <= max(at_once, workspace.logits.shape[1])
    for times in (1, 2):
        losses, gradient = head.score(hidden.detach(), targets, workspace)
        torch.testing.assert_close(losses.flatten(), plain.detach())
        torch.testing.assert_close(gradient, hidden.grad)
        if learns:
            assert head.sum is weights.sums[next(iter(head.reached))]
            torch.testing.assert_close(head.sum, times * weight.grad)
        else:
            assert head.sum is None


def test_all_windows_of_a_step_use_the_same_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """New memory for each window would fragment that of activations, and grow with the number of windows."""
    graphs = with_recorded_graphs(monkeypatch)
    model = add_recurrence(tiny("gpt2"), CarryConfig(window=8)).train()
    model.compiled_window, model.graphed_steps = OneWindow(model), AnyDevice(model)
    ids = text(2, 40)
    model(ids, labels=ids, return_state=False).loss.backward()
    vocabulary = -(-model.base.config.vocab_size // ALIGNED) * ALIGNED
    products = [kwargs["out"] for function, _, kwargs, _ in graphs[0].operations if is_product(function)]
    logits = [one for one in products if one.shape[1] == vocabulary]
    gradients = [one for one in products if one.shape[0] == vocabulary]
    assert len(logits) == len(gradients) == 5
    assert len({one.data_ptr() for one in logits}) == len({one.data_ptr() for one in gradients}) == 1


def is_product(function: Any) -> bool:
    return function is torch.ops.aten.mm.out
