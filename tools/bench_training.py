"""Training steps side by side on one GPU: as they are, compiled window by window, and replayed as CUDA graphs.

    python tools/bench_training.py --shape small --batch 4 --batch 12 --out results/training.json

Each way is first checked against the uncompiled one: the same losses and the same gradients, within bf16's rounding.
Then all are timed in turns, medians over several rounds, with their peak memory; plain transformers, compiled, on the
same windows stands beside them.
"""

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, logging, set_seed

from recurrify import add_recurrence
from recurrify.recurrence import recurrence_config
from recurrify.recurrence.compiled import compile_windows
from recurrify.recurrence.graphed import graph_steps
from recurrify.results import provenance, save_result

SHAPES: dict[str, dict[str, int]] = {
    "small": {"vocab_size": 16_384, "n_embd": 512, "n_layer": 8, "n_head": 8},
    "gpt2": {"vocab_size": 50_257, "n_embd": 768, "n_layer": 12, "n_head": 12},
}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {"mechanism": "none"},
    "carry": {"mechanism": "carry"},
    "tail": {"mechanism": "tail", "tail": 64, "pooled_slots": 1},
}
WAYS: dict[str, tuple[Callable[[Any], None], ...]] = {
    "eager": (),
    "compiled": (compile_windows,),
    "graphed": (graph_steps,),
}
WINDOW = 300


def base_model(shape: str) -> Any:
    set_seed(0)
    ends = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    still = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2LMHeadModel(GPT2Config(n_positions=1024, **SHAPES[shape], **still, **ends)).cuda().train()


def recurrent_model(shape: str, kind: str, way: str) -> Any:
    model = add_recurrence(base_model(shape), recurrence_config({**KINDS[kind], "window": WINDOW})).cuda().train()
    for prepare in WAYS[way]:
        prepare(model)
    return model


class Run:
    """One model and its optimiser over the same batches as the others."""

    def __init__(self, model: Any, batches: list[torch.Tensor]) -> None:
        self.model, self.batches = model, batches
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step(self, number: int) -> torch.Tensor:
        ids = self.batches[number % len(self.batches)]
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = self.loss(ids)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def loss(self, ids: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.model(ids, targets=ids.roll(-1, 1), return_state=False).loss
        return loss


class PlainTransformers(Run):
    """The base alone, all windows of a batch as rows: what one would use without this library."""

    def __init__(self, model: Any, batches: list[torch.Tensor]) -> None:
        super().__init__(model, batches)
        self.compiled = torch.compile(model, dynamic=False)

    def loss(self, ids: torch.Tensor) -> torch.Tensor:
        rows = ids.reshape(-1, WINDOW)
        loss: torch.Tensor = self.compiled(rows, labels=rows, use_cache=False).loss
        return loss


def check(shape: str, kind: str, way: str, batches: list[torch.Tensor]) -> dict[str, float]:
    """Losses over five updates, and the gradients of the fifth, against the uncompiled model."""
    found = []
    for one in ("eager", way):
        run = Run(recurrent_model(shape, kind, one), batches)
        losses = [float(run.step(number)) for number in range(5)]
        gradients = {name: p.grad.float() for name, p in run.model.named_parameters() if p.grad is not None}
        found.append((losses, gradients))
    (losses, gradients), (others, theirs) = found
    assert gradients.keys() == theirs.keys(), gradients.keys() ^ theirs.keys()
    total = sum(float(value.square().sum()) for value in gradients.values()) ** 0.5
    apart = sum(float((gradients[name] - theirs[name]).square().sum()) for name in gradients) ** 0.5
    return {
        "largest_loss_difference": max(abs(a - b) for a, b in zip(losses, others, strict=True)),
        "relative_gradient_difference": apart / total,
    }


def measure(run: Run, rounds: int, steps: int) -> dict[str, Any]:
    for number in range(6):
        run.step(number)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(rounds):
        started = time.perf_counter()
        for number in range(steps):
            run.step(number)
        torch.cuda.synchronize()
        seconds.append((time.perf_counter() - started) / steps)
    middle = statistics.median(seconds)
    tokens = run.batches[0].numel()
    return {
        "seconds_per_step": middle,
        "spread": max(seconds) - min(seconds),
        "tokens_per_second": tokens / middle,
        # What graphs hold is reserved and not counted as allocated.
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
    }


def clear() -> None:
    gc.collect()
    torch._dynamo.reset()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="small")
    parser.add_argument("--batch", type=int, action="append")
    parser.add_argument("--windows", type=int, default=20)
    parser.add_argument("--kind", choices=KINDS, action="append")
    parser.add_argument("--way", choices=WAYS, action="append")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--no-check", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("results/training.json"))
    arguments = parser.parse_args()
    logging.set_verbosity_error()
    torch.set_float32_matmul_precision("high")
    started = time.time()
    vocabulary = SHAPES[arguments.shape]["vocab_size"]
    checks, rows = {}, []
    for batch in arguments.batch or [4, 12]:
        torch.manual_seed(1)
        shape = (batch, arguments.windows * WINDOW)
        batches = [torch.randint(1, vocabulary, shape, device="cuda") for _ in range(3)]
        clear()
        found = measure(PlainTransformers(base_model(arguments.shape), batches), arguments.rounds, arguments.steps)
        rows.append({"kind": "transformers", "way": "compiled, all windows at once", "batch": batch, **found})
        tell(rows[-1])
        for kind in arguments.kind or list(KINDS):
            for way in arguments.way or list(WAYS):
                clear()
                if way != "eager" and not arguments.no_check and batch == (arguments.batch or [4])[0]:
                    checks[f"{kind}, {way}"] = check(
                        arguments.shape, kind, way, [one[:, : 3 * WINDOW] for one in batches]
                    )
                    print(f"{kind}, {way}: {checks[f'{kind}, {way}']}", flush=True)
                    clear()
                try:
                    run = Run(recurrent_model(arguments.shape, kind, way), batches)
                    rows.append(
                        {"kind": kind, "way": way, "batch": batch, **measure(run, arguments.rounds, arguments.steps)}
                    )
                    tell(rows[-1])
                    del run
                except torch.OutOfMemoryError:
                    print(f"{kind:12} {way:30} batch {batch}: out of memory", flush=True)
    config = {name: value for name, value in vars(arguments).items() if name != "out"}
    result = {
        "kind": "training-speed",
        "checks": checks,
        "rows": rows,
        "provenance": provenance(config, started=started),
    }
    save_result(arguments.out, result)


def tell(row: dict[str, Any]) -> None:
    name = f"{row['kind']:12} {row['way']:30} batch {row['batch']:3}"
    memory = f"{row['peak_bytes'] / 2**30:.1f} GiB allocated, {row['reserved_bytes'] / 2**30:.1f} reserved"
    print(f"{name} {row['tokens_per_second']:>10,.0f} tokens/s  {memory}", flush=True)


if __name__ == "__main__":
    main()
