"""Blocks of memory that many sequences share.

Shapes: K key/value heads, P tokens of a block, E head width.
"""

import hashlib
from array import array
from collections.abc import Hashable, Iterator, Sequence

from gradwire.inference.caches.storage import MakeStorage, Plain, Storage
from gradwire.inference.errors import CacheFullError, InferenceError
from gradwire.inference.model import Layout


class PoolFullError(CacheFullError):
    """No block is free: wait for a sequence to end, or take the blocks of one."""


class Pool:
    """Equal blocks of tokens, allocated once; every block counts the sequences that use it.

    Since any free block suits any sequence, memory does not fragment: what is lost is the unfilled end of each
    sequence's last block. Full blocks can be found by what they hold, so that equal beginnings are stored once.

    Args:
        layout: What the model keeps of each token.
        blocks: Number of blocks.
        block: Tokens of one.
        storage: How keys and values lie in memory.

    Raises:
        InferenceError: a size is below 1.
    """

    def __init__(self, layout: Layout, blocks: int, block: int = 16, storage: MakeStorage = Plain) -> None:
        if blocks < 1 or block < 1:
            raise InferenceError(f"a pool needs at least one block of one token, found {blocks} of {block}")
        self.layout = layout
        self.blocks, self.block = blocks, block
        shape = (blocks, block, layout.kv_heads, layout.head_width)
        self.keys: list[Storage] = [storage(shape, layout.dtype, layout.device) for _ in range(layout.layers)]
        self.values: list[Storage] = [storage(shape, layout.dtype, layout.device) for _ in range(layout.layers)]
        self._free = list(range(blocks - 1, -1, -1))
        self._uses = [0] * blocks
        self._by_content: dict[Hashable, int] = {}
        self._content: dict[int, Hashable] = {}

    @classmethod
    def of_bytes(cls, layout: Layout, nbytes: int, block: int = 16, storage: MakeStorage = Plain) -> "Pool":
        """As many blocks as fit into so many bytes.

        Raises:
            InferenceError: not even one does.
        """
        each = cls(layout.on_meta(), 1, block, storage).nbytes
        if nbytes < each:
            raise InferenceError(f"a block of {block} tokens takes {each:,} bytes, more than the {nbytes:,} allowed")
        return cls(layout, nbytes // each, block, storage)

    @property
    def nbytes(self) -> int:
        """Bytes allocated for keys and values."""
        return sum(each.nbytes for each in (*self.keys, *self.values))

    @property
    def free(self) -> int:
        """Blocks that no sequence uses."""
        return len(self._free)

    def uses(self, block: int) -> int:
        """Sequences that use a block."""
        return self._uses[block]

    def needed(self, tokens: int) -> int:
        """Blocks for so many tokens."""
        return -(-tokens // self.block)

    def take(self) -> int:
        """A block for one sequence.

        Raises:
            PoolFullError: none is free.
        """
        if not self._free:
            raise PoolFullError(f"all {self.blocks} blocks of {self.block} tokens are in use")
        block = self._free.pop()
        self._uses[block] = 1
        return block

    def share(self, block: int) -> int:
        """The block, for one more sequence."""
        self._uses[block] += 1
        return block

    def give(self, block: int) -> None:
        """One sequence is done with a block."""
        self._uses[block] -= 1
        if not self._uses[block]:
            self._forget(block)
            self._free.append(block)

    def own(self, block: int) -> int:
        """A block with the same tokens that no other sequence uses: itself, or a copy in its stead.

        Raises:
            PoolFullError: a copy is needed, and no block is free.
        """
        if self._uses[block] == 1:
            self._forget(block)
            return block
        copy = self.take()
        for each in (*self.keys, *self.values):
            each.copy(slice(copy, copy + 1), slice(block, block + 1))
        self.give(block)
        return copy

    def find(self, content: Hashable) -> int | None:
        """The block in use that holds this, if one does."""
        return self._by_content.get(content)

    def remember(self, block: int, content: Hashable) -> None:
        """A block in use is full, and will stay as it is while it is shared."""
        if content not in self._by_content and block not in self._content:
            self._by_content[content] = block
            self._content[block] = content

    def _forget(self, block: int) -> None:
        content = self._content.pop(block, None)
        if content is not None:
            del self._by_content[content]


class Table:
    """The blocks of one sequence, in order.

    Args:
        pool: Whose blocks they are.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.blocks: list[int] = []
        self.tokens = 0

    def reserve(self, tokens: int) -> None:
        """Have room for so many more tokens, in blocks that no other sequence sees; they count as stored from now on.

        Raises:
            PoolFullError: there are not enough free blocks; nothing has changed.
        """
        pool = self._pool
        partial = self.tokens % pool.block and tokens
        copies = int(bool(partial) and pool.uses(self.blocks[-1]) > 1)
        more = pool.needed(self.tokens + tokens) - len(self.blocks)
        if more + copies > pool.free:
            raise PoolFullError(
                f"{more + copies} blocks of {pool.block} tokens are needed, and {pool.free} of {pool.blocks} are free"
            )
        if partial:
            self.blocks[-1] = pool.own(self.blocks[-1])
        self.blocks += [pool.take() for _ in range(more)]
        self.tokens += tokens

    def fork(self) -> "Table":
        """Another sequence with the same tokens, in the same blocks."""
        other = Table(self._pool)
        other.blocks = [self._pool.share(block) for block in self.blocks]
        other.tokens = self.tokens
        return other

    def adopt(self, ids: Sequence[int], most: int) -> int:
        """Use full blocks that hold the beginning of these tokens already; how many tokens of it that makes.

        Args:
            ids: Tokens of the sequence; it has none so far.
            most: Adopt no more tokens than that.
        """
        for content in contents(ids[:most], self._pool.block):
            block = self._pool.find(content)
            if block is None:
                break
            self.blocks.append(self._pool.share(block))
            self.tokens += self._pool.block
        return self.tokens

    def publish(self, ids: Sequence[int]) -> None:
        """Let others adopt the full blocks of these tokens, which the sequence holds."""
        for block, content in zip(self.blocks, contents(ids, self._pool.block), strict=False):
            self._pool.remember(block, content)

    def release(self) -> None:
        """Give all blocks back."""
        for block in self.blocks:
            self._pool.give(block)
        self.blocks, self.tokens = [], 0


def contents(ids: Sequence[int], block: int) -> Iterator[Hashable]:
    """What full blocks hold: their tokens, and all before them, as a chain of digests."""
    digest = b""
    for start in range(0, len(ids) - len(ids) % block, block):
        digest = hashlib.blake2b(digest + array("q", ids[start : start + block]).tobytes(), digest_size=16).digest()
        yield digest
