"""How many stages warps have filled and released, in words, and the error if they differ."""

from collections import Counter
from types import SimpleNamespace

import pytest

from numba_tma.simulator.errors import UnequalTurns
from numba_tma.simulator.turns import check_turns, lines_of_turns, turns_in_words

RING, OTHER = "TilePipeline(2, x=Tile((4, 32), f32, NONE))", "KvPipeline(2)"


class Block:
    def __init__(self, cluster=1, roles=()):
        self.index, self.barriers, self.role_names = (3, 0, 0), {}, dict(roles)
        self.cluster = [self] * cluster


class Thread:
    def __init__(self, cta, warp, lane):
        self.cta, self.warp, self.lane, self.block = cta, warp, lane, cta.index


def barrier(cta, name, arrived=(), waited=(), pending=0, count=2):
    """Add a barrier; `arrived` and `waited` have the turns of (warp, lane)."""
    def by_thread(turns):
        return Counter({
            Thread(cta, warp, lane): number for (warp, lane), number in dict(turns).items()
        })  # fmt: skip

    made = SimpleNamespace(
        name=name, cta=cta, arrived=by_thread(arrived), waited=by_thread(waited),
        model=SimpleNamespace(pending=pending, count=count),
    )  # fmt: skip
    cta.barriers[8 * len(cta.barriers)] = made
    return made


def ring_of(cta, ring=RING):
    """A ring whose warp 4 fills stages, of which warps 0 and 1 wait and 0 to 2 release."""
    barrier(cta, f"full[0] of {ring}", {(4, 0): 3, (4, 7): 2}, {(0, 0): 2, (1, 0): 2, (1, 3): 3})
    barrier(cta, f"full[1] of x of {ring}", {(4, 0): 2}, {(0, 0): 2, (1, 0): 1})
    barrier(cta, f"empty[0] of {ring}", {(0, 0): 2, (1, 5): 1}, {(4, 0): 9})
    barrier(cta, f"empty[1] of sub-stage 1 of {ring}", {(0, 1): 1, (1, 0): 2, (2, 0): 1})
    barrier(cta, f"turn[0] of {ring}", {(6, 0): 9}, {(6, 0): 9})


def test_the_turns_of_a_lane_that_has_most_are_its_warp_s():
    cta = Block()
    ring_of(cta)
    barrier(cta, f"full[0] of {OTHER}", {(5, 0): 1}, {(6, 0): 1})
    assert turns_in_words(cta, RING) == (
        "Stages of TilePipeline: filled by warp 4: 5, waited for by warps 0, 1: 4, released by "
        "warps 0, 1: 3 and warp 2: 1"
    )
    assert turns_in_words(cta, OTHER) == (
        "Stages of KvPipeline: filled by warp 5: 1, waited for by warp 6: 1"
    )
    assert turns_in_words(Block(), RING) == "Stages of TilePipeline: none was used"


def test_warps_of_a_role_and_of_a_block_are_named_with_it():
    cta = Block(2, {0: "math", 1: "math", 2: "tail"})
    ring_of(cta)
    assert turns_in_words(cta, RING).endswith(
        "waited for by warps 0, 1 (math) of block (3, 0, 0): 4, released by warps 0, 1 (math) of "
        "block (3, 0, 0): 3 and warp 2 (tail) of block (3, 0, 0): 1"
    )


def test_warps_are_in_their_order():
    cta = Block()
    barrier(cta, f"empty[0] of {RING}", {(7, 0): 1, (0, 0): 2, (3, 0): 1, (1, 0): 2})
    assert turns_in_words(cta, RING).endswith("released by warps 0, 1: 2 and warps 3, 7: 1")


def test_each_pipeline_has_one_line():
    cta, another = Block(), Block()
    for each in (cta, another):
        ring_of(each)
        barrier(each, f"full[0] of {OTHER}")
        barrier(each, "flag")
    lines = lines_of_turns([*cta.barriers.values(), *another.barriers.values()])
    assert lines == 2 * [f"  {turns_in_words(cta, name)}" for name in (RING, OTHER)]


@pytest.mark.parametrize(
    ("name", "pending", "refused"),
    [("full[0]", 1, True), ("full[0]", 2, True), ("empty[1]", 1, True), ("full[0]", 0, False),
     ("full[0]", 3, False), ("turn[0]", 1, False)],
)  # fmt: skip
def test_a_phase_that_some_warps_have_arrived_for(name, pending, refused):
    cta = Block()
    ring_of(cta)
    barrier(cta, f"{name} of {RING}", pending=pending, count=3)
    if not refused:
        check_turns(cta)
        return
    with pytest.raises(UnequalTurns) as caught:
        check_turns(cta)
    assert str(caught.value).startswith(
        f"block (3, 0, 0) ended, and {name} of {RING} has {3 - pending} of the 3 arrivals of its "
        "last phase. Stages of TilePipeline: filled by warp 4: 5, waited for by "
    )
