"""Self-attention with recurrence on one GPU: right first, then how fast, beside the fused attention it is built on.

    python tools/bench_rsa.py --out papers/results/rsa-kernels.json

Checks: the kernels in bf16 against the matrix form in float64 at small sizes, and against the plain PyTorch scan at the
sizes that are measured; outputs and every gradient. Then forward + backward times, each the median of rounds in which
all ways take turns: eager, and as a CUDA graph, where no launch waits for Python; beside cuDNN's attention, the
quickest of PyTorch's, and beside what training uses. About a minute, most of it compiling.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from timing import in_short
from torch import Tensor
from torch.nn import functional

from recurrify.attention.config import RSAConfig
from recurrify.attention.encoding import RecurrenceEncoding
from recurrify.attention.kernels import TRITON_INSTALLED
from recurrify.attention.reference import rem_matrix, rsa_matrix_form
from recurrify.attention.rsa import chunked_mix, rsa_attention
from recurrify.results import provenance, save_result
from recurrify.speed.capturing import as_graph, device_seconds

DEVICE = "cuda"
HEADS, WIDTH = 8, 64
PLANS = {
    "4 of 8": {"counts": (0, 0, 0, 0, 2, 2), "dilations": (3, 6, 9, 12)},
    "8 of 8": {"counts": (0, 0, 0, 0, 4, 4), "dilations": (3, 6, 9, 12, 3, 6, 9, 12)},
    "8 of 8, plain and dilated": {"counts": (2, 1, 1, 2, 1, 1), "dilations": (2, 3, 5, 7)},
}
MEASURED = ("4 of 8", "8 of 8")
SIZES = ((8, 2048), (16, 512), (1, 32768), (2, 8192))
MATRIX_LIMIT = 2 * 8192 * 8192
"""Batch × positions² beyond which the matrix form does not fit."""

Way = Callable[[list[Tensor], RecurrenceEncoding], Tensor]


def fused_alone(tensors: list[Tensor], encoding: RecurrenceEncoding) -> Tensor:
    return functional.scaled_dot_product_attention(*tensors, is_causal=True)


def with_kernel(tensors: list[Tensor], encoding: RecurrenceEncoding) -> Tensor:
    return rsa_attention(*tensors, encoding).output


def with_plain_scan(tensors: list[Tensor], encoding: RecurrenceEncoding) -> Tensor:
    attended = functional.scaled_dot_product_attention(*tensors, is_causal=True)
    return chunked_mix(attended, tensors[2], encoding, causal=True, memory=0).output


def matrix_form(tensors: list[Tensor], encoding: RecurrenceEncoding) -> Tensor:
    """With whole matrices in the tensors' own precision; in float64 it is the truth."""
    if tensors[0].dtype == torch.float64:
        return rsa_matrix_form(*tensors, encoding, causal=True)
    query, key, value = tensors
    rem, gate, positions = encoding.rem_heads, encoding.gate().to(query.dtype), query.shape[2]
    future = torch.ones(positions, positions, dtype=torch.bool, device=query.device).triu(1)
    scores = (query @ key.transpose(-1, -2) / WIDTH**0.5).masked_fill(future, -torch.inf)
    plain = torch.softmax(scores, dim=-1) @ value
    recurrent = rem_matrix(encoding, positions).to(query.dtype) @ value[:, :rem]
    return torch.cat([(1 - gate) * plain[:, :rem] + gate * recurrent, plain[:, rem:]], dim=1)


def new_encoding(plan: str) -> RecurrenceEncoding:
    torch.manual_seed(0)
    return RecurrenceEncoding(RSAConfig(heads=HEADS, gate_start=-1.0, **PLANS[plan])).to(DEVICE)


def new_tensors(batch: int, positions: int) -> list[Tensor]:
    torch.manual_seed(1)
    shape = (batch, HEADS, positions, WIDTH)
    return [torch.randn(shape, device=DEVICE).bfloat16().requires_grad_() for _ in range(3)]


def results_of(way: Way, tensors: list[Tensor], encoding: RecurrenceEncoding) -> dict[str, Tensor]:
    """The output and every gradient, in float64."""
    output = way(tensors, encoding)
    torch.manual_seed(2)
    weights = torch.randn(output.shape, device=DEVICE).to(output.dtype)
    named = dict(zip(("query", "key", "value"), tensors, strict=True)) | dict(encoding.named_parameters())
    named = {name: leaf for name, leaf in named.items() if leaf.numel() > 0}
    gradients = torch.autograd.grad(output, list(named.values()), weights)
    found = {"output": output} | {f"d_{name}": gradient for name, gradient in zip(named, gradients, strict=True)}
    return {name: tensor.detach().double() for name, tensor in found.items()}


def differences(ours: dict[str, Tensor], true: dict[str, Tensor]) -> dict[str, float]:
    """‖ours − true‖ / ‖true‖ of each result."""
    return {name: ((ours[name] - true[name]).norm() / true[name].norm()).item() for name in true}


def check(name: str, found: dict[str, float]) -> dict[str, float]:
    """Refuse more than 16 bits explain; a parameter's gradient is one small sum of large terms of both signs."""
    print(f"  {name}: " + ", ".join(f"{key} {value:.1e}" for key, value in found.items()), flush=True)
    for key, value in found.items():
        limit = 2e-2 if key in ("output", "d_query", "d_key", "d_value") else 8e-2
        assert value < limit, f"{name}: {key} differs by {value}, more than {limit}"
    return found


