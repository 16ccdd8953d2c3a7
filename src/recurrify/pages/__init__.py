"""From a result to what people read: one offline HTML page, tables and charts. Knows results, never tensors.

The toolkit (`Page`, `Verdict`, `Table`, `line_chart`, `write_page` ...) is for pages of any kind; its example is in
`recurrify.pages.page`. The pages of the commands are made from a result alone.
"""

from typing import TYPE_CHECKING

from recurrify.lazy import lazily
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

if not TYPE_CHECKING:  # or every name would seem to exist
    __getattr__ = lazily(__name__)
