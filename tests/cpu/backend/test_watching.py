"""What races mode and traces ask of the compiler: lines, functions, and meetings of threads."""

import importlib
from pathlib import Path
from types import SimpleNamespace

import pytest
from numba import cuda, types
from numba.core.errors import TypingError
from numba.cuda.core import ir
from numba.cuda.core.errors import TypingError as CudaTypingError
from numba.cuda.descriptor import cuda_target

import numba_tma as tma
from numba_tma.backend.numba_cuda import loops, registration
from numba_tma.host.host_only import HOST_ONLY, call_refusal
from numba_tma.host.loop_rules import nested_refusal
from tests.frozen import changing

#: The package has a function of this name.
watching = importlib.import_module("numba_tma.backend.numba_cuda.watching")
PACKAGE = Path(tma.__file__).parent
LOC = ir.Loc("mine.py", 3)


@pytest.mark.parametrize(
    ("file", "known"),
    [
        ("/home/user/kernels/mine.py", True),
        (str(PACKAGE / "kernels/matmul/kernel.py"), True),  # a shipped kernel is a user's
        (str(PACKAGE / "pipeline/tile.py"), False),
        (str(PACKAGE / "device/shared.py"), False),
        (str(PACKAGE / "__init__.py"), False),
        ("/home/user/numba_tma_tests/kernels.py", True),
    ],
)
def test_a_line_of_the_library_is_no_line_of_a_kernel(monkeypatch, file, known):
    monkeypatch.setattr(watching, "_PLACES", [("/home/outer.py", 1), (file, 7)])
    assert watching.current_line() == ((file, 7) if known else None)


def test_outside_of_a_compile_there_is_no_line(monkeypatch):
    monkeypatch.setattr(watching, "_PLACES", [])
    assert watching.current_line() is None


def test_the_innermost_function_counts(monkeypatch):
    outer, inner = (SimpleNamespace(__module__=name) for name in ("mine", "tma.device"))
    for compiling, module, found in [
        ([], "mine", False),
        ([outer], "mine", True),
        ([outer, inner], "mine", False),
        ([outer, inner], "tma.device", True),
    ]:
        monkeypatch.setattr(watching, "COMPILING", compiling)
        assert watching.is_compiling(module) is found


@pytest.fixture
def lowered(monkeypatch):
    """Watch a compiler that notes the statements that it lowers; return what happened."""
    happened = []

    def lower_inst(self, inst):
        happened.append(("lowered", inst, watching._PLACES[-1]))
        if inst == "fails":
            raise RuntimeError(inst)

    class Lower:
        context, builder = "context", "builder"
        loc = SimpleNamespace(filename=Path("mine.py"), line=3)

        def typeof(self, name):
            return SimpleNamespace(typing_key=getattr(cuda, name, name))

    Lower.lower_inst = lower_inst
    monkeypatch.setattr(watching.lowering, "Lower", Lower)
    # Bodies have a lowering of their own, which lowers an assignment by itself.
    of_bodies = type("LeanLower", (Lower,), {"lower_inst": lower_inst})
    monkeypatch.setattr(watching, "LeanLower", of_bodies)
    monkeypatch.setattr(watching, "CALLED", [])
    monkeypatch.setattr(watching, "LABELLED", [])
    with watching.watching(
        called=lambda *given: happened.append(("called", *given)),
        labelled=lambda *given: happened.append(("labelled", *given)),
        synchronises=lambda *given: happened.append(("synchronises", *given)),
    ):
        yield happened
    assert watching.CALLED == watching.LABELLED == []
    assert Lower.lower_inst is of_bodies.lower_inst is lower_inst


def call_of(name):
    """Return a statement that calls a function."""
    var = ir.Var(None, name, LOC)
    return SimpleNamespace(value=ir.Expr.call(var, [], (), LOC))


