"""The `recurrify` command: its subcommands, and how errors and interruptions end it."""

import logging
import os
import sys
import time
import warnings
from importlib.metadata import entry_points
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import typer

from recurrify import __version__
from recurrify.after_import import after_import
from recurrify.cli import classify, options, probe, qa
from recurrify.cli.add import add_command
from recurrify.cli.advise import advise_command
from recurrify.cli.inspect import inspect_command
from recurrify.cli.names import Commands, closest, formerly, missing, rejected
from recurrify.cli.serve import serve_command
from recurrify.cli.settings import examples
from recurrify.cli.train import add_train_command
from recurrify.console import err_console, heartbeat, is_first, say
from recurrify.errors import UserError, first_line, is_out_of_memory
from recurrify.hub_access import TRUST
from recurrify.interrupts import CTRL_C, interrupt_code
from recurrify.results import check_overwrites_nothing, check_takes_files, read_given
from recurrify.run_lock import run_lock

app = typer.Typer(
    cls=Commands,
    help="Give pretrained transformers a memory: recurrence between windows of text for any Hugging Face model.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    add_completion=False,
)
ClickException: type[Any] = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


def version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=version, is_eager=True, help="Print the version.")
    ] = False,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run Python code that comes with a model. Only if you trust it.")
    ] = False,
) -> None:
    """Give pretrained transformers a memory: recurrence between windows of text for any Hugging Face model."""
    if trust_remote_code:
        os.environ[TRUST] = "1"
    warnings.filterwarnings("ignore", module=r"(?!recurrify)")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    logging.getLogger("torchao").setLevel(logging.ERROR)
    after_import("torch", lambda: logging.getLogger("torch").setLevel(logging.ERROR))
    after_import("transformers", _quieten_transformers)


def _quieten_transformers() -> None:
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()


@app.command(epilog=examples("recurrify demo", "recurrify demo --live-tokens 200000 --out runs/longer"))
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the page and the live runs.")] = Path("runs/demo"),
    live_tokens: Annotated[int, typer.Option(min=10_000, help="Tokens of each live fine-tuning.")] = 80_000,
) -> None:
    """A pretrained model reads a novel with and without memory, a tiny one is fine-tuned: minutes, no GPU.

    Run the same command again to resume.
    """
    check_takes_files(out)
    options.load_libraries()
    from recurrify.demo import run_demo
    from recurrify.pages.demo import summary

    with run_lock(out):
        result = run_demo(out, say, live_tokens)
    typer.echo("\n".join(["", *summary(result), "", f"Page: {out / 'index.html'}"]))


add_train_command(app)


@app.command(
    epilog=examples(
        "recurrify evaluate gpt2 runs/novels --data novels/",
        "recurrify evaluate runs/novels --data hf:owner/name --overlap 0 --overlap 150 --out result.json",
    )
)
@formerly(rows="batch", tokens_per_document="tokens")
def evaluate(
    models: Annotated[
        list[str], typer.Argument(help="Models: Hugging Face names, folders or run folders; compared with the first.")
    ],
    data: options.Data,
    split: options.Split = "test",
    text_field: options.TextField = "text",
    window: options.EvaluationWindow = None,
    overlap: Annotated[list[int] | None, typer.Option(help="Overlap to evaluate; may be repeated.")] = None,
    tokens: Annotated[
        int | None, typer.Option(min=2, help="Score only the first this many tokens of each document.")
    ] = None,
    batch: options.Batch = 16,
    device: options.Device = "auto",
    out: options.ResultFile = None,
    page: Annotated[Path | None, typer.Option(help="Write the scores as this HTML page.")] = None,
) -> None:
    """Perplexity per token and per word and bits per character, at any window and overlap.

    All models score the same tokens: all but the first of each document. A model without a memory runs in plain
    windows. Several models are compared with the first, with an interval over documents. A single model with a memory
    is compared with its own base: in the same windows, in its full context, and with the overlap and the longer window
    that cost as many FLOPs.
    """
    check_overwrites_nothing(out, data, *models)
    options.check_page(page, data, *models)
    options.check_device(device)
    options.load_libraries(*models, texts=[data], split=split)
    from recurrify.cli.evaluate import evaluate_models

    evaluate_models(
        models,
        data,
        split=split,
        text_field=text_field,
        window=window,
        overlap=overlap,
        tokens_per_document=tokens,
        rows=batch,
        device=device,
        out=out,
        page=page,
    )


