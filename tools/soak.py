"""What recurrify survives: kills, signals, full disks, little memory, damaged files and generated bad input.

    python tools/soak.py --kills 100 --inputs 2000 --table docs/survives-table.md

Every command runs in a forked process. A run that was disturbed is repeated until it ends, and its weights are compared
with those of an undisturbed run.
"""

import argparse
import contextlib
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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from hypothesis import HealthCheck, Phase, given, settings

from support.bad_input import command_lines, commands, write_inputs, written_files
from support.faults import FULL, HANGS, Ended, contents, damage, run_command

STEPS = "--window 16 --report-to none --batch 2 --learning-rate 0.01 --set warmup_steps=1"
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
COLUMNS = ("tries", "tracebacks", "hangs", "other weights", "changed foreign files")


def training_commands(inputs: Path) -> dict[str, list[str]]:
    """Each command that trains, in seconds."""
    text, rows, asked = inputs / "text.txt", inputs / "rows.csv", inputs / "asked.json"
    lines = [
        f"train --model shipped:base --data {text} {STEPS} --windows 2 --max-tokens 400 --valid-every 100",
        f"classify train --model shipped:base --data {rows} {STEPS} --epochs 2",
        f"qa train --model {inputs / 'encoder'} --data {asked} {STEPS} --epochs 5 --set hidden_size=8",
        f"pretrain --data {text} --layers 1 --width 16 --heads 2 --positions 16 --vocabulary 300 --batch 2 "
        "--max-tokens 300 --valid-every 100",
        f"scratch train --data {text} --arch lstm --length 16 --batch 2 --steps 8 --set layers=1 --set width=16",
    ]
    return {line.partition(" --")[0]: line.split() for line in lines if has(line.split()[0])}


def has(name: str) -> bool:
    return any(words[0] == name for words, _ in commands(without=()))


