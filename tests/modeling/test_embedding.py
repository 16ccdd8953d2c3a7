"""One vector for each token and each document, checked against windows run by hand."""

from typing import Any

import pytest
import torch
from torch import Tensor

from recurrify import NoRecurrence, UserError, add_recurrence
from recurrify.modeling.embedding import embed
from support.checks import config, recurrent
from support.models import tiny
from support.tokenizers import like_bert, like_roberta

TEXT = "Ann met Bob in Rome, then they went to Paris where Eve lived with a cat and a dog for many long years."
TEXTS = [TEXT, "Ann", TEXT[:40], TEXT[20:]]
BERT, BPE = like_bert([TEXT], words=5), like_roberta([TEXT], size=290)
WINDOW = 12


def bert(**settings: Any) -> Any:
    return recurrent("bert", "bare", base={"vocab_size": len(BERT)}, window=WINDOW, **settings)


def by_hand(model: Any, ids: list[int], start: int, stop: int, kept: int) -> Tensor:
    """Vectors of tokens `start + kept` to `stop`, from one window with its special tokens around them."""
    window = torch.tensor([[BERT.cls_token_id, *ids[start:stop], BERT.sep_token_id]])
    return model.base(window).last_hidden_state[0, 1 + kept : -1]


@torch.no_grad()
@pytest.mark.parametrize(("how", "overlap"), [("disjoint", None), ("strided", 4), ("strided", None)])
def test_windows_without_a_memory(how: Any, overlap: int | None) -> None:
    model = bert()
    ids = BERT(TEXT, add_special_tokens=False)["input_ids"]
    room = WINDOW - 2
    shared = 0 if how == "disjoint" else (overlap or WINDOW // 2)
    expected, start, done = [], 0, 0
    while done < len(ids):
        stop = min(start + room, len(ids))
        expected.append(by_hand(model, ids, start, stop, done - start))
        start, done = start + room - shared, stop
    (found,) = embed([TEXT], model, BERT, how, overlap)
    torch.testing.assert_close(found.tokens, torch.cat(expected), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.document, torch.cat(expected).mean(0), rtol=1e-5, atol=1e-5)
    assert found.ids.tolist() == ids
    assert found.offsets is not None
    assert [TEXT[slice(*pair)].lower() for pair in found.offsets] == [
        token.removeprefix("##") for token in BERT.convert_ids_to_tokens(ids)
    ]


@torch.no_grad()
def test_a_memory_passes_from_window_to_window() -> None:
    model = bert()
    ids = BERT(TEXT, add_special_tokens=False)["input_ids"]
    parts, memory, live = [], None, torch.tensor([False])
    for start in range(0, len(ids), WINDOW - 2):
        window = torch.tensor([[BERT.cls_token_id, *ids[start : start + WINDOW - 2], BERT.sep_token_id]])
        hidden, memory, _ = model.run_one_window({"input_ids": window}, memory, live, writes=True)
        parts.append(hidden[0, 1:-1])
        live = torch.tensor([True])
    (found,) = embed([TEXT], model, BERT)
    torch.testing.assert_close(found.tokens, torch.cat(parts), rtol=1e-5, atol=1e-5)
    (plain,) = embed([TEXT], model, BERT, "disjoint")
    torch.testing.assert_close(found.tokens[: WINDOW - 2], plain.tokens[: WINDOW - 2], rtol=1e-5, atol=1e-5)
    assert not torch.allclose(found.tokens[WINDOW - 2 :], plain.tokens[WINDOW - 2 :], atol=1e-3)


@pytest.mark.parametrize("how", ["disjoint", "strided", "recurrent"])
def test_batched_texts_equal_texts_alone(how: Any) -> None:
    model = bert().train()
    together = embed(TEXTS, model, BERT, how, batch=3)
    assert model.training
    for text, found in zip(TEXTS, together, strict=True):
        (alone,) = embed([text], model, BERT, how)
        torch.testing.assert_close(found.tokens, alone.tokens, rtol=1e-5, atol=1e-5)
        assert torch.equal(found.ids, alone.ids)
        assert len(found.tokens) == len(BERT(text, add_special_tokens=False)["input_ids"])


@torch.no_grad()
@pytest.mark.parametrize("how", ["disjoint", "strided", "recurrent"])
def test_decoders_read_one_stream(how: Any) -> None:
    model = recurrent("gpt2", base={"vocab_size": len(BPE)}, window=WINDOW)
    (found,) = embed([TEXT], model, BPE, how)
    ids = BPE(TEXT)["input_ids"][:-1]
    settings = NoRecurrence(window=WINDOW, overlap=WINDOW // 2 if how == "strided" else 0)
    twin = model if how == "recurrent" else add_recurrence(model.base, settings)
    run = twin.forward_windows(torch.tensor([ids]), None, None, None, keep_hidden=True)
    # The first token, [CLS] here, is read but is no part of the text.
    torch.testing.assert_close(found.tokens, run.windows.hidden[0, 1:], rtol=1e-5, atol=1e-5)
    assert found.ids.tolist() == ids[1:]


@torch.no_grad()
def test_a_base_model_and_a_head_of_any_kind() -> None:
    base = tiny("bert", "masked", vocab_size=len(BERT))
    (short,) = embed(["Ann met Bob"], base, BERT, "disjoint")
    expected = base.bert(**BERT("Ann met Bob", return_tensors="pt")).last_hidden_state[0, 1:-1]
    torch.testing.assert_close(short.tokens, expected, rtol=1e-5, atol=1e-5)
    tagger = add_recurrence(tiny("bert", "tags", vocab_size=len(BERT)), config(window=WINDOW))
    assert embed([TEXT], tagger, BERT)[0].tokens.shape == (len(BERT(TEXT)["input_ids"]) - 2, 16)


def test_invalid_arguments_raise() -> None:
    model = bert()
    for words, call in {
        "`how`": lambda: embed(["a"], model, BERT, "sideways"),  # type: ignore[arg-type]
        "brackets": lambda: embed("a", model, BERT),
        "number 2": lambda: embed(["Ann", " "], model, BERT),
        "needs a model with a memory: make": lambda: embed(["Ann"], model.base, BERT),
        "plain windows": lambda: embed(["Ann"], add_recurrence(model.base, NoRecurrence(window=9)), BERT),
        "`overlap` is 3": lambda: embed(["Ann"], model, BERT, "disjoint", 3),
        "no room": lambda: embed(["Ann"], model, BERT, "strided", 10),
    }.items():
        with pytest.raises(UserError, match=words):
            call()


@pytest.mark.parametrize("texts", [[None], ["Ann", 5]], ids=["nothing", "a number"])
def test_values_that_are_not_text_raise(texts: Any) -> None:
    with pytest.raises(UserError, match=f"Text number {len(texts)} is no text but {texts[-1]}"):
        embed(texts, bert(), BERT)
