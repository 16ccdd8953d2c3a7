"""Kills, signals, full disks and damaged checkpoints, through whole commands; `tools/soak.py` does many more."""

import json
import random
import resource
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from support.bad_input import write_inputs
from support.faults import FULL, contents, damage, run_command
from support.training import saved_weights, training_commands

COMMANDS = ("pretrain", "scratch train", "forecast train")
Lines = dict[str, list[str]]
Whole = Callable[[str], tuple[Path, int]]


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Lines:
    folder = tmp_path_factory.mktemp("faults") / "inputs"
    write_inputs(folder)
    return training_commands(folder)


@pytest.fixture(scope="module")
def whole(lines: Lines, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """The folder of a command's undisturbed run, and its number of file-system events."""
    found: dict[str, tuple[Path, int]] = {}

    def build(command: str) -> tuple[Path, int]:
        if command not in found:
            folder = tmp_path_factory.mktemp("whole")
            ended = run_command([*lines[command], "--out", folder / "run"], folder)
            assert ended.code == 0, ended.said
            found[command] = folder / "run", ended.events
        return found[command]

    return build


@pytest.mark.parametrize("command", COMMANDS)
def test_a_run_that_is_stopped_again_and_again(command: str, lines: Lines, whole: Whole, tmp_path: Path) -> None:
    """From its first file on: the record of the run comes before a tokenizer."""
    undisturbed, events = whole(command)
    chance, line = random.Random(command), [*lines[command], "--out", tmp_path / "run"]
    for kind, at in (
        (signal.SIGKILL, events // 8),
        (signal.SIGKILL, chance.randint(events // 4, 3 * events // 4)),
        (signal.SIGTERM, events // 4),
        (signal.SIGINT, events // 4),
    ):
        ended = run_command(line, tmp_path, kind, at)
        assert ended.code in (-kind, 143, 130, 0), ended  # -kind: before there is anything to save
        assert "Traceback" not in ended.said
    ended = run_command(line, tmp_path)
    assert ended.code == 0, ended.said
    assert saved_weights(tmp_path / "run") == saved_weights(undisturbed)
    if command == "forecast train":
        assert (tmp_path / "run" / "evaluation.json").is_file()


@pytest.mark.parametrize("command", COMMANDS)
def test_full_disk(command: str, lines: Lines, whole: Whole, tmp_path: Path) -> None:
    """At the first write, and for the largest file."""
    undisturbed, _ = whole(command)
    line = [*lines[command], "--out", tmp_path / "run"]
    largest = max(file.stat().st_size for file in undisturbed.glob("model/*.safetensors"))
    for ended in (
        run_command(line, tmp_path, FULL, 1),
        run_command(line, tmp_path, limits={resource.RLIMIT_FSIZE: largest // 2}),
    ):
        assert ended.code == 2, ended
        assert "Traceback" not in ended.said
    assert run_command(line, tmp_path).code == 0
    assert saved_weights(tmp_path / "run") == saved_weights(undisturbed)


@pytest.mark.parametrize("command", ["pretrain", "scratch train"])
def test_damaged_checkpoint_has_one_before_it(command: str, lines: Lines, whole: Whole, tmp_path: Path) -> None:
    """Of `forecast train`, test_forecast_training damages one."""
    undisturbed, _ = whole(command)
    line, out = [*lines[command], "--out", tmp_path / "run"], tmp_path / "run"
    for stop in ("--max-minutes", "1e-9"), ("--max-minutes", "1e-9"):
        assert run_command([*line, *stop], tmp_path).code == 0
    older, newest = sorted(out.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    damage(newest / "optimizer.pt", random.Random(0))
    ended = run_command(line, tmp_path)
    assert f"from step {older.name.split('-')[1]}" in ended.said, ended
    assert "damaged" in ended.said
    assert saved_weights(out) == saved_weights(undisturbed)


def test_changed_validation_text_is_named(lines: Lines, tmp_path: Path) -> None:
    (tmp_path / "valid.txt").write_text("def word1(): return 2\n" * 9)
    line = [*lines["scratch train"], "--valid", tmp_path / "valid.txt", "--out", tmp_path / "run"]
    assert run_command([*line, "--max-minutes", "1e-9"], tmp_path).code == 0
    assert json.loads((tmp_path / "run" / "run.json").read_text())["held_out_checksum"]
    (tmp_path / "valid.txt").write_text("def word1(): return 1\n" * 9)
    before = contents(tmp_path / "run")
    ended = run_command(line, tmp_path)
    assert ended.code == 2
    assert "Error: the validation or test data changed since the run" in ended.said
    assert contents(tmp_path / "run") == before
    shutil.rmtree(tmp_path / "run")


def test_mistyped_validation_text_leaves_a_folder_that_can_be_used(lines: Lines, tmp_path: Path) -> None:
    line = [*lines["pretrain"], "--out", tmp_path / "run", "--max-minutes", "1e-9"]
    assert run_command([*line, "--valid", "mistyped.txt"], tmp_path).code == 2
    assert run_command(line, tmp_path).code == 0
