"""A memory without any training: `lookback` as it starts, beside plain windows that overlap.

    python tools/measure_lookback.py --out results/lookback.json

The shipped base on the test part of Python's own standard library, unless another model and text are named as
`recurrify train` names them. Once in windows of --window tokens, once in as long ones as the base's positions allow:
there `lookback` has to leave some of them for what it keeps. The same tokens are scored everywhere; intervals are those
of paired gains over plain windows without overlap, by documents. Minutes on two cores.
"""

import argparse
import time
from collections.abc import Iterator
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

from transformers import logging

from recurrify.data.texts import pick_device, read_text
from recurrify.evaluate.bootstrap import relative_gain
from recurrify.evaluate.evaluation import Evaluation
from recurrify.evaluate.flops import full_flops_per_token, memory_cost
from recurrify.evaluate.perplexity import evaluate_documents
from recurrify.modeling.loading import load_model
from recurrify.results import provenance, save_result


def short_windows(window: int) -> Iterator[dict[str, Any]]:
    parts = (window // 4, window // 2, 3 * window // 4)
    yield from ({"mechanism": "none", "window": window, "overlap": overlap} for overlap in (0, *parts))
    yield from ({"mechanism": "lookback", "window": window, "keep": keep} for keep in (*parts, window))
    yield {"mechanism": "lookback", "window": window, "keep": window, "moved_start": False}


def whole_context(positions: int) -> Iterator[dict[str, Any]]:
    overlaps = (0, positions // 16, positions // 8, positions // 4, positions // 2)
    yield from ({"mechanism": "none", "window": positions, "overlap": overlap} for overlap in overlaps)
    for eighths in (7, 6):
        window = eighths * positions // 8
        yield {"mechanism": "lookback", "window": window, "keep": 2 * (positions - window)}


def measure(
    source: str, text: str, entrants: Iterator[dict[str, Any]], tokens: int, device: str
) -> Iterator[dict[str, Any]]:
    plain: Evaluation | None = None
    for recurrence in entrants:
        model, tokenizer = load_model(source, recurrence)
        documents, _ = read_text(text, "test", tokenizer, lambda line: None, tokens_per_document=tokens)
        found = evaluate_documents(model.to(pick_device(device)), documents)
        plain = found if plain is None else plain
        yield {
            **recurrence,
            "loss_per_token": found.total_nll / int(found.tokens.sum()),
            "perplexity_per_token": found.perplexity_per_token,
            "perplexity_per_word": found.perplexity_per_word,
            "gain": asdict(relative_gain(plain, found, metric="perplexity_per_token")),
            "full_flops_per_token": full_flops_per_token(model),
            "state_floats": memory_cost(model).state_floats,
            "tokens": int(found.tokens.sum()),
            "documents": len(documents),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="shipped:base")
    parser.add_argument("--text", default="stdlib")
    parser.add_argument("--window", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=2_000, help="of each document")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("results/lookback.json"))
    arguments = parser.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    started = time.time()
    rows = []
    positions = load_model(arguments.model)[0].base.config.max_position_embeddings
    given = (arguments.tokens, arguments.device)
    for row in chain(
        measure(arguments.model, arguments.text, short_windows(arguments.window), *given),
        measure(arguments.model, arguments.text, whole_context(positions), *given),
    ):
        rows.append(row)
        name = " ".join(f"{key} {row[key]}" for key in ("window", "overlap", "keep") if key in row)
        start = "" if row.get("moved_start", True) else "unmoved"
        gain, (low, high) = row["gain"]["relative_gain"], row["gain"]["interval"] or (0.0, 0.0)
        print(
            f"{name:22} {start:7} {row['perplexity_per_token']:8.3f} per token, gain {gain:+.2%} "
            f"({low:+.2%} to {high:+.2%}), {row['full_flops_per_token']:.3g} FLOPs per token",
            flush=True,
        )
    config = {"model": arguments.model, "text": arguments.text, "window": arguments.window, "tokens": arguments.tokens}
    save_result(arguments.out, {"kind": "lookback", "rows": rows, "provenance": provenance(config, started=started)})


if __name__ == "__main__":
    main()
