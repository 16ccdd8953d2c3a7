"""The two-part task: train a small GPT-2 from scratch and test it."""

from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2ForSequenceClassification, get_cosine_schedule_with_warmup, set_seed

from recurrify import RecurrenceConfig, RecurrentForSequenceClassification, add_recurrence
from recurrify.evaluate import classification_metrics
from recurrify.modeling import recurrence_config
from recurrify.results import provenance
from recurrify_papers.beyond.two_part_task import END, TwoPartTask, two_part_documents
from recurrify_papers.runner import Say

TEST_SEED = 2**31
"""Far from the seeds of training documents, which are new in each step."""


def two_part_run(settings: dict[str, Any], folder: Path, say: Say) -> dict[str, Any]:
    """Train and test one model; a few minutes on a CPU."""
    task = TwoPartTask()
    recurrence = recurrence_config({**settings["recurrence"], "window": task.window})
    model = train_on_two_parts(recurrence, task, settings["seed"], settings["steps"], settings["batch"])
    metrics = score_on_two_parts(model, task, settings["documents"])
    say(f"{folder.name}: accuracy {metrics['accuracy']:.3f} (chance {1 / task.labels:.3f})")
    notes = {"accuracy": f"chance {1 / task.labels:g}"}
    numbers = [
        {"metric": metric, "value": value, "split": "test", "note": notes.get(metric)}
        for metric, value in metrics.items()
    ]
    origin = provenance({**settings, "task": task._asdict()}, seed=settings["seed"])
    return {"kind": "two-part", "numbers": numbers, "provenance": origin}


def train_on_two_parts(
    recurrence: RecurrenceConfig, task: TwoPartTask, seed: int, steps: int, batch: int
) -> RecurrentForSequenceClassification:
    """A decoder of two layers that never sees a document twice."""
    set_seed(seed)
    config = GPT2Config(
        vocab_size=task.vocabulary,
        n_positions=task.window,
        n_embd=32,
        n_layer=2,
        n_head=2,
        num_labels=task.labels,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=END,
        eos_token_id=END,
        initializer_range=0.2,  # the usual 0.02 is for wide models
    )
    model: RecurrentForSequenceClassification = add_recurrence(GPT2ForSequenceClassification(config), recurrence)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    scheduler = get_cosine_schedule_with_warmup(optimizer, steps // 20, steps)
    for step in range(steps):
        made = two_part_documents(batch, seed * steps + step, task)
        loss = model(torch.from_numpy(made.tokens), labels=torch.from_numpy(made.labels)).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
    return model.eval()


@torch.no_grad()
def score_on_two_parts(model: RecurrentForSequenceClassification, task: TwoPartTask, documents: int) -> dict[str, Any]:
    """Metrics on documents that were never trained on."""
    made = two_part_documents(documents, TEST_SEED, task)
    logits = model(torch.from_numpy(made.tokens)).logits
    return classification_metrics(logits.numpy(), made.labels)
