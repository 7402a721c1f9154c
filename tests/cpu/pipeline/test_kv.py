"""KVPipeline: its layout and its errors on the host, and the compiled kernels."""

import functools
import pickle
import re

import pytest
from numba import cuda, types

import numba_tma as tma
from numba_tma import KVPipeline, Swizzle, TensorMapType, Tile
from numba_tma.device.shared import TileAccesses
from numba_tma.host.debug import MARKER
from numba_tma.tools.testing import compile_ptx, instructions, ptxas, run_isolated
from tests.cpu.kernels.test_kernel_errors import message
from tests.tiers import every

ROLES = tma.Roles(mma=tma.Warpgroups(2), load=tma.Warps(1))
SIDES = {"producer": ROLES.load, "consumer": ROLES.mma}


def ring(holds="kv", stages=4, parts=2, **options):
    given = {"block_n": 128, "depth": 128, "dtype": "bf16", "num_qk_stages": parts} | options
    return KVPipeline(stages, holds=holds, **(SIDES | given))


KV, K, V = ring(), ring("k"), ring("v")


# ------------------------------------------------------------------------- on the host


def test_known_sizes():
    assert (KV.BN, KV.BK0, KV.BK1, KV.padded_depth) == (128, 64, 128, 128)
    assert (KV.full_kv_bytes, KV.staged_k_bytes) == (32768, 16384)
    assert (KV.alignment, KV.storage_nbytes, KV.num_barriers) == (1024, 131072, 16)
    assert (KV.nbytes, KV.empty_arrivals, KV.block) == (131200, 8, 288)
    assert (V.num_barriers, V.num_qk_stages_effective) == (8, 1)


@pytest.mark.parametrize(
    ("holds", "expected"),
    [("k", (64, 128, True, 2)), ("v", (128, 128, False, 1)), ("kv", (64, 128, True, 2))],
)
def test_members_of_the_seed(holds, expected):
    kv = ring(holds)
    members = kv.BK, kv.BMN, kv.is_k_major, kv.num_qk_stages_effective
    assert members == expected and kv.is_k is kv.is_k_major


@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize("swizzle", [Swizzle.B32, Swizzle.B64, Swizzle.B128])
def test_parts_of_k_lie_as_the_whole_does(parts, swizzle):
    kv = ring(parts=parts, depth=256, swizzle=swizzle, block_n=48)
    for row, column in ((0, 0), (47, 255), (13, 129), (5, 64)):
        part, inside = divmod(column, kv.BK0)
        offset = part * kv.staged_k_bytes + int(kv.k_tile.offset(row, inside))
        assert offset == kv.k_stage.offset(row, column)
    assert kv.k_tile.shared_nbytes == kv.k_tile.nbytes == kv.staged_k_bytes
    assert kv.k_stage.shared_nbytes == kv.v_tile.nbytes == kv.full_kv_bytes
    assert kv.full_kv_bytes % kv.alignment == kv.staged_k_bytes % kv.alignment == 0


def test_a_depth_that_does_not_fill_its_spans_is_padded():
    assert ring(depth=96, parts=1).padded_depth == 128
    assert ring(depth=96, parts=1, swizzle=Swizzle.B64).padded_depth == 96
    assert ring(depth=96, parts=3, swizzle=Swizzle.B64).BK0 == 32


def test_keys_may_have_the_axes_of_the_tensor():
    kv = ring(block_n=(1, 128, 1))
    assert kv.k_tile == Tile((1, 128, 1, 64), "bf16", Swizzle.B128)
    assert (kv.BN, kv.full_kv_bytes) == (128, KV.full_kv_bytes)


def test_it_says_what_it_is_and_equal_ones_are_one_compile_time_value():
    assert repr(KV) == "KVPipeline(4, 128, 128, bf16, 2, holds='kv')"
    shown = repr(ring("v", block_n=(1, 64), swizzle=Swizzle.B64))
    assert shown == "KVPipeline(4, (1, 64), 128, bf16, 2, holds='v', swizzle=B64)"
    assert ring() == KV and hash(ring()) == hash(KV) and len({KV, K, V, ring(parts=1)}) == 4
    assert pickle.loads(pickle.dumps(KV)) == KV


