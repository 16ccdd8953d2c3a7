"""From a result to what people read: tables, plots and one HTML page. Knows results, never tensors."""

from recurrify.report.demo_page import write_page
from recurrify.report.experiments_page import write_experiments_page, write_experiments_picture
from recurrify.report.markdown_text import markdown, summary
from recurrify.report.plots import write_picture

__all__ = [
    "markdown",
    "summary",
    "write_experiments_page",
    "write_experiments_picture",
    "write_page",
    "write_picture",
]
