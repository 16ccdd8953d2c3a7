"""`recurrify qa`: question answering over contexts of several windows."""

from pathlib import Path
from typing import Annotated, Any

import typer

from recurrify.cli import options
from recurrify.cli.settings import examples, settings_command
from recurrify.cli.train import end_of_run
from recurrify.console import is_first, say
from recurrify.errors import UserError
from recurrify.results import check_overwrites_nothing, save_result
from recurrify.run_lock import run_lock
from recurrify.train.settings import AnswerSettings

app = typer.Typer(
    help="Question answering over contexts of several windows, each of which begins with the question.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
Questions = Annotated[str, typer.Option(help="Questions: a SQuAD or HotpotQA file (JSON or JSON lines).")]
Trained = Annotated[str, typer.Argument(help="Folder of a trained model, or of its run.")]
Batch = Annotated[int, typer.Option(min=1, help="Questions per batch.")]
Longest = Annotated[int, typer.Option(min=1, help="Longest answer in tokens.")]
Predictions = Annotated[Path, typer.Option(help="File for the answers, in the official format of the questions.")]


@settings_command(
    app,
    "train",
    AnswerSettings,
    rest="recurrence",
    epilog=[
        "recurrify qa train --model bert-base-uncased --data train.json --test dev.json --out runs/qa",
        "recurrify qa train --model bert-base-uncased --data train.json --out runs/plain --mechanism none",
    ],
)
def train_command(given: dict[str, Any]) -> None:
    """Train an encoder to answer questions, with the paper's memory, or without one (`--mechanism none`)."""
    asked = given["recurrence"]
    mechanism = asked.get("mechanism", "carry")
    options.check_memory({**asked, "mechanism": mechanism})
    AnswerSettings(**given | {"recurrence": {}})  # reports invalid settings before anything is loaded
    options.load_libraries(given["model"], tables=[given["data"], given["test"]])
    from recurrify.mechanisms import mechanism_config, recurrence_config
    from recurrify.modeling.task_loading import PAPERS_ANSWERING
    from recurrify.train.answer import PREDICTIONS_FILE, answer_train
    from recurrify.train.memories import BEST, loadable_mechanisms

    if mechanism == BEST or mechanism_config(mechanism).decoders_only:
        known = ", ".join(name for name, config in loadable_mechanisms().items() if not config.decoders_only)
        raise UserError(f"The mechanism {mechanism!r} is for decoders only: an encoder can have {known}.")
    papers = PAPERS_ANSWERING if mechanism == PAPERS_ANSWERING["mechanism"] else {"mechanism": mechanism}
    recurrence = {**papers, "checkpoint": False, **asked}
    recurrence_config(recurrence)  # reports invalid settings before anything is loaded
    settings = AnswerSettings(**given | {"recurrence": recurrence})
    with run_lock(settings.out):
        result = answer_train(settings, say)
    if is_first() and "test" in result:
        typer.echo(_scores(result["test"]))
        typer.echo(f"answers: {Path(settings.out) / PREDICTIONS_FILE}")
    end_of_run(result, settings.out)


@app.command(
    epilog=examples(
        "recurrify qa evaluate runs/qa --data dev.json",
        "recurrify qa evaluate runs/qa --data dev.json --out result.json",
    )
)
def evaluate(
    model: Trained,
    data: Questions,
    out: options.ResultFile = None,
    batch: Batch = 8,
    longest_answer: Longest = 30,
    device: options.Device = "auto",
) -> None:
    """Score a trained model with the official metrics: exact match and F1."""
    check_overwrites_nothing(out, data, model)
    options.check_device(device)
    options.load_libraries(model, tables=[data])
    from recurrify.data.texts import pick_device
    from recurrify.train.answer import answer_evaluate

    _, result, _ = answer_evaluate(model, data, say, pick_device(device), batch, longest_answer)
    typer.echo(_scores(result))
    if out is not None:
        save_result(out, result)


@app.command(
    epilog=examples(
        "recurrify qa predict runs/qa --data questions.json --out answers.json",
        "recurrify qa predict runs/qa --data questions.json --out answers.json --batch 32",
    )
)
def predict(
    model: Trained,
    data: Questions,
    out: Predictions,
    batch: Batch = 8,
    longest_answer: Longest = 30,
    device: options.Device = "auto",
) -> None:
    """Answer questions and write the answers in the official format."""
    check_overwrites_nothing(out, data, model)
    options.check_device(device)
    options.load_libraries(model, tables=[data])
    from recurrify.data.texts import pick_device
    from recurrify.train.answer import answer_predict, write_predictions

    answers, style = answer_predict(model, data, say, pick_device(device), batch, longest_answer)
    write_predictions(answers, style, out)
    typer.echo(f"{len(answers):,} answers: {out}")


def _scores(found: dict[str, Any]) -> str:
    def score(name: str) -> str:
        interval = found[f"{name}_interval"]
        return f"{found[name]:.2f}" + ("" if interval is None else f" (95 %: {interval[0]:.2f} to {interval[1]:.2f})")

    return f"F1 {score('f1')}, exact match {score('exact_match')}, {found['questions']:,} questions"
