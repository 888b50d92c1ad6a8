"""A replay of torch's CUDA caching allocator: which bytes it hands out, and which it keeps from the device."""

from __future__ import annotations

from bisect import bisect_left, insort

from fairmile.base.errors import RunFailed
from fairmile.base.units import format_size
from fairmile.predict.memory.options import MIB, AllocatorOptions

_SMALLEST = 512
_SMALL = MIB  # requests up to here live in the small pool
_SMALL_SEGMENT = 2 * MIB
_LARGE_SEGMENT = 20 * MIB
_LARGE_REQUEST = 10 * MIB  # from here on a request gets a segment of its own size
_ROUND_LARGE = 2 * MIB
_UNROUNDED_REST = 20 * MIB  # how much more than asked for an oversized block may be
_LOWEST = -(1 << 62)
_ADDRESS_SPACE = 1 << 42  # what one expandable segment may cover


class DeviceFull(RunFailed):
    """The device has no room for a request, also after every unused segment was given back."""

    def __init__(self, request_bytes: int, reserved_bytes: int, allocated_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            f"out of memory: {format_size(request_bytes)} requested, {format_size(allocated_bytes)} in use, "
            f"{format_size(reserved_bytes)} reserved of {format_size(limit_bytes)}",
            hint="use a smaller batch, checkpointing or another precision",
        )
        self.request_bytes = request_bytes
        self.reserved_bytes = reserved_bytes
        self.allocated_bytes = allocated_bytes
        self.limit_bytes = limit_bytes


class _Block:
    __slots__ = ("address", "after", "before", "born", "free", "pool", "size")

    def __init__(self, address: int, size: int, pool: _Pool) -> None:
        self.address = address
        self.size = size
        self.pool = pool
        self.before: _Block | None = None
        self.after: _Block | None = None
        self.free = False
        self.born = 0  # the pool's count of searches when the block became free


class _Pool:
    """Free blocks of one stream, small or large, by (size, address)."""

    __slots__ = ("blocks", "by_key", "growing", "is_small", "searches")

    def __init__(self, is_small: bool) -> None:
        self.is_small = is_small
        self.blocks: list[tuple[int, int]] = []
        self.by_key: dict[int, _Block] = {}  # free blocks by address
        self.growing: _Block | None = None  # last block of the segment that can be extended
        self.searches = 0

    def add(self, block: _Block) -> None:
        block.free = True
        block.born = self.searches
        insort(self.blocks, (block.size, block.address))
        self.by_key[block.address] = block

    def remove(self, block: _Block) -> None:
        block.free = False
        del self.blocks[bisect_left(self.blocks, (block.size, block.address))]
        del self.by_key[block.address]


