"""Documents from Hugging Face data sets: on the hub, or saved in a folder."""

from collections.abc import Iterator

from recurrify.data.records import Document, Skipped
from recurrify.data.splits import EVERYTHING, SPLIT_OF_NAME, Documents
from recurrify.data.tables import HUB_PREFIX, Table, dataset_errors, open_dataset
from recurrify.errors import UserError

HELD_OUT = SPLIT_OF_NAME.keys() - {"train"}


def stream_hub(source: str, split: str, text_field: str, skipped: list[Skipped], limit: int | None = None) -> Documents:
    """The documents of a data set, one for each row.

    The data set's own splits are used; `validation`, `val` and `dev` are names for valid. A data set with a train part
    alone, or with a single part of another name, is split like a file of rows. With a limit, rows are downloaded one by
    one.
    """
    name = source.removeprefix(HUB_PREFIX)
    with dataset_errors(name):
        parts = open_dataset(source, limit=limit)
        unsplit = len(parts) == 1 and not parts.keys() & HELD_OUT
        wanted = [key for key in parts if unsplit or split in (EVERYTHING, SPLIT_OF_NAME.get(key))]
        if not wanted:
            raise UserError(f"{name} has no split {split!r}, only {', '.join(parts)}: choose another, or all.")

    def read(skipped: list[Skipped]) -> Iterator[tuple[str, Document]]:
        empty = 0
        with dataset_errors(name):
            for key in wanted:
                table = Table(name, "row", enumerate(parts[key], start=1))
                for number, fields in table.rows:
                    text = table.text(number, fields, text_field)
                    if text.strip():
                        yield text, Document(f"{key}/{number - 1}", text)
                    else:
                        empty += 1
        if empty:
            # One entry for all of them: data sets of lines hold hundreds of thousands of empty rows.
            skipped.append(Skipped(name, f"{empty} rows are empty"))

    return Documents(read, skipped, split if unsplit else EVERYTHING)
