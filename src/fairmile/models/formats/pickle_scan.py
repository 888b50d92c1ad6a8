"""Reads pickles without loading them: a program of its own, with limits, that needs the standard library alone.

It follows the opcodes and notes what each would import and call; nothing is imported and nothing is called. A line of
JSON on stdin names a file and a range of it, a line on stdout is the answer.
"""

from __future__ import annotations

import json
import math
import mmap
import resource
import signal
import struct
import sys
from collections.abc import Callable, Iterator
from typing import Any

MOST_SECONDS = 20
_MOST_BYTES = 1 << 30  # of memory
_MOST_STEPS = 20_000_000
_MOST_NODES = 200_000
_MOST_NAMES = 500
_MOST_TENSORS = 20_000
_LONGEST_TEXT = 200
_TORCH_MAGIC = 0x1950A86A20F9469CFC6C
_MARK = object()
_DTYPES = {
    **{"Double": "float64", "Float": "float32", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64"},
    **{"Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool"},
    **{"ComplexFloat": "complex64", "ComplexDouble": "complex128"},
}
_FORTRAN_TYPES = {"f": "float", "i": "int", "u": "uint", "c": "complex"}


class Refused(Exception):
    """The bytes are no pickle, or ask for more than is allowed."""


class Blob:
    """Bytes of which only the length matters."""

    def __init__(self, length: int) -> None:
        self.length = length


class Global:
    """A name that loading would import."""

    def __init__(self, module: str, name: str) -> None:
        self.module = module
        self.name = name

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


class Persistent:
    """What the program that wrote the pickle keeps elsewhere, such as the values of a tensor."""

    def __init__(self, id: Any) -> None:
        self.id = id


class Call:
    """An object that loading would make by calling `function`."""

    def __init__(self, function: Any, arguments: Any) -> None:
        self.function = function
        self.arguments = arguments
        self.state: Any = None
        self.items: list[Any] = []
        self.pairs: list[tuple[Any, Any]] = []

    @property
    def name(self) -> str:
        return str(self.function) if isinstance(self.function, Global) else ""


class Pairs:
    """A dictionary as the list of its items: its keys may be anything."""

    def __init__(self) -> None:
        self.pairs: list[tuple[Any, Any]] = []

    def get(self, key: str) -> Any:
        return next((value for name, value in self.pairs if isinstance(name, str) and name == key), None)


class Machine:
    """Follows the opcodes of one pickle after the other, from a position in the data."""

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.position = 0
        self.protocol = 0
        self.imports: dict[str, None] = {}
        self.called: dict[str, None] = {}
        self.steps = 0
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def load(self) -> Any:
        """Follow one pickle to its end and return the object that it stands for."""
        self._stack, self._memo = [], {}
        while True:
            self.steps += 1
            if self.steps > _MOST_STEPS:
                raise Refused(f"it has more than {_MOST_STEPS:,} steps")
            code = self._take(1)[0]
            if code == 0x2E:  # STOP
                return self._pop()
            handle = _OPCODES.get(code)
            if handle is None:
                raise Refused(f"unknown opcode {code:#04x} at byte {self.position - 1:,}")
            handle(self)

    # Bytes

    def _take(self, number: int) -> memoryview:
        piece = self.data[self.position : self.position + number]
        if len(piece) < number:
            raise Refused("it ends early")
        self.position += number
        return piece

    def _number(self, width: int) -> int:
        return int.from_bytes(self._take(width), "little")

    def _line(self) -> str:
        start = self.position
        limit = min(len(self.data), start + (1 << 20))
        while self.position < limit:
            self.position += 1
            if self.data[self.position - 1] == 10:
                return bytes(self.data[start : self.position - 1]).decode("utf-8", "replace")
        raise Refused("it ends inside a line")

    # Stack

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _pop(self) -> Any:
        if not self._stack:
            raise Refused("it pops from an empty stack")
        return self._stack.pop()

    def _top(self) -> Any:
        if not self._stack:
            raise Refused("it reads from an empty stack")
        return self._stack[-1]

    def _to_mark(self) -> list[Any]:
        for at in range(len(self._stack) - 1, -1, -1):
            if self._stack[at] is _MARK:
                items = self._stack[at + 1 :]
                del self._stack[at:]
                return items
        raise Refused("it has no mark")

    # What opcodes do

    def proto(self) -> None:
        self.protocol = self._number(1)

    def frame(self) -> None:
        self._take(8)

    def text(self, width: int) -> None:
        length = self._number(width)
        piece = self._take(length)
        self._push(bytes(piece).decode("utf-8", "replace") if length <= 1 << 16 else Blob(length))

    def blob(self, width: int) -> None:
        length = self._number(width)
        piece = self._take(length)
        self._push(bytes(piece) if length <= 256 else Blob(length))

    def long(self, width: int) -> None:
        piece = self._take(self._number(width))
        self._push(int.from_bytes(piece[:64], "little", signed=True))

    def text_line(self) -> None:
        self._push(self._line().strip("'\""))

    def number_line(self) -> None:
        line = self._line()
        try:
            self._push({"01": True, "00": False}.get(line, int(line.rstrip("L") or 0)))
        except ValueError:
            self._push(line)

    def put(self, index: int) -> None:
        if len(self._memo) > _MOST_STEPS:
            raise Refused("its memory is too large")
        self._memo[index] = self._top()

    def get(self, index: int) -> None:
        if index not in self._memo:
            raise Refused("it asks for an object that it never kept")
        self._push(self._memo[index])

    def append(self, items: list[Any]) -> None:
        target = self._top()
        if isinstance(target, Call):
            target.items += items
        elif isinstance(target, list):
            target += items
        elif isinstance(target, Pairs):
            raise Refused("it appends to a dictionary")

    def set_items(self, items: list[Any]) -> None:
        target = self._top()
        if len(items) % 2:
            raise Refused("a dictionary has a key without a value")
        if isinstance(target, (Call, Pairs)):
            target.pairs += zip(items[::2], items[1::2], strict=True)

    def pairs(self, items: list[Any]) -> None:
        self._push(Pairs())
        self.set_items(items)

    def names(self, module: Any, name: Any) -> None:
        if isinstance(module, str) and isinstance(name, str):
            made = Global(module[:_LONGEST_TEXT], name[:_LONGEST_TEXT])
        else:
            made = Global("?", "?")
        if len(self.imports) < _MOST_NAMES:
            self.imports.setdefault(str(made))
        self._push(made)

    def stack_names(self) -> None:
        name = self._pop()
        self.names(self._pop(), name)

    def call(self, function: Any, arguments: Any) -> None:
        made = Call(function, arguments)
        if len(self.called) < _MOST_NAMES:
            self.called.setdefault(made.name or "?")
        self._push(made)

    def reduce(self) -> None:
        arguments = self._pop()
        self.call(self._pop(), arguments)

    def new_with_keywords(self) -> None:
        keywords = self._pop()
        arguments = self._pop()
        self.call(self._pop(), (arguments, keywords))

    def make_object(self) -> None:
        items = self._to_mark()
        if not items:
            raise Refused("it makes an object of nothing")
        self.call(items[0], tuple(items[1:]))

    def instance(self) -> None:
        module, name = self._line(), self._line()
        items = self._to_mark()
        self.names(module, name)
        self.call(self._pop(), tuple(items))

    def build(self) -> None:
        state = self._pop()
        target = self._top()
        if not isinstance(target, Call):
            return
        target.state = state
        if target.name.startswith("joblib.") and target.name.endswith("NumpyArrayWrapper") and isinstance(state, Pairs):
            self._skip_joblib_array(state)

    def _skip_joblib_array(self, state: Pairs) -> None:
        """Step over the values that joblib writes between the opcodes."""
        shape, dtype = state.get("shape"), state.get("dtype")
        width = _dtype_width(dtype)
        if width is None or not _is_shape(shape):
            raise Refused("it holds an array of joblib that cannot be stepped over")
        if state.get("numpy_array_alignment_bytes") is not None:
            self._take(self._number(1))
        self._take(math.prod(shape) * width)

    def tuple_of(self, number: int) -> None:
        items = [self._pop() for _ in range(number)][::-1]
        self._push(tuple(items))

    def duplicate(self) -> None:
        self._push(self._top())

    def pop_mark(self) -> None:
        self._to_mark()

    def persistent(self) -> None:
        self._push(Persistent(self._pop()))


def _opcodes() -> dict[int, Callable[[Machine], None]]:
    m = Machine
    table: dict[str, Callable[[Machine], None]] = {
        "(": lambda self: m._push(self, _MARK),
        "0": lambda self: m._pop(self) and None,
        "1": m.pop_mark,
        "2": m.duplicate,
        "F": lambda self: m._push(self, m._line(self)),
        "I": m.number_line,
        "L": m.number_line,
        "S": m.text_line,
        "V": m.text_line,
        "T": lambda self: m.text(self, 4),
        "U": lambda self: m.text(self, 1),
        "X": lambda self: m.text(self, 4),
        "\x8c": lambda self: m.text(self, 1),
        "\x8d": lambda self: m.text(self, 8),
        "B": lambda self: m.blob(self, 4),
        "C": lambda self: m.blob(self, 1),
        "\x8e": lambda self: m.blob(self, 8),
        "\x96": lambda self: m.blob(self, 8),
        "J": lambda self: m._push(self, int.from_bytes(m._take(self, 4), "little", signed=True)),
        "K": lambda self: m._push(self, m._number(self, 1)),
        "M": lambda self: m._push(self, m._number(self, 2)),
        "\x8a": lambda self: m.long(self, 1),
        "\x8b": lambda self: m.long(self, 4),
        "G": lambda self: m._push(self, struct.unpack(">d", m._take(self, 8))[0]),
        "N": lambda self: m._push(self, None),
        "\x88": lambda self: m._push(self, True),
        "\x89": lambda self: m._push(self, False),
        "]": lambda self: m._push(self, []),
        "}": lambda self: m._push(self, Pairs()),
        ")": lambda self: m._push(self, ()),
        "\x8f": lambda self: m._push(self, []),
        "l": lambda self: m._push(self, m._to_mark(self)),
        "t": lambda self: m._push(self, tuple(m._to_mark(self))),
        "\x91": lambda self: m._push(self, m._to_mark(self)),
        "d": lambda self: m.pairs(self, m._to_mark(self)),
        "\x85": lambda self: m.tuple_of(self, 1),
        "\x86": lambda self: m.tuple_of(self, 2),
        "\x87": lambda self: m.tuple_of(self, 3),
        "a": lambda self: m.append(self, [m._pop(self)]),
        "e": lambda self: m.append(self, m._to_mark(self)),
        "\x90": lambda self: m.append(self, m._to_mark(self)),
        "s": lambda self: m.set_items(self, [m._pop(self), m._pop(self)][::-1]),
        "u": lambda self: m.set_items(self, m._to_mark(self)),
        "p": lambda self: m.put(self, int(m._line(self))),
        "q": lambda self: m.put(self, m._number(self, 1)),
        "r": lambda self: m.put(self, m._number(self, 4)),
        "\x94": lambda self: m.put(self, len(self._memo)),
        "g": lambda self: m.get(self, int(m._line(self))),
        "h": lambda self: m.get(self, m._number(self, 1)),
        "j": lambda self: m.get(self, m._number(self, 4)),
        "c": lambda self: m.names(self, m._line(self), m._line(self)),
        "\x93": m.stack_names,
        "R": m.reduce,
        "\x81": m.reduce,
        "\x92": m.new_with_keywords,
        "b": m.build,
        "i": m.instance,
        "o": m.make_object,
        "P": lambda self: m._push(self, Persistent(m._line(self))),
        "Q": m.persistent,
        "\x80": m.proto,
        "\x95": m.frame,
        "\x82": lambda self: m.names(self, "copyreg", f"extension {m._number(self, 1)}"),
        "\x83": lambda self: m.names(self, "copyreg", f"extension {m._number(self, 2)}"),
        "\x84": lambda self: m.names(self, "copyreg", f"extension {m._number(self, 4)}"),
        "\x97": lambda self: m._push(self, Blob(0)),
        "\x98": lambda self: None,
    }
    return {ord(code): handle for code, handle in table.items()}


_OPCODES = _opcodes()


# What an object is


def _is_shape(value: Any) -> bool:
    return isinstance(value, tuple) and all(type(each) is int and 0 <= each < 1 << 60 for each in value)


def _dtype_name(dtype: Any) -> str:
    """Return the name of a numpy.dtype as it was pickled."""
    if isinstance(dtype, Global):
        return dtype.name
    if not isinstance(dtype, Call) or not isinstance(dtype.arguments, tuple) or not dtype.arguments:
        return ""
    code = dtype.arguments[0]
    if not isinstance(code, str):
        return ""
    if code in ("b1", "?"):
        return "bool"
    kind = _FORTRAN_TYPES.get(code[:1])
    return f"{kind}{int(code[1:]) * 8}" if kind and code[1:].isdigit() else code


def _dtype_width(dtype: Any) -> int | None:
    code = dtype.arguments[0] if isinstance(dtype, Call) and isinstance(dtype.arguments, tuple) else None
    if not code or not isinstance(code[0] if isinstance(code, tuple) else code, str):
        return None
    text = code if isinstance(code, str) else code[0]
    digits = text[1:]
    if text[:1] == "U" and digits.isdigit():
        return int(digits) * 4
    return int(digits) if text[:1] in "fiucbSV" and digits.isdigit() else None


def _tensor_of(value: Any) -> list[Any] | None:
    """Return type and shape of a tensor or an array, or None of anything else."""
    if not isinstance(value, Call):
        return None
    arguments = value.arguments if isinstance(value.arguments, tuple) else ()
    if value.name == "torch._utils._rebuild_parameter" and arguments:
        return _tensor_of(arguments[0])
    if value.name.startswith("torch._utils._rebuild_tensor") and len(arguments) >= 3 and _is_shape(arguments[2]):
        stated = arguments[6] if len(arguments) > 6 and isinstance(arguments[6], Global) else None
        return [stated.name if stated else _storage_type(arguments[0]), list(arguments[2])]
    if value.name.endswith("multiarray._reconstruct") and isinstance(value.state, tuple) and len(value.state) >= 3:
        return [_dtype_name(value.state[2]), list(value.state[1])] if _is_shape(value.state[1]) else None
    if value.name.endswith("NumpyArrayWrapper") and isinstance(value.state, Pairs):
        shape = value.state.get("shape")
        return [_dtype_name(value.state.get("dtype")), list(shape)] if _is_shape(shape) else None
    return None


def _storage_type(storage: Any) -> str:
    id = storage.id if isinstance(storage, Persistent) and isinstance(storage.id, tuple) else ()
    kind = id[1] if len(id) > 1 and isinstance(id[1], Global) else None
    return _DTYPES.get(kind.name.removesuffix("Storage"), "") if kind else ""


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what an object holds, each with its name in it."""
    if isinstance(value, Pairs):
        yield from ((str(key) if isinstance(key, (str, int)) else "", each) for key, each in value.pairs)
    elif isinstance(value, (list, tuple)):
        yield from ((str(index), each) for index, each in enumerate(value))
    elif isinstance(value, Call):
        yield from _parts(value.state)
        yield from ((str(key) if isinstance(key, (str, int)) else "", each) for key, each in value.pairs)
        yield from ((str(index), each) for index, each in enumerate(value.items))
        if value.state is None and not value.pairs and isinstance(value.arguments, tuple):
            yield from (("", each) for each in value.arguments)


def _tensors(root: Any) -> list[list[Any]]:
    """Return name, type and shape of each tensor that an object holds; what occurs twice is listed once."""
    tensors: list[list[Any]] = []
    seen: set[int] = set()
    stack = [("", root)]
    nodes = 0
    while stack and nodes < _MOST_NODES and len(tensors) < _MOST_TENSORS:
        name, value = stack.pop()
        nodes += 1
        if id(value) in seen or not isinstance(value, (Call, Pairs, list, tuple)):
            continue
        seen.add(id(value))
        tensor = _tensor_of(value)
        if tensor is not None:
            tensors.append([name, *tensor])
            continue
        below = [(".".join(filter(None, (name, label)))[:_LONGEST_TEXT], each) for label, each in _parts(value)]
        stack += reversed(below[:_MOST_NODES])
    return tensors


def _facts(root: Any) -> dict[str, Any]:
    """Return the plain attributes of an object: numbers and short texts, and the shapes of arrays."""
    state = root.state if isinstance(root, Call) else root
    if isinstance(state, tuple) and len(state) == 2:  # with slots
        state = state[0]
    facts: dict[str, Any] = {}
    for key, value in state.pairs[:200] if isinstance(state, Pairs) else ():
        if isinstance(key, str) and len(key) <= 60:
            tensor = _tensor_of(value)
            if isinstance(value, str):
                facts[key] = value[:_LONGEST_TEXT]
            elif isinstance(value, (bool, int, float)) and math.isfinite(value):
                facts[key] = value
            elif tensor is not None:
                facts[key] = {"type": tensor[0], "shape": tensor[1]}
    return facts


def _class_of(root: Any) -> str:
    if isinstance(root, Pairs):
        return "dict"
    if not isinstance(root, Call):
        return type(root).__name__
    arguments = root.arguments if isinstance(root.arguments, tuple) else ()
    if root.name in ("copyreg._reconstructor", "copy_reg._reconstructor", "copyreg.__newobj__") and arguments:
        return str(arguments[0])
    return root.name


def scan(data: memoryview) -> dict[str, Any]:
    """Return what a pickle stands for: its class, imports, calls, attributes and tensors."""
    machine = Machine(data)
    is_legacy = False
    try:
        root = machine.load()
        if root == _TORCH_MAGIC and isinstance(root, int):  # then follow a version and the machine, before the object
            is_legacy = True
            for _ in range(3):
                root = machine.load()
    except (Refused, ValueError, IndexError, RecursionError, struct.error, OverflowError) as error:
        return {"error": str(error) or type(error).__name__, "imports": sorted(machine.imports)}
    except MemoryError:
        return {"error": "it needs too much memory", "imports": []}
    return {
        "class": _class_of(root),
        "imports": sorted(machine.imports),
        "called": sorted(machine.called),
        "facts": _facts(root),
        "tensors": _tensors(root),
        "protocol": machine.protocol,
        "legacy_torch": is_legacy,
        "left": len(data) - machine.position,
    }


def _too_long(*_: object) -> None:
    raise Refused(f"it takes more than {MOST_SECONDS} s to scan")


def _scan_file(path: str, offset: int, length: int) -> dict[str, Any]:
    with (
        open(path, "rb") as stream,
        mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as view,
        view[offset : offset + length] as part,
    ):
        return scan(part)


def main() -> None:
    """Answer requests until stdin ends."""
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGALRM, _too_long)
    for line in sys.stdin:
        path, offset, length = json.loads(line)
        signal.alarm(MOST_SECONDS)
        try:
            answer = _scan_file(path, offset, length)
        except (OSError, ValueError, BufferError, Refused, MemoryError) as error:
            answer = {"error": str(error) or type(error).__name__, "imports": []}
        signal.alarm(0)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
