"""Where a training step's time goes: what the device did, by kind of work, and how long it did nothing."""

import time
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from recurrify_papers.bench.bench import Bench
from recurrify_papers.bench.memory import free_memory
from recurrify_papers.bench.models import random_tokens
from recurrify_papers.bench.stepping import Ours, Stepper, Theirs, warm
from recurrify_papers.bench.timing import DOES_NOT_FIT, NO_TIME, Row, trouble_of, wait

WORK = {
    "attention": ("flash", "fmha", "attention", "sdpa"),
    "matrix products": ("gemm", "nvjet", "cutlass", "cublas", "splitk", "xmma", "::mm", "addmm", "bmm", "triton_tem"),
    "optimiser": ("multi_tensor", "adam"),
    "loss": ("softmax", "nll_loss", "logsumexp", "cross_entropy", "errors_kernel", "summedlosses"),
    "copies and casts": ("memcpy", "memset", "copy", "catarray", "cat", "index", "gather", "scatter", "embedding"),
    "norms, activations, sums": ("triton", "elementwise", "reduce", "norm", "gelu", "tanh", "add", "mul", "sum"),
}
"""A kernel or an operation is of the first kind of which a word is in its name; compiled ones name all they do."""
HEAD, OTHER, IDLE = "matrix products of the head", "everything else", "nothing at all"
PADDED = 1.01
"""A compiler may fill up a vocabulary to so many times its size, for the sake of alignment."""
MOST_ROWS = 16
"""Sequences at once: all ways fit, and a larger batch changes little in the shares."""
STEPS = 2
LARGEST = 40
ANNOTATIONS = ("## Call ", "Torch-Compiled Region", "Optimizer.", "ProfilerStep", "CompiledFunction")
"""How titles begin that a profiler lists beside a device's kernels."""


class Spent(NamedTuple):
    """On one kernel or operation, in all steps."""

    name: str
    seconds: float
    calls: int
    on_device: bool
    head: bool
    """Whether it is the head's, by its shapes; known of operations, not of kernels."""


def measure_profile(bench: Bench, earlier: dict[str, Any] | None = None) -> dict[str, Any]:
    """One row for each model and way; those of an `earlier` run with the same batch stand, asked for or not."""
    batch = _batch(bench)
    before = (earlier or {}).get("rows") or [] if (earlier or {}).get("batch") == batch else []
    done = {(row["kind"], row["way"]): row for row in before if row["trouble"] != NO_TIME}
    rows: list[Row] = []
    steppers: list[Stepper] = [
        Theirs(bench.size, bench.device),
        Ours(bench.size, "plain", bench.device),
        Ours(bench.size, "carry", bench.device),
    ]
    every = [(one, way) for one in steppers for way in one.ways]
    planned = [(one, way) for one, way in every if bench.wants(one.kind, way) or (one.kind, way) in done]
    with bench.bar("profile", len(planned)) as advance:
        for stepper, way in planned:
            rows.append(done.get((stepper.kind, way)) or _row(bench, stepper, way, batch))
            bench.keep({"rows": rows, "batch": batch, "checks": []})
            advance(1)
    return {"rows": rows, "batch": batch, "checks": []}


def covers_profile(earlier: dict[str, Any], bench: Bench) -> bool:
    """Whether every way that is asked for was profiled, at this batch."""
    done = {row["way"] for row in earlier.get("rows") or [] if row["trouble"] != NO_TIME}
    # Graphs are for CUDA devices: elsewhere there is nothing to wait for.
    wanted = {way for way in bench.ways if way != "graphs" or bench.device.type == "cuda"}
    return bool(earlier.get("finished")) and wanted <= done and earlier["batch"] == _batch(bench)


def _batch(bench: Bench) -> int:
    batch = min(max(bench.batches), MOST_ROWS)
    # As many tokens in a window as there are in the vocabulary would make all products look like the head's.
    return batch // 2 if batch * bench.size.window == bench.size.vocabulary else batch


