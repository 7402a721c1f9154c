"""Launch control as a scheduler: its counts, its errors and the compiled kernels."""

import functools
import re

import pytest
from numba import cuda, types
from numba.core.errors import TypingError
from numba.cuda.core.errors import TypingError as CudaTypingError

import numba_tma as tma
from numba_tma.backend.lowering.types import TensorMapType
from numba_tma.backend.numba_cuda.requirements import read
from numba_tma.host.architectures import capability_of
from numba_tma.tools.testing import compile_ptx, instructions
from tests.kernels import launch_control as kernels
from tests.kernels.launch_control import ALONE, BY_ROLES, BY_THREADS, IN_CLUSTER, ROLES
from tests.machine_code import all_in_registers
from tests.tiers import quick

N, MAP = types.int64, TensorMapType(2, kernels.TILE)
KERNELS = {
    kernels.count: (types.int64[:, ::1], N, N),
    kernels.copy: (MAP, MAP, N, N),
    kernels.count_by_threads: (types.int64[:, ::1], N, N),
    kernels.count_in_cluster: (types.int64[:, :, ::1], N, N),
}
CompileError = (TypingError, CudaTypingError)
TARGETS = ["100a", "103a", "110a", "120a"]
PLAIN = ["100", "120"]


@functools.cache
def compiled(kernel, target=TARGETS[0]):
    return compile_ptx(kernel, KERNELS[kernel], cc=capability_of(target))


@pytest.mark.parametrize(
    ("control", "arrivals", "nbytes"),
    [(ALONE, 0, 96), (BY_ROLES, 3, 96), (BY_THREADS, 41, 32), (IN_CLUSTER, 3, 64)],
)
def test_counts(control, arrivals, nbytes):
    assert (control.arrivals, control.nbytes) == (arrivals, nbytes)
    assert sum(control.shared_parts("").values()) == nbytes
    assert control.empty_offset - control.full_offset == 8 * control.slots


def test_the_last_role_asks_by_default():
    assert tma.LaunchControl(ROLES).asks == ROLES.load
    assert repr(tma.LaunchControl(ROLES, cluster=2)) == (
        "LaunchControl(Roles(work=Warps(2), load=Warps(1)), asks=load=Warps(1), slots=3, "
        "cluster=(2, 1))"
    )


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"roles": ROLES.load}, TypeError, r"takes the block's Roles, .*, not load=Warps\(1\)"),
        ({"asks": ROLES.load}, ValueError, "one of the roles, which are not given"),
        ({"roles": ROLES, "asks": kernels.MIXED_ROLES.ask}, ValueError, "which are work=Warps"),
        ({"slots": 0}, ValueError, r"slots=0\): at least 1 answer"),
        ({"slots": "a"}, ValueError, r"slots='a'\): at least 1 answer"),
        ({"cluster": 0}, ValueError, "at least 1 block along each axis"),
        ({"debug": 1}, TypeError, r"LaunchControl\(debug=...\) takes True"),
    ],
)
def test_wrong_parameters(options, error, message):
    with pytest.raises(error, match=message):
        tma.LaunchControl(**options)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.py_func.__name__)
@pytest.mark.parametrize("target", quick([TARGETS[0]], TARGETS))
def test_every_target(target, kernel):
    all_in_registers(compiled(kernel, target))


@pytest.mark.parametrize("target", quick([PLAIN[1]], PLAIN))
def test_plain_targets_have_the_form_of_a_single_block(target):
    all_in_registers(compiled(kernels.count, target))
    with pytest.raises(CompileError, match="launch control needs sm_100a, 100f.* compile it for"):
        compiled(kernels.count_in_cluster, target)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.py_func.__name__)
def test_a_launch_has_the_threads_of_the_roles_or_whole_warps(kernel):
    threads = {
        kernels.copy: ROLES.threads,
        kernels.count_by_threads: kernels.MIXED_ROLES.threads,
        kernels.count_in_cluster: ROLES.threads,
    }.get(kernel)
    required = read(compiled(kernel))
    assert required.blocks == ({threads} if threads else set())
    assert required.line == (threads is None)


def test_hopper_has_a_grid_that_fits():
    with pytest.raises(CompileError) as caught:
        compiled(kernels.count, "90a")
    assert (
        "launch control needs compute capability 10.0 or newer; this kernel is compiled for 9.0; "
        "or use PersistentGrid"
    ) in re.sub(r"\s+", " ", str(caught.value))


def test_a_persistent_grid_needs_no_memory_on_hopper():
    work_of = tma.PersistentGrid(cluster=2)

    @cuda.jit
    @tma.cluster(2)
    def kernel(tiles, n):
        for tile in work_of.start().tiles(kernels.SCHEDULER.over(n, n)):
            tiles[tile.row, tile.column] = 1

    report = all_in_registers(compile_ptx(kernel, (N[:, ::1], N)))
    assert report.shared == 0
    with pytest.raises(ValueError, match="at least 1 block along each axis"):
        tma.PersistentGrid(cluster=0)


def test_a_request_is_made_at_the_start_and_after_each_answer():
    code = "\n".join(instructions(compiled(kernels.count)))
    assert len(re.findall("clusterlaunchcontrol.try_cancel", code)) == 2
    assert "multicast" not in code
    first, second = (m.start() for m in re.finditer("clusterlaunchcontrol.try_cancel", code))
    read = code.index("query_cancel.is_canceled")
    assert first < read < code.index("fence.proxy.async") < second


def test_a_cluster_has_one_request_and_answers_everywhere():
    code = compiled(kernels.count_in_cluster)
    requests = re.findall(r"clusterlaunchcontrol.try_cancel\S*", code)
    assert requests and all(".multicast::cluster::all" in r for r in requests)
    assert "mbarrier.arrive.release.cluster.shared::cluster.b64" in code


def test_waits_end_in_debug_mode():
    control = tma.LaunchControl(debug=True)

    @cuda.jit
    def kernel(n):
        for _ in control.start().tiles(kernels.SCHEDULER.over(n, n)):
            pass

    code = compile_ptx(kernel, (N,), cc=(10, 0, "a"))
    all_in_registers(code)
    assert "globaltimer" in code and "globaltimer" not in compiled(kernels.count)
