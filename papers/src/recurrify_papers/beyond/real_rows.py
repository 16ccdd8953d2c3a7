"""Ways of reading long text with one pretrained model, the texts, and scores: the tables of `real_models`."""

import copy
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from transformers import PreTrainedModel

from recurrify import (
    CarryConfig,
    CompressConfig,
    FarConfig,
    KVConfig,
    MechanismConfig,
    MemoryTokensConfig,
    NoRecurrence,
    RecurrentForCausalLM,
    TailConfig,
    UserError,
    add_recurrence,
    memory_cost,
)
from recurrify.console import say
from recurrify.data import TokenizedDocument, read_text, shorten
from recurrify.evaluate import (
    METRICS,
    Evaluation,
    evaluate_documents,
    full_flops_per_token,
    interval,
    matched_overlap,
    matched_window,
    relative_gain,
)
from recurrify_papers.exchange import Exchange

LENGTHS = {"novels": 16_384, "enwik8": 8_192, "code": 8_192, "novels_15k": 15_000, "valid": 4_096}
"""Scored tokens of each document, by corpus; one more is read."""
SAMPLED, MOST_DOCUMENTS = ("enwik8", "code"), 32
"""Corpora of which this many documents are used: long enough ones, spread evenly."""
FORWARD_TOKENS = 16_384
"""Tokens in one forward pass, about."""
METRIC = "perplexity_per_token"
SEED = 0


# ---- rows --------------------------------------------------------------------------------------------------------


class Row(NamedTuple):
    """One line of a table: a way of reading long text in windows."""

    name: str
    recurrence: MechanismConfig


def plain(window: int, overlap: int = 0) -> Row:
    """Windows without memory."""
    name = f"plain {window}" + (f" overlap {overlap}" if overlap else "")
    return Row(name, NoRecurrence(window=window, overlap=overlap))


def kv(window: int, keep: int, sinks: int = 4, sliding: bool = False) -> Row:
    """Windows that attend to kept keys and values of earlier ones."""
    name = f"kv {window} keep {keep} sinks {sinks}" + (" sliding" if sliding else "")
    return Row(name, KVConfig(window=window, keep=keep, sinks=sinks, sliding=sliding))


def far(window: int, keep: int, reach: int, layers: tuple[int, ...] | Literal["upper"] = "upper") -> Row:
    """As `kv`, and in some layers keys and values of many windows."""
    name = f"far {window} keep {keep} reach {reach}" + ("" if layers == "upper" else f" layers {layers}")
    return Row(name, FarConfig(window=window, keep=keep, reach=reach, layers=layers))


