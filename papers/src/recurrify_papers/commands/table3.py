"""`recurrify table3`: short for `recurrify experiment run table3` with a model and question files."""

import json
from pathlib import Path
from typing import Annotated

import typer

from recurrify_papers.commands.experiment import ROOT, Root, run


def table3_command(
    model: Annotated[str, typer.Option(help="An encoder: a Hugging Face name or a folder.")],
    data: Annotated[list[str], typer.Option(help="Questions with one paragraph each (SQuAD's format); repeatable.")],
    extra_test: Annotated[list[str] | None, typer.Option(help="Questions to score as they are; repeatable.")] = None,
    root: Root = ROOT,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time.")] = 1,
) -> None:
    """Table 3 of the paper: question answering across windows, disjoint against recurrent.

    **Examples**

    `recurrify table3 --model bert-base-uncased --data squad.json`

    `recurrify table3 --model runs/bert/model --data squad.json --extra-test triviaqa.json`
    """
    values = {"model": model, "data": data, "extra_tests": extra_test or []}
    settings = [f"table3.{name}={json.dumps(value)}" for name, value in values.items()]
    run(["table3"], size="small", root=Path(root), settings=settings, jobs=jobs)
