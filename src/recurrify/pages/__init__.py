"""From a result to what people read: one offline HTML page, tables and charts. Knows results, never tensors.

The toolkit (`Page`, `Verdict`, `Table`, `line_chart`, `write_page` ...) is for pages of any kind; its example is in
`recurrify.pages.page`. The pages of the commands are made from a result alone.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from recurrify.errors import UserError
from recurrify.pages import numbers

if TYPE_CHECKING:
    from recurrify.pages.charts import bar_chart, chart, heat_chart, line_chart, write_picture
    from recurrify.pages.page import (
        Block,
        Chart,
        Code,
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
        records_table,
        render_page,
        write_page,
    )

_HOMES = {
    "page": (
        *("Block", "Chart", "Code", "Column", "Columns", "Fold", "Link", "Listing", "Page", "Section", "Table"),
        *("Terms", "Text", "Verdict", "records_table", "render_page", "write_page"),
    ),
    "charts": ("bar_chart", "chart", "heat_chart", "line_chart", "write_picture"),
}
__all__ = [
    "Block",
    "Chart",
    "Code",
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
    "heat_chart",
    "line_chart",
    "numbers",
    "records_table",
    "render_page",
    "write_page",
    "write_picture",
]


def _load(name: str) -> Any:
    """Altair takes a second to import: names are imported when they are first used."""
    home = next((home for home, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = globals()[name] = getattr(import_module(f"{__name__}.{home}"), name)
    except ModuleNotFoundError as error:
        raise UserError(f'Pages need the package {error.name!r}: run `pip install "recurrify[pages]"`.') from error
    return value


if not TYPE_CHECKING:
    __getattr__ = _load
