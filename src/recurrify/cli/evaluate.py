"""`recurrify evaluate`: score models on the same tokens and print a table."""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from rich.table import Table

from recurrify.console import heartbeat, is_first, large, out_console, perplexity_level, progress_bar, say
from recurrify.data.texts import few_tokens, pick_device, read_text
from recurrify.data.tokens import TokenizedDocument
from recurrify.errors import UserError
from recurrify.evaluate.bootstrap import Gain
from recurrify.evaluate.comparison import (
    ComparisonRow,
    compare_with_base,
    comparison_settings,
    comparison_tokens,
    distinct_rows,
    gain_rows,
    training_differences,
)
from recurrify.evaluate.evaluation import Evaluation
from recurrify.evaluate.flops import memory_cost
from recurrify.evaluate.rows import evaluation_rows, gain_row
from recurrify.modeling.heads import RecurrentForCausalLM
from recurrify.modeling.loading import load_model, own_recurrence
from recurrify.pages.evaluation import evaluation_verdict, write_evaluation_page
from recurrify.results import provenance, save_result
from recurrify.train.loop import uses_bf16
from recurrify.train.settings import processes
from recurrify.windows import check_window


def evaluate_models(
    models: list[str],
    data: str,
    *,
    split: str,
    text_field: str,
    window: int | None,
    overlap: list[int] | None,
    tokens_per_document: int | None,
    rows: int,
    device: str,
    out: Path | None,
    page: Path | None,
) -> None:
    """Score models on the same tokens, print a table and comparisons, and save the result."""
    models = list(dict.fromkeys(models))
    where = pick_device(device)
    shared = processes() > 1
    if shared:
        PartialState(cpu=where.type == "cpu")  # joins the processes, each on its own device
    half = where.type == "cuda" and uses_bf16("auto")
    asked, (window, overlaps) = window, _common_windows(models, window, overlap)
    speed: dict[str, dict[str, float]] = {}
    longer: dict[str, int] = {}
    table: list[dict[str, Any]] = []
    found: dict[str, list[Evaluation]] = {}
    checksum = ""
    for name in models:
        model, tokenizer = load_model(name)
        if asked is None and model.recurrence.window > window:
            longer[name] = model.recurrence.window
        model.set_recurrence(window=window, overlap=overlaps[0])
        tokens, checksum = read_text(data, split, tokenizer, say, text_field, tokens_per_document)
        if model.mechanism is not None:
            say(f"{name}: {memory_cost(model)}")
        total = len(overlaps) * sum(len(document.ids) - 1 for document in tokens) // processes()
        model = model.to(where)
        with progress_bar(name, total) as advance, _timed(total, where) as speed[name]:
            scores, found[name] = evaluation_rows(model, tokens, overlaps, advance, rows, half, shared)
        table += [{"model": name, "mechanism": model.recurrence.mechanism, **row} for row in scores]
    comparison: list[ComparisonRow] = []
    if len(models) == 1 and model.mechanism is not None and overlap is None:
        comparison = _compared_with_base(model, tokens, rows, half, found[models[0]][0])
    gains = [
        gain
        for name in models[1:]
        for reference, evaluation in zip(found[models[0]], found[name], strict=True)
        if (gain := _gain(name, models[0], reference, evaluation)) is not None
    ]
    if not is_first():
        return
    notes = _notes(models, gains, longer, window, tokens_per_document, comparison)
    if short := few_tokens(tokens):
        notes.append(short if split == "all" else f"{short} --split all scores the whole text.")
    config = {"models": models, "data": data, "split": split, "window": window, "overlap": overlap}
    config["tokens_per_document"] = tokens_per_document
    result = {
        "kind": "evaluation",
        "rows": table + [row.to_dict() for row in distinct_rows(comparison)[1:]],
        "gains": gains + [{**gain, "model": models[0]} for gain in gain_rows(comparison)],
        "notes": notes,
        "speed": speed,
        "documents": {name: [one.to_dict() for one in evaluations] for name, evaluations in found.items()},
        "provenance": provenance(config, data_checksum=checksum),
    }
    with heartbeat(None):
        _print_evaluation(table, speed)
        for gain in gains:
            _print(_gain_sentence(gain))
        if comparison:
            _print_comparison(comparison, result)
        for note in notes:
            _print(f"note: {note}")
    write_results(result, out, page)


def _print_comparison(comparison: Sequence[ComparisonRow], result: dict[str, Any]) -> None:
    """What the base scores in the memory's windows, at equal cost, and in its full context; and what follows."""
    _print("Its own weights, read without the memory:")
    for row in distinct_rows(comparison)[1:]:
        level = perplexity_level(row.evaluation.perplexity_per_token, 3)
        _print(
            f"  {row.setting.label}: {level} per token at {large(row.setting.flops_per_token)} FLOPs per token; "
            f"the memory's is {row.gain}"
        )
    _print(evaluation_verdict(result).sentence)


def write_results(result: dict[str, Any], out: Path | None, page: Path | None) -> None:
    """Save the result and its page, as far as they are wanted."""
    if out is not None:
        save_result(out, result)
        say(f"saved {out}")
    if page is not None:
        write_evaluation_page(result, page)
        say(f"page: {page}")


