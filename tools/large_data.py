"""Train on generated text that is larger than the memory that the process may use.

    python tools/large_data.py --gib 10 --limit-gib 4 --folder /tmp/large

Writes Parquet files of random words, limits this process's data (RLIMIT_DATA: everything but mapped files), and trains
the shipped model on them for a few steps. Prints the peaks of memory.
"""

import argparse
import json
import resource
import time
from pathlib import Path

import numpy as np

GIB = 2**30
DOCUMENT, FILE = 100_000, 2**27
"""Characters of a document, and about of a file."""


def write_text(folder: Path, size: int) -> None:
    """Parquet files with `size` characters in all, unless they are there."""
    import pyarrow
    from pyarrow import parquet

    random = np.random.default_rng(0)
    letters = list("etaoinshrdlcumwfgypbvk")
    words = np.array(["".join(random.choice(letters, random.integers(2, 9))) for _ in range(20_000)])
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(-(-size // FILE)):
        path = folder / f"{number:04}.parquet"
        if path.exists():
            continue
        rows = min(FILE, size - number * FILE) // DOCUMENT
        texts = [" ".join(random.choice(words, DOCUMENT // 5))[:DOCUMENT] for _ in range(max(rows, 1))]
        parquet.write_table(pyarrow.table({"text": texts}), path.with_suffix(".tmp"), row_group_size=100)
        path.with_suffix(".tmp").rename(path)


def peak(name: str) -> float:
    """A line of /proc/self/status, in GiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / GIB for line in lines if line.startswith(name))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=float, default=10)
    parser.add_argument("--limit-gib", type=float, default=4)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=20_000, help="to train on")
    given = parser.parse_args()
    write_text(given.folder / "text", int(given.gib * GIB))
    limit = int(given.limit_gib * GIB)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    from recurrify.console import say
    from recurrify.train import TrainSettings
    from recurrify.train.finetune import train_run

    started = time.monotonic()
    settings = TrainSettings(
        model="shipped:base",
        data=str(given.folder / "text"),
        out=str(given.folder / "run"),
        recurrence={"mechanism": "carry", "window": 64},
        max_tokens=given.tokens,
        valid_every=given.tokens,
        valid_tokens=200,
        batch=2,
    )
    result = train_run(settings, say)
    found = {"text_gib": given.gib, "limit_gib": given.limit_gib, "steps": result["steps"]}
    found |= {"data_peak_gib": peak("VmData"), "anonymous_now_gib": peak("RssAnon")}
    found["resident_peak_with_mapped_files_gib"] = peak("VmHWM")
    print(json.dumps({**found, "seconds": round(time.monotonic() - started)}, indent=1))


if __name__ == "__main__":
    main()
