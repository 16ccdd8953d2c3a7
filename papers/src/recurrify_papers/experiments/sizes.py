"""The sizes an experiment comes in: as published, what one GPU does in minutes, and a check of the machinery."""

from dataclasses import dataclass, field
from typing import Any

from recurrify.errors import UserError
from recurrify_papers.experiments import beyond_sizes

PLAIN: dict[str, Any] = {"mechanism": "none"}
CARRY: dict[str, Any] = {"mechanism": "carry"}
TAIL: dict[str, Any] = {"mechanism": "tail", "tail": 16, "pooled_slots": 1}
"""The shape of the best that was found here; LOG.md tells what it was found against."""

XLNET: dict[str, Any] = {"mechanism": "xlnet", "memory": 300}

LABELS = {
    "plain": "plain windows",
    "carry": "recurrent, as in the paper",
    "best": "recurrent, best found here",
    "xlnet": "XLNet with its own memory",
}


@dataclass(frozen=True, kw_only=True)
class Size:
    name: str
    purpose: str
    base: str | None
    """A model's name; None pretrains one on books and wiki text."""
    pretraining: dict[str, Any] = field(default_factory=dict)
    """The pretraining's settings where there is no name."""
    books: str
    """Where long documents come from unless the user names another source."""
    wiki: str
    """The same for encyclopaedia articles."""
    thesis: str = "wiki"
    """The corpus of the thesis's experiments: wiki, where that is enwik8 or stands for it, or enwik8 itself."""
    differences: tuple[str, ...]
    """How this differs from what was published."""
    window: int = 300
    window_sizes: tuple[int, ...] = (200, 300, 400, 500, 600)
    overlaps: tuple[int, ...] = (0, 5, 10, 30, 50)
    plain_overlaps: tuple[int, ...] = (75, 100, 150, 200)
    """Overlaps at which the plain model alone is scored."""
    best_overlaps: dict[str, tuple[int, ...]] = field(
        default_factory=lambda: {"books": (0, 5, 10, 30, 50), "wiki": (0, 5, 10, 30, 50)}
    )
    """Overlaps of the best found mechanism, by corpus."""
    frontier_overlaps: tuple[int, ...] = (0, 30, 50)
    """Overlaps of the plain model at every window size."""
    training: dict[str, Any] = field(default_factory=dict)
    """Settings of every fine-tuning, in the words of TrainSettings."""
    wiki_training: dict[str, Any] = field(default_factory=dict)
    """What differs on wiki text."""
    candidates: tuple[float, ...] = ()
    """Learning rates, the same for every kind of model."""
    added_rate: float = 1.0
    """The added weights' learning rate, as a multiple of the base's."""
    tuning_tokens: int | None = None
    """Length of the runs that choose among them; None is the length of the others."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Of the rows without overlap; the others take the first alone."""
    valid_tokens: int = 15_000
    test_tokens: int | None = None
    """How much of each document is scored; None is all of it."""
    best: dict[str, Any] = field(default_factory=lambda: TAIL)
    """The mechanism that is ours, and the one whose learning rate is chosen."""
    best_from: tuple[str, ...] = ()
    """Names of variants; the one that validates best takes the place of `best` after the learning rates."""
    contexts: int = 8_000
    """Of the topic experiment."""
    predicted_tokens: int = 2_000
    """Of each document, for accuracy and its relatives."""
    xlnet: dict[str, Any] = field(default_factory=dict)
    """What differs in XLNet's training, and its own candidates for the learning rate (`learning_rates`)."""
    curve: dict[str, Any] = field(default_factory=dict)
    """What differs in the runs that tell how many tokens a loss takes; empty: the usual runs tell it."""
    unfamiliar_candidates: tuple[float, ...] = (1e-4, 3e-4, 1e-3)
    """Learning rates of `unfamiliar`, for both bases."""
    cost: dict[str, Any] = field(default_factory=dict)
    lengths: dict[str, Any] = field(default_factory=dict)
    """What differs from `LengthStudy`'s own settings."""
    complexity: dict[str, Any] = field(default_factory=dict)
    """What differs from the grid of sizes that suits the device."""
    scratch: dict[str, Any] = field(default_factory=dict)
    """What differs from `ScratchStudy`'s own settings."""
    beyond: beyond_sizes.Beyond = field(default_factory=beyond_sizes.Beyond)
    """What goes beyond the papers."""

    def recurrence(self, kind: str) -> dict[str, Any]:
        return {"plain": PLAIN, "carry": CARRY, "best": self.best, "xlnet": XLNET}[kind]


