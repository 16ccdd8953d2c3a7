"""The sizes of experiments: as published, what one GPU does in hours, and a check that everything works."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from recurrify import UserError

Settings = Mapping[str, Any]
PLAIN: dict[str, Any] = {"mechanism": "none"}
CARRY: dict[str, Any] = {"mechanism": "carry"}


def tail(size: int, **more: Any) -> dict[str, Any]:
    """The tail mechanism with one pooled slot."""
    return {"mechanism": "tail", "tail": size, "pooled_slots": 1, **more}


@dataclass(frozen=True, kw_only=True)
class Size:
    """What all experiments of a size share; `own` has the settings of single experiments."""

    name: str
    purpose: str
    base: str | None
    """A model's name; None pretrains one on books and wiki text."""
    pretraining: Settings = field(default_factory=dict)
    books: str
    """Source of long documents."""
    wiki: str
    """Source of encyclopaedia articles."""
    thesis: str = "wiki"
    """The corpus of the thesis: enwik8, or wiki where that is enwik8 or replaces it."""
    differences: tuple[str, ...]
    """How this size differs from what was published."""
    window: int = 300
    window_sizes: tuple[int, ...] = (200, 300, 400, 500, 600)
    overlaps: tuple[int, ...] = (0, 5, 10, 30, 50)
    plain_overlaps: tuple[int, ...] = (75, 100, 150, 200)
    """Overlaps at which plain windows alone are scored."""
    best_overlaps: tuple[int, ...] = (0,)
    frontier_overlaps: tuple[int, ...] = (0, 30, 50)
    training: Settings = field(default_factory=dict)
    """Settings of every fine-tuning, as in TrainSettings."""
    wiki_training: Settings = field(default_factory=dict)
    """What differs on wiki text."""
    rates: tuple[float, ...] = ()
    """Candidates for the learning rate, the same for every model."""
    added_rate: float = 1.0
    """Learning rate of the memory, as a multiple of the base's."""
    tuning_tokens: int | None = None
    """Length of the runs that choose learning rates; None: that of the others."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Of rows without overlap; the others take the first."""
    valid_tokens: int = 15_000
    test_tokens: int | None = None
    """How much of each document is scored; None: all of it."""
    best: Settings = field(default_factory=lambda: tail(16))
    """The best mechanism found with slots; its learning rate is chosen with it."""
    best_from: tuple[str, ...] = ()
    """Names of variants; the one that validates best replaces `best` after the learning rates are chosen."""
    own: Mapping[str, Settings] = field(default_factory=dict)
    """Settings of single experiments, by the experiment's name."""

    def source(self, corpus: str) -> str:
        """The text of books, wiki or enwik8."""
        if corpus == "enwik8":
            return self.wiki if self.wiki.startswith("enwik8") else "enwik8"
        return self.books if corpus == "books" else self.wiki


