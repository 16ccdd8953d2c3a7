"""Train on generated text that is larger than the memory that a process may use.

    python tools/large_data.py --gib 10 --limit-gib 4 --folder /tmp/large --out papers/results/large-data.json

Writes Parquet files of random words and a tiny model whose tokenizer knows these words. Each training is `recurrify
train` in a process of its own, whose data are limited (RLIMIT_DATA: everything but mapped files):

1. The first is killed after its first checkpoint, by SIGKILL.
2. The same command resumes it.
3. Another run is not disturbed. Its weights must be those of the resumed one, bit for bit.

Then the order of the cached documents is compared with that of the rows.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

GIB = 2**30
DOCUMENT, FILE = 100_000, 2**27
"""Characters of a document, and about of a file."""
WORDS, PAD = 5_000, "<pad>"
COMPARED = 500
"""Documents whose tokens are compared with their rows."""
OPTIONS = {
    "mechanism": "carry",
    "window": 64,
    "windows": 4,
    "batch": 2,
    "max-tokens": 40_000,
    "valid-every": 10_000,
    "patience": 0,
    "learning-rate": 1e-3,
}


def new_words() -> np.ndarray:
    """Long ones: the time goes by the number of tokens."""
    random = np.random.default_rng(0)
    letters = list("etaoinshrdlcumwfgypbvk")
    made = ("".join(random.choice(letters, random.integers(24, 40))) for _ in range(2 * WORDS))
    return np.array(list(dict.fromkeys(made))[:WORDS])


def write_text(folder: Path, words: np.ndarray, size: int) -> None:
    """Parquet files with `size` characters to train on, and one to validate on, unless they are there."""
    import pyarrow
    from pyarrow import parquet

    sizes = {f"train/{number:04}": min(FILE, size - number * FILE) for number in range(-(-size // FILE))}
    for seed, (name, characters) in enumerate({**sizes, "valid/0000": DOCUMENT}.items()):
        path = folder / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            continue
        random = np.random.default_rng(seed)
        blocks = [" ".join(random.choice(words, DOCUMENT // 400)) for _ in range(100)]
        orders = random.integers(len(blocks), size=(-(-characters // DOCUMENT), 20))
        texts = [" ".join(blocks[one] for one in order)[:DOCUMENT] for order in orders]
        parquet.write_table(pyarrow.table({"text": texts}), path.with_suffix(".tmp"), row_group_size=100)
        path.with_suffix(".tmp").rename(path)


def write_model(folder: Path, words: np.ndarray) -> None:
    """A tiny GPT-2 with a tokenizer of whole words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, set_seed

    known = {word: number for number, word in enumerate(["<unk>", PAD, *words.tolist()])}
    tokenizer = Tokenizer(models.WordLevel(known, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", pad_token=PAD).save_pretrained(folder)
    set_seed(0)
    GPT2LMHeadModel(GPT2Config(vocab_size=len(known), n_embd=32, n_layer=2, n_head=2)).save_pretrained(folder)


def in_memory(process: int) -> float:
    """What a process has in memory now that is not a mapped file, in GiB; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 / GIB for line in lines if line.startswith("RssAnon")), 0)


def train(folder: Path, out: Path, limit: int, kill: bool = False) -> dict[str, Any]:
    """`recurrify train` with so much memory; with `kill` until its first checkpoint. Its time and peak."""
    given = {"model": folder / "model", "data": folder / "text", "out": out, **OPTIONS}
    options = [str(part) for name, value in given.items() for part in (f"--{name}", value)]
    started, peak, killed = time.monotonic(), 0.0, False
    process = subprocess.Popen(
        [sys.executable, "-m", "recurrify", "train", *options],
        env=os.environ | {"XDG_CACHE_HOME": str(folder / "cache"), "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit)),
    )
    while process.poll() is None:
        peak = max(peak, in_memory(process.pid))
        if kill and any(out.glob("checkpoint-*/checksums.json")):
            process.kill()
            killed = True
        time.sleep(0.1)
    if process.returncode and not killed:
        raise SystemExit(f"the training ended with code {process.returncode}")
    return {"killed": killed, "seconds": round(time.monotonic() - started), "peak_gib": round(peak, 2)}


def same_weights(ours: Path, theirs: Path) -> bool:
    one, other = ((run / "model" / "model.safetensors").read_bytes() for run in (ours, theirs))
    return one == other


def check_order(folder: Path, checksum: str) -> int:
    """Compare the cached tokens with the rows of the files; returns the number of documents."""
    from pyarrow import parquet
    from transformers import AutoTokenizer

    from recurrify.data.token_cache import tokenize_cached

    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    cached = tokenize_cached([], tokenizer, folder / "cache" / "recurrify", text_checksum=checksum)
    files = sorted((folder / "text" / "train").iterdir())
    rows = [(file, row) for file in files for row in range(parquet.ParquetFile(file).metadata.num_rows)]
    assert [document.name for document in cached] == [f"train/{file.name}:{row + 1}" for file, row in rows]
    for index in np.linspace(0, len(rows) - 1, min(COMPARED, len(rows)), dtype=int):
        file, row = rows[index]
        group, within = divmod(row, 100)
        text = parquet.ParquetFile(file).read_row_group(group)["text"][within].as_py()
        assert cached[index].ids.tolist() == tokenizer(text)["input_ids"], (file, row)
    return len(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=float, default=10)
    parser.add_argument("--limit-gib", type=float, default=4)
    parser.add_argument("--folder", type=Path, required=True, help="for text, token cache and runs")
    parser.add_argument("--out", type=Path, help="write the result as JSON")
    given = parser.parse_args()
    from recurrify.results import provenance, save_result

    started, words = time.time(), new_words()
    write_model(given.folder / "model", words)
    write_text(given.folder / "text", words, int(given.gib * GIB))
    print(f"text written: {time.time() - started:.0f} s", flush=True)
    limit, resumed, whole = int(given.limit_gib * GIB), given.folder / "resumed", given.folder / "whole"
    runs = {
        "until killed": train(given.folder, resumed, limit, kill=True),
        "resumed": train(given.folder, resumed, limit),
        "undisturbed": train(given.folder, whole, limit),
    }
    record = json.loads((whole / "result.json").read_text())
    found = {
        "text_gib": sum(file.stat().st_size for file in (given.folder / "text").rglob("*.parquet")) / GIB,
        "runs": runs,
        "same_weights": same_weights(resumed, whole),
        "documents_in_order": check_order(given.folder, record["provenance"]["data_checksum"]),
        "cache_gib": sum(file.stat().st_size for file in (given.folder / "cache").rglob("tokens-*")) / GIB,
        "steps": record["steps"],
    }
    print(json.dumps(found, indent=1))
    settings = {"gib": given.gib, "limit_gib": given.limit_gib, **OPTIONS}
    if given.out:
        about = provenance(settings, seed=0, started=started)
        save_result(given.out, {"kind": "large-data", "result": found, "provenance": about})
    if not found["same_weights"]:
        raise SystemExit("the resumed run has other weights")


if __name__ == "__main__":
    main()
