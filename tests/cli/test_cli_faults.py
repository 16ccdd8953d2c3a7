"""Kills, signals, full disks, little memory, damaged checkpoints and generated bad input, through whole commands.

`make soak` runs many more of each.
"""

import json
import os
import random
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from recurrify.model_names import SHIPPED
from recurrify.train.checkpoints import last_whole_checkpoint
from recurrify.train.loop import RecurrentTrainer
from support.bad_input import command_lines, commands, write_inputs, written_files
from support.faults import FULL, HANGS, Ended, contents, damage, run_command
from support.processes import free_port
from support.runs import assert_same_end, encoder_folder, labelled_file, question_file

SHARED = "--window 8 --batch 3 --learning-rate 0.01 --set warmup_steps=1 --report-to none"
TRAINING = {
    "train": f"train {SHARED} --mechanism carry --windows 3 --max-tokens 500 --valid-every 150",
    "classify": f"classify train {SHARED} --epochs 2 --set hidden_size=8",
    "qa": f"qa train {SHARED} --window 16 --epochs 6 --set hidden_size=8",
}
Line = Callable[[str, Path], list[object]]


@pytest.fixture(scope="module")
def line(base: Path, texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Line:
    """The command that trains into a folder."""
    folder = tmp_path_factory.mktemp("inputs")
    inputs = {
        "train": (base, texts),
        "classify": (base, labelled_file(folder / "labelled.csv")),
        "qa": (encoder_folder(folder / "encoder"), question_file(folder / "questions.json")),
    }

    def build(command: str, out: Path) -> list[object]:
        model, data = inputs[command]
        return [*TRAINING[command].split(), "--model", model, "--data", data, "--out", out]

    return build


@pytest.fixture(scope="module")
def whole(line: Line, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, int]]:
    """The folder of a command's undisturbed run, and its number of file-system events."""
    found: dict[str, tuple[Path, int]] = {}

    def build(command: str) -> tuple[Path, int]:
        if command not in found:
            folder = tmp_path_factory.mktemp("whole")
            ended = run_command(line(command, folder / "run"), folder)
            assert ended.code == 0, ended.said
            found[command] = folder / "run", ended.events
        return found[command]

    return build


