"""Files that are saved with the weights: a model card, and a module by which other tools load the model."""

from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any

HERE = Path(__file__).parent
CARD = "README.md"
SHIM = "modeling_recurrify.py"


def auto_map() -> dict[str, str]:
    """Which Auto class finds what in the module, as `config.json` has it."""
    kinds = ("CausalLM", "MaskedLM", "QuestionAnswering", "SequenceClassification", "TokenClassification")
    module = SHIM.removesuffix(".py")
    return {
        "AutoConfig": f"{module}.RecurrentConfig",
        "AutoModel": f"{module}.RecurrentModel",
        **{f"AutoModelFor{kind}": f"{module}.RecurrentFor{kind}" for kind in kinds},
    }


def write_beside(model: Any, folder: Path, name: str, about: Mapping[str, Any]) -> None:
    """Write both files. `about` may have `data`, the name of what the model was trained on, and `results`, numbers by
    name."""
    (folder / SHIM).write_text((HERE / "shim.py").read_text(encoding="utf-8"), encoding="utf-8")
    (folder / CARD).write_text(_card(model, name, about), encoding="utf-8")


def _card(model: Any, name: str, about: Mapping[str, Any]) -> str:
    source = model.config.base_name_or_path
    on_hub = bool(source) and not Path(source).exists()
    settings = model.recurrence.to_dict()
    memory = ", ".join(f"{key}={value}" for key, value in settings.items() if key not in ("mechanism", "window"))
    results = about.get("results") or {}
    return Template((HERE / "card.md").read_text(encoding="utf-8")).substitute(
        metadata=f"base_model: {source}\n" if on_hub else "",
        title=name,
        name=name,
        base=source if on_hub else f"a {model.config.base_config.model_type} model",
        memory=f"{settings['mechanism']} ({memory})",
        window=settings["window"],
        overlap=settings["overlap"],
        data=about.get("data") or "not stated",
        results=", ".join(f"{key} {value:.4g}" for key, value in results.items()) or "not stated",
        auto=type(model).auto_base.__name__,
    )
