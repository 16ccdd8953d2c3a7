"""Pretraining objectives: masked tokens and spans."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from recurrify.data import Document
from recurrify.errors import UserError
from recurrify_papers.data.tokenizers import make_tokenizer
from recurrify_papers.pretrain.objectives import (
    Masked,
    SpanCorruption,
    corrupt_spans,
    random_spans,
    sentinels_of,
)

TEXT = "Thank you for inviting me to your party last week."
SOURCE = [Document("a", TEXT * 3)]


@pytest.fixture(scope="module")
def masking() -> Any:
    return make_tokenizer(SOURCE, 300, "mlm")


@pytest.fixture(scope="module")
def spanning() -> Any:
    return make_tokenizer(SOURCE, 400, "span")


class TestSpans:
    def test_example_of_the_slides(self) -> None:
        inputs, targets = corrupt_spans(TEXT.split(), [(2, 4), (8, 9)], ["<X>", "<Y>", "<Z>"])
        assert " ".join(inputs) == "Thank you <X> me to your party <Y> week."
        assert " ".join(targets) == "<X> for inviting <Y> last <Z>"

    @pytest.mark.parametrize("length", [2, 5, 20, 512])
    def test_random_spans(self, length: int) -> None:
        chance = np.random.default_rng(0)
        cut = max(1, round(0.15 * length))
        for _ in range(200):
            spans = random_spans(length, chance)
            assert sum(stop - start for start, stop in spans) == cut
            assert len(spans) == max(1, round(cut / 3))
            borders = [0, *(place for span in spans for place in span)]
            # Something is kept in front of each span, and each takes something away.
            assert all(left < right for left, right in pairwise(borders))
            assert borders[-1] <= length

    def test_one_token_raises(self) -> None:
        with pytest.raises(UserError, match="at least 2 tokens: got 1"):
            random_spans(1, np.random.default_rng(0))

    def test_inputs_and_targets_contain_the_row(self, spanning: Any) -> None:
        rows = np.random.default_rng(0).integers(150, 400, size=(5, 41))
        batch = SpanCorruption(spanning)(rows)
        sentinels, end = sentinels_of(spanning), spanning.eos_token_id
        for row, inputs, targets in zip(rows, batch["input_ids"].tolist(), batch["labels"].tolist(), strict=True):
            assert inputs.pop() == targets.pop() == end
            spans: dict[int, list[int]] = {}
            for token in targets:
                if token in sentinels:
                    spans[token] = []
                else:
                    spans[list(spans)[-1]].append(token)
            assert list(spans) == sentinels[: len(spans)]
            assert spans.pop(sentinels[len(spans) - 1]) == []
            restored = [part for token in inputs for part in spans.get(token, [token])]
            assert restored == row[:-1].tolist()

    def test_seeds(self, spanning: Any) -> None:
        rows = np.arange(150, 250)[None]
        collate = SpanCorruption(spanning, seed=3)
        one = collate(rows)["labels"]
        assert torch.equal(collate(rows)["labels"], one)
        assert not torch.equal(collate(rows + 1)["labels"] - 1, one)
        assert not torch.equal(SpanCorruption(spanning, seed=4)(rows)["labels"], one)

    def test_too_few_sentinels(self, spanning: Any, masking: Any) -> None:
        with pytest.raises(UserError, match="needs 101 sentinels"):
            SpanCorruption(spanning)(np.full((1, 2001), 200))
        with pytest.raises(UserError, match="<extra_id_0>"):
            SpanCorruption(masking)


class TestMasked:
    def test_labels_are_the_tokens_that_changed(self, masking: Any) -> None:
        rows = np.random.default_rng(0).integers(10, 300, size=(20, 501))
        batch = Masked(masking, seed=0)(rows)
        tokens, inputs, labels = torch.from_numpy(rows[:, :-1]), batch["input_ids"][:, 1:-1], batch["labels"][:, 1:-1]
        chosen = labels != -100
        assert chosen.float().mean() == pytest.approx(0.15, abs=0.02)
        assert torch.equal(labels[chosen], tokens[chosen])
        assert torch.equal(inputs[~chosen], tokens[~chosen])
        assert (inputs[chosen] == masking.mask_token_id).float().mean() == pytest.approx(0.8, abs=0.05)

    def test_edges_and_special_tokens_are_never_chosen(self, masking: Any) -> None:
        rows = np.full((50, 101), masking.eos_token_id)
        batch = Masked(masking)(rows)
        assert (batch["labels"] == -100).all()
        assert (batch["input_ids"][:, 0] == masking.cls_token_id).all()
        assert (batch["input_ids"][:, -1] == masking.sep_token_id).all()
        assert batch["input_ids"].shape == (50, 102)

    def test_tokenizer_without_a_mask_raises(self, spanning: Any) -> None:
        with pytest.raises(UserError, match="mask token"):
            Masked(spanning)


def test_every_masked_batch_has_a_target(masking: Any) -> None:
    objective = Masked(masking, seed=1)
    ordinary = [token for token in range(len(masking)) if token not in masking.all_special_ids]
    chosen = []
    for number in range(60):  # of two tokens each, where chance takes none in 72 of 100
        rows = np.array([[ordinary[number], ordinary[number + 1], 0]])
        batch = objective(rows)
        places = (batch["labels"] != -100).nonzero()[:, 1].tolist()
        assert places
        assert all(1 <= place <= 2 for place in places)  # never [CLS] or [SEP]
        for place in places:
            assert batch["labels"][0, place] == rows[0, place - 1]
        chosen += places
    assert set(chosen) == {1, 2}


def test_trained_tokenizers(masking: Any, spanning: Any) -> None:
    assert masking.convert_ids_to_tokens(masking(TEXT)["input_ids"])[0] == "[CLS]"
    assert masking.decode(masking(TEXT)["input_ids"], skip_special_tokens=True) == TEXT
    assert masking("a", "b")["token_type_ids"] == [0, 0, 0, 1, 1]
    assert len(sentinels_of(spanning)) == 100
    assert spanning("<extra_id_7>")["input_ids"] == [sentinels_of(spanning)[7]]
    for objective, least in (("mlm", 261), ("span", 358)):
        with pytest.raises(UserError, match=f"at least {least}"):
            make_tokenizer(SOURCE, least - 1, objective)