PAPER = Size(
    name="paper",
    purpose="as published: GPT-2 small on PG-19 and WikiText-103 from the hub; days on one GPU",
    base="gpt2",
    books="pg19:1250",
    wiki="wikitext-103",
    thesis="enwik8",
    differences=(
        "Learning rate candidates, 8 sequences per step and early stopping after 3 validations are ours: the paper "
        "does not print its own.",
        "AdamW without weight decay replaces Adam; the memory starts from vectors that the base ignores.",
        "Topics are fitted on 5,000 pieces of 1,000 words from the 1,250 training books, not on 5,000 books.",
        "Our own mechanism is the one that validated best at size small.",
    ),
    best=tail(64),
    best_overlaps=(0, 5, 10, 30, 50),
    training={"batch": 8, "accumulate": 1, "windows": 20, "epochs": 2.0, "checkpoint": True},
    rates=(1e-5, 3e-5, 1e-4, 3e-4),
    own={
        "thesis-enwik8": {"model": "xlnet-base-cased", "rates": (1e-5, 3e-5, 1e-4)},
        "rsa-enwik8": {"seeds": (0, 1, 2)},
        "mechanisms": {"all_seeds": True},
    },
)
SMALL = Size(
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
        "The base is a GPT-2-architecture model of 34 M parameters, pretrained here on 100 M tokens of the training "
        "parts of both corpora, instead of GPT-2 small (124 M, WebText).",
        "Novels, or the first books of PG-19, replace PG-19, and enwik8 replaces WikiText-103. Levels of perplexity "
        "cannot be compared with the published ones: enwik8's words are long and full of markup.",
        "Fine-tuning is shorter than the paper's two epochs: 16 M tokens of the novels used here are 0.65 of an epoch, "
        "6 M of enwik8 0.23, and runs that choose rates or mechanisms are shorter still; a cosine schedule replaces a "
        "constant rate.",
        "The memory learns at five times the base's rate: the base has seen this text, the memory has not.",
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
        "compile": "auto",
    },
    wiki_training={"group_by_length": True, "max_tokens": 6_000_000, "valid_every": 7_000_000},
    best_from=("tail-16-pooled", "tail-32-pooled", "tail-64-pooled"),
    rates=(5e-5, 1e-4, 2e-4),
    added_rate=5.0,
    tuning_tokens=5_000_000,
    own={
        "topics": {"contexts": 2_000},
        "thesis-metrics": {"tokens": 500},
        # From scratch, a rate of 6e-5 or more diverges.
        "thesis-enwik8": {
            "rates": (3e-5,),
            "warmup_steps": 200,
            "max_tokens": 12_000_000,
            "valid_every": 10_000_000,
        },
        "thesis-convergence": {"valid_every": 500_000, "valid_tokens": 4_000},
        # As many tokens per step, in half as many windows of twice as many rows, which fill a GPU better.
        "beyond": {"batch": 8, "windows": 10, "max_tokens": 8_000_000, "valid_every": 4_000_000},
        "beyond-wiki": {"max_tokens": 5_000_000, "valid_every": 6_000_000, "valid_tokens": 2_000},
        "tokens": {"seeded": 3_000_000},
        "starts": {"tokens": 3_000_000, "curriculum": ((2, 0.2), (5, 0.3), (10, 0.5))},
        "rotary": {
            "training": {"max_tokens": 5_000_000, "valid_every": 2_500_000, "warmup_steps": 20},
            "rates": (3e-4, 1e-3, 3e-3),
            "tuning_tokens": 1_500_000,
            "test_tokens": 15_000,
        },
    },
)
TINY = Size(
    name="tiny",
    purpose="the shipped model on Python's own source, offline, minutes on two cores: checks that everything works",
    base="shipped:base",
    books="stdlib",
    wiki="stdlib",
    differences=(
        "Everything is tiny: a base of 0.6 M parameters on source code. These numbers only check that everything "
        "works; they say nothing about the paper.",
    ),
    window=64,
    window_sizes=(32, 48, 64, 96, 128),
    plain_overlaps=(),
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
    rates=(5e-4, 1e-3),
    tuning_tokens=10_000,
    seeds=(0, 1),
    valid_tokens=300,
    test_tokens=300,
    best=tail(8),
    own={
        "topics": {"contexts": 40},
        "thesis-metrics": {"tokens": 100},
        "thesis-enwik8": {"rates": (5e-4, 1e-3)},
        "thesis-cost": {"batches": (4,), "documents": 4, "document_tokens": 600, "prompts": (64,), "rounds": 3},
        "table3": {"made_up": 40, "epochs": 1.0, "rates": (1e-3, 3e-3), "window": 64, "distractors": 2, "seeds": 2},
        "slides-lengths": {
            "tasks": ("parity", "dyck"),
            "seeds": (0,),
            "rates": (1e-3, 3e-3),
            "steps": 60,
            "batch": 32,
            "lengths": (20, 40, 80, 120, 200, 400),
            "valid_sequences": 128,
            "test_sequences": 64,
        },
        "slides-complexity": {"repeats": 3},
        "rsa-enwik8": {
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
        "mechanisms": {
            "mechanisms": {
                "carry-1": CARRY,
                "tail-4": tail(4),
                "tail-16": tail(16),
                "lookback-16": {"mechanism": "lookback", "keep": 16},
                "memory-tokens-4": {"mechanism": "memory_tokens", "tokens": 4},
                "summary-4": {"mechanism": "summary", "tokens": 4, "limit": 4},
                "compress-8": {"mechanism": "compress", "size": 8},
            },
            "seeded": ("lookback-16",),
            "longer": ("plain", "tail-16"),
            "longer_window": 96,
            "untrained": ("plain", "lookback-16"),
            "ours": "lookback-16",
            "slots": "tail-16",
        },
        "frozen": {"names": ("carry-1", "tail-16", "memory-tokens-4"), "rates": (1e-3, 1e-2)},
        "tokens": {"counts": (5_000, 10_000, 20_000, 40_000), "seeded": 10_000},
        "starts": {"tokens": 16_000, "points": 4, "curriculum": ((2, 0.5), (4, 0.5))},
        "unfamiliar": {"rates": (5e-4, 1e-3)},
        "rotary": {
            "model": None,
            "names": ("carry-1", "tail-16", "kv-16", "kv-window", "sliding-window"),
            "seeds": (0,),
            "rates": (1e-3, 3e-3),
            "added_rate": 1.0,
            "test_tokens": 300,
        },
        "two-part": {"seeds": (0,), "steps": 300, "documents": 500},
        "settle": {
            "model": None,
            "rates": (5e-4, 1e-3),
            "tuning_tokens": 10_000,
            "test_tokens": 300,
            "short_window": 32,
            "tokens": 20_000,
            "more_tokens": 40_000,
            "most_tokens": 40_000,
            "overlaps": (10,),
        },
    },
)
SIZES = {size.name: size for size in (PAPER, SMALL, TINY)}


def size_named(name: str) -> Size:
    """The size of this name."""
    if name not in SIZES:
        raise UserError(f"There is no size {name!r}: choose one of {', '.join(SIZES)}.")
    return SIZES[name]
