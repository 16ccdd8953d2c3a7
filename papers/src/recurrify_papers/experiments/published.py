"""What was published, as numbers to hold ours against.

"The paper" is Yoshida, Ettinger and Gimpel, "Adding Recurrence to Pretrained Transformers" (2020/21); "the thesis" is
Muntean, "Investigating the Impact of Recurrent Connections on Pre-Trained Transformer-based Models" (VU Amsterdam),
which announces measurements and prints guesses, no results.
"""

from typing import Any, NamedTuple

PAPER = "Adding Recurrence to Pretrained Transformers"
THESIS = "Investigating the Impact of Recurrent Connections on Pre-Trained Transformer-based Models"


class Perplexities(NamedTuple):
    """Per word, not per BPE token."""

    valid: float
    test: float


TABLE_1: dict[str, dict[int, Perplexities]] = {
    "plain": {
        0: Perplexities(29.00, 30.47),
        5: Perplexities(27.99, 29.36),
        10: Perplexities(27.58, 28.88),
        30: Perplexities(26.72, 27.96),
        50: Perplexities(26.17, 27.31),
    },
    "carry": {
        0: Perplexities(27.70, 29.01),
        5: Perplexities(26.88, 28.12),
        10: Perplexities(26.51, 27.77),
        30: Perplexities(25.90, 27.12),
        50: Perplexities(25.53, 26.73),
    },
}
"""WikiText-103, windows of 300, by overlap."""

TABLE_2: dict[str, dict[int, Perplexities]] = {
    "plain": {
        0: Perplexities(172.25, 147.71),
        5: Perplexities(165.93, 142.30),
        10: Perplexities(162.66, 139.49),
        30: Perplexities(156.21, 134.30),
        50: Perplexities(152.64, 131.25),
        75: Perplexities(149.54, 128.46),
        100: Perplexities(147.05, 126.51),
        150: Perplexities(143.62, 123.53),
        200: Perplexities(141.14, 121.40),
    },
    "carry": {
        0: Perplexities(155.27, 133.02),
        5: Perplexities(150.00, 128.78),
        10: Perplexities(147.53, 127.05),
        30: Perplexities(142.35, 122.22),
        50: Perplexities(140.10, 119.93),
    },
}
"""PG-19, windows of 300, by overlap."""

TABLE_3 = {
    "disjoint": {"f1": 48.17, "exact_match": 43.55},
    "recurrent": {"f1": 49.12, "exact_match": 44.55},
}
"""HotpotQA, distractor setting, development set."""

TOPICS = {"plain": {"divergence": 0.5951}, "carry": {"divergence": 0.5331, "closer_share": 0.60}}
"""Section 5.3.1; "at least 60 % of the time" with p < 0.00001."""

HYPERPARAMETERS: dict[str, str] = {
    "base model": "GPT-2 small (12 layers, 768 wide, 124 M parameters)",
    "data": "WikiText-103 (raw); PG-19, first 1,250 training books by file name",
    "window": "300",
    "windows in a training sequence": "20",
    "length": "2 epochs",
    "optimiser": "Adam",
    "learning rate": "chosen for both models from the same candidates, which are not printed",
    "learning rate of what was added": "the same",
    "schedule": "linear warm-up over 100 steps, then constant",
    "validation": "every 2 M tokens, first 15,000 tokens of each book, early stopping",
    "network": "3 hidden layers of 200",
    "insertion layer": "2",
    "seeds": "not stated",
}

THESIS_HYPERPARAMETERS: dict[str, str] = dict.fromkeys(HYPERPARAMETERS, "not printed") | {
    "base model": "GPT-2",
    "data": "enwik8",
}
"""The thesis names models and data, and no settings."""


def hyperparameters(source: str) -> dict[str, str]:
    """Those of the publication that an experiment names as its source."""
    return THESIS_HYPERPARAMETERS if source.startswith(THESIS) else HYPERPARAMETERS


def gain(table: dict[str, dict[int, Perplexities]], kind: str, overlap: int) -> dict[str, float] | None:
    """How much lower a published row lies than the published plain one at the same overlap."""
    if kind == "plain" or overlap not in table.get(kind, {}) or overlap not in table["plain"]:
        return None
    ours, plain = table[kind][overlap], table["plain"][overlap]
    return {"valid": 1 - ours.valid / plain.valid, "test": 1 - ours.test / plain.test}


def row(table: dict[str, dict[int, Perplexities]] | None, kind: str, overlap: int) -> dict[str, Any]:
    """The published half of a result row."""
    if table is None or overlap not in table.get(kind, {}):
        return {"published": None, "published_gain": None}
    return {"published": table[kind][overlap]._asdict(), "published_gain": gain(table, kind, overlap)}
