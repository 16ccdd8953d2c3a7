"""Reading and writing: scoring documents, and the time per generated token by the length of the text."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import GenerationConfig

from recurrify.data import TokenizedDocument
from recurrify.evaluate import evaluate_documents, full_flops_per_token
from recurrify.speed import graph_generation
from recurrify_papers.bench.bench import Bench
from recurrify_papers.bench.checks import check_generation
from recurrify_papers.bench.models import base_model, half, random_tokens, recurrent_model
from recurrify_papers.bench.timing import WRONG, Entrant, NotMeasuredError, Row, Timing, attempt, interleave, ratio

ALONE = 2
"""Documents that are read one at a time: more would only take longer."""
FEW = 16
"""Tokens of a second window after which a captured model replays its step."""
SAME_LOSS = 1e-5
EXPECTED = (RuntimeError, ValueError, ImportError, TypeError, AttributeError, NotImplementedError)
TRANSFORMERS, BATCHING = "transformers", "transformers, continuous batching"
LONG_WINDOWS = "transformers, its longest windows"


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
    windows = {TRANSFORMERS: size.window, LONG_WINDOWS: size.positions - 1}  # the last token is an input, too
    for name, window in windows.items():
        entrants[name, 1] = Entrant(name, partial(_loop, bench, base, documents[:ALONE], window))
    timings = dict(zip(entrants, interleave(list(entrants.values()), size.rounds, device), strict=True))
    rows_found: list[Row] = []
    ratios: list[Row] = []
    for (name, rows), timing in timings.items():
        tokens = (size.documents if rows > 1 else ALONE) * (size.document_tokens - 1)
        rate = timing.rate(tokens)
        flops = full_flops_per_token(models.get(name, base), windows.get(name, size.window), 0)
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
def _loop(bench: Bench, base: Any, documents: list[TokenizedDocument], window: int) -> None:
    """Windows without overlap, as transformers' guide to perplexity does."""
    for document in documents:
        ids = torch.from_numpy(document.ids.astype(np.int64)).to(bench.device)[None]
        for start in range(0, ids.shape[1] - 1, window):
            piece = ids[:, start : min(start + window + 1, ids.shape[1])]
            with half(bench.device):
                float(base(piece, labels=piece, use_cache=False).loss)


class Writer(NamedTuple):
    """A model that generates."""

    model: Any
    longest: int | None = None
    """Its longest prompt."""


def measure_batching(bench: Bench) -> Iterator[Row]:
    """Generation by the unmodified model in transformers' continuous batching."""
    size = bench.size
    model = base_model(size, bench.device)
    for texts in size.texts:
        for prompt in size.prompts:
            timing = Timing()
            if prompt > size.positions - size.window - 1:
                continue
            ids = random_tokens(size, texts, prompt, bench.device)
            for _ in range(size.rounds):
                if timing.problem is None:
                    timing.problem = attempt(partial(_time_batch, bench, model, ids, timing), bench.device)
            row = {"model": BATCHING, "tokens_per_second": timing.rate(texts), **vars(timing)}
            yield {"batch": texts, "prompt": prompt, "rows": [row], "ratios": [], "checks": []}


def measure_generation(bench: Bench) -> Iterator[Row]:
    """Time per step, over a window of tokens, and of reading the prompt, after prompts of several lengths."""
    writers = _writers(bench)
    checks: list[Row] = []
    problems: dict[str, str | None] = {}
    for name, writer in writers.items():
        problems[name] = attempt(partial(_check, bench, name, writer.model, checks), bench.device)
    for texts in bench.size.texts:
        for prompt in bench.size.prompts:
            if texts * prompt <= bench.size.most_prompt_tokens:
                yield {"batch": texts, "prompt": prompt, **_generation(bench, writers, texts, prompt, problems, checks)}
                checks = []


