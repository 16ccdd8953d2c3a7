"""What the library costs on a CPU: seconds of first use, and the speed of an evaluation compared with a bare loop.

    python tools/cpu_costs.py --text novel.txt --out papers/results/bench/cpu.json

First use: CPU seconds (user and system, all threads) of fresh processes that load the shipped base, with and without
recurrify; medians. Evaluation: SmolLM2 over the first tokens of a text in windows of 300, in turns; ours in plain
windows computes what the bare loop computes, and the loss of both is compared first.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

FIRST_USE = {
    "import transformers' model": "from transformers import AutoModelForCausalLM, GPT2LMHeadModel",
    "transformers loads the base": (
        "from transformers import AutoModelForCausalLM; AutoModelForCausalLM.from_pretrained({base!r})"
    ),
    "ours: load the base and add a memory": (
        "from transformers import AutoModelForCausalLM; from recurrify import CarryConfig, add_recurrence; "
        "add_recurrence(AutoModelForCausalLM.from_pretrained({base!r}), CarryConfig(window=64))"
    ),
    "ours: load the shipped recurrent model": (
        "from recurrify.modeling import load_model; load_model('shipped:recurrent')"
    ),
}
WINDOW = 300


def cpu_seconds(code: str) -> float:
    """Of a fresh process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, env={**os.environ, "HF_HUB_OFFLINE": "1"}
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def first_use(rounds: int) -> list[dict[str, Any]]:
    from recurrify.modeling.loading import resolve_name

    base = str(resolve_name("shipped:base")[0])
    found: dict[str, list[float]] = {name: [] for name in FIRST_USE}
    for number in range(rounds + 1):
        for name, code in FIRST_USE.items():
            seconds = cpu_seconds(code.format(base=base))
            if number:  # the first reads files from the disk
                found[name].append(seconds)
    return [{"what": name, "cpu_seconds": statistics.median(one), "all": one} for name, one in found.items()]


def evaluation(text: Path, tokens: int, rounds: int) -> dict[str, Any]:
    import numpy as np
    import torch
    from torch.nn import functional

    from recurrify import add_recurrence
    from recurrify.data import TokenizedDocument
    from recurrify.evaluate import evaluate_documents
    from recurrify.mechanisms import NoRecurrence
    from recurrify.mechanisms.kv import KVConfig
    from recurrify.modeling import load_model

    model, tokenizer = load_model("smollm2")
    base = model.base.eval()
    ids = tokenizer(text.read_text(encoding="utf-8")[: 8 * tokens])["input_ids"][:tokens]
    document = TokenizedDocument(text.name, np.array(ids, dtype=np.int32), len(ids), len(ids), len(ids))

    @torch.inference_mode()
    def bare() -> float:
        total, row = 0.0, torch.tensor(ids)[None]
        for start in range(0, len(ids) - 1, WINDOW):
            piece = row[:, start : start + WINDOW]
            targets = row[0, start + 1 : start + WINDOW + 1]
            logits = base(piece[:, : len(targets)], use_cache=False).logits[0]
            total += float(functional.cross_entropy(logits.float(), targets, reduction="sum"))
        return total

    def ours(settings: Any) -> Callable[[], float]:
        recurrent = add_recurrence(base, settings).eval()
        return lambda: float(evaluate_documents(recurrent, [document], rows=1).nll.sum())

    forms = {"bare": bare, "plain": ours(NoRecurrence(window=WINDOW)), "kv": ours(KVConfig(window=WINDOW))}
    losses = {name: form() for name, form in forms.items()}  # and warms up
    seconds: dict[str, list[float]] = {name: [] for name in forms}
    for _ in range(rounds):
        for name, form in forms.items():
            started = time.perf_counter()
            form()
            seconds[name].append(time.perf_counter() - started)
    ratios = [bare_one / plain for bare_one, plain in zip(seconds["bare"], seconds["plain"], strict=True)]
    return {
        "tokens": len(ids),
        "loss_per_token": {name: loss / (len(ids) - 1) for name, loss in losses.items()},
        "seconds": seconds,
        "plain_over_bare": {"median": statistics.median(ratios), "low": min(ratios), "high": max(ratios)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=6000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    started = time.time()
    import torch

    from recurrify.results import provenance, save_result

    result = {
        "first_use": first_use(arguments.rounds),
        "evaluation": evaluation(arguments.text, arguments.tokens, arguments.rounds),
    }
    settings = {"text": arguments.text.name, "window": WINDOW, "threads": torch.get_num_threads()}
    save_result(
        arguments.out,
        {"kind": "cpu-costs", "result": result, "provenance": provenance(settings, seed=0, started=started)},
    )
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
