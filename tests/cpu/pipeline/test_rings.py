"""Rings on the host: the values derived from a TilePipeline's options, and every rule."""

import functools
import re
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import cuda, types
from numba.core.errors import TypingError
from numba.cuda.core.errors import TypingError as CudaTypingError

import numba_tma as tma
from numba_tma import (
    BlockScaledTilePayload,
    Roles,
    StandardTilePayload,
    Threads,
    Tile,
    TilePipeline,
    Warpgroups,
    Warps,
)
from numba_tma.host.layout import Swizzle
from numba_tma.pipeline.multicast import axis_mask
from numba_tma.pipeline.stage_layout import positive
from numba_tma.tools.testing import compile_ptx, instructions
from tests.cpu.backend.test_compiler import hopper_that_loads_nothing
from tests.cpu.device.test_shared import integers
from tests.cpu.pipeline.test_pipeline import operations

A, B, SMALL = Tile((16, 64), "f32"), Tile((8, 64), "f16", Swizzle.B128), Tile(4, "f32")
ROLES = Roles(
    c0=Warpgroups(1), c1=Warps(4), c2=Warps(2), t0=Threads(40), t1=Threads(8), load=Warps()
)
OTHER = Roles(c0=Warps(3), c1=Warps(3), load=Warps(1))
SAME_SIZE = Roles(a=Warps(11), b=Warps(3))  # as many threads as ROLES, cut up otherwise
INTS, COUNTER = types.int32[::1], types.uint32[::1]


def ring(stages=3, **options):
    """Return a ring of one tile a with roles."""
    options = {"a": A, "producer": ROLES.load, "consumer": ROLES.c0, "debug": False} | options
    return TilePipeline(stages, **options)


# ----------------------------------------------------------------------------- payloads


class Pair(NamedTuple):
    a: Tile
    b: Tile


@dataclass(frozen=True)
class Named:
    b: Tile
    a: Tile


@dataclass
class NoTiles:
    pass


def test_a_payload_is_its_tiles_by_name():
    by_name = TilePipeline(2, a=A, b=B)
    assert TilePipeline(2, StandardTilePayload(A, B)) == TilePipeline(2, Pair(A, B)) == by_name
    assert TilePipeline(2, Named(B, A)) == TilePipeline(2, b=B, a=A) != by_name
    scaled = TilePipeline(2, BlockScaledTilePayload(A, B, SMALL, SMALL))
    assert scaled == TilePipeline(2, a=A, b=B, sfa=SMALL, sfb=SMALL)


@pytest.mark.parametrize("payload", [5, A, (A, B), {"a": A}, "a", Pair, StandardTilePayload])
def test_a_payload_that_is_none(payload):
    expected = f"TilePipeline(payload={payload!r}): a payload is a dataclass or a NamedTuple of"
    with pytest.raises(TypeError, match=re.escape(expected)) as caught:
        TilePipeline(2, payload)
    assert "or give tiles by name, as in TilePipeline(4, x=TILE)" in str(caught.value)


def test_a_payload_and_tiles():
    with pytest.raises(TypeError, match="give its tiles as a payload or by name, not both"):
        TilePipeline(2, Pair(A, B), c=A)


@pytest.mark.parametrize("payload", [None, NoTiles()])
def test_no_tiles(payload):
    expected = "TilePipeline(): name at least one tile, as in TilePipeline(4, x=TILE)"
    with pytest.raises(ValueError, match=re.escape(expected)):
        TilePipeline(2, payload)


@pytest.mark.parametrize("tile", [None, 4, "f32", (16, 64), Tile])
def test_what_is_no_tile(tile):
    expected = re.escape(f"TilePipeline(b=...) takes a Tile, not {tile!r}")
    with pytest.raises(TypeError, match=expected):
        TilePipeline(2, a=A, b=tile)
    with pytest.raises(TypeError, match=expected):
        TilePipeline(2, Pair(A, tile))


def test_every_name_that_a_stage_has_is_reserved():
    names = {"slot"}
    for stage in (tma.pipeline.ProducerStage, tma.pipeline.ConsumerStage):
        names |= {n for n in dir(stage) if not n.startswith("_")} | set(stage.__annotations__)
    for name in names:
        with pytest.raises(ValueError, match=f"TilePipeline.{name}=.*the name is reserved for an"):
            TilePipeline(2, k_group=2, **{name: A})


