"""Measure memory and speed on one GPU, with GPT-2 small's shape in bf16 and random weights.

    python tools/measure_gpu.py --out results/gpu.json

First it checks that what is measured is right: checkpointed gradients equal plain ones, and generation equals
step-by-step argmax. Then: the peak memory of a training step over 6,000, 120,000 and 1,000,000 tokens in one
sequence, bottleneck-checkpointed; and the training throughput of the recurrent model beside plain windows through
the same code, in turns, without checkpointing.
"""

import argparse
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, logging, set_seed

from recurrify import CarryConfig, NoRecurrence, add_recurrence
from recurrify.results import provenance, save_result

WINDOW = 300


def gpt2_small(recurrence: Any, **more: Any) -> Any:
    set_seed(0)
    config = GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **more)
    return add_recurrence(GPT2LMHeadModel(config), recurrence).cuda().train()


def check_correct() -> dict[str, float]:
    """Largest relative difference of checkpointed gradients, and whether generation follows forward."""
    model = gpt2_small(CarryConfig(window=WINDOW), n_layer=4)
    ids = torch.randint(0, 50257, (2, 3 * WINDOW + 50), device="cuda")
    gradients = []
    for checkpoint in (False, True):
        model.set_recurrence(checkpoint=checkpoint)
        model.zero_grad()
        model(ids, labels=ids).loss.backward()
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters()})
    plain, checkpointed = gradients
    worst = max(float((plain[n] - checkpointed[n]).norm() / plain[n].norm().clamp(min=1e-12)) for n in plain)
    assert worst < 1e-4, f"checkpointed gradients differ by {worst}"
    model.eval().set_recurrence(window=16)
    with torch.inference_mode():
        text = ids[:, :5]
        generated = model.generate(text, max_new_tokens=60, do_sample=False, pad_token_id=0)
        for _ in range(60):
            text = torch.cat([text, model(text).logits[:, -1:].argmax(-1)], dim=1)
    assert torch.equal(generated, text), "generation does not follow forward"
    return {"largest_relative_gradient_difference": worst}


def step(model: Any, optimizer: Any, batches: list[torch.Tensor]) -> float:
    """One update; several batches are accumulated."""
    optimizer.zero_grad(set_to_none=True)
    total = 0.0
    for ids in batches:
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(ids, labels=ids).loss / len(batches)
        loss.backward()
        total += loss.detach()
    optimizer.step()
    return float(total)


def measure_memory(lengths: list[int]) -> Iterator[dict[str, float]]:
    """Peak memory of a step over one long sequence; tokens and labels themselves are counted apart."""
    model = gpt2_small(CarryConfig(window=WINDOW, checkpoint=True))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    step(model, optimizer, [torch.randint(0, 50257, (1, 2 * WINDOW), device="cuda")])
    for length in lengths:
        ids = torch.randint(0, 50257, (1, length), device="cuda")
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        started = time.perf_counter()
        loss = step(model, optimizer, [ids])
        torch.cuda.synchronize()
        seconds = time.perf_counter() - started
        peak = torch.cuda.max_memory_allocated()
        # Inputs, targets, their packed copies, and one float32 loss each: they grow with the text by nature.
        tokens = length * (3 * 8 + 2 * 4)
        row = {"tokens": length, "peak_bytes": peak, "bytes_of_tokens": tokens, "peak_without_tokens": peak - tokens}
        print(f"{length:>9,} tokens: peak {peak / 2**30:.3f} GiB, {length / seconds:,.0f} tokens/s", flush=True)
        yield {**row, "seconds": seconds, "tokens_per_second": length / seconds, "loss": loss}
        del ids


def measure_speed(batch: int, windows: int, rounds: int) -> dict[str, Any]:
    """Median tokens per second of both kinds, stepping in turns; batches that do not fit are accumulated."""
    for parts in (1, 2, 4, 8):
        try:
            return _speed(batch, parts, windows, rounds)
        except torch.cuda.OutOfMemoryError:
            print(f"batch {batch // parts} at once does not fit", flush=True)
        torch.cuda.empty_cache()
    raise SystemExit("Not even an eighth of the batch fits.")


def _speed(batch: int, parts: int, windows: int, rounds: int) -> dict[str, Any]:
    kinds = {"plain": NoRecurrence(window=WINDOW), "recurrent": CarryConfig(window=WINDOW)}
    models = {name: gpt2_small(config) for name, config in kinds.items()}
    optimizers = {name: torch.optim.AdamW(m.parameters(), lr=1e-5, fused=True) for name, m in models.items()}
    batches = [torch.randint(0, 50257, (batch // parts, windows * WINDOW), device="cuda") for _ in range(parts)]
    seconds: dict[str, list[float]] = {name: [] for name in models}
    peaks: dict[str, int] = {}
    for turn in range(rounds + 2):
        for name, model in models.items():
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            started = time.perf_counter()
            step(model, optimizers[name], batches)
            torch.cuda.synchronize()
            if turn >= 2:
                seconds[name].append(time.perf_counter() - started)
            peaks[name] = torch.cuda.max_memory_allocated()
    tokens = batch * windows * WINDOW
    speed = {name: tokens / statistics.median(values) for name, values in seconds.items()}
    result = {"batch": batch, "accumulated_in": parts, "windows": windows, "rounds": rounds}
    result |= {"tokens_per_second": speed, "ratio": speed["recurrent"] / speed["plain"]}
    result |= {"seconds": seconds, "peak_bytes": peaks}
    print(
        f"batch {batch} ({parts} × {batch // parts}), {windows} windows: "
        + ", ".join(f"{name} {value:,.0f} tokens/s" for name, value in speed.items())
        + f", ratio {result['ratio']:.3f}",
        flush=True,
    )
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/gpu.json"))
    parser.add_argument("--lengths", type=int, nargs="+", default=[6_000, 120_000, 1_000_000])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("This measurement needs a CUDA GPU, and there is none.")
    logging.set_verbosity_error()
    started = time.time()
    torch.set_float32_matmul_precision("highest")
    result: dict[str, Any] = {
        "kind": "gpu",
        "model": "GPT-2 small's shape, random weights, bf16 autocast over float32 weights, AdamW",
        "window": WINDOW,
        "checks": check_correct(),
    }
    result["speed"] = measure_speed(arguments.batch, 20, arguments.rounds)
    torch.cuda.empty_cache()
    result["memory"] = []
    for row in measure_memory(arguments.lengths):
        # Saved after every length: the longest takes minutes.
        result["memory"].append(row)
        base = [row["peak_without_tokens"] for row in result["memory"]]
        result["memory_spread"] = max(base) / min(base) - 1
        result["provenance"] = provenance({k: v for k, v in vars(arguments).items() if k != "out"}, started=started)
        save_result(arguments.out, result)
    print(f"memory apart from the tokens is flat within {100 * result['memory_spread']:.2f} %")


if __name__ == "__main__":
    main()
