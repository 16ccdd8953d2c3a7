"""Several processes in plain Trainer, with rows that fill a window in some of them or in none."""

import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import pad
from transformers import Trainer, TrainingArguments

from support.models import text
from support.processes import forked
from support.several_processes import torchrun
from support.tools import MEMORIES, remembering


def collate(batch: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    rows = [row["input_ids"] for row in batch]
    width = max(map(len, rows))
    ids = torch.stack([pad(row, (0, width - len(row)), value=1) for row in rows])
    mask = torch.stack([pad(torch.ones_like(row), (0, width - len(row))) for row in rows])
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def train(out: Path) -> None:
    """Train each memory on batches of two rows: one for each of two processes, or both for one."""
    processes = int(os.environ.get("WORLD_SIZE", 1))
    for mechanism in MEMORIES:
        torch.manual_seed(0)
        model = remembering(mechanism).train()
        rows = [row for number in range(4) for row in text(1, 5 + 12 * (number // 2), seed=number)]
        arguments = TrainingArguments(
            str(out / "run"), max_steps=2, per_device_train_batch_size=2 // processes, learning_rate=0.1, optim="sgd",
            lr_scheduler_type="constant", save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True,
            gradient_checkpointing=True, train_sampling_strategy="sequential", dataloader_pin_memory=False,
            max_grad_norm=0,
        )  # fmt: skip
        run = Trainer(model, arguments, train_dataset=[{"input_ids": row} for row in rows], data_collator=collate)
        run.train()
        if run.is_world_process_zero():
            torch.save(model.state_dict(), out / f"{mechanism}-{processes}.pt")


def test_memory_that_no_window_reads(tmp_path: Path) -> None:
    forked(lambda: train(tmp_path))
    torchrun(Path(__file__), tmp_path)
    for mechanism in MEMORIES:
        expected, found = (torch.load(tmp_path / f"{mechanism}-{processes}.pt") for processes in (1, 2))
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5, msg=f"{mechanism}: {name}")


if __name__ == "__main__":
    train(Path(sys.argv[1]))
