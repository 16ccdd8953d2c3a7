"""Command lines that train in a second, for tests of faults and `tools/soak.py`."""

from pathlib import Path

from support.bad_input import commands
from support.faults import contents

STEPS = "--window 16 --report-to none --batch 2 --learning-rate 0.01 --set warmup_steps=1"


def training_commands(inputs: Path) -> dict[str, list[str]]:
    """Each command that trains, in seconds."""
    text, rows, asked = inputs / "text.txt", inputs / "rows.csv", inputs / "asked.json"
    lines = [
        f"train --model shipped:base --data {text} {STEPS} --windows 2 --max-tokens 400 --valid-every 100",
        f"classify train --model shipped:base --data {rows} {STEPS} --epochs 2",
        f"qa train --model {inputs / 'encoder'} --data {asked} {STEPS} --epochs 5 --set hidden_size=8",
        f"pretrain --data {text} --layers 1 --width 16 --heads 2 --positions 16 --vocabulary 300 --batch 2 "
        "--max-tokens 300 --valid-every 100",
        f"scratch train --data {text} --arch lstm --length 16 --batch 2 --steps 8 --valid-every 96 --set layers=1 "
        "--set width=16",
        f"forecast train --data {inputs / 'waves.csv'} --model rsa-informer --horizon 4 --past 12 --width 16 "
        "--set heads=4 --set counts=1,1,1,1,0,0 --epochs 3 --set epoch_windows=64 --split 0.7/0.1/0.2",
    ]
    known = {words[0] for words, _ in commands(without=())}
    return {line.partition(" --")[0]: line.split() for line in lines if line.split()[0] in known}


def saved_weights(out: Path) -> dict[str, str]:
    """The checksums of a saved model, by file name."""
    found = contents(out / "model") if (out / "model").is_dir() else {}
    return {Path(name).name: sum_ for name, sum_ in found.items() if name.endswith(".safetensors")}
