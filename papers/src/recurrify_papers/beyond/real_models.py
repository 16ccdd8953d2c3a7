"""When is a memory worth it? A real pretrained model against plain windows, overlap and full context.

    python -m recurrify_papers.beyond.real_models score --model smollm2 --novels DIR --enwik8 FILE --out untrained.json
    python -m recurrify_papers.beyond.real_models distance --model smollm2 --novels DIR --out distance.json
    python -m recurrify_papers.beyond.real_models cost --model smollm2 --novels DIR --out cost.json
    python -m recurrify_papers.beyond.real_models train --model smollm2 --novels DIR --out fine_tuned.json
    python -m recurrify_papers.beyond.real_models join --parts ONE.json OTHER.json --out fine_tuned.json
    python -m recurrify_papers.beyond.real_models report --results FOLDER --out real_models.png

The model is a causal model with rotary positions: `smollm2`, a Hugging Face name, a folder or a .gguf file. Every row
scores the same tokens. Every memory is compared with plain windows of the same length, with the model's full context,
and with the overlap and the longer window that cost at least as many FLOPs.
"""

import argparse
import copy
import json
import random
import statistics
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from recurrify import KVConfig, NoRecurrence, RecurrentForCausalLM, UserError, load_model, memory_cost
from recurrify.console import say
from recurrify.data import TokenizedDocument, TrainingSequences, pick_device, shorten
from recurrify.evaluate import evaluate_documents, full_flops_per_token, mean_interval
from recurrify.results import load_result, provenance, save_result
from recurrify.train import TrainSettings, train
from recurrify_papers.beyond.real_rows import (
    CONSTANT,
    DISTANCES,
    FORWARD_TOKENS,
    FOUR_ROWS,
    LENGTHS,
    METRIC,
    READINGS,
    SEED,
    TIMED,
    TRAINED,
    UNTRAINED,
    Reader,
    Row,
    Texts,
    gain,
    kv,
    plain,
    saved_score,
    score,
    with_row,
)

ROWS = {row.name: row for row in (*TRAINED, *UNTRAINED, *CONSTANT)}
"""Rows that can be chosen by name."""
MOST_AT_ONCE = 100_000
"""Tokens in one forward pass whose cost is measured: the logits of more do not fit a large GPU."""


# ---- cost of reading ---------------------------------------------------------------------------------------------


def cost_row(
    base: PreTrainedModel, row: Row, documents: Sequence[TokenizedDocument], batches: Sequence[int], repeats: int = 3
) -> dict[str, Any]:
    """Time per token and GPU memory above the weights of reading `batches` documents at once.

    Each batch is read `repeats` times after a warm-up; the time is the median.
    """
    model = with_row(base, row)
    window, cuda = row.recurrence.window, model.device.type == "cuda"
    measured = []
    for batch in (one for one in batches if one * window <= MOST_AT_ONCE):
        chosen = [documents[index % len(documents)] for index in range(batch)]
        _read(model, [one._replace(ids=one.ids[: 2 * window + 1]) for one in chosen])
        before = torch.cuda.memory_allocated() if cuda else 0
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        tokens = sum(len(one.ids) - 1 for one in chosen)
        times = [1e6 * _read(model, chosen) / tokens for _ in range(repeats)]
        measured.append(
            {
                "documents": batch,
                "tokens": tokens,
                "microseconds_per_token": statistics.median(times),
                "spread": [min(times), max(times)],
                "peak_bytes_above_weights": torch.cuda.max_memory_allocated() - before if cuda else None,
            }
        )
    flops, state = full_flops_per_token(model), memory_cost(model).state_floats
    return {"name": row.name, "flops_per_token": flops, "state_floats": state, "reading": measured}


def _read(model: RecurrentForCausalLM, documents: Sequence[TokenizedDocument]) -> float:
    """Seconds to score the documents."""
    started = time.perf_counter()
    # Losses arrive on the CPU: the GPU is done when this returns.
    evaluate_documents(model, documents, rows=len(documents), bf16=True)
    return time.perf_counter() - started


