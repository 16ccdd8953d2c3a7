"""Generation by CUDA graphs: which steps are replayed, and that the tokens stay the same."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from recurrify.speed import graphed_generation
from recurrify.speed.graphed_generation import graph_generation
from support.checks import EVERYWHERE, READ, VARIANTS, WINDOW, recurrent, variants_of
from support.models import DECODERS, LAYERS, PAD, text

NEW = 3 * WINDOW + 1
"""Into a fourth window, so that two windows with a memory are replayed."""


def logits(model: torch.nn.Module, ids: Tensor, **more: object) -> tuple[Tensor, Tensor]:
    settings = {"do_sample": False, "eos_token_id": None, "pad_token_id": PAD, "output_logits": True, **more}
    found = model.generate(ids, max_new_tokens=NEW, return_dict_in_generate=True, **settings)
    return found.sequences, torch.stack(found.logits, 1)


class Captures(list[Callable[[], Tensor]]):
    """Replaces graphs, which need a GPU: runs what would be captured, on the same tensors."""

    def __call__(self, function: Callable[[], Tensor], device: torch.device) -> Callable[[], Tensor]:
        self.append(function)
        return function


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> Captures:
    found = Captures()
    monkeypatch.setattr(graphed_generation, "captured", found)
    monkeypatch.setattr(graphed_generation, "can_capture", lambda model, tokens: model.graphs_generation)
    monkeypatch.setattr(graphed_generation, "STEPS_BEFORE", 2)
    return found


@pytest.mark.parametrize(
    ("variant", "family"), [*READ.items(), ("summary", "gpt2"), ("compress", "llama"), ("kv", "llama")]
)
def test_every_variant_generates_the_same(captures: Captures, variant: str, family: str) -> None:
    model, ids = recurrent(family, **VARIANTS[variant]), text(2, 1)
    expected = logits(model, ids)
    assert not captures
    graph_generation(model)
    found = logits(model, ids)
    assert found[0].tolist() == expected[0].tolist()
    torch.testing.assert_close(found[1], expected[1])
    assert len(captures) == 2  # without and with a memory


def test_padded_rows_share_a_graph_and_beams_use_none(captures: Captures) -> None:
    model = recurrent("gpt2")
    ids, mask = text(2, 6), torch.ones(2, 6, dtype=torch.long)
    mask[0, :3] = 0
    expected = logits(model, ids, attention_mask=mask)
    beams = logits(model, ids, num_beams=2)
    graph_generation(model)
    found = logits(model, ids, attention_mask=mask)
    assert captures
    torch.testing.assert_close(found[1], expected[1])
    captures.clear()
    assert logits(model, ids, num_beams=2)[0].tolist() == beams[0].tolist()
    assert not captures


class Operations(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names[str(function)] += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("settings", [{}, EVERYWHERE["tail"]], ids=["carry", "tail"])
def test_layers_make_no_masks_and_use_fused_gelu(captures: Captures, settings: dict[str, object]) -> None:
    """Each would be several launches per layer and token."""
    model = recurrent("gpt2", **settings)
    graph_generation(model)
    logits(model, text(1, 1))
    assert len(captures) == 2
    for step in captures:
        with Operations() as seen:
            step()
        of_masks = ("aten.where.self", "aten.masked_fill.Scalar", "aten.cat.default", "aten.new_full.default")
        assert all(seen.names[name] < LAYERS for name in of_masks), seen.names
        assert not seen.names["aten.tanh.default"]


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("family", "settings"),
    [
        *((family, EVERYWHERE[name]) for family in DECODERS for name in ("overlap", "tail")),
        *((family, VARIANTS[variant]) for family, variant in variants_of("llama")),
    ],
    ids=str,
)
def test_graphs_generate_the_same(family: str, settings: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphed_generation, "STEPS_BEFORE", 2)
    model, ids = recurrent(family, **settings).cuda(), text(2, 1).cuda()
    expected = logits(model, ids)
    graph_generation(model)
    found = logits(model, ids)
    torch.testing.assert_close(found[1], expected[1], rtol=1e-4, atol=1e-4)
    assert found[0].tolist() == expected[0].tolist()
