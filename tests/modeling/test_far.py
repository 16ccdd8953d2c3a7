"""Layers that see far back: against the base over the whole text with a mask for each layer."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from recurrify import FarConfig, UserError, add_recurrence
from support.checks import WINDOW, assert_close, assert_same_gradients, config, gradients, recurrent
from support.models import text, tiny

KEEP, REACH, FAR = 3, 11, (1, 3)


def masks(layers: int, length: int, rows: int) -> list[Tensor]:
    """What each layer's positions see of the whole text."""
    places = torch.arange(length)
    start = places // WINDOW * WINDOW
    found = []
    for layer in range(1, layers + 1):
        back = KEEP + (REACH if layer in FAR else 0)
        allowed = (places[:, None] >= places[None]) & (places[None] >= start[:, None] - back)
        found.append(allowed.expand(rows, 1, -1, -1))
    return found


def whole_text(model: Any, ids: Tensor) -> Tensor:
    """The base's logits, with the layers' masks."""
    seen = masks(len(model.base.model.layers), ids.shape[1], len(ids))

    def use(index: int) -> Any:
        def changed(module: Any, args: Any, named: dict[str, Any]) -> Any:
            return args, named | {"attention_mask": seen[index]}

        return changed

    layers = model.base.model.layers
    hooks = [layer.self_attn.register_forward_pre_hook(use(at), with_kwargs=True) for at, layer in enumerate(layers)]
    logits: Tensor = model.base(ids).logits
    for hook in hooks:
        hook.remove()
    return logits


def far(base: dict[str, Any] | None = None, **settings: Any) -> Any:
    shape = {"keep": KEEP, "sinks": 0, "reach": REACH, "layers": FAR} | settings
    return recurrent("llama", base=base, mechanism="far", **shape)


@pytest.mark.parametrize("checkpoint", [False, True])
def test_equals_the_base_with_a_mask_for_each_layer(checkpoint: bool) -> None:
    """Five windows and a part: values and gradients."""
    model, ids = far({"dtype": torch.double}, checkpoint=checkpoint).train(), text(2, 5 * WINDOW + 3)
    logits = whole_text(model, ids)
    cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
    expected = gradients(model)
    ours = model(ids, labels=ids, return_logits=True)
    ours.loss.backward()
    assert_close(ours.logits, logits, 1e-6)
    assert_same_gradients(gradients(model), expected, 1e-6)


@torch.no_grad()
def test_a_text_that_begins_next_to_one_that_goes_on() -> None:
    """A row without a memory sees none, and fills its own."""
    model, ids = far(), text(2, 6 * WINDOW)
    first = model(ids[:, : 2 * WINDOW])
    state = first.state.reset([0])
    rest = model(ids[:, 2 * WINDOW :], state=state).logits
    assert_close(rest[0], whole_text(model, ids[:1, 2 * WINDOW :])[0])
    assert_close(rest[1], whole_text(model, ids[1:])[0, 2 * WINDOW :])


@torch.no_grad()
def test_while_generating() -> None:
    model, ids = far(), text(2, 5)
    written = model.generate(ids, max_new_tokens=4 * WINDOW, min_new_tokens=4 * WINDOW, do_sample=False, pad_token_id=0)
    for _ in range(4 * WINDOW):
        logits = whole_text(model, ids)[:, -1]
        logits[:, model.generation_config.eos_token_id or 0] = -torch.inf
        ids = torch.cat([ids, logits.argmax(-1, keepdim=True)], dim=1)
    assert (written == ids).all()


def test_wrong_settings() -> None:
    with pytest.raises(UserError, match="`sliding` would hide"):
        config("far", sliding=True)
    for layers in ((), (1, 1)):
        with pytest.raises(UserError, match="`layers` must be"):
            config("far", layers=layers)
    with pytest.raises(UserError, match="has only 3 layers"):
        far(layers=(4,))


@torch.no_grad()
def test_a_longer_reach_means_fewer_windows_at_once() -> None:
    """Each window has far keys of its own: otherwise memory would grow with the reach."""
    most = []
    for reach in (8, 400):
        model = add_recurrence(tiny("llama"), FarConfig(window=8, keep=4, sinks=0, reach=reach))
        model.tokens_at_once = 128
        rows: list[int] = []
        model.base.model.register_forward_hook(lambda *call, rows=rows: rows.append(len(call[2].last_hidden_state)))
        model.eval()(text(1, 8 * 17))
        most.append(max(rows))
    assert most[0] == 16
    assert most[1] < 4