def _row(bench: Bench, stepper: Stepper, way: str, batch: int) -> Row:
    row: Row = {"kind": stepper.kind, "way": way, "trouble": None, "work": [], "largest": []}
    if not bench.may_time():
        return {**row, "trouble": NO_TIME}
    ids = random_tokens(bench.size, batch, bench.size.windows * bench.size.window, bench.device)
    rows = len(stepper.rows_of(ids[:1])) * batch
    if isinstance(stepper, Theirs):
        rows = min(rows, bench.size.windows_at_once)
    try:
        stepper.prepare(way, False, rows)
        if way == "graphs":
            warm(stepper, ids)
        stepper.step(ids, rows)
        wait(bench.device)
        started = time.perf_counter()
        stepper.step(ids, rows)
        wait(bench.device)
        seconds = time.perf_counter() - started
        spent = _profiled(stepper, ids, rows, bench)
    except Exception as error:
        row["trouble"] = trouble_of(error)
        if row["trouble"] is None:
            raise
        del error
        free_memory(bench.device, thoroughly=True)
        return row
    finally:
        stepper.rest()
    free_memory(bench.device, thoroughly=way == "graphs" or row["trouble"] == DOES_NOT_FIT)
    on_gpu = bench.device.type == "cuda"
    kernels = [one for one in spent if one.on_device == on_gpu]
    work = kinds_of_work(kernels, [one for one in spent if one.head and not one.on_device])
    busy = sum(one["seconds"] for one in work)
    if on_gpu:
        work.append({"what": IDLE, "seconds": max(seconds - busy, 0.0), "calls": 0})
    largest = sorted(kernels, key=lambda one: -one.seconds)[:LARGEST]
    return {
        **row,
        "tokens": ids.numel(),
        "seconds": seconds,
        "work": work,
        "largest": [{"name": one.name, "seconds": one.seconds / STEPS, "calls": one.calls / STEPS} for one in largest],
    }


def _profiled(stepper: Stepper, ids: torch.Tensor, rows: int, bench: Bench) -> list[Spent]:
    activities = [ProfilerActivity.CPU]
    if bench.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities, record_shapes=True, acc_events=True) as profiler:
        for _ in range(STEPS):
            stepper.step(ids, rows)
        wait(bench.device)
    return [
        Spent(
            event.key,
            (event.self_device_time_total if bench.device.type == "cuda" else event.self_cpu_time_total) / 1e6,
            event.count,
            event.device_type != DeviceType.CPU,
            is_head(event.key, event.input_shapes, bench.size.vocabulary),
        )
        for event in profiler.key_averages(group_by_input_shape=True)
        if event.device_type == DeviceType.CPU or is_kernel(event.key)
    ]


def is_kernel(name: str) -> bool:
    """And not the title of a region, which has the time of all kernels in it once more."""
    return not name.startswith(ANNOTATIONS)


def is_head(name: str, shapes: Any, vocabulary: int) -> bool:
    """Whether an operation is a matrix product with the vocabulary as one of its sizes."""
    sizes = [size for shape in shapes or [] if isinstance(shape, list) for size in shape if isinstance(size, int)]
    return kind_of(name) == "matrix products" and any(vocabulary <= size < PADDED * vocabulary for size in sizes)


def kind_of(name: str) -> str:
    lowered = name.lower()
    return next((kind for kind, words in WORK.items() if any(word in lowered for word in words)), OTHER)


def kinds_of_work(kernels: Iterable[Spent], head: Iterable[Spent]) -> list[Row]:
    """Seconds and calls of a step by kind of work, the longest first; the head's products apart from the others."""
    totals: dict[str, list[float]] = {}
    for one in kernels:
        total = totals.setdefault(kind_of(one.name), [0.0, 0.0])
        total[0] += one.seconds / STEPS
        total[1] += one.calls / STEPS
    of_head = sum(one.seconds for one in head) / STEPS
    if of_head and "matrix products" in totals:
        calls = sum(one.calls for one in head) / STEPS
        totals[HEAD] = [of_head, calls]
        totals["matrix products"][0] -= of_head
        totals["matrix products"][1] -= calls
    rows = [{"what": kind, "seconds": seconds, "calls": calls} for kind, (seconds, calls) in totals.items() if seconds]
    return sorted(rows, key=lambda row: -row["seconds"])
