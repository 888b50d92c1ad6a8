"""Conditions over the values of a point, such as `lr > 0.05 and model in ("a", "b")`; none is ever run as code."""

from __future__ import annotations

import ast
import math
import operator
import warnings
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeGuard

from fairmile.base.errors import UsageError
from fairmile.base.words import did_you_mean
from fairmile.runs.record.values import Value

_LONGEST = 10_000
_DEEPEST = 50
_LARGEST = 1e300
_WORDS: dict[str, Value] = {"true": True, "false": False, "null": None}
_HINT = 'write a condition such as lr > 0.05 and model in ("a", "b")'
_ORDER: dict[type, tuple[str, Callable[[Any, Any], bool]]] = {
    ast.Lt: ("<", operator.lt),
    ast.LtE: ("<=", operator.le),
    ast.Gt: (">", operator.gt),
    ast.GtE: (">=", operator.ge),
}
_ARITHMETIC: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_SIGNS: dict[type, Callable[[Any], Any]] = {ast.USub: operator.neg, ast.UAdd: operator.pos}

_Compute = Callable[[Mapping[str, Any]], Any]


def alike(one: Any, other: Any) -> bool:
    """Tell whether two values are the same; beside a number or a truth value a text counts as what it looks like."""
    if type(one) is not type(other):
        one, other = _beside(one, other)
        if isinstance(one, bool) != isinstance(other, bool):
            return False
    return bool(one == other)