class Soak:
    """The counts of a run."""

    def __init__(self, folder: Path, seed: int, seconds: float) -> None:
        self.folder, self.chance, self.end = folder, random.Random(seed), time.monotonic() + seconds
        self.inputs = folder / "inputs"
        write_inputs(self.inputs)
        write_encoder(self.inputs / "encoder")
        self.before = contents(self.inputs)
        self.rows: dict[str, Counter[str]] = {}
        self.failures: list[str] = []
        self.whole: dict[str, dict[str, str]] = {}
        self.events: dict[str, int] = {}

    def note(self, row: str, ended: Ended, what: str) -> None:
        """Count how a command ended."""
        counts = self.rows.setdefault(row, Counter())
        found = []
        if ended.code == HANGS:
            found.append("hangs")
        elif not (ended.is_clean or ended.code in (-signal.SIGKILL, -signal.SIGTERM)):
            found.append("tracebacks")
        if contents(self.inputs) != self.before:
            found.append("changed foreign files")
            self.before = contents(self.inputs)
        for one in found:
            counts[one] += 1
            self.failures.append(f"{row}: {one}: {what}: code {ended.code}: {ended.said[-1500:]}")

    def undisturbed(self, name: str, line: list[str]) -> dict[str, str]:
        """The checksums of the model that an undisturbed run saves."""
        if name not in self.whole:
            out = self.folder / "whole"
            ended = run_command([*line, "--out", out], self.folder)
            if ended.code:
                raise SystemExit(f"{name} does not run: {ended.said}")
            self.whole[name], self.events[name] = weights(out), ended.events
            shutil.rmtree(out)
        return self.whole[name]

    def compare(self, row: str, name: str, line: list[str], out: Path, what: str) -> None:
        """Run a disturbed command to its end, and compare its weights."""
        ended = run_command([*line, "--out", out], self.folder)
        self.note(row, ended, what)
        if ended.code or weights(out) != self.undisturbed(name, line):
            self.rows[row]["other weights"] += 1
            self.failures.append(f"{row}: other weights: {what}: code {ended.code}: {ended.said[-1500:]}")

    def disturb(self, row: str, lines: dict[str, list[str]], tries: int, kinds: Sequence[str | int]) -> None:
        """Disturb runs once or twice, at any file-system event or at any time, and let them end."""
        for number in range(tries):
            if time.monotonic() > self.end:
                return
            name, line = list(lines.items())[number % len(lines)]
            self.undisturbed(name, line)
            out, told = self.folder / "run", []
            for _ in range(self.chance.choice((1, 1, 2))):
                kind, at = self.chance.choice(kinds), self.chance.randint(1, self.events[name])
                after = None if kind == FULL or self.chance.random() < 0.7 else self.chance.uniform(0, 3)
                told.append(f"{name}, {kind!r} at event {at}, after {after} s")
                ended = run_command([*line, "--out", out], self.folder, kind, at, after=after)
                self.note(row, ended, told[-1])
            self.rows[row]["tries"] += 1
            self.compare(row, name, line, out, "; ".join(told))
            shutil.rmtree(out, ignore_errors=True)

    def small_disks(self, lines: dict[str, list[str]], tries: int) -> None:
        """Runs on a tmpfs that is too small, which then grows."""
        row = "a file system of 0.1 to 8 MB that is full, then grows"
        for number in range(tries):
            name, line = list(lines.items())[number % len(lines)]
            size = int(100_000 * 80 ** self.chance.random())
            with tmpfs(self.folder / "disk", size) as disk:
                if disk is None or time.monotonic() > self.end:
                    return
                self.note(row, run_command([*line, "--out", disk / "run"], self.folder), f"{name}, {size} bytes")
                self.rows[row]["tries"] += 1
                subprocess.run(["mount", "-o", "remount,size=200m", str(disk)], check=True)
                self.compare(row, name, line, disk / "run", f"{name}, {size} bytes")

    def limited(self, lines: dict[str, list[str]], tries: int) -> None:
        """Runs under `ulimit -f` and `ulimit -v`, then without."""
        held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        for number in range(tries):
            if time.monotonic() > self.end:
                return
            name, line = list(lines.items())[number // 2 % len(lines)]
            row = ("ulimit -f (largest file)", "ulimit -v (memory)")[number % 2]
            most = int(2_000 * 2_000 ** self.chance.random())
            limits = {resource.RLIMIT_FSIZE: most} if number % 2 == 0 else {resource.RLIMIT_AS: held + 20 * most}
            out = self.folder / "run"
            self.note(row, run_command([*line, "--out", out], self.folder, limits=limits), f"{name}, {most}")
            self.rows[row]["tries"] += 1
            self.compare(row, name, line, out, f"{name}, {most}")
            shutil.rmtree(out, ignore_errors=True)

    def damaged_checkpoints(self, lines: dict[str, list[str]], tries: int) -> None:
        """Damage files of a stopped run, and resume it."""
        row = "damaged checkpoints"
        for number in range(tries):
            if time.monotonic() > self.end:
                return
            name, line = list(lines.items())[number % len(lines)]
            self.undisturbed(name, line)
            out = self.folder / "run"
            at = self.chance.randint(self.events[name] // 2, self.events[name])
            run_command([*line, "--out", out], self.folder, signal.SIGKILL, at)
            files = sorted(path for path in out.glob("checkpoint-*/*") if path.is_file())
            if not files:
                continue
            what = f"{name}: {damage(self.chance.choice(files), self.chance)}"
            self.rows.setdefault(row, Counter())["tries"] += 1
            self.compare(row, name, line, out, what)
            shutil.rmtree(out, ignore_errors=True)

    def damaged_models(self, tries: int) -> None:
        """Damage files of a model folder, and use it."""
        row = "damaged model folders"
        shipped = Path(__file__).resolve().parents[1] / "src/recurrify/shipped"
        for _ in range(tries):
            if time.monotonic() > self.end:
                return
            model = self.folder / "model"
            shutil.copytree(shipped / self.chance.choice(("base", "recurrent")), model)
            what = damage(self.chance.choice(sorted(model.iterdir())), self.chance)
            out = self.folder / "run"
            line = self.chance.choice(
                [
                    f"generate {model} --prompt def --max-new-tokens 3",
                    f"evaluate {model} --data {self.inputs / 'text.txt'} --window 16",
                    f"add --model {model} --out {out}",
                    f"classify train --model {model} --data {self.inputs / 'rows.csv'} {STEPS} --epochs 1 --out {out}",
                ]
            ).split()
            self.note(row, run_command(line, self.folder), f"{line[0]}: {what}")
            self.rows[row]["tries"] += 1
            shutil.rmtree(model)
            shutil.rmtree(self.folder / "run", ignore_errors=True)

    def bad_inputs(self, tries: int) -> None:
        """Generated command lines, files and configs."""
        row, valid = "generated bad input", [path.read_bytes() for path in self.inputs.iterdir() if path.is_file()]
        known, place = commands(), self.folder / "place"
        os.chdir(self.inputs)

        @settings(max_examples=tries, deadline=None, database=None, phases=[Phase.generate], derandomize=True,
                  suppress_health_check=list(HealthCheck))  # fmt: skip
        @given(line=command_lines(known, place), file=written_files(valid))
        def one(line: list[str], file: tuple[str, bytes]) -> None:
            if time.monotonic() > self.end:
                return
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            made = [self.inputs / file[0], self.inputs / "made.yaml"]
            for path in made:
                path.write_bytes(file[1])
            self.before = contents(self.inputs)
            ended = run_command(line, self.folder, seconds=60)
            self.note(row, ended, f"{line} with {file!r}")
            self.rows[row]["tries"] += 1
            for path in made:
                path.unlink(missing_ok=True)

        one()
        os.chdir(self.folder)
        shutil.rmtree(place, ignore_errors=True)
        self.before = contents(self.inputs)


def write_encoder(folder: Path) -> None:
    from support.runs import encoder_folder

    encoder_folder(folder)


def weights(out: Path) -> dict[str, str]:
    """The checksums of a saved model, by file name."""
    found = contents(out / "model") if (out / "model").is_dir() else {}
    return {Path(name).name: sum_ for name, sum_ in found.items() if name.endswith(".safetensors")}


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


def table(soak: Soak) -> str:
    """The counts as a table of Markdown."""
    lines = ["| fault | " + " | ".join(COLUMNS) + " |", "|---|" + "---:|" * len(COLUMNS)]
    for row, counts in soak.rows.items():
        lines.append(f"| {row} | " + " | ".join(str(counts[name]) for name in COLUMNS) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="runs that are killed, stopped, or whose disk is full")
    parser.add_argument("--inputs", type=int, default=2000, help="generated bad inputs")
    parser.add_argument("--damages", type=int, default=200, help="damaged checkpoints, and as many damaged models")
    parser.add_argument("--minutes", type=float, default=600.0, help="stop after about this many minutes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--table", type=Path, help="write the table to this file")
    parser.add_argument("--only", nargs="*", help="only these parts: kills, disks, limits, checkpoints, models, inputs")
    given_ = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        os.environ["XDG_CACHE_HOME"] = f"{name}/cache"
        import recurrify.train.classify
        import recurrify.train.finetune  # noqa: F401 - before the forks

        soak = Soak(Path(name), given_.seed, 60 * given_.minutes)
        lines = training_commands(soak.inputs)
        parts: dict[str, Any] = {
            "kills": lambda: soak.disturb("kill -9, SIGTERM, Ctrl-C", lines, given_.kills, SIGNALS),
            "disks": lambda: (
                soak.disturb("full disk at any write", lines, given_.kills // 2, (FULL,)),
                soak.small_disks(lines, given_.kills // 4),
            ),
            "limits": lambda: soak.limited(lines, given_.kills // 2),
            "checkpoints": lambda: soak.damaged_checkpoints(lines, given_.damages),
            "models": lambda: soak.damaged_models(given_.damages),
            "inputs": lambda: soak.bad_inputs(given_.inputs),
        }
        for part, work in parts.items():
            if not given_.only or part in given_.only:
                begun = time.monotonic()
                work()
                print(f"{part}: {time.monotonic() - begun:.0f} s", file=sys.stderr)
        print("\n".join(soak.failures), file=sys.stderr)
        found = table(soak)
        print(found)
        if given_.table:
            given_.table.write_text(found)
    sys.exit(1 if soak.failures else 0)


if __name__ == "__main__":
    main()
