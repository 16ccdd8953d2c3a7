"""The old place of `recurrify_papers.scratch.published`."""

from recurrify_papers.scratch.published import REPRODUCTION

__all__ = ["REPRODUCTION"]
