"""Roles, named barriers and barrier arrays: their derived values, and their errors."""

import pickle
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import cuda, types
from numba.core.errors import TypingError
from numba.cuda import dispatcher
from numba.cuda.core.errors import TypingError as CudaTypingError

import numba_tma as tma
from numba_tma import NamedBarrier, Roles, Threads, Tile, TilePipeline, Warpgroups, Warps
from numba_tma.tools.testing import compile_ptx, instructions, ptxas
from tests.cpu.backend.test_compiler import hopper_that_loads_nothing
from tests.cpu.device.test_shared import integers

INTS = types.int32[::1]
ROLES = Roles(mma=Warpgroups(2), load=Warpgroups(1, registers=40))
PLAIN = Roles(odd=Threads(40), compute=Warps(3), store=Warps(1))
EVEN = Roles(left=Warpgroups(1), right=Warpgroups(1, registers=256))
MEETING = NamedBarrier(9, 96)


def message(kernel, *arguments, **options):
    """Return what the compiler says, on one line."""
    with pytest.raises((TypingError, CudaTypingError)) as caught:
        compile_ptx(kernel, arguments, **options)
    return re.sub(r"\s+", " ", str(caught.value))


# ------------------------------------------------------------------------------ groups


@pytest.mark.parametrize(
    ("group", "members", "threads", "arrivals"),
    [
        (Threads(), 1, 32, 1),
        (Threads(32), 32, 32, 32),
        (Threads(33), 33, 64, 33),
        (Threads(1024), 1024, 1024, 1024),
        (Warps(), 32, 32, 1),
        (Warps(32), 1024, 1024, 32),
        (Warps(np.int64(3)), 96, 96, 3),
        (Warpgroups(), 128, 128, 4),
        (Warpgroups(8), 1024, 1024, 32),
        (Warpgroups(2, registers=24), 256, 256, 8),
        (Warpgroups(2, registers=np.int64(256)), 256, 256, 8),
    ],
)
def test_what_a_group_counts(group, members, threads, arrivals):
    assert (group.members, group.threads, group.arrivals) == (members, threads, arrivals)
    assert eval(repr(group), {c.__name__: c for c in (Threads, Warps, Warpgroups)}) == group


@pytest.mark.parametrize("count", [0, -1, 1.0, "2", None, 1025])
@pytest.mark.parametrize(
    ("group", "most"),
    [(Threads, "1024 threads"), (Warps, "32 warps"), (Warpgroups, "8 warpgroups")],
)
def test_a_group_fits_into_a_block(group, most, count):
    for wrong in (count, int(most.split()[0]) + 1):
        expected = (
            f"{group.__name__}({wrong!r}): a block has 1 to 1024 threads, so a role has 1 to {most}"
        )
        with pytest.raises(ValueError, match=re.escape(expected)):
            group(wrong)


@pytest.mark.parametrize(
    ("group", "registers"),
    [
        *((Warpgroups, n) for n in (16, 20, 23, 25, 41, 257, 264, -8, 40.0, "40", True)),
        (Warps, 40),
        (Threads, 40),
    ],
)
def test_only_warpgroups_change_their_registers(group, registers):
    expected = (
        f"{group.__name__}(1, registers={registers!r}): whole warpgroups change their registers, "
        "to 24 to 256 a thread in multiples of 8; give Warpgroups(n, registers=40)"
    )
    with pytest.raises(ValueError, match=re.escape(expected)):
        group(1, registers=registers)


# ------------------------------------------------------------------------------- roles


def test_what_follows_from_roles():
    assert (ROLES.threads, ROLES.launch_bounds) == (384, (384, 1))
    assert (ROLES.mma.registers, ROLES.load.registers) == (232, 40)
    assert ROLES.mma.launch_registers == ROLES.load.launch_registers == 168
    names = ("first", "members", "arrivals", "barrier_id", "sync_threads", "registers")
    values = {role.name: tuple(getattr(role, n) for n in names) for role in PLAIN.roles}
    assert values == {
        "odd": (0, 40, 40, 1, 64, 0),
        "compute": (64, 96, 3, 2, 96, 0),
        "store": (160, 32, 1, 3, 32, 0),
    }
    assert PLAIN.threads == 192
    assert repr(ROLES) == "Roles(mma=Warpgroups(2), load=Warpgroups(1, registers=40))"
    copied = pickle.loads(pickle.dumps(ROLES))
    assert copied == ROLES and hash(copied) == hash(ROLES)
    assert len({ROLES, PLAIN, Roles(mma=Warpgroups(2), load=Warpgroups(1, registers=48))}) == 3
    with pytest.raises(AttributeError, match="Roles has no role 'store'"):
        _ = ROLES.store


