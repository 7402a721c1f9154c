"""Circular buffers in the simulator: every form of loop against NumPy, and errors."""

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import simulator as sim
from numba_tma.host.layout import Tile
from numba_tma.pipeline import circular
from numba_tma.pipeline.circular_handle import CircularBufferHandle as Ring
from tests.tiers import every

ROWS, COLUMNS = 4, 16
TILE = Tile((ROWS, COLUMNS), "f32")
OTHER = Tile((ROWS, COLUMNS), "i32")


def array(tiles, dtype=np.float32):
    values = np.random.default_rng(tiles).integers(1, 1000, (max(1, tiles) * ROWS, COLUMNS))
    return values.astype(dtype)


def double_kernel(buffer, in_flight=0):
    """Return the kernel that doubles a matrix, tile by tile."""

    @cuda.jit
    def double(x, out, first, tiles):
        ring = buffer.start()
        for tile, stage in ring.tiles(cuda.blockIdx.x + first, tiles, cuda.gridDim.x, in_flight):
            for ahead, slot in ring.loads():
                x.load(slot.x, (ahead * ROWS, 0), slot.barrier)
            full = stage.wait()
            for i in range(ring.thread(), TILE.size, ring.num_threads()):
                at = i // COLUMNS, i % COLUMNS
                out[tile * ROWS + at[0], at[1]] = 2 * full.x[at]
        ring.close()

    return double


def check_double(buffer, tiles, *, grid=1, threads=64, seed=0, first=0, in_flight=0):
    sim.seed(seed)
    x = array(tiles)
    out = np.zeros_like(x)
    double_kernel(buffer, in_flight)[grid, threads](tma.tensor_map(x, TILE), out, first, tiles)
    expected = np.zeros_like(x)
    expected[first * ROWS : tiles * ROWS] = 2 * x[first * ROWS : tiles * ROWS]
    np.testing.assert_array_equal(out, expected)


PAIRS = [(stages, prefetch) for stages in range(1, 5) for prefetch in range(stages)]


@pytest.mark.parametrize("war", ["sync", "mbarrier"])
@pytest.mark.parametrize(("stages", "prefetch"), every(3, [*PAIRS, (8, 0), (8, 5), (8, 7)]))
def test_every_prefetch_distance_and_any_number_of_tiles(stages, prefetch, war):
    buffer = tma.CircularBuffer(stages, prefetch, war=war, x=TILE)
    for tiles in sorted({0, 1, stages - 1, stages, 2 * stages + 1}):
        check_double(buffer, tiles, threads=64 if tiles > stages else 32, seed=stages + tiles)


@pytest.mark.parametrize("war", ["sync", "mbarrier"])
def test_under_many_seeds(war):
    for prefetch in (0, 1, 2):
        buffer = tma.CircularBuffer(3, prefetch, war=war, x=TILE)
        for seed in range(3):
            check_double(buffer, 7, seed=seed)


@pytest.mark.parametrize(("grid", "threads", "first"), [(1, 32, 3), (3, 64, 0), (9, 32, 1)])
def test_blocks_share_the_tiles(grid, threads, first):
    check_double(tma.CircularBuffer(2, x=TILE), 7, grid=grid, threads=threads, first=first)


def test_the_loads_are_started_ahead_by_one_thread():
    """The prologue loads prefetch + 1 tiles, the body one each, the epilogue none."""
    stages, prefetch, tiles = 4, 2, 7
    buffer = tma.CircularBuffer(stages, prefetch, x=TILE)
    with sim.record() as trace:
        check_double(buffer, tiles)
    issued = waited = 0
    loaders = set()
    for event in trace.events:
        if event.kind == "issue":
            loaders.add(event.thread)
            assert issued <= waited + prefetch
            issued += 1
        elif event.kind == "wait" and event.thread == (0, 0, 0) and event.label.startswith("full"):
            assert issued == min(waited + prefetch + 1, tiles)
            assert event.label.startswith(f"full[{waited % stages}]")
            waited += 1
    assert (issued, waited) == (tiles, tiles) and loaders == {(0, 0, 0)}


