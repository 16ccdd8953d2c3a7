"""When is a memory worth it? A real pretrained model against plain windows, overlap and full context.

Five steps, each a command of its own, so that text is tokenized once and a GPU machine needs no text at all:

    python -m recurrify_papers.beyond.real_models prepare --model MODEL --novels DIR --enwik8 FILE --texts FOLDER
    python -m recurrify_papers.beyond.real_models score --model MODEL --texts FOLDER --out untrained.json
    python -m recurrify_papers.beyond.real_models cost --model MODEL --texts FOLDER --out cost.json
    python -m recurrify_papers.beyond.real_models train --model MODEL --texts FOLDER --out fine_tuned.json
    python -m recurrify_papers.beyond.real_models report --results FOLDER --out chart.png

MODEL is a Hugging Face name, a folder or a .gguf file of a causal model with rotary positions. Every row scores the
same tokens, and every memory is compared with plain windows of its own length, with the model's full context, and with
the overlap and the longer window that cost at least as many FLOPs.
"""

import argparse
import copy
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from recurrify import (
    CarryConfig,
    CompressConfig,
    KVConfig,
    MemoryTokensConfig,
    NoRecurrence,
    RecurrenceConfig,
    RecurrentForCausalLM,
    TailConfig,
    add_recurrence,
    load_model,
    memory_cost,
)
from recurrify.data import TokenizedDocument, TrainingSequences, checksum, load_documents, shorten, tokenize_documents
from recurrify.evaluate import METRICS, Evaluation, evaluate_documents, full_flops_per_token, interval, relative_gain
from recurrify.modeling import model_tokenizer
from recurrify.results import provenance, save_result
from recurrify.train import TrainSettings, train

HELD_OUT, TRAIN = "held_out.npz", "train.npz"
LENGTHS = {"novels": 16_384, "novels_15k": 15_000, "enwik8": 8_192, "code": 8_192, "valid": 4_096}
"""Scored tokens of each document, by corpus; one more is read."""
MOST_DOCUMENTS = 32
"""Of enwik8 and code: documents that are long enough, spread evenly over the split."""
FORWARD_TOKENS = 16_384
"""Tokens in one forward pass, about: documents or windows that are read at once."""
MOST_AT_ONCE = 100_000
"""Tokens in one forward pass whose cost is measured: the logits of more do not fit a large GPU."""
METRIC = "perplexity_per_token"
SEED = 0


# ---- rows --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One line of a table: a way of reading long text in windows."""

    name: str
    recurrence: RecurrenceConfig


def plain(window: int, overlap: int = 0) -> Row:
    """Windows without memory."""
    name = f"plain {window}" + (f" overlap {overlap}" if overlap else "")
    return Row(name, NoRecurrence(window=window, overlap=overlap))


def kv(window: int, keep: int, sinks: int = 4, sliding: bool = False) -> Row:
    """Windows that see kept keys and values of earlier ones."""
    name = f"kv {window} keep {keep} sinks {sinks}" + (" sliding" if sliding else "")
    return Row(name, KVConfig(window=window, keep=keep, sinks=sinks, sliding=sliding))


WINDOWS = (256, 300, 512, 600, 1024, 1200, 2048, 4096, 8192)
OVERLAPS = {300: (30, 75, 150, 225), 512: (64, 128, 256, 384), 1024: (128, 256, 512, 768), 8192: (4096,)}
KEEPS = {256: (64, 128, 252), 300: (64, 128, 256, 296), 512: (64, 128, 256, 508), 1024: (64, 256, 512, 1020)}
UNTRAINED: tuple[Row, ...] = (
    *(plain(window) for window in WINDOWS),
    *(plain(window, overlap) for window, overlaps in OVERLAPS.items() for overlap in overlaps),
    *(kv(window, keep) for window, keeps in KEEPS.items() for keep in keeps),
    *(kv(300, 256, sinks) for sinks in (0, 1, 16)),
    *(kv(window, keep, 0) for window, keep in ((256, 256), (512, 512), (1024, 1024))),
    kv(2048, 2044),
    # Sliding-window attention without sinks, and with the four sinks of StreamingLLM.
    *(kv(window, window - 1, 0, sliding=True) for window in (256, 300, 512, 1024)),
    *(kv(window, window - 4, 4, sliding=True) for window in (256, 300, 512, 1024)),
)
"""Every kv row also gets its two rivals of equal cost, see `rivals`."""

