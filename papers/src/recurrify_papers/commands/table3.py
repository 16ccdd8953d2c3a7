"""`recurrify qa table3`: the paper's question answering, disjoint against recurrent."""

import time
from pathlib import Path
from typing import Annotated

import typer

from recurrify.cli import options
from recurrify.console import say
from recurrify.results import write_whole

Data = Annotated[
    list[str],
    typer.Option(help="Questions with one paragraph each (SQuAD's format, or NQ's with `ctxs`); may be repeated."),
]
ExtraTests = Annotated[
    list[str] | None, typer.Option("--extra-test", help="Questions to score as they are; may be repeated.")
]


def table3_command(
    model: Annotated[str, typer.Option(help="An encoder: a Hugging Face name or a folder.")],
    data: Data,
    extra_test: ExtraTests = None,
    root: Annotated[Path, typer.Option(help="Folder of the data, the runs and the table.")] = Path("runs/table3"),
    seeds: Annotated[int, typer.Option(min=1)] = 3,
    jobs: Annotated[int, typer.Option(min=1, help="Trainings side by side on one device.")] = 1,
    rates: Annotated[
        str, typer.Option(help="Learning rates with commas between; each model's is chosen on validation.")
    ] = "5e-5,1e-4,2e-4",
    window: Annotated[int, typer.Option(min=1, help="Tokens in a window; the paper's are 512.")] = 512,
    distractors: Annotated[int, typer.Option(min=1, help="Paragraphs of other questions in a context.")] = 9,
    questions: Annotated[int | None, typer.Option(min=1, help="So many of each file, drawn at random.")] = None,
    epochs: options.QuestionEpochs = 4.0,
    batch: options.QuestionBatch = 8,
    warmup_steps: options.WarmupSteps = 100,
    precision: options.Precision = "auto",
    max_minutes: options.MaxMinutes = None,
) -> None:
    """Table 3 of the paper: question answering across windows, disjoint against recurrent, seeds and intervals.

    Articles are dealt to training, validation and test; each question's paragraph is put among those of others.
    Finished runs are skipped and stopped ones go on, so the same command can be given again at any time.
    """
    from recurrify_papers.experiments.published import TABLE_3
    from recurrify_papers.table3.table3 import TABLE_FILE, Table3Plan, run_table3
    from recurrify_papers.table3.table3_result import table3_lines

    plan = Table3Plan(
        model=model,
        data=tuple(data),
        extra_tests=tuple(extra_test or ()),
        root=str(root),
        seeds=seeds,
        rates=options.numbers("rates", rates, float),
        window=window,
        epochs=epochs,
        batch=batch,
        warmup_steps=warmup_steps,
        distractors=distractors,
        questions=questions,
        precision=precision,
    )
    deadline = None if max_minutes is None else time.monotonic() + 60 * max_minutes
    result = run_table3(plan, say, TABLE_3, jobs, deadline)
    if result is None:
        say("The time is up and everything is saved: the same command goes on from here.")
        return
    lines = table3_lines(result)
    page = root / Path(TABLE_FILE).with_suffix(".md")
    write_whole(page, ("\n".join(lines) + "\n").encode())
    for line in lines:
        typer.echo(line)
    typer.echo(f"result: {root / TABLE_FILE}, as Markdown: {page}")
