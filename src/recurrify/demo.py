"""The whole story in a few minutes on two cores, offline: add recurrence, fine-tune, compare, report."""

import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import logging

from recurrify.console import progress_bar
from recurrify.data.texts import Say, read_text
from recurrify.data.tokens import TokenizedDocument
from recurrify.errors import UserError
from recurrify.evaluate.evaluation import Evaluation
from recurrify.evaluate.rows import evaluation_rows, gain_row
from recurrify.interrupts import unless_interrupted
from recurrify.mechanisms.base import NoRecurrence, RecurrenceConfig
from recurrify.mechanisms.lookback import LookbackConfig
from recurrify.modeling.loading import load_model
from recurrify.pages.demo import write_page
from recurrify.pages.markdown_text import markdown
from recurrify.pages.plots import write_picture
from recurrify.processes import one_thread, processes
from recurrify.results import load_result, provenance, save_result
from recurrify.train.finetuning import count_parameters, train_run
from recurrify.train.resuming import RESULT_FILE
from recurrify.train.settings import TrainSettings

CORPUS, WINDOW, WINDOWS, BATCH = "stdlib", 64, 8, 4
WARMUP_STEPS = 10
OVERLAPS = (0, 8, 16, 32)
UNIT = "token"  # words between blanks are long and rare in source code: their perplexities say little
MADE_BY = "python tools/make_shipped.py"
MECHANISM = (
    "the shipped model carries one pooled vector as in the paper, standardised by running statistics and with a linear "
    "path around the network (`CarryConfig(standardize=True)`), which the paper does not have; in the model trained "
    "live every layer looks back at keys and values of the last 32 positions of the window before, moved to places in "
    "front of the window (`LookbackConfig(keep=32)`): not the paper's mechanism, and one that remembers from the start"
)
RECURRENCE: dict[str, RecurrenceConfig] = {
    "plain": NoRecurrence(window=WINDOW),
    "recurrent": LookbackConfig(window=WINDOW, keep=32),
}


def run_demo(
    out: Path,
    say: Say,
    live_tokens: int = 700_000,
    seeds: Sequence[int] = (0, 1),
    test_tokens: int = 2_000,
    side_by_side: int = 1,
) -> dict[str, Any]:
    """Fine-tune both kinds live, evaluate them and the shipped pair, and write result, page and picture."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    started = time.time()
    say("1/3 fine-tuning the shipped base live: plain windows and recurrent, the same tokens each")
    trained = _train_all(live_tokens, seeds, out, side_by_side)
    say("2/3 evaluating on modules of the standard library that no model was trained on")
    _, tokenizer = load_model("shipped:base")
    tokens, text_sum = read_text(CORPUS, "test", tokenizer, say, tokens_per_document=test_tokens)
    scored = _evaluate_all(tokens, seeds, out, side_by_side)
    say("3/3 writing the page")
    result = {
        "kind": "demo",
        "unit": UNIT,
        "settings": {
            "corpus": CORPUS,
            "mechanism": MECHANISM,
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
        "continuations": _continuations(tokens, tokenizer),
        "made_by": MADE_BY,
        "provenance": provenance(
            {"live_tokens": live_tokens, "seeds": seeds, "test_tokens": test_tokens},
            data_checksum=text_sum,
            started=started,
        ),
    }
    save_result(out / RESULT_FILE, result)
    result = load_result(out / RESULT_FILE)
    write_page(result, out / "index.html")
    write_picture(result, out / "picture.png")
    (out / "tables.md").write_text(markdown(result), encoding="utf-8")
    return result


def _train_all(
    tokens: int, seeds: Sequence[int], out: Path, side_by_side: int
) -> dict[tuple[str, int], dict[str, Any]]:
    """All live runs, several at a time."""
    runs = [(kind, seed) for seed in seeds for kind in RECURRENCE]
    waiting = [run for run in runs if not (_live_folder(out, *run) / RESULT_FILE).is_file()]
    if side_by_side > 1 and len(waiting) > 1:
        with processes(min(side_by_side, len(waiting))) as pool:
            begun = [pool.submit(unless_interrupted, _train_live, kind, seed, tokens, out) for kind, seed in waiting]
            for done in begun:
                done.result()
    found = {run: _train_live(*run, tokens, out) for run in runs}
    if not all(result["finished"] for result in found.values()):
        raise UserError("Stopped before the live runs were finished: the same command goes on with them.")
    return found


def _live_folder(out: Path, kind: str, seed: int) -> Path:
    return out / f"live-{kind}-{seed}"


def _train_live(kind: str, seed: int, tokens: int, out: Path) -> dict[str, Any]:
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    settings = TrainSettings(
        model="shipped:base",
        data=CORPUS,
        out=str(_live_folder(out, kind, seed)),
        recurrence=RECURRENCE[kind].to_dict(),
        windows=WINDOWS,
        batch=BATCH,
        learning_rate=1e-3,
        max_tokens=tokens,
        # The shortest runs would end before a longer one, and the demo has no option for it.
        warmup_steps=min(WARMUP_STEPS, tokens // (BATCH * WINDOWS * WINDOW) // 2),
        schedule="linear",
        valid_every=tokens,
        valid_tokens=200,
        patience=0,
        precision="fp32",
        seed=seed,
    )
    with one_thread():
        return train_run(settings, lambda text: None, progress_label=f"{kind}, seed {seed}")


class Scores:
    """Table rows and the evaluations behind them."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.found: dict[tuple[str, str, int], list[Evaluation]] = {}

    def add(self, part: "Part", row: dict[str, Any], evaluation: Evaluation) -> None:
        self.rows.append({"model": part.kind, "weights": part.weights, "seed": part.seed, **row})
        self.found.setdefault((part.kind, part.weights, evaluation.overlap), []).append(evaluation)

    def gains(self) -> list[dict[str, Any]]:
        return [
            {"weights": weights, **gain_row(found, self.found["recurrent", weights, overlap], UNIT)}
            for (kind, weights, overlap), found in self.found.items()
            if kind == "plain"
        ]

    def by_position(self) -> dict[str, dict[str, list[float | None]]]:
        return {
            weights: {
                kind: _mean_by_position(self.found[kind, weights, 0])
                for kind in RECURRENCE
                if (kind, weights, 0) in self.found
            }
            for weights in ("shipped", "live")
        }


