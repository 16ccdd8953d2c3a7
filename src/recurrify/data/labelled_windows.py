"""Tokens of texts to classify, windows with special tokens, and batches."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from recurrify.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

AT_ONCE = 1000
"""Texts tokenized in one call."""


def tokenize_texts(
    texts: Sequence[str], tokenizer: "PreTrainedTokenizerBase", window: int | None = None
) -> list[np.ndarray]:
    """The token ids of each text.

    With a `window`, for encoders: each window of a longer text begins and ends with the special tokens of a text, such
    as [CLS] and [SEP], and all windows but the last are full. A text without tokens is one padding token.
    """
    made: list[np.ndarray] = []
    for start in range(0, len(texts), AT_ONCE):
        encoded: Any = tokenizer(
            list(texts[start : start + AT_ONCE]),
            return_special_tokens_mask=True,
            return_attention_mask=False,
            verbose=False,
        )
        for ids, special in zip(encoded["input_ids"], encoded["special_tokens_mask"], strict=True):
            laid_out = ids if window is None or len(ids) <= window else _windows(ids, special, window)
            made.append(np.array(laid_out or [tokenizer.pad_token_id or 0], dtype=np.int32))
    return made


def _windows(ids: list[int], special: list[int], window: int) -> list[int]:
    text = [place for place, is_special in enumerate(special) if not is_special]
    front, back = (text[0], len(ids) - 1 - text[-1]) if text else (len(ids), 0)
    inside = ids[front : len(ids) - back]
    room = window - front - back
    if room < 1:
        raise UserError(
            f"A window of {window} tokens has no room for text between its {front + back} special tokens: choose a "
            "longer --window."
        )
    made: list[int] = []
    for start in range(0, len(inside), room):
        made += [*ids[:front], *inside[start : start + room], *ids[len(ids) - back :]]
    return made


def collate_texts(batch: Sequence[dict[str, Any]], pad_token_id: int) -> dict[str, Tensor]:
    """One batch, padded on the right; each text has `input_ids` and, for training, `labels`."""
    rows = [torch.from_numpy(text["input_ids"]).long() for text in batch]
    ids = pad_sequence(rows, batch_first=True, padding_value=pad_token_id)
    real = torch.arange(ids.shape[1]) < torch.tensor([len(row) for row in rows])[:, None]
    collated = {"input_ids": ids}
    # Fused attention runs only without a mask.
    if not real.all():
        collated["attention_mask"] = real.long()
    if "labels" in batch[0]:
        collated["labels"] = torch.tensor([text["labels"] for text in batch])
    return collated