def check_correct() -> dict[str, Any]:
    checks: dict[str, Any] = {}
    for plan in PLANS:
        encoding, exact = new_encoding(plan), new_encoding(plan).double()
        for batch, positions in ((2, 37), (1, 700)):
            tensors = new_tensors(batch, positions)
            doubles = [tensor.detach().double().requires_grad_() for tensor in tensors]
            found = differences(results_of(with_kernel, tensors, encoding), results_of(matrix_form, doubles, exact))
            name = f"{plan}, {batch} × {positions}, matrix form in float64"
            checks[name] = check(name, found)
        for batch, positions in SIZES if plan in MEASURED else ():
            tensors = new_tensors(batch, positions)
            plain = results_of(with_plain_scan, tensors, encoding)
            found = differences(results_of(with_kernel, tensors, encoding), plain)
            name = f"{plan}, {batch} × {positions}, plain scan"
            checks[name] = check(name, found)
    return checks


def stepper(way: Way, batch: int, positions: int, encoding: RecurrenceEncoding) -> Callable[[], None]:
    """Forward and backward once; gradients land where the last ones did."""
    tensors = new_tensors(batch, positions)
    leaves = [*tensors, *(parameter for parameter in encoding.parameters() if parameter.numel() > 0)]
    weights = torch.randn_like(tensors[0]).detach()

    def step() -> None:
        for leaf in leaves:
            leaf.grad = None
        way(tensors, encoding).backward(weights)

    return step


def peak_bytes(step: Callable[[], None]) -> int:
    """The most memory that one step needs beyond what is there before it."""
    step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def time_in_turns(steps: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """The median milliseconds of each; each round times a few calls of every one in turn."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    calls = {}
    for name, step in steps.items():
        for _ in range(3):
            step()
        torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        calls[name] = max(1, min(20, int(0.004 / (time.perf_counter() - start))))
    for _ in range(rounds):
        for name, step in steps.items():
            times[name].append(1000 * device_seconds(step, calls[name]))
    return {name: statistics.median(values) for name, values in times.items()}


def measure(plan: str, batch: int, positions: int, rounds: int) -> dict[str, Any]:
    encoding = new_encoding(plan)
    ways: dict[str, Way] = {"fused attention": fused_alone, "kernel": with_kernel, "plain scan": with_plain_scan}
    if (plan, batch, positions) == (MEASURED[0], *SIZES[0]):
        # Once: its loop over chunks is unrolled, and compiles longer than everything else takes.
        ways["plain scan, compiled"] = torch.compile(with_plain_scan)
    if batch * positions**2 <= MATRIX_LIMIT:
        ways["matrix form"] = matrix_form
    steps, memory, failed = {}, {}, {}
    for name, way in ways.items():
        try:
            step = stepper(way, batch, positions, encoding)
            memory[name] = peak_bytes(step)
            steps[name] = step
            if name in ("fused attention", "kernel"):
                steps[f"{name}, graph"] = as_graph(step)
                torch.backends.cuda.enable_cudnn_sdp(False)
                steps[f"{name}, graph, as in training"] = as_graph(step)
        except Exception as error:  # one way that fails must not hide the others
            failed[name] = in_short(error)
            print(f"  {name} failed: {failed[name]}", flush=True)
        finally:
            torch.backends.cuda.enable_cudnn_sdp(True)
    times = time_in_turns(steps, rounds)
    for suffix in ("", ", graph", ", graph, as in training"):
        ours, alone = times.get(f"kernel{suffix}"), times.get(f"fused attention{suffix}")
        if ours and alone:
            text = (
                f"{plan}, {batch} × {positions}{suffix}: fused {alone:.3f} ms, ours {ours:.3f} ms, {ours / alone:.3f}×"
            )
            print(text, flush=True)
    slow = {name: value for name, value in times.items() if name.startswith(("plain", "matrix"))}
    print("  " + ", ".join(f"{name} {value:.2f} ms" for name, value in slow.items()))
    print("  peak MiB: " + ", ".join(f"{name} {value / 2**20:.0f}" for name, value in memory.items()), flush=True)
    return {"plan": plan, "batch": batch, "positions": positions, "ms": times, "peak_bytes": memory, "failed": failed}


def profile(plan: str, batch: int, positions: int) -> dict[str, float]:
    """Microseconds that the GPU spends in each kernel of one forward and backward."""
    step = stepper(with_kernel, batch, positions, new_encoding(plan))
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(10):
            step()
        torch.cuda.synchronize()
    averages = sorted(profiler.key_averages(), key=lambda event: -event.device_time_total)
    found = {event.key[:60]: event.device_time_total / 10 for event in averages if event.device_time_total > 0}
    print(f"{plan}, {batch} × {positions}: " + ", ".join(f"{key} {value:.1f} µs" for key, value in found.items()))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    if not (torch.cuda.is_available() and TRITON_INSTALLED):
        parser.error("needs a CUDA device and Triton: there is nothing to measure without them.")
    started = time.time()
    print("Relative differences:", flush=True)
    checks = check_correct()
    print(f"Forward + backward ({time.time() - started:.0f} s so far):", flush=True)
    rows = [measure(plan, *size, arguments.rounds) for plan in MEASURED for size in SIZES]
    profiles = {f"{plan}, {size[0]} × {size[1]}": profile(plan, *size) for plan in MEASURED for size in SIZES[:2]}
    settings = {"heads": HEADS, "width": WIDTH, "plans": PLANS, "dtype": "bfloat16", "rounds": arguments.rounds}
    measured = {"checks": checks, "measured": rows, "kernel_us": profiles}
    origin = provenance(settings, seed=0, started=started)
    save_result(arguments.out, {"kind": "rsa-kernels", "result": measured, "provenance": origin})
    print(f"{time.time() - started:.0f} s; saved to {arguments.out}")


if __name__ == "__main__":
    main()
