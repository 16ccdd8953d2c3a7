"""Documents in a single array, cut into rows of equal length without padding.

B: rows of a batch, N: inputs of a row.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor
from torch.utils.data import Dataset

from recurrify import UserError
from recurrify.data import TokenizedDocument


def pack_documents(documents: Sequence[TokenizedDocument], end: int, vocabulary: int) -> np.ndarray:
    """All token ids in order, `end` after each document; 16-bit integers if the vocabulary fits."""
    ids = np.empty(sum(len(document.ids) + 1 for document in documents), dtype=_smallest_type(vocabulary))
    start = 0
    for document in documents:
        stop = start + len(document.ids)
        ids[start:stop] = document.ids
        ids[stop] = end
        start = stop + 1
    return ids


def _smallest_type(vocabulary: int) -> type[np.generic]:
    return np.uint16 if vocabulary <= 2**16 else np.int32


class PackedRows(Dataset[np.ndarray]):
    """Rows of `length` inputs and one more token; each row begins with the last token of the one before.

    Every token but the first is a target exactly once. An incomplete last row is dropped.
    """

    def __init__(self, ids: np.ndarray, length: int) -> None:
        if len(ids) < length + 1:
            raise UserError(
                f"The training text has {len(ids):,} tokens, fewer than the {length + 1:,} of one sequence: "
                "give more text or fewer --positions."
            )
        self.length = length
        self._rows = sliding_window_view(ids, length + 1)[::length]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> np.ndarray:
        return self._rows[index]

    def __getitems__(self, indices: list[int]) -> np.ndarray:
        """A whole batch, (B, N + 1): called by torch's data loader."""
        return self._rows[indices]


def collate_rows(rows: np.ndarray) -> dict[str, Tensor]:
    """Inputs and targets as arguments of Hugging Face's causal models."""
    tokens_BN = torch.from_numpy(rows.astype(np.int64))
    inputs_BN = tokens_BN[:, :-1].contiguous()
    # The loss is computed only with `labels`, from `shift_labels`.
    return {"input_ids": inputs_BN, "labels": inputs_BN, "shift_labels": tokens_BN[:, 1:].contiguous()}