@pytest.mark.parametrize("command", TRAINING)
def test_a_run_that_is_stopped_again_and_again(
    command: str, line: Line, whole: Callable[[str], tuple[Path, int]], tmp_path: Path
) -> None:
    """Killed, terminated and interrupted at random points, it ends with the weights of an undisturbed run."""
    undisturbed, events = whole(command)
    chance, out, codes = random.Random(command), tmp_path / "run", []
    (out / "model" / ".saving-killed").mkdir(parents=True)  # of an earlier kill
    shutil.copy(undisturbed / "run.json", out)
    for kind in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
        ended = run_command(line(command, out), tmp_path, kind, chance.randint(events // 4, 3 * events // 4))
        assert ended.code in (-kind, 143, 130, 0), ended.said
        assert "Traceback" not in ended.said
        assert ended.code != 143 or ended.said.endswith("run the same command again to resume.\n")
        codes.append(ended.code)
    ended = run_command(line(command, out), tmp_path)
    assert ended.code == 0, ended.said
    assert -signal.SIGKILL in codes
    assert_same_end(out, undisturbed)
    assert not (out / "model" / ".saving-killed").exists()


def test_signal_to_one_of_two_processes_stops_both(line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other would wait for it without end."""
    real = RecurrentTrainer.training_step

    def disturbed(self: RecurrentTrainer, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step == 1 and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGTERM)
        return real(self, *args, **kwargs)

    monkeypatch.setattr(RecurrentTrainer, "training_step", disturbed)
    address = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}

    def process(rank: str) -> Ended:
        (tmp_path / rank).mkdir()
        environment = {**address, "RANK": rank, "LOCAL_RANK": rank}
        return run_command(line("train", tmp_path / "run"), tmp_path / rank, environment=environment)

    with ThreadPoolExecutor(2) as pool:
        ended = list(pool.map(process, "01"))
    assert "stopped and saved" in ended[0].said, ended
    assert ended[1].code == 143, ended
    assert not (tmp_path / "run" / "result.json").exists()
    saved = last_whole_checkpoint(tmp_path / "run")
    assert saved is not None
    assert json.loads((saved / "trainer_state.json").read_text())["global_step"] == 2


@pytest.mark.parametrize("part", [0.2, 0.9])
def test_full_disk(part: float, line: Line, whole: Callable[[str], tuple[Path, int]], tmp_path: Path) -> None:
    undisturbed, events = whole("train")
    ended = run_command(line("train", tmp_path / "run"), tmp_path, FULL, int(part * events))
    assert ended.code == 2, ended.said
    assert "Traceback" not in ended.said
    assert "No space left on device" in ended.said
    assert run_command(line("train", tmp_path / "run"), tmp_path).code == 0
    assert_same_end(tmp_path / "run", undisturbed)


@pytest.mark.parametrize("megabytes", [0.01, 0.05])
def test_largest_file(megabytes: float, line: Line, tmp_path: Path) -> None:
    """As `ulimit -f` sets it: writes from Rust and C++ fail too."""
    limit = {resource.RLIMIT_FSIZE: int(2**20 * megabytes)}
    ended = run_command(line("train", tmp_path / "run"), tmp_path, limits=limit)
    assert ended.code == 2, ended.said
    assert "Traceback" not in ended.said


def test_memory_runs_out(line: Line, tmp_path: Path) -> None:
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    command = [*line("train", tmp_path / "run"), "--batch", 300, "--windows", 300, "--set", "hidden_size=4096"]
    ended = run_command(command, tmp_path, limits={resource.RLIMIT_AS: held + 2**26})
    assert ended.code == 2, ended.said
    assert "Traceback" not in ended.said
    assert "memory" in ended.said


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("bad")
    write_inputs(folder / "inputs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder / "inputs")
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # the variable is read once, at the import
        yield folder


def test_generated_bad_input(place: Path) -> None:
    """Never a traceback, a hang, or a changed file outside `--out`."""
    inputs, out = place / "inputs", place / "out"
    valid = [path.read_bytes() for path in sorted(inputs.iterdir()) if path.is_file()]

    @settings(
        max_examples=40,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(line=command_lines(commands(), out), file=written_files(valid))
    def check(line: list[str], file: tuple[str, bytes]) -> None:
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        for name in (file[0], "made.yaml"):
            (inputs / name).write_bytes(file[1])
        before = contents(inputs)
        ended = run_command(line, place)
        assert ended.code != HANGS, line
        assert ended.is_clean, (line, ended)
        assert contents(inputs) == before, line
        for name in {file[0], "made.yaml"}:
            (inputs / name).unlink()

    check()


def test_changed_questions_raise(line: Line, whole: Callable[[str], tuple[Path, int]], tmp_path: Path) -> None:
    test = question_file(tmp_path / "test.json")
    command = [*line("qa", tmp_path / "run"), "--test", test, "--epochs", 1]
    assert run_command(command, tmp_path).code == 0
    test.write_text(test.read_text().replace("rome", "bern"))
    ended = run_command(command, tmp_path)
    assert ended.code == 2
    assert "the validation or test data changed since the run" in ended.said


@pytest.mark.parametrize(
    "command",
    [
        "train --model shipped:base --data text.txt --valid pipe --out {out}",
        "train --model shipped:base --data text.txt --out {out} --config pipe",
        "evaluate shipped:base --data folder",
        "evaluate shipped:base --data text.txt --out /dev/null",
        "evaluate shipped:base --data text.txt --page pipe",
        "generate shipped:base --prompt-file pipe",
        "generate {out}/model --prompt x",
        "classify predict shipped:base --data /dev/zero --out {out}.csv",
        "qa train --model {out}/model --data pipe --out {out}",
        "probe page pipe",
    ],
)
def test_special_files_are_neither_read_nor_written(command: str, place: Path, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    os.mkfifo(tmp_path / "model" / "tokenizer.json")
    ended = run_command(command.format(out=tmp_path).split(), tmp_path)
    assert ended.code == 2, ended
    assert "Traceback" not in ended.said
    assert Path("/dev/null").is_char_device()
    assert (place / "inputs" / "pipe").is_fifo()


def test_damaged_model_folder(place: Path, tmp_path: Path) -> None:
    """Whatever is cut or flipped: the model works, or one sentence says what is wrong."""
    chance = random.Random(0)
    for number in range(8):
        model = shutil.copytree(SHIPPED / "recurrent", tmp_path / str(number))
        damaged = damage(sorted(model.iterdir())[number % 5], chance)
        ended = run_command(["generate", model, "--prompt", "def", "--max-new-tokens", 2], tmp_path)
        assert ended.is_clean, (damaged, ended)


def test_ascii_terminal(place: Path, tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text("naïve 🙂 –")
    command = ["generate", "shipped:base", "--prompt-file", tmp_path / "prompt.txt", "--max-new-tokens", 1]
    ended = run_command(command, tmp_path, encoding="ascii")
    assert ended.code == 0, ended
    assert "na?ve" in ended.said
