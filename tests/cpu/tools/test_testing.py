"""numba_tma.tools.testing: compile, assemble and isolate without a GPU."""

import os
import pickle
import re
import threading
import time
from unittest import mock

import numpy as np
import pytest
from numba import cuda, types
from numba.cuda import extending

from numba_tma.tools import assembling, isolation, testing
from numba_tma.tools.testing import compile_ptx, instructions, ptxas, run_isolated, sass

FLOATS = types.float32[::1]


@cuda.jit
def scale(x, y, factor):
    i = cuda.grid(1)
    if i < x.size:
        y[i] = x[i] * factor


@cuda.jit(device=True)
def triple(value):
    return value * types.float32(3)


@extending.overload_method(types.Array, "first_plus", inline="always")
def first_plus(array, value):
    return lambda array, value: array[0] + value


@cuda.jit
def with_helpers(x):
    x[1] = triple(x.first_plus(x[2]))


SCALE = (FLOATS, FLOATS, types.float32)


# ---------------------------------------------------------------- compile_ptx


@pytest.mark.parametrize(
    ("cc", "target"),
    [
        ((9, 0), "sm_90"),
        ((9, 0, "a"), "sm_90a"),
        ((10, 0, "a"), "sm_100a"),
        ((10, 0, "f"), "sm_100f"),
        ((12, 0), "sm_120"),
    ],
)
@pytest.mark.parametrize("kernel", [scale, with_helpers], ids=["plain", "with helpers"])
def test_compiles_for_every_target_and_assembles(cc, target, kernel):
    ptx = compile_ptx(kernel, SCALE if kernel is scale else (FLOATS,), cc=cc)
    assert re.search(r"^\.target (\w+)", ptx, re.M).group(1) == target
    assert ptxas(ptx).arch == target


def test_helper_and_method_are_compiled_into_the_kernel():
    body = instructions(compile_ptx(with_helpers, (FLOATS,)))
    assert [line.split()[0] for line in body if ".f32" in line and line[0] in "am"] == [
        "add.f32",
        "mul.f32",
    ]
    assert not any(line.startswith("call") for line in body)


def test_takes_a_plain_function_and_a_textual_signature():
    text = "(float32[::1], float32[::1], float32)"
    assert instructions(compile_ptx(scale.py_func, text)) == instructions(compile_ptx(scale, SCALE))


def test_keeps_the_decorators_options_and_lets_them_be_overridden():
    bounded = cuda.jit(launch_bounds=96, fastmath=True)(scale.py_func)
    ptx = compile_ptx(bounded, SCALE)
    assert ".maxntid 96" in ptx and "mul.ftz.f32" in ptx
    ptx = compile_ptx(bounded, SCALE, launch_bounds=64, fastmath=False)
    assert ".maxntid 64" in ptx and "mul.f32" in ptx


def test_the_device_is_supplied_only_while_compiling():
    from numba.cuda import dispatcher

    before = dispatcher.get_current_device
    with pytest.raises(TypeError):
        compile_ptx(scale, (types.int32,) * 7)
    assert dispatcher.get_current_device is before


def test_a_tile_may_be_the_first_global_of_a_process():
    assert "st.global" in run_isolated(compile_tile, timeout=120)


def compile_tile():
    import numba_tma as tma

    row = tma.Tile((128,), "f32")

    @cuda.jit
    def kernel(y):
        tile = tma.shared_tile(row)
        tile[cuda.threadIdx.x] = 1
        y[cuda.threadIdx.x] = tile[127 - cuda.threadIdx.x]

    return compile_ptx(kernel, (FLOATS,))


def test_the_simulator_is_refused_with_the_repair():
    with pytest.raises(RuntimeError, match="unset NUMBA_ENABLE_CUDASIM"):
        run_isolated(compile_scale, timeout=120, env={"NUMBA_ENABLE_CUDASIM": "1"})


def compile_scale():
    return compile_ptx(scale, SCALE)


# ---------------------------------------------------------------- instructions

