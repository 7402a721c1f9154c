"""numba_tma.tools.testing: compile, assemble and isolate without a GPU."""

import re
import threading
from unittest import mock

import pytest
from numba import cuda, types
from numba.cuda import extending

from numba_tma.tools import assembling, testing
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


@pytest.mark.slow
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
