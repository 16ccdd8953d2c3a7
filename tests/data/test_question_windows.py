"""Windows that begin with the question, and the mapping back to characters."""

import random
import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from recurrify.data import Question, WindowedQuestion, collate_questions, window_questions
from recurrify.errors import UserError
from support.tokenizers import like_bert, like_roberta

CONTEXT = (
    "Zoe\u0308 Brontë lived at the Straße der Einheit; the o\ufb03ce was 12½ km away.  "
    "İstanbul,\u00a0she said,\nis 東京 to me 😀 — and nothing else matters to anybody here at all."
)
QUESTION = Question("q", "Where did she live?", CONTEXT, ("x",))
TOKENIZERS = {"bert": like_bert([CONTEXT, QUESTION.question]), "roberta": like_roberta([CONTEXT, QUESTION.question])}


def windowed(tokenizer: str, window: int, span: tuple[int, int] | None = None, **more: Any) -> WindowedQuestion:
    return window_questions([QUESTION._replace(span=span, **more)], TOKENIZERS[tokenizer], window)[0]


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("window", [40, 57, 400])
def test_windows_are_the_encoding_cut_after_the_question(kind: str, window: int) -> None:
    tokenizer = TOKENIZERS[kind]
    found = windowed(kind, window)
    asked = tokenizer(QUESTION.question, add_special_tokens=False)["input_ids"]
    context = tokenizer(CONTEXT, add_special_tokens=False)["input_ids"]
    front = [tokenizer.cls_token_id, *asked, *[tokenizer.sep_token_id] * (1 if kind == "bert" else 2)]
    parts = []
    for index, tokens in enumerate(found.windows):
        assert tokens[: len(front)] == front
        assert tokens[-1] == tokenizer.sep_token_id
        assert len(tokens) == window or index == len(found.windows) - 1
        parts += tokens[len(front) : -1]
    assert parts == context
    flat = [token for tokens in found.windows for token in [*tokens, *[-1] * (window - len(tokens))]]
    assert [flat[column] for column in found.columns] == context
    if kind == "bert":
        assert found.types is not None
        assert found.types[0] == [0] * len(front) + [1] * (len(found.windows[0]) - len(front))
    else:
        assert found.types is None


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_every_span_maps_back_to_its_characters(kind: str) -> None:
    """Also across the borders of windows, and with characters that normalisation makes longer or shorter."""
    chance = random.Random(0)
    words = [word.span() for word in re.finditer(r"\S+", CONTEXT)]
    crossed = 0
    for _ in range(100):
        first, last = sorted(chance.choices(range(len(words)), k=2))
        span = (words[first][0], words[last][1])
        found = windowed(kind, 40, span)
        assert found.span is not None
        start, stop = found.characters(*found.span)
        assert CONTEXT[start:stop].strip() == CONTEXT[slice(*span)]
        crossed += len({int(found.columns[token]) // 40 for token in found.span}) > 1
    assert crossed > 10


@pytest.mark.parametrize(
    "answer", ["Zoe\u0308", "गांधी में", "दिल्ली के", "नमस्ते", "ที่", "\u1112\u1161\u11ab", "ক\u09c7\u09be"], ids=ascii
)
def test_removed_marks_belong_to_their_letter(answer: str) -> None:
    context = f"x {answer} y"
    question = Question("q", "who?", context, (answer,), span=(2, 2 + len(answer)))
    (found,) = window_questions([question], like_bert([context, "who?"]), 40)
    assert found.span is not None
    start, stop = found.characters(*found.span)
    assert context[start:stop] == answer


def test_answer_inside_a_token_takes_the_token() -> None:
    start = CONTEXT.index("nothing") + 1
    found = windowed("bert", 40, (start, start + 2))
    assert found.span is not None
    left, right = found.characters(*found.span)
    assert left <= start < start + 2 <= right


def test_long_questions_are_cut_and_counted() -> None:
    counts: Counter[str] = Counter()
    long = QUESTION._replace(question="where did she live " * 50)
    (found,) = window_questions([long], TOKENIZERS["bert"], 40, counts)
    assert counts == {"questions cut to half a window": 1}
    (first, *_) = found.windows
    assert len(first) == 40
    assert first.index(TOKENIZERS["bert"].sep_token_id) == 18
    assert np.array_equal(np.sort(found.columns), found.columns)


@pytest.mark.parametrize(
    ("window", "context", "words"), [(5, CONTEXT, "no room for question 'q'"), (40, "\u200b", "'q'")]
)
def test_window_too_short_or_empty_context_raises(window: int, context: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        window_questions([QUESTION._replace(context=context)], TOKENIZERS["bert"], window)


def test_slow_tokenizer_raises() -> None:
    class Slow:
        is_fast = False

    with pytest.raises(UserError, match="Slow"):
        window_questions([QUESTION], Slow(), 40)  # type: ignore[arg-type]


def test_batch() -> None:
    span = (CONTEXT.index("nothing"), CONTEXT.index("nothing") + 7)
    long, short = windowed("bert", 40, span), windowed("bert", 40, None, context="Zoe", kind="no")
    batch = collate_questions([long, short], pad_token_id=0, window=40)
    count = len(long.windows)
    assert batch["input_ids"].shape == (2, count, 40)
    assert batch["attention_mask"].sum((1, 2)).tolist() == [sum(map(len, long.windows)), len(short.windows[0])]
    assert batch["span_mask"].sum((1, 2)).tolist() == [len(long.columns), len(short.columns)]
    assert batch["kinds"].tolist() == [0, 2]
    assert batch["end_positions"].tolist()[1] == batch["start_positions"].tolist()[1] == -100
    answer = batch["input_ids"][0].flatten()[batch["start_positions"][0] : batch["end_positions"][0] + 1]
    assert TOKENIZERS["bert"].decode(answer) == "nothing"
    assert torch.equal(batch["input_ids"] == 0, batch["attention_mask"] == 0)
    alone = collate_questions([short], pad_token_id=0, window=40)
    assert alone["input_ids"].shape == (1, 1, len(short.windows[0]))


def test_learnable() -> None:
    assert windowed("bert", 40, (0, 3)).learnable
    assert windowed("bert", 40, kind="yes").learnable
    assert not windowed("bert", 40).learnable