# ------------------------------------------------------------------------------ numbers


@pytest.mark.parametrize("value", [0, -1, 2.0, "2", None])
@pytest.mark.parametrize(
    ("name", "what"),
    [("num_stages", "stage; 2 to 8 are usual"), ("k_group", "tile of each name in a stage")],
)
def test_numbers_of_stages_and_tiles(name, what, value):
    options = {"num_stages": 2, "k_group": 1} | {name: value}
    expected = f"TilePipeline({name}={value!r}): a pipeline has at least 1 {what}"
    with pytest.raises(ValueError, match=re.escape(expected)):
        TilePipeline(options["num_stages"], a=A, k_group=options["k_group"])


@pytest.mark.parametrize("filled_by", ["TMA", "cp.async", None, 0, ()])
def test_what_fills_a_stage(filled_by):
    expected = f"TilePipeline(filled_by={filled_by!r}): one of 'tma', 'cp_async', 'threads'"
    with pytest.raises(ValueError, match=re.escape(expected)):
        ring(filled_by=filled_by)


@pytest.mark.parametrize("debug", [1, "yes", 0])
def test_debug_is_said_or_not(debug):
    expected = f"TilePipeline(debug=...) takes True, False or None, not {debug!r}"
    with pytest.raises(TypeError, match=re.escape(expected)):
        TilePipeline(2, a=A, debug=debug)


TILES = st.builds(
    Tile,
    st.tuples(st.integers(1, 40), st.sampled_from([8, 16, 32])),
    st.sampled_from(["u8", "f16", "f32"]),
).filter(lambda tile: tile.shape[1] * tile.itemsize % 16 == 0) | st.sampled_from([A, B, SMALL])


