"""Try RSA's kernels lane by lane on a GPU: are they right, and how quick is each setting?

    python tools/tune_rsa.py

From the root of the repository. About a minute. Prints tables; a setting that does not compile is named.
"""

import functools
import os
import subprocess
import sys
import time
from contextlib import contextmanager

import bench_rsa as bench
import torch
from timing import in_a_graph, in_short
from torch.nn import functional

from recurrify.attention.kernels import rsa
from recurrify.attention.kernels import rsa_lane_launch as lanes
from recurrify.attention.kernels.rsa_lane_launch import LaneTile as Tile
from recurrify.speed.capturing import as_graph

BEGAN = time.time()
WARMERS = int(os.environ.get("WARMERS", "10"))
SIZES = ((16, 512), (8, 2048), (2, 8192), (1, 32768))
CHECKED = ((16, 512), (8, 2048), (3, 700))
PLANS = ("4 of 8", "8 of 8")
# Columns, warps, stages, registers.
FORWARD = {
    64: [
        Tile(64, 4, 2),
        Tile(64, 4, 1),
        Tile(64, 4, 3),
        Tile(64, 8, 2),
        Tile(64, 2, 2),
        Tile(32, 4, 2),
        Tile(32, 2, 2),
    ],
    32: [Tile(64, 4, 2), Tile(64, 4, 3), Tile(64, 8, 2), Tile(64, 2, 2), Tile(32, 4, 2), Tile(32, 2, 2)],
    16: [Tile(64, 4, 2), Tile(64, 4, 3)],
}
BACKWARD = {
    64: [
        Tile(64, 4, 2), Tile(64, 4, 1), Tile(64, 4, 3), Tile(64, 8, 2), Tile(64, 8, 2, 128), Tile(64, 4, 2, 168),
        Tile(32, 4, 2), Tile(32, 4, 2, 168), Tile(32, 4, 1, 168), Tile(32, 2, 2),
    ],
    32: [
        Tile(64, 4, 2), Tile(64, 4, 2, 128), Tile(64, 4, 3, 128), Tile(64, 8, 2), Tile(64, 2, 2), Tile(32, 4, 2),
        Tile(32, 4, 2, 128), Tile(32, 2, 2),
    ],
    16: [Tile(64, 4, 2), Tile(64, 4, 2, 128)],
}  # fmt: skip
JOBS = [
    (length, kind, tile)
    for kind, choices in (("forward", FORWARD), ("backward", BACKWARD))
    for length, tiles in choices.items()
    for tile in tiles
]


def say(*words):
    print(*words, flush=True)


@contextmanager
def forced(way):
    usual = lanes.FEWEST_LANES, lanes.MOST_BLOCKS
    lanes.FEWEST_LANES, lanes.MOST_BLOCKS = (0, 10**9) if way == "lanes" else (10**9, 0)
    try:
        yield
    finally:
        lanes.FEWEST_LANES, lanes.MOST_BLOCKS = usual


@contextmanager
def tiles(length=None, **changed):
    usual = lanes.USUAL, lanes.SHORT
    lanes.USUAL, lanes.SHORT = (
        one._replace(lengths=one.lengths if length is None else (length,), **changed) for one in usual
    )
    try:
        yield
    finally:
        lanes.USUAL, lanes.SHORT = usual


# ---- right? ------------------------------------------------------------------------------------------------


def results(way, tensors, encoding):
    with forced(way):
        return bench.results_of(bench.with_kernel, tensors, encoding)