@pytest.mark.parametrize(
    ("name", "meets"),
    [
        ("syncthreads", True), ("syncthreads_and", True), ("syncthreads_count", True),
        ("syncwarp", False), ("threadfence", False), ("other", False),
    ],
)  # fmt: skip
@pytest.mark.parametrize("of_a_body", [False, True])
def test_a_meeting_is_watched_on_both_sides(lowered, name, meets, of_a_body):
    statement = call_of(name)
    lower = watching.LeanLower if of_a_body else watching.lowering.Lower
    lower().lower_inst(statement)
    around = [("synchronises", "context", "builder", after) for after in (False, True)]
    here = ("lowered", statement, ("mine.py", 3))
    assert lowered == ([around[0], here, around[1]] if meets else [here])
    assert watching._PLACES == []


def test_what_is_no_call_is_no_meeting(lowered):
    negation = ir.Expr.unary("-", ir.Var(None, "x", LOC), LOC)
    for statement in (SimpleNamespace(), SimpleNamespace(value=negation)):
        watching.lowering.Lower().lower_inst(statement)
    assert [what for what, *_ in lowered] == ["lowered", "lowered"]


def test_a_statement_that_fails_is_over(lowered):
    with pytest.raises(RuntimeError, match="fails"):
        watching.lowering.Lower().lower_inst("fails")
    assert watching._PLACES == []


def test_only_a_users_call_of_a_body_is_told(lowered, monkeypatch):
    (told,) = watching.CALLED
    for compiling, functions, heard in [([], [], 0), (["mine"], [], 1), (["body"], ["body"], 0)]:
        lowered.clear()
        monkeypatch.setattr(watching, "COMPILING", compiling)
        monkeypatch.setattr(watching, "FUNCTIONS", functions)
        told("context", "builder", "function")
        assert lowered == [("called", "context", "builder", "function")] * heard
    (label,) = watching.LABELLED
    label(1, 2)
    assert lowered[-1] == ("labelled", 1, 2)


# ------------------------------------------------------------------- the functions of warps

TOGETHER = [
    cuda.syncthreads, cuda.syncthreads_count, cuda.syncthreads_and, cuda.syncthreads_or,
    cuda.syncwarp, cuda.all_sync, cuda.any_sync, cuda.eq_sync, cuda.ballot_sync,
    cuda.match_any_sync, cuda.match_all_sync, cuda.shfl_sync, cuda.shfl_up_sync,
    cuda.shfl_down_sync, cuda.shfl_xor_sync, tma.cluster_sync, tma.ptx.elect_sync,
    tma.ptx.bar_warp_sync, tma.ptx.barrier_sync, tma.ptx.barrier_arrive,
]  # fmt: skip
ALONE = [cuda.threadfence, cuda.popc, cuda.activemask, tma.ptx.laneid, tma.ptx.fence_proxy_async]


def type_of(function):
    registration.register_declared()
    context = cuda_target.typing_context
    context.refresh()
    if getattr(cuda, function.__name__, None) is function:
        return context.resolve_getattr(types.Module(cuda), function.__name__)
    return context.resolve_value_type(function)


@pytest.mark.parametrize("function", TOGETHER, ids=lambda f: f.__name__)
def test_one_thread_does_not_do_what_a_warp_does_together(function):
    call = SimpleNamespace(loc=None)
    with pytest.raises(CudaTypingError) as caught:
        loops._check_meeting(type_of(function), "produce", call)
    assert nested_refusal(function.__name__, "produce") in str(caught.value)


@pytest.mark.parametrize("function", ALONE, ids=lambda f: f.__name__)
def test_one_thread_does_what_threads_do_alone(function):
    loops._check_meeting(type_of(function), "produce", None)


# --------------------------------------------------------------------- functions of the host


def test_the_host_has_functions_that_kernels_may_not_call():
    assert len(HOST_ONLY) > 20


@pytest.mark.parametrize("subject", HOST_ONLY, ids=lambda subject: subject.__name__)
def test_a_kernel_cannot_call_what_is_the_hosts(subject):
    function = type_of(subject)
    assert isinstance(function, types.Function | types.NumberClass | types.ClassType)
    with pytest.raises((TypingError, CudaTypingError)) as caught:
        function.get_call_type(cuda_target.typing_context, (types.int32,), {})
    assert call_refusal(subject.__name__) in str(caught.value)


def test_only_what_a_compile_gathers_changes():
    assert changing("backend") == {"Description", "Facts", "Field"}