@app.command(
    epilog=examples(
        'recurrify generate runs/novels --prompt "It was a dark night" --max-new-tokens 2000',
        "recurrify generate runs/novels --prompt-file chapter.txt --greedy",
    )
)
def generate(
    model: options.ModelArgument,
    prompt: Annotated[str | None, typer.Option(help="Text to continue.")] = None,
    prompt_file: Annotated[
        Path | None, typer.Option(help="File with the text to continue; - is standard input.")
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens to generate; any number.")] = 200,
    greedy: Annotated[bool, typer.Option("--greedy", help="Take the likeliest token instead of sampling.")] = False,
    temperature: Annotated[float, typer.Option(min=1e-6, help="Sampling temperature.")] = 0.8,
    top_p: Annotated[
        float, typer.Option(min=1e-6, max=1.0, help="Sample from the likeliest tokens up to this mass.")
    ] = 0.95,
    beams: Annotated[int, typer.Option(min=1, help="Beams of beam search (not streamed).")] = 1,
    seed: options.Seed = 0,
    graphs: Annotated[bool, typer.Option("--graphs", help="Generate with CUDA graphs: faster; experimental.")] = False,
    device: options.Device = "auto",
) -> None:
    """Continue a text of any length; the output is streamed."""
    text = _prompt_text(prompt, prompt_file)
    options.check_device(device)
    options.load_libraries(model)
    from recurrify.cli.generate import continue_text

    sampling = (
        {"do_sample": False} if greedy or beams > 1 else {"temperature": temperature, "top_p": top_p, "do_sample": True}
    )
    continue_text(model, text, max_new_tokens, sampling=sampling, beams=beams, seed=seed, graphs=graphs, device=device)


def _prompt_text(prompt: str | None, file: Path | None) -> str:
    if (prompt is None) == (file is None):
        raise UserError("Give the text to continue with either --prompt or --prompt-file.")
    if prompt is not None:
        return prompt
    assert file is not None
    if str(file) == "-":
        return sys.stdin.read()
    return read_given(file)


app.command(
    name="add",
    epilog=examples(
        "recurrify add --model gpt2 --out gpt2-memory", "recurrify add --model gpt2 --out kept --set keep=256"
    ),
)(add_command)
app.command(
    name="advise",
    epilog=examples(
        "recurrify advise gpt2 --data books/", "recurrify advise smollm2 --data books/ --flops 3e8 --page a.html"
    ),
)(advise_command)
app.command(
    name="inspect",
    epilog=examples(
        "recurrify inspect runs/novels --data chapter.txt --out runs/inspect",
        "recurrify inspect runs/novels --data chapter.txt --plain runs/plain --compare runs/tail --tokens 2000",
    ),
)(inspect_command)
app.command(
    name="serve",
    epilog=examples("recurrify serve runs/novels", "recurrify serve owner/name --port 8001 --device cuda"),
)(serve_command)
app.add_typer(qa.app, name="qa")
app.add_typer(classify.app, name="classify")
app.add_typer(probe.app, name="probe")


def add_installed_commands(app: typer.Typer) -> None:
    """Add the commands of other packages: entry points of the group `recurrify.commands`, functions or typer apps.

    The name of a command of a group has a dot: `probe.train` is `recurrify probe train`.
    """
    groups = {group.name: group.typer_instance for group in app.registered_groups}
    for entry in sorted(entry_points(group="recurrify.commands"), key=lambda entry: entry.name):
        try:
            command = entry.load()
        except Exception as error:  # whatever another package raises when it is imported
            package = entry.value if entry.dist is None else entry.dist.name
            say(
                f"warning: the command {entry.name!r} of the package {package!r} could not be loaded "
                f"({type(error).__name__}: {first_line(error)}): repair or uninstall that package"
            )
            continue
        group, _, name = entry.name.rpartition(".")
        parent = groups.get(group) or app
        if isinstance(command, typer.Typer):
            parent.add_typer(command, name=name)
        else:
            parent.command(name=name)(command)


add_installed_commands(app)
OTHERS_WAIT_SECONDS = 3.0
"""Before they print an error: the first process prints what all found, and torchrun then ends the others."""


def main() -> None:
    """Run the command line. Bad input is one sentence and exit code 2; a stopped run exits with 130 or 143."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that knows only ASCII shows ? for other characters
    try:
        options.check_given_once(app, sys.argv[1:], "--data")
        begun = time.monotonic()
        with heartbeat(lambda: f"still working: {time.monotonic() - begun:.0f} s"):
            code = app(standalone_mode=False) or 0
    except UserError as error:
        _end(str(error))
    except (typer.Abort, KeyboardInterrupt):
        code = CTRL_C
    except ClickException as error:
        message = missing(error) or " ".join(error.format_message().split())
        if not message:  # a command without arguments, which has printed its help
            sys.exit(2)
        message = message.rstrip(".") + rejected(error)
        if hasattr(error, "option_name"):
            message = f"{error.message}{closest(error)}"
        _end(message if message.endswith("?") else f"{message.rstrip('.')}.")
    except BrokenPipeError:  # of `recurrify ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except (OSError, MemoryError, RuntimeError, ImportError) as error:
        if is_out_of_memory(error):
            _end(
                f"Out of memory ({first_line(error) or 'on the CPU'}): use a smaller --batch (with --accumulate) "
                "or a smaller --window."
            )
        if not isinstance(error, OSError):
            raise
        _end(f"{error.filename or 'A file'} cannot be used: {error.strerror or first_line(error)}.")
    if code == CTRL_C:
        err_console.print("Stopped. If it was training, run the same command again to resume.")
        code = interrupt_code()
    sys.exit(code)


def _end(message: str) -> None:
    if not is_first():
        time.sleep(OTHERS_WAIT_SECONDS)
    err_console.print(f"Error: {message}", style="red", markup=False, highlight=False, soft_wrap=True)
    sys.exit(2)


if __name__ == "__main__":
    main()
