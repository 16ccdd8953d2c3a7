"""A task that no single window can solve: the first window holds two signs, and the last names the one that counts.

A document is filler words. Its first window holds a sign of each of two kinds, drawn independently, its last window one
rule that names a kind, and the label is the sign of that kind. Given the last window alone all labels are equally
likely: a decoder that classifies by its last token and carries nothing into its last window is right by chance,
however well it is trained. Given the first window alone the label is known only where both signs agree. A model that
carries the signs along can be right always.
"""

from typing import NamedTuple

import numpy as np

END = 0
"""The token that ends every document, where the answer is due; then come signs, rules and filler words."""
KINDS = 2


class TwoPartTask(NamedTuple):
    """The shape of the documents."""

    window: int = 8
    """Tokens of a window."""
    windows: int = 3
    labels: int = 2
    fillers: int = 8
    """Different filler words."""

    @property
    def rules(self) -> int:
        """The token of the first rule."""
        return 1 + KINDS * self.labels

    @property
    def vocabulary(self) -> int:
        return self.rules + KINDS + self.fillers

    @property
    def length(self) -> int:
        return self.window * self.windows

    def sign(self, kind: int, label: int) -> int:
        """The token of a sign."""
        return 1 + kind * self.labels + label


class TwoPartDocuments(NamedTuple):
    tokens: np.ndarray
    """(documents, tokens)"""
    labels: np.ndarray
    """(documents,)"""


def two_part_documents(count: int, seed: int, task: TwoPartTask | None = None) -> TwoPartDocuments:
    """`count` documents with their labels; all cases occur equally often, as far as `count` goes."""
    task = TwoPartTask() if task is None else task
    chance = np.random.default_rng(seed)
    tokens = chance.integers(task.rules + KINDS, task.vocabulary, size=(count, task.length))
    cases = chance.permutation(np.arange(count) % (KINDS * task.labels**2))
    rest, rules = np.divmod(cases, KINDS)
    signs = np.stack(np.divmod(rest, task.labels))
    rows = np.arange(count)
    places = chance.permuted(np.tile(np.arange(task.window), (count, 1)), axis=1)
    for kind in range(KINDS):
        tokens[rows, places[:, kind]] = 1 + kind * task.labels + signs[kind]
    start = task.length - task.window
    tokens[rows, start + chance.integers(task.window - 1, size=count)] = task.rules + rules
    tokens[:, -1] = END
    return TwoPartDocuments(tokens, signs[rules, rows])
