"""Training sequences and batches of them."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recurrify.data import TokenizedDocument, TrainingSequences, collate
from recurrify.errors import UserError
from recurrify.windows import schedule


def documents_of(*lengths: int) -> list[TokenizedDocument]:
    """Documents whose tokens are all different, so that every one can be found again."""
    starts = np.cumsum([0, *lengths])
    return [
        TokenizedDocument(f"{start}", np.arange(start, start + length, dtype=np.int32), 0, 0, 0)
        for start, length in zip(starts, lengths, strict=False)
    ]


@given(
    lengths=st.lists(st.integers(0, 60), min_size=1, max_size=5).filter(lambda lengths: max(lengths) > 1),
    window=st.integers(1, 12),
    overlap=st.integers(0, 11),
    windows=st.integers(1, 4),
)
def test_every_token_but_a_documents_first_is_a_target_once(
    lengths: list[int], window: int, overlap: int, windows: int
) -> None:
    overlap = min(overlap, window - 1)
    documents = documents_of(*lengths)
    sequences = TrainingSequences(documents, window=window, overlap=overlap, windows=windows)
    items = [sequences[index] for index in range(len(sequences))]
    for item in items:
        assert 1 <= len(item["input_ids"]) == len(item["shift_labels"]) <= sequences.tokens_per_sequence
        # Tokens are numbered through, so this also says that no sequence crosses documents.
        assert torch.equal(item["input_ids"] + 1, item["shift_labels"])
    targets = torch.cat([item["shift_labels"] for item in items]).tolist()
    assert targets == [token for document in documents for token in document.ids[1:].tolist()]
    assert sequences.targets == len(targets)


@given(window=st.integers(1, 12), overlap=st.integers(0, 11), windows=st.integers(1, 6))
def test_full_sequence_has_the_given_number_of_windows(window: int, overlap: int, windows: int) -> None:
    overlap = min(overlap, window - 1)
    sequences = TrainingSequences(documents_of(200), window=window, overlap=overlap, windows=windows)
    scheduled = schedule(sequences.tokens_per_sequence, window, overlap)
    assert len(scheduled) == windows
    assert all(stop - start == window for start, stop, _ in scheduled)


def test_sequences_are_long_tensors_and_do_not_copy_the_documents() -> None:
    documents = documents_of(11)
    sequences = TrainingSequences(documents, window=4, overlap=1, windows=2)
    assert sequences.tokens_per_sequence == 7
    assert [sequences[index]["input_ids"].tolist() for index in range(len(sequences))] == [
        [0, 1, 2, 3, 4, 5, 6],
        [7, 8, 9],
    ]
    assert sequences[0]["input_ids"].dtype == sequences[0]["shift_labels"].dtype == torch.int64
    documents[0].ids[0] = 99
    assert sequences[0]["input_ids"][0] == 99


def test_invalid_sizes_raise() -> None:
    with pytest.raises(UserError, match="windows=0"):
        TrainingSequences(documents_of(9), window=4, windows=0)
    with pytest.raises(UserError, match="overlap=4, window=4"):
        TrainingSequences(documents_of(9), window=4, windows=1, overlap=4)
    with pytest.raises(UserError, match="2 training documents hold no two tokens"):
        TrainingSequences(documents_of(1, 0), window=4, windows=1)


def test_batch_is_padded_on_the_right() -> None:
    sequences = TrainingSequences(documents_of(4, 6), window=8, windows=1)
    batch = collate([sequences[0], sequences[1]], pad_token_id=77)
    assert {key: value.tolist() for key, value in batch.items()} == {
        "input_ids": [[0, 1, 2, 77, 77], [4, 5, 6, 7, 8]],
        "labels": [[0, 1, 2, -100, -100], [4, 5, 6, 7, 8]],
        "shift_labels": [[1, 2, 3, -100, -100], [5, 6, 7, 8, 9]],
        "attention_mask": [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]],
    }
    assert all(value.dtype == torch.int64 for value in batch.values())


def test_batch_without_padding_has_no_mask() -> None:
    sequences = TrainingSequences(documents_of(9), window=4, windows=1)
    batch = collate([sequences[0], sequences[1]], pad_token_id=0)
    assert set(batch) == {"input_ids", "labels", "shift_labels"}
    assert torch.equal(batch["labels"], batch["input_ids"])