WINDOWS = (256, 300, 512, 600, 1024, 1200, 2048, 4096, 8192)
OVERLAPS = {300: (30, 75, 150, 225), 512: (64, 128, 256, 384), 1024: (128, 256, 512, 768), 8192: (4096,)}
KEEPS = {256: (64, 128, 252), 300: (64, 128, 256, 296), 512: (64, 128, 256, 508), 1024: (64, 256, 512, 1020)}
UNTRAINED = (
    *(plain(window) for window in WINDOWS),
    *(plain(window, overlap) for window, overlaps in OVERLAPS.items() for overlap in overlaps),
    *(kv(window, keep) for window, keeps in KEEPS.items() for keep in keeps),
    *(kv(300, 256, sinks) for sinks in (0, 1, 16)),
    *(kv(window, window, 0) for window in (256, 512, 1024)),
    kv(2048, 2044),
    # Sliding-window attention without sinks, and with the four sinks of StreamingLLM.
    *(kv(window, window - 1, 0, sliding=True) for window in (256, 300, 512, 1024)),
    *(kv(window, window - 4, 4, sliding=True) for window in (256, 300, 512, 1024)),
)
"""Rivals of equal cost are added to each memory, see `Reader.gains`."""
FAR = far(300, 296, 916)
FEW, FEWER, SPREAD = (16, 18, 20, 22, 24), (17, 20, 23), tuple(range(3, 31, 3))
"""Layers that look far back, of thirty."""
CONSTANT = (
    *(kv(504, 500), kv(640, 432), kv(768, 368), kv(744, 740, sliding=True), FAR),
    *(far(300, 296, 1832, FEW), far(300, 296, 3053, FEWER), far(300, 296, 916, SPREAD)),
    *(far(300, 156, 1336), far(300, 156, 2672, FEW), far(504, 246, 760), far(504, 246, 1520, FEW)),
    *(far(150, 146, 1591), far(150, 146, 3182, FEW)),
    *(kv(1024, 1020), kv(1024, 1020, sliding=True)),
)
"""Constant state at up to 1.15 times the FLOPs of plain windows of 300, apart from the last two."""
DISTANCES = (0, 1, 2, 5, 20)
"""Windows before a window that its memory has read."""
FOUR_ROWS = (plain(300), plain(600), plain(1200), kv(300, 256), plain(8192))
"""The short table, for `novels_15k`."""
TIMED = (
    *(plain(window) for window in WINDOWS),
    *(plain(300, 150), plain(1024, 512)),
    *(kv(256, 252), kv(300, 64), kv(300, 256), kv(512, 508), kv(1024, 1020)),
    *(kv(300, 296, sliding=True), kv(1024, 1020, sliding=True)),
)
TRAINED = (
    plain(300),
    kv(300, 256),
    Row("carry", CarryConfig(window=300)),
    Row("carry all standardize", CarryConfig(window=300, insert_layer="all", standardize=True)),
    Row("tail 64", TailConfig(window=300, tail=64)),
    Row("memory_tokens 16", MemoryTokensConfig(window=300, tokens=16)),
    Row("compress", CompressConfig(window=300)),
    plain(1024),
    kv(504, 500),
    FAR,
    plain(8192),
)
"""The first row is the plain one that the fine-tuned memories are compared with."""
READINGS = (
    *(plain(window) for window in WINDOWS[1:]),
    *(kv(300, 64), kv(300, 256), kv(504, 500), kv(512, 508), kv(1024, 1020)),
)
"""Ways to read weights that were fine-tuned in plain windows or with kv."""


def with_row(base: PreTrainedModel, row: Row) -> RecurrentForCausalLM:
    """A copy of `base` that reads as the row says."""
    torch.manual_seed(SEED)
    model = add_recurrence(copy.deepcopy(base), row.recurrence)
    assert isinstance(model, RecurrentForCausalLM)
    return model


# ---- texts -------------------------------------------------------------------------------------------------------


@dataclass
class Texts:
    """The corpora, in tokens of one model."""

    tokenizer: Any
    novels: str | None = None
    """A folder with train/, valid/ and test/."""
    enwik8: str | None = None
    """The file enwik8."""
    checksums: dict[str, str] = field(default_factory=dict)
    """Of the texts read so far, by corpus."""

    def read(self, name: str) -> list[TokenizedDocument]:
        """The documents of a corpus, cut to its length; "train" has whole books."""
        source, splits = {
            "novels": (self.novels, ["test"]),
            "novels_15k": (self.novels, ["test", "valid"]),
            "valid": (self.novels, ["valid"]),
            "train": (self.novels, ["train"]),
            "enwik8": (self.enwik8 and f"enwik8:{self.enwik8}", ["test"]),
            "code": ("stdlib", ["all"]),
        }[name]
        if source is None:
            raise UserError(f"The corpus {name!r} has no text: use --{'enwik8' if name == 'enwik8' else 'novels'}.")
        parts = [read_text(source, split, self.tokenizer, say) for split in splits]
        self.checksums[name] = " and ".join(checksum for _, checksum in parts)
        documents = [one for tokens, _ in parts for one in tokens]
        if name in SAMPLED:
            long = [one for one in documents if len(one.ids) > LENGTHS[name]]
            chosen = np.linspace(0, len(long) - 1, min(MOST_DOCUMENTS, len(long))).round().astype(int)
            documents = [long[index] for index in chosen]
        return shorten(documents, self.tokenizer, LENGTHS[name] + 1) if name in LENGTHS else documents


