"""The tables of a benchmark as plain strings, for the page and the terminal alike."""

from collections.abc import Mapping, Sequence
from typing import Any

from recurrify.pages import numbers
from recurrify.pages.tables import Table

Row = Mapping[str, Any]


def bench_tables(parts: Mapping[str, Row]) -> list[Table]:
    """Every part's, in the order in which they are measured."""
    made: list[Table | None] = [_ceilings(parts.get("ceilings") or {})]
    for group in (parts.get("training") or {}).get("groups") or []:
        made += [_training(group), _ratios(f"Ratios of training, batch {group['batch']}", group)]
    made.append(_checks(parts))
    made.append(_profile(parts.get("profile") or {}))
    made.append(_lengths(parts.get("lengths") or {}))
    for name, table in (("generation", _generation), ("evaluation", _evaluation), ("naive", _naive), ("peers", _peers)):
        result = parts.get(name) or {}
        made += [table(result), _ratios(f"Ratios: {name}", result)]
    return [table for table in made if table is not None]


def _table(caption: str, header: str, rows: Sequence[Sequence[str]], text_columns: int = 1) -> Table | None:
    """`header` has its columns between bars."""
    return Table(caption, header.split("|"), [list(row) for row in rows], text_columns) if rows else None


def _rate(row: Row) -> str:
    """Tokens per second, or why there are none or not all repeats."""
    value = numbers.finite(row.get("tokens_per_second"))
    trouble = row.get("trouble")
    if value is None:
        return str(trouble or numbers.MISSING)
    repeats = len(row.get("seconds") or [])
    return f"{numbers.count(value)} ({trouble} after {repeats})" if trouble else numbers.count(value)


def _share(row: Row) -> str:
    """More than there is cannot be had: the ceiling was measured when the machine had less to give."""
    share = numbers.finite(row.get("share_of_ceiling"))
    return f"{numbers.percent(share)} (ceiling too low)" if share is not None and share > 1 else numbers.percent(share)


def _gibibytes(value: Any) -> str:
    size = numbers.finite(value)
    return numbers.MISSING if size is None else f"{size / 2**30:.2f}"


def _ceilings(result: Row) -> Table | None:
    rows = [
        (
            str(row.get("what")),
            numbers.large(numbers.finite(row.get("flops_per_second"))),
            numbers.large(numbers.finite(row.get("bytes_per_second"))),
        )
        for row in result.get("rows") or []
    ]
    return _table(f"Ceilings, {result.get('dtype')}", "what|FLOP/s|bytes/s", rows)


def _training(group: Row) -> Table | None:
    rows = [
        (
            _variant(row),
            numbers.count(row.get("rows_at_once")),
            _rate(row),
            _share(row),
            _gibibytes(row.get("peak_bytes")),
        )
        for row in group.get("rows") or []
    ]
    caption = f"Training, batch {group.get('batch')}: {group.get('windows')} windows of {group.get('window')} tokens"
    return _table(caption, "model and way|rows at once|tokens/s|of the ceiling|peak GiB", rows)


def _variant(row: Row) -> str:
    budget = row.get("memory_budget", 1)
    within = "" if budget == 1 else f", budget {budget:g}"
    return f"{row.get('kind')}, {row.get('way')}{', checkpointed' if row.get('checkpoint') else ''}{within}"


def _checks(parts: Mapping[str, Row]) -> Table | None:
    rows = []
    for part, result in parts.items():
        for check in result.get("checks") or []:
            batch = f", batch {check['batch']}" if "batch" in check else ""
            measures = [
                f"{key.replace('_', ' ')} {'not finite' if value is None else f'{value:.2g}'}"
                for key, value in check.items()
                if key not in ("name", "passed", "batch")
            ]
            verdict = "right" if check["passed"] else "WRONG"
            rows.append((f"{part}{batch}", str(check["name"]), "; ".join(measures), verdict))
    return _table("Checked first", "part|what|difference|result", rows, text_columns=4)


