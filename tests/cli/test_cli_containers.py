"""Commands read rows of text from every kind of file, and from all of them alike."""

import json
from pathlib import Path

import pytest

from support.commands import BUDGET, TRAINING, invoke
from support.containers import CONTAINERS
from support.runs import assert_same_weights, weights_of
from support.tools import saved

ROWS = [
    {"text": " ".join(f"w{4 + (number * word) % 50}" for word in range(20 + number % 3)), "label": "ab"[number % 2]}
    for number in range(40)
]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("containers")
    return {name: make(folder / name, ROWS) for name, make in CONTAINERS.items()}


def test_evaluate(sources: dict[str, Path], tmp_path: Path) -> None:
    saved("carry", tmp_path / "model")
    found = {}
    for name, source in sources.items():
        out = tmp_path / f"{name}.json"
        invoke("evaluate", tmp_path / "model", "--data", source, "--out", out, "--device", "cpu")
        ((scores,),) = json.loads(out.read_text())["documents"].values()
        found[name] = [(document["words"], document["nll"]) for document in scores["documents"]]
    expected = found.pop("a.jsonl")
    assert len(expected) == 2
    assert all(scores == expected for scores in found.values())


def test_train_and_inspect(sources: dict[str, Path], base: Path, tmp_path: Path) -> None:
    weights, tokens = [], []
    for name in ("a.jsonl", "g.csv.gz"):
        source, run, page = sources[name], tmp_path / name / "run", tmp_path / name / "page"
        small = (*TRAINING, "--mechanism", "carry", *BUDGET)
        invoke("train", "--model", base, "--data", source, "--out", run, *small)
        invoke("inspect", run, "--data", source, "--out", page, "--tokens", 20, "--document", 2)
        weights.append(weights_of(run))
        tokens.append(json.loads((page / "inspection.json").read_text())["tokens"])
    assert_same_weights(weights[0], weights[1])
    assert tokens[0] == tokens[1]
