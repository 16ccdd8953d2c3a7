"""Try attention by content and distance on a GPU: is it right, and how quick is each setting?

    python tools/tune_relative.py

From the root of the repository. About a minute. Prints tables; a setting that does not compile is named.
"""

import math
import subprocess
import sys
import time

import torch
from timing import in_a_graph, in_short
from torch.nn import functional

from recurrify_papers.kernels import relative_attention as fused
from recurrify_papers.kernels.relative_attention import Tile
from recurrify_papers.models.transformer_xl import align_distances

BEGAN = time.time()
BATCH, HEADS, QUERIES, KEYS, WIDTH = 22, 8, 512, 1024, 64
DEVICE = "cuda"
NAMES = ("query", "key", "value", "position keys", "u", "v")
FORWARD = [
    Tile(128, 64, 8, 3, 128),
    Tile(128, 64, 8, 2, 128),
    Tile(128, 64, 8, 3),
    Tile(64, 64, 4, 3, 128),
    Tile(64, 64, 4, 2, 128),
    Tile(64, 32, 4, 3, 128),
    Tile(128, 32, 8, 3, 128),
    Tile(128, 64, 4, 2),
]
OF_KEYS = [
    Tile(64, 64, 4, 2),
    Tile(64, 64, 4, 1),
    Tile(64, 64, 4, 2, 168),
    Tile(32, 64, 4, 2, 168),
    Tile(32, 64, 4, 3, 168),
    Tile(64, 64, 8, 2, 128),
    Tile(32, 128, 8, 2, 128),
    Tile(64, 128, 8, 2),
]
OF_QUERIES = [
    Tile(128, 64, 8, 3, 128),
    Tile(128, 64, 8, 3),
    Tile(64, 64, 4, 3, 128),
    Tile(64, 64, 4, 2, 96),
    Tile(64, 32, 4, 3, 96),
    Tile(128, 32, 8, 3, 128),
]
KINDS = {"forward": FORWARD, "keys": OF_KEYS, "queries": OF_QUERIES}
WARMERS = 8


def set_tile(kind, tile):
    fused.USUAL = fused.USUAL._replace(**{kind: tile})


def leaves(batch, dtype):
    """As in the model: heads lie side by side, u and v are float32 parameters."""
    torch.manual_seed(0)
    rows = [torch.randn(batch, n, HEADS, WIDTH, device=DEVICE) for n in (QUERIES, KEYS, KEYS)]
    position_key = torch.randn(KEYS, HEADS, WIDTH, device=DEVICE)
    biases = [torch.randn(HEADS, WIDTH, device=DEVICE) * 0.1 for _ in range(2)]
    return [part.to(dtype).requires_grad_() for part in (*rows, position_key)] + [
        part.to(torch.promote_types(dtype, torch.float32)).requires_grad_() for part in biases
    ]


def by_distance(query, position_key, v):
    return (query.transpose(1, 2) + v[:, None]) @ position_key.transpose(0, 1).transpose(-1, -2)


def with_kernel(query, key, value, position_key, u, v, span):
    scores = by_distance(query, position_key, v)
    content = query.transpose(1, 2) + u[:, None]
    return fused.relative_attention(content, scores, key.transpose(1, 2), value.transpose(1, 2), span=span)


def present(query, key, value, position_key, u, v, span):
    """As in transformer_xl.py without the kernel."""
    queries, keys = query.shape[1], key.shape[1]
    distance = torch.arange(keys - queries, keys, device=query.device)[:, None] - torch.arange(
        keys, device=query.device
    )
    hidden = (distance < 0) | (distance >= (keys if span is None else span))
    mask = (align_distances(by_distance(query, position_key, v)) / math.sqrt(WIDTH)).masked_fill(hidden, -math.inf)
    content = query.transpose(1, 2) + u[:, None]
    return functional.scaled_dot_product_attention(
        content, key.transpose(1, 2), value.transpose(1, 2), attn_mask=mask.to(content.dtype)
    )


def exact(query, key, value, position_key, u, v, span):
    queries, keys = query.shape[1], key.shape[1]
    distance = torch.arange(keys - queries, keys, device=query.device)[:, None] - torch.arange(
        keys, device=query.device
    )
    hidden = (distance < 0) | (distance >= (keys if span is None else span))
    scores = by_distance(query, position_key, v)
    by_key = scores.gather(3, (keys - 1 - distance).clamp(max=keys - 1).expand(*scores.shape))
    both = (query.transpose(1, 2) + u[:, None]) @ key.transpose(1, 2).transpose(-1, -2) + by_key
    return (both / math.sqrt(WIDTH)).masked_fill(hidden, -math.inf).softmax(-1) @ value.transpose(1, 2)


def results(function, parts, span, half):
    with torch.autocast(DEVICE, torch.bfloat16, enabled=half):
        output = function(*parts, span)
    torch.manual_seed(1)
    d_output = torch.randn(output.shape, device=DEVICE).to(torch.bfloat16).to(output.dtype)
    return [output.detach(), *torch.autograd.grad(output, parts, d_output)]


def off(ours, true):
    return ((ours.double() - true).norm() / true.norm()).item()


