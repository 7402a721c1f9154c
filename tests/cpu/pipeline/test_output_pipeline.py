"""OutputTilePipeline: its errors, its derived counts, and its cost."""

import functools
import re

import pytest
from numba import cuda, types
from numba.core.errors import TypingError
from numba.cuda.core.errors import TypingError as CudaTypingError

import numba_tma as tma
from numba_tma.tools.testing import compile_ptx, find_tool, instructions, ptxas, sass
from tests.kernels import output_kernels as kernels
from tests.tiers import every

ROLES = tma.Roles(mma=tma.Warps(4), epilogue=tma.Warpgroups(1), load=tma.Warps(1))
ACC = tma.Tile((128, 64), "f32")
SM_90A, SM_100A = (9, 0, "a"), (10, 0, "a")


def output(stages=2, acc=ACC, mma=ROLES.mma, epilogue=ROLES.epilogue, **more):
    return tma.OutputTilePipeline(stages, acc, mma=mma, epilogue=epilogue, **more)


# ------------------------------------------------------------------------ what follows


@pytest.mark.parametrize(
    ("stages", "columns", "stride", "allocated"),
    [
        (1, 1, None, 32),
        (1, 33, None, 64),
        (3, 64, None, 256),
        (2, 256, None, 512),
        (2, 48, 64, 128),
        (1, 512, None, 512),
    ],
)
def test_columns(stages, columns, stride, allocated):
    out = output(stages, tma.Tile((128, columns), "f32"), memory="tensor", stage_stride_cols=stride)
    assert out.num_columns == allocated
    assert out.stage_stride_cols == (stride or columns)


def test_shared_memory_holds_the_stages_or_their_barriers():
    shared, tensor = output(3), output(3, memory="tensor")
    assert shared.ring.storage_nbytes == 3 * ACC.nbytes
    assert tensor.ring.storage_nbytes == 0
    assert shared.nbytes - tensor.nbytes == 3 * ACC.nbytes
    assert shared.num_columns == 0


def test_arrivals():
    for out in (output(), output(memory="tensor")):
        assert (out.ring.full_arrivals, out.ring.empty_arrivals) == (4, 4)
    pair = output(memory="tensor", cta_group=2)
    assert (pair.ring.full_arrivals, pair.ring.empty_arrivals) == (4, 8)
    assert pair.cluster == (2, 1) and pair.ring.in_cluster


def test_equal_pipelines_are_one_type():
    assert output(memory="tensor") == output(memory="tensor") != output()
    assert hash(output()) == hash(output())
    one, two = output(memory="tensor"), output(memory="tensor", cta_group=2)
    assert one.ring != two.ring != output(memory="tensor", cta_group=2, cluster=(4, 1)).ring
    assert two.ring == output(memory="tensor", cta_group=2).ring


def test_repr_says_what_was_given():
    assert "memory" not in repr(output()) and repr(output()).startswith("OutputTilePipeline(2, ")
    text = repr(output(memory="tensor", cta_group=2))
    assert "memory='tensor', stage_stride_cols=64, cta_group=2, cluster=(2, 1))" in text
    assert repr(output(memory="tensor").ring) == repr(output(memory="tensor"))


def test_the_text_of_accumulators_in_tensor_memory_says_what_they_have():
    acc = tma.Tile((128, 64), "f32")
    made = output(acc=acc, memory="tensor", stage_stride_cols=96, extra_columns=32, cta_group=2)
    expected = "stage_stride_cols=96, extra_columns=32, cta_group=2, cluster=(2, 1)"
    assert f"memory='tensor', {expected}" in repr(made)
    assert "extra_columns" not in repr(output(acc=acc, memory="tensor"))


# -------------------------------------------------------------------- what is refused

