"""Saving and loading: safetensors only, a failed save loses nothing, broken files get a sentence."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers.utils.hub import cached_file

from recurrify.errors import UserError
from recurrify.recurrence.config import RecurrentConfig

WEIGHTS = "model.safetensors"


class SavingMixin:
    """`save_pretrained` and `from_pretrained` of a recurrent model."""

    def save_pretrained(self, save_directory: str | os.PathLike, added_only: bool = False, **kwargs: Any) -> None:
        """Save the model; with `added_only` just the weights that recurrence added, a few hundred kB, to be put
        on top of the unchanged base model again when loading."""
        target = Path(save_directory)
        config: RecurrentConfig = self.config  # type: ignore[attr-defined]
        if added_only:
            if not config.base_name_or_path:
                raise UserError(
                    "Saving the added weights alone needs to know where the base model comes from: "
                    "set model.config.base_name_or_path to its name or folder, or save the whole model."
                )
            weights = kwargs.pop("state_dict", None) or self.state_dict()  # type: ignore[attr-defined]
            kwargs["state_dict"] = {k: v for k, v in weights.items() if k.startswith("mechanism.")}
        try:
            target.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=target, prefix=".saving-") as folder:
                config.added_only = added_only
                super().save_pretrained(folder, **kwargs)  # type: ignore[misc]
                # Nothing already there is touched before everything new is safely written.
                for file in Path(folder).iterdir():
                    file.replace(target / file.name)
        except (OSError, SafetensorError) as error:
            raise UserError(
                f"Could not save to {str(target)!r}: {error}; what was there before is untouched: "
                "free some space or choose another folder."
            ) from error
        finally:
            config.added_only = False

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        source = str(pretrained_model_name_or_path)
        config = kwargs.get("config")
        if not isinstance(config, RecurrentConfig):
            config = RecurrentConfig.from_pretrained(source)
        if config.added_only:
            return cls._load_on_base(source, config, **kwargs)
        wants_info = kwargs.pop("output_loading_info", False)
        kwargs["use_safetensors"] = True  # a pickle can run anything; weights never need one
        try:
            model, info = super().from_pretrained(source, *args, output_loading_info=True, **kwargs)  # type: ignore[misc]
        except SafetensorError as error:
            raise UserError(f"The weights in {source!r} are damaged ({error}): save or download them again.") from error
        missing = [name for name in info["missing_keys"] if name.startswith("mechanism.")]
        if missing:
            raise UserError(
                f"The weights in {source!r} lack {len(missing)} of the added tensors, such as {missing[0]!r}: "
                "the file does not belong to this config; save or download the model again."
            )
        return (model, info) if wants_info else model

    @classmethod
    def _load_on_base(cls, source: str, config: RecurrentConfig, **kwargs: Any) -> Any:
        kwargs = {k: v for k, v in kwargs.items() if k in {"dtype", "device_map", "attn_implementation", "revision"}}
        base = cls.auto_base.from_pretrained(config.base_name_or_path, **kwargs)  # type: ignore[attr-defined]
        config.added_only = False
        model = cls(config, base)  # type: ignore[call-arg]
        model.mechanism.to(base.device, base.dtype)  # type: ignore[attr-defined]
        path = cached_file(source, WEIGHTS)
        try:
            weights = load_file(path)
        except SafetensorError as error:
            raise UserError(f"The weights in {source!r} are damaged ({error}): save them again.") from error
        model.mechanism.load_state_dict(  # type: ignore[attr-defined]
            {name.removeprefix("mechanism."): value for name, value in weights.items()}
        )
        return model.eval()  # type: ignore[attr-defined]


def is_recurrent(source: str | os.PathLike) -> bool:
    """Whether a local folder holds a model that recurrify saved."""
    path = Path(source) / "config.json"
    if not path.is_file():
        return False
    try:
        return json.loads(path.read_text(encoding="utf-8")).get("model_type") == RecurrentConfig.model_type
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{str(path)!r} is not valid JSON ({error}): save or download the model again.") from error
