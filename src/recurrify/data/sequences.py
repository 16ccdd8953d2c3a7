"""Training sequences: documents cut into a fixed number of windows each.

B: sequences of a batch, N: inputs of a sequence.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from recurrify.data.records import IGNORED
from recurrify.data.tokens import TokenizedDocument
from recurrify.errors import UserError
from recurrify.windows import check_window


class TrainingSequences(Dataset[dict[str, Tensor]]):
    """Consecutive sequences of `windows` windows each, none of them across two documents.

    Inputs and targets are aligned: `shift_labels[i]` is the token after `input_ids[i]`. Every token of a
    document but its first is a target exactly once. A document's last sequence may be shorter.
    """

    def __init__(self, documents: Sequence[TokenizedDocument], *, window: int, windows: int, overlap: int = 0) -> None:
        check_window(window, overlap)
        if windows < 1:
            raise UserError(f"`windows` must be at least 1 per sequence: got windows={windows}.")
        self.tokens_per_sequence = window + (windows - 1) * (window - overlap)
        self._documents = documents
        # The last token of a document is never an input: it has no target.
        inputs = np.fromiter((max(len(document.ids) - 1, 0) for document in documents), np.int64, len(documents))
        self.targets = int(inputs.sum())
        """The number of tokens predicted in one epoch."""
        self._inputs = inputs
        """Of each document."""
        counts = -(-inputs // self.tokens_per_sequence)
        self._document = np.repeat(np.arange(len(documents)), counts)
        """Of each sequence."""
        self._first = np.cumsum(counts) - counts
        """The first sequence of each document."""
        if not len(self._document):
            raise UserError(f"The {len(documents)} training documents hold no two tokens in a row: give longer texts.")

    def __len__(self) -> int:
        return len(self._document)

    def lengths(self) -> list[int]:
        """The inputs of each sequence."""
        before = (np.arange(len(self)) - self._first[self._document]) * self.tokens_per_sequence
        found: list[int] = np.minimum(self._inputs[self._document] - before, self.tokens_per_sequence).tolist()
        return found

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        index = range(len(self))[index]
        document = self._document[index]
        start = (index - self._first[document]) * self.tokens_per_sequence
        stretch = self._documents[document].ids[start : start + self.tokens_per_sequence + 1]
        tokens = torch.from_numpy(stretch.astype(np.int64))
        return {"input_ids": tokens[:-1], "shift_labels": tokens[1:]}


def collate(examples: Sequence[dict[str, Tensor]], pad_token_id: int = 0) -> dict[str, Tensor]:
    """One batch, padded on the right to its longest sequence."""
    inputs = [example["input_ids"] for example in examples]
    targets = [example["shift_labels"] for example in examples]
    ids_BN = pad_sequence(inputs, batch_first=True, padding_value=pad_token_id)
    lengths_B = torch.tensor([len(ids) for ids in inputs])
    real_BN = torch.arange(ids_BN.shape[1]) < lengths_B[:, None]
    batch = {
        "input_ids": ids_BN,
        # The loss uses `shift_labels`; `transformers.Trainer` counts targets, to scale the loss, by `labels`.
        "labels": ids_BN.masked_fill(~real_BN, IGNORED),
        "shift_labels": pad_sequence(targets, batch_first=True, padding_value=IGNORED),
    }
    # Fused attention runs only without a mask.
    if not real_BN.all():
        batch["attention_mask"] = real_BN.long()
    return batch
