"""Recurrent models behind the OpenAI-compatible server of transformers.

A client sends the whole conversation with each question. The server here keeps the states of the texts that it read, so
that the model reads only what is new.
"""

import copy
import socket
import time
from collections import OrderedDict
from hashlib import blake2b
from threading import Thread
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, GenerationConfig
from transformers.utils.import_utils import is_serve_available

from recurrify.console import say
from recurrify.errors import UserError
from recurrify.hub_access import trusts_remote_code
from recurrify.model_names import resolve_name
from recurrify.modeling import RecurrentCache, RecurrentConfig, RecurrentForCausalLM, model_tokenizer
from recurrify.serving_checks import answer_errors
from recurrify.state import State

__all__ = ["ConversingForCausalLM", "StatesOfTexts", "serve_model"]

Key = tuple[int, bytes]
"""The length of a text in tokens, and its digest: the tokens themselves would grow with a conversation."""


class StatesOfTexts:
    """The states after the texts that were read last, each of one size however long its text is."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.states: OrderedDict[Key, State] = OrderedDict()

    def longest(self, ids: Tensor) -> tuple[int, State | None]:
        """Of the kept texts with which `ids` (tokens) begins, the longest: its length and state; at least one token is
        left to read."""
        lengths = {length for length, _ in self.states if length < len(ids)}
        known = [key for key in keys_of(ids, lengths) if key in self.states]
        if not known:
            return 0, None
        self.states.move_to_end(known[-1])
        return known[-1][0], self.states[known[-1]]

    def keep(self, ids: Tensor, state: State) -> None:
        """Keep the state after `ids`, instead of the one that was not used for longest."""
        (key,) = keys_of(ids, {len(ids)})
        self.states[key] = state
        self.states.move_to_end(key)
        while len(self.states) > self.limit:
            self.states.popitem(last=False)


def keys_of(ids: Tensor, lengths: set[int]) -> list[Key]:
    """The keys of the beginnings of `ids` of these lengths, the shortest first; reads `ids` once."""
    tokens, digest, start, found = ids.cpu().numpy(), blake2b(), 0, []
    for length in sorted(lengths):
        digest.update(tokens[start:length].tobytes())
        found.append((length, digest.copy().digest()))
        start = length
    return found


class ConversingForCausalLM(RecurrentForCausalLM):
    """`RecurrentForCausalLM` whose `generate` continues from the states of earlier texts. Results are the same."""

    states_kept = 256
    """How many states a model keeps."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.kept = StatesOfTexts(self.states_kept)

    @torch.no_grad()
    def generate(
        self,
        inputs: Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        *args: Any,
        state: State | None = None,
        **kwargs: Any,
    ) -> Any:
        """As transformers' server calls it: one text with a mask, and all settings in `generation_config`. Other calls
        read the whole text."""
        ids: Tensor | None = kwargs.get("input_ids", inputs)
        if (
            ids is None
            or generation_config is None
            or args
            or state is not None
            or not self._is_one_text(ids, generation_config, kwargs)
        ):
            return super().generate(inputs, generation_config, *args, state=state, **kwargs)
        seen, state = self.kept.longest(ids[0])
        # Not the last token: what `generate` gets must not be empty.
        before = ids.shape[1] - 1
        if seen < before:
            state = self(ids[:, seen:before], state=state, logits_to_keep=1).state
            self.kept.keep(ids[0, :before], state)
        if state is not None:
            kwargs["past_key_values"] = RecurrentCache(state, seen=before)
        settings = copy.deepcopy(generation_config)
        settings.return_dict_in_generate = True
        output = super().generate(inputs, settings, **kwargs)
        cache = output.past_key_values
        # The text of an answer may have other tokens when it comes back; the state before it is kept as well.
        self.kept.keep(output.sequences[0, : cache.seen], cache.state)
        return output if generation_config.return_dict_in_generate else output.sequences

    @staticmethod
    def _is_one_text(ids: Tensor, settings: GenerationConfig, others: dict[str, Any]) -> bool:
        mask = others.get("attention_mask")
        single = len(ids) == 1 and (settings.num_beams or 1) == 1 and (settings.num_return_sequences or 1) == 1
        whole = mask is not None and bool(mask.all())  # without one, transformers looks for padding in the text
        return single and whole and "past_key_values" not in others and settings.use_cache is not False


def serve_model(
    model: str,
    *,
    host: str = "localhost",
    port: int = 8000,
    states: int = 256,
    device: str = "auto",
    background: bool = False,
) -> Any:
    """Serve a model with a memory: `transformers serve`, which here reads a conversation on from its last answer.

    Args:
        model: A folder or run folder that recurrify saved, or a name on the hub.
        host: The address to listen at.
        port: The port to listen at.
        states: How many states to keep: two for each question, the oldest are dropped.
        device: auto, cpu, cuda or cuda:N.
        background: Return at once; the server runs in a thread until its `kill_server()` is called.

    Returns:
        The server of transformers, when it has stopped or, in the background, started.

    Raises:
        UserError: There is no such model or port, or packages are missing.
    """
    if not is_serve_available():
        raise UserError('Serving needs more packages: run `pip install "recurrify[serve]"`.')
    from transformers.cli.serve import Serve
    from transformers.cli.serving import model_manager

    class CheckedServer(Serve):
        """It answers malformed requests. Its thread, if it has one, ends with the process and closes what it opened."""

        def start_server(self) -> None:
            answer_errors(self.server.config.app)
            if not background:
                self.server.run()
                return
            self._thread = Thread(target=self.server.run, daemon=True)
            self._thread.start()
            while self._thread.is_alive() and not self.server.started:
                time.sleep(0.01)

    source = _servable(model)
    try:
        socket.create_server((host, port)).close()
    except OSError as error:
        raise UserError(f"Port {port} of {host} cannot be used ({error.strerror}): choose another.") from error
    say(f"http://{host}:{port}/v1 serves the model {source!r}")
    if model_tokenizer(model).chat_template is None:
        say("Its tokenizer has no chat template: clients can ask for completions, but not for chat completions.")
    ConversingForCausalLM.states_kept = states
    # The server looks for a model's class in transformers alone.
    setattr(model_manager.transformers, RecurrentForCausalLM.__name__, ConversingForCausalLM)
    return CheckedServer(source, host=host, port=port, device=device, log_level="error", non_blocking=True)


def _servable(model: str) -> str:
    """The folder or name by which transformers finds the model."""
    source, others = resolve_name(model)
    config = None if others else AutoConfig.from_pretrained(source, trust_remote_code=trusts_remote_code())
    if not isinstance(config, RecurrentConfig) or RecurrentForCausalLM.__name__ not in (config.architectures or []):
        raise UserError(
            f"{model!r} is no causal language model with a memory: make one with `recurrify add`, or serve it with "
            "`transformers serve`."
        )
    if "@" in source:
        raise UserError(f"{source!r} has an @, behind which transformers looks for a revision: rename the folder.")
    return source