class Part(NamedTuple):
    """One model at one overlap."""

    name: str
    kind: str
    weights: str
    seed: int | None
    overlap: int


def _evaluate_all(tokens: Sequence[TokenizedDocument], seeds: Sequence[int], out: Path, side_by_side: int) -> Scores:
    parts = [Part("shipped:base", "base", "shipped", None, OVERLAPS[0])]
    parts += [Part(f"shipped:{kind}", kind, "shipped", None, one) for kind in RECURRENCE for one in OVERLAPS]
    parts += [
        Part(str(_live_folder(out, kind, seed)), kind, "live", seed, one)
        for kind in RECURRENCE
        for seed in seeds
        for one in OVERLAPS
    ]
    scores = Scores()
    total = sum(len(document.ids) - 1 for document in tokens)
    with progress_bar("evaluating", total * len(parts)) as advance:
        for part, found in zip(parts, score_all(parts, tokens, side_by_side), strict=True):
            scores.add(part, *found)
            advance(total)
    return scores


def score_all(
    parts: Sequence[Part], tokens: Sequence[TokenizedDocument], side_by_side: int
) -> Iterator[tuple[dict[str, Any], Evaluation]]:
    if side_by_side == 1:
        yield from (_score(part, tokens) for part in parts)
        return
    with processes(side_by_side) as pool:
        for done in [pool.submit(_score_in_worker, part, tokens) for part in parts]:
            yield done.result()


def _score_in_worker(part: Part, tokens: Sequence[TokenizedDocument]) -> tuple[dict[str, Any], Evaluation]:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who has started it ends it
    return _score(part, tokens)


def _score(part: Part, tokens: Sequence[TokenizedDocument]) -> tuple[dict[str, Any], Evaluation]:
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    with one_thread():
        model, _ = load_model(part.name, NoRecurrence(window=WINDOW) if part.kind == "base" else None)
        (row,), (evaluation,) = evaluation_rows(model, tokens, [part.overlap])
    return row, evaluation


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


def _continuations(
    tokens: Sequence[TokenizedDocument], tokenizer: Any, count: int = 3, length: int = 40
) -> list[dict[str, str]]:
    """Greedy continuations at a window border: plain windows have nothing but the last token to go on there."""
    border = 8 * WINDOW
    chosen = [document.ids for document in tokens if len(document.ids) > border + length][
        :: max(1, len(tokens) // count)
    ]
    found = []
    models = {kind: load_model(f"shipped:{kind}")[0].eval() for kind in RECURRENCE}
    for ids in chosen[:count]:
        prompt = torch.tensor(ids[: border + 1][None].astype("int64"))
        entry = {
            "prompt_end": tokenizer.decode(ids[border + 1 - 48 : border + 1]),
            "truth": tokenizer.decode(ids[border + 1 : border + 1 + length]),
        }
        for kind, model in models.items():
            output = model.generate(prompt, max_new_tokens=length, do_sample=False)
            entry[kind] = tokenizer.decode(output[0, prompt.shape[1] :])
        found.append(entry)
    return found
