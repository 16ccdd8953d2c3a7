"""`recurrify serve`: a model with a memory behind an OpenAI-compatible interface."""

from typing import Annotated

import typer

from recurrify.cli import options


def serve_command(
    model: options.ModelArgument,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "localhost",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen at.")] = 8000,
    states: Annotated[int, typer.Option(min=1, help="States of texts to keep; each answer adds two.")] = 256,
    device: options.Device = "auto",
) -> None:
    """Serve a model with a memory to clients of the OpenAI interface.

    This is `transformers serve`, but the model reads a conversation on from its last answer instead of reading all of
    it again. Clients name the model as the server prints it.
    """
    options.check_device(device)
    options.load_libraries(model)
    from recurrify.data.texts import pick_device
    from recurrify.serving import serve_model

    serve_model(model, host=host, port=port, states=states, device=str(pick_device(device)))