class Filter:
    """A condition. Names are those of axes, which may hold dots; true, false and null are values.

    There are comparisons, chains of them, `in`, `and`, `or`, `not` and arithmetic. A text that looks like a number
    counts as one beside a number.
    """

    def __init__(self, text: str, where: str = "") -> None:
        self.text = text
        self._where = where
        self._names: dict[str, None] = {}
        if not text.strip():
            raise self._error("the condition is empty", _HINT)
        if len(text) > _LONGEST:
            raise self._error(f"the condition is longer than {_LONGEST:,} characters", "")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of texts such as "\\d", which are no business of ours
                tree = ast.parse(text.strip(), mode="eval")
        except SyntaxError as error:
            hint = "use `==` to compare" if "=" in text and "==" not in text else _HINT
            place = f" at column {error.offset}" if error.offset else ""
            raise self._error(f"{text!r} is not a condition{place}", hint) from None
        except (ValueError, RecursionError, MemoryError):
            raise self._error(f"{text[:100]!r} is not a condition", _HINT) from None
        self._compute = self._compiled(tree.body, 0)
        if not self._names:
            raise self._error(f"{text!r} is not a condition: it names no axis", _HINT)

    @property
    def names(self) -> frozenset[str]:
        """The names that the condition looks at."""
        return frozenset(self._names)

    def holds(self, values: Mapping[str, Any]) -> bool:
        """Tell whether the condition holds for these values; a name without a value is an error."""
        return self._truth(self._compute(values))

    def __repr__(self) -> str:
        return f"Filter({self.text!r})"

    # One method for each kind of part makes a function of the values

    def _compiled(self, node: ast.expr, depth: int) -> _Compute:
        if depth > _DEEPEST:
            raise self._error("the condition is nested too deeply", "")
        deeper = depth + 1
        if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float | bool | None):
            constant = node.value
            return lambda _: constant
        if isinstance(node, ast.Name | ast.Attribute):
            return self._named(node)
        if isinstance(node, ast.Tuple | ast.List):
            parts = [self._compiled(each, deeper) for each in node.elts]
            return lambda values: [part(values) for part in parts]
        if isinstance(node, ast.BoolOp):
            return self._joined(node, deeper)
        if isinstance(node, ast.UnaryOp):
            return self._unary(node, deeper)
        if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            return self._arithmetic(node, deeper)
        if isinstance(node, ast.Compare):
            return self._chain(node, deeper)
        shown = ast.get_source_segment(self.text.strip(), node) or self.text
        raise self._error(f"{shown!r} is not allowed in a condition", _HINT)

    def _named(self, node: ast.expr) -> _Compute:
        parts: list[str] = []
        inner = node
        while isinstance(inner, ast.Attribute):
            parts.insert(0, inner.attr)
            inner = inner.value
        if not isinstance(inner, ast.Name):
            raise self._error(f"{ast.unparse(node)!r} is not allowed in a condition", _HINT)
        name = ".".join([inner.id, *parts])
        if name in _WORDS:
            constant = _WORDS[name]
            return lambda _: constant
        self._names[name] = None

        def compute(values: Mapping[str, Any]) -> Any:
            try:
                return values[name]
            except KeyError:
                near = did_you_mean(name, values)
                raise self._error(
                    f"no axis named {name!r}" + (f"; {near}" if near else ""),
                    f"axes: {', '.join(values) or 'none'}; put a string in quotes: '{name}'",
                ) from None

        return compute

    def _joined(self, node: ast.BoolOp, depth: int) -> _Compute:
        parts = [self._compiled(each, depth) for each in node.values]
        if isinstance(node.op, ast.And):
            return lambda values: all(self._truth(part(values)) for part in parts)
        return lambda values: any(self._truth(part(values)) for part in parts)

    def _unary(self, node: ast.UnaryOp, depth: int) -> _Compute:
        part = self._compiled(node.operand, depth)
        if isinstance(node.op, ast.Not):
            return lambda values: not self._truth(part(values))
        sign = _SIGNS.get(type(node.op))
        if sign is None:
            raise self._error(f"{ast.unparse(node)!r} is not allowed in a condition", _HINT)
        return lambda values: sign(self._number(part(values)))

    def _arithmetic(self, node: ast.BinOp, depth: int) -> _Compute:
        left, right = self._compiled(node.left, depth), self._compiled(node.right, depth)
        apply = _ARITHMETIC[type(node.op)]
        is_power = isinstance(node.op, ast.Pow)

        def compute(values: Mapping[str, Any]) -> Any:
            one, other = self._number(left(values)), self._number(right(values))
            try:
                # A power of floats ends in an overflow, where one of whole numbers would go on for ever.
                result = apply(float(one), float(other)) if is_power else apply(one, other)
                if isinstance(result, complex) or not abs(result) < _LARGEST:
                    raise OverflowError
            except ArithmeticError:
                raise self._error(f"cannot compute {self.text!r} for {one} and {other}", "") from None
            return result

        return compute

    def _chain(self, node: ast.Compare, depth: int) -> _Compute:
        parts = [self._compiled(each, depth) for each in (node.left, *node.comparators)]
        tests = [self._test(op) for op in node.ops]
        if len(tests) == 1:  # nearly all
            left, right, test = *parts, tests[0]
            return lambda values: test(left(values), right(values))

        def compute(values: Mapping[str, Any]) -> bool:
            one = parts[0](values)
            for test, part in zip(tests, parts[1:], strict=True):
                other = part(values)
                if not test(one, other):
                    return False
                one = other
            return True

        return compute

    def _test(self, op: ast.cmpop) -> Callable[[Any, Any], bool]:
        if isinstance(op, ast.Eq):
            return alike
        if isinstance(op, ast.NotEq):
            return lambda one, other: not alike(one, other)
        if isinstance(op, ast.In):
            return self._is_in
        if isinstance(op, ast.NotIn):
            return lambda one, other: not self._is_in(one, other)
        if type(op) not in _ORDER:
            raise self._error("`is` is not allowed in a condition", "use `==` to compare")
        sign, compare = _ORDER[type(op)]

        def test(one: Any, other: Any) -> bool:
            one, other = _beside(one, other)
            if (_is_number(one) and _is_number(other)) or (isinstance(one, str) and isinstance(other, str)):
                return compare(one, other)
            raise self._error(f"cannot compare {one!r} {sign} {other!r} in {self.text!r}", "")

        return test

    def _is_in(self, one: Any, other: Any) -> bool:
        if isinstance(other, list):
            return any(alike(one, each) for each in other)
        if isinstance(one, str) and isinstance(other, str):
            return one in other
        raise self._error(f"cannot search in {other!r} in {self.text!r}", "`in` takes a list: (1, 2)")

    def _number(self, value: Any) -> int | float:
        number = _as_number(value) if isinstance(value, str) else value
        if _is_number(number):
            return number
        raise self._error(f"{value!r} is not a number in {self.text!r}", "")

    def _truth(self, value: Any) -> bool:
        truth = _as_truth(value) if isinstance(value, str) else value
        if isinstance(truth, bool):
            return truth
        raise self._error(f"{self.text!r} is {value!r}, expected true or false", _HINT)

    def _error(self, message: str, hint: str) -> UsageError:
        return UsageError(f"{self._where}: {message}" if self._where else message, hint=hint or None)


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _beside(one: Any, other: Any) -> tuple[Any, Any]:
    """Return two values, a text of them as number or truth value where the other is one and it looks like it."""
    if isinstance(one, str) is isinstance(other, str):
        return one, other
    if isinstance(one, str):
        changed, kept = _beside(other, one)
        return kept, changed
    return one, _as_truth(other) if isinstance(one, bool) else _as_number(other) if _is_number(one) else other


@lru_cache(maxsize=10_000)
def _as_number(text: str) -> str | int | float:
    try:
        return int(text) if text.lstrip("+-").isdecimal() else number if math.isfinite(number := float(text)) else text
    except ValueError:
        return text


def _as_truth(text: str) -> str | bool:
    return {"true": True, "false": False}.get(text.lower(), text)