# ---- what is remembered from how far back ------------------------------------------------------------------------


def distance_rows(
    base: PreTrainedModel, row: Row, documents: Sequence[TokenizedDocument], distances: Sequence[int], every: int
) -> list[dict[str, Any]]:
    """The loss of windows whose memory has read only so many windows before them, always of the same windows: every
    so many of each document, behind the largest distance."""
    model = with_row(base, row)
    window, most = row.recurrence.window, max(distances)
    losses = []
    for distance in distances:
        found = []
        for one in documents:
            ends = range(most + 1, (len(one.ids) - 1) // window + 1, every)
            parts = [one._replace(ids=one.ids[(end - distance - 1) * window : end * window + 1]) for end in ends]
            if not parts:
                raise UserError(f"{one.name} has no {most + 1} windows of {window}: choose smaller distances.")
            read = evaluate_documents(model, parts, rows=max(2, FORWARD_TOKENS // window), bf16=True)
            found.append(read.loss_by_window[distance])
        losses.append(found)
    rows = []
    for distance, found in zip(distances, losses, strict=True):
        gains = np.subtract(losses[0], found)
        rows.append({"distance": distance, "documents": found, "loss": float(np.mean(found))})
        rows[-1] |= {"gain": float(gains.mean()), "interval": mean_interval(gains)}
    return rows


# ---- training ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """Training settings that all fine-tuned rows share."""

    tokens: int = 10_000_000
    step_tokens: int = 15_000
    """Tokens of one update."""
    sequence_tokens: int = 3_000
    """Tokens of one training sequence; gradients flow through all its windows."""
    rates: tuple[float, ...] = (1e-4, 3e-4, 1e-3)
    """Learning rates to try; a single one is used as it is."""
    rate_tokens: int = 1_500_000
    """Tokens of the run that tries a learning rate."""
    added_times: float = 5.0
    """Learning rate of the memory's own weights, in multiples of the base's."""
    schedule: str = "cosine"
    warmup_share: float = 0.1
    compile: str = "auto"


def fine_tune(
    model: RecurrentForCausalLM, texts: Mapping[str, Sequence[TokenizedDocument]], plan: Plan, rate: float, tokens: int
) -> dict[str, Any]:
    """Train `model` in place; returns the settings of the run, its losses and the perplexity on validation text."""
    window = model.recurrence.window
    windows = max(1, round(plan.sequence_tokens / window))
    batch = max(1, round(plan.step_tokens / (windows * window)))
    # Without the last, shorter sequence of each book every batch has the same shape.
    ends = [(len(one.ids) - 1) // (windows * window) * windows * window + 1 for one in texts["train"]]
    books = [one._replace(ids=one.ids[:end]) for one, end in zip(texts["train"], ends, strict=True) if end > 1]
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
        sequences = TrainingSequences(books, window=window, windows=windows)
        outcome = train(model, sequences, settings, show_progress=False)
    if not outcome.finished:
        raise UserError(f"Stopped after {outcome.tokens:,} of {tokens:,} tokens: no row was written, run it again.")
    losses = [[one["step"], one["loss"]] for one in outcome.history if "loss" in one]
    run = {
        "learning_rate": rate,
        "tokens": outcome.tokens,
        "steps": outcome.steps,
        "batch": batch,
        "windows": windows,
        "seconds": round(time.time() - started, 1),
        "training_loss": losses[:: max(1, len(losses) // 10)],
        "valid": score("valid", model, texts["valid"]).row[METRIC],
    }
    say(f"learning rate {rate:g}: {run['valid']:.3f} on validation, {run['seconds']} s")
    return run


def try_rates(
    model: RecurrentForCausalLM, texts: Mapping[str, Sequence[TokenizedDocument]], plan: Plan
) -> list[dict[str, Any]]:
    """A short run with each learning rate, from the same weights; the best on validation text comes first."""
    start = {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}
    tries = []
    for rate in plan.rates:
        tries.append(fine_tune(model, texts, plan, rate, plan.rate_tokens))
        model.load_state_dict(start)
    return sorted(tries, key=lambda run: run["valid"])


def train_rows(
    base: PreTrainedModel, rows: Iterable[Row], texts: Mapping[str, Sequence[TokenizedDocument]], plan: Plan
) -> list[dict[str, Any]]:
    """Fine-tune each row; score it, its exchanged memories, and its base weights read in other ways."""
    found: list[dict[str, Any]] = []
    for row in rows:
        model = with_row(base, row)
        tries = try_rates(model, texts, plan) if len(plan.rates) > 1 else []
        rate = tries[0]["learning_rate"] if tries else plan.rates[0]
        run = fine_tune(model, texts, plan, rate, plan.tokens)
        scored = score(row.name, model, texts["novels"])
        say(f"{row.name}: {scored.row[METRIC]:.3f}")
        reader = Reader(base_of(model, base), texts["novels"])
        if model.mechanism is not None:
            exchanged = score(f"{row.name}, exchanged", model, texts["novels"], exchange=True)
            rivals = {name: rival.name for name, rival in reader.rivals(model).items()}
            scored.row.update(exchanged=exchanged.row, memory_alone=gain(exchanged, scored), rivals=rivals)
        for other in readings(row, reader):
            reader(other)
        found.append({**scored.row, "training": run, "tries": tries, "base_read_as": reader.rows})
    return found


def readings(row: Row, reader: Reader) -> list[Row]:
    """Other ways to read the base weights of a fine-tuned row. Memories are compared with those of the first row."""
    if row == TRAINED[0]:
        memories = [one for one in TRAINED if not isinstance(one.recurrence, NoRecurrence)]
        rivals = [rival for one in memories for rival in reader.rivals(with_row(reader.base, one)).values()]
        return [*READINGS, *rivals]
    return [*READINGS] if isinstance(row.recurrence, NoRecurrence | KVConfig) else [plain(row.recurrence.window)]


def join(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The rows of several results of `train`; memories get their gains over the weights of the first row of `TRAINED`,
    read as each rival, and over other rows without memory.

    Raises:
        UserError: The parts were not trained alike.
    """
    common = {name: parts[0][name] for name in ("documents", "plan", "training_text")}
    if different := [name for part in parts for name, value in common.items() if part[name] != value]:
        raise UserError(f"The parts differ in {different[0]!r}: train them with the same options and texts.")
    order = list(ROWS)
    rows = sorted((row for part in parts for row in part["rows"]), key=lambda row: order.index(row["name"]))
    memories, plain_rows = ([row for row in rows if ("rivals" in row) == wanted] for wanted in (True, False))
    if plain_rows and plain_rows[0]["name"] == order[0]:
        first, *others = plain_rows
        read = {one["name"]: saved_score(one, common["documents"]) for one in (*first["base_read_as"], first)}
        trained = {f"trained {one['name']}": saved_score(one, common["documents"]) for one in others}
        for row in memories:
            rivals = row["rivals"] | ({"memory_added_afterwards": row["name"]} if row["name"] in read else {})
            than = {name: read[rival] for name, rival in rivals.items() if rival in read} | trained
            memory = saved_score(row, common["documents"])
            row["gains"] = {name: gain(rival, memory) for name, rival in than.items()}
    return {**common, "rows": rows}


def base_of(model: RecurrentForCausalLM, base: PreTrainedModel) -> PreTrainedModel:
    """A copy of `base` with the fine-tuned weights of the model, without what the memory added to them."""
    trained, own = copy.deepcopy(base), model.base.state_dict()
    trained.load_state_dict({name: own[name] for name in trained.state_dict()})
    return trained


def sample_books(documents: Sequence[TokenizedDocument], most: int) -> list[TokenizedDocument]:
    """Books drawn at random with a fixed seed, as many as fit into `most` tokens."""
    shuffled = list(documents)
    random.Random(SEED).shuffle(shuffled)
    chosen, tokens = [], 0
    for one in shuffled:
        if tokens + len(one.ids) <= most:
            chosen.append(one)
            tokens += len(one.ids)
    return chosen


# ---- commands ----------------------------------------------------------------------------------------------------


def load(options: argparse.Namespace) -> tuple[PreTrainedModel, Texts]:
    """The pretrained model in float32, on the GPU if there is one, and the texts in its tokens."""
    model, tokenizer = load_model(options.model, dtype=torch.float32, device=pick_device())
    return model.base, Texts(tokenizer, options.novels, options.enwik8)


def save(options: argparse.Namespace, result: Mapping[str, Any], texts: Texts, config: Mapping[str, Any]) -> None:
    """Write a result file with its provenance."""
    settings = {"model": Path(options.model).name, **config}
    checksums = json.dumps(texts.checksums, sort_keys=True)
    about = provenance(settings, seed=SEED, data_checksum=checksums, started=options.started)
    save_result(options.out, {**result, "provenance": about})


def sizes_of(documents: Sequence[TokenizedDocument]) -> dict[str, Any]:
    """The names and sizes of the scored documents."""
    sizes = {unit: [getattr(one, unit) for one in documents] for unit in ("words", "characters", "bytes")}
    return {"names": [one.name for one in documents], "tokens": [len(one.ids) - 1 for one in documents], **sizes}


def score_command(options: argparse.Namespace) -> None:
    """Score all rows, untrained."""
    base, texts = load(options)
    corpora = {}
    for name in options.corpora:
        documents = texts.read(name)[: options.documents]
        if options.length is not None:
            documents = shorten(documents, texts.tokenizer, options.length + 1)
        wanted = [ROWS[row] for row in options.rows] if options.rows else UNTRAINED
        rows = Reader(base, documents).table(FOUR_ROWS if name == "novels_15k" else wanted)
        corpora[name] = {"documents": sizes_of(documents), "rows": rows}
    lengths = LENGTHS if options.length is None else options.length
    config = {
        "corpora": options.corpora,
        "rows": options.rows,
        "lengths": lengths,
        "precision": "bf16 on a GPU, else float32",
    }
    save(options, {"corpora": corpora}, texts, config)


def distance_command(options: argparse.Namespace) -> None:
    """Measure what memories gain from windows further back: the loss after so many windows of reading."""
    base, texts = load(options)
    documents = texts.read("novels")[: options.documents]
    if options.length is not None:
        documents = [one._replace(ids=one.ids[: options.length + 1]) for one in documents]
    distances = sorted({0, *options.distances})
    rows: list[dict[str, Any]] = []
    for row in (chosen for name, chosen in ROWS.items() if name in options.rows):
        rows.append({"name": row.name, "distances": distance_rows(base, row, documents, distances, options.every)})
        say(f"{row.name}: " + ", ".join(f"{one['distance']}: {one['loss']:.4f}" for one in rows[-1]["distances"]))
    config = {"rows": options.rows, "length": options.length, "every": options.every, "documents": options.documents}
    save(options, {"documents": sizes_of(documents), "rows": rows}, texts, config)


def cost_command(options: argparse.Namespace) -> None:
    """Measure time and memory of reading; run it on a GPU that does nothing else."""
    base, texts = load(options)
    documents = [one._replace(ids=one.ids[: options.length + 1]) for one in texts.read("novels_15k")]
    rows = [cost_row(base, row, documents, options.batches) for row in TIMED]
    config = {"length": options.length, "batches": options.batches, "precision": "bf16 autocast, eager"}
    save(options, {"rows": rows}, texts, config)


def train_command(options: argparse.Namespace) -> None:
    """Fine-tune rows alike, each with its best learning rate, and score them."""
    base, texts = load(options)
    plan = Plan(**{one.name: getattr(options, one.name) for one in fields(Plan)})
    corpora = {name: texts.read(name) for name in ("novels", "valid", "train")}
    if options.train_tokens:
        corpora["train"] = sample_books(corpora["train"], options.train_tokens)
    rows = [ROWS[name] for name in options.rows] if options.rows else TRAINED
    books = {"documents": len(corpora["train"]), "tokens": sum(len(one.ids) for one in corpora["train"])}
    settings = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(plan).items()}
    about = {"documents": sizes_of(corpora["novels"]), "plan": settings, "training_text": books}
    save(options, join([{**about, "rows": train_rows(base, rows, corpora, plan)}]), texts, settings)


def join_command(options: argparse.Namespace) -> None:
    """Put rows together that were fine-tuned by separate commands."""
    parts = [load_result(path) for path in options.parts]
    save_result(options.out, {**join(parts), "provenance": [part["provenance"] for part in parts]})


def report_command(options: argparse.Namespace) -> None:
    """Draw the chart of untrained.json."""
    from recurrify_papers.beyond.real_chart import draw

    draw(options.results, options.out)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    steps = found.add_subparsers(required=True, metavar="COMMAND")
    commands = {
        "score": score_command,
        "distance": distance_command,
        "cost": cost_command,
        "train": train_command,
        "join": join_command,
        "report": report_command,
    }
    parts = {name: steps.add_parser(name, help=command.__doc__) for name, command in commands.items()}
    for name, part in parts.items():
        part.set_defaults(command=commands[name])
        part.add_argument("--out", type=Path, required=True, help="result file, or picture")
        if name in ("score", "distance", "cost", "train"):
            part.add_argument("--model", required=True, help="smollm2, Hugging Face name, folder or .gguf file")
            part.add_argument("--novels", help="folder with train/, valid/ and test/")
            part.add_argument("--enwik8", help="the file enwik8, as it is or packed")
    corpora = [name for name in LENGTHS if name != "valid"]
    parts["score"].add_argument("--corpora", nargs="+", choices=corpora, default=corpora)
    parts["score"].add_argument("--documents", type=int, help="score only this many documents of each corpus")
    parts["score"].add_argument("--rows", nargs="+", choices=list(ROWS), metavar="ROW", help="default: the large table")
    parts["score"].add_argument("--length", type=int, help="tokens of each document (default: the corpus's)")
    parts["distance"].add_argument("--rows", nargs="+", choices=list(ROWS), metavar="ROW", default=[kv(300, 256).name])
    parts["distance"].add_argument("--distances", type=int, nargs="+", default=DISTANCES, help="windows")
    parts["distance"].add_argument("--every", type=int, default=1, help="measure every so many windows")
    parts["distance"].add_argument("--length", type=int, help="tokens of each document")
    parts["distance"].add_argument("--documents", type=int, help="read only this many novels")
    parts["cost"].add_argument("--length", type=int, default=8_192, help="tokens of each document")
    parts["cost"].add_argument("--batches", type=int, nargs="+", default=[1, 8, 32], help="documents read at once")
    parts["train"].add_argument("--rows", nargs="+", choices=list(ROWS), metavar="ROW", help="default: the table's")
    parts["train"].add_argument("--train-tokens", type=int, help="train on a random sample of books of this size")
    for one in fields(Plan):
        many: dict[str, Any] = {"nargs": "+", "type": float} if one.name == "rates" else {"type": type(one.default)}
        parts["train"].add_argument(f"--{one.name.replace('_', '-')}", default=one.default, **many)
    parts["join"].add_argument("--parts", type=Path, nargs="+", required=True, help="results of `train`")
    parts["report"].add_argument("--results", type=Path, required=True, help="folder of untrained.json")
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command. Bad input is one sentence and exit code 2."""
    options = parser().parse_args(arguments, argparse.Namespace(started=time.time()))
    try:
        options.command(options)
    except UserError as error:
        parser().exit(2, f"Error: {error}\n")


if __name__ == "__main__":
    main()
