"""What recurrify survives: kills, signals, full disks, little memory, damaged files and generated bad input.

    python tools/soak.py --kills 100 --inputs 2000 --damages 200 --workers 4

Every command runs in a forked process. A run that was disturbed is repeated until it ends, and its weights are compared
with those of an undisturbed run. Each try has its own seed and its own line in the record (`--record`): the same
command does what is left, and `--again` repeats the tries that failed.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from hypothesis import HealthCheck, Phase, given, seed, settings

from recurrify.console import progress_bar
from recurrify.results import provenance, save_result
from support.bad_input import command_lines, commands, write_inputs, written_files
from support.faults import FULL, HANGS, Ended, contents, damage, run_command
from support.training import STEPS, saved_weights, training_commands

ROOT = Path(__file__).resolve().parents[1]
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
NOT_TESTED = ("demo", "bench", "experiment", "table3", "table1", "serve")
"""Commands that take minutes."""
COLUMNS = ("tries", "tracebacks", "hangs", "other weights", "changed foreign files")
HANGS_AFTER = 600.0
"""Seconds, on a busy machine."""
INPUTS_OF_A_TRY = 20


@dataclass
class Found:
    """The counts of a try, by row of the table, and what failed."""

    rows: dict[str, Counter[str]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def count(self, row: str, column: str, failure: str = "") -> None:
        self.rows.setdefault(row, Counter())[column] += 1
        if failure:
            self.failures.append(f"{row}: {column}: {failure}")


@dataclass(frozen=True)
class Whole:
    """An undisturbed run."""

    weights: dict[str, str]
    events: int
    seconds: float


class Soak:
    """The tries, in a folder of their own."""

    def __init__(self, folder: Path, encoder: Path | None = None) -> None:
        self.folder, self.inputs, self.out = folder, folder / "inputs", folder / "run"
        self.chance, self.found = random.Random(), Found()
        write_inputs(self.inputs)
        if encoder is not None:
            shutil.copytree(encoder, self.inputs / "encoder")
        else:
            from support.runs import encoder_folder

            encoder_folder(self.inputs / "encoder")
        self.lines = training_commands(self.inputs)
        self.before = contents(self.inputs)
        self.whole: dict[str, Whole] = {}

    def one(self, part: str, number: int, start: int) -> Found:
        """Do one try. `start` is the seed of all tries."""
        self.chance, self.found = random.Random(f"{start} {part} {number}"), Found()
        getattr(self, part)(number)
        shutil.rmtree(self.out, ignore_errors=True)
        return self.found

    def run(self, row: str, line: list[Any], what: str, **fault: Any) -> Ended:
        """Run a command, and count how it ended."""
        ended = run_command(line, self.folder, seconds=HANGS_AFTER, **fault)
        said = f"{what}: code {ended.code}: {ended.said[-3000:]}"
        if ended.code == HANGS:
            self.found.count(row, "hangs", said)
        elif not (ended.is_clean or ended.code in (-signal.SIGKILL, -signal.SIGTERM)):
            self.found.count(row, "tracebacks", said)
        if contents(self.inputs) != self.before:
            self.found.count(row, "changed foreign files", said)
            self.before = contents(self.inputs)
        return ended

    def undisturbed(self) -> None:
        """Run each command that trains without a fault."""
        for name, line in self.lines.items():
            begun = time.monotonic()
            ended = run_command([*line, "--out", self.out], self.folder)
            if ended.code:
                raise SystemExit(f"{name} does not run: {ended.said}")
            self.whole[name] = Whole(saved_weights(self.out), ended.events, time.monotonic() - begun)
            shutil.rmtree(self.out)

    def compare(self, row: str, name: str, out: Path, what: str) -> None:
        """Run a disturbed command to its end, and compare its weights."""
        self.found.count(row, "tries")
        ended = self.run(row, [*self.lines[name], "--out", out], what)
        if ended.code or saved_weights(out) != self.whole[name].weights:
            self.found.count(row, "other weights", f"{what}: code {ended.code}: {ended.said[-1500:]}")

    def kills(self, number: int) -> None:
        self._disturb("kill -9, SIGTERM, Ctrl-C, once or twice in a run", number, SIGNALS)

    def disks(self, number: int) -> None:
        self._disturb("full disk at any write", number, (FULL,))

    def _disturb(self, row: str, number: int, kinds: tuple[str | int, ...]) -> None:
        """Disturb a run once or twice, at any file-system event or at any time, and let it end."""
        name, said = list(self.lines)[number % len(self.lines)], []
        for _ in range(self.chance.choice((1, 1, 2))):
            kind, at = self.chance.choice(kinds), self.chance.randint(1, self.whole[name].events)
            is_timed = kind != FULL and self.chance.random() < 0.3
            after = self.chance.uniform(0, self.whole[name].seconds) if is_timed else None
            said.append(f"{name}, {kind!r} at event {at}, after {after} s")
            self.run(row, [*self.lines[name], "--out", self.out], said[-1], fault=kind, at=at, after=after)
        self.compare(row, name, self.out, "; ".join(said))

    def small_disks(self, number: int) -> None:
        """A run on a tmpfs that is too small, which then grows."""
        row, name = "a file system of 0.1 to 8 MB that is full, then grows", list(self.lines)[number % len(self.lines)]
        size = int(100_000 * 80 ** self.chance.random())
        what = f"{name}, {size} bytes"
        with tmpfs(self.folder / "disk", size) as disk:
            if disk is not None:
                self.run(row, [*self.lines[name], "--out", disk / "run"], what)
                subprocess.run(["mount", "-o", "remount,size=200m", str(disk)], check=True)
                self.compare(row, name, disk / "run", what)

    def limits(self, number: int) -> None:
        """A run under `ulimit -f` or `ulimit -v`, then without."""
        name = list(self.lines)[number // 2 % len(self.lines)]
        row = ("`ulimit -f` (largest file)", "`ulimit -v` (memory)")[number % 2]
        most = int(2_000 * 2_000 ** self.chance.random())
        held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        limits = {resource.RLIMIT_FSIZE: most} if number % 2 == 0 else {resource.RLIMIT_AS: held + 20 * most}
        self.run(row, [*self.lines[name], "--out", self.out], f"{name}, {most}", limits=limits)
        self.compare(row, name, self.out, f"{name}, {most}")

    def checkpoints(self, number: int) -> None:
        """Damage a file of a stopped run's checkpoints, and resume it."""
        name = list(self.lines)[number % len(self.lines)]
        files: list[Path] = []
        while not files:
            shutil.rmtree(self.out, ignore_errors=True)
            at = self.chance.randint(self.whole[name].events // 2, self.whole[name].events)
            run_command([*self.lines[name], "--out", self.out], self.folder, signal.SIGKILL, at)
            files = sorted(path for path in self.out.glob("checkpoint-*/*") if path.is_file())
        said = damage(self.chance.choice(files), self.chance)
        self.compare("damaged checkpoints", name, self.out, f"{name}: {said}")

    def models(self, number: int) -> None:
        """Damage a file of a model folder, and use it."""
        row, model = "damaged model folders", self.folder / "model"
        shutil.copytree(ROOT / "src/recurrify/shipped" / self.chance.choice(("base", "recurrent")), model)
        what = damage(self.chance.choice(sorted(model.iterdir())), self.chance)
        rows, text = self.inputs / "rows.csv", self.inputs / "text.txt"
        lines = [
            f"generate {model} --prompt def --max-new-tokens 3",
            f"evaluate {model} --data {text} --window 16",
            f"add --model {model} --out {self.out}",
            f"classify train --model {model} --data {rows} {STEPS} --epochs 1 --out {self.out}",
        ]
        line = self.chance.choice(lines).split()
        self.run(row, line, f"{line[0]}: {what}")
        self.found.count(row, "tries")
        shutil.rmtree(model)

    def bad_inputs(self, number: int) -> None:
        """Generated command lines, files and configs."""
        valid = [path.read_bytes() for path in sorted(self.inputs.iterdir()) if path.is_file()]
        place = self.folder / "place"
        os.chdir(self.inputs)

        @seed(self.chance.randrange(2**32))
        @settings(max_examples=INPUTS_OF_A_TRY, deadline=None, database=None, phases=[Phase.generate],
                  suppress_health_check=list(HealthCheck))  # fmt: skip
        @given(line=command_lines(commands(NOT_TESTED), place), file=written_files(valid))
        def check(line: list[str], file: tuple[str, bytes]) -> None:
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            made = {self.inputs / file[0], self.inputs / "made.yaml"}
            for path in made:
                path.write_bytes(file[1])
            self.before = contents(self.inputs)
            self.run("generated bad input", line, f"{line} with {file!r}")
            self.found.count("generated bad input", "tries")
            for path in made:
                path.unlink(missing_ok=True)

        check()
        os.chdir(self.folder)
        self.before = contents(self.inputs)


@contextlib.contextmanager
def tmpfs(folder: Path, size: int) -> Iterator[Path | None]:
    """A file system of so many bytes; None where it cannot be mounted."""
    folder.mkdir(exist_ok=True)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "soak", str(folder)], capture_output=True)
    try:
        yield folder if done.returncode == 0 else None
    finally:
        if done.returncode == 0:
            subprocess.run(["umount", str(folder)], check=True)