OTHER = tma.Roles(mma=tma.Threads(8), epilogue=tma.Warps(4), few=tma.Warps(2))


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"stages": 0}, ValueError, r"num_stages=0\): at least 1 accumulator"),
        ({"stages": "2"}, ValueError, r"num_stages='2'\)"),
        ({"memory": "local"}, ValueError, r"memory='local'\): 'shared' or 'tensor'"),
        ({"acc": (64, 64)}, TypeError, r"acc=...\) takes a Tile, not \(64, 64\)"),
        ({"mma": 4}, TypeError, r"mma=...\) takes a role, as ROLES.mma .* not 4"),
        ({"epilogue": ROLES}, TypeError, r"epilogue=...\) takes a role, as ROLES.epilogue"),
        ({"epilogue": ROLES.mma}, ValueError, "must be different roles of the same Roles"),
        ({"epilogue": OTHER.epilogue}, ValueError, "must be different roles of the same Roles"),
        ({"cta_group": 2}, ValueError, r"memory='shared'\): stage_stride_cols, extra_columns, c"),
        ({"stage_stride_cols": 64}, ValueError, "apply to tensor memory; leave them out"),
        ({"cluster": 2}, ValueError, "apply to tensor memory; leave them out"),
    ],
)
def test_host_errors(given, error, text):
    with pytest.raises(error, match=text):
        output(**given)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"acc": tma.Tile((64, 64), "f32")}, r"128 lanes x columns of 32 bits: give Tile\(\(128"),
        ({"acc": tma.Tile((128, 64), "bf16")}, "128 lanes x columns of 32 bits"),
        ({"acc": tma.Tile((128, 32), "f32", tma.Swizzle.B128)}, "128 lanes x columns of 32 bits"),
        ({"cta_group": 3}, r"cta_group=3\): 1, or 2 for a CTA pair"),
        ({"cta_group": 2, "cluster": (3, 2)}, r"cluster=\(3, 2\)\): the two blocks .* along x"),
        ({"mma": OTHER.mma, "epilogue": OTHER.epilogue}, r"mma=Threads\(8\), .* use Warps\(1\)"),
        ({"mma": OTHER.epilogue, "epilogue": OTHER.few}, r"so 4 warps together read an accumula"),
        ({"stage_stride_cols": 32}, r"stage_stride_cols=32\): .* has 64 columns, .* overlap"),
        ({"stages": 9}, "9 stages x 64 columns = 576 columns .* 512: use at most 8 stages"),
        ({"stage_stride_cols": 300}, "2 stages x 300 columns = 600 .* at most 1 stages"),
        (
            {"stages": 1, "acc": tma.Tile((128, 513), "f32")},
            "1 stages x 513 columns = 513 columns .* a block has 512: use narrower accumulators",
        ),
    ],
)
def test_host_errors_of_tensor_memory(given, text):
    with pytest.raises(ValueError, match=text):
        output(**{"memory": "tensor"} | given)


SHARED, TENSOR = output(), output(memory="tensor")
BIG = output(8)


def tensor_memory():
    TENSOR.start()


def too_big():
    BIG.start()


def address_of_shared(out):
    out[0] = SHARED.start().consumer().acquire().address


def load_of_shared():
    SHARED.start().consumer().acquire().load(0, 4)


def store_to_shared():
    SHARED.start().producer().acquire().store(0, (1.0,))


def acc_of_tensor():
    return TENSOR.start().consumer().acquire().acc[0, 0]


def three_columns():
    TENSOR.start().consumer().acquire().load(0, 3)


def beyond():
    TENSOR.start().consumer().acquire().load(60, 8)


def wider():
    TENSOR.start().producer().acquire().load(0, 128)


def unknown_number(n):
    TENSOR.start().consumer().acquire().load(0, n)


def no_tuple():
    TENSOR.start().producer().acquire().store(0, 1.0)


def no_column():
    TENSOR.start().producer().acquire().store(0.5, (1.0,))


def epilogues_stage():
    pipe = SHARED.start()
    pipe.release_from_mma(pipe.acquire_for_epilogue())


def never_released(n):
    pipe = SHARED.start()
    if ROLES.epilogue.is_member():
        consumer = pipe.consumer()
        for _ in range(n):
            consumer.acquire()


def never_released_by_name(n):
    pipe = SHARED.start()
    if ROLES.epilogue.is_member():
        for _ in range(n):
            pipe.acquire_for_epilogue()


