"""Several processes in plain Trainer, with rows that fill a window in some of them or in none."""

import os
import subprocess
import sys
from pathlib import Path

import torch

from support.tools import MEMORIES

SCRIPT = """
import sys, torch
from pathlib import Path
from transformers import Trainer, TrainingArguments
from support.checks import WINDOW
from support.models import text
from support.tools import remembering
out, spawned = Path(sys.argv[1]), sys.argv[2] == "two"
for mechanism in sys.argv[3:]:
    torch.manual_seed(0)
    model = remembering(mechanism).train()
    rows = [row for number in range(4) for row in text(1, 5 + 12 * (number // 2), seed=number)]
    mask = [torch.ones_like(row) for row in rows]
    def collate(batch):
        width = max(len(row["input_ids"]) for row in batch)
        pad = lambda value, fill: torch.nn.functional.pad(value, (0, width - len(value)), value=fill)
        ids = torch.stack([pad(row["input_ids"], 1) for row in batch])
        mask = torch.stack([pad(torch.ones_like(row["input_ids"]), 0) for row in batch])
        return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}
    arguments = TrainingArguments(
        str(out / "run"), max_steps=2, per_device_train_batch_size=1 if spawned else 2, learning_rate=0.1, optim="sgd",
        lr_scheduler_type="constant", save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True,
        gradient_checkpointing=True, train_sampling_strategy="sequential", dataloader_pin_memory=False, max_grad_norm=0,
    )
    run = Trainer(model, arguments, train_dataset=[{"input_ids": row} for row in rows], data_collator=collate)
    run.train()
    if run.is_world_process_zero():
        torch.save(model.state_dict(), out / f"{mechanism}-{sys.argv[2]}.pt")
"""


def test_memory_that_no_window_reads(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    one = [sys.executable, str(script)]
    two = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = {**os.environ, "PYTHONPATH": paths}
    for command, name in ((one, "one"), (two, "two")):
        call = [*command, str(tmp_path), name, *MEMORIES]
        done = subprocess.run(call, capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 0, done.stderr[-3000:]
    for mechanism in MEMORIES:
        expected, found = (torch.load(tmp_path / f"{mechanism}-{name}.pt") for name in ("one", "two"))
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5, msg=f"{mechanism}: {name}")
