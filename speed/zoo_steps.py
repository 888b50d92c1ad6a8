"""Training steps of public models: every class of transformers with a task, timm's registry, torchvision, and others.

Models have random weights and are built from their configurations, without a network. Transformers are made small:
few layers and a short vocabulary. Models of images and text train on text alone.
"""

from __future__ import annotations

import contextlib
import inspect
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
import zoo_others

FAMILIES = ("others", "transformers", "timm", "torchvision")
BATCH, LENGTH = 2, 32

# Mappings of transformers that list models without a task, the same as others, or what is no model.
WITHOUT_TASK = ("CONFIG", "MODEL", "MODEL_FOR_IMAGE", "MODEL_FOR_BACKBONE", "MODEL_FOR_TEXT_ENCODING")
WITHOUT_LABELS = (
    *("audio_frame_classification", "depth_estimation", "keypoint_detection", "image_to_image", "mask_generation"),
    *("normal_estimation", "pose_estimation", "pointmap_estimation", "image_matting"),
)
TRANSCRIPTS = ("ctc", "rnnt", "tdt")
ONE_LABEL = ("audio_xvector", "multiple_choice", "next_sentence_prediction")
MOST = {  # of what a field with such a name may say
    r"(?:num_|n_|.*_)?(?:hidden_|encoder_|decoder_|block_)?layers?": 2,
    r"n_layers?|encoder_layers|decoder_layers|depth|num_blocks": 2,
    r"(?:.*_)?vocab_size": 200,
    r"(?:.*_)?intermediate_size|(?:encoder_|decoder_)?ffn_dim|d_ff|n_inner|ffn_hidden_size": 64,
    r"num_experts|num_local_experts|n_routed_experts|moe_num_experts": 8,
    r"n_group|topk_group": 1,
}


def cases(family: str) -> list[str]:
    """Return the names of a family's models."""
    if family == "others":
        return sorted(zoo_others.STEPS)
    if family == "timm":
        import timm

        return sorted(timm.list_models())
    if family == "torchvision":
        import torchvision

        return sorted(torchvision.models.list_models())
    return sorted(_tasks())


def build(family: str, name: str, plain: bool = False) -> Any:
    """Return the step of a model; a plain one has no dropout, which takes other masks on the host than on a GPU."""
    made = {"others": _other, "transformers": _transformer, "timm": _timm, "torchvision": _torchvision}[family](name)
    made.optimizer = lambda parameters: torch.optim.AdamW(parameters, 1e-4)
    for module in made.model.modules() if plain else ():
        for holder in (module, getattr(module, "config", None)):
            for field, value in list(vars(holder).items()) if holder is not None else ():
                is_share = isinstance(value, float) and ("drop" in field or field == "p")
                if is_share:
                    with contextlib.suppress(Exception):
                        setattr(holder, field, 0.0)
    return made


def without_extension() -> None:
    """Let torchvision be imported where its compiled operators cannot be loaded: all but these works."""
    register = torch.library.register_fake

    def register_known(name: str, *args: Any, **kwargs: Any) -> Any:
        space, _, short = str(name).partition("::")
        is_known = hasattr(getattr(torch.ops, space), short)
        return register(name, *args, **kwargs) if is_known else lambda function: function

    torch.library.register_fake = register_known
    with contextlib.suppress(ImportError):
        import torchvision  # noqa: F401
    torch.library.register_fake = register


def _other(name: str) -> Any:
    model, loss = zoo_others.STEPS[name]()
    return SimpleNamespace(model=model, loss=loss)


def _timm(name: str) -> Any:
    import timm

    model = timm.create_model(name, pretrained=False)
    config = model.pretrained_cfg
    size = tuple(config.get("input_size") or (3, 224, 224))

    def loss(model: Any) -> Any:
        return _mean(model(torch.randn(BATCH, *size)))

    return SimpleNamespace(model=model, loss=loss)


def _torchvision(name: str) -> Any:
    import torchvision

    model = torchvision.models.get_model(name, weights=None, **_without_weights(name))
    module = type(model).__module__

    def loss(model: Any) -> Any:
        if ".detection" in module:
            images = [torch.randn(3, 320, 320) for _ in range(BATCH)]
            boxes = torch.tensor([[10.0, 10, 100, 120], [50, 60, 200, 220]])
            marks = {
                "boxes": boxes,
                "labels": torch.tensor([1, 2]),
                "masks": torch.ones(2, 320, 320, dtype=torch.uint8),
            }
            if "keypoint" in name:
                marks = {**marks, "keypoints": torch.rand(2, 17, 3) * 50 + 50, "labels": torch.tensor([1, 1])}
            return sum(model(images, [dict(marks) for _ in images]).values())
        if ".optical_flow" in module:
            return _mean(model(torch.randn(BATCH, 3, 128, 128), torch.randn(BATCH, 3, 128, 128)))
        if ".video" in module:
            return _mean(
                model(torch.randn(BATCH, 3, 16, 224 if "mvit" in name or "swin" in name else 112, *_wide(name)))
            )
        return _mean(model(torch.randn(BATCH, 3, *((299, 299) if "inception" in name else (224, 224)))))

    return SimpleNamespace(model=model, loss=loss)


