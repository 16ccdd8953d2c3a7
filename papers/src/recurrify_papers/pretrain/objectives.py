"""What a model is asked to restore: the next token, masked tokens, or spans that were cut out.

Each objective is a collator: rows of token ids (B, N + 1) in, a batch with `input_ids` and `labels` out. What chance
decides depends on the seed and on the batch's number alone, so that a run that goes on sees what it would have seen.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from transformers import DataCollatorForLanguageModeling

from recurrify.data.packed import collate_rows
from recurrify.errors import UserError

OBJECTIVES = ("clm", "mlm", "span")
IGNORED = -100
"""The label of a token that is not predicted."""
SHARE = 0.15
"""Of tokens to be predicted, by BERT and by T5."""
SPAN_LENGTH = 3.0
"""Mean tokens of a span, as T5 has it."""
Batch = dict[str, Tensor]
Token = TypeVar("Token")


class Chance:
    """Random numbers for one batch after the other."""

    def __init__(self, seed: int) -> None:
        # Processes that train side by side hide different tokens.
        self.seed, self.process = seed, int(os.environ.get("RANK", "0"))
        self.batches = 0
        """How many batches were made; a run that goes on sets it."""

    def next_seed(self) -> int:
        made = np.random.SeedSequence([self.seed, self.process, self.batches]).generate_state(1)
        self.batches += 1
        return int(made[0])


class Masked(Chance):
    """BERT's: 15 % of the tokens are predicted; of these 80 % are masked, 10 % replaced at random, 10 % left.

    Rows get the tokenizer's first and last token around them, [CLS] and [SEP]; special tokens are never chosen.
    """

    def __init__(self, tokenizer: Any, seed: int = 0) -> None:
        super().__init__(seed)
        if tokenizer.mask_token_id is None:
            raise UserError("Masked language modelling needs a tokenizer with a mask token: take another, or make one.")
        self.front = [token for token in (tokenizer.cls_token_id,) if token is not None]
        self.back = [token for token in (tokenizer.sep_token_id,) if token is not None]
        self.special = torch.tensor(tokenizer.all_special_ids)
        self.mask: int = tokenizer.mask_token_id
        self.collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=SHARE)

    @property
    def around(self) -> int:
        """Tokens that are put around a row."""
        return len(self.front) + len(self.back)

    def __call__(self, rows: np.ndarray) -> Batch:
        # A row's last token is the first of the next: predicting a token needs none after it.
        inside = torch.from_numpy(np.asarray(rows).astype(np.int64))[:, :-1]
        edges = [torch.tensor(edge, dtype=torch.long).expand(len(rows), -1) for edge in (self.front, self.back)]
        tokens = torch.cat([edges[0], inside, edges[1]], dim=1)
        self.collator.generator = torch.Generator().manual_seed(self.next_seed())
        special = torch.isin(tokens, self.special)
        inputs, labels = self.collator.torch_mask_tokens(tokens.clone(), special)
        if bool((labels == IGNORED).all()) and not bool(special.all()):
            # A small batch in which chance took nothing would have no loss, which is not a number.
            ordinary = (~special).nonzero()
            row, column = ordinary[int(torch.randint(len(ordinary), (), generator=self.collator.generator))]
            inputs[row, column], labels[row, column] = self.mask, tokens[row, column]
        return {"input_ids": inputs, "labels": labels}


class SpanCorruption(Chance):
    """T5's: spans of three tokens on average, 15 % of all, each cut out and replaced by a sentinel of its own."""

    def __init__(self, tokenizer: Any, seed: int = 0) -> None:
        super().__init__(seed)
        self.sentinels = sentinels_of(tokenizer)
        self.end = tokenizer.eos_token_id

    def __call__(self, rows: np.ndarray) -> Batch:
        chance = np.random.default_rng(self.next_seed())
        inputs, targets = [], []
        # A row's last token is the first of the next.
        for row in np.asarray(rows).astype(np.int64)[:, :-1]:
            spans = random_spans(len(row), chance)
            if len(spans) + 1 > len(self.sentinels):
                raise UserError(
                    f"A sequence of {len(row)} tokens needs {len(spans) + 1} sentinels, but the tokenizer has "
                    f"{len(self.sentinels)}: take shorter sequences."
                )
            kept, cut = corrupt_spans(row.tolist(), spans, self.sentinels)
            inputs.append([*kept, self.end])
            targets.append([*cut, self.end])
        # Rows of one length lose as many tokens to as many spans, so nothing is padded.
        return {"input_ids": torch.tensor(inputs), "labels": torch.tensor(targets)}


def corrupt_spans(
    tokens: Sequence[Token], spans: Sequence[tuple[int, int]], sentinels: Sequence[Token]
) -> tuple[list[Token], list[Token]]:
    """Inputs with a sentinel in the place of each span (first, past the last), and the targets: each sentinel and what
    it stands for, and one sentinel more to say that this is all."""
    inputs: list[Token] = []
    targets: list[Token] = []
    done = 0
    for (start, stop), sentinel in zip(spans, sentinels, strict=False):
        inputs += [*tokens[done:start], sentinel]
        targets += [sentinel, *tokens[start:stop]]
        done = stop
    return [*inputs, *tokens[done:]], [*targets, sentinels[len(spans)]]


def random_spans(
    length: int, chance: np.random.Generator, share: float = SHARE, mean: float = SPAN_LENGTH
) -> list[tuple[int, int]]:
    """Where spans are cut out of `length` tokens: always as many tokens and spans, at random places.

    As in T5, a text begins with something kept and ends with a span, and at least one token stands between two spans.
    """
    if length < 2:
        raise UserError(f"Span corruption needs sequences of at least 2 tokens: got {length}.")
    cut = min(max(round(length * share), 1), length - 1)
    count = min(max(round(cut / mean), 1), length - cut)
    lengths, gaps = _parts(cut, count, chance), _parts(length - cut, count, chance)
    starts = np.cumsum(gaps) + np.cumsum(lengths) - lengths
    return [(int(start), int(start + size)) for start, size in zip(starts, lengths, strict=True)]


def _parts(total: int, count: int, chance: np.random.Generator) -> np.ndarray:
    """`total` as a sum of `count` positive numbers, all such sums equally likely."""
    borders = np.sort(chance.choice(total - 1, count - 1, replace=False)) + 1 if count > 1 else np.array([], dtype=int)
    return np.diff(np.concatenate([[0], borders, [total]]))


def sentinels_of(tokenizer: Any) -> list[int]:
    """The ids of <extra_id_0>, <extra_id_1>, …, which T5's tokenizers have."""
    vocabulary = tokenizer.get_vocab()
    found: list[int] = []
    while (name := f"<extra_id_{len(found)}>") in vocabulary:
        found.append(vocabulary[name])
    if len(found) < 2 or tokenizer.eos_token_id is None:
        raise UserError("Span corruption needs a tokenizer with <extra_id_0>, <extra_id_1>, … and an end of text.")
    return found


def collator_of(objective: str, tokenizer: Any, seed: int = 0) -> Callable[[np.ndarray], Batch]:
    """The collator of an objective by its name."""
    match objective:
        case "clm":
            return collate_rows
        case "mlm":
            return Masked(tokenizer, seed)
        case "span":
            return SpanCorruption(tokenizer, seed)
    raise UserError(f"`objective` must be one of {', '.join(OBJECTIVES)}: got {objective!r}.")
