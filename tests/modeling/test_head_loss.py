"""The head and its loss in one: losses and gradients of a plain head, without keeping its logits."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - everyone's name for it
from torch import Tensor
from torch.nn.utils import prune

from recurrify import CarryConfig, NoRecurrence, add_recurrence
from recurrify.modeling.model import token_losses
from recurrify.speed import head_loss
from recurrify.speed.compiled import CompiledWindow, run_full_window
from recurrify.speed.head_loss import IGNORE, summed_losses
from support.graphs import AnyDevice, OneWindow, without_graphs
from support.models import text, tiny


def inputs(rows: int = 11, width: int = 8, vocabulary: int = 37, dtype: torch.dtype = torch.float64) -> Any:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(rows, width, generator=generator, dtype=dtype).requires_grad_()
    weight = torch.randn(vocabulary, width, generator=generator, dtype=dtype).requires_grad_()
    targets = torch.randint(vocabulary, (rows,), generator=generator)
    targets[3::4] = IGNORE
    return hidden, weight, targets


@pytest.mark.parametrize(
    ("rows_at_once", "vocabulary", "as_on"), [(1, 37, "cpu"), (4, 64, "cpu"), (4, 37, "gpu"), (100, 64, "gpu")]
)
def test_losses_and_gradients_are_those_of_a_plain_head(
    rows_at_once: int, vocabulary: int, as_on: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_loss, "is_plain_cpu", lambda hidden: as_on == "cpu")
    for limit in ("LOGITS_IN_CACHE", "LOGITS_AT_ONCE"):
        monkeypatch.setattr(head_loss, limit, rows_at_once * vocabulary)
    hidden, weight, targets = inputs(vocabulary=vocabulary)
    wanted = F.cross_entropy(hidden @ weight.T, targets, ignore_index=IGNORE, reduction="none")
    found = summed_losses(hidden, weight, targets)
    torch.testing.assert_close(found, wanted)
    ours, theirs = (torch.autograd.grad(one.sum() * 0.3, (hidden, weight)) for one in (found, wanted))
    torch.testing.assert_close(ours, theirs)


def test_frozen_weight_gets_no_gradient() -> None:
    hidden, weight, targets = inputs()
    losses = summed_losses(hidden, weight.detach(), targets)
    assert losses.grad_fn is not None
    assert [tuple(one.shape) for one in losses.grad_fn.saved_tensors if one is not None] == [(11, 8), (11,)]
    losses.sum().backward()
    wanted = token_losses((hidden @ weight.detach().T)[None], targets[None]).sum()
    torch.testing.assert_close(hidden.grad, torch.autograd.grad(wanted, hidden)[0])


@pytest.mark.parametrize("scored", [1, 0], ids=["sum", "mean of none"])
def test_without_targets_gradients_are_zero(scored: int) -> None:
    hidden, weight, targets = inputs()
    losses = summed_losses(hidden, weight, torch.full_like(targets, IGNORE))
    assert not losses.any()
    for gradient in torch.autograd.grad(losses.sum() / torch.tensor(scored), (hidden, weight)):
        assert not gradient.any()


def test_no_rows() -> None:
    hidden, weight, targets = inputs(rows=0)
    losses = summed_losses(hidden, weight, targets)
    losses.sum().backward()
    assert losses.shape == (0,)
    assert hidden.grad.shape == hidden.shape
    assert not weight.grad.any()


def test_half_precision_is_as_exact_as_a_plain_head() -> None:
    hidden, weight, targets = inputs(rows=64, width=64, vocabulary=301, dtype=torch.float32)
    exact = F.cross_entropy(hidden @ weight.T, targets, ignore_index=IGNORE, reduction="none")
    wanted = torch.autograd.grad(exact.mean(), (hidden, weight))
    with torch.autocast("cpu", torch.bfloat16):
        ours = summed_losses(hidden, weight, targets)
        theirs = token_losses(F.linear(hidden, weight)[None], targets[None])[0]
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, theirs)
    for one, other, true in zip(
        torch.autograd.grad(ours.mean(), (hidden, weight)),
        torch.autograd.grad(theirs.mean(), (hidden, weight)),
        wanted,
        strict=True,
    ):
        assert one.dtype == torch.float32
        assert float((one - true).norm()) <= 1.1 * float((other - true).norm())


@pytest.mark.parametrize("base", ["gpt2", "gemma2"])
def test_training_step_is_the_same_with_and_without(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads that are more than a linear map are not changed."""
    monkeypatch.setattr("recurrify.modeling.model.FEW_LOGITS", 0)
    model = add_recurrence(tiny(base), CarryConfig(window=8)).train()
    twin = copy.deepcopy(model)
    monkeypatch.setattr(twin, "makes_gradients_at_once", lambda hidden: False)
    assert model.makes_gradients_at_once(torch.zeros(1)) == (base != "gemma2")
    assert not model.makes_gradients_at_once(torch.zeros(1).half())
    ids = text(2, 29)
    mask = torch.ones_like(ids)
    mask[0, 20:] = 0
    losses = [one(ids, attention_mask=mask, labels=ids).loss for one in (model, twin)]
    torch.testing.assert_close(losses[0], losses[1])
    for loss in losses:
        loss.backward()
    for (name, mine), theirs in zip(model.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-6, msg=name)


