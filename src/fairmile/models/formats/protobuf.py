"""Protocol buffers by their wire format: the fields of a message, without the library and without a schema."""

from __future__ import annotations

from collections.abc import Iterator

Field = tuple[int, int | memoryview]  # its number, and a number or the bytes of a string, message or packed list

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class NotAMessage(ValueError):
    """The bytes are not fields of a message."""


def fields(data: memoryview) -> Iterator[Field]:
    """Yield the fields of a message in order; NotAMessage where the bytes end or are none."""
    position, end = 0, len(data)
    while position < end:
        key, position = varint(data, position, end)
        number, kind = key >> 3, key & 7
        if not number:
            raise NotAMessage("a field has the number 0")
        if kind == _BYTES:
            length, position = varint(data, position, end)
            stop = position + length
            if stop > end:
                raise NotAMessage("it ends inside a field")
            yield number, data[position:stop]
            position = stop
        elif kind == _VARINT:
            value, position = varint(data, position, end)
            yield number, value
        elif kind in (_FIXED64, _FIXED32):
            stop = position + (8 if kind == _FIXED64 else 4)
            if stop > end:
                raise NotAMessage("it ends inside a field")
            yield number, int.from_bytes(data[position:stop], "little")
            position = stop
        else:
            raise NotAMessage(f"a field has the unknown wire type {kind}")


def varint(data: memoryview, position: int, end: int) -> tuple[int, int]:
    """Return a number of variable length and where it ends."""
    value = shift = 0
    while position < end:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 63:
            raise NotAMessage("a number has more than 64 bits")
    raise NotAMessage("it ends inside a number")


def message(value: int | memoryview) -> memoryview:
    """Return the bytes of a field that must be a message or a string."""
    if isinstance(value, int):
        raise NotAMessage("expected a message, found a number")
    return value


def text(value: int | memoryview) -> str:
    """Return a field that must be a string."""
    return bytes(message(value)).decode("utf-8", "replace")


def number(value: int | memoryview) -> int:
    """Return a field that must be a number."""
    if not isinstance(value, int):
        raise NotAMessage("expected a number, found a message")
    return value


def signed(value: int | memoryview) -> int:
    """Return a field that must be a signed number."""
    plain = number(value)
    return plain - (1 << 64) if plain >> 63 else plain


def numbers(value: int | memoryview) -> list[int]:
    """Return a repeated signed number, packed or one of it."""
    if isinstance(value, int):
        return [signed(value)]
    values, position = [], 0
    while position < len(value):
        plain, position = varint(value, position, len(value))
        values.append(signed(plain))
    return values


def map_entry(data: memoryview) -> tuple[str, memoryview]:
    """Return the key and the value of an entry of a map of messages."""
    key, value = "", memoryview(b"")
    for field, content in fields(data):
        if field == 1:
            key = text(content)
        elif field == 2:
            value = message(content)
    return key, value
