"""Generated command lines, files and configs, most of them wrong in some way."""

import gzip
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
from hypothesis import strategies as st

from recurrify.cli.main import app

ODD = ["", " ", "x", "-1", "0", "1", "2", "1e999", "nan", "9" * 20, "true", "[1]", "{", "a=b", "é🙂", "..", "/"]
SPECIAL = ["/dev/null", "/dev/zero", "pipe", "loop", "folder", "missing", "missing/deeper", "link.txt"]
MODELS = ["hf:x/y", "no/model", "folder", "pipe", "text.txt", "x.gguf", "odd-model"]
MECHANISMS = ["none", "carry", "kv", "lookback", "tail", "telepathy"]
SETTINGS = ["window", "keep", "tail", "slots", "checkpoint", "warmup_steps", "schedule", "valid_tokens", "x"]
SMALL = {
    "--max-tokens": "40", "--max-new-tokens": "3", "--tokens": "20", "--window": "16",
    "--windows": "2", "--batch": "2", "--steps": "2", "--examples": "2", "--epochs": "1", "--distances": "1",
    "--report-to": "none", "--device": "cpu", "--layers": "1", "--width": "16", "--heads": "2", "--repetitions": "0",
}  # fmt: skip
"""Options that keep valid commands short."""
LEFT_OUT = ("demo", "bench", "experiment", "pretrain", "scratch", "forecast", "table3", "serve")


def commands(without: Sequence[str] = LEFT_OUT) -> list[tuple[list[str], Any]]:
    """All commands: their words and click's description."""
    found: list[tuple[list[str], Any]] = []

    def walk(command: Any, words: list[str]) -> None:
        inner = getattr(command, "commands", {})
        if not inner:
            found.append((words, command))
        for name in inner:
            if name not in without:
                walk(inner[name], [*words, name])

    walk(typer.main.get_command(app), [])
    return found


def write_inputs(folder: Path) -> None:
    """The valid inputs and the special files that command lines name."""
    folder.mkdir()
    words = " ".join(f"def word{number}(): return {number}\n" for number in range(60))
    (folder / "text.txt").write_text(words)
    rows = [f"word {number} {'ab'[number % 2] * 5},{number % 2}" for number in range(12)]
    (folder / "rows.csv").write_text("\n".join(["text,label", *rows, ""]))
    hours = [f"2024-01-{1 + hour // 24:02} {hour % 24:02}:00,{(hour * 7) % 24 + hour / 100:.2f}" for hour in range(240)]
    (folder / "waves.csv").write_text("\n".join(["date,load", *hours, ""]))
    context = "Ann lives in Rome. Bob lives in Oslo."
    answers = [{"text": "Rome", "answer_start": context.index("Rome")}]
    asked = [{"context": context, "qas": [{"id": "q", "question": "Where is Ann?", "answers": answers}]}]
    (folder / "asked.json").write_text(json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": asked}]}))
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe")
    (folder / "loop").symlink_to("loop")
    (folder / "link.txt").symlink_to("text.txt")
    (folder / "odd-model").mkdir()
    (folder / "odd-model" / "config.json").write_text('{"model_type": "gpt2", "n_layer": "x"}')
    os.mkfifo(folder / "folder" / "pipe")


_values: Any = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 10**20) | st.floats() | st.text(max_size=5) | st.sampled_from(ODD),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
_names = st.sampled_from(["text", "label", "id", "question", "context", "answers", "data", "model", "recurrence"])


@st.composite
def written_files(draw: st.DrawFn, valid: Sequence[bytes]) -> tuple[str, bytes]:
    """The name and the content of a data file or config: valid, damaged or made up."""
    suffix = draw(st.sampled_from([".txt", ".csv", ".tsv", ".json", ".jsonl", ".gz", ".xz", ".parquet", ".yaml", ""]))
    rows = st.lists(st.dictionaries(_names | st.text(max_size=4), _values, max_size=4), max_size=4)
    match draw(st.integers(0, 5)):
        case 0:
            content = draw(st.binary(max_size=60))
        case 1:
            content = draw(st.text(max_size=60)).encode(errors="surrogatepass")
        case 2:
            content = json.dumps(draw(rows | _values)).encode()
        case 3:
            content = "\n".join(json.dumps(row) for row in draw(rows)).encode()
        case 4:
            cell = st.sampled_from([*ODD, '"', "text", "label", "\0"])
            cells = draw(st.lists(st.lists(cell, max_size=4), max_size=5))
            content = "\n".join(",".join(row) for row in [["text", "label"], *cells]).encode()
        case _:
            content = draw(st.sampled_from(valid))
            place = draw(st.integers(0, len(content)))
            content = content[:place] + draw(st.binary(max_size=2)) + content[place + draw(st.integers(0, 9)) :]
    return f"made{suffix}", gzip.compress(content) if suffix == ".gz" and draw(st.booleans()) else content


@st.composite
def command_lines(draw: st.DrawFn, known: Sequence[tuple[list[str], Any]], place: Path) -> list[str]:
    """A command line; relative names are those of `write_inputs`, `made.*` is the generated file."""
    words, command = draw(st.sampled_from(known))
    line = list(words)
    made = [f"made{suffix}" for suffix in (".txt", ".csv", ".json", ".jsonl", ".yaml")]
    options = [one for one in command.params if one.name not in ("help", "help_all")]
    chosen = {one.name for one in draw(st.lists(st.sampled_from(options), max_size=3))} if options else set()
    for one in options:
        flag = one.opts[0]
        wanted = one.required or one.name in chosen
        if one.name in ("out", "page"):
            wanted = wanted or one.name == "out"
        if not wanted:
            if flag in SMALL:
                line += [flag, SMALL[flag]]
            continue
        if getattr(one, "is_flag", False):
            line.append(flag)
            continue
        value = draw(st.sampled_from(_likely(one.name, words, made, place)) | st.sampled_from([*ODD, *SPECIAL, *made]))
        is_valid_place = value.startswith(str(place)) or value in ("/dev/null", "/dev/zero", "pipe", "loop")
        if one.name in ("out", "page") and not is_valid_place:
            value = str(place / "out" / value.strip("/."))
        if one.param_type_name == "argument":
            line.append(value if not value.startswith("-") else "x")
        else:
            line += [flag, value]
    return line


def _likely(name: str, words: Sequence[str], made: Sequence[str], place: Path) -> list[str]:
    """Values of an option that may be valid; the first ones are drawn most often."""
    data = {"classify": "rows.csv", "qa": "asked.json"}.get(words[0], "text.txt")
    match name:
        case "out" | "page":
            return [str(place / "out")] * 3 + [str(place / "out.json"), str(place / "out.csv")]
        case "model" | "models" | "plain":
            return ["shipped:base"] * 3 + ["shipped:recurrent"] * 2 + MODELS
        case "data" | "test" | "valid" | "text" | "haystack" | "prompt_file":
            return [data] * 3 + list(made)
        case "config" | "results":
            return list(made)
        case "mechanism":
            return MECHANISMS
        case "set" | "settings" | "task_set":
            return [f"{one}={value}" for one in SETTINGS for value in ("1", "x", "-1", "[1]")]
        case _:
            return ["1", "2", "0.5", "8"]
