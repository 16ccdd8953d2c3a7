"""Local data sets in place of the hub."""

from typing import Any

import datasets
import pytest


class Hub:
    """Replaces `load_dataset` and records its calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, content: Any = None) -> None:
        self.content = content
        self.calls: list[tuple[str, str | None, bool]] = []
        monkeypatch.setattr(datasets, "load_dataset", self)
        monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)

    def __call__(self, name: str, config: str | None = None, *, streaming: bool = False) -> Any:
        self.calls.append((name, config, streaming))
        if isinstance(self.content, Exception):
            raise self.content
        if not streaming:
            return self.content
        return datasets.IterableDatasetDict({split: rows.to_iterable_dataset() for split, rows in self.content.items()})
