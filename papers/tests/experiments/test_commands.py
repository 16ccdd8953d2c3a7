"""`recurrify experiment` on the command line."""

import subprocess
import sys
from pathlib import Path

import pytest

from recurrify import UserError
from recurrify_papers.commands.experiment import changed, minutes
from recurrify_papers.experiment import chosen_experiments, experiments
from recurrify_papers.sizes import SIZES, Size
from support.commands import Command, invoke, refused

__all__ = ["refused"]


def test_list_names_every_experiment_and_size() -> None:
    said = invoke("experiment", "list")
    for name in (*experiments(), *SIZES):
        assert name in said


def test_declarations_import_neither_torch_nor_transformers() -> None:
    code = (
        "import sys; from recurrify_papers.experiment import experiments; print(len(experiments())); "
        "print(sorted({'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split("\n") == [str(len(experiments())), "[]", ""]


@pytest.mark.usefixtures("known", "patched")
def test_run_status_and_resume(tmp_path: Path) -> None:
    arguments = ("two-part", "--size", "tiny", "--root", tmp_path)
    assert "two-part: 0 of 3 runs" in invoke("experiment", "status", *arguments)
    assert str(tmp_path / "tiny" / "two-part.json") in invoke("experiment", "run", *arguments)
    assert "two-part: 3 of 3 runs" in invoke("experiment", "status", *arguments)
    assert "No run is queued or running." in invoke("experiment", "cancel", *arguments)


@pytest.mark.parametrize(("text", "expected"), [("90", 90), ("4:00:00", 240), ("1-02:30:30", 1590.5)])
def test_minutes(text: str, expected: float) -> None:
    assert minutes(text) == expected


def test_groups_stand_for_several_experiments() -> None:
    published, ours = (chosen_experiments([name]) for name in ("all", "beyond"))
    assert len(published) + len(ours) == len(experiments())
    assert chosen_experiments(["table1", "table1"]) == [experiments()["table1"]]
    with pytest.raises(UserError, match="There is no experiment 'tabel2'"):
        chosen_experiments(["tabel2"])


def test_set_changes_one_experiment(known: Size) -> None:
    size = changed("tiny", "novels", None, ["rotary.model=gpt2", "frozen.rates=[0.1]"])
    assert (size.books, size.wiki) == ("novels", known.wiki)
    assert size.own["rotary"]["model"] == "gpt2"
    assert size.own["frozen"] == {"names": ("memory-tokens-2",), "rates": [0.1]}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["run", "table1", "--size", "huge"], "There is no size 'huge': choose one of paper, small, tiny."),
        (["run", "table1", "--set", "rotary"], "--set takes EXPERIMENT.NAME=VALUE: got 'rotary'."),
        (["run", "table1", "--set", "rotari.model=x"], "--set names an unknown experiment 'rotari'"),
        (["run", "table1", "--time", "4h"], "--time is MINUTES or HH:MM:SS: got '4h'."),
        (["logs", "table1", "base"], "There is no run 'base' in it: give a name such as "),
        (["report", "--root", "nowhere"], "There is no result in 'nowhere': run experiments first."),
    ],
    ids=["size", "setting", "experiment", "time", "run", "report"],
)
def test_bad_options_are_one_sentence(refused: Command, options: list[str], sentence: str) -> None:
    assert sentence in refused("experiment", *options)
