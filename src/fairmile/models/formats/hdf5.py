"""HDF5 as far as Keras writes it: groups, attributes with texts, and the shape and type of each data set.

Follows the HDF5 file format specification, version 3: superblocks 0 to 3, object headers 1 and 2, groups by symbol
table or by links in their header. Values of data sets are not read, and links to other files are not followed.
"""

from __future__ import annotations

from collections.abc import Iterator

from fairmile.models.formats.description import TensorSpec

SIGNATURE = b"\x89HDF\r\n\x1a\n"
_UNDEFINED = (1 << 64) - 1
_MOST_OBJECTS = 100_000
_MOST_DEPTH = 64
_MOST_MESSAGES = 10_000
_DATASPACE, _LINK, _DATATYPE, _ATTRIBUTE, _CONTINUATION, _SYMBOL_TABLE = 0x1, 0x6, 0x3, 0xC, 0x10, 0x11
_INTEGER, _FLOAT, _STRING, _VARIABLE = 0, 1, 3, 9

Message = tuple[int, int, int]  # its type, and where its body begins and ends


class NotHdf5(ValueError):
    """The bytes do not follow the format, or use a part of it that is not read here."""


class Hdf5:
    """An HDF5 file in memory or mapped; all addresses are relative to its first byte."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._objects = 0
        if bytes(data[:8]) != SIGNATURE:
            raise NotHdf5("it has no signature")
        version = self._number(8, 1)
        if version in (0, 1):
            if (self._number(13, 1), self._number(14, 1)) != (8, 8):
                raise NotHdf5("its addresses do not have 8 bytes")
            self.root = self._number(24 + 32 + (4 if version else 0) + 8, 8)
        elif version in (2, 3):
            self.root = self._number(12 + 24, 8)
        else:
            raise NotHdf5(f"superblock version {version} is unknown")

    def attributes(self, address: int | None = None) -> dict[str, str | list[str]]:
        """Return the attributes of an object that are texts; by default those of the file."""
        texts: dict[str, str | list[str]] = {}
        for kind, start, end in self._messages(self.root if address is None else address):
            if kind == _ATTRIBUTE:
                name, value = self._attribute(start, end)
                if value is not None:
                    texts[name] = value
        return texts

    def datasets(self) -> Iterator[TensorSpec]:
        """Yield each data set by its path, with type and shape."""
        yield from self._walk(self.root, "", 0)

    def _walk(self, address: int, path: str, depth: int) -> Iterator[TensorSpec]:
        self._objects += 1
        if depth > _MOST_DEPTH or self._objects > _MOST_OBJECTS:
            raise NotHdf5("its groups are nested too deep or too many")
        kind, shape = "", None
        for message, start, end in self._messages(address):
            if message == _DATATYPE:
                kind = self._type_name(start)
            elif message == _DATASPACE:
                shape = self._shape(start)
            elif message == _SYMBOL_TABLE:
                tree, heap = self._number(start, 8), self._number(start + 8, 8)
                for name, child in self._members(tree, self._local_heap(heap), 0):
                    yield from self._walk(child, f"{path}/{name}" if path else name, depth + 1)
            elif message == _LINK:
                name, target = self._link(start, end)
                if target is not None:
                    yield from self._walk(target, f"{path}/{name}" if path else name, depth + 1)
        if kind and shape is not None:
            yield TensorSpec(path, kind, shape)

    # Bytes

    def _bytes(self, start: int, length: int) -> bytes:
        if start < 0 or length < 0 or start + length > len(self._data):
            raise NotHdf5("it ends early")
        return bytes(self._data[start : start + length])

    def _number(self, start: int, width: int) -> int:
        return int.from_bytes(self._bytes(start, width), "little")

    def _text(self, start: int, most: int = 1024) -> str:
        piece = bytes(self._data[start : start + most]) if 0 <= start < len(self._data) else b""
        return piece.partition(b"\0")[0].decode("utf-8", "replace")

    # Headers

    def _messages(self, address: int) -> Iterator[Message]:
        if self._bytes(address, 4) == b"OHDR":
            yield from self._messages_2(address)
            return
        if self._number(address, 1) != 1:
            raise NotHdf5("an object has no header")
        number, size = self._number(address + 2, 2), self._number(address + 8, 4)
        blocks = [(address + 16, size)]
        read = 0
        while blocks and read < min(number, _MOST_MESSAGES):
            start, length = blocks.pop(0)
            end = start + length
            while start + 8 <= end and read < number:
                kind, width, flags = self._number(start, 2), self._number(start + 2, 2), self._number(start + 4, 1)
                read += 1
                if kind == _CONTINUATION:
                    blocks.append((self._number(start + 8, 8), self._number(start + 16, 8)))
                elif not flags & 2:  # not shared with other objects
                    yield kind, start + 8, start + 8 + width
                start += 8 + width

    def _messages_2(self, address: int) -> Iterator[Message]:
        flags = self._number(address + 5, 1)
        start = address + 6 + (16 if flags & 0x20 else 0) + (4 if flags & 0x10 else 0)
        width = 1 << (flags & 3)
        blocks = [(start + width, self._number(start, width))]
        head = 4 + (2 if flags & 4 else 0)
        read = 0
        while blocks:
            start, length = blocks.pop(0)
            end = start + length
            while start + head <= end:
                kind, size = self._number(start, 1), self._number(start + 1, 2)
                is_shared = self._number(start + 3, 1) & 2
                read += 1
                if read > _MOST_MESSAGES:
                    raise NotHdf5("an object has too many messages")
                body = start + head
                if kind == _CONTINUATION:
                    # A further block begins with a signature and ends with a checksum.
                    blocks.append((self._number(body, 8) + 4, self._number(body + 8, 8) - 8))
                elif not is_shared:
                    yield kind, body, body + size
                start = body + size

    # Groups

    def _local_heap(self, address: int) -> int:
        if self._bytes(address, 4) != b"HEAP":
            raise NotHdf5("a group has no names")
        return self._number(address + 24, 8)

    def _members(self, tree: int, names: int, depth: int) -> Iterator[tuple[str, int]]:
        if depth > 8 or self._bytes(tree, 4) != b"TREE":
            raise NotHdf5("a group has no members")
        level, used = self._number(tree + 5, 1), self._number(tree + 6, 2)
        for index in range(used):
            child = self._number(tree + 24 + 8 + index * 16, 8)
            if level:
                yield from self._members(child, names, depth + 1)
            else:
                yield from self._symbols(child, names)

    def _symbols(self, node: int, names: int) -> Iterator[tuple[str, int]]:
        if self._bytes(node, 4) != b"SNOD":
            raise NotHdf5("a group has no members")
        for index in range(self._number(node + 6, 2)):
            entry = node + 8 + index * 40
            if self._number(entry + 16, 4) != 2:  # not a symbolic link
                yield self._text(names + self._number(entry, 8)), self._number(entry + 8, 8)

    def _link(self, start: int, end: int) -> tuple[str, int | None]:
        flags = self._number(start + 1, 1)
        at = start + 2
        kind = 0
        if flags & 8:
            kind, at = self._number(at, 1), at + 1
        at += (8 if flags & 4 else 0) + (1 if flags & 16 else 0)
        width = 1 << (flags & 3)
        length = self._number(at, width)
        name = self._bytes(at + width, min(length, end - at)).decode("utf-8", "replace")
        return name, self._number(at + width + length, 8) if kind == 0 else None

    # Types, shapes, attributes

    def _type_name(self, start: int) -> str:
        kind, size = self._number(start, 1) & 15, self._number(start + 4, 4)
        if kind == _FLOAT:
            return f"float{size * 8}"
        if kind == _INTEGER:
            return f"{'int' if self._number(start + 1, 1) & 8 else 'uint'}{size * 8}"
        return {_STRING: "str", _VARIABLE: "str", 8: "bool"}.get(kind, "bytes")

    def _shape(self, start: int) -> tuple[int, ...]:
        version, rank = self._number(start, 1), self._number(start + 1, 1)
        first = start + (8 if version == 1 else 4)
        return tuple(self._number(first + 8 * index, 8) for index in range(rank))

    def _attribute(self, start: int, end: int) -> tuple[str, str | list[str] | None]:
        version = self._number(start, 1)
        if version not in (1, 2, 3):
            raise NotHdf5("an attribute is of an unknown version")
        sizes = [self._number(start + at, 2) for at in (2, 4, 6)]
        at = start + (9 if version == 3 else 8)
        padded = [-(-each // 8) * 8 if version == 1 else each for each in sizes]
        name = self._text(at, sizes[0])
        type_at = at + padded[0]
        space_at = type_at + padded[1]
        value_at = space_at + padded[2]
        kind, size = self._number(type_at, 1) & 15, self._number(type_at + 4, 4)
        if kind not in (_STRING, _VARIABLE):
            return name, None
        shape = self._shape(space_at)
        count = 1
        for each in shape:
            count *= each
        if count * size > end - value_at:
            raise NotHdf5("it ends inside an attribute")
        values = [self._string(value_at + index * size, size, kind) for index in range(count)]
        return name, values if shape else values[0]

    def _string(self, start: int, size: int, kind: int) -> str:
        if kind == _STRING:
            return self._bytes(start, size).rstrip(b"\0").decode("utf-8", "replace")
        length, heap, index = self._number(start, 4), self._number(start + 4, 8), self._number(start + 12, 4)
        if heap in (0, _UNDEFINED):
            return ""
        return self._global_object(heap, index)[:length].decode("utf-8", "replace")

    def _global_object(self, heap: int, wanted: int) -> bytes:
        if self._bytes(heap, 4) != b"GCOL":
            raise NotHdf5("a text is not where it should be")
        end = heap + self._number(heap + 8, 8)
        at = heap + 16
        while at + 16 <= end:
            index, size = self._number(at, 2), self._number(at + 8, 8)
            if index == wanted:
                return self._bytes(at + 16, size)
            if not index:
                break
            at += 16 + -(-size // 8) * 8
        raise NotHdf5("a text is missing")