# ------------------------------------------------------------------ several tiles a stage


def dot_kernel(buffer):
    each = buffer.barriers == "each"

    @cuda.jit
    def dot(x, y, out, tiles):
        ring = buffer.start()
        for tile, stage in ring.tiles(0, tiles):
            for ahead, slot in ring.loads():
                y.load(slot.y, (ahead * ROWS, 0), slot.barrier_of("y"))
                x.load(slot.x, (ahead * ROWS, 0), slot.barrier_of("x"))
            if each:
                x_tile, y_tile = stage.wait("x"), stage.wait("y")
            else:
                full = stage.wait()
                x_tile, y_tile = full.x, full.y
            i = ring.thread()
            at = i // COLUMNS, i % COLUMNS
            out[tile * ROWS + at[0], at[1]] = x_tile[at] * y_tile[at]
        ring.close()

    return dot


@pytest.mark.parametrize("war", ["sync", "mbarrier"])
@pytest.mark.parametrize("barriers", ["one", "each"])
def test_two_tiles_of_a_stage_with_one_barrier_or_two(barriers, war):
    for stages, prefetch in ((1, 0), (3, 1), (3, 2)):
        buffer = tma.CircularBuffer(stages, prefetch, war=war, barriers=barriers, x=TILE, y=OTHER)
        x, y = array(7), array(7, np.int32)[::-1].copy()
        out = np.zeros_like(x)
        dot_kernel(buffer)[1, 64](tma.tensor_map(x, TILE), tma.tensor_map(y, OTHER), out, 7)
        np.testing.assert_array_equal(out, x * y)


def test_work_on_the_first_tile_begins_before_the_second_has_come():
    buffer = tma.CircularBuffer(2, 1, barriers="each", x=TILE, y=TILE)
    began = []

    @cuda.jit
    def kernel(x):
        ring = buffer.start()
        for _, stage in ring.tiles(0, 3):
            for ahead, slot in ring.loads():
                x.load(slot.x, (ahead * ROWS, 0), slot.barrier_of("x"))
                x.load(slot.y, (ahead * ROWS, 0), slot.barrier_of("y"))
            first = stage.wait("x")
            if ring.thread() == 0:
                began.append(
                    not tma.Barrier(ring.barriers + 16 + 8 * stage.index).test_wait(
                        ring.state.phase
                    )
                )
            assert first[0, 0] == stage.wait().y[0, 0]
        ring.close()

    for seed in range(8):
        sim.seed(seed)
        kernel[1, 32](tma.tensor_map(array(3), TILE))
    assert any(began), "y was always there before x"


def test_a_stage_that_is_waited_for_in_part_is_handed_back_when_it_is_full():
    buffer = tma.CircularBuffer(2, 1, war="mbarrier", barriers="each", x=TILE, y=TILE)

    @cuda.jit
    def kernel(x, out):
        ring = buffer.start()
        for tile, stage in ring.tiles(0, 7):
            for ahead, slot in ring.loads():
                x.load(slot.x, (ahead * ROWS, 0), slot.barrier_of("x"))
                x.load(slot.y, (ahead * ROWS, 0), slot.barrier_of("y"))
            if tile % 3 == 2:
                continue  # of which nothing is waited for
            out[tile] = stage.wait("y" if tile % 3 else "x")[0, 0]
        ring.close()

    x = array(7)
    for seed in range(3):
        sim.seed(seed)
        out = np.zeros(7, np.float32)
        kernel[1, 64](tma.tensor_map(x, TILE), out)
        np.testing.assert_array_equal(out, np.where(np.arange(7) % 3 == 2, 0, x[::ROWS, 0]))


# -------------------------------------------------------------------- loops and their ends


