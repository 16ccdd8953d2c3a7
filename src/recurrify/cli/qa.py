"""`recurrify qa`: question answering over contexts of several windows."""

from pathlib import Path
from typing import Annotated, Any

import typer

from recurrify.cli import options
from recurrify.console import is_first, say
from recurrify.errors import UserError
from recurrify.results import check_overwrites_nothing, save_result

app = typer.Typer(
    help="Question answering over contexts of several windows, each of which begins with the question.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
DATA_HELP = "Questions: a SQuAD file, or a HotpotQA file (JSON or JSON lines)."
Encoder = Annotated[str, typer.Option(help="An encoder: a Hugging Face name or a folder.")]
Questions = Annotated[str, typer.Option(help=DATA_HELP)]
Test = Annotated[str | None, typer.Option(help="Questions to answer and score once training is over.")]
Trained = Annotated[str, typer.Argument(help="The folder of a trained model, or of its run.")]
Take = Annotated[int | None, typer.Option("--questions", help="Train on so many, drawn at random; default: on all.")]
Batch = Annotated[int, typer.Option(min=1, help="Questions read side by side.")]
Longest = Annotated[int, typer.Option(min=1, help="Tokens of the longest answer.")]
Predictions = Annotated[Path, typer.Option(help="File for the answers, in the official format of the questions.")]


@app.command(name="train")
def train_command(
    model: Encoder,
    data: Questions,
    out: options.RunFolder,
    test: Test = None,
    mechanism: options.EncoderMechanism = "carry",
    window: options.TaskWindow = None,
    settings: options.MechanismSet = None,
    questions: Take = None,
    epochs: options.QuestionEpochs = 4.0,
    batch: options.QuestionBatch = 8,
    accumulate: options.Accumulate = 1,
    learning_rate: options.LearningRate = 2e-5,
    added_learning_rate: options.AddedLearningRate = None,
    warmup_steps: options.WarmupSteps = 100,
    schedule: options.Schedule = "linear",
    checkpoint: options.Checkpoint = False,
    max_minutes: options.MaxMinutes = None,
    longest_answer: Longest = 30,
    precision: options.Precision = "auto",
    seed: options.Seed = 0,
) -> None:
    """Train an encoder to answer questions, with a memory as in the paper or, with `--mechanism none`, without."""
    given = locals()
    if mechanism in options.DECODERS_ONLY:
        known = ", ".join(options.encoder_mechanisms())
        raise UserError(f"The mechanism {mechanism!r} is for decoders alone: an encoder can have {known}.")
    from recurrify.mechanisms.base import recurrence_config
    from recurrify.modeling.task_loading import PAPERS_ANSWERING
    from recurrify.train.answering import AnswerSettings
    from recurrify.train.answering_run import PREDICTIONS_FILE, answer_train

    recurrence: dict[str, Any] = dict(PAPERS_ANSWERING) if mechanism == "carry" else {"mechanism": mechanism}
    recurrence |= {"checkpoint": checkpoint} | ({} if window is None else {"window": window})
    recurrence |= dict(map(options.setting, settings or []))
    recurrence_config(recurrence)  # refuses what cannot be, before anything is loaded
    run = AnswerSettings.from_options(given, out=str(out), recurrence=recurrence)
    result = answer_train(run, say)
    if not result["finished"]:
        raise typer.Exit(130 if result["interrupted"] else 0)
    if is_first():
        if "test" in result:
            typer.echo(_scores(result["test"]))
            typer.echo(f"answers: {out / PREDICTIONS_FILE}")
        typer.echo(f"model: {out / 'model'}")


@app.command()
def evaluate(
    model: Trained,
    data: Questions,
    out: options.ResultFile = None,
    batch: Batch = 8,
    longest_answer: Longest = 30,
    device: options.Device = "auto",
) -> None:
    """Score a trained model by the official rules: exact match and F1."""
    check_overwrites_nothing(out, data, model)
    from recurrify.data.texts import pick_device
    from recurrify.train.answering_run import answer_evaluate

    _, result, _ = answer_evaluate(model, data, say, pick_device(device), batch, longest_answer)
    typer.echo(_scores(result))
    if out is not None:
        save_result(out, result)


@app.command()
def predict(
    model: Trained,
    data: Questions,
    out: Predictions,
    batch: Batch = 8,
    longest_answer: Longest = 30,
    device: options.Device = "auto",
) -> None:
    """Answer questions, whose answers need not be in the file, and write them in the official format."""
    check_overwrites_nothing(out, data, model)
    from recurrify.data.texts import pick_device
    from recurrify.train.answering_run import answer_predict, write_predictions

    answers, style = answer_predict(model, data, say, pick_device(device), batch, longest_answer)
    write_predictions(answers, style, out)
    typer.echo(f"{len(answers):,} answers: {out}")


def _scores(found: dict[str, Any]) -> str:
    def told(name: str) -> str:
        interval = found[f"{name}_interval"]
        return f"{found[name]:.2f}" + ("" if interval is None else f" (95 %: {interval[0]:.2f} to {interval[1]:.2f})")

    return f"F1 {told('f1')}, exact match {told('exact_match')}, {found['questions']:,} questions"
