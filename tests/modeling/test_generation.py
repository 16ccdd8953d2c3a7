"""`generate` against forward passes over the whole text; `test_families.py` covers greedy decoding in every family."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import pipeline

from recurrify import NoRecurrence, UserError, add_recurrence
from support.checks import (
    EVERYWHERE,
    WINDOW,
    assert_same_state,
    recurrent,
)
from support.models import PAD, text, tiny
from support.words import word_tokenizer

NEW = 2 * WINDOW + 2
"""Enough to pass the ends of two windows after any prompt."""


def greedy(model: Any, ids: Tensor, new: int = NEW, state: Any = None) -> Tensor:
    """Repeatedly the argmax of a forward pass over the text so far."""
    with torch.no_grad():
        for _ in range(new):
            ids = torch.cat([ids, model(ids, state=state).logits[:, -1:].argmax(-1)], 1)
    return ids


def generate(model: Any, ids: Tensor, new: int = NEW, **settings: Any) -> Tensor:
    """Exactly `new` tokens: generation does not stop early."""
    settings = {"do_sample": False, "eos_token_id": None, "pad_token_id": PAD, **settings}
    return model.generate(ids, max_new_tokens=new, **settings)


def assert_greedy(model: Any, ids: Tensor) -> None:
    """Tokens and logits equal those of one forward pass over the generated text."""
    found = generate(model, ids, output_logits=True, return_dict_in_generate=True)
    with torch.no_grad():
        expected = model(found.sequences[:, :-1]).logits[:, ids.shape[1] - 1 :]
    assert found.sequences[:, : ids.shape[1]].tolist() == ids.tolist()
    assert found.sequences[:, ids.shape[1] :].tolist() == expected.argmax(-1).tolist()
    torch.testing.assert_close(torch.stack(found.logits, 1), expected, rtol=1e-4, atol=1e-4)


def left_padded(rows: list[Tensor]) -> tuple[Tensor, Tensor]:
    width = max(row.shape[1] for row in rows)
    ids = torch.cat([torch.nn.functional.pad(row, (width - row.shape[1], 0), value=PAD) for row in rows])
    mask = torch.cat([torch.nn.functional.pad(torch.ones_like(row), (width - row.shape[1], 0)) for row in rows])
    return ids, mask


@pytest.mark.parametrize(("family", "overlap"), [("gpt2", 0), ("llama", 3)])
def test_greedy_equals_forward_passes(family: str, overlap: int) -> None:
    model = recurrent(family, overlap=overlap)
    for length in (3, WINDOW, 11):
        assert_greedy(model, text(2, length, seed=length))


def test_greedy_with_plain_windows() -> None:
    assert_greedy(add_recurrence(tiny("gpt2"), NoRecurrence(window=WINDOW, overlap=3)), text(2, 5))


@pytest.mark.parametrize(("family", "setting"), [("gpt2", "tail"), ("llama", "overlap")])
def test_padded_prompts_equal_each_alone(family: str, setting: str) -> None:
    model = recurrent(family, **EVERYWHERE[setting])
    rows = [text(1, length, seed=length) for length in (13, 2, WINDOW)]
    ids, mask = left_padded(rows)
    together = generate(model, ids, attention_mask=mask)[:, ids.shape[1] :]
    for row, continued in zip(rows, together, strict=True):
        assert continued.tolist() == generate(model, row)[0, row.shape[1] :].tolist()


def test_rows_that_end_early_do_not_change_others() -> None:
    model = recurrent("gpt2", overlap=3)
    rows = [text(1, length, seed=length) for length in (13, 2, WINDOW)]
    ids, mask = left_padded(rows)
    full = generate(model, ids, attention_mask=mask)
    stop = full[1, ids.shape[1] + 9].item()
    ended = generate(model, ids, attention_mask=mask, eos_token_id=stop)
    for row, whole in zip(ended[:, ids.shape[1] :].tolist(), full[:, ids.shape[1] :].tolist(), strict=True):
        length = whole.index(stop) + 1 if stop in whole else len(row)
        assert row[:length] == whole[:length]
        assert set(row[length:]) <= {PAD}


def test_sampling_follows_the_distribution_of_forward() -> None:
    """With the same seed, runs with and without a cache sample the same tokens; another seed gives others."""
    model, samples = recurrent("gpt2", overlap=3), []
    for use_cache, seed in ((True, 7), (False, 7), (True, 8)):
        torch.manual_seed(seed)
        samples.append(generate(model, text(2, 5), do_sample=True, top_k=20, use_cache=use_cache).tolist())
    assert samples[0] == samples[1] != samples[2]


@pytest.mark.parametrize(("family", "overlap"), [("gpt2", 3), ("llama", 0)])
def test_beam_search_equals_a_run_without_cache(family: str, overlap: int) -> None:
    model, ids = recurrent(family, overlap=overlap), text(2, 5)
    settings: dict[str, Any] = {"num_beams": 3, "num_return_sequences": 2, "output_scores": True}
    cached, naive = (
        generate(model, ids, use_cache=use_cache, return_dict_in_generate=True, **settings)
        for use_cache in (True, False)
    )
    assert cached.sequences.tolist() == naive.sequences.tolist()
    torch.testing.assert_close(cached.sequences_scores, naive.sequences_scores, rtol=1e-4, atol=1e-4)
    assert cached.beam_indices.unique().numel() > 2, "no beam was ever reordered"


def test_ragged_beam_search_equals_each_row_alone() -> None:
    model = recurrent("gpt2", overlap=3)
    rows = [text(1, length, seed=length) for length in (13, 2)]
    ids, mask = left_padded(rows)
    together = generate(model, ids, attention_mask=mask, num_beams=3)[:, ids.shape[1] :]
    for row, continued in zip(rows, together, strict=True):
        assert continued.tolist() == generate(model, row, num_beams=3)[0, row.shape[1] :].tolist()


@pytest.mark.parametrize("use_cache", [True, False])
def test_continues_from_a_state(use_cache: bool) -> None:
    model = recurrent("gpt2", overlap=3)
    whole = text(2, 19)
    expected = generate(model, whole)[:, 19:].tolist()
    for split in (5, WINDOW, 13, 18):
        with torch.no_grad():
            state = model(whole[:, :split]).state
        for _ in range(2):  # the state stays as it is
            continued = generate(model, whole[:, split:], state=state, use_cache=use_cache)
            assert continued[:, 19 - split :].tolist() == expected


def test_continues_from_a_state_with_beams_and_several_samples() -> None:
    """Beams and samples repeat the prompt's rows; the state's rows must follow."""
    model, whole = recurrent("gpt2", overlap=3), text(2, 19)
    with torch.no_grad():
        state = model(whole[:, :13]).state
    continued = generate(model, whole[:, 13:], state=state, num_beams=3)
    assert continued[:, 6:].tolist() == generate(model, whole, num_beams=3)[:, 19:].tolist()
    torch.manual_seed(3)
    several = generate(model, whole[:, 13:], state=state, do_sample=True, num_return_sequences=2)
    torch.manual_seed(3)
    expected = generate(model, whole, do_sample=True, num_return_sequences=2)
    assert several[:, 6:].tolist() == expected[:, 19:].tolist()


@pytest.mark.parametrize(("family", "window", "overlap"), [("gpt2", 1, 0), ("llama", 5, 4), ("gpt2", 2, 1)])
def test_extreme_windows(family: str, window: int, overlap: int) -> None:
    model, ids = recurrent(family, window=window, overlap=overlap), text(2, 3)
    assert generate(model, ids, new=12).tolist() == greedy(model, ids, new=12).tolist()


@pytest.mark.parametrize("plain", [False, True])
def test_state_is_returned(plain: bool) -> None:
    model, ids = recurrent("gpt2", overlap=3), text(2, 5)
    if plain:
        model = add_recurrence(tiny("gpt2"), NoRecurrence(window=WINDOW, overlap=3))
    output = generate(model, ids, return_dict_in_generate=True)
    state = output.past_key_values.state
    with torch.no_grad():
        expected = model(output.sequences[:, :-1]).state
    assert_same_state(state, expected, 1e-4)
    longer = generate(model, output.sequences[:, -1:], state=state)
    assert longer[:, 1:].tolist() == generate(model, output.sequences)[:, output.sequences.shape[1] :].tolist()


@pytest.mark.parametrize("family", ["opt", "gemma2", "smollm3"])
def test_more_tokens_than_the_base_has_positions(family: str) -> None:
    model = recurrent(family, base={"max_position_embeddings": 16})
    output = generate(model, text(1, 3), new=3 * 16, output_logits=True, return_dict_in_generate=True)
    assert output.sequences.shape == (1, 51)
    with torch.no_grad():
        expected = model(output.sequences[:, :-1]).logits[:, 2:]
    torch.testing.assert_close(torch.stack(output.logits, 1), expected, rtol=1e-4, atol=1e-4)


def test_cost_per_token_is_constant() -> None:
    overlap = 3
    model = recurrent("gpt2", overlap=overlap, base={"n_layer": 2})
    processed = []
    model.get_input_embeddings().register_forward_hook(lambda *call: processed.append(call[1][0].numel()))
    spent = {}
    for new in (40, 80, 120):  # multiples of the stride
        processed.clear()
        generate(model, text(1, 4), new=new)
        spent[new] = sum(processed)
    assert spent[120] - spent[80] == spent[80] - spent[40]
    # Each token once, and each window twice more: to write its memory, and to begin the next one with its overlap.
    assert spent[120] <= 120 * (1 + (WINDOW + overlap + 1) / (WINDOW - overlap)) + 2 * WINDOW


def test_removing_tokens_raises() -> None:
    model = recurrent("gpt2")
    with pytest.raises(UserError, match="prompt-lookup"):
        generate(model, text(1, 12) % 6, prompt_lookup_num_tokens=3)


def test_state_and_cache_together_raise() -> None:
    model = recurrent("gpt2")
    output = model(text(1, 5), use_cache=True)
    with pytest.raises(UserError, match="either `state` or `past_key_values`"):
        model(text(1, 1), state=output.state, past_key_values=output.past_key_values)


def test_generation_config_of_the_base_is_kept() -> None:
    base = tiny("gpt2")
    base.generation_config.max_new_tokens = 17
    model = add_recurrence(base, type(recurrent("gpt2").recurrence)(window=WINDOW))
    assert model.generation_config.max_new_tokens == 17


def test_pipeline() -> None:
    model, tokenizer = recurrent("gpt2", overlap=3), word_tokenizer()
    write = pipeline("text-generation", model=model, tokenizer=tokenizer, device="cpu")
    prompts = ["w10 w11 w12", "w20"]
    results = write(prompts, max_new_tokens=NEW, do_sample=False, eos_token_id=None, batch_size=1)
    for prompt, result in zip(prompts, results, strict=True):
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        written = result[0]["generated_text"]
        # The pipeline joins the prompt and the generated text without a space.
        expected = tokenizer.decode(greedy(model, ids)[0], skip_special_tokens=True)
        assert written.replace(" ", "") == expected.replace(" ", "")
        assert written.startswith(prompt)
