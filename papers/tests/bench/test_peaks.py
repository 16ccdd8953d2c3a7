"""The estimate of GPU memory, against peaks that the benchmark measured."""

from pathlib import Path

import pytest
import torch

from recurrify.results import load_result
from recurrify.train import estimate_memory
from recurrify_papers.bench.models import memories, recurrent_model
from recurrify_papers.bench.sizes import GPT2, SMOLLM2, Size

RESULTS = Path(__file__).parents[2] / "results" / "bench"
META = torch.device("meta")


@pytest.mark.parametrize(
    ("name", "size", "windows", "checkpoint"),
    [
        *((name, GPT2, 20, False) for name in ("training", "training_64", "training_lookback")),
        *((name, GPT2, 20, True) for name in ("training", "training_64", "training_lookback")),
        ("training_smollm2", SMOLLM2, 8, False),
        ("training_smollm2_modes", SMOLLM2, 8, False),
    ],
)
def test_within_a_tenth_of_measured_peaks(name: str, size: Size, windows: int, checkpoint: bool) -> None:
    rows = [
        (group["batch"], row)
        for group in load_result(RESULTS / f"{name}.json")["groups"]
        for row in group["rows"]
        if row["checkpoint"] == checkpoint and row["model"] in memories(size) and row["peak_bytes"]
    ]
    assert rows
    for batch, row in rows:
        with META:  # no memory for its weights
            model = recurrent_model(size, row["model"], META, checkpoint=checkpoint)
        estimate = estimate_memory(model, batch, windows).total
        assert estimate == pytest.approx(row["peak_bytes"], rel=0.1), (batch, row["model"])
