"""The fields of a system file, with the form and meaning that the source gives each."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator

from pydantic import BaseModel

from fairmile.systems import model
from from_code.markdown import code, codes, page, table

_PARTS = {
    "Top level": model.System,
    "`scheduler`": model.SchedulerRules,
    "`partitions`, by name": model.Partition,
    "`gpu` of a partition": model.Gpu,
    "`file_systems`, by name": model.FileSystem,
    "`software`, by framework": model.SoftwareSet,
    "`launch`": model.LaunchRules,
}
_FORMS = {
    **dict.fromkeys(("str", "Line"), "text"),
    **dict.fromkeys(("Word", "Suffix"), "word"),
    **dict.fromkeys(("int", "Count"), "whole number"),
    **{"Name": "name", "ShellLine": "line of shell", "Option": "option", "Gib": "number", "bool": "true or false"},
    **{"Seconds": "duration", "date": "date", "Variables": "variables with values", "Dialect": codes(model.DIALECTS)},
    **{each.__name__: f"see {title.partition(',')[0]}" for title, each in _PARTS.items()},
}


def system_page() -> str:
    """Return the reference of system files."""
    parts = [part for title, each in _PARTS.items() for part in (f"## {title}", _fields(each))]
    return page(
        "System file",
        "A system file is YAML. [Systems](../systems.md#add-your-own-machine) has an example, and `fairmile system "
        "check FILE` reports every mistake with its line. Leave out what you do not know.",
        *parts,
    )


def _fields(part: type[BaseModel]) -> str:
    lines = inspect.getsource(part).splitlines()
    (body,) = ast.parse("\n".join(lines)).body
    assert isinstance(body, ast.ClassDef)
    rows = []
    for field in body.body:
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            name = field.target.id
            required = ", required" if part.model_fields[name].is_required() else ""
            rows.append((code(name), _form(field.annotation) + required, " ".join(_comment(lines, field))))
    return table(["field", "form", "meaning"], rows)


def _form(annotation: ast.expr) -> str:
    """Return a type of the source in words."""
    match annotation:
        case ast.Constant(value=None):
            return ""
        case ast.Name(id=name):
            return _FORMS[name]
        case ast.BinOp(left=left, right=right):
            return " or ".join(filter(None, (_form(left), _form(right))))
        case ast.Subscript(value=ast.Name(id="Literal"), slice=values):
            return codes(ast.literal_eval(values) if isinstance(values, ast.Tuple) else [ast.literal_eval(values)])
        case ast.Subscript(value=ast.Name(id="tuple"), slice=ast.Tuple(elts=[each, *_])):
            return f"list: {_form(each)}"
        case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[each, *_])):
            return _form(each)
        case ast.Subscript(value=ast.Name(id="Mapping"), slice=ast.Tuple(elts=[_, each])):
            return _form(each)
    raise NotImplementedError(ast.unparse(annotation))


def _comment(lines: list[str], field: ast.AnnAssign) -> Iterator[str]:
    """Yield the comment above a field and the one behind it."""
    above = []
    for line in reversed(lines[: field.lineno - 1]):
        if not line.strip().startswith("#"):
            break
        above.append(line.strip().removeprefix("#").strip())
    yield from reversed(above)
    yield lines[(field.end_lineno or field.lineno) - 1][field.end_col_offset :].strip().removeprefix("#").strip()