@pytest.mark.parametrize("count", [0, 8])
def test_a_block_has_1_to_7_roles(count):
    names = {f"role{i}": Warps(1) for i in range(count)}
    with pytest.raises(ValueError, match=rf"Roles\(\): {count} roles; name 1 to 7, as in Roles\("):
        Roles(**names)
    assert [r.barrier_id for r in Roles(**{f"r{i}": Warps(1) for i in range(7)}).roles] == [
        1, 2, 3, 4, 5, 6, 7,
    ]  # fmt: skip


@pytest.mark.parametrize("group", [4, Warps, "Warps(1)", None, ROLES.mma])
def test_a_role_is_a_group(group):
    expected = f"Roles(a=...) takes Threads(n), Warps(n) or Warpgroups(n), not {group!r}"
    with pytest.raises(TypeError, match=re.escape(expected)):
        Roles(a=group)


@pytest.mark.parametrize("name", ["roles", "threads", "launch_bounds", "_load", "__len__"])
def test_names_that_mean_something_else(name):
    with pytest.raises(ValueError, match=rf"Roles\({name}=...\): the name is reserved"):
        Roles(**{name: Warps(1)})


def test_more_threads_than_a_block_has():
    expected = "Roles: 896 (a) + 128 (b) + 32 (c) = 1056 threads; a block has at most 1024"
    with pytest.raises(ValueError, match=re.escape(expected)):
        Roles(a=Warpgroups(7), b=Warps(4), c=Threads(3))
    assert Roles(a=Warpgroups(7), b=Warps(3), c=Threads(3)).threads == 1024


@pytest.mark.parametrize(
    ("groups", "sum_of", "has"),
    [
        (
            {"a": Warpgroups(2, registers=240), "b": Warpgroups(1, registers=40)},
            "240 x 256 (a) + 40 x 128 (b) = 66,560",
            "384 threads has 168 x 384 = 64,512",
        ),
        (
            {"a": Warpgroups(2, registers=256), "b": Warpgroups(1)},
            "256 x 256 (a) + 168 x 128 (b) = 87,040",
            "384 threads has 168 x 384 = 64,512",
        ),
        (
            {"a": Warpgroups(4, registers=136), "b": Warpgroups(4)},
            "136 x 512 (a) + 64 x 512 (b) = 102,400",
            "1024 threads has 64 x 1024 = 65,536",
        ),
    ],
)
def test_more_registers_than_there_are(groups, sum_of, has):
    with pytest.raises(ValueError, match=re.escape(f"Roles: {sum_of} registers")) as caught:
        Roles(**groups)
    assert has in str(caught.value)
    assert "would wait for ever: ask for fewer, or let another role" in str(caught.value)


def test_the_least_that_others_may_be_left_with():
    assert Roles(a=Warpgroups(2, registers=240), b=Warpgroups(1)).b.registers == 24
    with pytest.raises(ValueError, match="248 x 256"):
        Roles(a=Warpgroups(2, registers=248), b=Warpgroups(1))


def test_roles_may_ask_for_all_the_registers_of_a_launch():
    """512 threads start with 128 registers each; setmaxnreg counts in eights."""
    Roles(a=Warpgroups(2, registers=232), b=Warpgroups(2, registers=24))
    with pytest.raises(ValueError, match="232 x 256"):
        Roles(a=Warpgroups(2, registers=232), b=Warpgroups(2, registers=32))


@pytest.mark.parametrize("other", [{"b": Warps(4)}, {"b": Warps(1), "c": Threads(96)}])
def test_roles_of_warps_share_a_warpgroup_that_has_the_rest_of_the_registers(other):
    roles = Roles(a=Warpgroups(3, registers=152), **other)
    assert {role.registers for role in roles.roles[1:]} == {56} and roles.threads == 512


