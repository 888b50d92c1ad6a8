"""Eager training steps of public models that no rule or table was made from, predicted before they are measured."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parent))
from compiled_steps import of_model

CASES: list[tuple[str, dict[str, Any]]] = [
    ("pictures", {"name": "coatnet_0_rw_224", "batch": 64, "precision": "bf16"}),
    ("pictures", {"name": "xcit_small_12_p16_224", "batch": 64}),
    ("pictures", {"name": "davit_tiny", "batch": 64, "precision": "bf16"}),
    ("pictures", {"name": "dm_nfnet_f0", "batch": 64, "precision": "bf16"}),
    ("pictures", {"name": "hrnet_w32", "batch": 64}),
    ("pictures", {"name": "res2net50_26w_4s", "batch": 64, "channels_last": True}),
    ("pictures", {"name": "volo_d1_224", "batch": 64, "precision": "bf16"}),
    ("pictures", {"name": "hiera_small_224", "batch": 64}),
    ("pictures", {"name": "eva02_small_patch14_224", "batch": 128, "precision": "bf16"}),
    ("pictures", {"name": "repvit_m1_5", "batch": 128, "precision": "bf16", "channels_last": True}),
    ("pictures", {"name": "edgenext_base", "batch": 128}),
    ("pictures", {"name": "fastvit_sa12", "batch": 64}),
    ("pictures", {"name": "hgnetv2_b4", "batch": 64, "precision": "bf16"}),
    ("hub", {"kind": "DebertaV2ForMaskedLM", "batch": 8, "length": 256}),
    ("hub", {"kind": "ModernBertForMaskedLM", "batch": 16, "length": 512, "precision": "bf16"}),
    ("hub", {"kind": "FalconForCausalLM", "batch": 4, "length": 1024, "precision": "bf16"}),
    ("hub", {"kind": "BartForConditionalGeneration", "batch": 16, "length": 256}),
    ("hub", {"kind": "VideoMAEForVideoClassification", "batch": 8, "precision": "bf16"}),
    ("hub", {"kind": "DPTForDepthEstimation", "batch": 8, "precision": "bf16"}),
    ("hub", {"kind": "CvtForImageClassification", "batch": 64}),
    ("hub", {"kind": "GraniteForCausalLM", "batch": 4, "length": 1024}),
    ("hub", {"kind": "Data2VecAudioForCTC", "batch": 8, "length": 64000, "precision": "bf16"}),
    ("pictures", {"name": "focalnet_tiny_srf", "batch": 64}),
    ("pictures", {"name": "nextvit_small", "batch": 128, "precision": "bf16"}),
    ("pictures", {"name": "tiny_vit_21m_224", "batch": 128, "precision": "bf16"}),
    ("pictures", {"name": "resmlp_24_224", "batch": 128}),
    ("pictures", {"name": "gmixer_24_224", "batch": 256, "precision": "bf16"}),
    ("pictures", {"name": "mobilevitv2_100", "batch": 64}),
    ("pictures", {"name": "crossvit_15_240", "batch": 64}),
    ("pictures", {"name": "pit_s_224", "batch": 256, "precision": "bf16"}),
    ("pictures", {"name": "fastvit_sa36", "batch": 64}),
    ("pictures", {"name": "resnetv2_50", "batch": 128, "precision": "bf16"}),
    ("pictures", {"name": "densenetblur121d", "batch": 64}),
    ("pictures", {"name": "regnetz_c16", "batch": 64, "channels_last": True}),
    ("pictures", {"name": "seresnet50", "batch": 256, "precision": "bf16", "channels_last": True}),
    ("pictures", {"name": "ecaresnet50d", "batch": 64}),
    ("hub", {"kind": "OPTForCausalLM", "batch": 8, "length": 1024, "precision": "bf16"}),
    ("hub", {"kind": "GPTNeoXForCausalLM", "batch": 8, "length": 512}),
    ("hub", {"kind": "BeitForImageClassification", "batch": 64}),
    ("hub", {"kind": "MPNetForMaskedLM", "batch": 32, "length": 256}),
    ("hub", {"kind": "RoFormerForMaskedLM", "batch": 32, "length": 512, "precision": "bf16"}),
    ("hub", {"kind": "BloomForCausalLM", "batch": 8, "length": 512, "precision": "bf16"}),
]
_SIZES: dict[str, dict[str, Any]] = {
    "DebertaV2ForMaskedLM": {"num_hidden_layers": 6},
    "BloomForCausalLM": {"hidden_size": 1024, "n_layer": 12, "n_head": 16},
    "GPTNeoXForCausalLM": {
        **{"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 10},
        **{"num_attention_heads": 16, "vocab_size": 50304},
    },
    "FalconForCausalLM": {"hidden_size": 1024, "num_hidden_layers": 12, "num_attention_heads": 16},
    "GraniteForCausalLM": {
        **{"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 10},
        **{"num_attention_heads": 16, "num_key_value_heads": 16},
    },
}


def pictures(name: str, batch: int, precision: str = "fp32", channels_last: bool = False) -> Any:
    """A classifier of images from timm."""
    import zoo_steps

    zoo_steps.without_extension()
    import timm

    model = timm.create_model(name, pretrained=False)
    size = tuple(model.pretrained_cfg.get("input_size") or (3, 224, 224))

    def loss(model: Any) -> torch.Tensor:
        out = model(torch.randn(batch, *size, device="cuda"))
        scores = out[0] if isinstance(out, (tuple, list)) else out
        return functional.cross_entropy(scores.float(), torch.randint(0, 1000, (batch,), device="cuda"))

    return of_model(model.to(memory_format=torch.channels_last) if channels_last else model, loss, precision)


def hub(kind: str, batch: int, length: int = 0, precision: str = "fp32") -> Any:
    """A class of transformers, as large as its own configuration says unless a smaller size is listed."""
    import transformers

    of = getattr(transformers, kind)
    config = of.config_class(**_SIZES.get(kind, {}))
    losses: dict[str, Callable[[Any], torch.Tensor]] = {
        "Video": lambda model: _squared(
            model(torch.randn(batch, config.num_frames, 3, config.image_size, config.image_size, device="cuda")).logits
        ),
        "Depth": lambda model: _squared(model(torch.randn(batch, 3, 384, 384, device="cuda")).predicted_depth),
        "Image": lambda model: _squared(model(torch.randn(batch, 3, 224, 224, device="cuda")).logits),
        "Audio": lambda model: _squared(model(torch.randn(batch, length, device="cuda")).logits),
    }

    def words(model: Any) -> torch.Tensor:
        ids = torch.randint(5, config.vocab_size - 5, (batch, length), device="cuda")
        more = {"use_cache": False} if "Causal" in kind or "Conditional" in kind else {}
        return model(input_ids=ids, labels=ids, **more).loss  # type: ignore[no-any-return]

    loss = next((made for word, made in losses.items() if word in kind), words)
    return of_model(of(config), loss, precision)


def _squared(scores: torch.Tensor) -> torch.Tensor:
    return scores.float().square().mean()