class Allocator:
    """The allocator's state; `limit_bytes` is what the device has for it, None for no end."""

    def __init__(
        self,
        options: AllocatorOptions | None = None,
        *,
        limit_bytes: int | None = None,
    ) -> None:
        self.options = options or AllocatorOptions()
        self._rounded = any(each > 1 for each in self.options.roundup_power2_divisions)
        self._limit = limit_bytes
        # The driver places each new segment below those before: ties between equal blocks are decided by that.
        self._lowest = 0
        self._pools: dict[tuple[int, bool], _Pool] = {}
        self._live: dict[int, _Block] = {}
        self.allocated_bytes = 0
        self.reserved_bytes = 0
        self.peak_allocated_bytes = 0
        self.peak_reserved_bytes = 0
        self.segments = 0
        self.retries = 0

    def allocate(self, key: int, size_bytes: int, stream: int = 0) -> int:
        """Hand out a block under a key that is not in use, and return the bytes it takes."""
        size = self.rounded(size_bytes)
        pool = self._pool(stream, size)
        block = self._find(pool, size) or self._reserve(pool, size)
        rest = block.size - size
        if rest and self._splits(pool, size, rest):
            self._cut(block, size)
        self._live[key] = block
        self.allocated_bytes += block.size
        if self.allocated_bytes > self.peak_allocated_bytes:
            self.peak_allocated_bytes = self.allocated_bytes
        return block.size

    def free(self, key: int) -> int:
        """Take the block of a key back, and return the bytes it took."""
        block = self._live.pop(key)
        size = block.size
        self.allocated_bytes -= size
        pool = block.pool
        before, after = block.before, block.after
        if before is not None and before.free:
            pool.remove(before)
            before.size += block.size
            before.after = after
            if after is not None:
                after.before = before
            if pool.growing is block:
                pool.growing = before
            block = before
        if after is not None and after.free:
            pool.remove(after)
            block.size += after.size
            block.after = after.after
            if after.after is not None:
                after.after.before = block
            if pool.growing is after:
                pool.growing = block
        pool.add(block)
        return size

    def rename(self, key: int, new: int) -> None:
        """Let a block go by another key."""
        self._live[new] = self._live.pop(key)

    def rounded(self, size_bytes: int) -> int:
        """Return the bytes that a request takes."""
        if size_bytes < _SMALLEST:
            return _SMALLEST
        if self._rounded:
            divisions = self.options.divisions_of(size_bytes)
            if divisions > 1 and size_bytes > _SMALLEST * divisions:
                return _next_division(size_bytes, divisions)
        return (size_bytes + _SMALLEST - 1) // _SMALLEST * _SMALLEST

    def give_back(self) -> int:
        """Return every unused segment to the device, and say how many bytes that were."""
        before = self.reserved_bytes
        for pool in self._pools.values():
            for block in list(pool.by_key.values()):
                self._release(block)
        return before - self.reserved_bytes

    def state(self) -> int:
        """Return a number that is equal where the allocator would answer everything that follows alike."""
        live = tuple(sorted((key, block.address, block.size) for key, block in self._live.items()))
        return hash((live, tuple((key, tuple(pool.blocks)) for key, pool in self._pools.items())))

    def _pool(self, stream: int, size: int) -> _Pool:
        key = (stream, size <= _SMALL)
        pool = self._pools.get(key)
        if pool is None:
            pool = self._pools[key] = _Pool(key[1])
        return pool

    def _find(self, pool: _Pool, size: int) -> _Block | None:
        pool.searches += 1
        blocks = pool.blocks
        at = bisect_left(blocks, (size, _LOWEST))
        if at == len(blocks):
            return None
        block = pool.by_key[blocks[at][1]]
        if self.options.expandable_segments:
            # The block that can grow counts with all it may become: any other that is large enough goes first.
            if block is pool.growing and at + 1 < len(blocks):
                block = pool.by_key[blocks[at + 1][1]]
        elif (most := self.options.max_split_bytes) is not None and (
            (size < most <= block.size) or (size >= most and block.size >= size + _UNROUNDED_REST)
        ):
            return None
        pool.remove(block)
        return block

    def _splits(self, pool: _Pool, size: int, rest: int) -> bool:
        if pool.is_small or self.options.expandable_segments:
            return rest >= _SMALLEST
        most = self.options.max_split_bytes
        return rest > _SMALL and (most is None or size < most)

    def _cut(self, block: _Block, size: int) -> None:
        rest = _Block(block.address + size, block.size - size, block.pool)
        rest.before, rest.after = block, block.after
        if block.after is not None:
            block.after.before = rest
        block.after = rest
        block.size = size
        if block.pool.growing is block:
            block.pool.growing = rest
        block.pool.add(rest)

    def _reserve(self, pool: _Pool, size: int) -> _Block:
        if self.options.expandable_segments:
            return self._extend(pool, size)
        need = _segment_bytes(size)
        if not self._fits(need):
            self._collect(need)
        if not self._fits(need) and self.options.max_split_bytes is not None:
            self._release_oversized(pool, need)
        if not self._fits(need):
            self.retries += 1
            self.give_back()
        if not self._fits(need):
            raise DeviceFull(size, self.reserved_bytes, self.allocated_bytes, self._limit or 0)
        self._hold(need)
        return _Block(self._place(need), need, pool)

    def _extend(self, pool: _Pool, size: int) -> _Block:
        """Map more pages behind the last block of the pool's only segment."""
        unit = _SMALL_SEGMENT if pool.is_small else _LARGE_SEGMENT
        last = pool.growing
        have = last.size if last is not None and last.free else 0
        need = -(-(size - have) // unit) * unit
        if not self._fits(need):
            self.retries += 1
            self.give_back()
            last = pool.growing
            have = last.size if last is not None and last.free else 0
            need = -(-(size - have) // unit) * unit
        if not self._fits(need):
            raise DeviceFull(size, self.reserved_bytes, self.allocated_bytes, self._limit or 0)
        self._hold(need)
        if last is not None and last.free:
            pool.remove(last)
            last.size += need
            return last
        address = last.address + last.size if last is not None else self._place(_ADDRESS_SPACE)
        block = _Block(address, need, pool)
        if last is not None:
            last.after, block.before = block, last
        pool.growing = block
        return block

    def _fits(self, need: int) -> bool:
        if self._limit is None:
            return True
        return self.reserved_bytes + need <= self._limit

    def _hold(self, need: int) -> None:
        self.segments += 1
        self.reserved_bytes += need
        if self.reserved_bytes > self.peak_reserved_bytes:
            self.peak_reserved_bytes = self.reserved_bytes

    def _place(self, size: int) -> int:
        self._lowest -= size
        return self._lowest

    def _release(self, block: _Block) -> None:
        if self.options.expandable_segments:
            self._unmap(block)
            return
        if block.before is not None or block.after is not None:
            return
        block.pool.remove(block)
        self.reserved_bytes -= block.size
        self.segments -= 1

    def _unmap(self, block: _Block) -> None:
        """Give back the whole pages inside a free block; their addresses are not used again."""
        pool = block.pool
        unit = _SMALL_SEGMENT if pool.is_small else _LARGE_SEGMENT
        first, last = -(-block.address // unit) * unit, (block.address + block.size) // unit * unit
        if last <= first:
            return
        pool.remove(block)
        self.reserved_bytes -= last - first
        tail = block.address + block.size - last
        if first > block.address:
            self._cut(block, first - block.address)
            pool.add(block)
            block = pool.by_key[first]
            pool.remove(block)
        if tail:
            self._cut(block, block.size - tail)

    def _release_oversized(self, pool: _Pool, need: int) -> None:
        """Give back the smallest oversized block that is enough, or several from the largest on."""
        most = self.options.max_split_bytes or 0
        least = max(need, most)
        at = bisect_left(pool.blocks, (least, _LOWEST))
        if at < len(pool.blocks):
            self._release(pool.by_key[pool.blocks[at][1]])
            return
        released = 0
        for size, address in reversed(list(pool.blocks)):
            if released >= least or size < most:
                return
            before = self.reserved_bytes
            self._release(pool.by_key[address])
            released += before - self.reserved_bytes

    def _collect(self, need: int) -> None:
        """Give back blocks that were not used for long, as `garbage_collection_threshold` asks."""
        threshold = self.options.garbage_collection_threshold
        if not threshold or self._limit is None or self.reserved_bytes + need <= threshold * self._limit:
            return
        goal = self.reserved_bytes - threshold * self._limit
        whole = [
            (pool.searches - block.born, block)
            for (_, is_small), pool in self._pools.items()
            if not is_small
            for block in pool.by_key.values()
            if block.before is None and block.after is None
        ]
        while whole and goal > 0:
            age = sum(each for each, _ in whole) / len(whole)
            old = [(each, block) for each, block in whole if each >= age]
            whole = [(each, block) for each, block in whole if each < age]
            for _, block in old:
                if goal <= 0:
                    return
                goal -= block.size
                self._release(block)


def _segment_bytes(size: int) -> int:
    if size <= _SMALL:
        return _SMALL_SEGMENT
    if size < _LARGE_REQUEST:
        return _LARGE_SEGMENT
    return (size + _ROUND_LARGE - 1) // _ROUND_LARGE * _ROUND_LARGE


def _next_division(size: int, divisions: int) -> int:
    if size & (size - 1) == 0:
        return size
    floor = 1 << (size.bit_length() - 1)
    part = floor >> (divisions.bit_length() - 1)
    if part == 0:
        return floor << 1
    return -(-size // part) * part