@given(st.lists(TILES, min_size=1, max_size=4), st.integers(1, 6), st.integers(1, 3), st.booleans())
def test_nothing_overlaps(tiles, stages, k_group, debug):
    named = {f"t{i}": tile for i, tile in enumerate(tiles)}
    pipe = TilePipeline(stages, k_group=k_group, debug=debug, **named)
    used = []
    for name, tile in named.items():
        for slot in range(stages * k_group):
            stride = -(-tile.shared_nbytes // tile.alignment) * tile.alignment
            first = pipe.tile_offset(name) + slot * stride
            assert first % tile.alignment == 0 == pipe.alignment % tile.alignment
            used.append((first, first + tile.shared_nbytes))
    assert max(end for _, end in used) <= pipe.storage_nbytes <= pipe.barriers_offset
    assert pipe.barriers_offset + 8 * pipe.num_barriers == pipe.nbytes
    parts = [(0, 8), (pipe.empty_offset, 8), (pipe.ticket_offset, 4)]
    parts += [(pipe.ledger_offset, 8)] if debug else []
    for offset, size in parts:
        offset += pipe.barriers_offset
        assert offset % size == 0
        used += [(offset + size * i, offset + size * (i + 1)) for i in range(stages)]
    if debug:  # mbarriers for the 8 named barriers that a wait may be for
        first = pipe.barriers_offset + pipe.sync_offset
        used += [(first + 8 * i, first + 8 * i + 8) for i in range(8)]
    used.sort()
    assert used[0][0] == 0 and used[-1][1] <= pipe.nbytes < used[-1][1] + 8
    assert all(end <= start for (_, end), (start, _) in zip(used, used[1:]))
    assert pipe.tx_bytes == k_group * sum(tile.nbytes for tile in tiles)
    assert pipe.slots == stages * k_group


# -------------------------------------------------------------------------------- roles


@pytest.mark.parametrize(
    ("producer", "consumer", "name", "given_"),
    [
        (ROLES.load, None, "consumer", None),
        (None, ROLES.c0, "producer", None),
        (ROLES.load, (), "consumer", ()),
        (ROLES.load, (ROLES.c0, Warps(1)), "consumer", Warps(1)),
        (ROLES.load, [ROLES.c0], "consumer", [ROLES.c0]),
        (Warps(1), ROLES.c0, "producer", Warps(1)),
        ("load", ROLES.c0, "producer", "load"),
        (ROLES, ROLES.c0, "producer", ROLES),
    ],
)
def test_what_is_no_role(producer, consumer, name, given_):
    expected = (
        f"TilePipeline({name}=...) takes a role, as ROLES.load with ROLES = "
        f"Roles(compute=Warps(4), load=Warps(1)), not {given_!r}; name both sides or none"
    )
    with pytest.raises(TypeError, match=re.escape(expected)):
        ring(producer=producer, consumer=consumer)


@pytest.mark.parametrize(
    ("producer", "consumers"),
    [
        (ROLES.load, (ROLES.load,)),
        (ROLES.load, (ROLES.c0, ROLES.c1, ROLES.c0)),
        (ROLES.load, (OTHER.c0,)),
        (ROLES.load, (ROLES.c0, OTHER.c1)),
        (SAME_SIZE.b, (ROLES.c0, ROLES.load)),
        (SAME_SIZE.a, (ROLES.c2,)),
    ],
)
def test_roles_of_one_block(producer, consumers):
    expected = (
        f"TilePipeline: producer {producer} and consumers {list(consumers)} must be different "
        "roles of the same Roles"
    )
    assert ROLES.threads == SAME_SIZE.threads != OTHER.threads
    with pytest.raises(ValueError, match=re.escape(expected)):
        ring(producer=producer, consumer=consumers)


def test_equal_roles_are_the_same():
    again = Roles(**{role.name: role.group for role in ROLES.roles})
    assert ring(consumer=again.c0) == ring()


@pytest.mark.parametrize("consumers", [(ROLES.t0, ROLES.c0), (ROLES.c1, ROLES.t1)])
def test_consumers_arrive_by_thread_or_by_warp(consumers):
    expected = (
        f"TilePipeline: consumers {list(consumers)} arrive partly by thread and partly by warp: "
        "use Threads for all of them or for none"
    )
    with pytest.raises(ValueError, match=re.escape(expected)):
        ring(consumer=consumers)
    assert ring(consumer=(ROLES.t0, ROLES.t1)).empty_arrivals == 48


def test_consumers_that_take_turns():
    with pytest.raises(ValueError, match=r"alternate=True\): name the consumers that take turns"):
        TilePipeline(2, a=A, alternate=True)
    expected = (
        "TilePipeline(alternate=True): consumers that take turns must have equal arrivals, but "
        "these have 4 (c0), 4 (c1), 2 (c2)"
    )
    with pytest.raises(ValueError, match=re.escape(expected)):
        ring(consumer=(ROLES.c0, ROLES.c1, ROLES.c2), alternate=True)
    assert ring(consumer=(ROLES.c0, ROLES.c1), alternate=True).empty_arrivals == 4
    assert ring(consumer=(ROLES.c0, ROLES.c1)).empty_arrivals == 8


GROUPS = [Threads(1), Threads(40), Warps(1), Warps(3), Warpgroups(1), Warpgroups(2)]
ARRIVALS = {str(group): n for group, n in zip(GROUPS, (1, 40, 1, 3, 4, 8))}


@pytest.mark.parametrize("filled_by", ["tma", "cp_async", "threads"])
@pytest.mark.parametrize("load", GROUPS, ids=str)
def test_arrivals_follow_from_the_groups(filled_by, load):
    for group in GROUPS:
        roles = Roles(load=load, work=group, more=group)
        one = TilePipeline(2, a=A, producer=roles.load, consumer=roles.work, filled_by=filled_by)
        two = TilePipeline(
            2, a=A, producer=roles.load, consumer=(roles.work, roles.more), filled_by=filled_by
        )
        full = {"tma": 1, "cp_async": load.members, "threads": ARRIVALS[str(load)]}[filled_by]
        assert one.full_arrivals == two.full_arrivals == full
        assert (one.empty_arrivals, two.empty_arrivals) == (
            ARRIVALS[str(group)],
            2 * ARRIVALS[str(group)],
        )
        assert one.block == two.block == roles.threads
        assert one.each_thread_releases is (type(group) is Threads)
        assert one.each_thread_commits is (type(load) is Threads)
        assert one.one_warp_produces is (load.threads == 32)


@pytest.mark.parametrize(("filled_by", "full"), [("tma", 1), ("cp_async", 32), ("threads", 1)])
def test_arrivals_of_a_block_without_roles(filled_by, full):
    pipe = TilePipeline(2, a=A, filled_by=filled_by)
    assert (pipe.full_arrivals, pipe.empty_arrivals, pipe.block) == (full, 0, 0)
    assert pipe.one_warp_produces and not pipe.each_thread_releases and not pipe.each_thread_commits


# ---------------------------------------------------------------------- clusters


@pytest.mark.parametrize(
    ("cluster", "multicast", "peers"),
    [
        ((1, 1), None, 1),
        ((2, 1), None, 1),
        (2, {"a": "x"}, 2),
        ((2, 1), {"a": "x"}, 2),
        ((2, 1), {"a": "x", "b": "x"}, 2),
        ((2, 1), {"a": "x", "b": "y"}, 2),
        ((1, 2), {"a": "y"}, 2),
        ((2, 2), {"a": "x"}, 2),
        ((2, 2), {"a": "x", "b": "y"}, 3),
        ((4, 2), {"a": "x", "b": "y"}, 5),
        ((8, 1), {"b": "x"}, 8),
    ],
)
def test_the_blocks_that_load_into_a_stage(cluster, multicast, peers):
    pipe = ring(b=B, cluster=cluster, multicast=multicast, consumer=(ROLES.c0, ROLES.c2))
    assert pipe.num_peers == peers and pipe.in_cluster is (peers > 1)
    assert pipe.empty_arrivals == 6 * peers and pipe.full_arrivals == 1
    assert pipe.tx_bytes == A.nbytes + B.nbytes  # whoever sends them


@pytest.mark.parametrize("multicast", [{"z": "x"}, {"a": "z"}, {"a": 0}, {"a": "x", "c": "y"}])
def test_what_is_shared_and_along_which_axis(multicast):
    expected = (
        f"TilePipeline(multicast={multicast}): a key is the name of a tile (a, b), its value the "
        "axis of the cluster along which blocks share the tile, 'x' or 'y'"
    )
    with pytest.raises(ValueError, match=re.escape(expected)):
        ring(b=B, cluster=(2, 2), multicast=multicast)


@pytest.mark.parametrize("multicast", ["a", ["a"], ("a", "x"), 1])
def test_multicast_is_said_by_name(multicast):
    expected = f"TilePipeline(multicast={multicast!r}): give a dict of shared tiles and their axes"
    with pytest.raises(TypeError, match=re.escape(expected)):
        ring(cluster=2, multicast=multicast)


@pytest.mark.parametrize(
    ("cluster", "axis", "shown"), [(1, "x", (1, 1)), ((2, 1), "y", (2, 1)), ((1, 4), "x", (1, 4))]
)
def test_one_block_along_the_axis(cluster, axis, shown):
    expected = (
        f"TilePipeline(cluster={shown}, multicast={{'a': '{axis}'}}): the cluster has only one "
        "block along the axis; give the kernel's cluster"
    )
    with pytest.raises(ValueError, match=re.escape(expected)):
        ring(cluster=cluster, multicast={"a": axis})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"filled_by": "cp_async"},
            "(filled_by='cp_async', multicast={'a': 'x'}): only copies of the copy engine can be",
        ),
        (
            {"filled_by": "threads"},
            "(filled_by='threads', multicast={'a': 'x'}): only copies of the copy engine can be",
        ),
        (
            {"consumer": ROLES.t0},
            "(multicast={'a': 'x'}): consumers in a cluster arrive by warp; use Warps or Warpgroups"
            " instead of Threads",
        ),
        (
            {"producer": None, "consumer": None},
            "(multicast={'a': 'x'}): the barriers count arrivals of other blocks' roles, so name "
            "producer and consumer roles",
        ),
    ],
)
def test_what_cannot_be_multicast(options, text):
    with pytest.raises(ValueError, match=re.escape(f"TilePipeline{text}")):
        ring(cluster=2, multicast={"a": "x"}, **options)


