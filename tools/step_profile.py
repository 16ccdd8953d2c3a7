"""Where the time of one captured training step goes: its kernels on the GPU, by kind.

    python tools/step_profile.py --size smollm2 --memory plain --mode graphs-layers --out profile.json

`--smoke` runs one small eager step on a CPU instead, to see that everything works.
"""

import argparse
import time
from collections import Counter
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from recurrify.results import provenance, save_result
from recurrify_papers.bench.models import Recurrent, random_tokens
from recurrify_papers.bench.sizes import SIZES

KINDS = {
    "attention": ("attn", "attention", "flash", "fmha", "sdpa"),
    "products": ("gemm", "nvjet", "cutlass", "cublas", "addmm"),
    "optimizer": ("multi_tensor", "adam"),
    "compiled": ("triton_",),
    "copies": ("memcpy", "memset", "copy"),
}
"""Parts of kernel names; the first kind that fits counts."""


def kind_of(name: str) -> str:
    return next((kind for kind, parts in KINDS.items() if any(part in name.lower() for part in parts)), "others")


def step_kernels(size: str, memory: str, mode: str, batch: int, device: str) -> list[dict[str, Any]]:
    """Name, kind, calls and milliseconds of each kernel of one step, the longest first."""
    shape = SIZES[size]
    stepper = Recurrent(shape, memory, torch.device(device))
    ids = random_tokens(shape, batch, shape.windows * shape.window, device)
    stepper.prepare(mode, False, batch)
    for _ in range(stepper.passes + 1):
        stepper.step(ids, batch)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])]
    with profile(activities=activities) as found:
        stepper.step(ids, batch)
        if device == "cuda":
            torch.cuda.synchronize()
    rows = []
    for event in found.key_averages():
        if device == "cuda" and event.device_type != DeviceType.CUDA:
            continue  # what launches kernels, whose time is the kernels'
        spent = event.self_device_time_total if device == "cuda" else event.self_cpu_time_total
        rows.append({"name": event.key, "kind": kind_of(event.key), "calls": event.count, "ms": spent / 1000})
    return sorted(rows, key=lambda row: -row["ms"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="smollm2", choices=SIZES)
    parser.add_argument("--memory", default="plain", help="as `recurrify bench --mechanisms` names them")
    parser.add_argument("--mode", default="graphs-layers")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--shown", type=int, default=25, help="kernels to print")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--out", help="write all kernels as JSON")
    given = parser.parse_args()
    started = time.time()
    if given.smoke:
        given.size, given.mode, given.batch = "tiny", "eager", 2
    rows = step_kernels(given.size, given.memory, given.mode, given.batch, "cpu" if given.smoke else "cuda")
    kinds: Counter[str] = Counter()
    for row in rows:
        kinds[row["kind"]] += row["ms"]
    print(f"{sum(kinds.values()):.1f} ms: " + ", ".join(f"{kind} {ms:.1f}" for kind, ms in kinds.most_common()))
    for row in rows[: given.shown]:
        print(f"{row['ms']:9.2f} ms {row['calls']:6}  {row['kind']:10} {row['name'][:90]}")
    if given.out:
        about = provenance(vars(given), started=started)
        save_result(given.out, {"kind": "step-profile", "kinds": kinds, "kernels": rows, "provenance": about})


if __name__ == "__main__":
    main()