SIZES = {
    size.name: size
    for size in (
        Size(
            name="paper",
            purpose="as published: GPT-2 small on PG-19 and WikiText-103 from the hub; days on one GPU",
            base="gpt2",
            books="pg19:1250",
            wiki="wikitext-103",
            thesis="enwik8",
            differences=(
                "Learning rate candidates, sequences in a step (8) and the patience of early stopping (3 validations) "
                "are ours: the paper does not print its own.",
                "AdamW without weight decay for Adam; added weights start from vectors that the base makes little of.",
                "Topics are fitted on 5,000 pieces of 1,000 words from the 1,250 training books, not on 5,000 books.",
                "Our own mechanism is the one that validated best at size small.",
            ),
            best=TAIL | {"tail": 64},
            training={"batch": 8, "accumulate": 1, "windows": 20, "epochs": 2.0, "checkpoint": True},
            candidates=(1e-5, 3e-5, 1e-4, 3e-4),
            xlnet={"model": "xlnet-base-cased", "learning_rates": (1e-5, 3e-5, 1e-4)},
            scratch={"seeds": (0, 1, 2)},
            beyond=beyond_sizes.PAPER,
        ),
        Size(
            name="small",
            purpose="a base of 34 M parameters pretrained here, novels and enwik8: for one large GPU",
            base=None,
            pretraining={
                "vocabulary": 16_384,
                "layers": 8,
                "width": 512,
                "heads": 8,
                "positions": 1024,
                "batch": 64,
                "learning_rate": 2e-3,
                "warmup_steps": 100,
                "max_tokens": 100_000_000,
                "valid_every": 50_000_000,
            },
            books="pg19:160",
            wiki="enwik8",
            differences=(
                "The base is a GPT-2-architecture model of 34 M parameters, pretrained here on the training parts of "
                "both corpora, in place of GPT-2 small (124 M, WebText).",
                "Novels, or the first books of PG-19, stand for PG-19, and enwik8 for WikiText-103. Levels of "
                "perplexity cannot be compared with the published ones: enwik8's words are long and full of markup.",
                "The base saw 100 M tokens. Fine-tuning is shorter than the paper's two epochs: 16 M tokens of the "
                "novels used here are 0.65 of an epoch, 6 M of enwik8 0.23, and runs that choose rates or mechanisms "
                "are shorter still; a cosine schedule instead of a constant rate.",
                "Added weights learn at five times the base's rate: the base has seen this text, they have not.",
            ),
            training={
                "batch": 4,
                "windows": 20,
                "epochs": 100.0,
                "max_tokens": 16_000_000,
                "valid_every": 6_000_000,
                "patience": 0,
                "schedule": "cosine",
                "warmup_steps": 50,
                "checkpoint": False,
                "compile": "graphs",
            },
            wiki_training={"group_by_length": True, "max_tokens": 6_000_000, "valid_every": 7_000_000},
            best_overlaps={"books": (0,), "wiki": (0,)},
            best_from=("tail-16-pooled", "tail-32-pooled", "tail-64-pooled"),
            candidates=(5e-5, 1e-4, 2e-4),
            added_rate=5.0,
            tuning_tokens=5_000_000,
            contexts=2_000,
            predicted_tokens=500,
            xlnet={
                # From scratch, 6e-5 and more forget again what they learned (LOG.md).
                "learning_rates": (3e-5,),
                "warmup_steps": 200,
                "max_tokens": 12_000_000,
                "valid_every": 10_000_000,
            },
            curve={"valid_every": 500_000, "valid_tokens": 4_000},
            beyond=beyond_sizes.SMALL,
        ),
        Size(
            name="tiny",
            purpose="the shipped model on Python's own source, offline, minutes on two cores: checks the machinery",
            base="shipped:base",
            books="stdlib",
            wiki="stdlib",
            differences=(
                "Everything is tiny: a base of 0.6 M parameters on source code. These numbers check the machinery and "
                "say nothing about the paper.",
            ),
            window=64,
            window_sizes=(32, 48, 64, 96, 128),
            plain_overlaps=(),
            best_overlaps={"books": (0, 5, 10, 30, 50), "wiki": (0,)},
            training={
                "batch": 4,
                "windows": 4,
                "max_tokens": 20_000,
                "valid_every": 10_000,
                "valid_tokens": 500,
                "patience": 0,
                "warmup_steps": 5,
                "checkpoint": False,
            },
            wiki_training={"group_by_length": True},
            candidates=(5e-4, 1e-3),
            tuning_tokens=10_000,
            seeds=(0, 1),
            valid_tokens=300,
            test_tokens=300,
            best={"mechanism": "tail", "tail": 8, "pooled_slots": 1},
            contexts=40,
            predicted_tokens=100,
            xlnet={"learning_rates": (5e-4, 1e-3)},
            cost={"rows": 2, "windows": 2, "lengths": (64, 128), "new_tokens": 8, "repeats": 2},
            lengths={
                "tasks": ("parity", "dyck"),
                "seeds": (0,),
                "rates": (1e-3, 3e-3),
                "steps": 60,
                "batch": 32,
                "lengths": (20, 40, 80, 120, 200, 400),
                "valid_sequences": 128,
                "test_sequences": 64,
            },
            complexity={"repeats": 3},
            scratch={
                "seeds": (0, 1),
                "symbols": "all-bytes",
                "steps": 200,
                "batch": 8,
                "length": 64,
                "learning_rate": 3e-3,
                "eval_batch": 32,
                "valid_every": 8 * 64 * 25,
                "valid_tokens": 30_000,
                "test_tokens": 100_000,
                "layers": 2,
                "width": 48,
                "small_widths": (24, 8),
                "head_width": 8,
                "inner": 128,
                "block": 16,
                "states": 16,
            },
            beyond=beyond_sizes.TINY,
        ),
    )
}


def size_named(name: str) -> Size:
    if name not in SIZES:
        raise UserError(f"There is no size {name!r}: choose one of {', '.join(SIZES)}.")
    return SIZES[name]
