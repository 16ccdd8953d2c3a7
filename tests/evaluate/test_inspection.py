"""Inspecting a text: losses as in evaluation, attention by hand, gradients by finite differences."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from recurrify import NoRecurrence, add_recurrence
from recurrify.data.tokens import TokenizedDocument
from recurrify.evaluate.inspection import gradient_profile, read_text, slot_attention, watched_attention
from recurrify.evaluate.perplexity import evaluate_documents
from recurrify.windows import schedule
from support.checks import WINDOW, fits, recurrent
from support.models import DECODERS, text, tiny

LENGTH = 45
"""Five windows of 8 and a short sixth; with an overlap of 3, more."""
SETTINGS = {
    "carry": {"slots": 2},
    "overlap": {"overlap": 3},
    "tail": {"mechanism": "tail", "overlap": 3, "pooled_slots": 1},
    "memory_tokens": {"mechanism": "memory_tokens"},
    "summary": {"mechanism": "summary", "overlap": 3},
    "compress": {"mechanism": "compress"},
    "kv": {"mechanism": "kv", "overlap": 3},
}

SHOWN = [(family, name) for name in ("tail", "kv") for family in DECODERS if fits(family, name)]


def sample(length: int = LENGTH) -> TokenizedDocument:
    return TokenizedDocument("sample", text(1, length)[0].numpy())


def model_for(name: str, **more: Any) -> Any:
    return recurrent("gpt_neox" if name == "kv" else "gpt2", **{**SETTINGS[name], **more})


class TestReading:
    @pytest.mark.parametrize("name", SETTINGS)
    def test_losses_are_those_of_evaluation(self, name: str) -> None:
        model, whole = model_for(name), sample()
        losses = read_text(model, whole).losses
        assert losses.shape == (LENGTH - 1,)
        for length in (2, WINDOW, WINDOW + 2, LENGTH):
            document = TokenizedDocument("sample", whole.ids[:length], 1, 1, 1)
            found = evaluate_documents(model, [document])
            assert found.nll[0] == pytest.approx(losses[: length - 1].sum(), rel=1e-5)

    def test_state_norms_by_hand(self) -> None:
        model, whole = model_for("tail"), sample()
        ids = torch.as_tensor(whole.ids)[None]
        memories = []
        for span in schedule(LENGTH - 1, WINDOW, 3):
            if span.stop - span.start == WINDOW:
                with torch.no_grad():
                    state = model(ids[:, : span.stop]).state
                memories.append(state.memory.numpy().astype(float).ravel())
        reading = read_text(model, whole)
        assert len(memories) == len(reading.norms) == 8
        assert np.allclose(reading.norms, [np.sqrt((memory**2).sum()) for memory in memories], rtol=1e-5)
        assert reading.changes[0] is None
        moved = [np.sqrt(((new - old) ** 2).sum()) for old, new in pairwise(memories)]
        assert np.allclose(np.array(reading.changes[1:], dtype=float), moved, rtol=1e-4)


class TestSlotAttention:
    @pytest.mark.parametrize("name", [name for name in SETTINGS if name != "compress"])
    def test_attention_sums_to_one(self, name: str) -> None:
        model, whole = model_for(name), sample()
        found = slot_attention(model, whole)
        assert found is not None
        assert found.windows == len(schedule(LENGTH - 1, WINDOW, model.recurrence.overlap)) - 1
        assert ((found.mass > 0) & (found.mass <= 1 + 1e-6)).all()
        assert np.isnan(found.by_token[:WINDOW]).all()
        most = [place for place, slots in enumerate(found.slots) if slots == max(found.slots)]
        assert found.places[WINDOW:].sum(-1) == pytest.approx(found.by_token[WINDOW:, most].mean(-1))
        with torch.no_grad(), watched_attention(model, found.layers) as seen:
            state = model(torch.as_tensor(whole.ids[None, :WINDOW])).state
            seen.clear()
            model(torch.as_tensor(whole.ids[None, WINDOW : WINDOW + 2]), state=state)
        for layer, slots in zip(found.layers, found.slots, strict=True):
            weights = seen[layer]
            assert torch.allclose(weights.sum(-1), torch.ones_like(weights[..., 0]), atol=1e-6)
            own = model.recurrence.overlap + 2  # tokens of the open window
            assert weights.shape[-1] == slots + own
            if own == 2:
                first = weights[0, :, -2]
                # A window's first token sees the slots and itself.
                assert torch.allclose(first[:, :slots].sum(-1), 1 - first[:, slots], atol=1e-6)

    def test_by_hand(self) -> None:
        """Queries and keys of the first layer, from its weights."""
        model = recurrent("gpt2", insert_layer=1, slots=2)
        whole = sample(2 * WINDOW + 1)
        found = slot_attention(model, whole)
        assert found is not None
        assert (found.layers, found.slots, found.windows) == ([0], [2], 1)
        ids = torch.as_tensor(whole.ids)
        with torch.no_grad():
            memory = model(ids[None, :WINDOW]).state.memory[0]
            body = model.base.transformer
            tokens = body.wte(ids[WINDOW : 2 * WINDOW]) + body.wpe(torch.arange(WINDOW))
            mixed = body.h[0].attn.c_attn(body.h[0].ln_1(torch.cat([memory, tokens])))
        queries, keys, _ = (part.unflatten(1, (2, 8)).transpose(0, 1) for part in mixed.split(16, dim=1))
        scores = queries @ keys.mT / 8**0.5
        later = torch.ones(WINDOW + 2, WINDOW + 2, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(later, -torch.inf).softmax(-1)
        assert np.allclose(found.mass[0], weights[:, 2:, :2].sum(-1).mean(0).numpy(), atol=1e-6)

    @pytest.mark.parametrize(("family", "mechanism"), SHOWN)
    def test_every_decoder_and_unchanged_afterwards(self, family: str, mechanism: str) -> None:
        model, whole = recurrent(family, mechanism=mechanism), sample(20)
        own, before = model.base.config._attn_implementation, read_text(model, whole).losses
        found = slot_attention(model, whole)
        assert found is not None
        assert ((found.mass > 0) & (found.mass < 1)).all()
        # A window's first token attends to the slots and itself, the last to a whole window.
        assert found.mass[0, 0] > found.mass[0, -1]
        assert model.base.config._attn_implementation == own
        assert np.array_equal(read_text(model, whole).losses, before)

    def test_no_slots_or_no_memory(self) -> None:
        assert slot_attention(model_for("compress"), sample()) is None
        assert slot_attention(add_recurrence(tiny("gpt2"), NoRecurrence(window=WINDOW)), sample()) is None
        assert slot_attention(model_for("carry"), sample(WINDOW)) is None


def loss_of_window(model: Any, whole: TokenizedDocument, number: int, added: list[Tensor]) -> Tensor:
    """A window's mean loss, by a loop over windows; `added` moves each window's input embeddings."""
    ids = torch.as_tensor(whole.ids)
    memory, live, loss = None, torch.zeros(1, dtype=torch.bool), torch.zeros(())
    statistics = model.mechanism.statistics()
    spans = schedule(len(ids) - 1, WINDOW, model.recurrence.overlap)[: number + 1]
    for span, change in zip(spans, added, strict=True):
        inputs = {"input_ids": ids[None, span.start : span.stop], "use_cache": False}
        hook = model.get_input_embeddings().register_forward_hook(lambda module, args, output, by=change: output + by)
        hidden, memory, _ = model.run_one_window(inputs, memory, live, statistics, writes=True)
        hook.remove()
        live = torch.ones(1, dtype=torch.bool)
        scores = model.family.head(model.base, hidden[0, span.first - span.start :]).log_softmax(-1)
        loss = -scores.gather(1, ids[span.first + 1 : span.stop + 1, None]).mean()
    return loss


class TestGradients:
    @pytest.mark.parametrize("name", SETTINGS)
    def test_finite_differences(self, name: str) -> None:
        """Along the gradient the loss changes by its norm; across it, not at all."""
        model, whole = model_for(name).double(), sample(33)
        found = gradient_profile(model, whole, reach=2, starts=1)
        assert found.windows == [2]
        added = [torch.zeros(1, WINDOW, 16, dtype=torch.double, requires_grad=True) for _ in range(3)]
        gradients = torch.autograd.grad(loss_of_window(model, whole, 2, added), added)
        for back, gradient in enumerate(reversed(gradients)):
            length = found.norms[0, back]
            assert length == pytest.approx(float(gradient.norm()), rel=1e-9)
            assert length > 0

            def slope(direction: Tensor, moved: int = 2 - back) -> float:
                step = 1e-5 * direction / direction.norm()
                ends = []
                for sign in (1, -1):
                    change = [sign * step if index == moved else torch.zeros_like(step) for index in range(3)]
                    with torch.no_grad():
                        ends.append(float(loss_of_window(model, whole, 2, change)))
                return (ends[0] - ends[1]) / 2e-5

            assert slope(gradient) == pytest.approx(length, rel=1e-4)
            aside = torch.randn_like(gradient)
            aside -= gradient * (aside * gradient).sum() / gradient.square().sum()
            assert slope(aside) == pytest.approx(0, abs=1e-4 * length)

    def test_number_of_windows_and_starts(self) -> None:
        model, whole = model_for("carry"), sample()
        few = gradient_profile(model, whole, reach=2, starts=3)
        assert few.windows == [2, 3, 4]
        many = gradient_profile(model, whole, reach=20)
        assert many.windows == [5]
        assert many.norms.shape == (1, 6)
        assert np.allclose(gradient_profile(model, whole, reach=2).norms[-1], many.norms[0, :3], rtol=1e-5)

    def test_plain_windows_have_no_gradient_to_others(self) -> None:
        found = gradient_profile(add_recurrence(tiny("gpt2"), NoRecurrence(window=WINDOW, overlap=3)), sample(), 3)
        assert (found.norms[:, 0] > 0).all()
        assert (found.norms[:, 1:] == 0).all()

    @pytest.mark.parametrize("limit", [1, 2])
    def test_truncated_backpropagation_does_not_matter(self, limit: int) -> None:
        whole = gradient_profile(model_for("carry"), sample(), reach=3)
        assert (whole.norms > 0).all()
        model = model_for("carry", bptt_windows=limit)
        assert np.allclose(gradient_profile(model, sample(), reach=3).norms, whole.norms, rtol=1e-6)
        assert model.recurrence.bptt_windows == limit

    def test_checkpointing_does_not_matter(self) -> None:
        plain = gradient_profile(model_for("tail"), sample())
        model = model_for("tail", checkpoint=True)
        assert np.allclose(gradient_profile(model, sample()).norms, plain.norms, rtol=1e-6)
        assert model.recurrence.checkpoint
        assert all(parameter.grad is None for parameter in model.parameters())

    def test_text_of_one_window(self) -> None:
        found = gradient_profile(model_for("carry"), sample(5))
        assert found.windows == [0]
        assert found.norms.shape == (1, 1)
