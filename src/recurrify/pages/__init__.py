"""From a result to what people read: one offline HTML page, tables and charts. Knows results, never tensors.

The toolkit (`Page`, `Verdict`, `Table`, `line_chart`, `write_page` ...) is for pages of any kind; its example is in
`recurrify.pages.page`. The pages of the commands are made from a result alone.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from recurrify.pages import numbers

if TYPE_CHECKING:
    from recurrify.pages.charts import bar_chart, chart, line_chart, write_picture
    from recurrify.pages.page import (
        Block,
        Chart,
        Column,
        Columns,
        Fold,
        Link,
        Listing,
        Page,
        Section,
        Table,
        Terms,
        Text,
        Verdict,
        render_page,
        write_page,
    )

__all__ = [
    "Block",
    "Chart",
    "Column",
    "Columns",
    "Fold",
    "Link",
    "Listing",
    "Page",
    "Section",
    "Table",
    "Terms",
    "Text",
    "Verdict",
    "bar_chart",
    "chart",
    "line_chart",
    "numbers",
    "render_page",
    "write_page",
    "write_picture",
]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Altair takes a second to import: names are imported when they are first used."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        home = "charts" if name in ("bar_chart", "chart", "line_chart", "write_picture") else "page"
        return getattr(import_module(f"{__name__}.{home}"), name)