def import_all(folder: Path) -> None:
    """Run commands in this process, so that forked ones find everything imported."""
    from recurrify.cli.main import main

    for name, line in training_commands(folder / "inputs").items():
        sys.argv = ["recurrify", *line, "--out", str(folder / name)]
        with contextlib.suppress(SystemExit), open(os.devnull, "w") as null, contextlib.redirect_stdout(null):
            main()


_own: Soak
"""That of this worker."""


def _start(parent: Soak) -> None:
    global _own
    place = parent.folder / f"worker-{os.getpid()}"
    place.mkdir()
    _own = Soak(place, parent.inputs / "encoder")
    _own.whole = parent.whole


def _try(part: str, number: int, start: int) -> Found:
    return _own.one(part, number, start)


def work(soak: Soak, tries: list[tuple[str, int]], workers: int, start: int, end: float, record: Path) -> None:
    """Do the tries in worker processes until the time is up; each that is done gets a line in the record."""
    soak.undisturbed()
    context, waiting = multiprocessing.get_context("fork"), list(reversed(tries))
    with (
        ProcessPoolExecutor(workers, context, _start, (soak,)) as pool,
        record.open("a") as file,
        progress_bar("soak", len(tries), "tries") as tick,
    ):
        running: dict[Any, tuple[str, int]] = {}
        while running or (waiting and time.monotonic() < end):
            while waiting and len(running) < workers and time.monotonic() < end:
                part, number = waiting.pop()
                running[pool.submit(_try, part, number, start)] = part, number
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                (part, number), found = running.pop(done), done.result()
                entry = {"part": part, "number": number, "rows": found.rows, "failures": found.failures}
                file.write(json.dumps(entry) + "\n")
                file.flush()
                tick(1)