# ---- scores ------------------------------------------------------------------------------------------------------


class Scored(NamedTuple):
    """One line of a result, and the evaluation that it was made of."""

    row: dict[str, Any]
    evaluation: Evaluation


def score(
    name: str, model: RecurrentForCausalLM, documents: Sequence[TokenizedDocument], exchange: bool = False
) -> Scored:
    """Score every token but the first of each document; `exchange` gives each another document's memory."""
    rows = max(2, FORWARD_TOKENS // model.recurrence.window)
    found = evaluate_documents(model, documents, rows=rows, bf16=True, change_state=Exchange() if exchange else None)
    cost = memory_cost(model)
    row = {
        "name": name,
        "recurrence": model.recurrence.to_dict(),
        "flops_per_token": full_flops_per_token(model),
        "state_floats": cost.state_floats,
        "added_parameters": cost.added_parameters,
        **{metric: found.metric(metric) for metric in METRICS},
        "interval": interval(found, METRIC),
        "documents": {"nll": found.nll.tolist()},
    }
    return Scored(row, found)


def saved_score(row: dict[str, Any], documents: Mapping[str, Any]) -> Scored:
    """A line of a result file; `documents` are that file's names and sizes of the scored documents."""
    columns = {"name": documents["names"], "nll": row["documents"]["nll"]}
    columns |= {unit: documents[unit] for unit in ("tokens", "words", "characters", "bytes")}
    lines = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    losses: dict[str, Any] = {"documents": lines, "loss_by_position": [], "loss_by_window": []}
    return Scored(row, Evaluation.from_dict({**row["recurrence"], **losses}))


def gain(than: Scored, memory: Scored) -> dict[str, Any]:
    """How much lower the memory's perplexity is, with its interval."""
    found = relative_gain(than.evaluation, memory.evaluation, METRIC)
    return {"than": than.row["name"], "gain": found.relative_gain, "interval": found.interval}


class Reader:
    """A base model and the documents of one corpus; each row is scored once."""

    def __init__(self, base: PreTrainedModel, documents: Sequence[TokenizedDocument]) -> None:
        self.base, self.documents = base, documents
        self.found: dict[str, Scored] = {}

    def __call__(self, row: Row) -> Scored:
        """The scores of the base, read as the row says."""
        if row.name not in self.found:
            started = time.time()
            self.found[row.name] = score(row.name, with_row(self.base, row), self.documents)
            say(f"{row.name}: {self.found[row.name].row[METRIC]:.2f} ({time.time() - started:.1f} s)")
        return self.found[row.name]

    def rivals(self, memory: RecurrentForCausalLM) -> dict[str, Row]:
        """Plain windows to compare a memory with: the same, the full context, and two that cost as many FLOPs."""
        window, flops = memory.recurrence.window, full_flops_per_token(memory)
        context = int(self.base.config.max_position_embeddings)
        return {
            "same_window": plain(window),
            "full_context": plain(context),
            "equal_cost_overlap": plain(window, matched_overlap(self.base, flops, window)),
            "equal_cost_window": plain(matched_window(self.base, flops, window, context)),
        }

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All rows scored so far."""
        return [one.row for one in self.found.values()]

    def table(self, rows: Iterable[Row]) -> list[dict[str, Any]]:
        """Score the rows and the rivals of each memory."""
        for row in rows:
            found = self(row)
            if not isinstance(row.recurrence, NoRecurrence):
                rivals = self.rivals(with_row(self.base, row))
                found.row["gains"] = {name: gain(self(rival), found) for name, rival in rivals.items()}
        return self.rows
