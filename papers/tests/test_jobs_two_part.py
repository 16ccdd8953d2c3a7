"""The task that needs a memory: solved with one, by chance without."""

import pytest

from recurrify_papers.two_part.run import two_part_experiment
from recurrify_papers.two_part.task import TwoPartTask


def test_only_a_memory_solves_it() -> None:
    said: list[str] = []
    task = TwoPartTask(window=4, windows=2, fillers=1)
    found = two_part_experiment(said.append, steps=80, task=task, batch=32, documents=400)
    assert found["recurrent"]["accuracy"] > 0.95
    assert found["disjoint"]["accuracy"] == pytest.approx(0.5, abs=0.1)
    assert set(found["recurrent"]) == {"accuracy", "precision", "recall", "f1", "roc_auc"}
    assert found["chance"] == 0.5
    assert [line.split(":")[0] for line in said] == ["disjoint", "recurrent", "recurrent_as_for_answers"]
    assert found["provenance"]["config"]["task"]["window"] == 4
