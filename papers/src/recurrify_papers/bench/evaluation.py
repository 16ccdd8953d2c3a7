"""Scoring a test set: documents side by side as lanes of a batch, against one document at a time."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from recurrify.data.tokens import TokenizedDocument
from recurrify.evaluate.flops import full_flops_per_token
from recurrify.evaluate.perplexity import evaluate_documents
from recurrify_papers.bench.bench import Bench
from recurrify_papers.bench.checks import stirred, told_apart, true_float32
from recurrify_papers.bench.models import KINDS, USUAL_KINDS, base_model, half, random_tokens, recurrent_model
from recurrify_papers.bench.timing import NO_TIME, WRONG, Entrant, NotMeasuredError, Row, Timed, ratio, still_missing

ALONE = 2
"""Documents that are read one at a time; more would only take longer."""
CHECKED_WINDOWS = 3
"""Of each document in the check."""
SAME = 1e-5
"""Of the largest loss: in float32, lanes are a thousand times nearer, and a memory of another lane is ten times off."""
THEIRS = "transformers, a loop over windows"


def covers_kinds(earlier: dict[str, Any], kinds: Sequence[str]) -> bool:
    return bool(earlier.get("finished")) and set(kinds) <= set(earlier.get("kinds", USUAL_KINDS))


def measure_evaluation(bench: Bench, earlier: dict[str, Any] | None = None) -> dict[str, Any]:
    """All in turns; checks and whole rounds of an `earlier` run are not repeated, unless a kind that it lacks is
    measured beside what it has."""
    size = bench.size
    earlier = earlier or {}
    had = earlier.get("kinds", USUAL_KINDS) if earlier else ()
    kinds = [kind for kind in KINDS if kind in (*bench.kinds, *had)]
    base = base_model(size, bench.device).eval()
    models: dict[str, Any] = {
        kind: recurrent_model(base_model(size, bench.device), size, kind).eval() for kind in kinds
    }
    checks, troubles = _checked(bench, models, earlier)
    entrants = _entrants(bench, models, base, troubles)
    before = {(row["name"], row["lanes"]): row for row in earlier.get("rows") or []}
    flops = {name: full_flops_per_token(models.get(name, base), size.window, 0) for name, _ in entrants}

    def result(found: list[Timed]) -> dict[str, Any]:
        rows = [_row(bench, *key, timed, flops[key[0]]) for key, timed in zip(entrants, found, strict=True)]
        missing = still_missing([name for name, _ in entrants], found, size.rounds)
        ratios = _ratios(rows, kinds)
        return {"kinds": kinds, "rows": rows, "ratios": ratios, "checks": checks, "missing": missing}

    with bench.bar("evaluation", bench.turns_of(len(entrants))) as advance:
        left = [before.get(key) for key in entrants]
        found = bench.turns(advance).take(list(entrants.values()), left, lambda some: bench.keep(result(some)))
    return result(found)


def _checked(bench: Bench, models: dict[str, Any], earlier: dict[str, Any]) -> tuple[list[Row], dict[str, str]]:
    """The checks, and why a kind is not to be timed, where there is a reason."""
    known = {check["name"]: check for check in earlier.get("checks") or []}
    checks: list[Row] = []
    troubles: dict[str, str] = {}
    for kind, model in models.items():
        check = known.get(_name_of_check(kind))
        if check is None and bench.out_of_time():
            troubles[kind] = NO_TIME
            continue
        checks.append(check or _check(bench, kind, model))
        if not checks[-1]["passed"]:
            bench.say(f"{checks[-1]['name']}: wrong results, and therefore not timed")
            troubles[kind] = WRONG
    return checks, troubles


def _entrants(
    bench: Bench, models: dict[str, Any], base: Any, troubles: dict[str, str]
) -> dict[tuple[str, int], Entrant]:
    """By name and lanes."""
    size, half_precision = bench.size, bench.device.type == "cuda"
    documents = _documents(bench, size.documents, size.document_tokens)
    entrants: dict[tuple[str, int], Entrant] = {}

    def wake(kind: str) -> None:
        if kind in troubles:
            raise NotMeasuredError(troubles[kind])

    for kind, model in models.items():
        for lanes, read in ((size.documents, documents), (1, documents[:ALONE])):
            score = partial(evaluate_documents, model, read, rows=lanes, bf16=half_precision)
            entrants[kind, lanes] = Entrant(kind, score, partial(wake, kind))
    entrants[THEIRS, 1] = Entrant(THEIRS, lambda: _loop(bench, base, documents[:ALONE]))
    return entrants


def _row(bench: Bench, name: str, lanes: int, timed: Timed, flops: float) -> Row:
    size = bench.size
    count = size.documents if lanes > 1 else ALONE
    tokens = count * (size.document_tokens - 1)
    rate = timed.rate(tokens)
    return {
        "name": name,
        "lanes": lanes,
        "documents": count,
        "tokens": tokens,
        "tokens_per_second": rate,
        "share_of_ceiling": None if rate is None else bench.share(rate * flops),
        "seconds_for_all": None if rate is None else size.documents * (size.document_tokens - 1) / rate,
        **vars(timed),
    }


def _documents(bench: Bench, count: int, tokens: int) -> list[TokenizedDocument]:
    ids = random_tokens(bench.size, count, tokens, torch.device("cpu")).numpy().astype(np.int32)
    return [TokenizedDocument(f"document {number}", row, tokens, tokens, tokens) for number, row in enumerate(ids)]


def _check(bench: Bench, kind: str, model: Any) -> Row:
    """Lanes give the same losses as documents read alone; lengths differ, so that rows leave the batch."""
    window, longest = bench.size.window, CHECKED_WINDOWS * bench.size.window
    documents = [
        one._replace(ids=told_apart(torch.from_numpy(one.ids)[None].long(), window)[0, : longest - 7 * number].numpy())
        for number, one in enumerate(_documents(bench, 4, longest))
    ]
    with stirred(model), true_float32():
        side_by_side, alone = (evaluate_documents(model, documents, rows=rows).nll for rows in (4, 1))
    apart = float(np.abs(side_by_side - alone).max() / np.abs(alone).max())
    return {"name": _name_of_check(kind), "difference": apart, "passed": apart < SAME}


def _name_of_check(kind: str) -> str:
    return f"{kind}: lanes against one document at a time"


@torch.inference_mode()
def _loop(bench: Bench, base: Any, documents: list[TokenizedDocument]) -> float:
    """What transformers' own guide to perplexity does, without overlap."""
    total = 0.0
    for document in documents:
        ids = torch.from_numpy(document.ids.astype(np.int64)).to(bench.device)[None]
        for start in range(0, ids.shape[1] - 1, bench.size.window):
            piece = ids[:, start : start + bench.size.window + 1]
            with half(bench.device):
                total += float(base(piece, labels=piece, use_cache=False).loss) * (piece.shape[1] - 1)
    return total


def _ratios(rows: list[Row], kinds: Sequence[str]) -> list[Row]:
    by = {(row["name"], row["lanes"] > 1): (row["seconds"], row["tokens"]) for row in rows}
    found = []
    for kind in kinds:
        lanes, tokens = by[kind, True]
        for name in (kind, THEIRS):
            alone, fewer = by[name, False]
            # Seconds for the same number of tokens.
            scaled = [one * tokens / fewer for one in alone]
            found.append(ratio(f"{kind}, lanes / {name}, one at a time", lanes, scaled))
    return [one for one in found if one is not None]
