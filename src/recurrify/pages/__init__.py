"""From a result to what people read: tables, plots and one HTML page. Knows results, never tensors."""

from recurrify.pages.demo import write_page
from recurrify.pages.markdown_text import markdown, summary
from recurrify.pages.plots import write_picture

__all__ = [
    "markdown",
    "summary",
    "write_page",
    "write_picture",
]
