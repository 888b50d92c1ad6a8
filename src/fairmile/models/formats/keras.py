"""Keras models: the ZIP file of version 3, and the HDF5 file of earlier ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from fairmile.models.formats.description import ModelDescription, TensorSpec, count_values
from fairmile.models.formats.hdf5 import SIGNATURE, Hdf5, NotHdf5
from fairmile.models.formats.source import Source

_WEIGHTS = "model.weights.h5"
_OTHERS = ("optimizer", "optimizer_weights")  # what is saved beside the model's own weights
_MOST_LAYERS = 100_000


def recognises_zip(source: Source) -> bool:
    """Tell whether a ZIP file holds a Keras model: a configuration and weights."""
    return {"config.json", "metadata.json", _WEIGHTS} <= source.members.keys()


def recognises_hdf5(source: Source) -> bool:
    """Tell whether an HDF5 file is a Keras model or weights of one; other HDF5 files are data."""
    if source.head[:8] != SIGNATURE:
        return False
    try:
        file = Hdf5(source.view)
        return bool(file.attributes().keys() & {"keras_version", "model_config", "layer_names"}) or _has_layers(file)
    except NotHdf5 as error:
        raise source.damaged("HDF5 file", str(error)) from error


def _has_layers(file: Hdf5) -> bool:
    first = next(file.datasets(), None)
    return first is not None and first.name.startswith(("layers/", "_layer_checkpoint_dependencies/"))


def read_zip(source: Source) -> ModelDescription:
    """Return what a `.keras` file declares."""
    config = source.member_json("config.json", "Keras file")
    metadata = source.member_json("metadata.json", "Keras file")
    stored = source.stored(_WEIGHTS)
    weights = _weights(source, stored if stored is not None else memoryview(source.member(_WEIGHTS)))
    version = metadata.get("keras_version", "") if isinstance(metadata, Mapping) else ""
    return _description(source, "keras", config, weights, f"Keras {version}".strip())


def read_hdf5(source: Source) -> ModelDescription:
    """Return what a Keras model in HDF5 declares, or weights alone."""
    try:
        file = Hdf5(source.view)
        attributes = file.attributes()
    except NotHdf5 as error:
        raise source.damaged("HDF5 file", str(error)) from error
    weights = _weights(source, source.view)
    text = attributes.get("model_config")
    config = source.parse_json(text.encode(), "Keras file: model_config") if isinstance(text, str) else {}
    producer = " ".join(filter(None, ("Keras", _text(attributes.get("keras_version")))))
    return _description(source, "keras-h5", config, weights, producer)


def _text(value: str | list[str] | None) -> str:
    return value if isinstance(value, str) else ""


def _weights(source: Source, data: memoryview) -> tuple[TensorSpec, ...]:
    try:
        return tuple(each for each in Hdf5(data).datasets() if each.name.partition("/")[0] not in _OTHERS)
    except (NotHdf5, RecursionError) as error:
        raise source.damaged("HDF5 file", str(error)) from error


def _description(
    source: Source, format: str, config: Any, weights: tuple[TensorSpec, ...], producer: str
) -> ModelDescription:
    config = config if isinstance(config, Mapping) else {}
    layers = list(_layers(config))
    inputs, outputs = _ends(config, layers)
    details = {"class": str(config["class_name"])} if config.get("class_name") else {"content": "weights alone"}
    custom = sorted({str(each["registered_name"]) for each in layers if each.get("registered_name")})
    warnings = [f"needs custom classes: {', '.join(custom[:5])}"] if custom else []
    if any(each.get("class_name") == "Lambda" for each in layers):
        warnings.append("has a Lambda layer: loading it runs code of the file")
    return ModelDescription(
        str(source.path),
        format,
        "keras",
        len(source.view),
        producer=producer,
        inputs=inputs,
        outputs=outputs,
        parameters=count_values(weights),
        weights=weights,
        operators=dict(sorted(Counter(str(each.get("class_name")) for each in layers).items())),
        runs_code=any(each.get("class_name") == "Lambda" for each in layers),
        details=details,
        warnings=tuple(warnings),
    )


def _layers(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield every layer, those of models in the model included."""
    stack, number = [config], 0
    while stack:
        inner = stack.pop().get("config")
        layers = inner.get("layers") if isinstance(inner, Mapping) else None
        for each in layers if isinstance(layers, list) else ():
            number += 1
            if isinstance(each, Mapping) and number <= _MOST_LAYERS:
                yield each
                stack.append(each)


def _ends(
    config: Mapping[str, Any], layers: list[Mapping[str, Any]]
) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Return inputs, by the input layers, and outputs, by name and, where the last layer is dense, by shape."""
    inputs = []
    for each in layers:
        inner = each.get("config")
        if each.get("class_name") == "InputLayer" and isinstance(inner, Mapping):
            shape = inner.get("batch_shape") or inner.get("batch_input_shape")
            dims = tuple(d if isinstance(d, int) else None for d in shape) if isinstance(shape, list) else None
            inputs.append(TensorSpec(str(inner.get("name", "")), _dtype(inner.get("dtype")), dims))
    last = layers[-1].get("config") if layers else None
    outputs = []
    if isinstance(last, Mapping) and last.get("name"):
        units = last.get("units")
        shape = (None, units) if isinstance(units, int) and _is_flat(inputs) else None
        outputs = [TensorSpec(str(last["name"]), _dtype(last.get("dtype")), shape)]
    return tuple(inputs), tuple(outputs)


def _is_flat(inputs: list[TensorSpec]) -> bool:
    return all(each.shape is not None and len(each.shape) == 2 for each in inputs)


def _dtype(value: Any) -> str:
    if isinstance(value, Mapping):
        inner = value.get("config")
        value = inner.get("name") if isinstance(inner, Mapping) else ""
    return value if isinstance(value, str) else ""