FOUR_ROWS: tuple[Row, ...] = (plain(300), plain(600), plain(1200), kv(300, 256), plain(8192))

TIMED: tuple[Row, ...] = (
    *(plain(window) for window in WINDOWS),
    plain(300, 150),
    plain(1024, 512),
    kv(256, 252),
    kv(300, 64),
    kv(300, 256),
    kv(512, 508),
    kv(1024, 1020),
    kv(300, 296, 4, sliding=True),
    kv(1024, 1020, 4, sliding=True),
)

TRAINED: tuple[Row, ...] = (
    plain(300),
    kv(300, 256),
    Row("carry", CarryConfig(window=300)),
    Row("carry all standardize", CarryConfig(window=300, insert_layer="all", standardize=True)),
    Row("tail 64", TailConfig(window=300, tail=64)),
    Row("memory_tokens 16", MemoryTokensConfig(window=300, tokens=16)),
    Row("compress", CompressConfig(window=300)),
    plain(1024),
)


def rivals(base: PreTrainedModel, row: Row) -> tuple[Row, Row]:
    """Plain windows that cost at least as much as `row`: with overlap in the same window, and in a longer window.

    Costs are FLOPs per token; each rival is the cheapest that costs no less. The longer window ends at the model's
    own context.
    """
    flops = flops_of(base, row)
    window = row.recurrence.window
    longest = int(base.config.max_position_embeddings)
    overlap = _smallest(0, window - 1, lambda one: full_flops_per_token(base, window, one) >= flops)
    longer = _smallest(window, longest, lambda one: full_flops_per_token(base, one, 0) >= flops)
    return plain(window, overlap), plain(longer)


def _smallest(low: int, high: int, reached: Callable[[int], bool]) -> int:
    """The smallest number that reaches it, or `high` if none below does."""
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if reached(middle) else (middle + 1, high)
    return low


def flops_of(base: PreTrainedModel, row: Row) -> float:
    """FLOPs per token of `base` read as the row says, everything counted."""
    return full_flops_per_token(with_row(base, row))


def with_row(base: PreTrainedModel, row: Row) -> RecurrentForCausalLM:
    """A copy of `base` that reads as the row says; what a mechanism changes in its base stays in the copy."""
    torch.manual_seed(SEED)
    model = add_recurrence(copy.deepcopy(base), row.recurrence)
    assert isinstance(model, RecurrentForCausalLM)
    return model


# ---- texts -------------------------------------------------------------------------------------------------------


def prepare(model: str, novels: str, enwik8: str, folder: Path) -> None:
    """Tokenize all corpora with the model's tokenizer and write them to `folder`."""
    tokenizer = model_tokenizer(model)
    sources = {
        "novels": (novels, "test", None),
        "enwik8": (f"enwik8:{enwik8}", "test", MOST_DOCUMENTS),
        "code": ("stdlib", "all", MOST_DOCUMENTS),
        "valid": (novels, "valid", None),
    }
    held_out: dict[str, list[TokenizedDocument]] = {}
    checksums: dict[str, str] = {}
    for name, (source, split, most) in sources.items():
        texts = load_documents(source, split)
        tokens = tokenize_documents(texts, tokenizer)
        if most is not None:
            long = [one for one in tokens if len(one.ids) > LENGTHS[name]]
            tokens = [long[index] for index in np.linspace(0, len(long) - 1, min(most, len(long))).round().astype(int)]
        checksums[name] = checksum(texts)
        held_out[name] = shorten(tokens, tokenizer, LENGTHS[name] + 1)
        if name in ("novels", "valid"):
            held_out.setdefault("novels_15k", []).extend(shorten(tokens, tokenizer, LENGTHS["novels_15k"] + 1))
    checksums["novels_15k"] = f"{checksums['novels']} and {checksums['valid']}"
    save_texts(folder / HELD_OUT, held_out, checksums)
    texts = load_documents(novels, "train")
    save_texts(folder / TRAIN, {"train": tokenize_documents(texts, tokenizer)}, {"train": checksum(texts)})


