"""Scoring a test set: documents side by side as lanes of a batch, against one document at a time."""

from functools import partial
from typing import Any

import numpy as np
import torch

from recurrify.bench.bench import Bench
from recurrify.bench.models import KINDS, base_model, half, random_tokens, recurrent_model
from recurrify.bench.timing import Entrant, Row, ratio
from recurrify.data import TokenizedDocument
from recurrify.evaluate import evaluate_documents, full_flops_per_token

ALONE = 2
"""Documents that are read one at a time; more would only take longer."""
CHECKED_WINDOWS = 3
"""Of each document in the check."""
THEIRS = "transformers, a loop over windows"


def measure_evaluation(bench: Bench) -> dict[str, Any]:
    size, half_precision = bench.size, bench.device.type == "cuda"
    documents = _documents(bench, size.documents, size.document_tokens)
    base = base_model(size, bench.device).eval()
    models: dict[str, Any] = {
        kind: recurrent_model(base_model(size, bench.device), size, kind).eval() for kind in KINDS
    }
    checks = [_check(bench, kind, model) for kind, model in models.items()]
    entrants: dict[tuple[str, int], Entrant] = {}
    for kind, model in models.items():
        for lanes, read in ((size.documents, documents), (1, documents[:ALONE])):
            score = partial(evaluate_documents, model, read, rows=lanes, bf16=half_precision)
            entrants[kind, lanes] = Entrant(kind, score)
    entrants[THEIRS, 1] = Entrant(THEIRS, lambda: _loop(bench, base, documents[:ALONE]))
    with bench.bar("evaluation", len(entrants) * size.rounds) as advance:
        found = bench.turns(advance).take(list(entrants.values()))
    rows: list[Row] = []
    for (name, lanes), timed in zip(entrants, found, strict=True):
        count = size.documents if lanes > 1 else ALONE
        tokens = count * (size.document_tokens - 1)
        rate = timed.rate(tokens)
        flops = full_flops_per_token(models.get(name, base), size.window, 0)
        rows.append(
            {
                "name": name,
                "lanes": lanes,
                "documents": count,
                "tokens": tokens,
                "tokens_per_second": rate,
                "share_of_ceiling": None if rate is None else bench.share(rate * flops),
                "seconds_for_all": None if rate is None else size.documents * (size.document_tokens - 1) / rate,
                **vars(timed),
            }
        )
    return {"rows": rows, "ratios": _ratios(rows), "checks": checks}


def _documents(bench: Bench, count: int, tokens: int) -> list[TokenizedDocument]:
    ids = random_tokens(bench.size, count, tokens, torch.device("cpu")).numpy().astype(np.int32)
    return [TokenizedDocument(f"document {number}", row, tokens, tokens, tokens) for number, row in enumerate(ids)]


def _check(bench: Bench, kind: str, model: Any) -> Row:
    """Lanes give the same losses as documents read alone; lengths differ, so that rows leave the batch."""
    longest = CHECKED_WINDOWS * bench.size.window
    documents = [
        one._replace(ids=one.ids[: longest - 7 * number]) for number, one in enumerate(_documents(bench, 4, longest))
    ]
    side_by_side, alone = (evaluate_documents(model, documents, rows=rows).nll for rows in (4, 1))
    apart = float(np.abs(side_by_side - alone).max() / np.abs(alone).max())
    return {"name": f"{kind}: lanes against one document at a time", "difference": apart, "passed": apart < 1e-4}


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


def _ratios(rows: list[Row]) -> list[Row]:
    by = {(row["name"], row["lanes"] > 1): (row["seconds"], row["tokens"]) for row in rows}
    found = []
    for kind in KINDS:
        lanes, tokens = by[kind, True]
        for name in (kind, THEIRS):
            alone, fewer = by[name, False]
            # Seconds for the same number of tokens.
            scaled = [one * tokens / fewer for one in alone]
            found.append(ratio(f"{kind}, lanes / {name}, one at a time", lanes, scaled))
    return [one for one in found if one is not None]