@pytest.mark.parametrize(
    ("cluster", "text"),
    [
        ((1, 1, 2), "TilePipeline(cluster=(1, 1, 2)): blocks share tiles along x and y"),
        ((0, 1), "TilePipeline(cluster=(0, 1)): there is at least 1 block along each axis"),
        ((4, 4), "TilePipeline(cluster=(4, 4)): 16 blocks are more than the 8"),
        ("xy", "TilePipeline(cluster='xy'): the size is an integer or a tuple of 1 to 3 integers"),
    ],
)
def test_sizes_of_a_cluster(cluster, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        ring(cluster=cluster)


CLUSTERS = [(w, h) for w in range(1, 9) for h in range(1, 9) if w * h <= 8]


@pytest.mark.parametrize(("width", "height"), CLUSTERS)
def test_the_blocks_along_an_axis(width, height):
    """Ranks as the hardware numbers them: x first."""
    blocks = [(x, y) for y in range(height) for x in range(width)]
    for x, y in blocks:
        for axis, other, own in (("x", 1, y), ("y", 0, x)):
            model = sum(1 << rank for rank, block in enumerate(blocks) if block[other] == own)
            assert axis_mask((width, height), axis, x, y) == model
        for shared in ("x", "y", "xy"):
            if any({"x": width, "y": height}[axis] > 1 for axis in shared):
                pipe = ring(b=B, cluster=(width, height), multicast=dict(zip("ab", shared)))
                union = 0
                for axis in shared:
                    union |= axis_mask((width, height), axis, x, y)
                assert pipe.num_peers == union.bit_count()


# ------------------------------------------------------------------------------- repr


@pytest.mark.parametrize(
    ("pipe", "shown"),
    [
        (TilePipeline(3, a=SMALL, debug=False), ""),
        (TilePipeline(3, a=SMALL, k_group=2, debug=False), ", k_group=2"),
        (TilePipeline(3, a=SMALL, filled_by="threads", debug=False), ", filled_by='threads'"),
        (TilePipeline(3, a=SMALL, debug=True), ", debug=True"),
        (
            ring(a=SMALL, consumer=(ROLES.c0, ROLES.c1), alternate=True),
            ", producer=load=Warps(1), consumers=(c0=Warpgroups(1), c1=Warps(4)), alternate=True",
        ),
        (
            ring(a=SMALL, cluster=(2, 1), multicast={"a": "x"}),
            ", producer=load=Warps(1), consumers=(c0=Warpgroups(1),), cluster=(2, 1), "
            "multicast=(('a', 'x'),)",
        ),
    ],
)
def test_it_shows_what_differs_from_the_default(pipe, shown):
    assert repr(pipe) == f"TilePipeline(3, a={SMALL}{shown})"


# ------------------------------------------------------------------- started in kernels

PIPE = TilePipeline(3, a=A, b=B, debug=False)
GROUPED = TilePipeline(3, a=A, b=B, k_group=2, debug=False)
BY_COPIES = TilePipeline(3, a=A, filled_by="cp_async", debug=False)
TURNS = ring(consumer=(ROLES.c0, ROLES.c1), alternate=True)
SHARED = ring(b=B, cluster=(2, 2), multicast={"a": "x"})
ENOUGH, TOO_SHORT = Tile((15, 8, 128), "u8", Swizzle.B128), Tile((14, 8, 128), "u8", Swizzle.B128)
UNALIGNED = Tile(PIPE.storage_nbytes, "u8")
NUMBER = PIPE.num_barriers


def message(kernel, *arguments):
    """Return what the compiler says, on one line."""
    with pytest.raises((TypingError, CudaTypingError)) as caught:
        compile_ptx(kernel, arguments)
    return re.sub(r"\s+", " ", str(caught.value))


def in_memory_of_the_users(tiles, barriers):
    PIPE.start(tiles=tiles, barriers=barriers)


def in_tiles_of_the_users(out):
    PIPE.start(tma.shared_tile(ENOUGH), tma.shared_barriers(NUMBER))


def at_literal_addresses(out):
    PIPE.start(tiles=2048, barriers=1024, sync=False)


def in_a_short_tile(out):
    PIPE.start(tiles=tma.shared_tile(TOO_SHORT))


def in_an_unaligned_tile(out):
    PIPE.start(tiles=tma.shared_tile(UNALIGNED))


def in_an_array(out):
    PIPE.start(tiles=out)


def at_a_fraction(out):
    PIPE.start(tiles=1024.5)


def at_an_unaligned_address(out):
    PIPE.start(tiles=512)


def few_barriers(out):
    PIPE.start(barriers=tma.shared_barriers(2))


def an_array_for_barriers(out):
    PIPE.start(barriers=out)


def barriers_at_an_unaligned_address(out):
    PIPE.start(barriers=1028)


def a_sync_at_run_time(out):
    PIPE.start(sync=out[0] > 0)


@pytest.mark.parametrize("integer", [types.int32, types.uint64])
def test_rings_start_at_addresses(integer):
    body = instructions(compile_ptx(in_memory_of_the_users, (integer, integer)))
    held = integers(body, {"param_0": np.array(4096), "param_1": np.array(512)})
    inits = [re.findall(r"%r\d+", line) for line in body if line.startswith("mbarrier.init")]
    bases = [int(held[address]) for address, _ in inits]
    offsets = [
        int(n) for n in re.findall(r"mbarrier.init\S* \[%r\d+\+?(\d*)\]", " ".join(body)) if n
    ]
    assert len(inits) == 2 * PIPE.num_stages and not offsets
    assert sorted(bases) == [512 + 8 * i for i in range(2 * PIPE.num_stages)]


@pytest.mark.parametrize(
    ("kernel", "bars"), [(in_tiles_of_the_users, 1), (at_literal_addresses, 0)]
)
def test_rings_start_in_memory_that_is_enough(kernel, bars):
    body = instructions(compile_ptx(kernel, (INTS,)))
    assert sum(line.startswith("mbarrier.init") for line in body) == 2 * PIPE.num_stages
    assert sum(line.startswith("bar.sync") for line in body) == bars


NEEDS = "but the pipeline needs 15,360 B at a multiple of 1024"


@pytest.mark.parametrize(
    ("kernel", "text"),
    [
        (
            in_a_short_tile,
            f"start(tiles={TOO_SHORT}): it has 14,336 B at a multiple of 1024, {NEEDS}",
        ),
        (
            in_an_unaligned_tile,
            f"start(tiles={UNALIGNED}): it has 15,360 B at a multiple of 128, {NEEDS}",
        ),
        (
            in_an_array,
            "start(tiles=...) takes an address, a SharedTile or a BarrierArray, not Array(",
        ),
        (
            at_a_fraction,
            "start(tiles=...) takes an address, a SharedTile or a BarrierArray, not float64",
        ),
        (at_an_unaligned_address, "start(tiles=0x200): the address must be a multiple of 1024"),
        (
            few_barriers,
            "start(barriers=2 barriers): it has 16 B at a multiple of 8, but the pipeline needs "
            f"{8 * NUMBER} B at a multiple of 8",
        ),
        (an_array_for_barriers, "start(barriers=...) takes an address, a SharedTile or a Barr"),
        (
            barriers_at_an_unaligned_address,
            "start(barriers=0x404): the address must be a multiple of 8",
        ),
        (
            a_sync_at_run_time,
            "start(sync=...) must be a compile-time constant, but its type is bool",
        ),
    ],
)
def test_memory_that_is_not_enough(kernel, text):
    assert text in message(kernel, INTS)


# ------------------------------------------------------------------------------ stages


def tile_2(out):
    GROUPED.start().consumer().wait().tile(2)


def tile_minus_1(out):
    GROUPED.start().producer().acquire().tile(-1)


def get_tile_1(out):
    PIPE.start().consumer().wait().get_tile(1)


def tile_one_and_a_half(out):
    GROUPED.start().consumer().wait().tile(1.5)


def one_of_several(out):
    out[0] = GROUPED.start().consumer().wait().b[0, 0]


def wrong_bytes(out):
    PIPE.start().producer().acquire().expect_bytes(4096)


def wrong_bytes_of_several(out):
    GROUPED.start().producer().acquire().expect_bytes(5120)


def text_for_bytes(out):
    PIPE.start().producer().acquire().expect_bytes("all")


def bytes_at_run_time(out):
    PIPE.start().producer().acquire().expect_bytes(out[0])


def bytes_of_a_full_stage(out):
    PIPE.start().consumer().wait().expect_bytes(5120)


def another_tile(out):
    out[0] = PIPE.start().consumer().wait().c[0, 0]


def consume_in_turns(out):
    for _ in TURNS.start().consume(0, 4):
        pass


def consume_from_in_turns(out):
    for _ in TURNS.start().consume_from():
        pass


def three_in_flight(out):
    for _ in PIPE.start().consume(0, 4, in_flight=3):
        pass


def fewer_than_none_in_flight(out):
    for _ in PIPE.start().consume(0, 4, in_flight=-1):
        pass


def flight_at_run_time(out):
    for _ in PIPE.start().consume(0, 4, in_flight=out[0]):
        pass


def copies_from_a_queue(out):
    for _ in BY_COPIES.start().produce_from(tma.TileQueue(out, 4)):
        pass


def copies_for_a_drawn_tile(out):
    BY_COPIES.start().producer().acquire_for(3)


@tma.cluster((2, 2))
def clusters_from_a_queue(out):
    for _ in SHARED.start().produce_from(tma.TileQueue(out, 4)):
        pass


@tma.cluster((2, 2))
def group_of_b(out):
    SHARED.start().multicast_group("b")


def group_of_none(out):
    PIPE.start().multicast_group("a")


@tma.cluster((2, 2))
def group_at_run_time(out):
    SHARED.start().multicast_group(out[0])


def no_cluster(out):
    SHARED.start()


@tma.cluster((4, 1))
def another_cluster(out):
    SHARED.start()


@pytest.mark.parametrize(
    ("kernel", "text"),
    [
        (tile_2, "stage.tile(2): the stage holds the tiles 0 to 1"),
        (tile_minus_1, "stage.tile(-1): the stage holds the tiles 0 to 1"),
        (get_tile_1, "stage.tile(1): the stage holds the tiles 0 to 0"),
        (tile_one_and_a_half, "stage.tile(j): j is an integer, not float64"),
        (
            one_of_several,
            f"stage.b: a stage of {GROUPED} holds 2 tiles of each name; say which, as in "
            "stage.tile(j).b",
        ),
        (another_tile, "has no tile 'c'"),
        (
            wrong_bytes,
            f"expect_bytes(4,096): a stage of {PIPE} receives 4,096 (a) + 1,024 (b) = 5,120 B, "
            "which it expects by itself; leave the call out, or correct the number",
        ),
        (
            wrong_bytes_of_several,
            f"expect_bytes(5,120): a stage of {GROUPED} receives 2 x (4,096 (a) + 1,024 (b)) = "
            "10,240 B, which it expects by itself",
        ),
        (text_for_bytes, "expect_bytes('all'): a stage of"),
        (bytes_at_run_time, "expect_bytes(tx_bytes=...) must be a compile-time constant"),
        (bytes_of_a_full_stage, "has no tile 'expect_bytes'"),
        (
            consume_in_turns,
            f"consume: the consumers of {TURNS} take turns, which loops do not support: use the "
            "explicit form, pipe.consumer() with skip, wait and release",
        ),
        (consume_from_in_turns, f"consume: the consumers of {TURNS} take turns, which loops"),
        (
            three_in_flight,
            "consume(in_flight=3): with 3 stages at most 2 can be held back while the next is "
            "filled; lower in_flight or add stages",
        ),
        (fewer_than_none_in_flight, "consume(in_flight=-1): with 3 stages at most 2 can be held"),
        (flight_at_run_time, "must be a compile-time constant"),
        (
            copies_from_a_queue,
            "produce_from: one thread, which starts all copies for its own block, draws a "
            f"TileQueue's tiles; {BY_COPIES} has another producer: use produce(first, stop, step)",
        ),
        (
            copies_for_a_drawn_tile,
            "acquire_for: one thread, which starts all copies for its own block, draws a "
            f"TileQueue's tiles; {BY_COPIES} has another producer: use acquire()",
        ),
        (clusters_from_a_queue, f"{SHARED} has another producer: use produce(first, stop, step)"),
        (
            group_of_b,
            f"multicast_group('b'): {SHARED} shares a; say so with cluster=... and "
            "multicast={name: 'x' or 'y'}",
        ),
        (group_of_none, f"multicast_group('a'): {PIPE} shares no tile; say so with cluster=..."),
        (group_at_run_time, "multicast_group(name=...) must be a compile-time constant"),
        (
            no_cluster,
            f"{SHARED} is for clusters of (2, 2), but the kernel runs in clusters of (1, 1, 1): "
            "put @tma.cluster((2, 2)) below @cuda.jit",
        ),
        (
            another_cluster,
            f"{SHARED} is for clusters of (2, 2), but the kernel runs in clusters of (4, 1, 1)",
        ),
    ],
)
def test_what_a_kernel_is_told(kernel, text):
    assert text in message(kernel, COUNTER)


def right_bytes(out):
    PIPE.start().producer().acquire().expect_bytes(5120)


def no_word_of_bytes(out):
    PIPE.start().producer().acquire()


def test_the_right_bytes_cost_nothing():
    texts = (compile_ptx(kernel, (INTS,)) for kernel in (right_bytes, no_word_of_bytes))
    # The ring is named after its kernel.
    said, unsaid = (re.sub("(numba_tma_ring)_[0-9a-f]+", r"\1", text) for text in texts)
    assert instructions(said) == instructions(unsaid)
    assert operations(instructions(said), "expect_tx") == [
        ("expect_tx", PIPE.barriers_offset, 5120)
    ]


@pytest.mark.parametrize(
    "pipe",
    [
        ring(filled_by="cp_async", producer=ROLES.c0, consumer=(ROLES.c1, ROLES.c2)),
        ring(filled_by="threads", producer=ROLES.t0, consumer=ROLES.load),
        TURNS,
        PIPE,
    ],
    ids=str,
)
def test_the_arrivals_are_those_that_the_barriers_get(pipe):
    def kernel(out):
        pipe.start()

    counts = {}
    for _, address, count in operations(
        instructions(compile_ptx(kernel, (INTS,))), "mbarrier.init"
    ):
        counts.setdefault((address - pipe.barriers_offset) // 8 < 3, set()).add(count)
    empty = pipe.empty_arrivals or None  # None: a launch's warps but one
    assert counts == {True: {pipe.full_arrivals}, False: {empty}}


@pytest.mark.parametrize("cluster", [(4, 1), (2, 4)])
def test_groups_in_a_kernel_are_those_on_the_host(cluster):
    axes = [axis for axis, blocks in zip("xy", cluster) if blocks > 1]
    pipe = ring(b=B, cluster=cluster, multicast=dict(zip("ab", axes)))
    last = "ab"[len(axes) - 1]

    @tma.cluster(cluster)
    def kernel(out):
        group = pipe.start().multicast_group("a")
        out[0], out[1] = group.mask, group.rank

    @tma.cluster(cluster)
    def kernel_of_last(out):
        group = pipe.start().multicast_group(last)
        out[0], out[1] = group.mask, group.rank

    for function, axis in ((kernel, axes[0]), (kernel_of_last, axes[-1])):
        body = instructions(compile_ptx(function, (COUNTER,)))
        stores = [line for line in body if line.startswith("st.global.u32")]
        where = {"+4]" in line: line.split()[-1] for line in stores}
        for x in range(cluster[0]):
            for y in range(cluster[1]):
                position = {"%cluster_ctaid.x": np.array(x), "%cluster_ctaid.y": np.array(y)}
                held = integers(body, position)
                assert held[where[False]] == axis_mask(cluster, axis, x, y)
                assert held[where[True]] == (x if axis == "x" else y)


# ------------------------------------------------------------------------------ launches


def starts_with_roles(out):
    TURNS.start()


def starts_without(out):
    PIPE.start()


@functools.cache
def launchable(kernel):
    with hopper_that_loads_nothing():
        return cuda.jit(kernel).compile((INTS,))


@pytest.mark.parametrize(
    ("kernel", "block", "text"),
    [
        *(
            (
                starts_with_roles,
                block,
                f"the roles of the kernel's pipeline have {ROLES.threads} threads, in one "
                f"dimension: launch blocks of {ROLES.threads}, which Roles.threads says",
            )
            for block in [(ROLES.threads - 32, 1, 1), (ROLES.threads, 2, 1), (32, 15, 1)]
        ),
        *(
            (
                starts_without,
                block,
                "a kernel with a TilePipeline has one-dimensional blocks of whole warps, the last "
                "of which produces and the others consume: use 64, 96, 128, ... 1024 threads",
            )
            for block in [(32, 1, 1), (100, 1, 1), (64, 2, 1), (64, 1, 2)]
        ),
    ],
)
def test_blocks_that_are_refused(kernel, block, text):
    with pytest.raises(ValueError, match=re.escape(f"block {block}: {text}")):
        launchable(kernel).launch((), (1, 1, 1), block)


@pytest.mark.parametrize("number", [1, 2, 227 * 128, np.int64(7)])
def test_a_block_has_room_for_some_stages(number):
    assert positive("Pipe", "num_stages", number) == number


@pytest.mark.parametrize("number", [0, -1, 1.5, "2", None])
def test_a_number_of_stages_is_at_least_1(number):
    with pytest.raises(ValueError) as caught:
        positive("Pipe", "num_stages", number)
    assert str(caught.value) == f"Pipe(num_stages={number!r}): an integer of at least 1"


@pytest.mark.parametrize("number", [227 * 128 + 1, 2**40])
def test_more_stages_than_a_block_has_barriers(number):
    with pytest.raises(ValueError, match=rf"^Pipe\(num_stages={number}\): .* for 29,056 barriers"):
        positive("Pipe", "num_stages", number)