def _generation(
    bench: Bench,
    writers: dict[str, Writer],
    texts: int,
    prompt: int,
    problems: dict[str, str | None],
    checks: list[Row],
) -> dict[str, Any]:
    timings = {name: Timing(problem=problems.get(name)) for name in writers}
    reading: dict[str, list[float]] = {name: [] for name in writers}
    for _ in range(bench.size.rounds):
        for name, writer in writers.items():
            timing = timings[name]
            if writer.longest is not None and prompt > writer.longest:
                timing.problem = "beyond its context"
            if timing.problem is None:
                ids = random_tokens(bench.size, texts, prompt, bench.device)
                timing.problem = attempt(
                    partial(_time_one, bench, writer.model, ids, timing, reading[name]), bench.device
                )
    rows = []
    for name, timing in timings.items():
        first = float(np.median(reading[name])) if reading[name] else None
        rows.append({"model": name, "tokens_per_second": timing.rate(texts), "prompt_seconds": first, **vars(timing)})
    ratios = [
        one
        for name in writers
        if name != TRANSFORMERS
        for one in ratio(f"{name} / {TRANSFORMERS}", timings[name].seconds, timings[TRANSFORMERS].seconds)
    ]
    return {"rows": rows, "ratios": ratios, "checks": checks}


def _check(bench: Bench, name: str, model: Any, checks: list[Row]) -> None:
    checks.append(check_generation(name, model, bench.size))
    if not checks[-1]["passed"]:
        raise NotMeasuredError(WRONG)


def _writers(bench: Bench) -> dict[str, Writer]:
    size, device = bench.size, bench.device
    longest = size.positions - size.window - FEW
    writers = {
        TRANSFORMERS: Writer(base_model(size, device), longest),
    }
    for memory in bench.memories:
        if "eager" in bench.modes:
            writers[memory] = Writer(recurrent_model(size, memory, device))
        if "graphs" in bench.modes:
            captured = recurrent_model(size, memory, device)
            graph_generation(captured)
            writers[f"{memory}, graphs"] = Writer(captured)
    return writers


def _ready(model: Any) -> Any:
    """In bfloat16 on a GPU, as one loads a model to generate."""
    return model.eval().to(torch.bfloat16) if model.device.type == "cuda" else model.eval()


def _time_one(bench: Bench, model: Any, ids: Tensor, timing: Timing, reading: list[float]) -> None:
    """Append the seconds of a step, and of reading the prompt with the first token. A step is the difference between
    few tokens and a window more: a look at each token would make the device wait."""
    window, took = bench.size.window, []
    few = FEW + max(0, window - ids.shape[1])
    for new in (1, few, few + window):
        started = time.perf_counter()
        with torch.inference_mode():
            found = _ready(model).generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, do_sample=False, pad_token_id=0
            )
        written = len(found[0].tolist()) - ids.shape[1]  # the list waits for the device
        took.append(time.perf_counter() - started)
        if written != new:
            raise NotMeasuredError("did not generate all tokens")
    timing.seconds.append((took[2] - took[1]) / window)
    reading.append(took[0])


def _time_batch(bench: Bench, model: Any, ids: Tensor, timing: Timing) -> None:
    """Append the seconds of a step: the difference between many tokens and two, because steps are not reported."""
    if bench.device.type != "cuda":
        raise NotMeasuredError("needs a GPU: its buffers are made for one")
    prompts, few, many = ids.tolist(), 2, bench.size.window + 1
    took: list[float] = []
    for new in (few, many):
        settings = GenerationConfig(max_new_tokens=new, do_sample=False, eos_token_id=-1, pad_token_id=0)
        started = time.perf_counter()
        try:
            found = _ready(model).generate_batch(inputs=prompts, generation_config=settings, progress_bar=False)
        except EXPECTED as error:  # whatever it does not support in this version or on this device
            raise NotMeasuredError(f"failed ({type(error).__name__}: {str(error)[:80]})") from error
        took.append(time.perf_counter() - started)
        if [len(one.generated_tokens) for one in found.values()] != [new] * len(prompts):
            raise NotMeasuredError("did not generate all tokens")
    timing.seconds.append((took[1] - took[0]) / (many - few))
