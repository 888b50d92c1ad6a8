"""OpenML descriptions of data sets, tasks, flows and runs, as its API gives them in JSON and XML."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from fairmile.base.errors import InvalidDocument
from fairmile.catalog.card import as_list
from fairmile.catalog.exchange.common.media_types import media_type
from fairmile.catalog.exchange.common.taking import Fields, keep_rest, scalar_text, settle_typed, unused
from fairmile.catalog.exchange.draft import Document, Draft
from fairmile.catalog.exchange.openml_xml import NAMESPACE, load_xml

_SITE = "https://www.openml.org"
_TEST_SITE = "https://test.openml.org"
_ROOTS = ("data_set_description", "data_features", "data_qualities", "task", "flow", "run")
_MENTIONS = re.compile(rf'"(?:{"|".join(_ROOTS)})"\s*:')
# A document that calls itself a run or a flow is OpenML's only with one of these keys.
_SIGNS = {"task": {"task_id", "task_type"}, "flow": {"external_version", "parameter"}, "run": {"run_id", "flow_id"}}
_DEEPEST_COMPONENT = 20


def recognises(document: Document) -> bool:
    """Tell whether the document has the root of an OpenML description."""
    try:
        text = document.text
    except InvalidDocument:
        return False
    start = text[:4096].lstrip()
    if start.startswith("<"):
        return NAMESPACE in text[:4096] or bool(re.search(rf"<(?:oml:)(?:{'|'.join(_ROOTS)})\b", start))
    if not start.startswith("{") or not _MENTIONS.search(text):
        return False
    try:
        data = document.json()
    except InvalidDocument:
        return '"data_set_description"' in text
    root = next((key for key in _ROOTS if key in data), None)
    if root is None or "@context" in data:
        return False
    inner = data[root]
    return root not in _SIGNS or (isinstance(inner, dict) and bool(_SIGNS[root] & inner.keys()))


def read(document: Document) -> list[Draft]:
    """Return the asset of the description; a flow is followed by the flows it is made of."""
    data = load_xml(document) if document.text.lstrip().startswith("<") else document.json()
    whole = Fields(document, data)
    root = next((key for key in _ROOTS if key in whole.data), None)
    if root is None:
        raise document.refuse(
            "is not an OpenML description", hint=f"expected one of {', '.join(_ROOTS)} at the top, as the API gives it"
        )
    fields = whole.mapping(root)
    if fields is None:
        raise document.refuse("expected a mapping, found nothing", field=root)
    drafts = _READERS[root](fields)
    outer = whole.rest()
    outer.pop(root, None)
    keep_rest(
        drafts[0], fields.rest() | {key if key not in fields.data else f"/{key}": each for key, each in outer.items()}
    )
    return [settle_typed(draft) for draft in drafts]


def _site(*addresses: str | None) -> str:
    """Return the server the ids belong to; the test server gives the same numbers to other things."""
    return _TEST_SITE if any("test.openml.org" in (text or "") for text in addresses) else _SITE


def _people(names: list[str]) -> list[dict[str, str]]:
    return [{"@type": "Person", "name": name} for name in names]


def _note(name: str, value: Any) -> dict[str, Any]:
    return {"@type": "PropertyValue", "name": name, "value": value}


def _common(draft: Draft, fields: Fields) -> None:
    """Take what data sets and flows say alike."""
    draft.put("name", fields.required("name", hint="every description of OpenML has a name"))
    for key, place in (
        ("version", "version"),
        ("description", "description"),
        ("licence", "license"),
        ("language", "inLanguage"),
        ("upload_date", "datePublished"),
    ):
        draft.put(place, fields.text(key))
    draft.put("creator", _people(fields.texts("creator")))
    draft.put("contributor", _people(fields.texts("contributor")))
    draft.put("keywords", fields.texts("tag"))


def _data_set(fields: Fields) -> list[Draft]:
    draft = Draft("dataset", {})
    url = fields.text("url")
    number = fields.text("id")
    if number is not None:
        draft.put("@id", f"{_site(url)}/d/{number}")
        draft.put("identifier", number)
    _common(draft, fields)
    draft.put("temporalCoverage", "/".join(fields.texts("collection_date")))
    draft.put("citation", [*fields.texts("citation"), *fields.texts("paper_url")])
    draft.put("isBasedOn", fields.texts("original_data_url"))
    if fields.data.get("visibility") == "public":
        draft.put("accessRights", fields.take("visibility"))
    draft.put("additionalProperty", [_note("version_label", text) for text in fields.texts("version_label")])
    _data_files(draft, fields, url)
    roles = (("default_target_attribute", "target"), ("row_id_attribute", "row id"), ("ignore_attribute", "ignored"))
    draft.put(
        "variableMeasured",
        [
            {"@type": "PropertyValue", "name": name, "role": role}
            for key, role in roles
            for text in fields.texts(key)
            for name in (text.split(",") if role != "row id" else [text])
        ],
    )
    if fields.data.get("status") not in (None, "active"):
        draft.warn("status", f"OpenML marks this data set as {fields.data['status']!r}")
    if "error" in fields:
        draft.warn("error", f"OpenML reports: {str(fields.data['error'])[:200]}")
    _features(draft, fields)
    _qualities(draft, fields)
    return [draft]


def _data_files(draft: Draft, fields: Fields, url: str | None) -> None:
    checksum, number, form = fields.text("md5_checksum"), fields.text("file_id"), fields.text("format")
    if url is not None:
        entry = draft.add_file(
            url=url,
            name=_file_name(url, draft),
            media_type=(media_type(form) or form) if form else None,
            checksums={"md5": checksum},
            identifier=number,
        )
        if form and entry.get("encodingFormat") != form:
            entry["additionalProperty"] = [_note("format", form)]
        if not checksum:
            draft.warn("md5_checksum", "is missing: the bytes cannot be verified")
    else:
        draft.warn("url", "is missing, so nothing can be fetched")
        for key, text in (("md5_checksum", checksum), ("file_id", number), ("format", form)):
            if text:
                draft.foreign[key] = text
    for key in ("parquet_url", "minio_url"):
        address = fields.text(key)
        if address and address not in {entry.get("contentUrl") for entry in draft.body.get("distribution", ())}:
            draft.add_file(url=address, name=_file_name(address, draft), media_type=media_type(address))


def _file_name(url: str, draft: Draft) -> str:
    """Return the last part of the address, unlike every name the asset has already."""
    taken = {entry["name"] for entry in draft.body.get("distribution", ())}
    stem = name = url.split("#")[0].split("?")[0].rstrip("/").rsplit("/", 1)[-1].strip(".") or "file"
    number = 1
    while name in taken:
        number += 1
        name = f"{number}/{stem}"
    return name


def _features(draft: Draft, fields: Fields) -> None:
    roles = {"is_target": "target", "is_ignore": "ignored", "is_row_identifier": "row id"}
    variables = draft.body.get("variableMeasured", [])
    known = {entry["name"]: entry for entry in variables}
    for feature in fields.mappings("feature"):
        name = feature.required("name", hint="each feature has a name")
        entry = known.get(name)
        if entry is None:
            entry = known[name] = {"@type": "PropertyValue", "name": name}
            variables.append(entry)
        for key, place in (("index", "position"), ("data_type", "dataType")):
            if (text := feature.text(key)) is not None:
                entry[place] = text
        values = feature.texts("nominal_value")
        if values:
            entry["valueReference"] = values
        for key, role in roles.items():
            if scalar_text(feature.data.get(key)) in ("true", "false") and scalar_text(feature.take(key)) == "true":
                entry["role"] = role
    draft.put("variableMeasured", variables)


def _qualities(draft: Draft, fields: Fields) -> None:
    notes = draft.body.get("additionalProperty", [])
    for quality in fields.mappings("quality"):
        name = quality.required("name", hint="each quality has a name")
        # The API writes an empty value as an empty list.
        value: Any = next(iter(as_list(quality.data.get("value"))), None)
        if scalar_text(value) is None:
            notes.append({"@type": "PropertyValue", "name": name})
            continue
        quality.take("value")
        notes.append(_note(name, value))
        if name == "NumberOfInstances" and re.fullmatch(r"\d{1,15}(?:\.0*)?", str(value)):
            draft.put("sampleCount", int(float(value)))
    draft.put("additionalProperty", notes)


def _data_features(fields: Fields) -> list[Draft]:
    draft = Draft("dataset", {})
    _features(draft, fields)
    draft.warn("name", "a list of features does not name its data set; import the description as well")
    return [draft]


def _data_qualities(fields: Fields) -> list[Draft]:
    draft = Draft("dataset", {})
    _qualities(draft, fields)
    draft.warn("name", "a list of qualities does not name its data set; import the description as well")
    return [draft]


def _task(fields: Fields) -> list[Draft]:
    draft = Draft("benchmark", {})
    number = fields.required("task_id", hint="an OpenML task has a number")
    draft.put("identifier", number)
    draft.put("name", fields.text("task_name") or f"OpenML task {number}")
    kind = fields.text("task_type")
    draft.put("mlTask", kind)
    draft.put("keywords", fields.texts("tag"))
    specification: dict[str, Any] = {"task": kind} if kind else {}
    datasets: list[str] = []
    site = _SITE
    for part in fields.mappings("input"):
        procedure = (
            part.mapping("estimation_procedure") if isinstance(part.data.get("estimation_procedure"), dict) else None
        )
        if procedure is not None:
            site = _site(splits := procedure.text("data_splits_url"))
            rule: dict[str, Any] = {key: text for key in ("id", "type") if (text := procedure.text(key))}
            rule |= {"data_splits_url": splits} if splits else {}
            specification["estimationProcedure"] = rule | _parameters(procedure)
        data = part.mapping("data_set") if isinstance(part.data.get("data_set"), dict) else None
        if data is not None:
            datasets += data.texts("data_set_id")
            target = data.text("target_feature")
            specification |= {"target": target} if target else {}
        measures = (
            part.mapping("evaluation_measures") if isinstance(part.data.get("evaluation_measures"), dict) else None
        )
        if measures is not None:
            metrics = measures.texts("evaluation_measure")
            draft.put("evaluationMetrics", metrics)
            specification |= {"metric": metrics[0]} if metrics else {}
    draft.put("@id", f"{site}/t/{number}")
    links = [f"{site}/d/{each}" for each in datasets]
    draft.put("about", links)
    draft.put("matchSpec", specification | ({"datasets": links} if links else {}))
    return [draft]


def _parameters(fields: Fields) -> dict[str, Any]:
    """Return the parameters of a procedure as a mapping; one without a value is kept as it stands."""
    parameters: dict[str, str] = {}
    for parameter in fields.mappings("parameter"):
        if scalar_text(parameter.data.get("value")) and scalar_text(parameter.data.get("name")):
            name = str(parameter.data["name"])
            if name not in parameters:
                parameters[name] = str(scalar_text(parameter.take("value")))
                parameter.take("name")
    return {"parameters": parameters} if parameters else {}


def _flow(fields: Fields) -> list[Draft]:
    return _flow_and_parts(fields, 0)


def _flow_and_parts(fields: Fields, depth: int) -> list[Draft]:
    if depth > _DEEPEST_COMPONENT:
        raise fields.document.refuse(f"components are nested more than {_DEEPEST_COMPONENT} deep", field=fields.path)
    draft = Draft("workflow", {})
    source, binary = fields.text("source_url"), fields.text("binary_url")
    site = _site(source, binary)
    number = fields.text("id")
    if number is not None:
        draft.put("@id", f"{site}/f/{number}")
        draft.put("identifier", number)
    _common(draft, fields)
    draft.put("alternateName", [*fields.texts("custom_name"), *fields.texts("class_name")])
    for key, place in (
        ("external_version", "softwareVersion"),
        ("full_description", "text"),
        ("installation_notes", "buildInstructions"),
    ):
        draft.put(place, fields.text(key))
    uploader = fields.text("uploader")
    draft.put("submitter", f"{site}/u/{uploader}" if uploader else None)
    needs = [line.strip() for text in fields.texts("dependencies") for line in re.split(r"[\n;]", text)]
    draft.put("softwareRequirements", [line for line in needs if line])
    words = {word.lower() for word in draft.body.get("keywords", [])}
    draft.put("programmingLanguage", next((name for name in ("Python", "Java", "R") if name.lower() in words), None))
    for address, key in ((source, "source_md5"), (binary, "binary_md5")):
        if address:
            checksum = fields.text(key)
            draft.add_file(url=address, name=_file_name(address, draft), checksums={"md5": checksum})
    inputs = []
    for parameter in fields.mappings("parameter"):
        entry: dict[str, Any] = {"@type": "FormalParameter"}
        for key, place in (("name", "name"), ("data_type", "dataType"), ("description", "description")):
            if (text := parameter.text(key)) is not None:
                entry[place] = text
        if scalar_text(parameter.data.get("default_value")):
            entry["defaultValue"] = parameter.take("default_value")
        inputs.append(entry)
    draft.put("input", inputs)
    return [draft, *_components(draft, fields, depth)]


def _components(draft: Draft, fields: Fields, depth: int) -> list[Draft]:
    parts: list[dict[str, Any]] = []
    drafts: list[Draft] = []
    for component in fields.mappings("component"):
        flow = component.mapping("flow")
        if flow is None:
            raise component.refuse("flow", "is missing", hint="a component is a flow under a name")
        inner = _flow_and_parts(flow, depth + 1)
        name = str(inner[0].body["name"])
        entry = {"@id": str(inner[0].body.get("@id", name)), "name": name}
        role = component.text("identifier")
        parts.append(entry | {"role": role} if role else entry)
        drafts += inner
    draft.put("hasPart", parts)
    return drafts


def _run(fields: Fields) -> list[Draft]:
    draft = Draft("run", {})
    number = fields.text("run_id")
    outputs = fields.mapping("output_data") if isinstance(fields.data.get("output_data"), dict) else None
    files = outputs.mappings("file") if outputs else []
    inputs = fields.mapping("input_data") if isinstance(fields.data.get("input_data"), dict) else None
    datasets = inputs.mappings("dataset") if inputs else []
    addresses = [scalar_text(each.data.get("url")) for each in (*files, *datasets)]
    site = _site(*addresses)
    flow, task = fields.text("flow_id"), fields.text("task_id")
    if flow is None and task is None:
        raise fields.refuse("flow_id", "is missing", hint="an OpenML run names the flow and the task it ran")
    if number is not None:
        draft.put("@id", f"{site}/r/{number}")
        draft.put("identifier", number)
    name = fields.text("flow_name")
    # A number alone would say nothing to a reader of the catalog.
    draft.put("name", f"OpenML run {number}" if number else f"OpenML run of flow {flow} on task {task}")
    draft.put("description", f"Run of {name}" if name else None)
    draft.put("instrument", [f"{site}/f/{flow}"] if flow else [])
    draft.put("mlTask", fields.text("task_type"))
    draft.put("evaluationMetrics", fields.texts("task_evaluation_measure"))
    draft.put("agent", [{"@type": "Person", "name": text} for text in fields.texts("uploader_name")])
    uploader = fields.text("uploader")
    draft.put("submitter", f"{site}/u/{uploader}" if uploader else None)
    draft.put("keywords", fields.texts("tag"))
    draft.put("startTime", fields.text("start_time") or fields.text("upload_time"))
    ran_on = [f"{site}/d/{text}" for each in datasets for text in each.texts("did")]
    draft.put("object", [*ran_on, *([f"{site}/t/{task}"] if task else [])])
    draft.put("result", [text for each in files for text in each.texts("url")])
    failed = fields.texts("error_message")
    draft.put("error", failed)
    draft.put("actionStatus", "FailedActionStatus" if failed else "CompletedActionStatus")
    draft.put("hyperparameters", _settings(fields))
    _evaluations(draft, outputs)
    return [draft]


def _settings(fields: Fields) -> dict[str, Any]:
    """Return the parameters by name; those of a component under `component.name`."""
    settings: dict[str, Any] = {}
    for setting in fields.mappings("parameter_setting"):
        name, component = setting.required("name", hint="each parameter has a name"), setting.text("component")
        settings[unused(f"{component}.{name}" if component else name, settings)] = setting.take("value")
    return settings


def _evaluations(draft: Draft, outputs: Fields | None) -> None:
    results = []
    for evaluation in outputs.mappings("evaluation") if outputs else []:
        name = evaluation.required("name", hint="each evaluation has a name")
        entry: dict[str, Any] = {"@type": "PropertyValue", "propertyID": name}
        if scalar_text(evaluation.data.get("value")):
            entry["value"] = _number(evaluation.take("value"))
        spread = evaluation.take("stdev")
        if spread not in (None, "", []):
            entry["additionalProperty"] = [_note("stdev", _number(spread))]
        results.append(entry)
    draft.put("evaluationResults", results)


def _number(value: Any) -> Any:
    """Return a number written as text as a number where nothing of the text is lost."""
    if not isinstance(value, str) or not re.fullmatch(r"-?[0-9]{1,15}(?:\.[0-9]{1,15})?", value):
        return value
    number = float(value) if "." in value else int(value)
    return number if str(number) == value else value


_READERS: dict[str, Callable[[Fields], list[Draft]]] = {
    "data_set_description": _data_set,
    "data_features": _data_features,
    "data_qualities": _data_qualities,
    "task": _task,
    "flow": _flow,
    "run": _run,
}
