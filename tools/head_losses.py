"""The loss of a language model's head on one GPU: ours compared with torch's, Liger's and the plain form.

    python tools/head_losses.py --out papers/results/head-losses.json

Each takes hidden states in bfloat16 and weights in float32, as training under autocast does, and gives the loss and
both gradients, compared with float32 first. Liger and torch's `linear_cross_entropy` are measured if installed. Times
are of CUDA graphs, because training captures its steps.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from timing import in_a_graph, in_short
from torch import Tensor
from torch.nn import functional

from recurrify.results import provenance, save_result
from recurrify.speed.head_loss import summed_losses

SHAPES = {"gpt2": (50257, 768), "smollm2": (49152, 576)}
ROWS = (4800, 19200)
"""16 and 64 windows of 300."""
HALF = torch.bfloat16


def ours(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    with torch.autocast("cuda", HALF):
        return summed_losses(hidden, weight, targets).sum()


def plain(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy((hidden @ weight.to(HALF).T).float(), targets, reduction="sum")


def liger(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    from liger_kernel.transformers.functional import liger_fused_linear_cross_entropy

    return liger_fused_linear_cross_entropy(hidden, weight.to(HALF), targets, reduction="sum")


def torchs(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    options = torch.nn.LinearCrossEntropyOptions()
    call = functional.linear_cross_entropy
    return call(hidden, weight.to(HALF), targets, reduction="sum", options=options)


FORMS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "ours": ours,
    "ours, compiled": torch.compile(ours, dynamic=False),
    "plain, compiled": torch.compile(plain, dynamic=False),
    "Liger": liger,
    "torch linear_cross_entropy": torchs,
}


def inputs(rows: int, vocabulary: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator("cuda").manual_seed(0)
    hidden = torch.randn(rows, width, device="cuda", generator=generator).to(HALF).requires_grad_()
    weight = (torch.randn(vocabulary, width, device="cuda", generator=generator) * width**-0.5).requires_grad_()
    return hidden, weight, torch.randint(vocabulary, (rows,), device="cuda", generator=generator)


def measure(form: Callable[..., Tensor], rows: int, vocabulary: int, width: int) -> dict[str, Any]:
    hidden, weight, targets = inputs(rows, vocabulary, width)
    exact = functional.cross_entropy(hidden.float() @ weight.T, targets, reduction="sum")
    wanted = [exact, *torch.autograd.grad(exact, (hidden, weight))]
    loss = form(hidden, weight, targets)
    found = [loss, *torch.autograd.grad(loss, (hidden, weight))]
    apart = [
        float((one.float() - two.float()).norm() / two.float().norm()) for one, two in zip(found, wanted, strict=True)
    ]
    del wanted, found, exact, loss
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    torch.autograd.grad(form(hidden, weight, targets), (hidden, weight))
    peak = torch.cuda.max_memory_allocated() - before
    milliseconds = in_a_graph(lambda: torch.autograd.grad(form(hidden, weight, targets), (hidden, weight)), rounds=7)
    return {"milliseconds": milliseconds, "peak_mib": peak / 2**20, "relative_differences": apart}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    started, measured = time.time(), []
    for shape, (vocabulary, width) in SHAPES.items():
        for rows in ROWS:
            for name, form in FORMS.items():
                row: dict[str, Any] = {"shape": shape, "rows": rows, "form": name}
                try:
                    row |= measure(form, rows, vocabulary, width)
                    print(
                        shape,
                        rows,
                        name,
                        f"{row['milliseconds']:.2f} ms, {row['peak_mib']:.0f} MiB",
                        row["relative_differences"],
                        flush=True,
                    )
                except Exception as error:  # one form that fails must not hide the others
                    row["failed"] = in_short(error)
                    print(shape, rows, name, row["failed"], flush=True)
                measured.append(row)
    settings = {"shapes": SHAPES, "rows": ROWS, "torch": torch.__version__}
    result = {"kind": "head-losses", "result": measured, "provenance": provenance(settings, seed=0, started=started)}
    save_result(arguments.out, result)


if __name__ == "__main__":
    main()