def save_texts(path: Path, corpora: Mapping[str, Sequence[TokenizedDocument]], checksums: Mapping[str, str]) -> None:
    """Write token ids and the sizes of their texts to one .npz file."""
    arrays = {f"{name}/{index}": one.ids for name, ones in corpora.items() for index, one in enumerate(ones)}
    sizes = {name: [[one.name, one.words, one.characters, one.bytes] for one in ones] for name, ones in corpora.items()}
    about = np.frombuffer(json.dumps({"sizes": sizes, "checksums": dict(checksums)}).encode(), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    small = all(ids.max() < 2**16 for ids in arrays.values())
    stored: dict[str, Any] = {name: ids.astype(np.uint16) if small else ids for name, ids in arrays.items()}
    np.savez(path, about=about, **stored)


def load_texts(path: Path) -> tuple[dict[str, list[TokenizedDocument]], dict[str, str]]:
    """The documents of each corpus, and the checksums of their texts."""
    with np.load(path) as stored:
        about = json.loads(stored["about"].tobytes())
        corpora = {
            name: [
                TokenizedDocument(title, stored[f"{name}/{index}"].astype(np.int32), *sizes)
                for index, (title, *sizes) in enumerate(documents)
            ]
            for name, documents in about["sizes"].items()
        }
    return corpora, about["checksums"]


def load_base(name: str) -> PreTrainedModel:
    """The pretrained model in float32, on the GPU if there is one."""
    model, _ = load_model(name, NoRecurrence(), dtype=torch.float32)
    base: PreTrainedModel = model.base.to("cuda" if torch.cuda.is_available() else "cpu")
    return base


# ---- scores ------------------------------------------------------------------------------------------------------


def evaluate_row(
    model: RecurrentForCausalLM, documents: Sequence[TokenizedDocument], exchange: bool = False
) -> Evaluation:
    """Score every token but the first of each document; `exchange` gives each another document's memory."""
    rows = max(2, FORWARD_TOKENS // model.recurrence.window)
    return evaluate_documents(model, documents, rows=rows, windows_per_call=1, bf16=True, exchange_memories=exchange)


def score_row(base: PreTrainedModel, row: Row, documents: Sequence[TokenizedDocument]) -> dict[str, Any]:
    """One line of the table: the row's settings, its cost and its scores."""
    model = with_row(base, row)
    return described(row.name, model, evaluate_row(model, documents))


def described(name: str, model: RecurrentForCausalLM, found: Evaluation) -> dict[str, Any]:
    """An evaluation as a result holds it, with the model's settings and cost."""
    cost = memory_cost(model)
    return {
        "name": name,
        "recurrence": model.recurrence.to_dict(),
        "flops_per_token": full_flops_per_token(model),
        "state_floats": cost.state_floats,
        "added_parameters": cost.added_parameters,
        **{metric: found.metric(metric) for metric in METRICS},
        "interval": interval(found, METRIC),
        "loss_by_position": by_position(found),
        "loss_by_window": found.loss_by_window[:32],
        "documents": {"nll": found.nll.tolist()},
    }


def by_position(found: Evaluation) -> list[list[float]]:
    """Mean losses of stretches of the window that double in length: [first position, loss] each."""
    edges = [0, *(2**power for power in range(2, 14))]
    stretches = []
    for start, stop in pairwise(edges):
        losses = [loss for loss in found.loss_by_position[start:stop] if loss is not None]
        if losses:
            stretches.append([start, float(np.mean(losses))])
    return stretches


def restored(row: Mapping[str, Any], documents: Sequence[TokenizedDocument]) -> Evaluation:
    """The evaluation that `described` wrote, as far as comparisons need it."""
    return Evaluation(
        window=row["recurrence"]["window"],
        overlap=row["recurrence"]["overlap"],
        names=tuple(one.name for one in documents),
        nll=np.array(row["documents"]["nll"]),
        tokens=np.array([len(one.ids) - 1 for one in documents]),
        **{unit: np.array([getattr(one, unit) for one in documents]) for unit in ("words", "characters", "bytes")},
        loss_by_position=(),
        loss_by_window=(),
    )


def gain(
    than: Mapping[str, Any], row: Mapping[str, Any], documents: Sequence[TokenizedDocument], metric: str = METRIC
) -> dict[str, Any]:
    """How far the row's perplexity lies below that of `than`, with its interval."""
    found = relative_gain(restored(than, documents), restored(row, documents), metric)
    return {"than": than["name"], "gain": found.relative_gain, "interval": found.interval}


def score_corpus(
    base: PreTrainedModel,
    rows: Iterable[Row],
    documents: Sequence[TokenizedDocument],
    compare: bool = True,
    say: Callable[[str], None] = print,
) -> list[dict[str, Any]]:
    """Score all rows on one corpus; each memory is compared with its rivals if `compare`."""
    found: dict[str, dict[str, Any]] = {}

    def line(row: Row) -> dict[str, Any]:
        if row.name not in found:
            started = time.time()
            found[row.name] = score_row(base, row, documents)
            say(f"{row.name}: {found[row.name][METRIC]:.2f} ({time.time() - started:.1f} s)")
        return found[row.name]

    full = plain(int(base.config.max_position_embeddings))
    for row in rows:
        one = line(row)
        if isinstance(row.recurrence, NoRecurrence) or not compare:
            continue
        overlap, longer = rivals(base, row)
        against = {"same_window": plain(row.recurrence.window), "full_context": full}
        against |= {"equal_cost_overlap": overlap, "equal_cost_window": longer}
        one["gains"] = {name: gain(line(rival), one, documents) for name, rival in against.items()}
    return list(found.values())


# ---- costs -------------------------------------------------------------------------------------------------------


def cost_row(
    base: PreTrainedModel, row: Row, documents: Sequence[TokenizedDocument], batches: Sequence[int], repeats: int = 3
) -> dict[str, Any]:
    """Time per token and GPU memory of reading documents of one length, `batches` documents at once.

    Memory is the peak above the weights. Every batch is read `repeats` times after a warm-up; the time is the median.
    """
    model = with_row(base, row)
    measured = []
    for batch in batches:
        if batch * row.recurrence.window > MOST_AT_ONCE:
            continue
        chosen = [documents[index % len(documents)] for index in range(batch)]
        warm = [one._replace(ids=one.ids[: 2 * row.recurrence.window + 1]) for one in chosen]
        _read(model, warm)
        seconds, peak, before = [], None, None
        for _ in range(repeats):
            if torch.cuda.is_available():
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
            started = time.perf_counter()
            _read(model, chosen)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
                peak = torch.cuda.max_memory_allocated()
            seconds.append(time.perf_counter() - started)
        tokens = sum(len(one.ids) - 1 for one in chosen)
        measured.append(
            {
                "documents": batch,
                "tokens": tokens,
                "microseconds_per_token": 1e6 * statistics.median(seconds) / tokens,
                "spread": [1e6 * min(seconds) / tokens, 1e6 * max(seconds) / tokens],
                "peak_bytes_above_weights": None if peak is None or before is None else peak - before,
            }
        )
    cost = memory_cost(model)
    return {
        "name": row.name,
        "flops_per_token": full_flops_per_token(model),
        "state_floats": cost.state_floats,
        "reading": measured,
    }


def _read(model: RecurrentForCausalLM, documents: Sequence[TokenizedDocument]) -> None:
    evaluate_documents(model, documents, rows=len(documents), windows_per_call=1, bf16=True)


# ---- training ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """What all fine-tuned rows have in common."""

    step_tokens: int = 15_000
    """Tokens of one update."""
    sequence_tokens: int = 3_000
    """Tokens of one training sequence, through all windows of which gradients flow."""
    tokens: int = 10_000_000
    rates: tuple[float, ...] = (1e-4, 3e-4, 1e-3)
    """Candidates; a single one is used without a try."""
    rate_tokens: int = 1_500_000
    """Tokens of the run that tries a learning rate."""
    added_times: float = 5.0
    """Learning rate of the memory's own weights, in multiples of the base's."""
    schedule: str = "cosine"
    warmup_share: float = 0.1
    compile: str = "auto"


def fine_tune(
    model: RecurrentForCausalLM,
    documents: Sequence[TokenizedDocument],
    plan: Plan,
    rate: float,
    tokens: int,
    label: str = "",
) -> dict[str, Any]:
    """Train `model` in place; returns what it took."""
    window = model.recurrence.window
    windows = max(1, round(plan.sequence_tokens / window))
    batch = max(1, round(plan.step_tokens / (windows * window)))
    sequences = TrainingSequences(_full_length(documents, windows * window), window=window, windows=windows)
    started = time.time()
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainSettings(
            out=folder,
            model="base",
            data="train",
            recurrence=model.recurrence.to_dict(),
            windows=windows,
            batch=batch,
            epochs=1000.0,
            max_tokens=tokens,
            learning_rate=rate,
            added_learning_rate=plan.added_times * rate if model.mechanism is not None else None,
            schedule=plan.schedule,
            warmup_steps=max(1, round(plan.warmup_share * tokens / plan.step_tokens)),
            valid_every=10 * tokens,
            compile=plan.compile,
            seed=SEED,
        )
        outcome = train(model, sequences, settings, show_progress=False, progress_label=label)
    losses = [[one["step"], one["loss"]] for one in outcome.history if "loss" in one]
    return {
        "learning_rate": rate,
        "tokens": outcome.tokens,
        "steps": outcome.steps,
        "batch": batch,
        "windows": windows,
        "seconds": round(time.time() - started, 1),
        "training_loss": losses[:: max(1, len(losses) // 10)],
    }


def _full_length(documents: Sequence[TokenizedDocument], length: int) -> list[TokenizedDocument]:
    """The documents without the last, shorter sequence of each: every batch then has the same shape."""
    cut = [(len(one.ids) - 1) // length * length + 1 for one in documents]
    return [one._replace(ids=one.ids[:end]) for one, end in zip(documents, cut, strict=True) if end > 1]


def sample_books(documents: Sequence[TokenizedDocument], most: int) -> list[TokenizedDocument]:
    """Books drawn at random, always the same ones, as many as fit into `most` tokens."""
    shuffled = list(documents)
    random.Random(SEED).shuffle(shuffled)
    chosen, tokens = [], 0
    for one in shuffled:
        if tokens + len(one.ids) <= most:
            chosen.append(one)
            tokens += len(one.ids)
    return chosen


def choose_rate(
    model: RecurrentForCausalLM,
    train_documents: Sequence[TokenizedDocument],
    valid_documents: Sequence[TokenizedDocument],
    plan: Plan,
    say: Callable[[str], None] = print,
) -> list[dict[str, Any]]:
    """Try each learning rate from the same start; returns the tries, best on validation first."""
    start = {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}
    tries = []
    for rate in plan.rates:
        run = fine_tune(model, train_documents, plan, rate, plan.rate_tokens)
        run["valid"] = evaluate_row(model, valid_documents).metric(METRIC)
        say(f"learning rate {rate:g}: {run['valid']:.3f} on validation, {run['seconds']} s")
        tries.append(run)
        model.load_state_dict(start)
    return sorted(tries, key=lambda run: run["valid"])


def score_trained(
    base: PreTrainedModel,
    row: Row,
    model: RecurrentForCausalLM,
    documents: Sequence[TokenizedDocument],
    extra: Iterable[Row] = (),
) -> dict[str, Any]:
    """Scores of a fine-tuned model: its own memory, exchanged memories, and its base read in other ways."""
    found = described(row.name, model, evaluate_row(model, documents))
    if model.mechanism is not None:
        exchanged = described(f"{row.name}, exchanged", model, evaluate_row(model, documents, exchange=True))
        found["exchanged"] = exchanged
        found["memory_alone"] = gain(exchanged, found, documents)
    trained = copy.deepcopy(base)
    own = model.base.state_dict()
    trained.load_state_dict({name: own[name] for name in trained.state_dict()})
    found["base_read_as"] = [score_row(trained, other, documents) for other in extra]
    return found


def compare_trained(rows: Sequence[dict[str, Any]], documents: Sequence[TokenizedDocument]) -> None:
    """Write into each fine-tuned memory its gains over the base fine-tuned in plain windows of the same length.

    The rivals of equal cost and the full context are readings of that plain base.
    """
    base = next((row for row in rows if row["name"] == "plain 300"), None)
    if base is None:
        return
    readings = {one["name"]: one for one in (base, *base["base_read_as"])}
    for row in rows:
        if row is base or row["recurrence"]["mechanism"] == "none":
            continue
        longer = [one for one in readings.values() if series_of(one) == "plain"]
        overlapping = [one for one in readings.values() if one["recurrence"]["window"] == 300]
        against = {
            "same_window": base,
            "full_context": max(longer, key=lambda one: one["recurrence"]["window"]),
            "equal_cost_overlap": _no_cheaper(row, overlapping),
            "equal_cost_window": _no_cheaper(row, longer),
            "memory_added_afterwards": readings.get(row["name"]),
        }
        row["gains"] = {name: gain(one, row, documents) for name, one in against.items() if one is not None}


def _no_cheaper(row: Mapping[str, Any], readings: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
    """The cheapest plain reading that costs at least as much as the row; None if it costs over 1 % more."""
    plain_ones = [one for one in readings if one["recurrence"]["mechanism"] == "none"]
    dearer = [one for one in plain_ones if one["flops_per_token"] >= row["flops_per_token"]]
    found = min(dearer, key=lambda one: one["flops_per_token"], default=None)
    return found if found is None or found["flops_per_token"] <= 1.01 * row["flops_per_token"] else None


def trained_readings(base: PreTrainedModel, row: Row) -> list[Row]:
    """Other ways in which a fine-tuned base is read: what its own weights do without the memory, and with others."""
    if not isinstance(row.recurrence, NoRecurrence | KVConfig):
        return [plain(row.recurrence.window)]
    windows = [plain(one) for one in (300, 512, 600, 1024, 1200, 2048, 4096, 8192)]
    memories = [kv(300, 64), kv(300, 256), kv(512, 508), kv(1024, 1020)]
    added = [one for one in TRAINED if not isinstance(one.recurrence, NoRecurrence)]
    same_cost = [rival for memory in added for rival in rivals(base, memory)]
    return list({one.name: one for one in (*windows, *memories, *same_cost)}.values())


# ---- chart -------------------------------------------------------------------------------------------------------

TITLES = {"novels": "Novels", "enwik8": "enwik8", "code": "Python code"}
SERIES = {
    "plain": ("plain windows", "tab:gray", "o"),
    "overlap": ("plain, overlapping", "tab:orange", "v"),
    "kv": ("kv, 4 sinks", "tab:blue", "s"),
    "sliding": ("sliding window, 4 sinks (StreamingLLM)", "tab:green", "D"),
}


def series_of(row: Mapping[str, Any]) -> str | None:
    """The series of the chart that a row belongs to; None for memories without sinks, which are far off."""
    settings = row["recurrence"]
    if settings["mechanism"] == "none":
        return "overlap" if settings["overlap"] else "plain"
    if settings["mechanism"] != "kv" or settings["sinks"] != 4:
        return None
    return "sliding" if settings["sliding"] else "kv"


def draw(results: Path, out: Path) -> None:
    """Draw perplexity per token against FLOPs per token: untrained on each corpus, and fine-tuned on novels."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    untrained = json.loads((results / "untrained.json").read_text(encoding="utf-8"))["corpora"]
    tuned = json.loads((results / "fine_tuned.json").read_text(encoding="utf-8"))["rows"]
    figure, panels = pyplot.subplots(1, 4, figsize=(19, 4.8))
    for panel, (name, title) in zip(panels, TITLES.items(), strict=False):
        rows = untrained[name]["rows"]
        for series, (label, colour, marker) in SERIES.items():
            chosen = [row for row in rows if series_of(row) == series]
            if series != "overlap":
                chosen = _frontier(chosen)
            panel.plot(
                [row["flops_per_token"] / 1e8 for row in chosen],
                [row[METRIC] for row in chosen],
                color=colour,
                marker=marker,
                markersize=4,
                linestyle="none" if series == "overlap" else "-",
                label=label,
            )
        panel.axhline(next(row[METRIC] for row in rows if row["name"] == "plain 8192"), color="black", linewidth=0.6)
        panel.set_title(f"{title}, untrained")
    last = panels[-1]
    base = next(row for row in tuned if row["name"] == "plain 300")
    readings = _frontier([one for one in (base, *base["base_read_as"]) if series_of(one) == "plain"])
    last.plot(
        [one["flops_per_token"] / 1e8 for one in readings], [one[METRIC] for one in readings], "o-", color="tab:gray"
    )
    for row in tuned:
        shown = [(row, row["name"])]
        shown += [(one, f"{one['name']}, by {row['name']}") for one in row["base_read_as"] if series_of(one) == "kv"]
        for one, label in shown:
            place = one["flops_per_token"] / 1e8, one[METRIC]
            last.plot(*place, "s" if one is row else "x", color="tab:blue", markersize=4)
            below = label == "plain 300"
            last.annotate(label, place, fontsize=6, xytext=(5, -8 if below else 2), textcoords="offset points")
    last.set_title(f"Novels, fine-tuned on {base['training']['tokens'] / 1e6:.0f} M tokens")
    for panel in panels:
        panel.set_xscale("log")
        panel.set_xticks([3, 4, 5, 6, 8, 10], labels=["3", "4", "5", "6", "8", "10"])
        panel.minorticks_off()
        panel.set_xlabel("FLOPs per token, 1e8")
    last.set_xlim(2.7, 6.5)
    panels[0].set_ylabel("perplexity per token")
    panels[0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(out, dpi=110)


def _frontier(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rows by cost, without those that cost more and are no better than a cheaper one."""
    kept: list[Mapping[str, Any]] = []
    for row in sorted(rows, key=lambda one: one["flops_per_token"]):
        if not kept or row[METRIC] < kept[-1][METRIC]:
            kept.append(row)
    return kept


# ---- commands ----------------------------------------------------------------------------------------------------


def about(model: str, checksums: Mapping[str, str], started: float, config: Mapping[str, Any]) -> dict[str, Any]:
    """The provenance of a result file."""
    return provenance(
        {"model": Path(model).name, **config},
        seed=SEED,
        data_checksum=json.dumps(dict(checksums), sort_keys=True),
        started=started,
    )


def sizes_of(documents: Sequence[TokenizedDocument]) -> dict[str, Any]:
    """What was scored."""
    return {
        "names": [one.name for one in documents],
        "tokens": [len(one.ids) - 1 for one in documents],
        **{unit: [getattr(one, unit) for one in documents] for unit in ("words", "characters", "bytes")},
    }


def prepare_command(options: argparse.Namespace) -> None:
    """Tokenize all corpora."""
    prepare(options.model, options.novels, options.enwik8, options.texts)


def score_command(options: argparse.Namespace) -> None:
    """Score all untrained rows."""
    started, base = time.time(), load_base(options.model)
    corpora, checksums = load_texts(options.texts / HELD_OUT)
    result: dict[str, Any] = {"corpora": {}}
    for name in options.corpora:
        documents = corpora[name][: options.documents]
        rows = FOUR_ROWS if name == "novels_15k" else UNTRAINED
        print(f"{name}: {len(documents)} documents", flush=True)
        found = score_corpus(base, rows, documents, say=lambda text: print(text, flush=True))
        result["corpora"][name] = {"documents": sizes_of(documents), "rows": found}
    config = {"corpora": options.corpora, "lengths": LENGTHS, "precision": "bf16 autocast"}
    result["provenance"] = about(options.model, checksums, started, config)
    save_result(options.out, result)


def cost_command(options: argparse.Namespace) -> None:
    """Measure time and memory of reading; run it on a GPU that does nothing else."""
    started, base = time.time(), load_base(options.model)
    corpora, checksums = load_texts(options.texts / HELD_OUT)
    documents = [one._replace(ids=one.ids[: options.length + 1]) for one in corpora["novels_15k"]]
    rows = []
    for row in TIMED:
        rows.append(cost_row(base, row, documents, options.batches))
        print(row.name, [round(one["microseconds_per_token"], 2) for one in rows[-1]["reading"]], flush=True)
    config = {"length": options.length, "batches": options.batches, "precision": "bf16 autocast, eager"}
    save_result(options.out, {"rows": rows, "provenance": about(options.model, checksums, started, config)})


def train_command(options: argparse.Namespace) -> None:
    """Fine-tune the chosen rows, each at its best learning rate, and score them."""
    started, base = time.time(), load_base(options.model)
    corpora, checksums = load_texts(options.texts / HELD_OUT)
    training, more = load_texts(options.texts / TRAIN)
    books = sample_books(training["train"], options.train_tokens) if options.train_tokens else training["train"]
    plan = replace(Plan(), rates=tuple(options.rates), **{name: getattr(options, name) for name in PLAN_OPTIONS})
    found = []
    for row in TRAINED:
        if options.rows and row.name not in options.rows:
            continue
        model = with_row(base, row)
        tries = choose_rate(model, books, corpora["valid"], plan) if len(plan.rates) > 1 else []
        rate = tries[0]["learning_rate"] if tries else plan.rates[0]
        run = fine_tune(model, books, plan, rate, plan.tokens, row.name)
        run["valid"] = evaluate_row(model, corpora["valid"]).metric(METRIC)
        one = score_trained(base, row, model, corpora["novels"], trained_readings(base, row))
        found.append({**one, "training": run, "tries": tries})
        print(f"{row.name}: {one[METRIC]:.3f}", flush=True)
    compare_trained(found, corpora["novels"])
    result = {"documents": sizes_of(corpora["novels"]), "rows": found, "plan": asdict(plan)}
    result["training_text"] = {"documents": len(books), "tokens": sum(len(one.ids) for one in books)}
    result["provenance"] = about(options.model, {**checksums, **more}, started, asdict(plan))
    save_result(options.out, result)


def report_command(options: argparse.Namespace) -> None:
    """Draw the chart of the results."""
    draw(options.results, options.out)


PLAN_OPTIONS = {"tokens": int, "rate_tokens": int, "step_tokens": int, "sequence_tokens": int, "compile": str}
"""Fields of `Plan` that the command line sets, beside the learning rates."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line and run one step."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    steps = parser.add_subparsers(required=True)
    commands = {"prepare": prepare_command, "score": score_command, "cost": cost_command, "train": train_command}
    for name, command in commands.items():
        step = steps.add_parser(name, help=(command.__doc__ or "").splitlines()[0])
        step.set_defaults(command=command)
        step.add_argument("--model", required=True, help="Hugging Face name, folder or .gguf file")
        step.add_argument("--texts", type=Path, required=True, help="folder of the tokenized texts")
        if name == "prepare":
            step.add_argument("--novels", required=True, help="folder with train/, valid/ and test/")
            step.add_argument("--enwik8", required=True, help="the file enwik8, as it is or packed")
        else:
            step.add_argument("--out", type=Path, required=True, help="result file")
        if name == "score":
            corpora = [one for one in LENGTHS if one != "valid"]
            step.add_argument("--corpora", nargs="+", choices=corpora, default=corpora)
            step.add_argument("--documents", type=int, default=None, help="score only the first documents")
        if name == "cost":
            step.add_argument("--length", type=int, default=8_192, help="tokens of each document")
            step.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32], help="documents read at once")
        if name == "train":
            step.add_argument("--rows", nargs="+", help="names of rows; all by default")
            step.add_argument("--rates", type=float, nargs="+", default=list(Plan.rates))
            step.add_argument("--train-tokens", type=int, help="train on a random sample of books of this size")
            for option, kind in PLAN_OPTIONS.items():
                step.add_argument(f"--{option.replace('_', '-')}", type=kind, default=getattr(Plan, option))
    report = steps.add_parser("report", help="Draw the chart of the results.")
    report.set_defaults(command=report_command)
    report.add_argument("--results", type=Path, required=True, help="folder of untrained.json and fine_tuned.json")
    report.add_argument("--out", type=Path, required=True, help="picture")
    options = parser.parse_args(arguments)
    options.command(options)


if __name__ == "__main__":
    main()
