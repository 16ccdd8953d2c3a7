"""Runs of experiments: each is one function call with settings, a folder and a result file."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from recurrify.results import save_result

RESULT_FILE = "result.json"
Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training or measurement, which resumes by itself when it is run again."""

    name: str
    """Unique in its experiment; the folder of the run."""
    function: str
    """`package.module:function`, called as function(settings, folder, say); returns a JSON result, or None if it was
    stopped before its end and is ready to resume."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """JSON values."""
    needs: tuple[str, ...] = ()
    """Names of the runs that must be finished before this one starts."""


def run_all(runs: Sequence[Run], folder: Path, say: Say) -> dict[str, dict[str, Any]]:
    """Run what is not finished yet; return the results of all finished runs by name."""
    results = {run.name: found for run in runs if (found := read_result(folder, run)) is not None}
    for run in runs:
        if run.name in results or not set(run.needs) <= results.keys():
            continue
        result = call(run, folder, say)
        if result is not None:
            results[run.name] = result
    return results


def call(run: Run, folder: Path, say: Say) -> dict[str, Any] | None:
    """Run it here and save its result."""
    module, _, name = run.function.partition(":")
    own = folder / run.name
    own.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] | None = getattr(import_module(module), name)(dict(run.settings), own, say)
    if result is not None:
        save_result(own / RESULT_FILE, result)
    return result


def read_result(folder: Path, run: Run) -> dict[str, Any] | None:
    path = folder / run.name / RESULT_FILE
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