def counted(entries: list[dict[str, Any]]) -> dict[str, Counter[str]]:
    """The counts of all tries, by row of the table."""
    rows: dict[str, Counter[str]] = {}
    for entry in entries:
        for row, counts in entry["rows"].items():
            rows.setdefault(row, Counter()).update(counts)
    return rows


def table(rows: dict[str, Counter[str]]) -> str:
    """The counts as a table of Markdown."""
    lines = ["| fault | " + " | ".join(COLUMNS) + " |", "|---|" + "---:|" * len(COLUMNS)]
    lines += [f"| {row} | " + " | ".join(f"{rows[row][name]:,}" for name in COLUMNS) + " |" for row in sorted(rows)]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="runs that are killed; half as many meet a full disk")
    parser.add_argument("--inputs", type=int, default=2000, help="generated bad inputs")
    parser.add_argument("--damages", type=int, default=200, help="damaged checkpoints, and as many damaged models")
    parser.add_argument("--minutes", type=float, default=600.0, help="stop after about this many minutes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2, help="tries at the same time")
    parser.add_argument("--record", type=Path, default=Path("runs/soak.jsonl"), help="one line for each try")
    parser.add_argument("--result", type=Path, help="write the counts, with provenance, as this JSON file")
    parser.add_argument("--again", action="store_true", help="repeat the tries that failed")
    parser.add_argument("--only", nargs="*", help="only these parts, such as kills, disks, models or bad_inputs")
    asked = parser.parse_args()
    started, end = time.time(), time.monotonic() + 60 * asked.minutes
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    import torch

    torch.set_num_threads(1)
    counts = {
        "kills": asked.kills,
        "disks": asked.kills // 2,
        "small_disks": asked.kills // 4,
        "limits": asked.kills // 2,
        "checkpoints": asked.damages,
        "models": asked.damages,
        "bad_inputs": -(-asked.inputs // INPUTS_OF_A_TRY),
    }
    tries = [(part, n) for part, count in counts.items() if not asked.only or part in asked.only for n in range(count)]
    asked.record.parent.mkdir(parents=True, exist_ok=True)
    earlier = [json.loads(line) for line in asked.record.read_text().splitlines()] if asked.record.exists() else []
    kept = [entry for entry in earlier if not (asked.again and entry["failures"])]
    asked.record.write_text("".join(json.dumps(entry) + "\n" for entry in kept))
    done = {(entry["part"], entry["number"]) for entry in kept}
    left = sorted((one for one in tries if one not in done), key=lambda one: one[1] / counts[one[0]])
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        os.environ["XDG_CACHE_HOME"] = f"{name}/cache"
        soak = Soak(Path(name))
        import_all(soak.folder)
        work(soak, left, asked.workers, asked.seed, end, asked.record)
    entries = [json.loads(line) for line in asked.record.read_text().splitlines()]
    failures = [failure for entry in entries for failure in entry["failures"]]
    print("\n\n".join(failures), file=sys.stderr)
    print(table(counted(entries)))
    if asked.result is not None:
        config = {**counts, "seed": asked.seed, "workers": asked.workers}
        rows = [{"fault": row, **{name: found[name] for name in COLUMNS}} for row, found in counted(entries).items()]
        about = provenance(config, seed=asked.seed, started=started)
        save_result(asked.result, {"kind": "soak", "rows": rows, "provenance": about})
    print(f"{len(entries)} of {len(tries)} tries done: {asked.record}", file=sys.stderr)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