def _without_weights(name: str) -> dict[str, Any]:
    import torchvision

    builder = torchvision.models.get_model_builder(name)
    return {"weights_backbone": None} if "weights_backbone" in inspect.signature(builder).parameters else {}


def _wide(name: str) -> tuple[int]:
    return (224,) if "mvit" in name or "swin" in name else (112,)


# transformers


def _tasks() -> dict[str, tuple[str, str]]:
    """Return all classes with a task: its mapping and the kind of their configuration."""
    from transformers.models.auto import modeling_auto

    tasks: dict[str, tuple[str, str]] = {}
    for mapping in sorted(dir(modeling_auto)):
        task = mapping.removesuffix("_MAPPING_NAMES")
        if task == mapping or task in WITHOUT_TASK:
            continue
        for kind, names in getattr(modeling_auto, mapping).items():
            for name in (names,) if isinstance(names, str) else names:
                tasks.setdefault(name, (task.removeprefix("MODEL_FOR_").lower(), kind))
    return tasks


def _small(config: Any) -> Any:
    """Return a configuration with few and narrow layers, as far as its fields have the usual names."""
    for name, value in list(vars(config).items()):
        if hasattr(value, "to_dict"):
            _small(value)
        if not isinstance(value, int) or isinstance(value, bool):
            continue
        for pattern, most in MOST.items():
            if re.fullmatch(pattern, name) and value > most:
                with contextlib.suppress(Exception):
                    setattr(config, name, most)
    if getattr(config, "pad_token_id", 0) is None:
        config.pad_token_id = 0
    words = getattr(config, "vocab_size", None)
    for name, value in list(vars(config).items()):
        if name.endswith("token_id") and isinstance(value, int) and isinstance(words, int) and value >= words:
            with contextlib.suppress(Exception):
                setattr(config, name, words - 1 if "pad" not in name else 0)
    layers = getattr(config, "num_hidden_layers", None)
    for name in ("layer_types", "mlp_layer_types", "layers_block_type"):
        kinds = getattr(config, name, None)
        if isinstance(kinds, (list, tuple)) and isinstance(layers, int) and len(kinds) > layers:
            with contextlib.suppress(Exception):
                setattr(config, name, _both(list(kinds), layers))
    return config


def _both(kinds: list[str], layers: int) -> list[str]:
    """Return as many kinds of layers as there are layers, different ones where there are any."""
    different = list(dict.fromkeys(kinds))
    return (different + kinds)[:layers]


def _transformer(name: str) -> Any:
    import transformers

    task, kind = _tasks()[name]
    made = getattr(transformers, name)
    config = (made.config_class or type(transformers.AutoConfig.for_model(kind)))()
    model = made(_small(config))

    def loss(model: Any) -> Any:
        out = model(**_Inputs(config, task, name, model).all())
        found = out.get("loss") if hasattr(out, "get") else None
        return found.mean() if found is not None else _mean(out)

    return SimpleNamespace(model=model, loss=loss)


def _mean(out: Any) -> Any:
    """Return a number that depends on an output: of the first tensor with fractions in it."""
    if isinstance(out, torch.Tensor):
        return out.float().mean() if out.requires_grad else None
    parts = list(out.values()) if hasattr(out, "values") else out if isinstance(out, (list, tuple)) else []
    means = [mean for mean in map(_mean, parts) if mean is not None]
    return sum(means[1:], means[0]) if means else None


def _first(config: Any, *names: str, otherwise: Any = None) -> Any:
    """Return the first of some fields that a configuration, or one inside it, has."""
    inner = [value for value in vars(config).values() if hasattr(value, "to_dict")]
    for name in names:
        for each in (config, *inner):
            value = getattr(each, name, None)
            if value is not None and not isinstance(value, bool):
                return value
    return otherwise