MODULE = """
.version 8.0
.target sm_90a
.address_size 64
.global .align 8 .u64 _ZN5other3fooE;
.visible .entry _ZN3abc{tag}(
	.param .u64 _ZN3abc{tag}_param_0
)
.maxntid 256, 1, 1
{{
	.reg .pred 	%p<2>;
	.reg .b32 	%r<{many}>;
	.reg .b64 	%rd<9>;
	ld.param.u64 	%rd{a}, [_ZN3abc{tag}_param_0];   // the array
	mov.u64 %rd2,%clock64; mov.u32 %r{b}, %tid.x;
	.loc	1 12 5
	// begin inline asm
	{{ .reg .pred done;
	wait_{tag}: mbarrier.try_wait.parity.shared::cta.b64 done, [%r{b}], 0;
	@!done bra wait_{tag}; }}
	// end inline asm
	mov.b64 %rd3, {{%r{b}, %r{b}}};
	.pragma "nounroll";
$L__BB0_{b}:
	st.global.u64 [_ZN5other3fooE+8], %rd3;
	@%p1 bra $L__BB0_{b};
	ret;
}}
"""


def test_instructions_are_normalised():
    ptx = MODULE.format(tag="E7v1", many=7, a=1, b=4)
    assert instructions(ptx) == [
        "ld.param.u64 %rd0, [param_0]",
        "mov.u64 %rd1, %clock64",
        "mov.u32 %r0, %tid.x",
        "L0:",
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%r0], 0",
        "@!done bra L0",
        "mov.b64 %rd2, {%r0, %r0}",
        "L1:",
        "st.global.u64 [symbol_0+8], %rd2",
        "@%p0 bra L1",
        "ret",
    ]


def test_instructions_of_equal_kernels_are_equal():
    assert instructions(MODULE.format(tag="E", many=7, a=1, b=4)) == instructions(
        MODULE.format(tag="Ev99", many=70, a=8, b=69)
    )


def test_instructions_ignore_the_kernels_name_and_line_information():
    def other(x, y, factor):
        i = cuda.grid(1)
        if i < x.size:
            y[i] = x[i] * factor

    expected = instructions(compile_ptx(scale, SCALE))
    assert expected[-1] == "ret" and len(expected) > 10
    assert instructions(compile_ptx(other, SCALE, lineinfo=True)) == expected


@pytest.mark.parametrize("kernels", [0, 2])
def test_instructions_take_one_kernel(kernels):
    with pytest.raises(ValueError, match=f"has {kernels} kernels"):
        instructions(".visible .entry f() { ret; }\n" * kernels)


def test_instructions_of_a_truncated_module():
    with pytest.raises(ValueError, match="closing brace is missing"):
        instructions(".visible .entry f() { ret;")


# ---------------------------------------------------------------- ptxas, sass


def kernel_text(body: str, target: str = "sm_90a") -> str:
    return f".version 8.0\n.target {target}\n.address_size 64\n.visible .entry f() {{\n{body}\n}}\n"


def test_ptxas_reports_registers_and_shared_memory():
    @cuda.jit
    def through_shared(x):
        buffer = cuda.shared.array(1024, types.float32)
        i = cuda.threadIdx.x
        buffer[i] = x[i]
        cuda.syncthreads()
        x[i] = buffer[1023 - i]

    report = ptxas(compile_ptx(through_shared, (FLOATS,)))
    assert report.arch == "sm_90a"
    assert 4 <= report.registers <= 32
    assert report.shared == 4096
    assert (report.spill_stores, report.spill_loads, report.stack_frame) == (0, 0, 0)
    assert report.warnings == ()


def test_ptxas_reports_spills_and_stack():
    @cuda.jit
    def many_live_values(x):
        local = cuda.local.array(64, types.float32)
        for i in range(64):
            local[i] = x[i]
        cuda.syncthreads()
        for i in range(64):
            x[i] = local[int(local[63 - i]) & 63] + local[i]

    ptx = compile_ptx(many_live_values, (FLOATS,))
    assert ptxas(ptx).stack_frame >= 256
    report = ptxas(ptx, "sm_90a", "--maxrregcount=24")
    assert report.registers <= 24
    assert report.spill_stores > 0 and report.spill_loads > 0


