"""Training: steps of every memory in every mode compared with transformers, and one long sequence by its length."""

import time
from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import torch
from torch._inductor.utils import fresh_cache

from recurrify.console import progress_bar, say
from recurrify.train import estimate_memory
from recurrify_papers.bench.bench import Bench
from recurrify_papers.bench.checks import WINDOWS, compare, distinct_windows, observe
from recurrify_papers.bench.models import GRAPHS, NaiveLoop, Recurrent, Stepper, Transformers, random_tokens
from recurrify_papers.bench.timing import (
    WRONG,
    Entrant,
    NotMeasuredError,
    Row,
    Timing,
    attempt,
    free_memory,
    interleave,
    ratio,
)

Variant = tuple[Stepper, str, bool]
"""A model, its mode, and whether it is checkpointed."""


def measure_training(bench: Bench) -> Iterator[Row]:
    """One group for each batch size."""
    size, device = bench.size, bench.device
    steppers: list[Stepper] = [Transformers(size, device)]
    steppers += [Recurrent(size, memory, device) for memory in bench.memories]
    for batch in bench.batches:
        torch._dynamo.reset()  # otherwise every step would search what was compiled for other batches
        ids = random_tokens(size, batch, size.windows * size.window, device)
        yield {"batch": batch, **_measure(bench, _variants(bench, steppers), ids)}


def measure_naive(bench: Bench) -> Iterator[Row]:
    """The paper's carry compared with a loop without optimizations (GPT-2's shape)."""
    size = bench.size
    if size.family != "gpt2":
        return
    ids = random_tokens(size, 4, size.windows * size.window, bench.device)
    ours, naive = Recurrent(size, "carry", bench.device), NaiveLoop(size, bench.device)
    few = distinct_windows(ids[:, : WINDOWS * size.window], size.window)
    check = compare("carry against the naive loop", observe(naive, few), observe(ours, few), bench.device)
    group = _measure(bench, [(naive, "eager", False), *_variants(bench, [ours])], ids)
    yield {"batch": 4, **group, "checks": [check, *group["checks"]]}


def measure_lengths(bench: Bench) -> Iterator[Row]:
    """One sequence by its length: with a memory, and as one context of the unmodified model."""
    ours, theirs = ("graphs", "compiled") if bench.device.type == "cuda" else ("eager", "eager")
    carry = Recurrent(bench.size, "carry", bench.device)
    for windows in bench.size.lengths:
        length = windows * bench.size.window
        whole = Transformers(bench.size, bench.device, length)
        variants: list[Variant] = [(carry, ours, True), (carry, ours, False), (whole, theirs, False)]
        yield {"tokens": length, **_measure(bench, variants, random_tokens(bench.size, 1, length, bench.device))}


def _variants(bench: Bench, steppers: list[Stepper]) -> list[Variant]:
    found: list[Variant] = []
    for stepper in steppers:
        recurrent = isinstance(stepper, Recurrent)
        checkpoints = recurrent and bench.checkpoints
        for mode in stepper.modes:
            # Captured graphs are compared with the best that the unmodified model has: compiled.
            if mode in bench.modes or (not recurrent and mode == "compiled" and captures(bench)):
                found += [(stepper, mode, checkpoint) for checkpoint in ((False, True) if checkpoints else (False,))]
    return found


def captures(bench: Bench) -> bool:
    """Whether a mode that captures steps is measured."""
    return any(mode in GRAPHS for mode in bench.modes)


def measure_start(bench: Bench) -> Iterator[Row]:
    """The first training step, with an empty compiler's cache and with the one that it left; a group for each memory
    and mode."""
    for batch in bench.batches:
        ids = random_tokens(bench.size, batch, bench.size.windows * bench.size.window, bench.device)
        for memory, mode in product(bench.memories, bench.modes):
            rows: list[Row] = []
            with fresh_cache():
                for cache in ("cold", "warm"):
                    timing = Timing()
                    timing.problem = attempt(partial(_first_step, bench, memory, mode, ids, timing), bench.device)
                    free_memory(bench.device)
                    rate = timing.rate(ids.numel())
                    rows.append(
                        {"model": memory, "mode": f"{mode}, {cache}", "tokens_per_second": rate, **vars(timing)}
                    )
                    say(f"{memory}, {mode}, {cache}: {timing.problem or f'{timing.seconds[0]:.1f} s'}")
            yield {"batch": batch, "rows": rows, "ratios": [], "checks": []}


def _first_step(bench: Bench, memory: str, mode: str, ids: torch.Tensor, timing: Timing) -> None:
    """Append the seconds of a new model's first step."""
    torch._dynamo.reset()
    stepper = Recurrent(bench.size, memory, bench.device)
    stepper.prepare(mode, False, len(ids))
    started = time.perf_counter()
    stepper.step(ids, len(ids))
    if bench.device.type == "cuda":
        torch.cuda.synchronize(bench.device)
    timing.seconds.append(time.perf_counter() - started)
    stepper.release()


