"""Old place of the demo's Markdown."""

from recurrify.pages.demo import markdown as markdown
from recurrify.pages.demo import summary as summary
