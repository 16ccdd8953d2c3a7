"""What a report is made of, before it becomes HTML or Markdown."""

from collections.abc import Sequence
from dataclasses import dataclass

from recurrify.pages.html_parts import Link
from recurrify.pages.tables import Table


@dataclass(frozen=True)
class Paragraph:
    text: str
    style: str = ""
    """One of "headline", "note" and "warning"."""


@dataclass(frozen=True)
class Bullets:
    items: Sequence[str]


@dataclass(frozen=True)
class Files:
    """A line that names files and leads to them."""

    opening: str
    links: Sequence[Link]
    closing: str = ""


@dataclass(frozen=True)
class Terms:
    entries: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class TableBlock:
    table: Table
    files: Sequence[Sequence[Link]] = ()

    @property
    def known_files(self) -> Sequence[Sequence[Link]]:
        """Empty where not one is there: a root may keep the numbers alone, and a column of absences says nothing."""
        return self.files if any(link.target is not None for row in self.files for link in row) else ()


@dataclass(frozen=True)
class Plot:
    svg: str
    description: str
    caption: str


@dataclass(frozen=True)
class Plots:
    plots: Sequence[Plot]
    large: bool = False
    """One below the other, each as wide as the page allows."""


@dataclass(frozen=True)
class Sides:
    """Texts to compare, each under its own title."""

    title: str
    lead: tuple[str, str] | None
    """What they all follow."""
    texts: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Fold:
    """What only some readers open."""

    summary: str
    blocks: Sequence["Block"]


@dataclass(frozen=True)
class Section:
    title: str
    anchor: str
    level: int
    blocks: Sequence["Block"]


Block = Paragraph | Bullets | Files | Terms | TableBlock | Plots | Sides | Fold | Section