class _Inputs:
    """What the forward of a class takes, by the names of its parameters and its task."""

    def __init__(self, config: Any, task: str, name: str, model: Any) -> None:
        self.config, self.task, self.name = config, task, name
        self.takes = inspect.signature(model.forward).parameters
        self.main = getattr(model, "main_input_name", "input_ids")
        self.device = None
        text = config.get_text_config() if hasattr(config, "get_text_config") else config
        self.words = min(_first(text, "vocab_size", otherwise=200) or 200, 200)
        size = _first(config, "image_size", otherwise=224) or 224
        size = tuple(size.values()) if isinstance(size, dict) else size
        self.size = (size, size) if isinstance(size, int) else tuple(size)[-2:]
        if not isinstance(getattr(config, "image_size", None), (int, list, tuple, dict)):
            self.size = (min(self.size[0], 224), min(self.size[1], 224))

    def all(self) -> dict[str, Any]:
        made: dict[str, Any] = {}
        wanted = [self.main, *self._others()]
        for name in wanted:
            maker = getattr(self, f"_{name}", None)
            if name in self.takes and maker is not None and name not in made:
                made[name] = maker()
        return made | self._labels(made)

    def _others(self) -> list[str]:
        """Return the names of inputs that this task or class needs beside the main one."""
        required = [name for name, each in self.takes.items() if each.default is inspect.Parameter.empty]
        wanted = [name for name in required if name not in ("self", "kwargs", "args")]
        if getattr(self.config, "is_encoder_decoder", False) and self.task != "object_detection":
            wanted.append("decoder_input_ids")
        both = {
            "zero_shot_image_classification",
            "retrieval",
            "visual_question_answering",
            "zero_shot_object_detection",
        }
        if self.task in both or re.match("Vilt|Bridge|LayoutLMv2|Flava", self.name):
            wanted += ["input_ids", "pixel_values"]
        if self.task in TRANSCRIPTS and self.main == "input_features":
            wanted.append("attention_mask")
        return [*wanted, "bbox", "bool_masked_pos", "decision_inputs"]

    def _ids(self, *shape: int) -> torch.Tensor:
        return torch.randint(3, max(4, self.words - 8), shape)

    def _input_ids(self) -> torch.Tensor:
        if self.task == "multiple_choice":
            return self._ids(BATCH, 2, LENGTH)
        ids = self._ids(BATCH, LENGTH)
        end = getattr(self.config, "eos_token_id", None)
        if self.task in ("sequence_classification", "question_answering") and isinstance(end, int) and end < self.words:
            ids[:, -1] = end
        if self.name == "LongformerForQuestionAnswering":
            ids[:, [5, -2, -1]] = self.config.sep_token_id
        return ids

    def _decoder_input_ids(self) -> torch.Tensor:
        return self._ids(BATCH, LENGTH)

    def _attention_mask(self) -> torch.Tensor:
        length = self._input_features().shape[1] if self.main == "input_features" else LENGTH
        return torch.ones(BATCH, length, dtype=torch.long)

    def _bbox(self) -> torch.Tensor:
        corners = torch.randint(0, 500, (BATCH, LENGTH, 2))
        boxes = torch.cat([corners, corners + 100], -1)
        return boxes / 1000 if self.name.startswith("Bros") else boxes

    def _pixels(self) -> tuple[int, int, int]:
        return int(_first(self.config, "num_channels", "in_channels", otherwise=3) or 3), *self.size

    def _pixel_values(self) -> torch.Tensor:
        frames = getattr(self.config, "num_frames", None) or getattr(self.config, "frames_per_clip", None)
        if "video" in self.task and isinstance(frames, int):
            return torch.randn(BATCH, frames, *self._pixels())
        if re.match("LayoutLMv2|LayoutLMv3", self.name):
            return torch.randn(BATCH, 3, 224, 224)
        return torch.randn(BATCH, *self._pixels())

    def _pixel_values_videos(self) -> torch.Tensor:
        frames = getattr(self.config, "num_frames", None) or getattr(self.config, "frames_per_clip", 16)
        size = getattr(self.config, "crop_size", None) or self.size[0]
        return torch.randn(BATCH, frames, 3, size, size)

    def _pixel_mask(self) -> torch.Tensor:
        return torch.ones(BATCH, *self.size, dtype=torch.long)

    def _input_values(self) -> torch.Tensor:
        bins = getattr(self.config, "num_mel_bins", None)
        if bins and re.match("AST", self.name):
            return torch.randn(BATCH, self.config.max_length, bins)
        if re.match("SpeechT5ForTextToSpeech|SpeechT5", self.name) and "SpeechToText" not in self.name:
            return torch.randn(BATCH, 16, bins or 80)
        if re.match("Encodec|Dac|Mimi|Xcodec", self.name):
            return torch.randn(BATCH, 1, 16_000)
        return torch.randn(BATCH, 16_000)

    def _input_features(self) -> torch.Tensor:
        bins = int(
            _first(
                self.config,
                "num_mel_bins",
                "feature_projection_input_dim",
                "input_feat_per_channel",
                "feature_size",
                "input_dim",
                otherwise=80,
            )
        )
        steps = _first(self.config, "max_source_positions", otherwise=None)
        if re.match("Whisper|Qwen2Audio|Voxtral|Moonshine", self.name):
            return torch.randn(BATCH, bins, 2 * int(steps or 1500))
        if "Clap" in self.name:
            return torch.randn(BATCH, 1, 1001, 64)
        return torch.randn(BATCH, 128, bins)

    def _bool_masked_pos(self) -> torch.Tensor:
        side = int(_first(self.config, "patch_size", otherwise=16))
        patches = (self.size[0] // side) * (self.size[1] // side)
        if self.name.startswith("VideoMAE"):
            patches *= self.config.num_frames // self.config.tubelet_size
            return (torch.arange(patches) < patches // 2).expand(BATCH, -1)  # as many in every video
        return torch.rand(BATCH, patches) < 0.4

    def _past_values(self) -> torch.Tensor:
        length = self.config.context_length + max(getattr(self.config, "lags_sequence", None) or [0])
        channels = getattr(self.config, "num_input_channels", None)
        return torch.randn(BATCH, length, *([channels] if channels else []))

    def _past_time_features(self) -> torch.Tensor:
        return torch.randn(*self._past_values().shape[:2], max(1, self.config.num_time_features))

    def _past_observed_mask(self) -> torch.Tensor:
        return torch.ones_like(self._past_values())

    def _future_values(self) -> torch.Tensor:
        channels = getattr(self.config, "num_input_channels", None)
        return torch.randn(BATCH, self.config.prediction_length, *([channels] if channels else []))

    def _future_time_features(self) -> torch.Tensor:
        return torch.randn(BATCH, self.config.prediction_length, max(1, self.config.num_time_features))

    def _states(self) -> torch.Tensor:
        return torch.randn(BATCH, 10, self.config.state_dim)

    def _actions(self) -> torch.Tensor:
        return torch.randn(BATCH, 10, self.config.act_dim)

    def _rewards(self) -> torch.Tensor:
        return torch.randn(BATCH, 10, 1)

    def _returns_to_go(self) -> torch.Tensor:
        return torch.randn(BATCH, 10, 1)

    def _timesteps(self) -> torch.Tensor:
        return torch.arange(10).expand(BATCH, 10)

    def _labels(self, made: dict[str, Any]) -> dict[str, Any]:
        """Return what the loss compares with."""
        takes, task = self.takes, self.task
        if task == "question_answering" and "start_positions" in takes:
            return {"start_positions": torch.tensor([1, 2]), "end_positions": torch.tensor([3, 4])}
        if task.startswith("time_series"):
            return self._future(takes)
        if "mask_labels" in takes:
            masks = (torch.rand(BATCH, 2, *self.size) < 0.5).float()
            return {"mask_labels": list(masks), "class_labels": [torch.tensor([1, 2]) for _ in range(BATCH)]}
        if "labels" not in takes or task in WITHOUT_LABELS or (task == "pretraining" and self.main != "input_ids"):
            return {}
        return {"labels": self._plain_labels(made)} | {
            name: torch.tensor([0, 1]) for name in ("next_sentence_label", "sentence_order_label") if name in takes
        }

    def _plain_labels(self, made: dict[str, Any]) -> Any:
        task = self.task
        if task.endswith(("detection", "segmentation")) and task != "semantic_segmentation":
            boxes = torch.tensor([[0.5, 0.5, 0.2, 0.2], [0.3, 0.3, 0.2, 0.2]])
            label = {"class_labels": torch.tensor([1, 2]), "boxes": boxes}
            if "segment" in task:
                label["masks"] = (torch.rand(2, *self.size) < 0.5).float()
            return [dict(label) for _ in range(BATCH)]
        if task in TRANSCRIPTS:
            return torch.randint(1, max(2, min(30, self.words)), (BATCH, 5))
        shape = {"semantic_segmentation": self.size, "token_classification": (LENGTH,)}.get(task, ())
        if shape or task.endswith("classification") or task in ONE_LABEL:
            return torch.zeros(BATCH, *shape, dtype=torch.long)
        ids = made.get("decoder_input_ids", made.get("input_ids"))
        return self._ids(BATCH, LENGTH) if ids is None else ids

    def _future(self, takes: Any) -> dict[str, Any]:
        made: dict[str, Any] = {}
        if "future_values" in takes:
            made["future_values"] = self._future_values()
        if "target_values" in takes:
            many = getattr(self.config, "num_targets", 1)
            is_class = self.task == "time_series_classification"
            made["target_values"] = torch.zeros(BATCH, dtype=torch.long) if is_class else torch.randn(BATCH, many)
        for name in ("past_time_features", "past_observed_mask", "future_time_features"):
            if name in takes and not self.name.startswith("Patch"):
                made[name] = getattr(self, f"_{name}")()
        return made
