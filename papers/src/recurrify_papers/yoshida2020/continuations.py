"""What models write after a context they can only remember: greedy continuations in a fresh window."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from transformers import PreTrainedModel

from recurrify.errors import UserError
from recurrify.evaluate.perplexity import (
    NamedTokens,
    as_recurrent,
    check_counts,
    check_ids,
    evaluation_mode,
    recurrence_settings,
)


class Context(NamedTuple):
    """A window of a document's tokens and the one token after them."""

    document: str
    start: int
    ids: np.ndarray
    """(window,)"""
    next_token: int
    """What truly follows: every model begins its new window from it."""


def sample_contexts(documents: Sequence[NamedTokens], count: int, *, window: int = 300, seed: int = 0) -> list[Context]:
    """`count` contexts of exactly `window` tokens, in random order.

    Documents give equally many, as far as their lengths allow. Within a document contexts may begin at any token,
    and every way to lay them out is equally likely, but no token belongs to two of them: what overlaps would be
    counted twice.
    """
    check_counts(count=count, window=window)
    taken = window + 1
    room = np.array([len(document.ids) // taken for document in documents], dtype=np.int64)
    if room.sum() < count:
        raise UserError(
            f"{len(documents)} document(s) hold at most {room.sum()} contexts of {window} + 1 tokens that do not "
            f"overlap: got count={count}; ask for fewer, or give more text."
        )
    random = np.random.default_rng(seed)
    contexts: list[Context] = []
    for document, share in zip(documents, _shares(room, count, random), strict=True):
        ids = np.asarray(document.ids)
        # Shrunk to one token each, contexts lie anywhere among the tokens left over; then each pushes the later on.
        shrunk = random.choice(len(ids) - share * window, share, replace=False)
        for start in (np.sort(shrunk) + np.arange(share) * window).tolist():
            contexts.append(Context(document.name, start, ids[start : start + window], int(ids[start + window])))
    return [contexts[index] for index in random.permutation(count)]


def continue_contexts(
    model: PreTrainedModel,
    contexts: Sequence[Context],
    new_tokens: int = 30,
    batch: int = 64,
    progress: Callable[[int], None] | None = None,
) -> np.ndarray:
    """(contexts, new_tokens): what the model writes greedily after each context and the one true token after it.

    The context is the model's first window, to the brim, and its overlap is set to 0: the new window begins with
    that one token. A recurrent model has its memory of the context besides; a plain one has the token alone. (A
    causal model cannot write from no token at all; the paper gives its baseline one, and does not say whether the
    recurrent model got it too. Here both do, so that they differ in memory alone.)

    End-of-text tokens are never written, so every continuation has its full length. `progress` is called after
    each batch with the number of contexts it continued.
    """
    check_counts(new_tokens=new_tokens, batch=batch)
    if not contexts:
        raise UserError("There is nothing to continue: give at least one context.")
    lengths = {len(context.ids) for context in contexts}
    if len(lengths) > 1:
        raise UserError(
            f"Contexts must all be one window long: got lengths from {min(lengths)} to {max(lengths)}; "
            "take them from one call of sample_contexts."
        )
    window = lengths.pop()
    inputs = np.stack([np.append(context.ids, context.next_token) for context in contexts]).astype(np.int64)
    continuations = []
    with evaluation_mode(model):
        recurrent = as_recurrent(model, window, overlap=0)
        for context, row in zip(contexts, inputs, strict=True):
            check_ids(row, f"A context of {context.document!r}", recurrent.base.config.vocab_size)
        with recurrence_settings(recurrent, window, overlap=0):
            for start in range(0, len(inputs), batch):
                ids = torch.from_numpy(inputs[start : start + batch]).to(recurrent.device)
                written = recurrent.generate(
                    ids,
                    # Without it, real tokens that happen to be the padding token would be hidden.
                    attention_mask=torch.ones_like(ids),
                    do_sample=False,
                    num_beams=1,
                    # Some models come with such penalties in their own settings.
                    repetition_penalty=1.0,
                    no_repeat_ngram_size=0,
                    min_new_tokens=new_tokens,
                    max_new_tokens=new_tokens,
                )
                continuations.append(written[:, window + 1 :].cpu().numpy())
                if progress is not None:
                    progress(len(ids))
    return np.concatenate(continuations)


def _shares(room: np.ndarray, count: int, random: np.random.Generator) -> list[int]:
    """How many of `count` each document gives: equally many, except that none gives more than it has room for."""
    shares = np.zeros_like(room)
    while (left := count - int(shares.sum())) > 0:
        able = np.flatnonzero(shares < room)
        each = left // len(able)
        if each:
            shares[able] = np.minimum(shares[able] + each, room[able])
        else:
            shares[random.permutation(able)[:left]] += 1
    return [int(share) for share in shares]