def _profile(result: Row) -> Table | None:
    """A column for each model and way: milliseconds of a step, and the share of it."""
    found: list[Row] = list(result.get("rows") or [])
    spent = [{one["what"]: float(one["seconds"]) for one in row.get("work") or []} for row in found]
    rows = []
    for kind in dict.fromkeys(kind for one in spent for kind in one):
        cells = [
            f"{1000 * one[kind]:.1f} ({numbers.percent(one[kind] / sum(one.values()))})" if kind in one else ""
            for one in spent
        ]
        rows.append((kind, *cells))
    if rows:
        steps = [numbers.finite(row.get("seconds")) for row in found]
        whole = [
            str(row["trouble"]) if step is None else f"{1000 * step:.1f}"
            for row, step in zip(found, steps, strict=True)
        ]
        rows.append(("a step, not profiled", *whole))
    header = "|".join(["milliseconds of work", *(f"{row['kind']}, {row['way']}" for row in found)])
    return _table(f"Where a training step's time goes, {result.get('batch')} sequences", header, rows)


def _lengths(result: Row) -> Table | None:
    rows = [
        (
            str(row.get("name")),
            str(row.get("way")),
            numbers.count(row.get("tokens")),
            _rate(row),
            _share(row),
            _gibibytes(row.get("peak_bytes")),
        )
        for row in result.get("rows") or []
    ]
    header = "model|way|tokens|tokens/s|of the ceiling|peak GiB"
    return _table("One sequence, by its length", header, rows, text_columns=2)


def _generation(result: Row) -> Table | None:
    found: list[Row] = list(result.get("rows") or [])
    prompts = sorted({int(row["prompt"]) for row in found})
    cells = {(row["name"], row["prompt"]): row for row in found}
    rows = [
        (str(name), *(_milliseconds(cells.get((name, prompt))) for prompt in prompts))
        for name in dict.fromkeys(row["name"] for row in found)
    ]
    for name in dict.fromkeys(row["name"] for row in found if row.get("seconds_to_capture") is not None):
        captures = [numbers.finite(cells.get((name, prompt), {}).get("seconds_to_capture")) for prompt in prompts]
        told = [numbers.MISSING if one is None else f"{1000 * one:.0f}" for one in captures]
        rows.append((f"{name}: capturing, once in a text", *told))
    header = "|".join(["who", *(f"after {prompt:,}" for prompt in prompts)])
    return _table("Milliseconds for a generated token, after so many", header, rows)


def _milliseconds(row: Row | None) -> str:
    if row is None:
        return "past its context"
    value = numbers.finite(row.get("seconds_per_token"))
    return str(row.get("trouble") or numbers.MISSING) if value is None else f"{1000 * value:.2f}"


def _evaluation(result: Row) -> Table | None:
    rows = [
        (
            str(row.get("name")),
            numbers.count(row.get("lanes")),
            _rate(row),
            _share(row),
            numbers.fixed(numbers.finite(row.get("seconds_for_all")), 1),
        )
        for row in result.get("rows") or []
    ]
    return _table("Scoring documents", "model|lanes|tokens/s|of the ceiling|seconds for all", rows)


def _naive(result: Row) -> Table | None:
    rows = [
        (str(row.get("name")), numbers.count(row.get("batch")), _rate(row), _share(row), _gibibytes(row["peak_bytes"]))
        for row in result.get("rows") or []
    ]
    return _table("Training the paper's mechanism", "who|batch|tokens/s|of the ceiling|peak GiB", rows)


def _peers(result: Row) -> Table | None:
    rows = [
        (
            str(row.get("name")),
            numbers.count(row.get("layers")),
            numbers.large(numbers.finite(row.get("body_weights"))),
            numbers.large(numbers.finite(row.get("weights"))),
            _rate(row),
            _gibibytes(row.get("peak_bytes")),
        )
        for row in result.get("rows") or []
    ]
    header = "who|layers|weights of the layers|all weights|tokens/s|peak GiB"
    return _table("Training beside the field's packages, nobody compiled", header, rows)


def _ratios(caption: str, result: Row) -> Table | None:
    rows = [
        (str(row["name"]), numbers.fixed(row["ratio"], 2), f"{row['low']:.2f} to {row['high']:.2f}")
        for row in result.get("ratios") or []
    ]
    return _table(caption, "ratio of speeds|median|range", rows)
