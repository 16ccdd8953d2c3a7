"""`recurrify demo`: a real model reads a novel with and without memory; a tiny one is fine-tuned; one page shows it."""

import json
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import logging

from recurrify import __version__
from recurrify.console import progress_bar
from recurrify.data.records import Document
from recurrify.data.texts import Say, read_text
from recurrify.data.tokens import TokenizedDocument, checksum, text_sizes
from recurrify.errors import UserError
from recurrify.evaluate import inspection, rows
from recurrify.evaluate.comparison import (
    ComparisonRow,
    ComparisonSetting,
    comparison_rows,
    comparison_settings,
    distinct_settings,
    evaluation_of_parts,
    gain_rows,
)
from recurrify.evaluate.evaluation import Evaluation
from recurrify.evaluate.flops import memory_cost
from recurrify.mechanisms.carry import CarryConfig
from recurrify.mechanisms.config import MechanismConfig, NoRecurrence
from recurrify.mechanisms.kv import KVConfig
from recurrify.modeling.heads import add_recurrence
from recurrify.modeling.loading import load_model
from recurrify.named import named_source
from recurrify.pages import numbers
from recurrify.pages.demo import write_demo_page
from recurrify.results import load_result, provenance, save_result
from recurrify.train.finetune import train_run
from recurrify.train.run_folder import RESULT_FILE, count_parameters
from recurrify.train.settings import TrainSettings

MODEL, MEMORY = "smollm2", KVConfig(window=300, keep=256)
ROLES = ("memory", "windows", "overlap", "longer-window", "full-context")
NOVEL = Path(__file__).parent / "shipped" / "novel.txt"
SOURCE = "Margaret Oliphant, Miss Marjoribanks (1866), first chapters; public domain; text from ELTeC-eng"
CORPUS, WINDOW, WINDOWS, BATCH = "stdlib", 64, 8, 4
WARMUP_STEPS = 10
OVERLAPS = (0, 16)
UNIT = "token"  # words between blanks are long and rare in source code: their perplexities say little
RECURRENCE: dict[str, MechanismConfig] = {
    "plain": NoRecurrence(window=WINDOW),
    "recurrent": CarryConfig(window=WINDOW),
}
READING_SECONDS, SCORING_SECONDS, TRAINING_TOKENS = 30, 7, 2_500
"""Seconds that a reading of the novel and a score take on two cores, and tokens of training per second, for the bar."""
Advance = Callable[[int], None]


def run_demo(out: Path, say: Say, live_tokens: int = 80_000, test_tokens: int = 2_000) -> dict[str, Any]:
    """Read the novel, fine-tune both kinds, evaluate them and the shipped pair, and write the result and its page.

    Args:
        out: Folder of the page and the runs; a finished run in it is not trained again.
        say: Called with each message.
        live_tokens: Training tokens of each live run.
        test_tokens: Tokens of each test document.
    """
    started = time.time()
    _quiet()
    names, note = _readers(say)
    parts, page = _parts(out), out / "index.html"
    config = {"live_tokens": live_tokens, "test_tokens": test_tokens}
    novel = NOVEL.read_text(encoding="utf-8")
    settings = {"version": __version__, "text": blake2b(novel.encode()).hexdigest(), **names, **config}
    steps = Steps(out / "steps", settings)
    training = {kind: live_tokens // TRAINING_TOKENS for kind in RECURRENCE if not _is_trained(kind, out)}
    reading = sum(not steps.has(f"novel-{role}") for role in ROLES)
    scoring = sum(not steps.has(part.step) for part in parts)
    total = READING_SECONDS * reading + sum(training.values()) + SCORING_SECONDS * scoring
    say(f"about {max(1, round(total / 60))} min on two CPU cores")
    scored = Scores()
    with progress_bar("demo", total, "") as advance:
        say("1/4 reading a novel with a pretrained model, with and without memory; nothing is trained")
        real = {**_read_novel(novel, names, steps, advance, say), "note": note}
        write_demo_page(_as_saved({"real": real, "provenance": provenance(config, started=started)}), page)
        say(f"page, so far with this part: {page}")
        say("2/4 fine-tuning a tiny model: plain windows, and the paper's carry")
        trained = {}
        for kind in RECURRENCE:
            trained[kind] = _train_live(kind, live_tokens, out)
            advance(training.get(kind, 0))
        say("3/4 scoring the tiny models on files that they were not trained on")
        _, tokenizer = load_model("shipped:base")
        tokens, text_sum = read_text(CORPUS, "test", tokenizer, say, tokens_per_document=test_tokens)
        for part in parts:
            seconds = 0 if steps.has(part.step) else SCORING_SECONDS
            scored.add(part, *_score(part, tokens, steps))
            advance(seconds)
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
            "live_tokens": trained["plain"]["tokens"],
            "parameters": _parameters(_live_folder(out, "recurrent")),
            "test_documents": len(tokens),
            "test_tokens": sum(len(document.ids) - 1 for document in tokens),
            "python": sys.version.split()[0],
        },
        "rows": scored.rows,
        "gains": scored.gains(),
        "loss_by_position": scored.by_position(),
        "curves": {kind: _curve(result) for kind, result in trained.items()},
        "provenance": provenance(config, data_checksum=text_sum, started=started),
    }
    save_result(out / RESULT_FILE, result)
    result = load_result(out / RESULT_FILE)
    write_demo_page(result, page)
    return result