def test_returned_losses_may_be_weighted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of a single loss is that of its logits; with summed losses it would be another one."""
    monkeypatch.setattr("recurrify.modeling.model.FEW_LOGITS", 0)
    model = add_recurrence(tiny("gpt2"), CarryConfig(window=8)).train()
    assert model.makes_gradients_at_once(torch.zeros(1))
    ids = text(2, 29)
    weight = model.base.lm_head.weight
    losses = model(ids, labels=ids, return_losses=True).token_losses
    found = torch.autograd.grad(losses[:, 3].sum(), weight)[0]
    logits = model(ids).logits
    wanted = torch.autograd.grad(F.cross_entropy(logits[:, 3], ids[:, 4], reduction="sum"), weight)[0]
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)


def test_compiled_windows_keep_no_logits() -> None:
    """In what the compiler's partition saves for the backward pass."""
    vocabulary, rows, window = 1031, 2, 16
    model = add_recurrence(tiny("gpt2", vocab_size=vocabulary, n_layer=1), NoRecurrence(window=window)).train()
    compiled = CompiledWindow(model, rows)
    compiled.compiled[True] = torch.compile(run_full_window, backend="aot_eager_decomp_partition", dynamic=False)
    model.compiled_window = compiled
    kept: list[tuple[int, ...]] = []

    def record(tensor: Tensor) -> Tensor:
        kept.append(tuple(tensor.shape))
        return tensor

    ids = torch.randint(vocabulary, (rows, 2 * window), generator=torch.Generator().manual_seed(0))
    twin = copy.deepcopy(model)
    twin.compiled_window = None
    with torch.autograd.graph.saved_tensors_hooks(record, lambda one: one):
        loss = model(ids, targets=ids.roll(-1, 1)).loss
    assert kept
    assert not [shape for shape in kept if rows * window in shape and max(shape) >= vocabulary]
    wanted = twin(ids, targets=ids.roll(-1, 1), return_losses=True).loss
    torch.testing.assert_close(loss, wanted)
    loss.backward()
    wanted.backward()
    for (name, mine), theirs in zip(model.named_parameters(), twin.parameters(), strict=True):
        apart = float((mine.grad - theirs.grad).norm() / theirs.grad.norm())
        assert apart < 1e-4, name


CHANGES = {
    "pruned": lambda head: prune.random_unstructured(head, "weight", 0.3),
    "normed": lambda head: torch.nn.utils.parametrizations.weight_norm(head),
    "watched": lambda head: head.register_forward_hook(lambda module, inputs, output: 0.5 * output),
    "replaced": lambda head: setattr(head, "forward", lambda hidden: 0.5 * F.linear(hidden, head.weight)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_head_runs_unchanged(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parametrized weights are trained and hooks run, captured or not."""
    without_graphs(monkeypatch)
    monkeypatch.setattr("recurrify.modeling.model.FEW_LOGITS", 0)
    ids, found = text(2, 24), []
    for captured in (False, True):
        torch.manual_seed(0)
        base = tiny("gpt2", tie_word_embeddings=False)
        model = add_recurrence(base, CarryConfig(window=8)).train()
        torch.manual_seed(1)
        CHANGES[change](model.base.lm_head)
        if captured:
            model.compiled_window, model.graphed_steps = OneWindow(model), AnyDevice(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        losses = []
        for _ in range(3):
            loss = model(ids, labels=ids, return_state=False).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(loss.detach()))
        found.append(losses)
        plain = add_recurrence(tiny("gpt2", tie_word_embeddings=False), CarryConfig(window=8))
        assert plain.has_summable_head(torch.float32)
        assert not model.has_summable_head(torch.float32)
    assert found[0] == pytest.approx(found[1], rel=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
def test_the_kernel_gives_losses_and_gradients_of_a_plain_head(compiled: bool) -> None:
    """With a padded vocabulary, in half precision, and rows without a target."""
    torch._dynamo.reset()
    generator = torch.Generator("cuda").manual_seed(0)
    found = []
    for exact in (True, False):
        generator.manual_seed(0)
        hidden = torch.randn(300, 64, device="cuda", generator=generator).requires_grad_()
        weight = (0.2 * torch.randn(5003, 64, device="cuda", generator=generator)).requires_grad_()
        targets = torch.randint(0, 5003, (300,), device="cuda", generator=generator)
        targets[::7] = head_loss.IGNORE
        if exact:
            losses = F.cross_entropy(hidden @ weight.T, targets, reduction="none")
        else:
            run = torch.compile(head_loss.summed_losses) if compiled else head_loss.summed_losses
            with torch.autocast("cuda", dtype=torch.bfloat16):
                losses = run(hidden, weight, targets)
        (2 * losses.sum()).backward()
        found.append((losses.detach(), hidden.grad, weight.grad))
    for plain, ours in zip(*found, strict=True):
        assert float((plain - ours).norm() / plain.norm()) < 0.02