def _compared_with_base(
    model: RecurrentForCausalLM, tokens: Sequence[TokenizedDocument], rows: int, half: bool, scored: Evaluation
) -> list[ComparisonRow]:
    settings = comparison_settings(model, tokens)
    total = comparison_tokens(settings[1:], tokens) // processes()
    how: dict[str, Any] = {"rows": rows, "bf16": half, "shared": processes() > 1}
    with progress_bar("comparison with the base", total) as advance:
        return compare_with_base(model, tokens, progress=advance, scored=[(settings[0], scored)], **how)


def _notes(
    models: list[str],
    gains: list[dict[str, Any]],
    longer: dict[str, int],
    window: int,
    tokens_per_document: int | None,
    comparison: Sequence[ComparisonRow],
) -> list[str]:
    """What a reader of the scores must know."""
    notes = [
        f"{name} was made for windows of {own}, but scored with {window} like the others; for its own windows: "
        f"recurrify evaluate {name} --window {own}"
        for name, own in longer.items()
    ]
    for name in models[1:]:
        units = [gain["unit"] for gain in gains if gain["model"] == name]
        if "token" not in units:
            notes.append(f"{name} has another tokenizer than {models[0]}: perplexities per token cannot be compared.")
        if not units and tokens_per_document:
            notes.append(f"To compare {name} with {models[0]} per character, leave out --tokens.")
    if comparison and comparison[-1].evaluation.perplexity_per_token > comparison[1].evaluation.perplexity_per_token:
        notes.append(
            "the base inside this model is worse in longer windows, because it was fine-tuned in short ones: score the "
            "original base with --window as well."
        )
    return notes + (training_differences(models) if len(models) > 1 else [])


def _common_windows(models: list[str], window: int | None, overlap: list[int] | None) -> tuple[int, list[int]]:
    """One window and the same overlaps for all models: other perplexities cannot be compared."""
    by_name = {name: own_recurrence(name) for name in models}
    own = [recurrence for recurrence in by_name.values() if recurrence is not None]
    if window is None and len({one.window for one in own}) > 1:
        raise UserError(
            f"The models were made for windows of {_list(one.window for one in own)}: choose one with --window; "
            f"{min(one.window for one in own)}, the shortest, works for all."
        )
    if overlap is None and len({one.overlap for one in own}) > 1:
        found = _list(one.overlap for one in own)
        raise UserError(f"The models were made for overlaps of {found}: choose one with --overlap.")
    if window is None:
        window = own[0].window if own else load_model(models[0])[0].recurrence.window
    overlaps = list(dict.fromkeys(overlap or ())) or [own[0].overlap if own else 0]
    for one in overlaps:
        check_window(window, one)
        for name, recurrence in by_name.items():
            try:  # a memory that does not fit is reported before scoring
                if recurrence is not None:
                    replace(recurrence, window=window, overlap=one)
            except UserError as error:
                raise UserError(f"{name} cannot be scored at --window {window} --overlap {one}: {error}") from error
    return window, overlaps


def _gain(name: str, against: str, reference: Evaluation, evaluation: Evaluation) -> dict[str, Any] | None:
    """The gain over the first model, per token, or per character if the tokenizers differ; None for other texts."""
    for unit in ("token", "character"):
        try:
            return {"model": name, "against": against, **gain_row([reference], [evaluation], unit)}
        except UserError:
            continue
    return None


def _gain_sentence(gain: dict[str, Any]) -> str:
    measure = "bits per character" if gain["unit"] == "character" else "perplexity per token"
    change = Gain(gain["relative_gain"], gain["interval"], gain["within_noise"])
    return f"{gain['model']} compared with {gain['against']} at overlap {gain['overlap']}: {measure} {change}"


def _print(line: str) -> None:
    out_console.print(line, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def _timed(tokens: int, device: torch.device) -> Iterator[dict[str, float]]:
    """The speed of scoring, and the peak memory of a GPU."""
    speed: dict[str, float] = {}
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    began = time.perf_counter()
    yield speed
    speed["tokens_per_second"] = tokens / (time.perf_counter() - began)
    if device.type == "cuda":
        speed["peak_bytes"] = torch.cuda.max_memory_allocated(device)


def _list(numbers: Iterable[int]) -> str:
    return " and ".join(str(number) for number in sorted(set(numbers)))


def _print_evaluation(rows: list[dict[str, Any]], speed: dict[str, dict[str, float]]) -> None:
    for name in dict.fromkeys(row["model"] for row in rows):
        own = [row for row in rows if row["model"] == name]
        peak = speed[name].get("peak_bytes")
        _print(
            f"{name} ({own[0]['mechanism']}), windows of {own[0]['window']}, {speed[name]['tokens_per_second']:,.0f} "
            f"tokens/s{'' if peak is None else f', {peak / 2**30:.2f} GiB peak memory'}"
        )
        table = Table(box=None, pad_edge=False)
        for header in ("overlap", "ppl/token", "95 % interval", "bits/char", "ppl/word", "all FLOPs/token"):
            table.add_column(header, justify="right", no_wrap=True)
        for row in own:
            ends = row["perplexity_per_token_interval"]
            table.add_row(
                str(row["overlap"]),
                perplexity_level(row["perplexity_per_token"], 3),
                " to ".join(perplexity_level(end, 3) for end in ends) if ends else "one document",
                f"{row['bits_per_character']:.4f}",
                perplexity_level(row["perplexity_per_word"], 2),
                large(row["full_flops_per_token"]),
            )
        out_console.print(table, soft_wrap=True)
