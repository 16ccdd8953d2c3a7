"""What `tools/on_gpu.sh` calls, with an interpreter that only writes it down."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "tools" / "on_gpu.sh"
ONLY_WRITE_DOWN = """#!/usr/bin/env bash
[ "$1" = -c ] && exec {python} "$@"
echo "$*" >> {calls}
"""


WRITES_DOWN_ITSELF = """#!/usr/bin/env bash
echo "mps $1 $([ "$1" = -d ] || cat) $(basename "$(dirname "$CUDA_MPS_PIPE_DIRECTORY")")" >> {calls}
"""


def experiments_of(part: str, folder: Path) -> list[tuple[str, int]]:
    """The names and options of each `experiment run`, and how many run side by side."""
    python, calls = folder / "python", folder / "calls"
    python.write_text(ONLY_WRITE_DOWN.format(python=sys.executable, calls=calls))
    python.chmod(0o755)
    environment = {**os.environ, "PYTHON": str(python), "OUT": str(folder / "out"), "DATA": str(folder)}
    subprocess.run(["bash", SCRIPT, part], env=environment, check=True, stdout=subprocess.DEVNULL)
    found = re.findall(r"experiment run (.*) --size small .* --jobs (\d+) --max-minutes", calls.read_text())
    return [(names, int(jobs)) for names, jobs in found]


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ("protocol", [("rsa-enwik8", 1)]),
        ("rules", [("slides-complexity", 1), ("slides-lengths", 8)]),
    ],
)
def test_what_is_timed_has_the_device_to_itself(part: str, expected: list[tuple[str, int]], tmp_path: Path) -> None:
    assert experiments_of(part, tmp_path) == expected


def test_only_what_runs_side_by_side_shares_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = tmp_path / "bin" / "nvidia-cuda-mps-control"
    daemon.parent.mkdir()
    daemon.write_text(WRITES_DOWN_ITSELF.format(calls=tmp_path / "calls"))
    daemon.chmod(0o755)
    monkeypatch.setenv("PATH", f"{daemon.parent}:{os.environ['PATH']}")
    (tmp_path / "pipes").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "pipes"))
    assert experiments_of("rules", tmp_path) == [("slides-complexity", 1), ("slides-lengths", 8)]
    calls = [" ".join(line.split()) for line in (tmp_path / "calls").read_text().splitlines()]
    shorter = [re.sub(r".* experiment run (\S+) .*", r"\1", call) for call in calls]
    assert shorter == ["slides-complexity", "mps -d pipes", "slides-lengths", "mps quit pipes"]
    (tmp_path / "calls").unlink()
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "already there")
    experiments_of("rules", tmp_path)
    assert "mps" not in (tmp_path / "calls").read_text().split()


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ("small", ["rsa-small"]),
        ("mechanisms", ["mechanisms"]),
        ("questions", ["starts frozen tokens"]),
        ("unfamiliar", ["unfamiliar"]),
        ("rotary", ["rotary"]),
    ],
)
def test_the_parts_that_share_the_device(part: str, expected: list[str], tmp_path: Path) -> None:
    assert [names for names, _ in experiments_of(part, tmp_path)] == expected


def test_rotary_starts_from_the_model_beside_the_data(tmp_path: Path) -> None:
    (tmp_path / "stories15M").mkdir()
    assert [names for names, _ in experiments_of("rotary", tmp_path)] == [f"rotary --model {tmp_path / 'stories15M'}"]
