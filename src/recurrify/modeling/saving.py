"""Saving and loading: safetensors only, a failed save loses nothing, broken files get a sentence."""

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import HfApi
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers.utils.hub import cached_file

from recurrify.errors import UserError
from recurrify.modeling.card import CARD, write_beside
from recurrify.modeling.config import RecurrentConfig

WEIGHTS = "model.safetensors"
HUB_ARGUMENTS = (
    "push_to_hub",
    "repo_id",
    "commit_message",
    "commit_description",
    "private",
    "token",
    "revision",
    "create_pr",
)


HUB_PLACE = ("revision", "cache_dir", "force_download", "local_files_only", "token", "proxies")
"""Arguments of `from_pretrained` that say which files of the hub are meant."""
BASE_ARGUMENTS = ("dtype", "device_map", "attn_implementation", "quantization_config")
"""Arguments of `from_pretrained` that are the base's, where only the added weights were saved."""


class SavingMixin:
    """`save_pretrained` and `from_pretrained` of a recurrent model."""

    def save_pretrained(
        self,
        save_directory: str | os.PathLike,
        added_only: bool = False,
        about: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Save the model, a page about it, and a module by which tools load it that do not import recurrify.

        Args:
            save_directory: The folder. A README.md that is there already stays.
            added_only: Save just the weights that recurrence added, a small part, to be put on top of the unchanged
                base model again when loading.
            about: For the page: `data`, what the model was trained on, and `results`, numbers by name.
            kwargs: As in transformers.
        """
        target = Path(save_directory)
        push = {name: kwargs.pop(name) for name in HUB_ARGUMENTS if name in kwargs}
        config: RecurrentConfig = self.config  # type: ignore[attr-defined]
        if added_only:
            if not self.added_parameters():  # type: ignore[attr-defined]
                name = config.recurrence_config.mechanism
                raise UserError(
                    f"The mechanism {name!r} added no weights that could be saved alone: save the whole model."
                )
            if not config.base_name_or_path:
                raise UserError(
                    "Saving the added weights alone needs to know where the base model comes from: "
                    "set model.config.base_name_or_path to its name or folder, or save the whole model."
                )
            if self._base_has_changed():
                raise UserError(
                    "The base's own weights have changed since it got a memory, as they do when it is trained along, "
                    "and would be lost: save the whole model, or freeze the base before training with "
                    "model.base.requires_grad_(False)."
                )
            weights = kwargs.pop("state_dict", None) or self.state_dict()  # type: ignore[attr-defined]
            kwargs["state_dict"] = {k: v for k, v in weights.items() if k.startswith("mechanism.")}
        quantiser = getattr(self, "hf_quantizer", None)
        if added_only and quantiser is not None:
            self.hf_quantizer = None  # it would save the whole model
        harm = "earlier files are unchanged"
        try:
            target.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=target, prefix=".saving-") as folder:
                config.added_only = added_only
                super().save_pretrained(folder, **kwargs)  # type: ignore[misc]
                write_beside(self, Path(folder), push.get("repo_id") or target.name, about or {})
                if (target / CARD).is_file():
                    (Path(folder) / CARD).unlink()
                # Nothing already there is touched before everything new is safely written.
                harm = "the folder may now hold old and new files together: save again"
                _move_over(Path(folder), target)
        except (OSError, SafetensorError) as error:
            raise UserError(
                f"Could not save to {str(target)!r}: {error}; {harm}; free some space or choose another folder."
            ) from error
        finally:
            config.added_only = False
            if quantiser is not None:
                self.hf_quantizer = quantiser
        if push.pop("push_to_hub", False):
            _upload(target, push.pop("repo_id", target.name), **push)

    def push_to_hub(self, repo_id: str, max_shard_size: int | str = "50GB", **kwargs: Any) -> str:
        """Save the model to a repository of the hub, with the page and the module; a README.md that is there stays.

        Args:
            repo_id: The repository; it is created if there is none.
            max_shard_size: The largest size of a file.
            kwargs: `commit_message`, `commit_description`, `private`, `token`, `revision` and `create_pr`, as in
                transformers.
        """
        with tempfile.TemporaryDirectory() as folder:
            self.save_pretrained(folder, max_shard_size=max_shard_size, repo_id=repo_id)
            return _upload(Path(folder), repo_id, **kwargs)

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = "AutoModel") -> None:
        """Nothing to copy when it is saved: `auto_map` in its config leads to this package."""

    def _base_has_changed(self) -> bool:
        """Whether weights of the base have been written to since it got a memory; copies of a model do not know."""
        now = versions_of(self.base)  # type: ignore[attr-defined]
        before: dict[str, int] = self.versions_of_base  # type: ignore[attr-defined]
        return any(now[name] > version for name, version in before.items() if name in now)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        source = str(pretrained_model_name_or_path)
        config = kwargs.get("config")
        if not isinstance(config, RecurrentConfig):
            config = RecurrentConfig.from_pretrained(source, **_of_the_hub(kwargs))
        if config.added_only:
            kwargs.pop("config", None)
            return cls._load_on_base(source, config, **kwargs)
        wants_info = kwargs.pop("output_loading_info", False)
        kwargs["use_safetensors"] = True  # a pickle can run anything; weights never need one
        try:
            model, info = super().from_pretrained(  # type: ignore[misc]
                source, *args, output_loading_info=True, ignore_mismatched_sizes=True, **kwargs
            )
        except (SafetensorError, RuntimeError) as error:
            raise _damaged(source, str(error).strip().splitlines()[0]) from error
        missing = sorted(info["missing_keys"])
        saved_as = (config.architectures or [cls.__name__])[0]
        if missing and saved_as != cls.__name__:
            raise UserError(
                f"{source!r} holds a {saved_as}, which has not all weights of a {cls.__name__}: load it as "
                "that, or with the Auto class that fits it."
            )
        if missing:
            raise _damaged(source, f"{len(missing)} tensors are missing, such as {missing[0]!r}")
        # transformers would raise here too, but names the tensors only in its log.
        misfits = sorted(str(entry[0] if isinstance(entry, tuple) else entry) for entry in info["mismatched_keys"])
        if misfits:
            raise _damaged(source, f"{len(misfits)} tensors have another shape, such as {misfits[0]!r}")
        return (model, info) if wants_info else model

    @classmethod
    def _load_on_base(cls, source: str, config: RecurrentConfig, **kwargs: Any) -> Any:
        where = _of_the_hub(kwargs)
        kwargs = {k: v for k, v in kwargs.items() if k in BASE_ARGUMENTS}
        if kwargs.get("dtype") in (None, "auto") and config.dtype is not None:
            kwargs["dtype"] = config.dtype  # a base may be stored in fewer bits than it was trained in
        base = load_base(cls.auto_base, config.base_name_or_path, **kwargs)  # type: ignore[attr-defined]
        model = cls(config, base)  # type: ignore[call-arg]
        model.config.added_only = False  # type: ignore[attr-defined]
        model.mechanism.to(base.device, base.dtype)  # type: ignore[attr-defined]
        try:
            weights = load_file(cached_file(source, WEIGHTS, **where))
            added = {name.removeprefix("mechanism."): value for name, value in weights.items()}
            model.mechanism.load_state_dict(added)  # type: ignore[attr-defined]
        except (SafetensorError, RuntimeError) as error:
            raise _damaged(source, " ".join(str(error).split())) from error
        return model.eval()  # type: ignore[attr-defined]


def _of_the_hub(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: arguments[name] for name in HUB_PLACE if name in arguments}


def versions_of(base: torch.nn.Module) -> dict[str, int]:
    """How often each weight has been written to, as torch counts."""
    return {name: weight._version for name, weight in base.named_parameters()}


def load_base(auto: Any, source: Any, **kwargs: Any) -> Any:
    """A base model, whole: transformers fills gaps with random numbers and mentions it only in its log."""
    options = kwargs if "gguf_file" in kwargs else {"use_safetensors": True, **kwargs}
    try:
        model, info = auto.from_pretrained(source, output_loading_info=True, **options)
    except SafetensorError as error:
        raise _damaged(str(source), str(error)) from error
    missing = sorted(info["missing_keys"])
    if missing:
        raise _damaged(str(source), f"{len(missing)} tensors are missing, such as {missing[0]!r}")
    return model


def _upload(
    folder: Path, repo_id: str, *, private: bool | None = None, token: bool | str | None = None, **commit: Any
) -> str:
    api = HfApi(token=token)
    repo_id = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
    known = api.file_exists(repo_id, CARD, revision=commit.get("revision"))
    found = api.upload_folder(repo_id=repo_id, folder_path=folder, ignore_patterns=[CARD] if known else None, **commit)
    return str(found)


def _move_over(new: Path, target: Path) -> None:
    names = {file.name for file in new.iterdir()}
    for file in new.iterdir():
        file.replace(target / file.name)
    # A model saved in one piece and then in several, or the other way round, would be loaded from the old files.
    for old in [*target.glob("model*.safetensors"), target / "model.safetensors.index.json"]:
        if old.name not in names:
            old.unlink(missing_ok=True)


def _damaged(source: str, what: str) -> UserError:
    return UserError(
        f"The weights in {source!r} are damaged or belong to another config ({what}): save or download them again."
    )


def is_recurrent(source: str | os.PathLike) -> bool:
    """Whether a local folder holds a model that recurrify saved."""
    path = Path(source) / "config.json"
    if not path.is_file():
        return False
    try:
        return json.loads(path.read_text(encoding="utf-8")).get("model_type") == RecurrentConfig.model_type
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{str(path)!r} is not valid JSON ({error}): save or download the model again.") from error
