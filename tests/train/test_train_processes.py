"""Two processes train one model, started by `accelerate launch`: with copies of the weights (DDP) or parts (FSDP2)."""

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from recurrify.errors import UserError
from recurrify.train.checkpoints import checkpoints
from support.commands import invoke
from support.runs import model_folder, weights_of
from support.several_processes import accelerate_launch

TOLERANCE = 2e-5
"""Of losses: sums of float32 in another order."""
MEMORIES = {"carry": "gpt2", "kv": "llama", "lookback": "gpt2"}
FSDP = """
distributed_type: FSDP
num_machines: 1
machine_rank: 0
mixed_precision: "no"
fsdp_config:
  fsdp_version: 2
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_state_dict_type: FULL_STATE_DICT
"""


def arguments(model: Path, texts: Path, out: Path, mechanism: str, batch: int, **more: object) -> list[str]:
    given = {
        "model": model,
        "data": texts,
        "out": out,
        "mechanism": mechanism,
        "window": 8,
        "windows": 3,
        "batch": batch,
    }
    given |= {"learning-rate": 0.003, "epochs": 1, "valid-every": 150, "patience": 0, **more}
    return ["train", *(str(part) for name, value in given.items() for part in (f"--{name}", value))]


def cut_short(run: Path, to: Path) -> Path:
    """A copy of a run as if it had been killed after its first checkpoint that was kept."""
    shutil.copytree(run, to)
    shutil.rmtree(to / "model")
    (to / "result.json").unlink()
    _, *later = checkpoints(to)
    assert later
    for path in later:
        shutil.rmtree(path)
    return to


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """Runs of one process, and of two with half the batch; one start of two processes for all tests."""
    out = tmp_path_factory.mktemp("processes")
    texts = out / "texts"
    for number, length in enumerate([9, 30, 60, 3, 26, 50, 75, 12, 41, 7, 90, 30, 20, 4]):
        file = texts / ("train" if number < 11 else "valid") / f"{number}.txt"  # less than a window to four sequences
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(" ".join(f"w{10 + (number * 7 + at * at) % 40}" for at in range(length)))
    bases = {name: model_folder(out / name, name) for name in set(MEMORIES.values())}
    for mechanism, base in MEMORIES.items():
        invoke(*arguments(bases[base], texts, out / f"one-{mechanism}", mechanism, 4))
    grouped = {"set": "group_by_length=true", "epochs": 2, "valid-every": 400}
    invoke(*arguments(bases["gpt2"], texts, out / "one-grouped", "carry", 4, **grouped))
    cut_short(out / "one-carry", out / "resumed-by-two")
    cut_short(out / "one-grouped", out / "grouped-resumed-by-two")
    commands = [
        [kind, *arguments(bases[base], texts, out / f"{kind}-{mechanism}", mechanism, 2)]
        for mechanism, base in MEMORIES.items()
        for kind in ("ddp", "fsdp")
    ]
    more = {"resumed-by-two": {}, "grouped-resumed-by-two": grouped}
    commands += [["ddp", *arguments(bases["gpt2"], texts, out / name, "carry", 2, **own)] for name, own in more.items()]
    for own in ({"max-minutes": 0.0001}, {}):  # the first stops after one step, the second resumes it
        commands.append(["fsdp", *arguments(bases["gpt2"], texts, out / "fsdp-resumed", "carry", 2, **own)])
    scoring = ["evaluate", str(out / "one-carry"), "--data", str(texts), "--split", "all", "--out"]
    commands.append(["ddp", *scoring, str(out / "scores-of-two.json")])
    invoke(*scoring, out / "scores-of-one.json")
    commands.append(["fsdp", *arguments(bases["gpt2"], texts, out / "refused", "kv", 2)])
    config = out / "fsdp.yaml"
    config.write_text(FSDP)
    printed = accelerate_launch(config, commands)
    # A run that two processes began ends in one.
    cut_short(out / "ddp-carry", out / "resumed-by-one")
    invoke(*arguments(bases["gpt2"], texts, out / "resumed-by-one", "carry", 4))
    return SimpleNamespace(out=out, printed=printed.output, reported=printed.errors, commands=commands)


def losses(run: Path) -> list[tuple[str, int, float]]:
    history = json.loads((run / "result.json").read_text())["history"]
    return [(name, entry["step"], entry[name]) for entry in history for name in ("loss", "eval_loss") if name in entry]


def check_same_run(ours: Path, theirs: Path) -> None:
    found, expected = losses(ours), losses(theirs)
    assert [entry[:2] for entry in found] == [entry[:2] for entry in expected]
    assert [entry[2] for entry in found] == pytest.approx([entry[2] for entry in expected], rel=TOLERANCE)
    assert weights_of(ours).keys() == weights_of(theirs).keys()


@pytest.mark.parametrize("mechanism", MEMORIES)
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_losses_are_those_of_one_process_with_twice_the_batch(kind: str, mechanism: str, runs: Any) -> None:
    one = runs.out / f"one-{mechanism}"
    assert len(losses(one)) >= 9
    check_same_run(runs.out / f"{kind}-{mechanism}", one)


@pytest.mark.parametrize(
    ("name", "whole"),
    [
        ("resumed-by-one", "one-carry"),
        ("resumed-by-two", "one-carry"),
        ("grouped-resumed-by-two", "one-grouped"),
        ("fsdp-resumed", "one-carry"),
    ],
)
def test_checkpoint_resumes(name: str, whole: str, runs: Any) -> None:
    """On another number of processes, but for FSDP."""
    check_same_run(runs.out / name, runs.out / whole)
    legs = json.loads((runs.out / name / "result.json").read_text())["legs"]
    assert legs[-1]["first_step"] > 0


def test_evaluation_divides_documents(runs: Any) -> None:
    two, one = (json.loads((runs.out / f"scores-of-{name}.json").read_text()) for name in ("two", "one"))
    assert len(one["rows"]) > 1  # the base is scored, too
    for ours, theirs in zip(two["rows"], one["rows"], strict=True):
        assert ours["perplexity_per_word"] == pytest.approx(theirs["perplexity_per_word"], rel=1e-6)
    (ours,), (theirs,) = two["documents"].values(), one["documents"].values()
    for name in ("loss_by_position", "loss_by_window"):
        assert ours[0][name] == pytest.approx(theirs[0][name], rel=1e-5)


def test_all_processes_end_where_the_first_finds_an_error(runs: Any) -> None:
    """The first alone reads the base, which has no rotary positions; the others would wait for it."""
    assert len(re.findall("^refused: .*rotary", runs.reported, re.MULTILINE)) == 2
    assert not (runs.out / "refused").exists()


def test_other_number_of_processes_names_the_batch_that_resumes(runs: Any) -> None:
    two = shutil.copytree(runs.out / "ddp-carry", runs.out / "stopped")
    (two / "result.json").unlink()
    base, texts = runs.out / "gpt2", runs.out / "texts"
    with pytest.raises(UserError, match=r"has 4 sequences in an update, here there would be 2: .* must be 4\."):
        invoke(*arguments(base, texts, two, "carry", 2))


def test_only_the_first_process_prints(runs: Any) -> None:
    trained = [command for command in runs.commands if command[1] == "train"]
    finished = len(trained) - 2  # one was stopped, one refused
    assert runs.printed.count("best validation:") == runs.printed.count("\nmodel: ") == finished
    assert runs.reported.count("preparing the first step") + runs.reported.count("resuming the run") >= len(trained) - 1
    assert runs.reported.count("resuming the run") == 3