@pytest.mark.parametrize(
    ("kernel", "signature", "cc", "text"),
    [
        (
            tensor_memory,
            (),
            SM_90A,
            r"tensor memory needs sm_100a, .* sm_90a: .*; or give memory='s",
        ),
        (tensor_memory, (), (12, 0), r"needs sm_100a, .* sm_120: .*; or give memory='shared'"),
        (too_big, (), SM_90A, r"acc: 8 stages x 32,768 B.* = 262,\d+ B of shared memory, but"),
        (
            address_of_shared,
            (types.int64[::1],),
            SM_90A,
            r"stage\.address: .* read and write sta",
        ),
        (load_of_shared, (), SM_90A, r"stage\.load\(\): the stages of .* are in shared memory"),
        (store_to_shared, (), SM_90A, r"stage\.store\(\): the stages of .* are in shared memory"),
        (acc_of_tensor, (), SM_100A, r"stage\.acc: .* columns of tensor memory: load them with"),
        (three_columns, (), SM_100A, r"stage\.load moves 1, 2, .* 128 columns at once, not 3"),
        (beyond, (), SM_100A, r"stage\.load: columns 60 to 67 of an accumulator that has 64"),
        (wider, (), SM_100A, r"stage\.load: columns 0 to 127 of an accumulator that has 64"),
        (unknown_number, (types.int64,), SM_100A, r"stage.load\(num=...\) must be a compile-time"),
        (no_tuple, (), SM_100A, r"stage.store\(values=...\) takes a tuple of numbers or a vec"),
        (no_column, (), SM_100A, r"stage.store\(column=...\) takes an integer, not"),
        (epilogues_stage, (), SM_90A, r"acquire_for_mma\(\) has to return the stage; the epilogue"),
        (never_released, (types.int64,), SM_90A, r"Call consumer\.release\(\)"),
        (never_released_by_name, (types.int64,), SM_90A, r"pipe\.release_from_epilogue\(\)"),
    ],
)
def test_kernel_errors(kernel, signature, cc, text):
    with pytest.raises((TypingError, CudaTypingError), match=text):
        compile_ptx(kernel, signature, cc=cc)


# ---------------------------------------------------------------------- what it becomes

PAIR_ROLES = tma.Roles(mma=tma.Warps(1), epilogue=tma.Warps(4))
PAIR = tma.OutputTilePipeline(
    2, ACC, mma=PAIR_ROLES.mma, epilogue=PAIR_ROLES.epilogue, memory="tensor", cta_group=2
)


@tma.cluster((2, 1))
def pair(out, n):
    pipe = PAIR.start()
    if PAIR_ROLES.mma.is_member():
        for _, stage in pipe.produce(0, n):
            out[0] = stage.address
    else:
        for tile, stage in pipe.consume(0, n):
            out[tile] = stage.load(0, 1)[0]
    pipe.close()


def test_a_cta_pair():
    text = compile_ptx(pair, (types.float32[::1], types.int64), cc=SM_100A)
    assert ptxas(text).warnings == ()
    assert text.count("tcgen05.commit.cta_group::2") and "multicast::cluster" in text
    assert "mbarrier.arrive.release.cluster.shared::cluster" in text, "to the even block"
    for step in ("alloc", "relinquish_alloc_permit", "dealloc"):
        assert text.count(f"tcgen05.{step}.cta_group::2") == 1
    assert "cta_group::1" not in text and ".reqnctapercluster 2, 1, 1" in text


def test_the_cluster_must_be_the_pairs():
    def alone():
        PAIR.start()

    with pytest.raises(CudaTypingError, match=r"is for clusters of \(2, 1\).*put @tma.cluster"):
        compile_ptx(alone, (), cc=SM_100A)


def test_steps_in_tensor_memory_are_in_order():
    text = compile_ptx(*kernels.output_pipeline_tmem(), cc=SM_100A)
    found = re.findall(
        r"tcgen05\.(\w+(?:::\w+)?)|(mbarrier\.arrive|mbarrier\.init|bar\.\w+|elect)\S*", text
    )
    steps = [a or b for a, b in found]
    fill = ["fence::after_thread_sync", "st", "wait::st", "fence::before_thread_sync"]
    empty = ["fence::after_thread_sync", "ld", "wait::ld", "fence::before_thread_sync"]
    fill += ["bar.warp", "elect", "commit"]
    empty += ["bar.warp", "elect", "mbarrier.arrive"]
    free = ["fence::before_thread_sync", "bar.sync", "fence::after_thread_sync", "dealloc"]
    start = ["alloc", "relinquish_alloc_permit", *["mbarrier.init"] * 4, "bar.sync"]
    for part in (start, fill, empty, free):
        places = [i for i in range(len(steps)) if steps[i : i + len(part)] == part]
        assert len(places) == 1, (part, steps)


