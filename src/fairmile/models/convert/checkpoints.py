"""Weights of PyTorch as variables of TensorFlow and back: names and layouts, by rule or by a map."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fairmile.base.errors import Unsupported, UsageError
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.base.yaml import load as load_yaml

Array = np.ndarray[Any, Any]

# By the last part of a name in PyTorch and the number of axes: the name in TensorFlow, and the order of axes there.
_CHANNELS_LAST = {3: (2, 1, 0), 4: (2, 3, 1, 0), 5: (2, 3, 4, 1, 0)}  # of the weights of convolutions
_PLAIN = {"bias": "bias", "running_mean": "moving_mean", "running_var": "moving_variance"}
_NORM = {"weight": "gamma", "bias": "beta"}
COUNTER = "num_batches_tracked"  # of PyTorch's batch norms; Keras counts nothing


class Place(NamedTuple):
    """The name of a weight in the other framework, and the order of its axes in TensorFlow."""

    name: str
    order: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Mapped:
    """What a map says of single weights, by their names in PyTorch."""

    places: Mapping[str, Place]

    @classmethod
    def read(cls, file: str) -> Mapped:
        """Return the map in a YAML or JSON file: TensorFlow's name, or `name` and `layout`, by PyTorch's name."""
        if not file:
            return cls({})
        content = load_yaml(Path(file).read_text(encoding="utf-8"), file=file)
        if not isinstance(content, Mapping):
            raise UsageError(f"{file}: expected TensorFlow's names by PyTorch's", hint="fc.weight: dense/kernel")
        return cls({str(name): _place(file, str(name), each) for name, each in content.items()})

    def completed(self, weights: Mapping[str, Any]) -> Mapped:
        """Return a map that names every weight: where rules lead back to another name, this one still finds its own."""
        arrays = {name: np.broadcast_to(np.uint8(0), tuple(each.shape)) for name, each in weights.items()}
        places = {name: _named(name, array, arrays, self) for name, array in arrays.items()}
        return Mapped({name: place for name, place in places.items() if place is not None})


def plain_array(name: str, tensor: Any) -> Array:
    """Return a tensor of PyTorch as an array; Unsupported where NumPy lacks its type."""
    try:
        return np.asarray(tensor.detach().cpu().numpy())
    except TypeError as error:
        raise Unsupported(f"{name} has the type {tensor.dtype}, which is not written to checkpoints") from error


def torch_tensor(array: Array) -> Any:
    """Return an array as a tensor of PyTorch of its own."""
    import torch

    return torch.from_numpy(np.array(array))


def _place(file: str, name: str, value: Any) -> Place:
    if isinstance(value, str):
        return Place(value)
    given = value if isinstance(value, Mapping) else {}
    order = given.get("layout")
    order = order if isinstance(order, list) else []
    is_order = bool(order) and sorted(map(str, order)) == [str(each) for each in range(len(order))]
    if not is_order or not isinstance(given.get("name"), str) or set(given) != {"name", "layout"}:
        raise UsageError(
            f"{file}: {name}: expected a name, or name and layout",
            hint="{name: conv/kernel, layout: [2, 3, 1, 0]}: the axes of PyTorch in TensorFlow's order",
        )
    return Place(given["name"], tuple(int(each) for each in order))


def to_tensorflow(weights: Mapping[str, Array], mapped: Mapped) -> dict[str, Array]:
    """Return the variables of TensorFlow for the weights of PyTorch."""
    _check_names(mapped.places, weights)
    values: dict[str, Array] = {}
    for name, array in weights.items():
        place = _named(name, array, weights, mapped)
        if place is None:
            continue
        if place.name in values:
            raise UsageError(f"two weights become {place.name}", hint="name one of them in the file of --map")
        values[place.name] = array if place.order is None else _turned(name, array, place.order)
    return values


def from_tensorflow(values: Mapping[str, Array], mapped: Mapped) -> dict[str, Array]:
    """Return the weights of PyTorch for the variables of TensorFlow."""
    names = {place.name: name for name, place in mapped.places.items()}
    _check_names(names, values)
    weights: dict[str, Array] = {}
    for variable, array in values.items():
        if variable in names:
            name, order = names[variable], mapped.places[names[variable]].order
            order = order if order is not None else _order(variable.rpartition("/")[2], array.ndim)
        else:
            name, order = _torch_place(variable, array)
        if name in weights:
            raise UsageError(f"two variables become {name}", hint="name one of them in the file of --map")
        weights[name] = array if order is None else _turned(variable, array, tuple(np.argsort(order)))
    return weights


def _check_names(named: Mapping[str, Any], known: Mapping[str, Array]) -> None:
    missing = [name for name in named if name not in known]
    if missing:
        raise UsageError(
            f"the map names {missing[0]}, which is not in the source",
            hint="`fairmile model show FILE --weights` lists the names",
        )


def _turned(name: str, array: Array, order: tuple[int, ...]) -> Array:
    if len(order) != array.ndim:
        raise UsageError(f"{name} has {array.ndim} axes, and its layout {len(order)}")
    return np.ascontiguousarray(array.transpose(order))


def _order(last: str, axes: int) -> tuple[int, ...] | None:
    """Return the order of the axes of PyTorch in a variable of TensorFlow, by the last part of its name."""
    if last not in ("kernel", "recurrent_kernel"):
        return None
    return (1, 0) if axes == 2 else _CHANNELS_LAST.get(axes)


def _named(name: str, array: Array, weights: Mapping[str, Array], mapped: Mapped) -> Place | None:
    """Return where a weight goes, by the map or by rule; None for what TensorFlow does not keep."""
    if name in mapped.places:
        given, order = mapped.places[name]
        return Place(given, order if order is not None else _order(given.rpartition("/")[2], array.ndim))
    layer, _, last = name.rpartition(".")
    if last == COUNTER:
        return None
    is_norm = array.ndim == 1 and weights.get(f"{layer}.weight", array[..., None]).ndim == 1
    rule = {**_PLAIN, **_NORM} if is_norm else {**_PLAIN, **({"weight": "kernel"} if array.ndim > 1 else {})}
    kind = rule.get(last, last)
    return Place("/".join([*layer.split("."), kind] if layer else [kind]), _order(kind, array.ndim))


def _torch_place(variable: str, array: Array) -> tuple[str, tuple[int, ...] | None]:
    """Return the name in PyTorch and the order of axes of a variable, by rule."""
    *layers, last = variable.split("/")
    back = {each: name for name, each in (*_PLAIN.items(), *_NORM.items())}
    back |= {"kernel": "weight", "embeddings": "weight"}
    return ".".join([*layers, back.get(last, last)]), _order(last, array.ndim)
