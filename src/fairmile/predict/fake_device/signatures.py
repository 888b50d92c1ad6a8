"""Operators with arguments of one form: what comes out of a call, and how a record describes it."""

from __future__ import annotations

from typing import Any

import torch

NEW, SAME, VIEW, VALUE, LIST = range(5)  # what a recipe makes: the first entry of it


class Signature:
    """One operator with arguments of one form: what comes out, and how a record of it begins."""

    __slots__ = ("arguments", "inputs", "keywords", "name", "number", "outputs", "recipe", "recorded")

    def __init__(self, number: int, name: str, recipe: Any, recorded: bool) -> None:
        self.number, self.name, self.recipe, self.recorded = number, name, recipe, recorded
        self.inputs: list[tuple[Any, ...]] = []
        self.outputs: list[tuple[Any, ...]] = []
        self.arguments: list[Any] = []
        self.keywords: list[Any] = []


def typed_values(args: Any) -> Any:
    """Return arguments with their types: 1, 1.0 and True are equal, but not the same."""
    return tuple(typed_values(arg) if isinstance(arg, (list, tuple)) else (type(arg), arg) for arg in args)


def numbers_as_tensors(func: Any, args: Any) -> list[Any]:
    """Return positional arguments with a tensor for each number where the operator takes no number."""
    return [
        torch.tensor(value, device="cpu")
        if isinstance(value, (int, float)) and isinstance(argument.type, torch.TensorType)
        else value
        for value, argument in zip(args, func._schema.arguments, strict=False)
    ]


def launches(func: Any, recipe: Any) -> bool:
    """Say whether a GPU would have work to do for this call."""
    kinds: set[int] = set()

    def collect(each: Any) -> None:
        if each[0] == LIST:
            for one in each[2]:
                collect(one)
        else:
            kinds.add(each[0])

    collect(recipe)
    if kinds <= {VIEW, VALUE} and not func._schema.is_mutable:
        return False
    return "empty" not in func._schema.name


def describe_outputs(recipe: Any, held: list[torch.Tensor], out: list[tuple[Any, ...]]) -> None:
    """Add shape, strides and type of each tensor that a recipe makes; `held` are those that go in."""
    kind = recipe[0]
    if kind == NEW:
        out.append((recipe[1], recipe[2], recipe[3]))
    elif kind == SAME:
        meta = held[recipe[1]]
        out.append((tuple(meta.shape), tuple(meta.stride()), meta.dtype))
    elif kind == VIEW:
        out.append((recipe[2], recipe[3], recipe[5]))
    elif kind == LIST:
        for each in recipe[2]:
            describe_outputs(each, held, out)


def describe_argument(value: Any, count: list[int]) -> Any:
    """Return an argument for JSON; tensors become numbers, counted from `count`."""
    if isinstance(value, torch.Tensor):
        count[0] += 1
        return {"tensor": count[0] - 1}
    if isinstance(value, (list, tuple)):
        if value and all(isinstance(each, torch.Tensor) for each in value):
            count[0] += len(value)
            return {"tensors": list(range(count[0] - len(value), count[0]))}
        return [describe_argument(each, count) for each in value]
    for kind, name in (
        (torch.dtype, "dtype"),
        (torch.device, "device"),
        (torch.layout, "layout"),
        (torch.memory_format, "memory_format"),
    ):
        if isinstance(value, kind):
            return {name: str(value).removeprefix("torch.")}
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    return value if isinstance(value, (int, float, str, bool)) or value is None else str(value)
