"""What PyTorch writes as a ZIP file: state dictionaries, TorchScript and exported programs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from fairmile.models.formats.description import Dim, ModelDescription, TensorSpec, count_values
from fairmile.models.formats.pickles import scan, state_description
from fairmile.models.formats.source import Source

_FORWARD = re.compile(r"def forward\(\s*(\w+): (__torch__[\w.]*)(.*?)\) -> (.+?):\n", re.DOTALL)
_ARGUMENT = re.compile(r"(\w+): ([\w\[\], .]+?)(?=,\s*\w+:|\s*$)")
_CALL = re.compile(r"\b(?:torch|ops\.\w+)\.(?:[\w.]+\.)?([a-z_]\w*)\(")
_MOST_CODE = 8 << 20
_DTYPES = {
    **{1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float16", 7: "float32", 8: "float64"},
    **{10: "complex64", 11: "complex128", 12: "bool", 13: "bfloat16"},
}
_GRAPHS = ("/models/model.json", "serialized_exported_program.json")


def recognises_export(source: Source) -> bool:
    """Tell whether a ZIP file is what `torch.export.save` wrote."""
    return any(name.endswith(_GRAPHS) for name in source.members)


def recognises_script(source: Source) -> bool:
    """Tell whether a ZIP file is TorchScript: a pickle, constants and code."""
    return _member(source, "/data.pkl") is not None and _member(source, "/constants.pkl") is not None


def recognises_state(source: Source) -> bool:
    """Tell whether a ZIP file is what `torch.save` wrote."""
    return _member(source, "/data.pkl") is not None


def _member(source: Source, ending: str) -> str | None:
    return next((name for name in source.members if name.endswith(ending) and name.count("/") == 1), None)


def _scan_data(source: Source) -> dict[str, Any]:
    name = _member(source, "/data.pkl") or ""
    answer = scan(source, source.member(name))
    if answer.get("error"):
        raise source.damaged("PyTorch file", f"{name}: {answer['error']}")
    return answer


def read_state(source: Source) -> ModelDescription:
    """Return the tensors that `torch.save` wrote."""
    return state_description(source, _scan_data(source), {})


def read_script(source: Source) -> ModelDescription:
    """Return weights, operators and the arguments of `forward`."""
    answer = _scan_data(source)
    weights = tuple(TensorSpec(name, kind, tuple(shape)) for name, kind, shape in answer["tensors"])
    operators: Counter[str] = Counter()
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    for code in _code(source):
        operators.update(_CALL.findall(code))
        for _, owner, arguments, returned in _FORWARD.findall(code):
            if owner == answer["class"]:
                pairs = _ARGUMENT.findall(arguments.strip().lstrip(",").strip())
                inputs = tuple(TensorSpec(name, kind) for name, kind in pairs)
                outputs = (TensorSpec("output", returned),)
    return ModelDescription(
        str(source.path),
        "torchscript",
        "pytorch",
        len(source.view),
        inputs=inputs,
        outputs=outputs,
        parameters=count_values(weights),
        weights=weights,
        operators=dict(sorted(operators.items())),
        details={"class": answer["class"].removeprefix("__torch__.")},
    )


def _code(source: Source) -> Iterator[str]:
    left = _MOST_CODE
    for name, info in source.members.items():
        if "/code/" in name and name.endswith(".py") and info.file_size <= left:
            left -= info.file_size
            yield source.member(name, _MOST_CODE).decode("utf-8", "replace")


def read_export(source: Source) -> ModelDescription:
    """Return what the graph of an exported program declares."""
    name = next(name for name in source.members if name.endswith(_GRAPHS))
    program = source.member_json(name, "exported program")
    try:
        return _export_description(source, program)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise source.damaged("exported program", f"{name} has no graph with a signature") from error


def _export_description(source: Source, program: Mapping[str, Any]) -> ModelDescription:
    module = program["graph_module"]
    graph, signature = module["graph"], module["signature"]
    values = {**graph.get("tensor_values", {})}
    weights: list[TensorSpec] = []
    inputs: list[TensorSpec] = []
    for spec in signature["input_specs"]:
        kind, content = next(iter(spec.items()))
        if kind == "user_input":
            inputs += _tensor_of(content["arg"], values)
        elif kind in ("parameter", "buffer"):
            label = content.get("parameter_name") or content.get("buffer_name") or ""
            weights.append(_spec(label, values.get(content["arg"]["name"], {})))
    outputs = [
        each
        for spec in signature["output_specs"]
        if "user_output" in spec
        for each in _tensor_of(spec["user_output"]["arg"], values)
    ]
    operators = Counter(str(node["target"]).removeprefix("torch.ops.") for node in graph["nodes"])
    return ModelDescription(
        str(source.path),
        "pytorch-exported",
        "pytorch",
        len(source.view),
        producer=f"PyTorch {program.get('torch_version', '')}".strip(),
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        parameters=count_values(weights),
        weights=tuple(weights),
        operators=dict(sorted(operators.items())),
        opset={str(name): int(version) for name, version in program.get("opset_version", {}).items()},
    )


def _tensor_of(argument: Mapping[str, Any], values: Mapping[str, Any]) -> Iterator[TensorSpec]:
    tensor = argument.get("as_tensor")
    if isinstance(tensor, Mapping):
        yield _spec(str(tensor["name"]), values.get(tensor["name"], {}))


def _spec(name: str, meta: Mapping[str, Any]) -> TensorSpec:
    sizes = meta.get("sizes")
    shape = tuple(_dim(each) for each in sizes) if isinstance(sizes, list) else None
    return TensorSpec(name, _DTYPES.get(meta.get("dtype", 0), ""), shape)


def _dim(size: Mapping[str, Any]) -> Dim:
    if isinstance(size.get("as_int"), int):
        return int(size["as_int"])
    expression = size.get("as_expr")
    text = str(expression.get("expr_str", "")) if isinstance(expression, Mapping) else ""
    symbol = re.match(r"Symbol\('(\w+)'", text)
    return symbol[1] if symbol else text or None
