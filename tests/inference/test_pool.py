import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gradwire.inference import InferenceError, Layout, Paged, Pool, PoolFullError, Table
from tests.inference.models import decoder, prompts, recomputed

LAYOUT = Layout(1, 1, 2, torch.float32, torch.device("cpu"))


def test_copies_share_blocks_until_one_of_them_writes() -> None:
    pool = Pool(LAYOUT, 10, block=4)
    table = Table(pool)
    table.reserve(6)
    other = table.fork()
    assert (pool.free, other.blocks) == (8, table.blocks)
    other.reserve(1)  # the second block is half full, and shared
    assert other.blocks[0] == table.blocks[0]
    assert other.blocks[1] != table.blocks[1]
    assert pool.free == 7
    table.reserve(1)  # it is the only one now: no copy
    assert pool.free == 7
    table.release()
    assert pool.free == 8
    other.release()
    assert pool.free == 10


def test_equal_beginnings_are_stored_once() -> None:
    pool = Pool(LAYOUT, 10, block=4)
    ids = list(range(11))
    first, second, third, fourth = (Table(pool) for _ in range(4))
    first.reserve(11)
    assert second.adopt(ids, 10) == 0  # nothing was published
    first.publish(ids)
    assert second.adopt(ids, 10) == 8
    assert second.blocks == first.blocks[:2]
    assert third.adopt([*ids[:4], 99, 5, 6, 7, 8], 8) == 4  # the second block follows other tokens
    assert fourth.adopt(ids, 7) == 4  # one token must be left to compute
    for table in (first, second, third, fourth):
        table.release()
    assert fourth.adopt(ids, 10) == 0  # what nobody uses is forgotten


def test_a_refused_reservation_changes_nothing() -> None:
    pool = Pool(LAYOUT, 3, block=4)
    table = Table(pool)
    table.reserve(5)
    with pytest.raises(PoolFullError, match="2 blocks of 4 tokens are needed, and 1 of 3 are free"):
        table.reserve(9)
    assert (table.tokens, len(table.blocks), pool.free) == (5, 2, 1)


def test_a_batch_that_does_not_fit_can_begin_again_after_room_was_made() -> None:
    model = decoder()
    pool = Pool(model.kv_layout(), 5, block=4)
    guest = Table(pool)
    guest.reserve(8)
    rows, following = prompts([4, 7]), torch.tensor(prompts([2, 2]))
    cache = Paged(pool, [Table(pool), Table(pool)])
    cache.pad(torch.tensor([3, 0]))
    found = []
    with torch.no_grad():
        found.append(model(torch.tensor([[0] * 3 + rows[0], rows[1]]), cache=cache)[:, -1])
        with pytest.raises(PoolFullError):
            model(following[:, :1], cache=cache)
        guest.release()
        found += [model(ids_B[:, None], cache=cache)[:, -1] for ids_B in following.unbind(1)]
    torch.testing.assert_close(torch.stack(found), recomputed(model, rows, following), rtol=0, atol=1e-4)


def test_a_pool_of_so_many_bytes_takes_no_more() -> None:
    pool = Pool.of_bytes(LAYOUT, 1000, block=4)  # 64 bytes a block
    assert (pool.blocks, pool.nbytes) == (15, 960)
    with pytest.raises(InferenceError, match="a block of 4 tokens takes 64 bytes, more than the 63 allowed"):
        Pool.of_bytes(LAYOUT, 63, block=4)
    with pytest.raises(InferenceError, match="at least one block of one token, found 0 of 4"):
        Pool(LAYOUT, 0, 4)


class Blocks(RuleBasedStateMachine):
    """Sequences come, grow, are copied and go: what each has written is what it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = Pool(LAYOUT, 12, block=3)
        self.sequences: list[tuple[Table, list[float]]] = []
        self.written = 0.0

    @rule()
    def come(self) -> None:
        self.sequences.append((Table(self.pool), []))

    @precondition(lambda self: self.sequences)
    @rule(data=st.data(), tokens=st.integers(1, 7))
    def grow(self, data: st.DataObject, tokens: int) -> None:
        table, held = data.draw(st.sampled_from(self.sequences))
        free = self.pool.free
        try:
            table.reserve(tokens)
        except PoolFullError:
            assert self.pool.free == free
            return
        for place in range(len(held), table.tokens):
            self.written += 1.0
            slot = (table.blocks[place // 3], place % 3)
            self.pool.keys[0].write(slot, torch.full((1, 2), self.written))
            held.append(self.written)

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def copy(self, data: st.DataObject) -> None:
        table, held = data.draw(st.sampled_from(self.sequences))
        self.sequences.append((table.fork(), list(held)))

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def go(self, data: st.DataObject) -> None:
        table, _ = self.sequences.pop(data.draw(st.integers(0, len(self.sequences) - 1)))
        table.release()

    @invariant()
    def each_reads_what_it_wrote(self) -> None:
        for table, held in self.sequences:
            read = [self.pool.keys[0].read((table.blocks[p // 3], p % 3))[0, 0].item() for p in range(table.tokens)]
            assert read == held

    @invariant()
    def every_block_is_free_or_used_by_those_who_count(self) -> None:
        used = [block for table, _ in self.sequences for block in table.blocks]
        assert self.pool.free == 12 - len(set(used))
        assert all(self.pool.uses(block) == used.count(block) for block in range(12))


TestBlocks = Blocks.TestCase
TestBlocks.settings = settings(max_examples=40, stateful_step_count=20)