def check(plan, batch, positions):
    encoding, exact = bench.new_encoding(plan), bench.new_encoding(plan).double()
    tensors = bench.new_tensors(batch, positions)
    ours, again, before = (results(way, tensors, encoding) for way in ("lanes", "lanes", "blocks"))
    same = all(torch.equal(ours[name], again[name]) for name in ours if name not in ("d_query", "d_key", "d_value"))
    doubles = [tensor.detach().double().requires_grad_() for tensor in tensors]
    true = bench.results_of(bench.matrix_form, doubles, exact)
    off, off_before = bench.differences(ours, true), bench.differences(before, true)
    apart = bench.differences(ours, before)
    say(f"{plan}, {batch} × {positions}: off by lanes / by blocks / apart; twice the same: {same}")
    for name in off:
        look = "   <-- LOOK" if not off[name] <= 1.3 * off_before[name] + 2e-4 else ""
        say(f"    {name:10s} {off[name]:.2e} {off_before[name]:.2e} {apart[name]:.2e}{look}")
    del true, doubles
    torch.cuda.empty_cache()


# ---- quick? ------------------------------------------------------------------------------------------------


def given_for(plan, batch, positions):
    """The kernels' arguments, with attended as attention leaves it, and a gradient of the output."""
    encoding = bench.new_encoding(plan)
    query, key, value = (tensor.detach() for tensor in bench.new_tensors(batch, positions))
    attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    parts = [part.detach() for part in (encoding.eta, encoding.nu, encoding.theta, encoding.mu)]
    fixed = (encoding.select, encoding.sine, encoding.dilation, None, encoding.dilations, True, 0)
    return (value, attended, *parts, *fixed), torch.randn_like(attended)


def graph_us(step):
    return 1000 * in_a_graph(step, calls=10, rounds=9)


def worst(ours, true):
    """The largest difference of norms; parameters' gradients are small sums of large terms."""
    pairs = [(a.double(), b.double()) for a, b in zip(ours, true, strict=True) if a.numel() > 0]
    return max(((a - b).norm() / b.norm().clamp(min=1e-9)).item() for a, b in pairs)


def tune(plan, batch, positions):
    """Each kernel by itself; the best forward and backward of each length are returned, quickest pair first."""
    given, d_output = given_for(plan, batch, positions)
    with forced("blocks"):
        kept = rsa._launch_forward(*given)
        wanted = rsa._launch_backward(d_output, None, *kept[2:], *given)
        once = (
            graph_us(lambda: rsa._launch_forward(*given)),
            graph_us(lambda: rsa._launch_backward(d_output, None, *kept[2:], *given)),
        )
    say(f"{plan}, {batch} × {positions}: by blocks forward {once[0]:.1f}, backward {once[1]:.1f} µs")
    best = {}
    for length in FORWARD:
        line = []
        for kind, choice in (("forward", FORWARD[length]), ("backward", BACKWARD[length])):
            for tile in choice:
                try:
                    with forced("lanes"), tiles(length, **{kind: tile}):
                        ahead = rsa._launch_forward(*given)
                        if kind == "forward":
                            off, step = worst(ahead[:2], kept[:2]), lambda: rsa._launch_forward(*given)
                        else:
                            step = functools.partial(rsa._launch_backward, d_output, None, *ahead[2:], *given)
                            off = worst(step(), wanted)
                        spent = graph_us(step)
                except Exception as error:
                    line.append(f"{kind[0]}{tuple(tile)} fails: {in_short(error)}")
                    continue
                wrong = f" WRONG by {off:.1e}" if not off < 8e-2 else ""
                line.append(f"{kind[0]}{str(tuple(tile)).replace(', None', '').replace(' ', '')} {spent:.1f}{wrong}")
                if not wrong and spent < best.get((length, kind), (1e9,))[0]:
                    best[length, kind] = spent, tile
        say(f"    steps {length}: " + "  ".join(line))
    pairs = [
        (ahead[0] + back[0], length, ahead[1], back[1])
        for length in FORWARD
        for ahead, back in [(best.get((length, "forward")), best.get((length, "backward")))]
        if ahead and back
    ]
    return sorted(pairs, key=lambda pair: pair[0])


