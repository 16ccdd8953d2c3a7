"""Aliases of weights while steps are captured: their gradients are those of the weights, summed over windows."""

import copy
from typing import Any

import pytest
import torch

from recurrify import CarryConfig, RecurrentForCausalLM, TailConfig, add_recurrence
from recurrify.packing import pack
from recurrify.speed.compiled import compile_windows
from recurrify.speed.parameter_aliases import ParameterAliases, matrices, trained
from recurrify.state import State
from support.models import text, tiny

HALF = torch.bfloat16


def model_and_twin(family: str = "gpt2", **config: Any) -> tuple[RecurrentForCausalLM, RecurrentForCausalLM]:
    model = add_recurrence(tiny(family), TailConfig(window=8, tail=4, pooled_slots=1, **config)).train()
    return model, copy.deepcopy(model)


def run(model: RecurrentForCausalLM, ids: torch.Tensor, weights: ParameterAliases | None = None) -> torch.Tensor:
    """The losses of all windows; with aliases, each window reads the weights through its own tap."""
    losses = []
    if weights is not None:
        weights.tap()
    windows = model.each_window(pack(ids, None, State.fresh(len(ids))), State.fresh(len(ids)), ids.roll(-1, 1))
    for one in windows:
        losses.append(one.output)
        if weights is not None:
            weights.tap()
    return torch.cat(losses, dim=1)


def gradients(model: RecurrentForCausalLM, ids: torch.Tensor) -> list[torch.Tensor | None]:
    return list(torch.autograd.grad(run(model, ids).sum(), trained(model), allow_unused=True))


def test_aliases_replace_the_weights_for_a_while() -> None:
    """They share the memory of the weights and get their gradients; tied weights have one alias."""
    model, twin = model_and_twin()
    for one in (model, twin):
        one.base.transformer.wpe.weight.requires_grad_(False)
    ids, own = text(2, 24), trained(model)
    wanted = gradients(twin, ids)
    weights = ParameterAliases(model, None)
    with weights.in_place():
        assert all(mine is not other for mine, other in zip(own, trained(model), strict=True))
        assert [one.data_ptr() for one in weights.leaves] == [one.data_ptr() for one in own]
        assert model.base.lm_head.weight is model.base.transformer.wte.weight
        losses = run(model, ids, weights)
        assert model.base.lm_head.weight is model.base.transformer.wte.weight
        torch.autograd.grad(losses.sum(), weights.leaves, allow_unused=True)
    assert all(mine is other for mine, other in zip(own, trained(model), strict=True))
    found = weights.gradients(weights.reached)
    assert sum(one is not None for one in wanted) > 20
    for one, other in zip(wanted, found, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(other, one)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_matrices_in_half_precision_equal_those_of_autocast(family: str) -> None:
    """Losses are the same; gradients are summed in the precision of the weights."""
    model, twin = model_and_twin(family)
    ids = text(2, 40)
    weights = ParameterAliases(model, HALF)
    assert len(weights.halves) == len(matrices(model)) > 5
    with torch.autocast("cpu", HALF, cache_enabled=False):
        with weights.in_place():
            losses = run(model, ids, weights)
            torch.autograd.grad(losses.sum(), weights.leaves, allow_unused=True)
        assert torch.equal(losses, run(twin, ids))
        wanted = gradients(twin, ids)
    assert all(one.dtype == torch.float32 for one in weights.sums)
    names = [name for name, one in model.named_parameters() if one.requires_grad]
    for name, one, other in zip(names, wanted, weights.gradients(weights.reached), strict=True):
        if one is not None:
            torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-6, msg=name)


def test_changed_weights_are_copied() -> None:
    model, _ = model_and_twin()
    weights = ParameterAliases(model, HALF)
    with torch.no_grad():
        for one in model.parameters():
            one.add_(1.0)
    weights.refresh()
    for half, own in zip(weights.halves, weights.cast, strict=True):
        assert torch.equal(half, own.to(HALF))


def test_only_matrices_of_the_base_are_halved() -> None:
    """Not embeddings and a head that is tied to them; frozen matrices are."""
    model, _ = model_and_twin()
    model.base.transformer.h[0].requires_grad_(False)
    found = {id(one) for one in matrices(model)}
    assert id(model.base.lm_head.weight) not in found
    assert not found & {id(one) for one in model.mechanism.parameters()}
    assert id(model.base.transformer.h[0].mlp.c_fc.weight) in found
    assert id(model.base.transformer.h[0].mlp.c_fc.bias) not in found
    weights = ParameterAliases(model, HALF)
    frozen = weights.halves[weights.cast.index(model.base.transformer.h[0].attn.c_attn.weight)]
    assert not frozen.requires_grad
    with weights.in_place():
        assert model.base.transformer.h[0].attn.c_attn.weight is frozen


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch hides it unless warnings are errors
def test_windows_are_compiled_once_for_all_taps(monkeypatch: pytest.MonkeyPatch) -> None:
    """One graph for a first window and one for later ones, whatever tap they read through, with the same results."""
    real = torch.compile
    # Without torch's code generator, which takes half a minute if nothing is cached.
    monkeypatch.setattr(torch, "compile", lambda function, **_: real(function, backend="aot_eager", dynamic=False))
    torch._dynamo.reset()
    model = add_recurrence(tiny("gpt2", n_layer=1), CarryConfig(window=8, insert_layer=1)).train()
    twin = copy.deepcopy(model)
    compile_windows(model, rows=2)
    weights, ids = ParameterAliases(model, None), text(2, 32)
    wanted = gradients(twin, ids)
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    with weights.in_place():
        for _ in range(2):
            torch._foreach_zero_(weights.sums)
            losses = run(model, ids, weights)
            torch.autograd.grad(losses.sum(), weights.leaves, allow_unused=True)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] - before == 2
    for one, other in zip(wanted, weights.gradients(weights.reached), strict=True):
        if one is not None and other is not None:
            torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5)