def _measure(bench: Bench, variants: list[Variant], ids: torch.Tensor) -> dict[str, Any]:
    checks: list[Row] = []
    problems: dict[str, str | None] = {}
    with progress_bar(f"check {len(ids)} x {ids.shape[1]}", len(variants), "models") as advance:
        for variant in variants:
            problems[name_of(variant)] = _check(bench, variant, ids, checks)
            advance(1)
    rows_at_once = {name_of(variant): _rows(bench, variant[0], ids) for variant in variants}
    entrants = [_entrant(variant, ids, rows_at_once, problems[name_of(variant)]) for variant in variants]
    timings = interleave(entrants, bench.size.rounds, bench.device)
    rows = []
    for (stepper, mode, checkpoint), timing in zip(variants, timings, strict=True):
        rate, at_once = timing.rate(ids.numel()), rows_at_once[name_of((stepper, mode, checkpoint))]
        rows.append(
            {
                "model": stepper.name,
                "mode": mode,
                "checkpoint": checkpoint,
                "rows_at_once": at_once,
                "estimated_bytes": _estimated(stepper, checkpoint, at_once, ids.shape[1] // bench.size.window),
                "tokens_per_second": rate,
                "share_of_ceiling": bench.share(None if rate is None else rate * stepper.flops_per_token),
                **vars(timing),
            }
        )
    return {"rows": rows, "ratios": _ratios(rows), "checks": checks}


def _estimated(stepper: Stepper, checkpoint: bool, rows: int, windows: int) -> float | None:
    """The memory that `recurrify train` says a step needs."""
    if not isinstance(stepper, Recurrent):
        return None
    stepper.recurrent.set_recurrence(checkpoint=checkpoint)
    return estimate_memory(stepper.recurrent, rows, windows, half=stepper.device.type == "cuda").total


def name_of(variant: Variant) -> str:
    stepper, mode, checkpoint = variant
    return f"{stepper.name}, {mode}{', checkpointed' if checkpoint else ''}"


def _rows(bench: Bench, stepper: Stepper, ids: torch.Tensor) -> int:
    return min(bench.size.windows_at_once, len(stepper.rows_of(ids))) if isinstance(stepper, Transformers) else len(ids)


def _check(bench: Bench, variant: Variant, ids: torch.Tensor, checks: list[Row]) -> str | None:
    """Compare with the eager mode; return why the variant is not timed, if there is a reason."""
    stepper, mode, checkpoint = variant
    if not isinstance(stepper, Recurrent) or (mode, checkpoint) == ("eager", False):
        return None
    few = distinct_windows(ids[:, : WINDOWS * bench.size.window], bench.size.window)

    def check() -> None:
        stepper.prepare("eager", False, len(few))
        expected = observe(stepper, few)
        stepper.prepare(mode, checkpoint, len(few))
        checks.append(compare(name_of(variant), expected, observe(stepper, few), bench.device))
        if not checks[-1]["passed"]:
            say(f"{name_of(variant)}: wrong results, not timed")
            raise NotMeasuredError(WRONG)

    problem = attempt(check, bench.device)
    stepper.release()
    free_memory(bench.device)
    return problem


def _entrant(variant: Variant, ids: torch.Tensor, rows_at_once: dict[str, int], problem: str | None) -> Entrant:
    stepper, mode, checkpoint = variant
    name = name_of(variant)

    def prepare() -> None:
        if problem is not None:
            raise NotMeasuredError(problem)
        while True:  # halve the rows until a step fits
            rows = rows_at_once[name]
            stepper.prepare(mode, checkpoint, rows)
            try:
                if isinstance(stepper, Recurrent):
                    stepper.capture(ids[:rows])
                stepper.step(ids, rows)
                return
            except torch.OutOfMemoryError:
                if rows == 1:
                    raise
            stepper.optimizer.zero_grad(set_to_none=True)
            stepper.release()
            free_memory(stepper.device)
            rows_at_once[name] = rows // 2

    return Entrant(
        name, lambda: stepper.step(ids, rows_at_once[name]), prepare, stepper.release, reserved=mode in GRAPHS
    )


def _ratios(rows: list[Row]) -> list[Row]:
    """Every memory against plain windows in the same mode, everything against transformers, checkpointing, and other
    ways to capture against the usual one."""
    seconds = {(row["model"], row["mode"], row["checkpoint"]): row["seconds"] for row in rows}
    best = "compiled" if ("transformers", "compiled", False) in seconds else "eager"
    found: list[Row] = []
    for (model, mode, checkpoint), own in seconds.items():
        name = f"{model}, {mode}{', checkpointed' if checkpoint else ''}"
        for other in (("plain", mode, checkpoint), ("transformers", best, False), ("naive loop", "eager", False)):
            if other in seconds and model != other[0]:
                found += ratio(f"{name} / {other[0]}", own, seconds[other])
        if mode in GRAPHS and mode != "graphs" and (model, "graphs", checkpoint) in seconds:
            found += ratio(f"{name} / graphs", own, seconds[model, "graphs", checkpoint])
        if checkpoint:
            found += ratio(f"{name} / unchecked", own, seconds[model, mode, False])
    return found
