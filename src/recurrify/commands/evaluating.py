"""What `recurrify evaluate` does with pretrained models: each scores the same tokens."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.table import Table

from recurrify.console import out_console, progress_bar, say
from recurrify.errors import UserError
from recurrify.evaluate import Evaluation, memory_cost
from recurrify.jobs import evaluation_rows, gain_row, pick_device, read_text
from recurrify.recurrence import load_model, own_recurrence
from recurrify.results import provenance, save_result
from recurrify.train import uses_bf16
from recurrify.windows import check_window


def evaluate_models(
    models: list[str],
    data: str,
    split: str,
    text_field: str,
    *,
    window: int | None,
    overlap: list[int] | None,
    tokens_per_document: int | None,
    rows: int,
    device: str,
    out: Path | None,
) -> None:
    where = pick_device(device)
    half = where.type == "cuda" and uses_bf16("auto")
    window, overlaps = _common_windows(models, window, overlap)
    table: list[dict[str, Any]] = []
    found: dict[str, list[Evaluation]] = {}
    checksum = ""
    for name in models:
        model, tokenizer = load_model(name)
        model.set_recurrence(window=window, overlap=overlaps[0])
        tokens, checksum = read_text(data, split, tokenizer, say, text_field, tokens_per_document)
        if model.mechanism is not None:
            say(f"{name}: {memory_cost(model)}")
        total = len(overlaps) * sum(len(document.ids) - 1 for document in tokens)
        with progress_bar(name, total) as advance:
            scores, found[name] = evaluation_rows(model.to(where), tokens, overlaps, advance, rows, half)
        table += [{"model": name, "mechanism": model.recurrence.mechanism, **row} for row in scores]
    gains = [
        {"model": name, "against": models[0], **gain_row([reference], [evaluation])}
        for name in models[1:]
        for reference, evaluation in zip(found[models[0]], found[name], strict=True)
    ]
    _print_evaluation(table, gains)
    if out is not None:
        config = {"models": models, "data": data, "split": split, "window": window, "overlap": overlap}
        config["tokens_per_document"] = tokens_per_document
        result = {
            "kind": "evaluation",
            "rows": table,
            "gains": gains,
            "documents": {name: [one.to_dict() for one in evaluations] for name, evaluations in found.items()},
            "provenance": provenance(config, data_checksum=checksum),
        }
        save_result(out, result)
        say(f"saved {out}")


def _common_windows(models: list[str], window: int | None, overlap: list[int] | None) -> tuple[int, list[int]]:
    """One window and the same overlaps for all models, or their perplexities could not be compared."""
    own = [recurrence for recurrence in map(own_recurrence, models) if recurrence is not None]
    if window is None and len({one.window for one in own}) > 1:
        raise UserError(
            f"The models were made for windows of {_list(one.window for one in own)}: choose with --window."
        )
    if overlap is None and len({one.overlap for one in own}) > 1:
        told = _list(one.overlap for one in own)
        raise UserError(f"The models were made for overlaps of {told}: choose with --overlap.")
    if window is None:
        window = own[0].window if own else load_model(models[0])[0].recurrence.window
    overlaps = overlap or [own[0].overlap if own else 0]
    for one in overlaps:
        check_window(window, one)
        for recurrence in own:
            replace(recurrence, window=window, overlap=one)  # a memory that does not fit is told before any is scored
    return window, overlaps


def _list(numbers: Iterable[int]) -> str:
    return " and ".join(str(number) for number in sorted(set(numbers)))


def _print_evaluation(rows: list[dict[str, Any]], gains: list[dict[str, Any]]) -> None:
    for name in dict.fromkeys(row["model"] for row in rows):
        own = [row for row in rows if row["model"] == name]
        out_console.print(
            f"{name} ({own[0]['mechanism']}), windows of {own[0]['window']}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
        table = Table(box=None, pad_edge=False)
        for header in ("overlap", "ppl/word", "95 % interval", "ppl/token", "bits/char", "all FLOPs/token"):
            table.add_column(header, justify="right", no_wrap=True)
        for row in own:
            low_high = row["perplexity_per_word_interval"]
            table.add_row(
                str(row["overlap"]),
                _level(row["perplexity_per_word"], 2),
                f"{_level(low_high[0], 2)} to {_level(low_high[1], 2)}" if low_high else "one document",
                _level(row["perplexity_per_token"], 3),
                f"{row['bits_per_character']:.4f}",
                f"{row['full_flops_per_token']:.3g}",
            )
        out_console.print(table, soft_wrap=True)
    for gain in gains:
        span = gain["interval"]
        if span is None:
            text = "one document: no interval"
        else:
            text = f"95 % interval: {_change(span[0])} to {_change(span[1])}"
            text += ", within noise" if gain["within_noise"] else ""
        out_console.print(
            f"{gain['model']} against {gain['against']} at overlap {gain['overlap']}: perplexity per word "
            f"{_change(gain['relative_gain'])} ({text})",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )


def _level(perplexity: float, digits: int) -> str:
    """Short enough for a line even where a model knows nothing of the text."""
    return f"{perplexity:,.{digits}f}" if perplexity < 1e5 else f"{perplexity:.4g}"


def _change(gain: float) -> str:
    return f"{100 * abs(gain):.2f} % {'lower' if gain >= 0 else 'higher'}"