def test_ptxas_takes_227_KiB_on_hopper_and_48_KiB_on_sm_120():
    body = ".shared .align 1024 .b8 tile[232448]; .reg .b32 %r<2>; mov.u32 %r1, tile;" + (
        "st.shared.u32 [%r1], %r1; ret;"
    )
    assert ptxas(kernel_text(body)).shared == 232448
    with pytest.raises(testing.PtxasError, match="too much shared data"):
        ptxas(kernel_text(body, "sm_90"), "sm_120")


def test_ptxas_error_shows_its_message_and_the_line():
    with pytest.raises(testing.PtxasError) as caught:
        ptxas(kernel_text("no.such.instruction %r1;"))
    message = str(caught.value)
    assert "ptxas -arch=sm_90a" in message and "kernel.ptx, line 5" in message
    assert "5: no.such.instruction %r1;" in message
    assert "/" not in message.replace("ptxas /", "")


def test_ptxas_warnings_are_kept():
    (warning,) = ptxas(kernel_text("ret;"), None, "-maxrregcount=1000").warnings
    assert "warning" in warning


def test_ptxas_needs_a_target():
    with pytest.raises(ValueError, match="pass arch"):
        ptxas(".version 8.0\n")


def test_ptxas_missing_names_the_package(monkeypatch):
    monkeypatch.setattr(assembling, "find_tool", lambda name: None)
    with pytest.raises(FileNotFoundError, match="pip install nvidia-cuda-nvcc"):
        ptxas(kernel_text("ret;"))
    with pytest.raises(FileNotFoundError, match="pip install nvidia-cuda-nvdisasm"):
        sass(kernel_text("ret;"))


