"""Try the kernels of training steps on a GPU: are they right, and how quick is each setting?

    python tools/tune_head.py

From the root of the repository. Less than a minute. Prints tables; a setting that does not compile is named.
"""

import itertools
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial

import torch
from timing import in_a_graph, in_short
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from recurrify.speed import adding, cross_entropy, head_loss

BEGAN = time.time()
DEVICE, HALF = "cuda", torch.bfloat16
ROWS, WIDTH, VOCABULARY, HIDDEN = (4800, 9600), 50304, 50257, 768
BANDWIDTH = 4.8e12
"""Bytes a second, read and written, of the GPU that the settings are for."""
LARGE = 2**31
"""More numbers than 32 bits can count."""
# Block, warps, how long caches shall hold the first read.
OF_LOSSES = [
    *itertools.product([16384], [8, 16, 32], ["", "evict_last"]),
    *itertools.product([8192], [8, 16, 32], ["", "evict_last"]),
    *itertools.product([32768], [16, 32], ["", "evict_last"]),
    *itertools.product([4096], [4, 8, 16], [""]),
]
# Block, warps.
OF_SUMS = [(512, 4), (1024, 4), (2048, 4), (4096, 4), (1024, 8), (2048, 8), (4096, 8), (8192, 8)]
WEIGHTS = ((768, 768), (768, 3072), (50257, 768))
COPIES = 12
"""Of each weight, as in a model: one alone would stay in the cache."""
WARMERS = 8
HEAD, WINDOW, BATCHES = 64, 300, (16, 32, 64)


def say(*words):
    print(*words, flush=True)


@contextmanager
def losses_by(setting):
    usual = cross_entropy.BLOCK, cross_entropy.WARPS, cross_entropy.FIRST_READ
    cross_entropy.BLOCK, cross_entropy.WARPS, cross_entropy.FIRST_READ = setting
    try:
        yield
    finally:
        cross_entropy.BLOCK, cross_entropy.WARPS, cross_entropy.FIRST_READ = usual


@contextmanager
def sums_by(setting):
    usual = adding.BLOCK, adding.WARPS
    adding.BLOCK, adding.WARPS = setting
    try:
        yield
    finally:
        adding.BLOCK, adding.WARPS = usual


def logits_and_targets(rows):
    torch.manual_seed(0)
    logits = torch.randn(rows, WIDTH, device=DEVICE, dtype=HALF) * 3
    targets = torch.randint(VOCABULARY, (rows,), device=DEVICE)
    targets[::97] = head_loss.IGNORE
    return logits, targets


def by_kernel(logits, targets):
    return cross_entropy.losses_and_errors(logits, targets, VOCABULARY)


def plain(logits, targets):
    return head_loss.plain_losses_and_errors(logits, targets, VOCABULARY)


compiled_plain = torch.compile(plain, dynamic=False)


def head_inputs(rows):
    hidden, weight = (torch.randn(length, HIDDEN, device=DEVICE, dtype=HALF) * 0.1 for length in (rows, WIDTH))
    return hidden, weight, logits_and_targets(rows)[1], torch.empty(rows, WIDTH, device=DEVICE, dtype=HALF)


def off(found, wanted):
    """By how much losses and errors are off, in parts of all of them together."""
    return [
        ((one.double() - other.double()).norm() / other.double().norm()).item()
        for one, other in zip(found, wanted, strict=True)
    ]


# ---- right? ------------------------------------------------------------------------------------------------


def check_losses():
    logits, targets = logits_and_targets(256)
    true = plain(logits.double(), targets)
    ours, theirs = off(by_kernel(logits, targets), true), off(plain(logits, targets), true)
    for name, mine, other in zip(("losses", "errors"), ours, theirs, strict=True):
        look = "" if mine <= 1.2 * other + 1e-6 else "   <-- LOOK"
        say(f"  {name}: kernel off by {mine:.2e}, plain by {other:.2e}{look}")


def check_many_logits():
    """The last rows of so many that 32 bits cannot count their logits."""
    rows = LARGE // WIDTH + 300
    logits = torch.empty(rows, WIDTH, device=DEVICE, dtype=HALF)
    targets = torch.full((rows,), head_loss.IGNORE, device=DEVICE)
    logits[-256:], targets[-256:] = logits_and_targets(256)
    losses, errors = by_kernel(logits, targets)
    worst = max(off((losses[-256:], errors[-256:]), plain(logits[-256:], targets[-256:])))
    clean = not losses[:-256].any() and not any(part.any() for part in errors[:-256].split(4096))
    say(f"  {rows} rows: apart by {worst:.2e}, others 0: {clean}{'' if worst < 1e-2 and clean else '   <-- LOOK'}")


def check_sums():
    for size in (1, 2047, 768 * 3072, LARGE + 12345):
        total = torch.ones(size, device=DEVICE)
        part = torch.zeros(size, device=DEVICE, dtype=HALF)
        part[-9000:] = torch.randn(min(size, 9000), device=DEVICE)
        adding.add_into(total, part)
        right = torch.equal(total[-9000:], 1 + part[-9000:].float()) and bool((total[:-9000] == 1).all())
        say(f"  {size} numbers added: {'right' if right else 'WRONG   <-- LOOK'}")
        del total, part


# ---- quick? ------------------------------------------------------------------------------------------------


def row_of_times(name, work, sizes):
    """A line of a table: microseconds at each size."""
    cells = []
    for given in sizes:
        try:
            cells.append(f"{1000 * in_a_graph(partial(work, *given), rounds=7):9.1f}")
        except Exception as error:
            cells.append(f" fails: {in_short(error)}")
            break
    say(f"  {name:32s}" + "".join(cells))


