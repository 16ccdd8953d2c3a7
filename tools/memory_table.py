"""Print the estimated GPU memory of training steps and their measured peaks. Needs a CUDA GPU.

python tools/memory_table.py --shapes gpt2,smollm2 --batches 8,16 --out memory.json
"""

import argparse
import gc
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, PretrainedConfig

from recurrify import add_recurrence
from recurrify.mechanisms import recurrence_config
from recurrify.results import provenance, save_result
from recurrify.speed import Choices, compile_windows, graph_steps
from recurrify.train.memory import GIB, estimate_memory

WINDOW, WINDOWS, STEPS = 300, 20, 3
SHAPES: dict[str, PretrainedConfig] = {
    "gpt2": GPT2Config(vocab_size=50_304, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0),
    "smollm2": LlamaConfig(
        vocab_size=49_152,
        hidden_size=576,
        intermediate_size=1_536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=2_048,
        tie_word_embeddings=True,
    ),
}
MEMORIES: dict[str, dict[str, Any]] = {
    "none": {"mechanism": "none"},
    "carry": {"mechanism": "carry"},
    "carry, all layers": {"mechanism": "carry", "insert_layer": "all"},
    "lookback": {"mechanism": "lookback", "keep": 256},
    "kv": {"mechanism": "kv", "keep": 256},
}
MODES: dict[str, Callable[..., Any] | None] = {
    "eager": None,
    "compiled": compile_windows,
    "graphs": graph_steps,
    "graphs-layers": partial(graph_steps, choices=Choices(by_layer=True)),
}


def build(shape: str, memory: str, checkpoint: bool, device: str) -> Any:
    """A random model of this shape with a memory."""
    torch.manual_seed(0)
    with torch.device(device):
        base = AutoModelForCausalLM.from_config(SHAPES[shape])
        settings = {"window": WINDOW, "checkpoint": checkpoint, **MEMORIES[memory]}
        return add_recurrence(base, recurrence_config(settings)).train()


def measured(model: Any, rows: int, mode: str) -> float:
    """The peak of some training steps, in GiB."""
    prepare = MODES[mode]
    if prepare is not None:
        prepare(model, rows)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    ids = torch.randint(1_000, (rows, WINDOW * WINDOWS + 1), device="cuda")
    torch.cuda.reset_peak_memory_stats()
    for _ in range(STEPS):
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(ids[:, :-1], targets=ids[:, 1:], num_items_in_batch=ids[:, 1:].numel()).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.synchronize()
    # Captured steps own memory that does not count as allocated.
    return (torch.cuda.max_memory_reserved() if "graphs" in mode else torch.cuda.max_memory_allocated()) / GIB


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", default="gpt2,smollm2")
    parser.add_argument("--memories", default="none;carry;carry, all layers;lookback", help="separated by semicolons")
    parser.add_argument("--batches", default="8")
    parser.add_argument("--modes", default="graphs", help=", ".join(MODES))
    parser.add_argument("--estimate-only", action="store_true", help="no measurements: needs no GPU")
    parser.add_argument("--out", help="write the table as JSON")
    given = parser.parse_args()
    table, started = [], time.time()
    print(
        f"{'shape':9}{'memory':20}{'mode':10}{'batch':>6}{'checkpoint':>12}{'estimate':>10}{'measured':>10}{'off':>8}"
    )
    for shape in given.shapes.split(","):
        for memory in given.memories.split(";"):
            for mode in given.modes.split(","):
                for rows in map(int, given.batches.split(",")):
                    for checkpoint in (False, True):
                        model = build(shape, memory, checkpoint, "meta" if given.estimate_only else "cuda")
                        estimate = estimate_memory(model, rows, WINDOWS)
                        peak = None
                        if not given.estimate_only:
                            try:
                                peak = measured(model, rows, mode)
                            except torch.cuda.OutOfMemoryError:
                                print(f"{shape}, {memory}, batch {rows}: does not fit")
                        said = f"{estimate.gib:10.1f}"
                        if peak is not None:
                            said += f"{peak:10.1f}{estimate.gib / peak - 1:+8.1%}"
                        print(f"{shape:9}{memory:20}{mode:10}{rows:6}{checkpoint!s:>12}{said}", flush=True)
                        row = {"shape": shape, "memory": memory, "mode": mode, "batch": rows, "checkpoint": checkpoint}
                        row |= {"estimate": estimate.gib, "measured": peak, "parts": asdict(estimate)}
                        table.append(row)
                        del model
                        gc.collect()
                        if not given.estimate_only:
                            torch.cuda.empty_cache()
    if given.out:
        about = provenance({**vars(given), "window": WINDOW, "windows": WINDOWS}, started=started)
        save_result(given.out, {"kind": "memory", "rows": table, "provenance": about})


if __name__ == "__main__":
    main()
