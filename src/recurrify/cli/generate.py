"""`recurrify generate`: continue a prompt."""

from contextlib import nullcontext
from typing import Any

import torch
import typer
from transformers import TextStreamer, set_seed

from recurrify.console import heartbeat
from recurrify.data.texts import pick_device
from recurrify.errors import UserError
from recurrify.modeling.heads import RecurrentForCausalLM
from recurrify.modeling.loading import load_model
from recurrify.speed.graphed_generation import graph_generation


def continue_text(
    model: str,
    text: str,
    max_new_tokens: int,
    *,
    sampling: dict[str, Any],
    beams: int,
    seed: int,
    graphs: bool,
    device: str,
) -> None:
    loaded, tokenizer = load_model(model)
    loaded = loaded.to(pick_device(device)).eval()
    if graphs:
        if loaded.device.type != "cuda":
            raise UserError(f"--graphs needs a CUDA GPU, but the model is on {loaded.device.type}: leave it out.")
        graph_generation(loaded)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(f"The prompt is not valid text: {error}.") from error
    inputs = tokenizer(text, return_tensors="pt", add_special_tokens=_begins_specially(tokenizer, text))
    ids = inputs["input_ids"].to(loaded.device)
    if ids.shape[1] == 0:
        raise UserError("The prompt contains no token: give some text with --prompt or --prompt-file.")
    if int(ids.max()) >= int(loaded.get_input_embeddings().num_embeddings):
        raise UserError(f"The tokenizer of {model!r} gives token {int(ids.max())}, which the model does not know.")
    set_seed(seed)
    streamer = (
        TextStreamer(tokenizer, skip_special_tokens=True, clean_up_tokenization_spaces=False) if beams == 1 else None
    )
    with torch.inference_mode(), heartbeat(None) if streamer else nullcontext():
        output = loaded.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_new_tokens,
            num_beams=beams,
            streamer=streamer,
            pad_token_id=_pad(loaded, tokenizer),
            **sampling,
        )
    if streamer is None:
        typer.echo(tokenizer.decode(output[0], skip_special_tokens=True))


def _begins_specially(tokenizer: Any, text: str) -> bool:
    """Whether to add special tokens: a begin-of-text token, but never an end-of-text token."""
    ids = tokenizer(text)["input_ids"]
    return bool(ids) and ids[0] == tokenizer.bos_token_id and ids[-1] != tokenizer.eos_token_id


def _pad(model: RecurrentForCausalLM, tokenizer: Any) -> int:
    end = model.generation_config.eos_token_id
    end = end[0] if isinstance(end, list) else end
    return tokenizer.pad_token_id if tokenizer.pad_token_id is not None else (end or 0)
