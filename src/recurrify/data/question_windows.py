"""Questions as tokens: windows that each begin with the question, and the mapping back to characters.

Shapes: E examples, W windows, T tokens of a window, C tokens of a context.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from recurrify.data.answer_spans import goes_on
from recurrify.data.questions import KINDS, Question
from recurrify.errors import UserError
from recurrify.windows import schedule

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

NO_SPAN = -100


@dataclass(frozen=True)
class WindowedQuestion:
    """A question's windows, all full but the last; every token of the context is in exactly one of them."""

    id: str
    windows: list[list[int]]
    """Token ids: the question and its separators, a part of the context, the end of a window."""
    types: list[list[int]] | None
    """Token types, if the tokenizer has them."""
    columns: np.ndarray
    """(C,): the position of each context token, counted through all windows."""
    offsets: np.ndarray
    """(C, 2): first and past-the-last character of each context token."""
    span: tuple[int, int] | None
    """The answer's first and last token in the context."""
    kind: int
    """The kind of the answer, an index into span, yes, no; NO_SPAN without an answer."""

    @property
    def learnable(self) -> bool:
        """Whether the question can be trained on."""
        return self.span is not None or self.kind > 0

    def characters(self, first: int, last: int) -> tuple[int, int]:
        """First and past-the-last character of the context's tokens from `first` to `last`."""
        return int(self.offsets[first, 0]), int(self.offsets[last, 1])


def window_questions(
    questions: Sequence[Question], tokenizer: "PreTrainedTokenizerBase", window: int, counts: Counter[str] | None = None
) -> list[WindowedQuestion]:
    """Each question in windows of `window` tokens; what needs handling is added to `counts`."""
    if not tokenizer.is_fast:
        raise UserError(
            f"{type(tokenizer).__name__} does not map tokens to characters: load a fast tokenizer "
            "(one with a tokenizer.json)."
        )
    counts = Counter() if counts is None else counts
    return [_windowed(question, tokenizer, window, counts) for question in questions]


def _windowed(question: Question, tokenizer: Any, window: int, counts: Counter[str]) -> WindowedQuestion:
    # One call for the whole context: tokens do not depend on where windows begin.
    encoded = tokenizer(question.question, question.context, return_offsets_mapping=True, verbose=False)
    parts = np.array([-1 if part is None else part for part in encoded.sequence_ids(0)])
    ids, offsets = np.array(encoded["input_ids"]), np.array(encoded["offset_mapping"])
    types = np.array(encoded["token_type_ids"]) if "token_type_ids" in encoded else None
    inside = np.flatnonzero(parts == 1)
    if not len(inside):
        raise UserError(f"The context of question {question.id!r} has no tokens for this tokenizer: leave it out.")
    characters = _with_accents(offsets[inside], question.context)
    first, last = inside[0], inside[-1]
    front, back = np.arange(first), np.arange(last + 1, len(ids))
    front = _cut_question(front, parts, len(back), window, question.id, counts)
    room = window - len(front) - len(back)
    windows, kinds, columns = [], [], []
    for number, span in enumerate(schedule(len(inside), room)):
        chosen = np.concatenate([front, inside[span.start : span.stop], back])
        windows.append(ids[chosen].tolist())
        kinds.append([] if types is None else types[chosen].tolist())
        columns.append(number * window + len(front) + np.arange(span.stop - span.start))
    return WindowedQuestion(
        id=question.id,
        windows=windows,
        types=None if types is None else kinds,
        columns=np.concatenate(columns),
        offsets=characters,
        span=_tokens_of_span(question, characters, counts),
        kind=KINDS.index(question.kind) if question.answers else NO_SPAN,
    )


def _with_accents(offsets: np.ndarray, context: str) -> np.ndarray:
    """Assign marks that a tokenizer removes, or joins to their letter, to the token before."""
    accents = [index for index, character in enumerate(context) if goes_on(character)]
    for accent in accents:
        if not ((offsets[:, 0] <= accent) & (accent < offsets[:, 1])).any():
            offsets[offsets[:, 1] == accent, 1] = accent + 1
    return offsets


def _cut_question(
    front: np.ndarray, parts: np.ndarray, back: int, window: int, identity: str, counts: Counter[str]
) -> np.ndarray:
    """Keep at least half of a window for the context: a longer question is cut at its end."""
    asked = front[parts[front] == 0]
    most = window - window // 2 - back - (len(front) - len(asked))
    if most < 1:
        raise UserError(
            f"A window of {window} tokens has no room for question {identity!r}, its context and "
            f"{len(front) - len(asked) + back} separators: choose a longer window."
        )
    if len(asked) <= most:
        return front
    counts["questions cut to half a window"] += 1
    return front[~np.isin(front, asked[most:])]


def _tokens_of_span(question: Question, offsets: np.ndarray, counts: Counter[str]) -> tuple[int, int] | None:
    if question.span is None:
        return None
    start, stop = question.span
    touched = np.flatnonzero((offsets[:, 1] > start) & (offsets[:, 0] < stop) & (offsets[:, 1] > offsets[:, 0]))
    if not len(touched):
        counts["answers without tokens"] += 1
        return None
    return int(touched[0]), int(touched[-1])


def collate_questions(batch: Sequence[WindowedQuestion], pad_token_id: int, window: int) -> dict[str, Tensor]:
    """A batch of arguments of RecurrentForQuestionAnswering, (E, W, T), padded on the right."""
    count = max(len(question.windows) for question in batch)
    longest = max(len(question.windows[-1]) for question in batch)
    # Several windows have the model's length; a single one needs only its tokens.
    width = window if count > 1 else longest
    shape = (len(batch), count, width)
    ids, mask = torch.full(shape, pad_token_id), torch.zeros(shape, dtype=torch.long)
    types, allowed = torch.zeros(shape, dtype=torch.long), torch.zeros(len(batch), count * width, dtype=torch.bool)
    starts, ends = (torch.full((len(batch),), NO_SPAN) for _ in range(2))
    for row, question in enumerate(batch):
        for number, tokens in enumerate(question.windows):
            ids[row, number, : len(tokens)] = torch.tensor(tokens)
            mask[row, number, : len(tokens)] = 1
            if question.types is not None:
                types[row, number, : len(tokens)] = torch.tensor(question.types[number])
        allowed[row, torch.from_numpy(question.columns)] = True
        if question.span is not None:
            starts[row], ends[row] = (int(question.columns[token]) for token in question.span)
    collated = {
        "input_ids": ids,
        "attention_mask": mask,
        "span_mask": allowed.view(shape),
        "start_positions": starts,
        "end_positions": ends,
        "kinds": torch.tensor([question.kind for question in batch]),
    }
    if all(question.types is not None for question in batch):
        collated["token_type_ids"] = types
    return collated
