"""The old page of experiments from scratch, which `recurrify_papers.scratch.report` replaces."""

from typing import Any


def scratch_blocks(experiment: Any, linker: Any) -> list[Any]:
    """No blocks."""
    return []