def visits_kernel(buffer, leave, in_flight=0):
    """Return the kernel that walks over groups of tiles, each as `leave` says."""

    @cuda.jit
    def visits(x, out, groups, length):
        ring = buffer.start()
        for group in range(groups):
            first = group * length
            for tile, stage in ring.tiles(first, first + length, 1, in_flight):
                if leave == "break before the loads" and tile == first + 2:
                    break
                if leave == "continue before the loads" and tile % 2 == group % 2:
                    continue
                for ahead, slot in ring.loads():
                    x.load(slot.x, (ahead * ROWS, 0), slot.barrier)
                if leave == "break before the wait" and tile == first + 2:
                    break
                if ring.thread() == 0:
                    out[tile] = stage.wait().x[0, 0]
                if leave == "break" and tile == first + 2:
                    break
        ring.close()

    return visits


@pytest.mark.parametrize("war", ["sync", "mbarrier"])
@pytest.mark.parametrize(
    "leave",
    [
        *("no", "break", "break before the wait", "break before the loads"),
        "continue before the loads",
    ],
)
def test_loops_follow_each_other_however_they_were_left(leave, war):
    groups, length = 3, 4
    x = array(groups * length)
    visited = np.ones((groups, length), bool)
    if leave.startswith("break"):
        visited[:, 2 + (leave == "break") :] = False
    if leave.startswith("continue"):
        # Tiles that were loaded before the iteration are there all the same, but not worked on.
        parity = np.arange(groups * length).reshape(groups, -1) % 2
        visited = parity != np.arange(groups)[:, None] % 2
    expected = np.where(visited.ravel(), x[::ROWS, 0], 0)
    for stages, prefetch in PAIRS[1:6:2] + [(1, 0)]:
        in_flight = (stages - prefetch - 1) * (war == "mbarrier")
        buffer = tma.CircularBuffer(stages, prefetch, war=war, x=TILE)
        out = np.zeros(groups * length, np.float32)
        sim.seed(stages)
        kernel = visits_kernel(buffer, leave, in_flight)
        kernel[1, 64](tma.tensor_map(x, TILE), out, groups, length)
        np.testing.assert_array_equal(out, expected)


def test_the_barriers_are_invalid_after_the_end_and_their_memory_serves_again():
    buffer = tma.CircularBuffer(2, 1, war="mbarrier", x=TILE)
    memory = Tile((2 * ROWS, COLUMNS), "f32")

    @cuda.jit
    def kernel(x, out):
        tiles, barriers = tma.shared_tile(memory), tma.shared_barriers(4)
        for turn in range(2):
            ring = buffer.start(tiles, barriers)
            for tile, stage in ring.tiles(0, 5):
                for ahead, slot in ring.loads():
                    x.load(slot.x, (ahead * ROWS, 0), slot.barrier)
                out[turn, tile] = stage.wait().x[1, 3]
            ring.close()
            cuda.syncthreads()

    x, out = array(5), np.zeros((2, 5), np.float32)
    kernel[1, 64](tma.tensor_map(x, TILE), out)
    np.testing.assert_array_equal(out, [x[1::ROWS, 3]] * 2)


def test_a_role_does_it_while_another_does_something_else():
    roles = tma.Roles(other=tma.Warps(1), compute=tma.Warps(2))
    for war in ("sync", "mbarrier"):
        buffer = tma.CircularBuffer(2, war=war, role=roles.compute, x=TILE)

        @cuda.jit
        def kernel(x, out, buffer=buffer):
            ring = buffer.start()
            if roles.compute.is_member():
                for tile, stage in ring.tiles(0, 5):
                    for ahead, slot in ring.loads():
                        x.load(slot.x, (ahead * ROWS, 0), slot.barrier)
                    full = stage.wait()
                    assert ring.num_threads() == TILE.size
                    row, column = ring.thread() // COLUMNS, ring.thread() % COLUMNS
                    out[ROWS * tile + row, column] = full.x[row, column]
                ring.close()

        x = array(5)
        out = np.zeros_like(x)
        kernel[1, roles.threads](tma.tensor_map(x, TILE), out)
        np.testing.assert_array_equal(out, x)