def time_losses():
    sizes = [logits_and_targets(rows) for rows in ROWS]
    bound = [2 * logits.numel() * logits.element_size() / BANDWIDTH * 1e6 for logits, _ in sizes]
    say(f"\nlosses and errors of {WIDTH} logits, µs, for rows: {ROWS}")
    say(f"  {'one read and one write':32s}" + "".join(f"{one:9.1f}" for one in bound))
    row_of_times("torch, compiled", compiled_plain, sizes)
    wanted = plain(*(part[:512] for part in sizes[0]))
    for setting in OF_LOSSES:
        with losses_by(setting):
            name = f"kernel, {setting}"
            try:
                worst = max(off(by_kernel(*(part[:512] for part in sizes[0])), wanted))
            except Exception as error:
                say(f"  {name:32s} fails: {in_short(error)}")
                continue
            row_of_times(name if worst < 1e-2 else f"{name} WRONG", by_kernel, sizes)


def time_heads():
    """With the product that makes the logits, as the head has it."""
    sizes = [head_inputs(rows) for rows in ROWS]
    say(f"\nwith the product, µs, for rows: {ROWS}")
    row_of_times("product alone", lambda hidden, weight, *_: hidden @ weight.T, sizes)
    row_of_times("product, kernel", lambda hidden, weight, targets, _: by_kernel(hidden @ weight.T, targets), sizes)
    row_of_times("product, kernel in place", in_place, sizes)


def in_place(hidden, weight, targets, logits):
    torch.mm(hidden, weight.T, out=logits)
    return cross_entropy.turn_into_errors(logits, targets, VOCABULARY)


def attend(kernels, qkv, gradient):
    """Causal attention as GPT-2 has it, forward and backward."""
    qkv = qkv.detach().requires_grad_()  # anew: a leaf remembers the stream of its first pass
    rows, length, _ = qkv.shape
    heads = (one.view(rows, length, -1, HEAD).transpose(1, 2) for one in qkv.split(HIDDEN, dim=-1))
    with torch.enable_grad(), sdpa_kernel([kernels]):
        output = scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2)
        return output, torch.autograd.grad(output, qkv, gradient)[0]


def time_attention():
    sizes = [
        [torch.randn(rows, WINDOW, width, device=DEVICE, dtype=HALF) for width in (3 * HIDDEN, HIDDEN)]
        for rows in BATCHES
    ]
    say(f"\ncausal attention of windows of {WINDOW}, µs, for batches: {BATCHES}")
    found = {}
    for kernels in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
        found[kernels] = attend(kernels, *sizes[0])
        row_of_times(kernels.name.lower(), partial(attend, kernels), sizes)
    say(f"  apart by {max(off(*found.values())):.1e}")


def add_all(add, totals, parts):
    for total, part in zip(totals, parts, strict=True):
        add(total, part)


def time_sums():
    sizes = [
        ([torch.zeros(shape, device=DEVICE) for _ in range(copies)],
         [torch.randn(shape, device=DEVICE).to(HALF) for _ in range(copies)])
        for shape in WEIGHTS
        for copies in [COPIES if shape[0] * shape[1] < 2**24 else 2]
    ]  # fmt: skip
    say(f"\na {HALF} gradient added to a float32 sum, µs, for weights: {WEIGHTS}")

    def line(name, add):
        cells = [
            f"{1000 * in_a_graph(partial(add_all, add, *given), rounds=7) / len(given[0]):9.2f}" for given in sizes
        ]
        say(f"  {name:32s}" + "".join(cells))

    bound = [10 * shape[0] * shape[1] / BANDWIDTH * 1e6 for shape in WEIGHTS]
    say(f"  {'two reads and one write':32s}" + "".join(f"{one:9.2f}" for one in bound))
    line("torch", lambda total, part: total.add_(part))
    for setting in OF_SUMS:
        with sums_by(setting):
            try:
                line(f"kernel, {setting}", adding.add_into)
            except Exception as error:
                say(f"  kernel, {setting} fails: {in_short(error)}")


def warm(number):
    """Compile some of what will be timed, for the compilers' caches on disk."""
    logits, targets = logits_and_targets(2)
    total, part = torch.zeros(5000, device=DEVICE), torch.zeros(5000, device=DEVICE, dtype=HALF)

    def kernel(by, setting, work):
        with by(setting):
            work()

    jobs = [lambda rows=rows: compiled_plain(*logits_and_targets(rows)) for rows in ROWS]
    jobs += [partial(kernel, losses_by, setting, partial(by_kernel, logits, targets)) for setting in OF_LOSSES]
    jobs += [partial(kernel, sums_by, setting, partial(adding.add_into, total, part)) for setting in OF_SUMS]
    for job in jobs[number::WARMERS]:
        try:
            job()
        except Exception as error:
            say(f"  ahead of time: {in_short(error)}")


def each(*parts):
    """One that fails leaves the others in peace."""
    for part in parts:
        try:
            part()
        except Exception as error:
            say(f"  {part.__name__} fails: {in_short(error)}")
        torch.cuda.empty_cache()


def main():
    warmers = [subprocess.Popen([sys.executable, __file__, "--warm", str(n)]) for n in range(WARMERS)]
    say(torch.__version__, torch.cuda.get_device_name())
    each(check_losses, check_many_logits, check_sums)
    for process in warmers:
        process.wait()
    say(f"after {time.time() - BEGAN:.0f} s: time")
    each(time_losses, time_sums, time_heads, time_attention)
    say(f"\nafter {time.time() - BEGAN:.0f} s: done")


if __name__ == "__main__":
    with torch.no_grad():
        if sys.argv[1:2] == ["--warm"]:
            warm(int(sys.argv[2]))
        else:
            main()
