"""`recurrify demo`: a real model reads a novel with and without memory; a tiny one is fine-tuned; one page shows it."""

import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import logging

from recurrify.console import progress_bar
from recurrify.data.records import Document
from recurrify.data.texts import Say, read_text
from recurrify.data.tokens import TokenizedDocument, checksum
from recurrify.errors import UserError
from recurrify.evaluate import inspection, rows
from recurrify.evaluate.evaluation import Evaluation
from recurrify.evaluate.flops import memory_cost
from recurrify.evaluate.one_text import Setting, comparison_rows, fair_settings, full_context_losses
from recurrify.interrupts import unless_interrupted
from recurrify.mechanisms.carry import CarryConfig
from recurrify.mechanisms.config import MechanismConfig, NoRecurrence
from recurrify.mechanisms.kv import KVConfig
from recurrify.modeling.heads import add_recurrence
from recurrify.modeling.loading import load_model
from recurrify.modeling.named import named_source
from recurrify.pages.demo import markdown, write_demo_page, write_demo_picture
from recurrify.processes import one_thread, processes
from recurrify.results import load_result, provenance, save_result
from recurrify.train.finetune import train_run
from recurrify.train.run_folder import RESULT_FILE, count_parameters
from recurrify.train.settings import TrainSettings

MODEL, MEMORY = "smollm2", KVConfig(window=300, keep=256)
NOVEL = Path(__file__).parent / "shipped" / "novel.txt"
SOURCE = "Margaret Oliphant, Miss Marjoribanks (1866), first chapters; public domain; text from ELTeC-eng"
CORPUS, WINDOW, WINDOWS, BATCH = "stdlib", 64, 8, 4
WARMUP_STEPS = 10
OVERLAPS = (0, 8, 16, 32)
UNIT = "token"  # words between blanks are long and rare in source code: their perplexities say little
MADE_BY = "python tools/make_shipped.py"
RECURRENCE: dict[str, MechanismConfig] = {
    "plain": NoRecurrence(window=WINDOW),
    "recurrent": CarryConfig(window=WINDOW),
}
READING_SECONDS, SCORING_SECONDS, TRAINING_TOKENS = 50, 10, 2_500
"""Seconds of one core that a reading of the novel and a score take, and tokens of training per second, for the bar."""


def run_demo(
    out: Path,
    say: Say,
    live_tokens: int = 80_000,
    seeds: Sequence[int] = (0,),
    test_tokens: int = 2_000,
    side_by_side: int = 1,
) -> dict[str, Any]:
    """Read the novel, fine-tune both kinds, evaluate them and the shipped pair, and write result, page and picture.

    Args:
        out: Folder of the page and the runs; a finished run in it is not trained again.
        say: Called with each message.
        live_tokens: Training tokens of each live run.
        seeds: One live run of each kind per seed.
        test_tokens: Tokens of each test document.
        side_by_side: Number of worker processes.
    """
    started = time.time()
    _quiet()
    parts = _parts(out, seeds)
    training = 2 * len(seeds) * live_tokens // TRAINING_TOKENS
    total = 5 * READING_SECONDS + training + SCORING_SECONDS * len(parts)
    with progress_bar("demo", total) as advance, _workers(side_by_side) as submit:
        say("1/4 reading a novel with a pretrained model, with and without memory; nothing is trained")
        real = _read_novel(submit, advance, say)
        for row in real["rows"]:
            say(f"  {row['label']}: perplexity {row['perplexity_per_token']:.1f} per token, {row['flops']:.3g} FLOPs")
        say("2/4 fine-tuning a tiny model: plain windows, and the paper's carry")
        trained = _train_all(submit, advance, live_tokens, seeds, out)
        say("3/4 scoring the tiny models on files that they were not trained on")
        _, tokenizer = load_model("shipped:base")
        tokens, text_sum = read_text(CORPUS, "test", tokenizer, say, tokens_per_document=test_tokens)
        scored = Scores()
        for part, done in [(part, submit(_score, part, tokens)) for part in parts]:
            scored.add(part, *_wait(done, SCORING_SECONDS, advance))
    say("4/4 writing the page")
    result = {
        "kind": "demo",
        "unit": UNIT,
        "real": real,
        "settings": {
            "corpus": CORPUS,
            "window": WINDOW,
            "windows": WINDOWS,
            "overlaps": OVERLAPS,
            "live_tokens": trained["plain", seeds[0]]["tokens"],
            "live_seeds": seeds,
            "parameters": _parameters(_live_folder(out, "recurrent", seeds[0])),
            "test_documents": len(tokens),
            "test_tokens": sum(len(document.ids) - 1 for document in tokens),
            "python": sys.version.split()[0],
        },
        "rows": scored.rows,
        "gains": scored.gains(),
        "loss_by_position": scored.by_position(),
        "curves": {kind: [_curve(trained[kind, seed], seed) for seed in seeds] for kind in RECURRENCE},
        "made_by": MADE_BY,
        "provenance": provenance(
            {"live_tokens": live_tokens, "seeds": seeds, "test_tokens": test_tokens},
            data_checksum=text_sum,
            started=started,
        ),
    }
    save_result(out / RESULT_FILE, result)
    result = load_result(out / RESULT_FILE)
    write_demo_page(result, out / "index.html")
    write_demo_picture(result, out / "picture.png")
    (out / "tables.md").write_text(markdown(result), encoding="utf-8")
    return result


