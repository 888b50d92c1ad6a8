"""The two structured keys of a Hugging Face data-set card, `dataset_info` and `configs`, read and written."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from fairmile.catalog.card import Card, as_list, text_of
from fairmile.catalog.exchange.common.media_types import media_type
from fairmile.catalog.exchange.common.parts import as_text, take_each, with_rest
from fairmile.catalog.exchange.draft import Draft

_DATA_TYPES = {
    "string": "sc:Text",
    "large_string": "sc:Text",
    "bool": "sc:Boolean",
    "image": "sc:ImageObject",
    "audio": "sc:AudioObject",
    "video": "sc:VideoObject",
    "class_label": "sc:Integer",
    "date32": "sc:Date",
    "date64": "sc:Date",
}
_SIZES = ("download_size", "dataset_size")


def read_dataset_info(draft: Draft, node: dict[str, Any]) -> None:
    """Turn `dataset_info` into record sets, and its sizes into the size of the data set where there is one alone."""
    sets = take_each(node, "dataset_info", _record_set)
    draft.put("recordSet", sets)
    if len(sets) == 1:
        draft.put("sampleCount", sets[0].get("sampleCount"))
        sizes = [
            each["value"] for each in sets[0].get("additionalProperty", []) if each["propertyID"] == "download_size"
        ]
        draft.put("contentSize", f"{sizes[0]} B" if sizes else None)


def _record_set(value: Any) -> dict[str, Any] | None:
    if not isinstance(value, dict):
        return None
    config = as_text(value.get("config_name"))
    name = config or "default"
    fields = take_each(value, "features", lambda each: _field(each, name))
    splits = [each for pair in take_each(value, "splits", _split) for each in pair]
    sizes = [_amount(key, None, value.pop(key), "B") for key in _SIZES if _is_count(value.get(key))]
    if not fields and not splits and not sizes:
        return None
    if config:
        del value["config_name"]
    made: dict[str, Any] = {"@type": "RecordSet", "@id": name, "name": name, "field": fields}
    made["additionalProperty"] = [*splits, *sizes]
    made["sampleCount"] = sum(each["value"] for each in splits if each["unitText"] == "examples")
    return {key: each for key, each in made.items() if each}


def _field(value: Any, parent: str) -> dict[str, Any] | None:
    name = as_text(value.get("name")) if isinstance(value, dict) else None
    if name is None:
        return None
    del value["name"]
    made: dict[str, Any] = {"@type": "Field", "@id": f"{parent}/{name}", "name": name}
    for key in ("dtype", "sequence"):
        exact = value.get(key)
        if isinstance(exact, str) and exact:
            made |= {"dataType": _data_type(exact), "additionalType": value.pop(key)}
            made |= {"repeated": True} if key == "sequence" else {}
            return made
    # A nested type has no exact place on the card: its outline is derived, the type itself stays in the source.
    nested = next((key for key in ("dtype", "sequence", "list", "struct", "large_list") if value.get(key)), None)
    if nested in ("sequence", "list", "large_list"):
        made["repeated"] = True
    inner = value.get(nested) if nested else None
    if isinstance(inner, dict) and len(inner) == 1:
        made["dataType"] = _data_type(next(iter(inner)))
    elif isinstance(inner, list):
        made["subField"] = [each for part in copy.deepcopy(inner) if (each := _field(part, made["@id"]))]
    elif isinstance(inner, str):
        made["dataType"] = _data_type(inner)
    return {key: each for key, each in made.items() if each}


def _data_type(dtype: str) -> str | None:
    if dtype in _DATA_TYPES:
        return _DATA_TYPES[dtype]
    if dtype.startswith(("int", "uint")):
        return "sc:Integer"
    if dtype.startswith(("float", "double", "decimal")):
        return "sc:Float"
    return "sc:DateTime" if dtype.startswith("timestamp") else None


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _amount(key: str, name: str | None, value: int, unit: str) -> dict[str, Any]:
    named = {"name": name} if name else {}
    return {"@type": "PropertyValue", "propertyID": key, **named, "value": value, "unitText": unit}


def _split(value: Any) -> list[dict[str, Any]] | None:
    name = as_text(value.get("name")) if isinstance(value, dict) else None
    if name is None:
        return None
    units = {"num_examples": "examples", "num_bytes": "B"}
    made = [_amount("split", name, value.pop(key), unit) for key, unit in units.items() if _is_count(value.get(key))]
    if made:
        del value["name"]
    return made or None


def read_configs(draft: Draft, node: dict[str, Any]) -> None:
    """Turn the files that `configs` names into file sets of the distribution."""

    def convert(value: Any) -> bool | None:
        name = as_text(value.get("config_name")) if isinstance(value, dict) else None
        if name is None:
            return None
        files = value.get("data_files")
        if isinstance(files, list) and all(isinstance(path, str) for path in files):
            taken = _file_set(files, name, draft) is not None
            if taken:
                del value["data_files"]
        else:
            taken = bool(take_each(value, "data_files", lambda each: _file_set(each, name, draft)))
        if taken and set(value) == {"config_name"}:
            del value["config_name"]
        return True if taken else None

    take_each(node, "configs", convert)


def _file_set(value: Any, config: str, draft: Draft) -> bool | None:
    split = as_text(value.get("split")) if isinstance(value, dict) else None
    raw = value.get("path") if isinstance(value, dict) else value
    paths = [path for path in as_list(raw) if isinstance(path, str) and path]
    if not paths or len(paths) != len(as_list(raw)) or (isinstance(value, dict) and split is None):
        return None
    if any(path.startswith("/") or ".." in path.split("/") for path in paths):
        draft.warn("configs", f"{paths[0][:80]!r} points outside the repository; left out")
        return None
    if isinstance(value, dict):
        del value["split"], value["path"]
    draft.add_file(
        name=f"{config}/{split}" if split else config,
        media_type=media_type(paths[0]),
        type="FileSet",
        includes=paths[0] if len(paths) == 1 else paths,
    )
    return True


def dataset_info_of(card: Card, rest: Any) -> Any:
    """Return `dataset_info` for the record sets of a card; features only where every type is exactly known."""
    made = [_info(each, rest) for each in as_list(card.get("recordSet")) if isinstance(each, Mapping)]
    filled = [each for each in made if len(each) > 1]
    if len(filled) == 1 and filled[0].get("config_name") == "default" and not isinstance(rest, list):
        del filled[0]["config_name"]
    return filled[0] if len(filled) == 1 and not isinstance(rest, list) else filled


def _info(record_set: Mapping[str, Any], rest: Any) -> dict[str, Any]:
    made: dict[str, Any] = {"config_name": text_of(record_set.get("name")) or "default"}
    fields = [each for each in as_list(record_set.get("field")) if isinstance(each, Mapping)]
    if fields and (rest or all("additionalType" in field for field in fields)):
        made["features"] = [_feature(field) for field in fields]
    splits: dict[str, dict[str, Any]] = {}
    for each in as_list(record_set.get("additionalProperty")):
        if not isinstance(each, Mapping):
            continue
        if each.get("propertyID") == "split":
            name = text_of(each.get("name")) or ""
            key = "num_bytes" if each.get("unitText") == "B" else "num_examples"
            splits.setdefault(name, {"name": name})[key] = each.get("value")
        elif each.get("propertyID") in _SIZES:
            made[str(each["propertyID"])] = each.get("value")
    if splits:
        made["splits"] = list(splits.values())
    return made


def _feature(field: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {"name": text_of(field.get("name"))}
    if "additionalType" in field:
        made["sequence" if field.get("repeated") else "dtype"] = field["additionalType"]
    return made


def configs_of(card: Card, rest: Any) -> list[Any]:
    """Return `configs` for the file sets that were read from such a key, with what remained of the key."""
    made: dict[str, dict[str, Any]] = {}
    for entry in as_list(card.get("distribution")):
        if not isinstance(entry, Mapping) or entry.get("@type") != "FileSet" or "containedIn" in entry:
            continue
        config, _, split = (text_of(entry.get("name")) or "default").partition("/")
        paths = [text for each in as_list(entry.get("includes")) if (text := text_of(each))]
        path: Any = paths[0] if len(paths) == 1 else paths
        files = made.setdefault(config, {"config_name": config, "data_files": []})["data_files"]
        files.append({"split": split, "path": path} if split else path)
    for made_config in made.values():
        if len(made_config["data_files"]) == 1 and not isinstance(made_config["data_files"][0], dict):
            made_config["data_files"] = made_config["data_files"][0]
    more = [each for each in as_list(rest) if each]
    return [_with_remainder(each, more) for each in made.values()] + [
        each for each in more if _config_name(each) not in made
    ]


def _with_remainder(config: dict[str, Any], more: list[Any]) -> Any:
    return with_rest(config, next((each for each in more if _config_name(each) == config["config_name"]), None))


def _config_name(value: Any) -> str | None:
    return text_of(value.get("config_name")) if isinstance(value, Mapping) else None