def test_roles_with_other_registers_share_no_warpgroup():
    expected = "Roles(b=Warpgroups(1, registers=40)): it begins at thread 64, inside a warpgroup."
    with pytest.raises(ValueError, match=re.escape(expected)) as caught:
        Roles(a=Warps(2), b=Warpgroups(1, registers=40), c=Warps(2))
    assert "before it fill 1 of them" in str(caught.value)
    expected = "Roles: 192 threads, whose last warpgroup has 2 warps."
    with pytest.raises(ValueError, match=re.escape(expected)) as caught:
        Roles(a=Warpgroups(1, registers=40), b=Warps(2))
    assert "another role of Warps(2)" in str(caught.value)


KINDS = st.one_of(
    st.builds(Threads, st.integers(1, 1024)),
    st.builds(Warps, st.integers(1, 32)),
    st.builds(Warpgroups, st.integers(1, 8)),
)
COUNTS = st.one_of(st.just(0), st.integers(3, 32).map(lambda n: 8 * n))
MOVING = st.builds(lambda n, r: Warpgroups(n, registers=r), st.integers(1, 4), COUNTS)


@given(st.one_of(st.lists(KINDS, min_size=1, max_size=7), st.lists(MOVING, min_size=1, max_size=7)))
def test_roles_cut_up_a_block_and_its_registers(groups):
    named = {f"role{i}": group for i, group in enumerate(groups)}
    block = sum(-(-g.members // 32) * 32 for g in groups)
    moves = any(g.registers for g in groups)
    launch = min(256, 65536 // block // 8 * 8) if moves else 0
    asked = sum(g.registers * g.members for g in groups)
    rest = sum(g.members for g in groups if not g.registers)
    if block > 1024 or moves and asked + 24 * rest > launch * block:
        with pytest.raises(ValueError, match=r"^Roles: .* = [\d,]+ (threads|registers)"):
            Roles(**named)
        return
    roles = Roles(**named)
    assert [r.group for r in roles.roles] == groups
    assert [r.barrier_id for r in roles.roles] == list(range(1, len(groups) + 1))
    end = 0
    for role in roles.roles:
        assert role.first == end and role.members <= role.sync_threads < role.members + 32
        end += role.sync_threads
    assert roles.threads == end == block and roles.launch_bounds == (block, 1)
    counts = [r.registers for r in roles.roles]
    if moves:
        held = sum(r.registers * r.members for r in roles.roles)
        assert held <= launch * block <= 65536
        assert all(n % 8 == 0 and 24 <= n <= 256 for n in counts)
        assert all(r.registers == (r.group.registers or r.registers) for r in roles.roles)
        shares = {r.registers for r in roles.roles if not r.group.registers}
        assert len(shares) <= 1
        # They are left with no more than a multiple of 8 cannot share out.
        assert shares <= {256} or launch * block - held < 8 * rest
    else:
        assert counts == [0] * len(groups)


# -------------------------------------------------------------------- barriers, on the host


@pytest.mark.parametrize("barrier_id", [-1, 0, 1, 7, 16, "8", 8.0, None])
def test_the_barriers_that_are_free(barrier_id):
    expected = (
        f"NamedBarrier(barrier_id={barrier_id!r}): use 8 to 15; 0 is cuda.syncthreads, and 1 to 7 "
        "are those of the roles and of pipelines"
    )
    with pytest.raises(ValueError, match=re.escape(expected)):
        NamedBarrier(barrier_id, 64)


@pytest.mark.parametrize("threads", [0, 31, 33, -32, 1056, 64.0, "64", None])
def test_whole_warps_meet(threads):
    expected = (
        f"NamedBarrier(threads={threads!r}): whole warps take part, so a multiple of 32 up to 1024"
    )
    with pytest.raises(ValueError, match=re.escape(expected)):
        NamedBarrier(8, threads)


def test_named_barriers_are_values():
    for number in range(8, 16):
        barrier = NamedBarrier(number, 32)
        assert (barrier.barrier_id, barrier.threads) == (number, 32)
    assert NamedBarrier(np.int64(8), 1024) == NamedBarrier(8, np.int32(1024))
    assert NamedBarrier(8, 32) != NamedBarrier(9, 32)


# --------------------------------------------------------------------------- in kernels


def asks_who_it_is(out):
    if PLAIN.odd.is_member():
        out[PLAIN.odd.thread()] = PLAIN.odd.members
    elif PLAIN.compute.is_member():
        PLAIN.compute.sync()
        out[PLAIN.compute.thread()] = PLAIN.compute.arrivals
    elif PLAIN.store.is_member():
        PLAIN.store.sync()
        out[PLAIN.store.first] = PLAIN.store.barrier_id


def meets(out):
    if out[0] > 0:
        MEETING.arrive()
    else:
        MEETING.sync()


def moves_registers(out):
    if ROLES.mma.is_member():
        ROLES.mma.set_registers()
        out[ROLES.mma.thread()] = 1
    elif ROLES.load.is_member():
        ROLES.load.set_registers()
        out[ROLES.load.thread()] = 2


def keeps_registers(out):
    if EVEN.left.is_member():
        EVEN.left.set_registers()
    out[0] = EVEN.right.registers


def numbered(text, *names):
    """List (name, operand, ...) of the instructions `names`, with what their registers hold."""
    body = instructions(text)
    held, found = integers(body), []
    for line in body:
        name, _, rest = line.partition(" ")
        if name.startswith(names):
            found.append((name, *(held.get(r) for r in re.findall(r"%r\d+", rest))))
    return found


def test_members_are_told_apart_by_two_comparisons():
    text = compile_ptx(asks_who_it_is, (INTS,))
    assert numbered(text, "bar.sync") == [("bar.sync", 2, 96), ("bar.sync", 3, 32)]
    stored = [value for _, *_, value in numbered(text, "st.global.u32")]
    assert sorted(stored) == [3, 3, 40]  # compute's arrivals, store's barrier, odd's members
    assert "+640]" in text  # 4 bytes for each of the 160 threads before store
    assert ".maxntid" not in text
    report = ptxas(text)
    assert report.stack_frame == 0 and not report.warnings


def test_a_named_barrier_is_one_instruction():
    met = numbered(compile_ptx(meets, (INTS,)), "bar")
    assert sorted(met) == [("bar.arrive", 9, 96), ("bar.sync", 9, 96)]


def launch_bounds(text):
    (threads,) = re.findall(r"\.maxntid (\d+)", text)
    (blocks,) = re.findall(r"\.minnctapersm (\d+)", text)
    return int(threads), int(blocks)


@pytest.mark.parametrize("cc", [(9, 0, "a"), (10, 0, "a")])
def test_registers_move_between_the_roles(cc):
    text = compile_ptx(moves_registers, (INTS,), cc=cc)
    moved = re.findall(r"setmaxnreg\.(inc|dec)\.sync\.aligned\.u32 (\d+);", text)
    assert sorted(moved) == [("dec", "40"), ("inc", "232")]
    assert launch_bounds(text) == ROLES.launch_bounds
    report = ptxas(text)
    assert report.warnings == () and report.registers == ROLES.mma.launch_registers


def test_registers_that_stay_as_they_are_are_not_set():
    text = compile_ptx(keeps_registers, (INTS,))
    assert EVEN.left.registers == EVEN.left.launch_registers == 256
    assert "setmaxnreg" not in text and launch_bounds(text) == EVEN.launch_bounds


def moves_nothing(out):
    PLAIN.compute.set_registers()


def test_roles_without_registers_have_none_to_move():
    text = message(moves_nothing, INTS)
    assert "set_registers of compute=Warps(3): no role has a number of registers; give" in text
    assert "Roles(compute=Warpgroups(2), load=Warpgroups(1, registers=40))" in text


def test_registers_move_from_hopper_on():
    text = message(moves_registers, INTS, cc=(8, 0))
    assert "setmaxnreg_inc() needs sm_90a, 100a, " in text


@pytest.mark.parametrize("bounds", [256, 384, (384, 2), (512, 1)])
def test_launch_bounds_that_disagree(bounds):
    text = message(cuda.jit(launch_bounds=bounds)(moves_registers), INTS)
    assert f"launch_bounds={bounds}: the kernel's roles move registers between 384 threads" in text
    assert "leave launch_bounds out, or give (384, 1), which Roles.launch_bounds says" in text


def test_a_kernel_moves_the_registers_of_one_roles():
    OTHER = tma.Roles(mma=tma.Warpgroups(3), load=tma.Warpgroups(1, registers=40))

    def mixed(n):
        ROLES.mma.set_registers()
        OTHER.load.set_registers()

    text = message(mixed, INTS)
    assert "one role is of a block of 384 threads and another of one of 512" in text


def test_launch_bounds_that_agree():
    text = compile_ptx(cuda.jit(launch_bounds=ROLES.launch_bounds)(moves_registers), (INTS,))
    assert launch_bounds(text) == (384, 1)
    assert instructions(text) == instructions(compile_ptx(moves_registers, (INTS,)))


def asks_for_a_role_that_is_not(out):
    if ROLES.store.is_member():
        out[0] = 1


def test_a_role_that_is_not_there():
    assert "Unknown attribute 'store' of type Roles(" in message(asks_for_a_role_that_is_not, INTS)


@cuda.jit(device=True, forceinline=False)
def move_elsewhere():
    ROLES.load.set_registers()


def calls_what_moves_registers(out):
    move_elsewhere()
    out[0] = 1


def test_registers_that_a_called_function_moves():
    """Refused where the launchable kernel is made, since a function cannot bound its caller."""
    with hopper_that_loads_nothing():
        with pytest.raises(CudaTypingError) as caught:
            cuda.jit(calls_what_moves_registers).compile((INTS,))
        bounded = cuda.jit(launch_bounds=ROLES.launch_bounds)(calls_what_moves_registers)
        assert isinstance(bounded.compile((INTS,)), dispatcher._Kernel)
    text = re.sub(r"\s+", " ", str(caught.value))
    assert "moves registers (Role.set_registers or setmaxnreg) in a function that it calls" in text
    assert "give @cuda.jit(launch_bounds=ROLES.launch_bounds)" in text


# -------------------------------------------------------------------------- barrier arrays

ARRAY = 3


def uses_barriers(out):
    barriers = tma.shared_barriers(ARRAY)
    if cuda.threadIdx.x == 0:
        barriers.init(2)
        tma.fence_mbarrier_init()
    cuda.syncthreads()
    barriers[2].arrive()
    barriers[out[0]].wait(0)
    barriers.inval()


def index_3(out):
    tma.shared_barriers(ARRAY)[3].arrive()


def index_minus_1(out):
    tma.shared_barriers(ARRAY)[-1].arrive()


def a_fraction(out):
    tma.shared_barriers(ARRAY)[0.5].arrive()


def no_barriers(out):
    tma.shared_barriers(0)


def half_barriers(out):
    tma.shared_barriers(1.5)


def some_barriers(out):
    tma.shared_barriers(out[0])


def too_many_barriers(out):
    tma.shared_barriers(30000)


def test_an_array_of_barriers():
    body = instructions(compile_ptx(uses_barriers, (INTS,)))
    for name in ("init", "inval"):
        assert sum(line.startswith(f"mbarrier.{name}") for line in body) == ARRAY
    assert sum("mbarrier.arrive" in line for line in body) == 1
    assert not [line for line in body if ".local" in line or line.startswith("call")]


@pytest.mark.parametrize(
    ("kernel", "text"),
    [
        (index_3, "barriers[3]: the array has the barriers 0 to 2"),
        (index_minus_1, "barriers[-1]: the array has the barriers 0 to 2"),
        (a_fraction, "barriers[i] takes an integer, not float64"),
        (no_barriers, "shared_barriers(0): an array has at least 1 barrier"),
        (half_barriers, "shared_barriers(count=...) must be a compile-time constant"),
        (some_barriers, "shared_barriers(count=...) must be a compile-time constant"),
        (too_many_barriers, "shared_barriers(30000) needs 240,000 B (barriers) = 240,000 B of"),
    ],
)
def test_what_an_array_of_barriers_refuses(kernel, text):
    assert text in message(kernel, INTS)


# ------------------------------------------------------------------------------- launches

TAKEN = TilePipeline(2, x=Tile((16, 64), "f32"), producer=PLAIN.store, consumer=PLAIN.compute)


def starts(out):
    TAKEN.start()


@pytest.mark.parametrize("block", [(160, 1, 1), (224, 1, 1), (96, 2, 1), (192, 1, 2)])
def test_a_launch_has_the_threads_of_the_roles(block):
    with hopper_that_loads_nothing():
        kernel = cuda.jit(starts).compile((INTS,))
    expected = (
        f"block {block}: the roles of the kernel's pipeline have 192 threads, in one dimension: "
        "launch blocks of 192, which Roles.threads says"
    )
    with pytest.raises(ValueError, match=re.escape(expected)):
        kernel.launch((), (1, 1, 1), block)
