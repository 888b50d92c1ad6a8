"""Counts which architectures of Hugging Face transformers `fairmile predict memory` follows, each in a small form.

Run: python speed/zoo.py [--only TEXT] [--limit N] [--every K]

Every class that transformers lists for a task is built from its default configuration with few, narrow layers, and one
training step of it is traced. A step is followed, followed up to a point (lower bound), or fails for a reason. Classes
that transformers itself cannot build or run so are counted apart: their step is run on the host, too.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import tempfile
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

TASKS = {
    "causal-lm": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "masked-lm": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "seq2seq-lm": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "ctc": "MODEL_FOR_CTC_MAPPING_NAMES",
    "image": "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
    "audio": "MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES",
    "segmentation": "MODEL_FOR_SEMANTIC_SEGMENTATION_MAPPING_NAMES",
    "detection": "MODEL_FOR_OBJECT_DETECTION_MAPPING_NAMES",
    "time-series": "MODEL_FOR_TIME_SERIES_PREDICTION_MAPPING_NAMES",
}
MOST = {  # of what a field with such a name may say
    r"(?:num_)?(?:hidden_|encoder_|decoder_|n_)?layers?": 2,
    r"vocab_size": 200,
    r"(?:moe_|shared_expert_)?intermediate_size|(?:encoder_|decoder_)?ffn_dim|d_ff|n_inner": 64,
}
BATCH, LENGTH = 2, 16


def small(config: Any) -> Any:
    """Return a configuration with few and narrow layers, as far as its fields have the usual names."""
    for name, value in list(vars(config).items()):
        if hasattr(value, "to_dict"):
            small(value)
        if not isinstance(value, int) or isinstance(value, bool):
            continue
        for pattern, most in MOST.items():
            if re.fullmatch(pattern, name) and value > most:
                with contextlib.suppress(Exception):
                    setattr(config, name, most)
    for name in ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "image_token_id"):
        value = getattr(config, name, None)
        if isinstance(value, int) and value >= getattr(config, "vocab_size", value + 1):
            with contextlib.suppress(Exception):
                setattr(config, name, 1)
    for name in ("layer_types", "mlp_layer_types"):
        kinds, layers = getattr(config, name, None), getattr(config, "num_hidden_layers", None)
        if isinstance(kinds, list) and isinstance(layers, int):
            with contextlib.suppress(Exception):
                setattr(config, name, kinds[:layers])
    return config


def build(kind: str, name: str, task: str) -> Any:
    """Return the step of a class of transformers."""
    import torch
    import transformers

    config = small(transformers.AutoConfig.for_model(kind))
    model = getattr(transformers, name)(config)

    def inputs() -> dict[str, Any]:
        words = getattr(config.get_text_config(), "vocab_size", 200) if task != "image" else 200
        ids = torch.randint(3, max(4, words - 1), (BATCH, LENGTH))
        size = getattr(config, "image_size", 64) or 64
        height, width = (size, size) if isinstance(size, int) else (size[0], size[1])
        pixels = torch.randn(BATCH, getattr(config, "num_channels", 3) or 3, height, width)
        sound = torch.randn(BATCH, 16_000)
        if task in ("causal-lm", "masked-lm"):
            return {"input_ids": ids, "labels": ids}
        if task == "seq2seq-lm":
            return {"input_ids": ids, "decoder_input_ids": ids, "labels": ids}
        if task == "ctc":
            return {"input_values": sound, "labels": torch.randint(1, 30, (BATCH, 5))}
        if task == "audio":
            return {"input_values": sound, "labels": torch.zeros(BATCH, dtype=torch.long)}
        if task == "image":
            return {"pixel_values": pixels, "labels": torch.zeros(BATCH, dtype=torch.long)}
        if task == "segmentation":
            return {"pixel_values": pixels, "labels": torch.zeros(BATCH, height, width, dtype=torch.long)}
        if task == "detection":
            labels = [{"class_labels": torch.tensor([1, 2]), "boxes": torch.rand(2, 4)} for _ in range(BATCH)]
            return {"pixel_values": pixels, "labels": labels}
        length = config.context_length + max(getattr(config, "lags_sequence", [0]))
        return {
            "past_values": torch.randn(BATCH, length),
            "future_values": torch.randn(BATCH, config.prediction_length),
        }

    def loss(model: Any) -> Any:
        out = model(**inputs())
        return out["loss"] if out.get("loss") is not None else next(iter(out.values())).float().mean()

    return SimpleNamespace(model=model, loss=loss, optimizer=lambda parameters: torch.optim.AdamW(parameters, 1e-4))


def runs_on_host(kind: str, name: str, task: str) -> str:
    """Return why a step fails on the host, nothing where it runs."""
    import torch

    try:
        torch.manual_seed(0)
        step = build(kind, name, task)
        step.model.train()
        step.loss(step.model).backward()
    except Exception as error:  # noqa: BLE001 - whatever a model of others raises is its reason
        return f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default="", help="Only classes with this text in their name.")
    parser.add_argument("--limit", type=int, default=0, help="Maximum number of classes per task.")
    parser.add_argument("--every", type=int, default=1, metavar="K", help="Only every K-th class of a task.")
    chosen = parser.parse_args()
    from transformers.models.auto import modeling_auto

    from fairmile.base.errors import FairmileError
    from fairmile.predict.fake_device.request import TraceRequest, trace_target

    counts: Counter[str] = Counter()
    for task, mapping in TASKS.items():
        classes = [(kind, name) for kind, name in getattr(modeling_auto, mapping).items() if isinstance(name, str)]
        classes = [each for each in classes if chosen.only.casefold() in each[1].casefold()]
        for kind, name in classes[:: chosen.every][: chosen.limit or None]:
            arguments = {"kind": kind, "name": name, "task": task}
            request = TraceRequest(__file__, "build", arguments, steps=1, partial=True)
            with tempfile.TemporaryDirectory() as folder:
                try:
                    trace = trace_target(request, timeout_s=120, folder=Path(folder))
                    outcome = f"lower bound: {trace.stopped}" if trace.stopped else "followed"
                    outcome += " with assumed values" if trace.assumed and not trace.stopped else ""
                except FairmileError as error:
                    outcome = f"failed: {error.message}"
            if not outcome.startswith("followed"):
                reason = runs_on_host(kind, name, task)
                outcome = f"not buildable so: {reason}" if reason else outcome
            counts[outcome.partition(":")[0]] += 1
            print(f"{task:14} {name:45} {outcome[:200]}", flush=True)
    print(dict(counts))
    judged = sum(count for outcome, count in counts.items() if outcome != "not buildable so")
    followed = sum(count for outcome, count in counts.items() if outcome.startswith("followed"))
    print(f"followed {followed} of {judged} ({followed / max(1, judged):.1%})")


if __name__ == "__main__":
    main()