Submit = Callable[..., "Future[Any]"]
Advance = Callable[[int], None]


@contextmanager
def _workers(count: int) -> Iterator[Submit]:
    """A function that starts a job in one of `count` processes, or runs it at once where that is one."""
    if count > 1:
        with processes(count) as pool:
            yield lambda job, *args: _submit(pool, job, *args)
        return

    def run(job: Callable[..., Any], *args: Any) -> "Future[Any]":
        done: Future[Any] = Future()
        done.set_result(job(*args))
        return done

    yield run


def _submit(pool: ProcessPoolExecutor, job: Callable[..., Any], *args: Any) -> "Future[Any]":
    if job is _train_live:  # saves what it has on Ctrl-C
        return pool.submit(unless_interrupted, job, *args)
    return pool.submit(_ignoring_ctrl_c, job, *args)


def _ignoring_ctrl_c(job: Callable[..., Any], *args: Any) -> Any:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started it ends it
    try:
        return job(*args)
    finally:
        signal.signal(signal.SIGINT, before)


def _wait(done: "Future[Any]", seconds: int, advance: Advance) -> Any:
    """The result of a job that should take so many seconds; the bar moves while it runs."""
    spent = 0
    while not done.done():
        wait([done], timeout=1)
        step = int(spent < seconds - 1)  # 0 on a slow machine: the time left is still updated
        advance(step)
        spent += step
    advance(seconds - spent)
    return done.result()


def _quiet() -> None:
    logging.set_verbosity_error()
    logging.disable_progress_bar()


# ---- the real model ------------------------------------------------------------------------------------------------


def _read_novel(submit: Submit, advance: Advance, say: Say) -> dict[str, Any]:
    """The novel as the pretrained model reads it in five ways; the shipped tiny model where it cannot be had."""
    note = ""
    try:
        names = {"memory": MODEL, "plain": MODEL}
        named_source(MODEL)
    except UserError as error:
        note = f"{MODEL} cannot be had, so the shipped tiny model reads instead. {error}"
        say(note)
        names = {"memory": "shipped:recurrent", "plain": "shipped:plain"}
    model, tokenizer = _loaded(names["memory"])
    memory = add_recurrence(model.base, MEMORY) if names["memory"] == MODEL else model
    document = Document("novel", NOVEL.read_text(encoding="utf-8"))
    ids, pieces = _pieces(document.text, tokenizer)
    settings = fair_settings(memory, len(ids) - 1)
    said = f"{len(ids):,} tokens, windows of {settings[0].window}; {memory_cost(memory)}"
    say(f"{names['memory']}: {said}")
    jobs = [submit(_read, names["memory" if one.role == "memory" else "plain"], one, ids) for one in settings]
    losses = [_wait(done, READING_SECONDS, advance) for done in jobs]
    table, gains = comparison_rows(settings, losses, pieces)
    return {
        "model": names["memory"],
        "mechanism": memory.recurrence.mechanism,
        "recurrence": memory.recurrence.to_dict(),
        "memory": memory_cost(memory)._asdict(),
        "source": SOURCE,
        "note": note,
        "text_checksum": checksum([document]),
        "rows": table,
        "gains": gains,
        "tokens": {
            "text": pieces,
            **{one.role: [None, *found.round(4).tolist()] for one, found in zip(settings, losses, strict=True)},
        },
        "continuation": submit(_continue, names, ids).result(),
    }


@cache
def _loaded(name: str) -> tuple[Any, Any]:
    _quiet()
    return load_model(name)


def _pieces(text: str, tokenizer: Any) -> tuple[np.ndarray, list[str]]:
    """The text's tokens, and the part of the text that each of them adds."""
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    ends = [0, *(stop for _, stop in encoded["offset_mapping"])]
    return np.asarray(encoded["input_ids"]), [text[ends[place] : stop] for place, stop in enumerate(ends[1:])]


def _model(name: str, setting: Setting) -> Any:
    model, _ = _loaded(name)
    if setting.role == "memory":
        return add_recurrence(model.base, MEMORY) if name == MODEL else model
    return add_recurrence(model.base, NoRecurrence(window=setting.window, overlap=setting.overlap))


def _read(name: str, setting: Setting, ids: np.ndarray) -> np.ndarray:
    """(N − 1,): the loss of each token but the first."""
    with one_thread():
        model = _model(name, setting)
        if setting.role == "full context" and setting.window >= len(ids) - 1:
            return full_context_losses(model.base.eval(), ids)
        return inspection.read_text(model, inspection.Text("novel", ids)).losses