TWO = tma.Roles(a=tma.Warps(1), b=tma.Threads(1))
WRONG = {
    "no stages": (dict(stages=0), ValueError, "num_kv_stages=0): an integer of at least 1"),
    "no parts": (dict(parts=0), ValueError, "num_qk_stages=0): an integer of at least 1"),
    "half a stage": (dict(stages=1.5), ValueError, "num_kv_stages=1.5"),
    "no depth": (dict(depth=0), ValueError, "depth=0"),
    "parts that are no spans": (
        dict(parts=4), ValueError,
        "depth=128, num_qk_stages=4): a row of 128 x 2 B = 256 B takes 2 span(s) of 128 B (B128), "
        "which 4 sub-stages cannot share evenly: use num_qk_stages 1 or 2, or a swizzle with a "
        "narrower span",
    ),
    "parts that are no spans of a padded row": (
        dict(depth=96, parts=2, swizzle=Swizzle.B64), ValueError,
        "96 x 2 B = 192 B takes 3 span(s) of 64 B (B64), which 2 sub-stages cannot share evenly: "
        "use num_qk_stages 1 or 3",
    ),
    "no swizzle": (dict(swizzle=Swizzle.NONE), ValueError, "swizzle=NONE): use B128, B64 or B32"),
    "keys that no instruction takes": (
        dict(block_n=20), ValueError, "its tile of K: Tile((20, 64), bf16, B128)",
    ),
    "bytes as V": (
        dict(holds="v", dtype="e4m3"), ValueError,
        "its tile of V: Tile((128, 128), e4m3, B128) is no MN-major operand of wgmma",
    ),
    "more stages than bits": (
        dict(stages=33), ValueError, "one bit of a 32-bit register for each stage: use at most 32",
    ),
    "another ring": (dict(holds="q"), ValueError, "holds='q'): one of 'k', 'v', 'kv'"),
    "no roles": (dict(consumer=3), TypeError, "consumer=(3,)): give roles"),
    "one role for both": (dict(consumer=ROLES.load), ValueError, "must be different roles of the"),
    "roles of two kernels": (dict(consumer=TWO.a), ValueError, "must be different roles of the"),
    "threads": (
        dict(producer=TWO.a, consumer=TWO.b), ValueError, "role b=Threads(1) arrives thread by",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", WRONG)
def test_what_cannot_be(mistake):
    options, kind, text = WRONG[mistake]
    with pytest.raises(kind) as caught:
        ring(**options)
    assert text in str(caught.value) and str(caught.value).startswith("KVPipeline")


# -------------------------------------------------------------------------- in kernels

OUT = types.uint64[::1]
MAPS = TensorMapType(2, KV.k_tile), TensorMapType(2, KV.v_tile)


def every_method(k, v, out, part):
    pipe = KV.start()
    loads, works = pipe.producer(), pipe.consumer()
    if ROLES.load.is_member():
        e = tma.elect_sync()
        loads.acquire(1)
        loads.acquire_k(part)
        barrier, tile = loads.get_tile(0, e)
        barrier, tile = loads.get_k(qk_stage=part, e=e)
        k.load(tile, (0, 0), barrier)
        loads.acquire_v()
        barrier, whole = loads.get_v(e=e)
        v.load(whole, (0, 0), barrier)
        loads.commit_step()
        loads.tail()
        loads.close()
    else:
        e = cuda.threadIdx.x % 32 == 7
        works.wait()
        works.wait_k()
        works.wait_k(qk_stage=part)
        out[0] = works.get().value + works.get_k().value + works.get_k(1).value
        out[1] = works.get_k_tile(part)[0, 0] + works.get_tile()[0, 0]
        works.release()
        works.release(e=e)
        works.release_k(0, e)
        left = works.step()
        works.wait_v()
        out[2] = works.get_v().value + works.get_v(left).value + works.get_k(index=left).value
        out[3] = works.get_v_tile()[0, 0] + works.get_v_tile(left)[0, 0]
        works.release_at(left)
        works.release_at(left, 1)
        works.release_at(left, part, e)
        works.release_at(left, e=e)
        works.release_k(None, None)
        works.release_v()


def by_hand(k, v, out, part):
    """The parts put together by the user: other memory, other barriers."""
    memory = tma.shared_tile(MEMORY)
    barriers = tma.shared_barriers(16)
    pipeline = tma.StagedPipeline(4, 2, barriers.address, tma.PipelineState(4))
    if cuda.threadIdx.x == 0:
        pipeline.init(8)
        tma.fence_mbarrier_init()
    cuda.syncthreads()
    works = tma.TMAConsumerPipeline(KV, pipeline, memory.address, TileAccesses())
    works.wait(1)
    pipeline.producer_acquire(part)
    pipeline.consumer_wait(1)
    pipeline.consumer_release(0)
    pipeline.consumer_release(part, cuda.threadIdx.x == 0)
    pipeline.consumer_release_at(pipeline.step())
    pipeline.consumer_release_at(3, 1)
    out[0] = works.get().value + pipeline.num_mbars + pipeline.full(1).address
    out[1] = works.kv.BN


MEMORY = Tile((KV.storage_nbytes // 128, 128), "u8", Swizzle.B128)
ARGUMENTS = (*MAPS, OUT, types.int64)


@pytest.mark.parametrize("kernel", [every_method, by_hand])
@pytest.mark.parametrize(
    "cc", every(2, [((9, 0, "a"),), ((10, 0, "a"),)]), ids=["sm_90a", "sm_100a"]
)
def test_every_method_compiles_to_registers(kernel, cc):
    ptx = compile_ptx(kernel, ARGUMENTS, cc=cc)
    report = ptxas(ptx)
    assert (report.spill_stores, report.spill_loads, report.stack_frame) == (0, 0, 0)
    assert not [line for line in instructions(ptx) if ".local" in line or "call" in line]


def listed_arrivals(holds):
    """Return the bytes of the arrivals of a producer that goes through each tile once."""
    kv = ring(holds, 2)

    def kernel(k, v):
        loads = kv.start().producer()
        if ROLES.load.is_member():
            if loads.enters():
                if holds != "v":
                    k.load(loads.get_k(0)[1], (0, 0), loads.get_k(1)[0])
                if holds != "k":
                    barrier, tile = loads.get_v()
                    v.load(tile, (0, 0), barrier)

    listed = instructions(compile_ptx(kernel, MAPS))
    assert not [line for line in listed if re.match(r"mbarrier\.arrive\.shared", line)]
    found = [i.split(", ")[-1] for i in listed if i.startswith("mbarrier.arrive.expect_tx")]
    return [int(re.search(rf"mov\.u32 {r}, (\d+)", "\n".join(listed))[1]) for r in found]


def test_v_arrives_on_one_barrier_alone():
    """An arrival without bytes on the others is what synccheck reports."""
    assert listed_arrivals("kv") == [16384, 16384, 32768]
    assert listed_arrivals("v") == [32768]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["every_method", "by_hand"])
def test_every_method_compiles_in_debug_mode(name):
    report = run_isolated(assembled, name, timeout=120, env={"NUMBA_TMA_DEBUG": "1"})
    assert report == (True, 0, 0, 0)


def assembled(name):
    """Return whether kernel `name` is in debug mode, and what it takes of local memory."""
    ptx = compile_ptx(globals()[name], ARGUMENTS)
    report = ptxas(ptx)
    assert not [line for line in instructions(ptx) if ".local" in line or "call" in line]
    return MARKER in ptx, report.spill_stores, report.spill_loads, report.stack_frame


NAMES = ("BK", "BMN", "full_kv_bytes", "staged_k_bytes", "num_qk_stages_effective", "is_k_major")


@functools.cache
def stored(holds):
    """Return what a kernel stores of the members of both sides: constants, in their order.

    A `PipelineState` takes a literal alone, and at least 1.
    """
    source = ["def kernel(out):", "    pipe = kv.start()"]
    for i, name in enumerate(NAMES):
        value = f"pipe.consumer().{name}"
        if getattr(ring(holds), name):
            value = f"tma.PipelineState(pipe.producer().{name}).num_stages"
        source += [f"    out[{2 * i}] = pipe.consumer().{name}", f"    out[{2 * i + 1}] = {value}"]
    scope = {"kv": ring(holds), "tma": tma}
    exec("\n".join(source), scope)
    registers, values = {}, []
    for line in instructions(compile_ptx(scope["kernel"], (OUT,))):
        if match := re.fullmatch(r"mov\.u64 (%rd\d+), (\d+)", line):
            registers[match[1]] = int(match[2])
        if match := re.fullmatch(r"st\.global\.u64 \[.*\], (%rd\d+)", line):
            values.append(registers[match[1]])
    return values


@pytest.mark.parametrize("holds", ["k", "v", "kv"])
@pytest.mark.parametrize("name", NAMES)
def test_a_member_is_a_compile_time_constant(name, holds):
    first = 2 * NAMES.index(name)
    assert stored(holds)[first : first + 2] == [getattr(ring(holds), name)] * 2


def test_the_ring_may_be_in_the_kernels_own_memory():
    def kernel(out):
        memory, barriers = tma.shared_tile(MEMORY), tma.shared_barriers(KV.num_barriers)
        works = KV.start(tiles=memory, barriers=barriers).consumer()
        works.wait()
        out[0] = works.get().value
        works.release()

    report = ptxas(compile_ptx(kernel, (OUT,)))
    assert report.shared == KV.nbytes


# --------------------------------------------------------------- what does not compile


def refused(statement, holds="kv", stages=2):
    """Return what the compiler says of one statement over loads and works."""
    scope = {"kv": ring(holds, stages), "tma": tma}
    start = "pipe = kv.start(); loads, works = pipe.producer(), pipe.consumer()"
    exec(f"def kernel(k, out):\n    {start}\n    {statement}\n", scope)
    return message(scope["kernel"], MAPS[0], OUT)


REFUSED = [
    ("works.wait(2)", "kv", "wait(qk_stage=2): the ring has num_qk_stages = 2 sub-stage(s) to a"),
    ("works.wait_k(-1)", "k", "wait_k(qk_stage=-1): the ring has"),
    ("works.release(5)", "k", "release(qk_stage=5)"),
    ("works.release_k(2, True)", "k", "release_k(qk_stage=2)"),
    ("works.release_at(0, 2)", "k", "release_at(qk_stage=2)"),
    ("works.get_k(2)", "k", "get_k(qk_stage=2)"),
    ("works.get_k_tile(2)", "k", "get_k_tile(qk_stage=2)"),
    ("loads.acquire(1)", "v", "acquire(qk_stage=1): the ring has num_qk_stages = 1 sub-stage(s)"),
    ("loads.acquire_k(2)", "k", "acquire_k(qk_stage=2)"),
    ("loads.get_tile(3)", "k", "get_tile(qk_stage=3)"),
    ("works.wait('x')", "k", "wait(qk_stage=...) takes a number"),
    ("works.release_v('x')", "v", "release_v(e=...) takes a number"),
    ("works.release_k(e='x')", "k", "release_k(e=...) takes a number"),
    ("works.release(e='x')", "k", "release(e=...) takes a number"),
    ("loads.get_k(e='x')", "k", "get_k(e=...) takes a number"),
    ("loads.get_v(e='x')", "v", "get_v(e=...) takes a number"),
    ("works.release_at()", "v", "missing a required argument: 'index'"),
    *[
        (f"works.{name}()", "k", f"{name}: {ring('k', 2)} holds K alone, whose tiles are K-major")
        for name in ("get_v", "wait_v", "release_v", "get_v_tile")
    ],
    *[
        (f"works.{name}()", "v", f"{name}: {ring('v', 2)} holds V alone, whose tiles are MN-major")
        for name in ("get_k", "wait_k", "release_k", "get_k_tile")
    ],
    ("loads.acquire_v()", "k", "use the ring of V, or one with holds='kv'"),
    ("loads.get_k()", "v", "use the ring of K, or one with holds='kv'"),
    (
        "k.load(loads.get_v()[1], (0, 0), loads.get_v()[0])", "kv",
        "Tile((128, 64), bf16, B128)",  # the map is one of a part of K
    ),
]  # fmt: skip


@pytest.mark.parametrize(("statement", "holds", "text"), REFUSED, ids=[r[0] for r in REFUSED])
def test_what_the_compiler_refuses(statement, holds, text):
    assert text in refused(statement, holds)


def test_more_shared_memory_than_there_is():
    text = refused("works.wait()", "k", 8)
    assert (
        "needs 262,144 B (8 stages x 32,768 B) + 256 B (barriers) = 262,400 B of shared memory"
    ) in text and re.search(r"a block has 232,448 B .*use fewer stages", text)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("tiles=tma.shared_tile(kv.k_tile)", "it has 16,384 B .* needs 65,536 B at a multiple of"),
        ("barriers=tma.shared_barriers(3)", "it has 24 B at a multiple of 8, .* needs 64 B"),
    ],
)
def test_memory_that_is_too_small(arguments, text):
    scope = {"kv": ring(stages=2), "tma": tma}
    exec(f"def kernel():\n    kv.start({arguments})\n", scope)
    assert re.search(text, message(scope["kernel"]))


def test_a_staged_pipeline_has_stages():
    def kernel(out):
        tma.StagedPipeline(0, 2, 1024, tma.PipelineState(1))

    assert "StagedPipeline(num_kv_stages=0): an integer of at least 1" in message(kernel, OUT)
