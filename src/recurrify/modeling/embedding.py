"""Contextual embeddings of texts of any length: one vector for each token and one for each document.

Shapes: N tokens of a text, W windows, T tokens of a window, K width.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor
from transformers import PreTrainedModel

from recurrify.errors import UserError
from recurrify.families import family_of
from recurrify.mechanisms.config import NoRecurrence
from recurrify.modeling.heads import add_recurrence
from recurrify.modeling.model import RecurrentPreTrainedModel
from recurrify.modeling.task_heads import flat_windows
from recurrify.windows import schedule

How = Literal["disjoint", "strided", "recurrent"]
LONGEST_WINDOW = 512


class Embedding(NamedTuple):
    """The embeddings of one text."""

    ids: Tensor
    """(N,) the text's tokens, without those that only begin and end windows."""
    offsets: list[tuple[int, int]] | None
    """First and past-the-last character of each token, where the tokenizer can say."""
    tokens: Tensor
    """(N, K)"""
    document: Tensor
    """(K,): the mean over all tokens."""


class _Cut(NamedTuple):
    windows: list[list[int]]
    kept: list[tuple[int, int]]
    """Which columns of each window are kept, so that every token of the text is kept once."""
    ids: list[int]
    offsets: list[tuple[int, int]] | None


@torch.no_grad()
def embed(
    texts: Sequence[str],
    model: PreTrainedModel,
    tokenizer: Any,
    how: How = "recurrent",
    overlap: int | None = None,
    batch: int = 8,
) -> list[Embedding]:
    """Embeddings of whole texts, however long.

    - `how="disjoint"`: windows without overlap, each on its own.
    - `how="strided"`: windows that share `overlap` tokens, half a window by default; a token's vector comes from the
      window in which it has the most context before it.
    - `how="recurrent"`: windows without overlap, each with the memory of the previous ones; needs a recurrent model.

    `model` may be a base model or a recurrent one, with whatever head; windows are as long as the recurrent model's, or
    as the base model's positions, at most 512. An encoder's windows each begin and end with its special tokens.
    """
    if how not in get_args(How):
        raise UserError(f"`how` must be one of {', '.join(get_args(How))}: got {how!r}.")
    if isinstance(texts, str):
        raise UserError("`texts` must be a list of texts: put a single one into brackets, [text].")
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise UserError(f"Text number {index + 1} is no text but {text!r:.40}: leave it out.")
    runner = _runner(model, how)
    window = runner.recurrence.window
    if overlap is not None and how != "strided":
        raise UserError(f"`overlap` is {overlap}, but windows overlap only with how='strided': leave it out.")
    if overlap is None:
        overlap = window // 2 if how == "strided" else 0
    cuts = [_cut(text, index, tokenizer, runner, overlap) for index, text in enumerate(texts)]
    # Texts of about the same length are read in one batch.
    order = sorted(range(len(cuts)), key=lambda index: len(cuts[index].windows))
    found: dict[int, Embedding] = {}
    was_training = runner.training
    runner.eval()
    for start in range(0, len(order), batch):
        rows = order[start : start + batch]
        for index, vectors in zip(rows, _run(runner, [cuts[row] for row in rows]), strict=True):
            cut = cuts[index]
            document = vectors.float().mean(0).to(vectors.dtype)
            found[index] = Embedding(torch.tensor(cut.ids), cut.offsets, vectors, document)
    runner.train(was_training)
    return [found[index] for index in range(len(cuts))]


def _runner(model: PreTrainedModel, how: How) -> RecurrentPreTrainedModel:
    if not isinstance(model, RecurrentPreTrainedModel):
        if how == "recurrent":
            raise UserError("how='recurrent' needs a model with a memory: make one with recurrify.add_recurrence.")
        positions = family_of(model.config).positions(model.config) or LONGEST_WINDOW
        return add_recurrence(model, NoRecurrence(window=min(positions, LONGEST_WINDOW)))
    if how == "recurrent":
        if model.mechanism is None:
            raise UserError("how='recurrent' needs a model with a memory, but this one runs in plain windows.")
        return model
    return add_recurrence(model.base, NoRecurrence(window=model.recurrence.window))


def _cut(text: str, index: int, tokenizer: Any, model: RecurrentPreTrainedModel, overlap: int) -> _Cut:
    fast = bool(tokenizer.is_fast)
    encoded = tokenizer(text, return_special_tokens_mask=True, return_offsets_mapping=fast, verbose=False)
    ids = encoded["input_ids"]
    inside = [place for place, special in enumerate(encoded["special_tokens_mask"]) if not special]
    if not inside:
        raise UserError(f"Text number {index + 1} gives no tokens: leave it out.")
    front, back = ids[: inside[0]], ids[inside[-1] + 1 :]
    if model.family.causal:
        # A decoder reads one stream: special tokens in front are read once.
        windows = schedule(len(ids) - len(back), model.recurrence.window, overlap)
        front, back, skipped, kept_ids = [], [], inside[0], ids[: len(ids) - len(back)]
    else:
        room = model.recurrence.window - len(front) - len(back)
        if room <= overlap:
            raise UserError(
                f"A window of {model.recurrence.window} tokens has no room for {len(front) + len(back)} special tokens "
                f"and an overlap of {overlap}: take a longer window or less overlap."
            )
        windows, skipped, kept_ids = schedule(len(inside), room, overlap), 0, ids[inside[0] : inside[-1] + 1]
    made = [[*front, *kept_ids[span.start : span.stop], *back] for span in windows]
    kept = [
        (len(front) + max(span.first, skipped) - span.start, len(front) + span.stop - span.start) for span in windows
    ]
    offsets = [tuple(encoded["offset_mapping"][place]) for place in inside] if fast else None
    return _Cut(made, kept, kept_ids[skipped:], offsets)


def _run(model: RecurrentPreTrainedModel, cuts: Sequence[_Cut]) -> list[Tensor]:
    count = max(len(cut.windows) for cut in cuts)
    width = model.recurrence.window if count > 1 else max(len(cut.windows[0]) for cut in cuts)
    ids = torch.zeros(len(cuts), count, width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, cut in enumerate(cuts):
        for number, tokens in enumerate(cut.windows):
            ids[row, number, : len(tokens)] = torch.tensor(tokens)
            mask[row, number, : len(tokens)] = 1
    flat, flat_mask, _ = flat_windows(model, ids.to(model.device), mask.to(model.device), None)
    packed, _, run = model.forward_windows(flat, flat_mask, None, None, keep_hidden=True)
    assert run.hidden is not None
    hidden = packed.collect(run.hidden).unflatten(1, (count, width))
    return [
        torch.cat([hidden[row, number, first:stop] for number, (first, stop) in enumerate(cut.kept)]).cpu()
        for row, cut in enumerate(cuts)
    ]
