"""The whole story in a few minutes on two cores, offline: add recurrence, fine-tune, compare, report."""

import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from transformers import logging

from recurrify.console import progress_bar
from recurrify.data import TokenizedDocument
from recurrify.errors import UserError
from recurrify.evaluate import Evaluation
from recurrify.jobs import RESULT_FILE, Say, count_parameters, evaluation_rows, gain_row, read_text, train_run
from recurrify.recurrence import NoRecurrence, RecurrenceConfig, RecurrentForCausalLM, TailConfig, load_model
from recurrify.report import markdown, write_page, write_picture
from recurrify.results import load_result, provenance, save_result
from recurrify.train import TrainSettings

CORPUS, WINDOW, WINDOWS, BATCH = "stdlib", 64, 8, 4
WARMUP_STEPS = 10
OVERLAPS = (0, 8, 16, 32)
UNIT = "token"  # words between blanks are long and rare in source code: their perplexities say little
MADE_BY = "python tools/make_shipped.py"
MECHANISM = (
    "the shipped model carries one pooled vector as in the paper, standardised by running statistics and with a linear "
    "path around the network (`CarryConfig(standardize=True)`), which the paper does not have; the model trained live "
    "hands on the last 16 positions through all layers, and one pooled vector (`TailConfig(tail=16, pooled_slots=1)`): "
    "not the paper's mechanism, and one that learns much faster"
)
RECURRENCE: dict[str, RecurrenceConfig] = {
    "plain": NoRecurrence(window=WINDOW),
    "recurrent": TailConfig(window=WINDOW, tail=16, pooled_slots=1),
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
    scored = _evaluate_all(tokens, seeds, out)
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
    """All live runs, several at a time in processes of one thread each: small matrices gain little from a second
    thread, and lose much by it where the cores are busy."""
    runs = [(kind, seed) for seed in seeds for kind in RECURRENCE]
    waiting = [run for run in runs if not (_live_folder(out, *run) / RESULT_FILE).is_file()]
    if side_by_side > 1 and len(waiting) > 1:
        with ProcessPoolExecutor(min(side_by_side, len(waiting)), mp_context=get_context("spawn")) as pool:
            for done in [pool.submit(_train_live, *run, tokens, out) for run in waiting]:
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
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
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
    try:
        return train_run(settings, lambda text: None, progress_label=f"{kind}, seed {seed}")
    finally:
        torch.set_num_threads(threads)


class Scores:
    """Table rows and the evaluations behind them."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.found: dict[tuple[str, str, int], list[Evaluation]] = {}

    def add(
        self,
        model: RecurrentForCausalLM,
        kind: str,
        weights: str,
        seed: int | None,
        overlaps: Sequence[int],
        tokens: Sequence[TokenizedDocument],
        progress: Callable[[int], None],
    ) -> None:
        table, evaluations = evaluation_rows(model, tokens, overlaps, progress)
        for row, evaluation in zip(table, evaluations, strict=True):
            self.rows.append({"model": kind, "weights": weights, "seed": seed, **row})
            self.found.setdefault((kind, weights, evaluation.overlap), []).append(evaluation)

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


def _evaluate_all(tokens: Sequence[TokenizedDocument], seeds: Sequence[int], out: Path) -> Scores:
    jobs: list[tuple[str, str, str, int | None, Sequence[int]]] = [
        ("shipped:base", "base", "shipped", None, OVERLAPS[:1])
    ]
    jobs += [(f"shipped:{kind}", kind, "shipped", None, OVERLAPS) for kind in RECURRENCE]
    jobs += [
        (str(_live_folder(out, kind, seed)), kind, "live", seed, OVERLAPS) for kind in RECURRENCE for seed in seeds
    ]
    total = sum(len(document.ids) - 1 for document in tokens)
    scores = Scores()
    with progress_bar(f"evaluating {len(jobs)} models", total * sum(len(job[4]) for job in jobs)) as advance:
        for name, kind, weights, seed, overlaps in jobs:
            model, _ = load_model(name, NoRecurrence(window=WINDOW) if kind == "base" else None)
            scores.add(model, kind, weights, seed, overlaps, tokens, advance)
    return scores


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