class Steps:
    """The results of finished steps, in a folder: a demo that is run again does not repeat them."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self.folder, self.settings = folder, _as_saved(settings)

    def has(self, name: str) -> bool:
        return self._kept(name) is not None

    def result(self, name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What `make` returned, in this run or in an earlier one with the same settings."""
        kept = self._kept(name)
        if kept is None:
            kept = _as_saved(make())
            save_result(self.folder / f"{name}.json", {"settings": self.settings, "result": kept})
        return kept

    def _kept(self, name: str) -> dict[str, Any] | None:
        try:
            found = load_result(self.folder / f"{name}.json")
        except UserError:  # not there, or damaged
            return None
        return found.get("result") if found.get("settings") == self.settings else None


def _as_saved(result: dict[str, Any]) -> dict[str, Any]:
    """As it is after saving and loading: tuples become lists."""
    saved: dict[str, Any] = json.loads(json.dumps(result))
    return saved


def _quiet() -> None:
    logging.set_verbosity_error()
    logging.disable_progress_bar()


# ---- the real model ------------------------------------------------------------------------------------------------


def _readers(say: Say) -> tuple[dict[str, str], str]:
    """The pretrained model, or the shipped tiny one with a note where the former cannot be had."""
    try:
        named_source(MODEL)
    except UserError as error:
        note = f"{MODEL} cannot be had, so the shipped tiny model reads instead. {error}"
        say(note)
        return {"memory": "shipped:recurrent", "plain": "shipped:plain"}, note
    return {"memory": MODEL, "plain": MODEL}, ""


def _read_novel(content: str, names: dict[str, str], steps: Steps, advance: Advance, say: Say) -> dict[str, Any]:
    """The novel as the model reads it in up to five ways."""
    model, tokenizer = _loaded(names["memory"])
    memory = add_recurrence(model.base, MEMORY) if names["memory"] == MODEL else model
    document = Document("novel", content)
    (_, ids, *_), pieces = inspection.text_pieces(document, tokenizer)
    text = TokenizedDocument(document.name, ids, *text_sizes(document.text))
    settings = distinct_settings(comparison_settings(memory, [text]))
    said = f"{len(ids):,} tokens, windows of {settings[0].window}; {memory_cost(memory)}"
    say(f"{names['memory']}: {said}")
    losses = []
    for one in settings:
        name, step = names["memory" if one.role == "memory" else "plain"], f"novel-{one.role.replace(' ', '-')}"
        whole = 0 if steps.has(step) else READING_SECONDS
        read = partial(_read, name, one, ids, _share(advance, whole, len(ids) - 1))
        losses.append(np.array(steps.result(step, read)["losses"]))
        flops = numbers.large(one.flops_per_token)
        say(f"  {one.label}: perplexity {np.exp(losses[-1].mean()):.1f} per token, {flops} FLOPs")
    parts = [evaluation_of_parts(found, pieces, settings[0].window) for found in losses]
    table = comparison_rows(settings, parts)
    gains = gain_rows(table)
    for gain in gains:
        percent, word = 100 * abs(gain["relative_gain"]), "lower" if gain["relative_gain"] > 0 else "higher"
        say(f"  with memory {percent:.1f} % {word} than: {gain['against_label']}")
    return {
        "model": names["memory"],
        "mechanism": memory.recurrence.mechanism,
        "recurrence": memory.recurrence.to_dict(),
        "memory": memory_cost(memory)._asdict(),
        "source": SOURCE,
        "text_checksum": checksum([document]),
        "rows": [_table_row(row) for row in table],
        "gains": gains,
        "tokens": {
            "text": pieces,
            **{one.role: [None, *found.round(4).tolist()] for one, found in zip(settings, losses, strict=True)},
        },
        "continuation": steps.result("novel-continuation", lambda: _continue(names, ids)),
    }


def _table_row(row: ComparisonRow) -> dict[str, Any]:
    """Losses by position are those of the parts: only readings in windows of the same length have them."""
    same = row.setting.role in ("memory", "windows")
    return {**row.to_dict(), "loss_by_position": row.evaluation.loss_by_position if same else None}


@cache
def _loaded(name: str) -> tuple[Any, Any]:
    _quiet()
    return load_model(name)


