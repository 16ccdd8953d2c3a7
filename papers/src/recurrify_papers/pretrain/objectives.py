"""Pretraining objectives: the next token, masked tokens, or spans that were cut out.

Each objective is a collator, from rows of token ids (B, N + 1) to a batch with `input_ids` and `labels`. Random choices
depend only on the seed and the tokens of the batch, so that a resumed run sees the same batches.
"""

import zlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from transformers import DataCollatorForLanguageModeling

from recurrify import UserError
from recurrify_papers.data.packed import collate_rows

IGNORED = -100
"""Label of a token that is not predicted."""
SHARE = 0.15
"""Share of tokens that BERT and T5 predict."""
SPAN_LENGTH = 3.0
"""Mean length of a span in T5."""
Batch = dict[str, Tensor]
Token = TypeVar("Token")


def batch_seed(seed: int, rows: np.ndarray) -> int:
    """The seed of a batch; rows are shuffled in each epoch, so it sees other choices there."""
    return zlib.crc32(np.ascontiguousarray(rows).tobytes(), seed)


class Masked:
    """BERT's objective: of 15 % of the tokens, 80 % are masked, 10 % replaced at random and 10 % kept.

    Rows are put between [CLS] and [SEP]. Special tokens are never chosen.
    """

    def __init__(self, tokenizer: Any, seed: int = 0) -> None:
        self.seed = seed
        if tokenizer.mask_token_id is None:
            raise UserError("Masked language modelling needs a tokenizer with a mask token: use another one.")
        self.front = [token for token in (tokenizer.cls_token_id,) if token is not None]
        self.back = [token for token in (tokenizer.sep_token_id,) if token is not None]
        self.special = torch.tensor(tokenizer.all_special_ids)
        self.mask: int = tokenizer.mask_token_id
        self.collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=SHARE)

    @property
    def around(self) -> int:
        """Tokens that are added to a row."""
        return len(self.front) + len(self.back)

    def __call__(self, rows: np.ndarray) -> Batch:
        # The last token of a row is the first of the next, needed only to predict the next token.
        inside = torch.from_numpy(np.asarray(rows).astype(np.int64))[:, :-1]
        edges = [torch.tensor(edge, dtype=torch.long).expand(len(rows), -1) for edge in (self.front, self.back)]
        tokens = torch.cat([edges[0], inside, edges[1]], dim=1)
        self.collator.generator = torch.Generator().manual_seed(batch_seed(self.seed, rows))
        special = torch.isin(tokens, self.special)
        inputs, labels = self.collator.torch_mask_tokens(tokens.clone(), special)
        if bool((labels == IGNORED).all()) and not bool(special.all()):
            # A small batch without any chosen token would have a loss of NaN.
            ordinary = (~special).nonzero()
            row, column = ordinary[int(torch.randint(len(ordinary), (), generator=self.collator.generator))]
            inputs[row, column], labels[row, column] = self.mask, tokens[row, column]
        return {"input_ids": inputs, "labels": labels}


class SpanCorruption:
    """T5's objective: spans of three tokens on average, 15 % of all, are each replaced by a sentinel."""

    def __init__(self, tokenizer: Any, seed: int = 0) -> None:
        self.seed = seed
        self.sentinels = sentinels_of(tokenizer)
        self.end = tokenizer.eos_token_id

    def __call__(self, rows: np.ndarray) -> Batch:
        chance = np.random.default_rng(batch_seed(self.seed, rows))
        inputs, targets = [], []
        for row in np.asarray(rows).astype(np.int64)[:, :-1]:
            spans = random_spans(len(row), chance)
            if len(spans) + 1 > len(self.sentinels):
                raise UserError(
                    f"A sequence of {len(row)} tokens needs {len(spans) + 1} sentinels, but the tokenizer has "
                    f"{len(self.sentinels)}: use shorter sequences."
                )
            kept, cut = corrupt_spans(row.tolist(), spans, self.sentinels)
            inputs.append([*kept, self.end])
            targets.append([*cut, self.end])
        # Rows of one length have equally many spans and cut tokens, so nothing is padded.
        return {"input_ids": torch.tensor(inputs), "labels": torch.tensor(targets)}


def corrupt_spans(
    tokens: Sequence[Token], spans: Sequence[tuple[int, int]], sentinels: Sequence[Token]
) -> tuple[list[Token], list[Token]]:
    """Inputs, with a sentinel in place of each span (start, stop), and targets: each sentinel with the tokens that it
    replaces, and a final sentinel."""
    inputs: list[Token] = []
    targets: list[Token] = []
    done = 0
    for (start, stop), sentinel in zip(spans, sentinels, strict=False):
        inputs += [*tokens[done:start], sentinel]
        targets += [sentinel, *tokens[start:stop]]
        done = stop
    return [*inputs, *tokens[done:]], [*targets, sentinels[len(spans)]]


def random_spans(length: int, chance: np.random.Generator) -> list[tuple[int, int]]:
    """Random spans of `length` tokens; their number and the number of cut tokens depend on `length` only.

    As in T5, a text begins with a kept token and ends with a span, and at least one token is between two spans.
    """
    if length < 2:
        raise UserError(f"Span corruption needs sequences of at least 2 tokens: got {length}.")
    cut = min(max(round(length * SHARE), 1), length - 1)
    count = min(max(round(cut / SPAN_LENGTH), 1), length - cut)
    lengths, gaps = _parts(cut, count, chance), _parts(length - cut, count, chance)
    starts = np.cumsum(gaps) + np.cumsum(lengths) - lengths
    return [(int(start), int(start + size)) for start, size in zip(starts, lengths, strict=True)]


def _parts(total: int, count: int, chance: np.random.Generator) -> np.ndarray:
    """`total` as a random sum of `count` positive numbers, all equally likely."""
    borders = np.sort(chance.choice(total - 1, count - 1, replace=False)) + 1 if count > 1 else np.array([], dtype=int)
    return np.diff(np.concatenate([[0], borders, [total]]))


def sentinels_of(tokenizer: Any) -> list[int]:
    """The ids of <extra_id_0>, <extra_id_1>, … of a T5 tokenizer."""
    vocabulary = tokenizer.get_vocab()
    found: list[int] = []
    while (name := f"<extra_id_{len(found)}>") in vocabulary:
        found.append(vocabulary[name])
    if len(found) < 2 or tokenizer.eos_token_id is None:
        raise UserError("Span corruption needs a tokenizer with <extra_id_0>, <extra_id_1>, … and an end of text.")
    return found


def collator_of(objective: str, tokenizer: Any, seed: int = 0) -> Callable[[np.ndarray], Batch]:
    """The collator of an objective."""
    if objective == "mlm":
        return Masked(tokenizer, seed)
    return SpanCorruption(tokenizer, seed) if objective == "span" else collate_rows