def _continue(names: dict[str, str], ids: np.ndarray, length: int = 40) -> dict[str, str]:
    """Greedy continuations right after a window border, where plain windows know only the last token."""
    model, tokenizer = _loaded(names["memory"])
    window = MEMORY.window if names["memory"] == MODEL else model.recurrence.window
    border = 2 * window + 1
    prompt = torch.tensor(ids[None, :border].astype("int64"))
    found = {
        "prompt_end": tokenizer.decode(ids[border - 60 : border]),
        "truth": tokenizer.decode(ids[border : border + length]),
    }
    for key, role in (("plain", "windows"), ("recurrent", "memory")):
        setting = Setting(role, "", window, 0, 0.0)
        reader = _model(names["memory" if role == "memory" else "plain"], setting).eval()
        output = reader.generate(prompt, max_new_tokens=length, do_sample=False)
        found[key] = tokenizer.decode(output[0, border:])
    return found


# ---- the tiny models -----------------------------------------------------------------------------------------------


def _train_all(
    submit: Submit, advance: Advance, tokens: int, seeds: Sequence[int], out: Path
) -> dict[tuple[str, int], dict[str, Any]]:
    runs = [(kind, seed) for seed in seeds for kind in reversed(RECURRENCE)]  # the slower kind first
    jobs = {run: submit(_train_live, *run, tokens, out) for run in runs}
    found = {run: _wait(done, tokens // TRAINING_TOKENS, advance) for run, done in jobs.items()}
    if not all(result["finished"] for result in found.values()):
        raise UserError("Stopped before the live runs were finished: run the same command to resume.")
    return found


def _live_folder(out: Path, kind: str, seed: int) -> Path:
    return out / f"live-{kind}-{seed}"


def _train_live(kind: str, seed: int, tokens: int, out: Path) -> dict[str, Any]:
    _quiet()
    settings = TrainSettings(
        model="shipped:base",
        data=CORPUS,
        out=str(_live_folder(out, kind, seed)),
        recurrence=RECURRENCE[kind].to_dict(),
        windows=WINDOWS,
        batch=BATCH,
        learning_rate=1e-3,
        max_tokens=tokens,
        # A longer warm-up would outlast the shortest runs.
        warmup_steps=min(WARMUP_STEPS, tokens // (BATCH * WINDOWS * WINDOW) // 2),
        schedule="linear",
        valid_every=tokens,
        valid_tokens=200,
        patience=0,
        precision="fp32",
        seed=seed,
    )
    with one_thread():
        return train_run(settings, lambda text: None, show_progress=False)


class Part(NamedTuple):
    """One model at one overlap."""

    name: str
    kind: str
    weights: str
    seed: int | None
    overlap: int


def _parts(out: Path, seeds: Sequence[int]) -> list[Part]:
    parts = [Part("shipped:base", "base", "shipped", None, 0)]
    parts += [Part(f"shipped:{kind}", kind, "shipped", None, one) for kind in RECURRENCE for one in OVERLAPS]
    live = [(kind, seed) for kind in RECURRENCE for seed in seeds]
    return parts + [Part(str(_live_folder(out, *run)), run[0], "live", run[1], 0) for run in live]


def _score(part: Part, tokens: Sequence[TokenizedDocument]) -> tuple[dict[str, Any], Evaluation]:
    _quiet()
    with one_thread():
        model, _ = load_model(part.name, NoRecurrence(window=WINDOW) if part.kind == "base" else None)
        (row,), (evaluation,) = rows.evaluation_rows(model, tokens, [part.overlap])
    return row, evaluation


class Scores:
    """Table rows and the evaluations behind them."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.found: dict[tuple[str, str, int], list[Evaluation]] = {}

    def add(self, part: Part, row: dict[str, Any], evaluation: Evaluation) -> None:
        self.rows.append({"model": part.kind, "weights": part.weights, "seed": part.seed, **row})
        self.found.setdefault((part.kind, part.weights, evaluation.overlap), []).append(evaluation)

    def gains(self) -> list[dict[str, Any]]:
        return [
            {"weights": weights, **rows.gain_row(found, self.found["recurrent", weights, overlap], UNIT)}
            for (kind, weights, overlap), found in self.found.items()
            if kind == "plain"
        ]

    def by_position(self) -> dict[str, dict[str, list[float | None]]]:
        return {
            weights: {kind: _mean_by_position(self.found[kind, weights, 0]) for kind in RECURRENCE}
            for weights in ("shipped", "live")
        }


def _mean_by_position(evaluations: Sequence[Evaluation]) -> list[float | None]:
    columns = zip(*(evaluation.loss_by_position for evaluation in evaluations), strict=True)
    return [None if None in column else sum(x or 0.0 for x in column) / len(column) for column in columns]


def _parameters(live: Path) -> dict[str, int]:
    shipped, trained = (count_parameters(load_model(name)[0]) for name in ("shipped:recurrent", str(live)))
    return {
        "base": shipped["base"],
        "recurrent": shipped["base"] + shipped["added"],
        "live": trained["base"] + trained["added"],
    }


def _curve(trained: dict[str, Any], seed: int) -> dict[str, Any]:
    logged = [entry for entry in trained["history"] if "loss" in entry]
    per_step = trained["tokens"] / trained["steps"]
    return {
        "seed": seed,
        "tokens": [round(entry["step"] * per_step) for entry in logged],
        "loss": [entry["loss"] for entry in logged],
    }
