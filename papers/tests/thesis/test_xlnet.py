"""XLNet from left to right: what it may see, what it remembers, and how it learns from sequences of windows."""

from typing import Any

import pytest
import torch
from transformers import GPT2Config, LlamaConfig, XLNetLMHeadModel

from recurrify_papers.thesis.xlnet import WindowedXLNet, left_to_right_inputs, whole_memory, window_losses, xlnet_config
from support.models import text
from support.xlnets import reference_losses, tiny_xlnet

BOTH = pytest.mark.parametrize("attention", ["uni", "bi"])
IGNORED = -100


def losses_of(model: Any, ids: torch.Tensor, window: int, memory: int) -> torch.Tensor:
    """(rows, tokens − 1), window by window."""
    found, held = [], None
    with torch.no_grad(), whole_memory(model):
        for start in range(0, ids.shape[1] - 1, window):
            stop = min(start + window, ids.shape[1] - 1)
            losses, held = window_losses(model, ids[:, start:stop], ids[:, start + 1 : stop + 1], held, memory)
            found.append(losses)
    return torch.cat(found, 1)


@BOTH
@pytest.mark.parametrize("memory", [0, 3, 6, 100], ids=lambda memory: f"memory-{memory}")
def test_a_token_sees_its_window_and_the_memory_and_nothing_else(attention: str, memory: int):
    model, ids = tiny_xlnet(attention), text(1, 20)
    ours = losses_of(model, ids, 6, memory)[0]
    torch.testing.assert_close(
        ours, torch.tensor(reference_losses(model, ids[0].numpy(), 6, memory)), atol=1e-4, rtol=0
    )


@BOTH
def test_no_token_is_predicted_from_itself_or_from_later_ones(attention: str):
    model, ids = tiny_xlnet(attention), text(1, 15)
    other = ids.clone()
    other[0, 9] = (ids[0, 9] + 1) % 50
    scores = []
    with torch.no_grad():
        for tokens in (ids, other):
            inputs = left_to_right_inputs(tokens) if attention == "bi" else {"input_ids": tokens}
            scores.append(model(**inputs).logits[0])
    # The scores after inputs 0 to 8 are for tokens 1 to 9.
    assert torch.equal(scores[0][:9], scores[1][:9])
    assert bool((scores[0][9:] != scores[1][9:]).any(1).all())


@BOTH
def test_sequences_train_as_their_windows_one_after_another(attention: str):
    model, ids = tiny_xlnet(attention), text(2, 21)
    model.set_windows(window=6, memory=4)
    targets = ids[:, 1:].clone()
    targets[1, 11:] = IGNORED  # a shorter row, padded behind
    inputs = ids[:, :-1].clone()
    inputs[1, 11:] = 1
    expected = torch.cat([losses_of(model, ids[:1], 6, 4)[0], losses_of(model, ids[1:, :12], 6, 4)[0]])
    assert model(inputs, targets=targets).loss.item() == pytest.approx(expected.mean().item(), abs=1e-5)
    halved = model(inputs, targets=targets, num_items_in_batch=2 * len(expected)).loss.item()
    assert halved == pytest.approx(expected.mean().item() / 2, abs=1e-5)


@BOTH
def test_checkpointing_changes_no_gradient_and_no_gradient_crosses_windows(attention: str):
    ids = text(2, 19)
    found = []
    for checkpoint in (False, True):
        model = tiny_xlnet(attention).train()
        model.set_windows(window=6, memory=6, checkpoint=checkpoint)
        model(ids[:, :-1], targets=ids[:, 1:]).loss.backward()
        found.append({name: value.grad for name, value in model.named_parameters() if value.grad is not None})
    assert found[0].keys() == found[1].keys()
    for name, gradient in found[0].items():
        torch.testing.assert_close(found[1][name], gradient, msg=name)
    # By hand: each window's loss by itself, the memory a mere number to it.
    model, held = tiny_xlnet(attention).train(), None
    with whole_memory(model):
        for start in (0, 6, 12):
            part = slice(start, start + 6)
            losses, held = window_losses(model, ids[:, :-1][:, part], ids[:, 1:][:, part], held, 6)
            assert not any(part.requires_grad for part in held)
            (losses.sum() / ids[:, 1:].numel()).backward()
    for name, value in model.named_parameters():
        if value.grad is not None:
            torch.testing.assert_close(value.grad, found[0][name], atol=1e-6, rtol=1e-4, msg=name)


@BOTH
def test_every_weight_that_is_used_learns(attention: str):
    model, ids = tiny_xlnet(attention).train(), text(2, 19)
    model.set_windows(window=6, memory=6)
    model(ids[:, :-1], targets=ids[:, 1:]).loss.backward()
    idle = {name.split(".")[-1] for name, value in model.named_parameters() if value.grad is None}
    # One-way reading asks no queries, and plain text has no segments.
    assert idle == ({"mask_emb", "r_s_bias", "seg_embed"} if attention == "uni" else {"r_s_bias", "seg_embed"})


def test_what_is_saved_is_an_xlnet_for_everybody(tmp_path: Any):
    model, ids = tiny_xlnet("uni"), text(1, 9)
    model.set_windows(window=6, memory=4)
    model.save_pretrained(tmp_path)
    theirs = XLNetLMHeadModel.from_pretrained(tmp_path).eval()
    assert type(theirs) is XLNetLMHeadModel
    with torch.no_grad():
        torch.testing.assert_close(theirs(ids).logits, model(ids).logits)
    again = WindowedXLNet.from_pretrained(tmp_path)
    assert (again.window, again.memory) == (6, 4)


def test_a_new_xlnet_has_the_shape_of_the_model_it_stands_beside():
    gpt2 = GPT2Config(vocab_size=70, n_embd=24, n_layer=5, n_head=3, resid_pdrop=0.2, eos_token_id=9, bos_token_id=9)
    config = xlnet_config(gpt2, window=30, memory=20)
    sizes = (config.vocab_size, config.d_model, config.n_layer, config.n_head, config.d_inner, config.d_head)
    assert sizes == (70, 24, 5, 3, 96, 8)
    assert (config.attn_type, config.mem_len, config.window, config.dropout) == ("uni", 20, 30, 0.2)
    assert (config.eos_token_id, config.pad_token_id) == (9, None)
    llama = LlamaConfig(hidden_size=24, intermediate_size=50, num_attention_heads=3, num_hidden_layers=2)
    assert xlnet_config(llama, window=30, memory=0, attention="bi").d_inner == 50