def whole(plan, batch, positions, pairs):
    """Forward + backward of attention with and without recurrence, as CUDA graphs that take turns."""
    encoding = bench.new_encoding(plan)
    steps = {}

    def add(name, way):
        try:
            steps[name] = as_graph(bench.stepper(way, batch, positions, encoding))
        except Exception as error:
            say(f"    {name} fails: {in_short(error)}")

    for cudnn in (True, False):
        torch.backends.cuda.enable_cudnn_sdp(cudnn)
        note = "" if cudnn else ", no cuDNN"
        add(f"fused{note}", bench.fused_alone)
        with forced("blocks"):
            add(f"blocks{note}", bench.with_kernel)
        with forced("lanes"):
            add(f"lanes{note}", bench.with_kernel)
            for _, length, forward, backward in pairs[:1]:
                with tiles(length, forward=forward, backward=backward):
                    add(f"lanes, best{note}", bench.with_kernel)
    torch.backends.cuda.enable_cudnn_sdp(True)
    times = bench.time_in_turns(steps, 11)
    line = []
    for name, value in times.items():
        alone = times.get("fused, no cuDNN" if name.endswith("no cuDNN") else "fused")
        line.append(f"{name} {1000 * value:.1f}" + (f" ({value / alone:.3f}×)" if alone else ""))
    say(f"{plan}, {batch} × {positions}, µs: " + "; ".join(line))


def kernels(plan, batch, positions, pairs):
    for name, chosen in (("default", None), ("best", pairs[0] if pairs else None)):
        if name == "best" and chosen is None:
            continue
        try:
            with forced("lanes"):
                if chosen is None:
                    bench.profile(plan, batch, positions)
                else:
                    _, length, forward, backward = chosen
                    say(f"  best: {length} steps, forward {tuple(forward)}, backward {tuple(backward)}")
                    with tiles(length, forward=forward, backward=backward):
                        bench.profile(plan, batch, positions)
        except Exception as error:
            say(f"  profile fails: {in_short(error)}")


def warm(number):
    """Compile some of the settings, for Triton's cache on disk."""
    given, d_output = given_for("4 of 8", 2, 70)
    for length, kind, tile in JOBS[number::WARMERS]:
        try:
            with forced("lanes"), tiles(length, **{kind: tile}):
                if kind == "forward":
                    rsa._launch_forward(*given)
                else:
                    whole = rsa.Given(*given)
                    _, _, sums, table = rsa._new_results(whole, rsa.lane_blocks(whole))
                    rsa._launch_backward(d_output, None, sums.zero_(), table.zero_(), *given)
                torch.cuda.synchronize()
        except Exception:
            pass


def main():
    warmers = [subprocess.Popen([sys.executable, __file__, "--warm", str(n)]) for n in range(WARMERS)]
    say(torch.__version__, torch.cuda.get_device_name())
    for plan in PLANS:
        for size in CHECKED:
            try:
                check(plan, *size)
            except Exception as error:
                say(f"  {plan}, {size}: FAILS: {in_short(error)}")
    for process in warmers:
        process.wait()
    say(f"after {time.time() - BEGAN:.0f} s: each kernel by itself, µs (columns, warps, stages, registers)")
    found = {}
    for size in SIZES:
        try:
            found[size] = tune("4 of 8", *size)
        except Exception as error:
            say(f"  {size} fails: {in_short(error)}")
    say(f"after {time.time() - BEGAN:.0f} s: attention forward + backward")
    for plan in PLANS:
        for size in SIZES:
            try:
                whole(plan, *size, found.get(size, []))
            except Exception as error:
                say(f"  {plan}, {size} fails: {in_short(error)}")
    say(f"after {time.time() - BEGAN:.0f} s: kernels")
    for size in SIZES[:2]:
        kernels("4 of 8", *size, found.get(size, []))
    say(f"after {time.time() - BEGAN:.0f} s: done")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--warm"]:
        warm(int(sys.argv[2]))
    else:
        main()
