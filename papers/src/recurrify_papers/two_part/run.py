"""The two-part task as an experiment: the same small decoder with and without a memory."""

import time
from typing import Any

import torch
from transformers import GPT2Config, GPT2ForSequenceClassification, get_cosine_schedule_with_warmup, set_seed

from recurrify.data.texts import Say
from recurrify.evaluate.classification import classification_metrics
from recurrify.mechanisms.base import NoRecurrence, RecurrenceConfig
from recurrify.mechanisms.carry import CarryConfig
from recurrify.modeling.heads import add_recurrence
from recurrify.modeling.task_heads import RecurrentForSequenceClassification
from recurrify.results import provenance
from recurrify_papers.two_part.task import END, TwoPartTask, two_part_documents

TEST_SEED = 2**31
"""Far from the seeds of training documents, which are new in each step."""


def two_part_experiment(
    say: Say, seed: int = 0, steps: int = 2000, task: TwoPartTask | None = None, batch: int = 64, documents: int = 2000
) -> dict[str, Any]:
    """Train a small GPT-2 from scratch without a memory and with two kinds of one, alike in everything else, and test.

    Runs on a CPU in a few minutes. The one without a memory cannot be better than chance; the others can be perfect.
    """
    task = TwoPartTask() if task is None else task
    started = time.time()
    models: dict[str, RecurrenceConfig] = {
        "disjoint": NoRecurrence(window=task.window),
        "recurrent": CarryConfig(
            window=task.window,
            pooling="attention",
            insert_layer="all",
            slots=2,
            hidden_layers=1,
            standardize=True,
        ),
        # The paper's for question answering: one vector of the last layer's mean, at one layer.
        "recurrent_as_for_answers": CarryConfig(
            window=task.window, pooled_layers="last", insert_layer=2, hidden_layers=2, hidden_size=768
        ),
    }
    found: dict[str, Any] = {}
    for name, recurrence in models.items():
        model = train_on_two_parts(recurrence, task, seed, steps, batch)
        found[name] = score_on_two_parts(model, task, documents)
        say(f"{name}: accuracy {found[name]['accuracy']:.3f} (chance {1 / task.labels:.3f})")
    config = {"task": task._asdict(), "steps": steps, "batch": batch, "documents": documents}
    config["recurrence"] = {name: recurrence.to_dict() for name, recurrence in models.items()}
    return {
        "kind": "two-part-task",
        "chance": 1 / task.labels,
        **found,
        "provenance": provenance(config, seed=seed, started=started),
    }


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
        # The usual 0.02 is meant for wide models; so narrow a one would begin all but blind to its input.
        initializer_range=0.2,
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
    made = two_part_documents(documents, TEST_SEED, task)
    logits = model(torch.from_numpy(made.tokens)).logits
    return classification_metrics(logits.numpy(), made.labels)
