"""Reading and writing: scoring documents, and the time per generated token by the length of the text."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.generation.streamers import BaseStreamer

from recurrify.data import TokenizedDocument
from recurrify.evaluate import evaluate_documents, full_flops_per_token
from recurrify.speed import graph_generation
from recurrify_papers.bench.bench import Bench
from recurrify_papers.bench.checks import check_generation
from recurrify_papers.bench.models import base_model, half, random_tokens, recurrent_model
from recurrify_papers.bench.timing import WRONG, Entrant, NotMeasuredError, Row, Timing, attempt, interleave, ratio

ALONE = 2
"""Documents that are read one at a time: more would only take longer."""
SAME_LOSS = 1e-5
TRANSFORMERS = "transformers"


def measure_reading(bench: Bench) -> Iterator[Row]:
    """Documents in parallel as rows of a batch, one at a time, and a loop over windows with the unmodified model."""
    size, device = bench.size, bench.device
    base = base_model(size, device).eval()
    models: dict[str, Any] = {memory: recurrent_model(size, memory, device).eval() for memory in bench.memories}
    checks = [_check_reading(bench, memory, model) for memory, model in models.items()]
    documents = _documents(bench, size.documents, size.document_tokens)
    entrants: dict[tuple[str, int], Entrant] = {}
    for memory, model in models.items():
        for rows, read in ((size.documents, documents), (1, documents[:ALONE])):
            entrants[memory, rows] = Entrant(memory, _scorer(model, read, rows, device.type == "cuda"))
    entrants[TRANSFORMERS, 1] = Entrant(TRANSFORMERS, lambda: _loop(bench, base, documents[:ALONE]))
    timings = dict(zip(entrants, interleave(list(entrants.values()), size.rounds, device), strict=True))
    rows_found: list[Row] = []
    ratios: list[Row] = []
    for (name, rows), timing in timings.items():
        tokens = (size.documents if rows > 1 else ALONE) * (size.document_tokens - 1)
        rate = timing.rate(tokens)
        flops = full_flops_per_token(models.get(name, base), size.window, 0)
        share = bench.share(None if rate is None else rate * flops)
        rows_found.append(
            {"model": name, "rows": rows, "tokens_per_second": rate, "share_of_ceiling": share, **vars(timing)}
        )
        if rows > 1:
            scaled = [one * tokens / (ALONE * (size.document_tokens - 1)) for one in timings[TRANSFORMERS, 1].seconds]
            ratios += ratio(f"{name}, {rows} documents in parallel / {TRANSFORMERS}", timing.seconds, scaled)
    yield {"documents": size.documents, "rows": rows_found, "ratios": ratios, "checks": checks}


def _scorer(model: Any, documents: list[TokenizedDocument], rows: int, bf16: bool) -> Callable[[], object]:
    return lambda: evaluate_documents(model, documents, rows=rows, bf16=bf16)


def _documents(bench: Bench, count: int, tokens: int) -> list[TokenizedDocument]:
    ids = random_tokens(bench.size, count, tokens).numpy().astype(np.int32)
    return [TokenizedDocument(f"document {number}", row, tokens, tokens, tokens) for number, row in enumerate(ids)]


def _check_reading(bench: Bench, memory: str, model: Any) -> Row:
    """Documents of different lengths in parallel have the losses that they have alone."""
    longest = 3 * bench.size.window
    documents = [
        one._replace(ids=one.ids[: longest - 7 * number]) for number, one in enumerate(_documents(bench, 4, longest))
    ]
    together, alone = (evaluate_documents(model, documents, rows=rows).nll for rows in (4, 1))
    apart = float(np.abs(together - alone).max() / np.abs(alone).max())
    return {"name": f"{memory}: documents in parallel against alone", "difference": apart, "passed": apart < SAME_LOSS}


@torch.inference_mode()
def _loop(bench: Bench, base: Any, documents: list[TokenizedDocument]) -> None:
    """Windows without overlap, as transformers' guide to perplexity does."""
    for document in documents:
        ids = torch.from_numpy(document.ids.astype(np.int64)).to(bench.device)[None]
        for start in range(0, ids.shape[1] - 1, bench.size.window):
            piece = ids[:, start : start + bench.size.window + 1]
            with half(bench.device):
                float(base(piece, labels=piece, use_cache=False).loss)


class _Clock(BaseStreamer):
    """Records when tokens arrive; the prompt arrives first."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: Tensor) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass

    def seconds_per_token(self) -> float:
        """Median over tokens, without the first, whose time is that of reading the prompt."""
        return float(np.median(np.diff(self.times[1:])))


def measure_generation(bench: Bench) -> Iterator[Row]:
    """Time per token after prompts of several lengths, a window of tokens each."""
    writers = _writers(bench)
    checks: list[Row] = []
    problems: dict[str, str | None] = {}
    for name, (model, _) in writers.items():
        problems[name] = attempt(partial(_check, bench, name, model, checks), bench.device)
    for prompt in bench.size.prompts:
        timings = {name: Timing(problem=problems[name]) for name in writers}
        for _ in range(bench.size.rounds):
            for name, (model, longest) in writers.items():
                if longest is not None and prompt > longest:
                    timings[name].problem = "beyond its context"
                if timings[name].problem is None:
                    timings[name].problem = attempt(
                        partial(_time_one, bench, model, prompt, timings[name]), bench.device
                    )
        rows = [{"model": name, "tokens_per_second": one.rate(1), **vars(one)} for name, one in timings.items()]
        base = timings[TRANSFORMERS].seconds
        ratios = [
            one
            for name in writers
            if name != TRANSFORMERS
            for one in ratio(f"{name} / {TRANSFORMERS}", timings[name].seconds, base)
        ]
        yield {"prompt": prompt, "rows": rows, "ratios": ratios, "checks": checks}
        checks = []


def _check(bench: Bench, name: str, model: Any, checks: list[Row]) -> None:
    checks.append(check_generation(name, model, bench.size))
    if not checks[-1]["passed"]:
        raise NotMeasuredError(WRONG)


def _writers(bench: Bench) -> dict[str, tuple[Any, int | None]]:
    """Models by name, each with its longest prompt."""
    size, device = bench.size, bench.device
    writers: dict[str, tuple[Any, int | None]] = {
        TRANSFORMERS: (base_model(size, device), size.positions - size.window - 1)
    }
    for memory in bench.memories:
        writers[memory] = (recurrent_model(size, memory, device), None)
        if device.type == "cuda":
            captured = recurrent_model(size, memory, device)
            graph_generation(captured)
            writers[f"{memory}, graphs"] = (captured, None)
    return writers


def _time_one(bench: Bench, model: Any, tokens: int, timing: Timing) -> None:
    """Append the seconds per token; in bfloat16 on a GPU, as one loads a model to generate."""
    prompt = random_tokens(bench.size, 1, tokens, bench.device)
    model.eval()
    if model.device.type == "cuda":
        model.to(torch.bfloat16)
    clock = _Clock()
    with torch.inference_mode():
        model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=bench.size.window + 1,
            do_sample=False,
            pad_token_id=0,
            streamer=clock,
        )
    timing.seconds.append(clock.seconds_per_token())