COSTS = [
    (kernels.output_pipeline, kernels.output_pipeline_by_hand, SM_90A),
    (kernels.output_pipeline_tmem, kernels.output_pipeline_tmem_by_hand, SM_100A),
]
IDS = ["sm_90a", "sm_100a"]


@functools.cache
def compiled(build, cc):
    return compile_ptx(*build(), cc=cc)


@pytest.mark.parametrize(("ours", "hand", "cc"), COSTS, ids=IDS)
def test_ptx_and_registers_are_within_2_percent_of_the_kernel_by_hand(ours, hand, cc):
    texts = [compiled(build, cc) for build in (ours, hand)]
    count, by_hand = (sum(not i.endswith(":") for i in instructions(text)) for text in texts)
    assert count <= 1.02 * by_hand, f"{count} PTX instructions, {by_hand} by hand"
    report, reference = map(ptxas, texts)
    assert report.registers <= 1.02 * reference.registers
    for each in (report, reference):
        assert (each.spill_stores, each.spill_loads, each.stack_frame) == (0, 0, 0)
        assert each.warnings == ()
    assert not [i for i in instructions(texts[0]) if ".local" in i or i.startswith("call")]


@pytest.mark.skipif(find_tool("nvdisasm") is None, reason="nvdisasm is not installed")
@pytest.mark.parametrize(("ours", "hand", "cc"), COSTS, ids=IDS)
def test_machine_code_is_within_2_percent_of_the_kernel_by_hand(ours, hand, cc):
    count, by_hand = (machine_count(compiled(build, cc)) for build in (ours, hand))
    assert count <= 1.02 * by_hand, f"{count} machine instructions, {by_hand} by hand"


def machine_count(ptx):
    code = re.findall(r"^\s*/\*[0-9a-f]+\*/\s+(\S.*?) ?;", sass(ptx), re.M)
    return sum(not i.startswith("NOP") for i in code)


EXACT = (types.float32[:, :, ::1], types.float32[:, :, ::1], types.int64)


@pytest.mark.parametrize("build", every(3, [*kernels.SHARED, *kernels.TENSOR]))
def test_every_form_stays_in_registers(build):
    in_tensor_memory = build in kernels.TENSOR
    signature = EXACT
    if build is kernels.tensor_explicit:  # which moves bits
        signature = tuple(types.uint32[:, :, ::1] if t is EXACT[0] else t for t in EXACT)
    for cc in [SM_100A] if in_tensor_memory else [SM_90A, SM_100A]:
        report = ptxas(compile_ptx(build(3)[-1], signature, cc=cc))
        assert (report.spill_stores, report.spill_loads, report.stack_frame) == (0, 0, 0)
        assert report.warnings == ()


def test_launches_know_the_roles():
    """The name of the ring's memory is what a launch reads the block's size from."""
    for build, cc in ((kernels.output_pipeline, SM_90A), (kernels.output_pipeline_tmem, SM_100A)):
        assert "numba_tma_ring256_" in compiled(build, cc)


def test_a_function_of_the_users_takes_a_stage():
    @cuda.jit(device=True, forceinline=True)
    def fill(stage, value):
        stage.acc[0, 0] = value

    def kernel(n):
        pipe = SHARED.start()
        if ROLES.mma.is_member():
            for tile, stage in pipe.produce(0, n):
                fill(stage, tile)
        elif ROLES.epilogue.is_member():
            for _ in pipe.consume(0, n):
                pass
        pipe.close()

    report = ptxas(compile_ptx(kernel, (types.int64,)))
    assert (report.stack_frame, report.spill_stores) == (0, 0)