def _model(name: str, setting: ComparisonSetting) -> Any:
    model, _ = _loaded(name)
    if setting.role == "memory":
        return add_recurrence(model.base, MEMORY) if name == MODEL else model
    return add_recurrence(model.base, NoRecurrence(window=setting.window, overlap=setting.overlap))


def _share(advance: Advance, whole: int, total: int) -> Advance:
    """Moves the bar by `whole` while `total` tokens are read."""
    done = 0

    def on(tokens: int) -> None:
        nonlocal done
        before, done = done, done + tokens
        advance(whole * done // total - whole * before // total)

    return on


def _read(name: str, setting: ComparisonSetting, ids: np.ndarray, advance: Advance) -> dict[str, Any]:
    """The loss of each token but the first."""
    model = _model(name, setting)
    if setting.role == "whole text":
        return {"losses": inspection.full_context_losses(model.base, ids, advance).tolist()}
    return {"losses": inspection.read_text(model, TokenizedDocument("novel", ids), advance).losses.tolist()}


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
        setting = ComparisonSetting(role, window, 0, 0.0)
        reader = _model(names["memory" if role == "memory" else "plain"], setting).eval()
        output = reader.generate(prompt, max_new_tokens=length, do_sample=False)
        found[key] = tokenizer.decode(output[0, border:])
    return found


# ---- the tiny models -----------------------------------------------------------------------------------------------


def _live_folder(out: Path, kind: str) -> Path:
    return out / f"live-{kind}"


def _is_trained(kind: str, out: Path) -> bool:
    path = _live_folder(out, kind) / RESULT_FILE
    return path.is_file() and load_result(path).get("finished") is True


def _train_live(kind: str, tokens: int, out: Path) -> dict[str, Any]:
    settings = TrainSettings(
        model="shipped:base",
        data=CORPUS,
        out=str(_live_folder(out, kind)),
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
    )
    result = train_run(settings, lambda text: None, show_progress=False)
    if not result["finished"]:
        raise UserError("Stopped before the live runs were finished: run the same command to resume.")
    return result


class Part(NamedTuple):
    """One model at one overlap."""

    name: str
    kind: str
    weights: str
    overlap: int

    @property
    def step(self) -> str:
        return f"score-{self.weights}-{self.kind}-{self.overlap}"


def _parts(out: Path) -> list[Part]:
    parts = [Part("shipped:base", "base", "shipped", 0)]
    parts += [Part(f"shipped:{kind}", kind, "shipped", one) for kind in RECURRENCE for one in OVERLAPS]
    return parts + [Part(str(_live_folder(out, kind)), kind, "live", 0) for kind in RECURRENCE]


def _score(part: Part, tokens: Sequence[TokenizedDocument], steps: Steps) -> tuple[dict[str, Any], Evaluation]:
    def score() -> dict[str, Any]:
        model, _ = load_model(part.name, NoRecurrence(window=WINDOW) if part.kind == "base" else None)
        (row,), (evaluation,) = rows.evaluation_rows(model, tokens, [part.overlap])
        return {"row": row, "evaluation": evaluation.to_dict()}

    found = steps.result(part.step, score)
    return found["row"], Evaluation.from_dict(found["evaluation"])


class Scores:
    """Table rows and the evaluations behind them."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.found: dict[tuple[str, str, int], Evaluation] = {}

    def add(self, part: Part, row: dict[str, Any], evaluation: Evaluation) -> None:
        self.rows.append({"model": part.kind, "weights": part.weights, **row})
        self.found[part.kind, part.weights, evaluation.overlap] = evaluation

    def gains(self) -> list[dict[str, Any]]:
        return [
            {"weights": weights, **rows.gain_row([plain], [self.found["recurrent", weights, overlap]], UNIT)}
            for (kind, weights, overlap), plain in self.found.items()
            if kind == "plain"
        ]

    def by_position(self) -> dict[str, dict[str, list[float | None]]]:
        return {
            weights: {kind: list(self.found[kind, weights, 0].loss_by_position) for kind in RECURRENCE}
            for weights in ("shipped", "live")
        }


def _parameters(live: Path) -> dict[str, int]:
    shipped, trained = (count_parameters(load_model(name)[0]) for name in ("shipped:recurrent", str(live)))
    return {
        "base": shipped["base"],
        "recurrent": shipped["base"] + shipped["added"],
        "live": trained["base"] + trained["added"],
    }


def _curve(trained: dict[str, Any]) -> dict[str, Any]:
    logged = [entry for entry in trained["history"] if "loss" in entry]
    per_step = trained["tokens"] / trained["steps"]
    return {
        "tokens": [round(entry["step"] * per_step) for entry in logged],
        "loss": [entry["loss"] for entry in logged],
    }