@pytest.mark.parametrize("war", ["sync", "mbarrier"])
def test_a_role_meets_while_the_block_waits_in_a_buffer(war):
    """The block meets at a barrier that no role has."""
    roles = tma.Roles(first=tma.Warps(1), second=tma.Warps(1), third=tma.Warps(1))
    buffer = tma.CircularBuffer(2, war=war, x=TILE)
    for early in roles.roles:

        @cuda.jit
        def kernel(x, out, early=early):
            ring = buffer.start()
            for tile, stage in ring.tiles(0, 3):
                for ahead, slot in ring.loads():
                    x.load(slot.x, (ahead * ROWS, 0), slot.barrier)
                out[tile, ring.thread()] = stage.wait().x[0, ring.thread() % COLUMNS]
                if early.is_member():
                    early.sync()
                ring.sync()
            ring.close()

        x, out = array(3), np.zeros((3, roles.threads), np.float32)
        kernel[1, roles.threads](tma.tensor_map(x, TILE), out)
        np.testing.assert_array_equal(out, np.tile(x[::ROWS], roles.threads // COLUMNS))


# ---------------------------------------------------------------------------- in flight


def look_back_kernel(buffer, in_flight, depth):
    @cuda.jit
    def look_back(x, tiles):
        ring = buffer.start()
        older = []
        for tile, stage in ring.tiles(0, tiles, 1, in_flight):
            for ahead, slot in ring.loads():
                x.load(slot.x, (ahead * ROWS, 0), slot.barrier)
            older = [*older, (tile, stage.wait())][-1 - depth :]
            for t, full in older:
                assert full.x[0, ring.thread() % COLUMNS] == t
        ring.release_pending()
        ring.close()

    return look_back


@pytest.mark.parametrize("war", ["sync", "mbarrier"])
@pytest.mark.parametrize(("stages", "prefetch"), [(2, 0), (3, 0), (3, 1), (4, 1)])
def test_stages_in_flight_stay_as_they_are_and_no_more(stages, prefetch, war):
    buffer = tma.CircularBuffer(stages, prefetch, war=war, x=TILE)
    in_flight = buffer.in_flight
    assert in_flight == stages - prefetch - 1
    x = np.repeat(np.arange(9, dtype=np.float32), ROWS)[:, None] * np.ones(COLUMNS, np.float32)
    for seed in range(2):
        sim.seed(seed)
        look_back_kernel(buffer, in_flight, in_flight)[1, 64](tma.tensor_map(x, TILE), 9)
    with pytest.raises((sim.EarlyRead, sim.EarlyOverwrite, AssertionError)):
        look_back_kernel(buffer, in_flight, in_flight + 1)[1, 64](tma.tensor_map(x, TILE), 9)


@pytest.mark.parametrize("war", ["sync", "mbarrier"])
def test_what_is_written_to_a_stage_is_fenced_before_it_is_loaded_again(war):
    buffer = tma.CircularBuffer(2, 1, war=war, x=TILE)

    @cuda.jit
    def kernel(x, out):
        ring = buffer.start()
        for tile, stage in ring.tiles(0, 7):
            for ahead, slot in ring.loads():
                x.load(slot.x, (ahead * ROWS, 0), slot.barrier)
            full = stage.wait()
            for i in range(ring.thread(), TILE.size, ring.num_threads()):
                at = i // COLUMNS, i % COLUMNS
                full.x[at] *= 3
                out[tile * ROWS + at[0], at[1]] = full.x[at]
        ring.close()

    x = array(7)
    for seed in range(4):
        sim.seed(seed)
        out = np.zeros_like(x)
        kernel[1, 32](tma.tensor_map(x, TILE), out)
        np.testing.assert_array_equal(out, 3 * x)


# -------------------------------------------------------------------------------- mutants


def no_release(ring, in_flight):
    ring.held = 0


def arrive_twice(ring, index, held):
    if held and ring.thread() % 32 == 0:
        tma.Barrier(ring.barriers + ring.pipeline.empty_offset + 8 * index).arrive(2)


def release_early(ring):
    """Release when the work begins, as if the last read were behind it."""
    AWAIT_STAGE(ring)
    if ring.held:
        ring._release(ring.state.index, True)
        ring.held = 0


def other_parity(ring, barrier):
    tma.Barrier(ring.barriers + 8 * ring.state.index).wait(ring.state.phase ^ 1)
    ring.waited |= 1 << barrier


AWAIT_STAGE = Ring._await_stage
#: What is broken, where, by what, in which form; the error, and what it may show itself as, too.
MUTANTS = {
    "no sync before a stage is loaded again": (
        "_release_beyond", no_release, {"war": "sync"},
        (sim.EarlyOverwrite, sim.EarlyRead), "[{}] of CircularBuffer(2, 1",
    ),
    "no wait for a stage to be read": (
        "_await_empty", lambda ring: None, {"war": "mbarrier"},
        (sim.EarlyOverwrite, sim.EarlyRead), "[{}] of CircularBuffer(2, 1",
    ),
    "no wait for the loads": (
        "_await_stage", lambda ring: None, {"war": "sync"},
        (sim.EarlyRead, sim.EarlyOverwrite), "x[{}] of CircularBuffer(2, 1",
    ),
    "the other parity": (
        "_await_full", other_parity, {"war": "sync"},
        (sim.EarlyRead, sim.EarlyOverwrite, sim.Deadlock), "[{}] of CircularBuffer(2, 1",
    ),
    "released before it is read": (
        "_await_stage", release_early, {"war": "mbarrier"},
        (sim.EarlyOverwrite, sim.EarlyRead), "x[{}] of CircularBuffer(2, 1",
    ),
    "released twice": (
        "_release", arrive_twice, {"war": "mbarrier"},
        (sim.BarrierMisuse, sim.EarlyOverwrite, sim.Deadlock), "[{}] of CircularBuffer(2, 1",
    ),
    "never released": (
        "_release_beyond", no_release, {"war": "mbarrier"},
        (sim.Deadlock,), "empty[{}] of CircularBuffer(2, 1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mutation", MUTANTS)
def test_every_mutant_is_caught_under_any_seed(mutation, monkeypatch):
    method, broken, options, errors, text = MUTANTS[mutation]
    buffer = tma.CircularBuffer(2, 1, **options, x=TILE)
    monkeypatch.setattr(Ring, method, broken)
    for seed in range(4):
        with pytest.raises(errors) as caught:
            check_double(buffer, 9, seed=seed)
        assert any(text.format(i) in str(caught.value) for i in range(2)), str(caught.value)


@pytest.mark.parametrize("war", ["sync", "mbarrier"])
def test_a_prefetch_that_is_one_too_far_is_caught(war, monkeypatch):
    buffer = tma.CircularBuffer(2, 1, war=war, x=TILE)
    take = Ring._take

    def too_far(ring):
        take(ring)
        ring.due += ring.state.count == 1

    monkeypatch.setattr(Ring, "_take", too_far)
    for seed in range(6):
        with pytest.raises((sim.EarlyOverwrite, sim.BarrierMisuse, sim.Deadlock)):
            check_double(buffer, 9, seed=seed)


def test_loads_that_are_forgotten():
    buffer = tma.CircularBuffer(2, x=TILE)

    @cuda.jit
    def kernel():
        ring = buffer.start()
        for _, stage in ring.tiles(0, 3):
            stage.wait()

    with pytest.raises(sim.Deadlock, match=r"full\[0\] of CircularBuffer.*1 of 1 arrivals pending"):
        kernel[1, 32]()


def test_a_tile_of_the_stage_that_is_not_loaded():
    buffer = tma.CircularBuffer(2, x=TILE, y=TILE)

    @cuda.jit
    def kernel(x):
        ring = buffer.start()
        for _, stage in ring.tiles(0, 3):
            for ahead, slot in ring.loads():
                x.load(slot.x, (ahead * ROWS, 0), slot.barrier)
            stage.wait()

    with pytest.raises(sim.Deadlock, match=r"256 bytes missing \(512 expected, 256 issued\)"):
        kernel[1, 32](tma.tensor_map(array(3), TILE))


# ------------------------------------------------------- what the compiler refuses on a GPU


@pytest.mark.parametrize("threads", [16, 48])
def test_a_block_has_whole_warps(threads):
    with pytest.raises(sim.BadOperand, match=f"CircularBuffer: the block has {threads} threads"):
        check_double(tma.CircularBuffer(2, x=TILE), 1, threads=threads)


def test_a_block_has_the_threads_of_its_roles():
    roles = tma.Roles(compute=tma.Warps(2))
    with pytest.raises(sim.BadOperand, match="block 32: the roles .* have 64 threads in all"):
        check_double(tma.CircularBuffer(2, role=roles.compute, x=TILE), 1, threads=32)


def test_more_in_flight_than_there_are_stages_for():
    buffer = tma.CircularBuffer(4, 2, x=TILE)
    with pytest.raises(sim.BadOperand, match="in_flight=2.*4 - 2 - 1 = 1 can be in flight"):
        check_double(buffer, 1, in_flight=2)


MISTAKES = {
    "waited for by name": (
        lambda stage, slot: stage.wait("x"), "one",
        [r"stage.wait\('x'\): all tiles of a stage", r"stage.wait\(\).x", 'barriers="each"'],
    ),
    "an unknown name": (
        lambda stage, slot: stage.wait("z"), "each", [r"stage.wait\('z'\): the tiles of", "'x'"],
    ),
    "one barrier of several": (
        lambda stage, slot: slot.barrier, "each", [r'slot.barrier_of\("x"\)'],
    ),
    "the barrier of an unknown tile": (
        lambda stage, slot: slot.barrier_of("z"), "one", [r"slot.barrier_of\('z'\): the tiles of"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_a_stage_has_not(mistake):
    body, barriers, texts = MISTAKES[mistake]
    buffer = tma.CircularBuffer(2, barriers=barriers, x=TILE)

    @cuda.jit
    def kernel():
        ring = buffer.start()
        for _, stage in ring.tiles(0, 1):
            for _, slot in ring.loads():
                body(stage, slot)

    for text in texts:
        with pytest.raises(sim.BadOperand, match=text):
            kernel[1, 32]()


@pytest.mark.parametrize("barriers", [1, 2])
def test_the_simulator_names_each_tile_and_each_barrier(barriers, monkeypatch):
    """Where the buffer says that they are: the tiles of a name lie one after the other."""
    small = Tile((2, 32), "f32")
    buffer = tma.CircularBuffer(
        3, a=TILE, b=small, **{"barriers": "each"} if barriers == 2 else {}
    )
    names = {}
    monkeypatch.setattr(circular.simulator, "label", names.__setitem__)
    circular.label_buffer(buffer, 1 << 16, 64)
    expected = {
        (1 << 16) + buffer.tile_offset(name) + stage * tile.nbytes: f"{name}[{stage}]"
        for name, tile in (("a", TILE), ("b", small))
        for stage in range(3)
    }
    tiles = {at: name.partition(" of ")[0] for at, name in names.items() if at >= 1 << 16}
    assert tiles == expected
    assert [at for at in names if at < 1 << 16] == [64 + 8 * i for i in range(buffer.num_barriers)]
