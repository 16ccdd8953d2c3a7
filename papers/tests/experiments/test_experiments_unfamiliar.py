"""A second base that never saw books: what it is made from, and which runs are compared."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from recurrify.errors import UserError
from recurrify.results import load_result
from recurrify_papers.experiments import lab as lab_module
from recurrify_papers.experiments import unfamiliar
from recurrify_papers.experiments.lab import Lab
from recurrify_papers.experiments.pool import Outcome
from recurrify_papers.experiments.running import run_experiments
from recurrify_papers.experiments.sizes import Size
from support.runs import text_folder

pytestmark = pytest.mark.usefixtures("few_samples")

PRETRAINING = {
    "vocabulary": 300, "layers": 3, "width": 16, "heads": 2, "positions": 16, "batch": 2, "learning_rate": 1e-3,
    "warmup_steps": 1, "max_tokens": 64, "valid_every": 64,
}  # fmt: skip


@pytest.fixture
def lab(size: Size, tmp_path: Path) -> Lab:
    books = text_folder(tmp_path / "books", documents=60)
    chosen = replace(
        size, base=None, pretraining=PRETRAINING, books=str(books), unfamiliar_candidates=(1e-3, 1e-2), best_from=(),
        candidates=(1e-2,),
    )  # fmt: skip
    return Lab(chosen, tmp_path / "experiments", lambda text: None)


def test_both_bases_are_alike_but_for_their_text(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unfamiliar, "LONG", {"epochs": 0.1, "max_tokens": None})
    run_experiments(["unfamiliar"], lab)
    bases = [load_result(lab.folder / name / "result.json")["provenance"]["config"] for name in ("base", "base-wiki")]
    assert [one["data"] for one in bases] == [[lab.size.books, lab.size.wiki], [lab.size.wiki]]
    assert bases[0]["layers"] == bases[1]["layers"] == 3
    names = [(lab.folder / name / "model" / "tokenizer.json").read_text() for name in ("base", "base-wiki")]
    assert names[0] == names[1]

    found = load_result(lab.folder / "unfamiliar.json")
    assert found["missing"] == []
    rows = {(row["kind"], row["label"].split("; ")[1].split(", learning")[0]): row for row in found["rows"]}
    assert len(rows) == 8
    for (kind, about), row in rows.items():
        config = load_result(lab.folder / "runs" / f"{row['runs'][0]}.json")["provenance"]["config"]
        assert ("base-wiki" in config["model"]) == about.startswith(unfamiliar.BASES[True])
        assert (config["epochs"] == 0.1) == about.endswith("two epochs")
        assert config["recurrence"]["mechanism"] == {"plain": "none", "carry": "carry"}[kind]
        assert (row["gain"] is None) == (kind == "plain")
    # The rate that validates best, for each kind by itself.
    for kind in ("plain", "carry"):
        for unseen, base in unfamiliar.BASES.items():
            losses = {
                unit.settings.learning_rate: unit.evaluation("valid", 0).total_nll
                for unit in unfamiliar.candidates(lab, kind, unseen)
            }
            best = f"learning rate {min(losses, key=losses.__getitem__):g}"
            assert best in rows[kind, base]["label"]
            assert best in rows[kind, f"{base}, two epochs"]["label"]


def test_when_time_is_up_the_same_command_goes_on(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unfamiliar, "LONG", {"epochs": 0.1, "max_tokens": None})
    said: list[str] = []
    lab.say = said.append
    run_experiments(["learning-rates"], lab)
    monkeypatch.setattr(lab_module, "do_units", lambda *_: Outcome(False, []))
    rows, missing = unfamiliar.unfamiliar_rows(lab)
    assert not rows
    assert len(missing) == 8
    assert lab.stopped
    # Finished runs are not taken for those of another base.
    shutil.rmtree(lab.folder / "base")
    with pytest.raises(UserError, match=r"base/model' is not there, but .*\.json' and others began with it"):
        run_experiments(["learning-rates"], lab)
    assert not (lab.folder / "base").exists()


def test_a_base_from_elsewhere_has_no_second_one(size: Size, tmp_path: Path) -> None:
    said: list[str] = []
    lab = Lab(size, tmp_path, said.append)
    assert unfamiliar.unfamiliar_rows(lab) == ([], ["nothing: the base of size tiny is not pretrained here"])