def test_find_tool_falls_back_to_path(monkeypatch, tmp_path):
    tool = tmp_path / "ptxas"
    tool.write_text("")
    tool.chmod(0o755)
    monkeypatch.setattr("cuda.pathfinder.find_nvidia_binary_utility", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert testing.find_tool("ptxas") == str(tool)


def test_sass_shows_machine_code():
    assert re.search(r"\bFMUL\b", sass(compile_ptx(scale, SCALE)))


# ---------------------------------------------------------------- run_isolated


def add(a, b):
    print("adding")
    return a + b


def fail(value):
    raise KeyError(value)


class Unpicklable(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


def fail_unpicklable():
    raise Unpicklable("this", "that")


def hang(path):
    child = os.fork()
    with open(f"{path}/{'parent' if child else 'child'}", "w") as file:
        file.write(str(os.getpid()))
    print("about to hang")
    time.sleep(600)


def die():
    os.abort()


def process_id():
    return os.getpid()


def test_isolated_returns_the_value_and_passes_output_on(capsys):
    assert (run_isolated(add, np.arange(3), 1, timeout=60) == [1, 2, 3]).all()
    assert "adding" in capsys.readouterr().out
    assert run_isolated(process_id, timeout=60) != os.getpid()


def test_isolated_source_sees_args_and_sets_result():
    assert run_isolated("result = sum(args)", 1, 2, 3, timeout=60) == 6
    assert run_isolated("pass", timeout=60) is None


def test_the_process_runs_a_function_or_a_source():
    assert isolation._call((__name__, "add"), (np.int64(2), 3)) == 5
    assert isolation._call(("numpy", "random.Generator"), (np.random.PCG64(1),)).integers(9) < 9
    assert isolation._call("result = args[0] + 1", (6,)) == 7
    assert isolation._call("other = 1", ()) is None


def test_an_error_that_cannot_be_pickled_is_told():
    found = pickle.loads(isolation._pickled_error(KeyError("key")))
    assert type(found) is KeyError and found.args == ("key",)
    found = pickle.loads(isolation._pickled_error(Unpicklable("this", "that")))
    assert type(found) is RuntimeError and str(found) == "Unpicklable: this and that"


def test_isolated_environment():
    source = "import os; result = os.environ['NUMBA_TMA_TEST']"
    assert run_isolated(source, timeout=60, env={"NUMBA_TMA_TEST": "here"}) == "here"
    assert "NUMBA_TMA_TEST" not in os.environ


def test_isolated_raises_what_the_function_raised():
    with pytest.raises(KeyError, match="the value") as caught:
        run_isolated(fail, "the value", timeout=60)
    (note,) = caught.value.__notes__
    assert "run_isolated(fail)" in note and "raise KeyError(value)" in note


def test_isolated_error_that_does_not_pickle_keeps_its_text():
    with pytest.raises(RuntimeError, match="Unpicklable: this and that"):
        run_isolated(fail_unpicklable, timeout=60)


def test_isolated_value_that_does_not_pickle():
    with pytest.raises(Exception, match="pickle"):
        run_isolated("result = lambda: 1", timeout=60)


def test_isolated_timeout_kills_the_whole_group(tmp_path):
    with pytest.raises(TimeoutError, match="hang timed out after 6 s and was killed") as caught:
        run_isolated(hang, str(tmp_path), timeout=6)  # time to start on a busy machine
    assert "about to hang" in str(caught.value)
    assert re.search(r"test_testing.py.*in hang", str(caught.value)), "where it stood"
    processes = [int((tmp_path / name).read_text()) for name in ("parent", "child")]
    deadline = time.monotonic() + 10  # the kernel ends a killed process when it gets to it
    while any(map(running, processes)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(running, processes))


def running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_isolated_death_names_the_signal():
    with pytest.raises(ChildProcessError, match="die ended with SIGABRT"):
        run_isolated(die, timeout=60)
    with pytest.raises(ChildProcessError, match="exit status 3"):
        run_isolated("import sys; sys.exit(3)", timeout=60)


def test_isolated_refuses_what_a_fresh_process_cannot_import():
    with pytest.raises(ValueError, match="top level of a module"):
        run_isolated(lambda: 1, timeout=60)


# ---------------------------------------------------------------- the GPU


def test_without_a_driver_there_is_no_gpu_and_tests_skip():
    source = """
import cuda.core, unittest
def refuse(index): raise RuntimeError("no driver")
cuda.core.Device = refuse
from numba_tma.tools import assembling, testing
try:
    testing.skip_without_gpu()
except unittest.SkipTest as skip:
    result = testing.gpu_available(), str(skip)
"""
    available, reason = run_isolated(source, timeout=60)
    assert available is False and "doctor" in reason


def test_threads_compile_at_once_and_leave_numba_as_it_was():
    from numba.cuda import dispatcher

    before, found = dispatcher.get_current_device, []
    signature = (FLOATS,)

    def work(cc):
        found.append((cc, compile_ptx(with_helpers.py_func, signature, cc)))

    targets = [(9, 0, "a"), (10, 0, "a")] * 3
    workers = [threading.Thread(target=work, args=(cc,)) for cc in targets]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert dispatcher.get_current_device is before
    assert sorted(cc for cc, _ in found) == sorted(targets)
    assert all(f".target sm_{major}{minor}{kind}" in ptx for (major, minor, kind), ptx in found)


def test_other_threads_see_the_current_device_while_one_compiles():
    from numba.cuda import dispatcher

    from numba_tma.backend.compiler import compiling_for

    seen = []
    with mock.patch.object(dispatcher, "get_current_device", lambda: "current"):
        with compiling_for((9, 0, "a")):
            seen.append(dispatcher.get_current_device().compute_capability)
            worker = threading.Thread(target=lambda: seen.append(dispatcher.get_current_device()))
            worker.start()
            worker.join()
        seen.append(dispatcher.get_current_device())
    assert seen == [(9, 0, "a"), "current", "current"]
