"""Simulate training with DDP on 1, 2 and 4 machines, by processes (gloo) of this one.

    OMP_NUM_THREADS=1 python tools/scaling.py --out papers/results/scaling.json

A machine with fewer cores than processes cannot show by the clock how training scales. So the CPU time of each process
is measured, as if it had a core to itself, and the time that the gradients need on a network is computed from their
size. Nothing overlaps: real DDP sends while it computes.
"""

import argparse
import os
import socket
import time
from pathlib import Path
from typing import Any

import torch
from torch.multiprocessing import start_processes
from transformers import GPT2Config, GPT2LMHeadModel

from recurrify import CarryConfig, add_recurrence
from recurrify.results import provenance, save_result

SETTINGS = {"layers": 4, "width": 256, "vocabulary": 2_048, "window": 64, "windows": 4, "rows": 2, "steps": 12}
SKIPPED = 2
"""Steps before the measurement."""
PROCESSES = (1, 2, 4)


def train(rank: int, processes: int, port: int, found: Any) -> None:
    """Some steps in one of several processes; adds its seconds of CPU per step."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"tcp://localhost:{port}", rank=rank, world_size=processes)
    torch.manual_seed(0)
    sizes = {
        "n_layer": SETTINGS["layers"],
        "n_embd": SETTINGS["width"],
        "n_head": 4,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    base = GPT2LMHeadModel(GPT2Config(vocab_size=SETTINGS["vocabulary"], n_positions=256, eos_token_id=None, **sizes))
    model = add_recurrence(base, CarryConfig(window=SETTINGS["window"])).train()
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(wrapped.parameters())
    columns = SETTINGS["window"] * SETTINGS["windows"]
    ids = torch.randint(SETTINGS["vocabulary"], (SETTINGS["rows"], columns + 1))
    started = 0.0
    for step in range(SETTINGS["steps"]):
        if step == SKIPPED:
            started = time.process_time()
        wrapped(ids[:, :-1], targets=ids[:, 1:]).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    seconds = (time.process_time() - started) / (SETTINGS["steps"] - SKIPPED)
    found.put((seconds, sum(value.numel() for value in model.parameters())))
    torch.distributed.destroy_process_group()


def measured(processes: int, gbit: float) -> dict[str, Any]:
    """The row of the table for so many processes."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    found = torch.multiprocessing.get_context("fork").SimpleQueue()
    start_processes(train, (processes, port, found), nprocs=processes, start_method="fork")
    rows = [found.get() for _ in range(processes)]
    compute, parameters = max(seconds for seconds, _ in rows), rows[0][1]
    sent = 2 * (processes - 1) / processes * 4 * parameters
    tokens = processes * SETTINGS["rows"] * SETTINGS["window"] * SETTINGS["windows"]
    network = 8 * sent / (gbit * 1e9)
    return {
        "processes": processes,
        "parameters": parameters,
        "tokens_per_step": tokens,
        "cpu_seconds_per_step": compute,
        "megabytes_sent_per_step": sent / 1e6,
        "network_seconds_per_step": network,
        "simulated_tokens_per_second": tokens / (compute + network),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gbit", type=float, default=10, help="of the network that is simulated, per second")
    parser.add_argument("--out", type=Path, help="write the table as JSON")
    given = parser.parse_args()
    if os.environ.get("OMP_NUM_THREADS") != "1":
        parser.error("set OMP_NUM_THREADS=1: one core per process is simulated")
    started, rows = time.time(), []
    for processes in PROCESSES:
        rows.append(measured(processes, given.gbit))
        row = rows[-1]
        speedup = row["simulated_tokens_per_second"] / rows[0]["simulated_tokens_per_second"]
        row["simulated_speedup"] = speedup
        said = f"{row['cpu_seconds_per_step']:.3f} s of CPU and {row['megabytes_sent_per_step']:.1f} MB"
        print(f"{processes} processes: {said} per step; {speedup:.2f} times one process", flush=True)
    if given.out:
        about = provenance({**SETTINGS, "gbit": given.gbit}, seed=0, started=started)
        save_result(given.out, {"kind": "scaling", "simulated": True, "rows": rows, "provenance": about})


if __name__ == "__main__":
    main()