def check(dtype, span, half, batch):
    parts = leaves(batch, dtype)
    true = results(exact, [part.detach().double().requires_grad_() for part in parts], span, half=False)
    ours, again = (results(with_kernel, parts, span, half) for _ in range(2))
    theirs = results(present, parts, span, half)
    same = all(torch.equal(one, other) for one, other in zip(ours, again, strict=True))
    kind = f"{'bf16' if half or dtype is torch.bfloat16 else 'fp32'}, span {span}"
    print(f"\n{kind}: relative error of kernel and present path; the kernel twice the same: {same}")
    for name, *three in zip(("output", *NAMES), ours, theirs, true, strict=True):
        kernel, plain = off(three[0], three[2]), off(three[1], three[2])
        verdict = "" if kernel <= 1.5 * plain + 1e-5 else "   <-- LOOK"
        print(f"  {name:14s} {kernel:9.2e} {plain:9.2e}{verdict}")
    if DEVICE == "cuda":
        torch.cuda.empty_cache()


# ---- time --------------------------------------------------------------------------------------------------


def operands(batch):
    """What the kernels get, in bf16, and a gradient of the output."""
    rows = [torch.randn(batch, n, HEADS, WIDTH, device=DEVICE) for n in (QUERIES, KEYS, KEYS, QUERIES)]
    query, key, value, d_output = (part.to(torch.bfloat16).transpose(1, 2) for part in rows)
    scores = torch.randn(batch, HEADS, QUERIES, KEYS, device=DEVICE, dtype=torch.bfloat16) * 4
    return (query, scores, key, value, KEYS), d_output


def launch(kind, given, d_output):
    """A step with the kernel of this kind, and its results."""
    if kind == "forward":
        return lambda: fused._launch_forward(*given)
    output, log_sums = fused._launch_forward(*given)
    return lambda: fused._launch_backward(d_output, output, log_sums, *given)


def tune(kind, given, d_output):
    usual = getattr(fused.USUAL, kind)
    step = launch(kind, given, d_output)
    wanted = [part.clone() for part in step()]
    best = None
    print(
        f"\n{kind} kernel, ms of the whole {'forward' if kind == 'forward' else 'backward'} (queries, keys, warps, …)"
    )
    for tile in KINDS[kind]:
        set_tile(kind, tile)
        try:
            found = step()
            torch.cuda.synchronize()
            worst = max(off(mine, other.double()) for mine, other in zip(found, wanted, strict=True))
            del found
            spent = in_a_graph(step)
        except Exception as error:
            print(f"  {tuple(tile)!s:28s} fails: {in_short(error)}", flush=True)
            continue
        right = worst < 1e-2
        print(f"  {tuple(tile)!s:28s} {spent:7.3f}{'' if right else f'   <-- WRONG by {worst:.1e}'}", flush=True)
        if right and (best is None or spent < best[0]):
            best = (spent, tile)
    set_tile(kind, usual if best is None else best[1])


def both_ways(function, parts):
    output_gradient = torch.randn(BATCH, HEADS, QUERIES, WIDTH, device=DEVICE, dtype=torch.bfloat16)

    def step():
        with torch.autocast(DEVICE, torch.bfloat16):
            output = function(*parts, None)
        return torch.autograd.grad(output, parts, output_gradient.to(output.dtype))

    return step


def breakdown(step):
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(3):
            step()
        torch.cuda.synchronize()
    events = sorted(found.key_averages(), key=lambda event: -event.device_time_total)[:12]
    for event in events:
        print(f"    {event.device_time_total / 3e3:7.3f} ms  {event.count / 3:4.1f} ×  {event.key[:80]}")


def warm(number):
    """Compile some of the settings, for Triton's cache on disk."""
    given, d_output = operands(1)
    jobs = [(kind, tile) for kind, tiles in KINDS.items() for tile in tiles][number::WARMERS]
    for kind, tile in jobs:
        usual = fused.USUAL
        try:
            # Only this setting's kernel has to be new; the others are compiled by whoever comes first.
            step = launch(kind, given, d_output)
            set_tile(kind, tile)
            step()
        except Exception:
            pass
        fused.USUAL = usual


def main():
    warmers = [subprocess.Popen([sys.executable, __file__, "--warm", str(n)]) for n in range(WARMERS)]
    print(torch.__version__, torch.cuda.get_device_name())
    for dtype, span, half in ((torch.bfloat16, None, True), (torch.bfloat16, 300, True), (torch.float32, None, False)):
        try:
            check(dtype, span, half, batch=BATCH)
        except Exception as error:
            print(f"\n{dtype}, {span}: fails: {in_short(error)}")
    for process in warmers:
        process.wait()
    print(f"\nafter {time.time() - BEGAN:.0f} s: time")
    given, d_output = operands(BATCH)
    for kind in KINDS:
        try:
            tune(kind, given, d_output)
        except Exception as error:
            print(f"  fails: {in_short(error)}")
    del given, d_output
    print(
        f"\nbest: {fused.USUAL}\nafter {time.time() - BEGAN:.0f} s: one attention, forward and backward, compiled, ms"
    )
    for name, function in (("kernel", with_kernel), ("present", present)):
        try:
            step = both_ways(torch.compile(function, dynamic=False), leaves(BATCH, torch.bfloat16))
            print(f"  {name:8s} {in_a_graph(step):7.3f}", flush=True)
            breakdown(step)
        except Exception as error:
            print(f"  {name:8s} fails: {in_short(error)}")
        torch.cuda.empty_cache()
    print(f"after {time.time() - BEGAN:.0f} s: done")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--warm"]:
        warm(int(sys.argv[2]))
    else:
        main()
