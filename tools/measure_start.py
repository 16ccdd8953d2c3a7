"""What adding a memory does to a model before any training: the loss of fresh models, by how the added inputs start.

    python tools/measure_start.py shipped:base stdlib path/to/stories15M a-folder-of-texts --out results/start.json

Models and texts come in pairs; both are named as `recurrify train` names them. Every row is the mean loss per token
over the first documents of the validation part.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import logging

from recurrify.data.texts import read_text
from recurrify.evaluate.evaluation import ScoredDocument
from recurrify.evaluate.perplexity import evaluate_documents
from recurrify.modeling.loading import load_model
from recurrify.results import provenance, save_result

MECHANISMS: dict[str, dict[str, Any]] = {
    "carry": {"mechanism": "carry"},
    "carry, every layer": {"mechanism": "carry", "insert_layer": "all"},
    "tail of 16": {"mechanism": "tail", "tail": 16},
    "tail of 16, one pooled": {"mechanism": "tail", "tail": 16, "pooled_slots": 1},
}


def measure(source: str, text: str, window: int, documents: int, tokens: int) -> Iterator[dict[str, Any]]:
    plain, tokenizer = load_model(source, {"mechanism": "none", "window": window})
    texts, _ = read_text(text, "valid", tokenizer, lambda line: None, tokens_per_document=tokens)
    texts = texts[:documents]
    about = {"model": Path(source).name, "text": Path(text).name}
    yield {**about, "mechanism": "none", "loss": mean_loss(plain, texts)}
    for name, recurrence in MECHANISMS.items():
        for neutral in (True, False):
            torch.manual_seed(0)
            model, _ = load_model(source, {**recurrence, "window": window, "neutral_start": neutral})
            yield {**about, "mechanism": name, "neutral_start": neutral, "loss": mean_loss(model, texts)}


def mean_loss(model: Any, texts: Sequence[ScoredDocument]) -> float:
    found = evaluate_documents(model, texts)
    return float(found.total_nll / int(found.tokens.sum()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", nargs="+", help="a model, its text, the next model, its text, …")
    parser.add_argument("--window", type=int, default=64)
    parser.add_argument("--documents", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=1_000, help="of each document")
    parser.add_argument("--out", type=Path, default=Path("results/start.json"))
    arguments = parser.parse_args()
    if len(arguments.pairs) % 2:
        parser.error(f"{arguments.pairs[-1]!r} has no text: give models and texts in pairs")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    started = time.time()
    rows = []
    for source, text in zip(arguments.pairs[::2], arguments.pairs[1::2], strict=True):
        for row in measure(source, text, arguments.window, arguments.documents, arguments.tokens):
            rows.append(row)
            start = {True: "neutral", False: "random or copies"}.get(row.get("neutral_start"), "")
            print(f"{row['model']:20} {row['mechanism']:24} {start:18} {row['loss']:.4f}", flush=True)
    config = {name: getattr(arguments, name) for name in ("window", "documents", "tokens")}
    config["pairs"] = [Path(one).name for one in arguments.pairs]
    save_result(arguments.out, {"kind": "start", "rows": rows, "provenance": provenance(config, started=started)})


if __name__ == "__main__":
    main()
