"""A survey's run: NumPy in the place of torch and of our kernels, and a clock in the timer's."""

import json
import math
import re
import signal
import sys
import time
import types
from pathlib import Path

import numpy as np
import pytest

from numba_tma.tools import bench
from numba_tma.tools.bench.survey import calls, draw, run
from tests.cpu.tools import test_bench_matmul as stand_in

Tensor = stand_in.Tensor
GPU = "NVIDIA H200"
LOST = RuntimeError("CUDA error: an illegal memory access\nand more")


class Array(Tensor):
    """An array with what rows need of torch's tensors."""

    def to(self, dtype):
        return self.astype(dtype).view(type(self))

    def copy_(self, other):
        self[:] = other
        return self


def rms_norm(x, shape, w, eps):
    assert shape == x.shape[-1:]
    return x / np.sqrt(np.mean(np.square(np.asarray(x)), -1, keepdims=True) + eps) * w


def layer_norm(x, shape, w, b, eps):
    centred = x - np.mean(np.asarray(x), -1, keepdims=True)
    scale = np.sqrt(np.mean(np.square(np.asarray(centred)), -1, keepdims=True) + eps)
    return centred / scale * w + b


def gelu(x):
    return x * (0.5 + 0.5 * np.vectorize(math.erf)(x / math.sqrt(2)))


def silu(x):
    return x / (1 + np.exp(-x))


def attention_of_torch(q, k, v, is_causal, enable_gqa=False):
    assert enable_gqa == (q.shape[1] != k.shape[1])
    times = q.shape[1] // k.shape[1]
    wide = (np.repeat(t, times, axis=1) for t in (k, v))
    result = stand_in.of_heads(q, *wide, is_causal).view(Array)
    result.causal = is_causal  # which `grad` has to know
    return result


def grad(out, leaves, dout, retain_graph):
    found = gradients(*(np.swapaxes(t, 1, 2) for t in (dout, *leaves)), out.causal)
    return tuple(np.swapaxes(t, 1, 2) for t in found)


def attention(q, k, v, out=None, causal=False, return_lse=False):
    """Compute as torch does, in our order of axes."""
    of_heads = (np.swapaxes(t, 1, 2) for t in (q, k, v))
    result = np.swapaxes(
        attention_of_torch(*of_heads, causal, enable_gqa=q.shape[2] != k.shape[2]), 1, 2
    )
    if out is not None:
        out[:] = result
    return (result, np.zeros(1)) if return_lse else result


def gradients(dout, q, k, v, causal):
    """Return those of attention, with sums over heads that share keys."""
    group = q.shape[2] // k.shape[2]
    wide = (np.repeat(t, group, axis=2) for t in (k, v))
    dq, *dkv = stand_in.gradients(dout, q, *wide, causal)
    batch, keys, heads, depth = k.shape
    return dq, *(t.reshape(batch, keys, heads, group, depth).sum(3) for t in dkv)


def attention_backward(dout, q, k, v, out, lse, causal, dq, dk, dv):
    for target, gradient in zip((dq, dk, dv), gradients(dout, q, k, v, causal)):
        target[:] = gradient


def writes(function):
    """Return the function with an `out`, as ours have."""

    def ours(*arrays, out):
        out[...] = function(*arrays)

    return ours


OURS = {
    "matmul": {"matmul": writes(np.matmul)},
    "attention": {"attention": attention, "attention_backward": attention_backward},
    "rows": {
        "rmsnorm": writes(lambda x, w: rms_norm(x, x.shape[-1:], w, 1e-6)),
        "layernorm": writes(lambda x, w, b: layer_norm(x, x.shape[-1:], w, b, 1e-5)),
        "softmax": writes(lambda x: stand_in.softmax(x, -1)),
        "row_sum": writes(lambda x: np.sum(x, -1, dtype=np.float64)),
        "column_sum": writes(lambda x: np.sum(x, 0, dtype=np.float64)),
    },
    "pointwise": {
        "add": writes(np.add),
        "gelu": writes(gelu),
        "swiglu": writes(lambda gate, up: silu(gate) * up),
    },
    "transpose": {"transpose": writes(np.transpose)},
    "copy": {"copy": writes(np.asarray)},
}
NAMES = [(folder, name) for folder, functions in OURS.items() for name in functions]


def ship(monkeypatch, folder, name, function):
    monkeypatch.setattr(sys.modules[f"numba_tma.kernels.{folder}"], name, function)


@pytest.fixture
def seconds():
    """The times of the runs, by name; of a run that is not there, 1 ms."""
    return {"numba_tma": 1e-3, "copy": 0.5e-3}


@pytest.fixture
def torch(monkeypatch, seconds):
    """Return what stands for torch, with our kernels and the timer replaced."""
    for folder, functions in OURS.items():
        fake = types.SimpleNamespace(**functions)
        monkeypatch.setitem(sys.modules, f"numba_tma.kernels.{folder}", fake)

    def worse_of_two(runs, repeats):
        assert repeats == run.REPEATS
        for one in runs.values():
            one()
        return {name: seconds.get(name, 1e-3) for name in runs}

    monkeypatch.setattr(run, "worse_of_two", worse_of_two)
    monkeypatch.setattr(calls, "is_here", lambda package: False)
    monkeypatch.setattr(calls, "CHECKED_AT_ONCE", 40)
    monkeypatch.setattr(signal, "alarm", lambda seconds: 0)
    rng = np.random.default_rng(0)

    def made(make):
        return lambda *args, device, **how: make(*args, **how).view(Array)

    def mm(a, b, out):
        out[:] = a @ b
        return out

    found = types.SimpleNamespace(
        randn=made(lambda *s: rng.standard_normal(s[0] if isinstance(s[0], tuple) else s)),
        full=made(np.full),
        ones=made(lambda *shape: np.ones(shape)),
        linspace=made(np.linspace),
        arange=made(np.arange),
        full_like=np.full_like,
        cat=lambda parts: np.concatenate(parts).view(Array),
        mm=mm,
        add=np.add,
        equal=np.array_equal,
        softmax=stand_in.softmax,
        manual_seed=lambda seed: None,
        _scaled_mm=lambda a, b, *scales, out_dtype, use_fast_accum: a @ b,
        bfloat16=np.float32,
        float16=np.float32,
        float32=np.float32,
        float8_e4m3fn=np.float16,
        autograd=types.SimpleNamespace(grad=grad),
        cuda=types.SimpleNamespace(synchronize=lambda: None, empty_cache=lambda: None),
    )
    stand_in.fake_sdpa(found, monkeypatch, attention_of_torch)
    for function in (rms_norm, layer_norm, gelu, silu):
        setattr(found.nn.functional, function.__name__, function)
    monkeypatch.setattr(Tensor, "requires_grad_", lambda self: self, raising=False)
    monkeypatch.setitem(sys.modules, "torch", found)
    return found


def small(case):
    """Return a case of the same kind that NumPy computes at once."""
    shape = tuple(2 + n % 23 for n in case.shape)
    if len(shape) == 6:
        shape = (2, *shape[1:2], 4, 8, shape[4], 4 if case.shape[2] == case.shape[5] else 2)
    return draw.Case(case.family, case.kernel, case.dtype, shape, case.form)


CASES = list(
    {
        case.key: case for case in map(small, draw.cases(dict.fromkeys(draw.FAMILIES, 24), 1))
    }.values()
)


def measured(torch, case):
    return run.measured(torch, GPU, case)


# --------------------------------------------------------------------------------- one case


@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join(case.key))
def test_a_case_of_every_kind_is_measured(torch, seconds, case):
    row = measured(torch, case)
    assert "error" not in row, row["error"]
    assert (row["unit"], row["numba_tma"], row["ratio"]) == ("us", 1000, 1)
    assert row["bytes"] > 0 and (row["operations"] > 0) == (case.family != "rows")
    peers = {"matmul": ["cuBLAS"], "rows": ["torch"]}.get(case.family, ["cuDNN", "torch FLASH"])
    assert list(row["peers"]) == (["cuBLASLt"] if case.dtype == "e4m3" else peers)


@pytest.mark.parametrize(("folder", "name"), NAMES)
def test_a_wrong_result_is_a_row_with_its_error(torch, monkeypatch, folder, name):
    """One value that is not written, of a result or of a gradient."""
    right = OURS[folder][name]

    def wrong(*arrays, **how):
        right(*arrays, **how)
        last = how["dv"] if "dv" in how else how["out"]
        last[(-1,) * last.ndim] = np.nan

    def forward(*arrays, **how):
        return right(*arrays, **how) if "return_lse" in how else wrong(*arrays, **how)

    ship(monkeypatch, folder, name, forward)
    (first, *_) = [case for case in CASES if case.kernel == name]
    row = measured(torch, first)
    assert list(row) == ["error"] and row["error"].startswith("AssertionError: ")
    assert "wrong" in row["error"] or "values are not" in row["error"]


@pytest.mark.parametrize("form", draw.LAYOUTS)
def test_a_matmuls_operands_are_contiguous_along_these_axes(torch, monkeypatch, form):
    given = []

    def matmul(a, b, out):
        given.append("".join((*("MK"[i] for i in along(a)), *("KN"[i] for i in along(b)))))
        np.matmul(a, b, out=out)

    def along(matrix):
        return [i for i in (0, 1) if matrix.strides[i] == matrix.itemsize]

    ship(monkeypatch, "matmul", "matmul", matmul)
    measured(torch, draw.Case("matmul", "matmul", "bf16", (3, 4, 5), form))
    assert given[0] == form


def test_the_probabilities_of_long_rows_may_be_subnormal_in_f16(torch, monkeypatch):
    def softmax(x, out):
        out[:] = stand_in.softmax(x, -1).astype(np.float16)

    case = draw.Case("rows", "softmax", "f16", (2, 200000), "odd")
    ship(monkeypatch, "rows", "softmax", softmax)
    assert "ratio" in measured(torch, case)
    monkeypatch.setattr(calls, "F16_SPACING", 0)
    assert "values are wrong" in measured(torch, case)["error"]


def test_products_and_bytes_of_a_case(torch):
    def counted(*case):
        row = measured(torch, draw.Case(*case))
        return row["bytes"], row["operations"]

    assert counted("matmul", "matmul", "bf16", (2, 3, 5), "KK") == (4 * (10 + 15 + 6), 60)
    shape = (2, 6, 4, 8, 6, 2)
    q, k = 4 * math.prod(shape[:4]), 4 * 2 * 6 * 2 * 8
    assert counted("attention", "attention", "f16", shape, "full")[1] == 4 * 2 * 4 * 36 * 8
    assert counted("attention", "attention", "f16", shape, "causal") == (
        2 * q + 2 * k,
        2 * 2 * 4 * 36 * 8,
    )
    backward = counted("attention_backward", "attention_backward", "f16", shape, "full")
    assert backward[1] == 10 * 2 * 4 * 36 * 8
    for kernel, moved in (("add", 3), ("row_sum", 1), ("softmax", 2)):
        assert counted("rows", kernel, "f32", (4, 8), "odd") == (moved * 4 * 32, 0)


def test_the_ratio_is_that_of_the_best_right_peer(torch, seconds, monkeypatch, capsys):
    case = draw.Case("attention", "attention", "f16", (1, 16, 1, 8, 16, 1), "full")
    seconds |= {"numba_tma": 2e-3, "cuDNN": 3e-3, "torch FLASH": 1.5e-3}
    row = measured(torch, case)
    assert row["ratio"] == 0.75 and row["peers"] == {"cuDNN": 3000, "torch FLASH": 1500}
    peers = calls.attention.by_torch

    def one_is_wrong(*args, **how):
        return peers(*args, **how) | {"torch FLASH": lambda: np.zeros((1, 16, 1, 8)).view(Array)}

    monkeypatch.setattr(calls.attention, "by_torch", one_is_wrong)
    row = measured(torch, case)
    assert row["ratio"] == 1.5 and row["peers"] == {"cuDNN": 3000}
    assert f"attention {case.name}: torch FLASH fails" in capsys.readouterr().out
    monkeypatch.setattr(calls.attention, "by_torch", lambda *args, **how: {})
    assert measured(torch, case) == {"error": "RuntimeError: no peer can do it"}


def test_a_copy_beside_a_row_kernel_is_of_the_bytes_that_it_moves(torch):
    for kernel, copied in (("add", 750), ("softmax", 500), ("row_sum", 250), ("copy", None)):
        assert measured(torch, draw.Case("rows", kernel, "bf16", (8, 8), "view"))["copy"] == copied


def test_other_peers_are_asked_where_they_are_installed(torch, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(calls, "is_here", lambda package: asked.append(package) or True)
    for module in ("flash_attn.cute", "quack"):
        monkeypatch.setitem(sys.modules, module, None)
    measured(torch, draw.Case("attention", "attention", "f16", (1, 16, 1, 8, 16, 1), "full"))
    measured(torch, draw.Case("rows", "softmax", "f16", (8, 8), "odd"))
    measured(torch, draw.Case("rows", "gelu", "f16", (8, 8), "odd"))
    said = capsys.readouterr().out
    assert "no FlashAttention-4 beside it" in said and said.count("no QuACK beside it") == 1
    assert asked == ["flash_attn", "quack"]


@pytest.mark.parametrize(
    ("form", "start", "pitch"),
    [("aligned", 0, 5), ("odd", 0, 5), ("shifted", 1, 5), ("view", 1, 8)],
)
def test_alignments(form, start, pitch):
    memory = []

    def flat(size):
        memory.append(np.arange(size))
        return memory[0]

    found = calls.placed(flat, form, 3, 5)
    assert found.tolist() == [[start + pitch * i + j for j in range(5)] for i in range(3)]
    assert found.base is not None and np.shares_memory(found, memory[0])


# -------------------------------------------------------------------------------- the runs


@pytest.fixture
def few(monkeypatch, tmp_path, torch):
    """Return three cases that a survey draws, in a folder of its own, without processes."""
    kernels = ("add", "matmul", "softmax")
    cases = [next(case for case in CASES if case.kernel == kernel) for kernel in kernels]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "start", in_this_process)
    monkeypatch.setattr(run, "prepare_all", lambda cases, jobs, seconds: run.prepare(cases))
    return cases


def in_this_process(path, gpu, cases, seconds):
    given = json.dumps((str(path), gpu, [run.asdict(case) for case in cases], seconds))
    run.work(*json.loads(given))
    return 0


def rows_of(path):
    return {run.key(row): row for row in json.loads(Path(path).read_text())["rows"]}


def test_the_whole_survey_from_the_command_to_the_page(torch, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "start", in_this_process)
    monkeypatch.setattr(bench, "gpu_name", lambda: GPU)
    monkeypatch.setattr(run, "run_isolated", lambda function, *args, timeout, env: function(*args))
    asked = []
    monkeypatch.setattr(
        bench.survey, "cases", lambda counts, seed: asked.append((counts, seed)) or CASES
    )
    page = Path("page.md")
    page.write_text("<!-- survey h200: begin -->\n<!-- survey h200: end -->\n")
    # One job: several would redirect the output of this one process.
    assert bench.main(["--survey", "--jobs", "1", "--seed", "4"]) == 0
    file = Path("tests/benchmarks/results/survey_h200.json")
    found = json.loads(file.read_text())
    assert asked == [({family: count for family, (_, count) in draw.FAMILIES.items()}, 4)]
    assert set(rows_of(file)) == {case.key for case in CASES}
    assert set(found) == {"gpu", "versions", "families", "rows"}
    for family in draw.FAMILIES:
        cases = sum(case.family == family for case in CASES)
        one = {"geomean": 1.0, "p5": 1.0, "worst": 1.0}
        assert found["families"][family] == {"cases": cases, "errors": 0} | one
    said = capsys.readouterr()
    assert "| attention | " in said.out and f"{len(CASES)} of {len(CASES)}" in said.err
    command = ["--survey", "--from-results", str(file), "--page", "page.md"]
    assert bench.main([*command, "--plot", "docs/survey_h200.svg"]) == 0
    assert "![The ratios on an NVIDIA H200](docs/survey_h200.svg)" in page.read_text()


def test_families_and_their_number_are_chosen(monkeypatch, tmp_path):
    given = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench, "gpu_name", lambda: GPU)
    monkeypatch.setattr(run, "survey", lambda *args: given.append(args) or {"gpu": GPU, "rows": []})
    options = ["--cases", "3", "--seconds", "9", "--jobs", "0", "--output", "mine.json"]
    bench.main(["--survey", "rows", "matmul", *options])
    path, gpu, cases, seconds, jobs = given[0]
    assert (str(path), gpu, seconds, jobs) == ("mine.json", GPU, 9, 0)
    assert cases == draw.cases({"rows": 3, "matmul": 3}, 0) and len(cases) == 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--survey", "sorting"], "invalid choice: 'sorting'"),
        (["--survey", "--only", "add"], "--only and --shape choose measured cases, and --survey"),
        (["--survey", "--shape", "2^28"], "--only and --shape choose measured cases"),
        (["--survey", "--cases", "0"], "--cases 0: it is 1 or more"),
        (["--survey", "--jobs", "-1"], "--jobs -1: it is 0 or more"),
        (["--survey", "--seconds", "nan"], "--seconds nan: it is 0 or more"),
        (["--seed", "3"], "--seed is for a survey: add --survey"),
        (["--only", "add", "--again"], "--again is for a survey: add --survey"),
    ],
)
def test_options_that_do_not_fit_are_refused(arguments, message, capsys):
    with pytest.raises(SystemExit):
        bench.main(arguments)
    assert message in capsys.readouterr().err


def test_a_run_goes_on_where_another_was_cut(few, monkeypatch, capsys):
    path, order = Path("mine.json"), []
    times = run._times

    def cut_at_the_second(torch, gpu, case):
        order.append(case)
        if len(order) == 2:
            raise KeyboardInterrupt
        return times(torch, gpu, case)

    monkeypatch.setattr(run, "_times", cut_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        run.survey(path, GPU, few, 100, 0)
    cut = rows_of(path)
    assert list(cut) == [case.key for case in few[:2]]
    assert "ratio" in cut[few[0].key] and cut[few[1].key]["error"] == run.UNFINISHED
    found = run.survey(path, GPU, few, 100, 0)
    assert order == [few[0], few[1], few[1], few[2]]
    assert all("ratio" in row for row in found["rows"]) and rows_of(path).keys() == {
        case.key for case in few
    }
    assert rows_of(path)[few[0].key] == cut[few[0].key]
    run.survey(path, GPU, few, 100, 1)
    assert len(order) == 4, "nothing is left to measure"


def test_when_the_time_is_over_it_is_said_how_many_are_left(few, monkeypatch, capsys):
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    times = run._times

    def slow(torch, gpu, case):
        clock[0] += 6
        return times(torch, gpu, case)

    monkeypatch.setattr(run, "_times", slow)
    run.survey(Path("mine.json"), GPU, few, 10, 0)
    assert len(rows_of("mine.json")) == 2
    assert "1 of 3 cases are left, the time is over" in capsys.readouterr().out
    run.survey(Path("mine.json"), GPU, few, 10, 0)
    assert len(rows_of("mine.json")) == 3 and "are left" not in capsys.readouterr().out


def test_a_process_that_finds_the_time_over_is_no_error(few, monkeypatch, capsys):
    clock = iter([0.0, 9.0, 9.5, 11.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(run, "start", lambda path, gpu, cases, seconds: int(seconds != 0.5))
    assert run.survey(Path("mine.json"), GPU, few, 10, 0)["rows"] == []
    assert "3 of 3 cases are left" in capsys.readouterr().out


@pytest.mark.parametrize(("seconds", "limit"), [(100, 40), (86400, 600)])
def test_preparing_has_a_part_of_the_time(few, monkeypatch, seconds, limit):
    given = []
    monkeypatch.setattr(run, "prepare_all", lambda *args: given.append(args))
    run.survey(Path("mine.json"), GPU, few, seconds, 16)
    assert given == [(few, 3, limit)]


def test_one_failing_case_is_not_the_end(few, monkeypatch, capsys):
    def fails(*arrays, **how):
        raise ValueError("gate has no such shape\nsecond line")

    kernel = few[0].kernel
    folder = next(folder for folder, name in NAMES if name == kernel)
    ship(monkeypatch, folder, kernel, fails)
    found = run.survey(Path("mine.json"), GPU, few, 100, 1)
    first, *others = found["rows"]
    assert first["error"] == "ValueError: gate has no such shape"
    assert all("ratio" in row for row in others)
    assert found["families"][few[0].family]["errors"] == 1
    assert all(re.match(r"\d{4}-\d\d-\d\d$", row["date"]) for row in found["rows"])


def test_a_process_that_lost_its_context_is_replaced(few, monkeypatch, torch):
    processes, lost = [], []
    times = run._times

    def takes_the_context(torch, gpu, case):
        if case == few[0]:
            lost.append(case)
            raise LOST
        return times(torch, gpu, case)

    def synchronize():
        if lost:
            raise LOST

    def start(*given):
        processes.append(lost.clear())
        return in_this_process(*given)

    monkeypatch.setattr(run, "_times", takes_the_context)
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    monkeypatch.setattr(run, "start", start)
    found = run.survey(Path("mine.json"), GPU, few, 100, 0)
    assert len(processes) == 2
    assert found["rows"][0]["error"] == "RuntimeError: CUDA error: an illegal memory access"
    assert all("ratio" in row for row in found["rows"][1:])


PROGRAM = """
import json, os, sys
from pathlib import Path
from numba_tma.tools.bench.survey import run

assert os.environ["FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED"] == "1"
path, gpu, cases, seconds = json.load(sys.stdin)
results = run.read(Path(path), gpu)
for case in run.left(results, [run._case(case) for case in cases]):
    run.add(Path(path), results, run._row(case, {"error": run.UNFINISHED}))
    if case.shape[0] == 1:
        os.kill(os.getpid(), 14)
    if case.shape[0] == 2:
        sys.exit(3)
    run.add(Path(path), results, run._row(case, {"ratio": 1.0}))
"""


def test_a_case_that_ends_its_process_has_a_row(monkeypatch, tmp_path):
    """The program writes what `work` writes, and dies at the first case and at the second."""
    cases = [draw.Case("rows", "add", "f32", (n, 8), "odd") for n in (1, 2, 3)]
    monkeypatch.setattr(run, "PROGRAM", PROGRAM)
    found = run.survey(tmp_path / "mine.json", GPU, cases, 100, 0)
    assert [row.get("error") for row in found["rows"]] == [
        "the process ended: SIGALRM, after 40 s",
        "the process ended: exit status 3",
        None,
    ]
    monkeypatch.setattr(run, "PROGRAM", "raise SystemExit('tried again')")
    assert run.survey(tmp_path / "mine.json", GPU, cases, 100, 0)["rows"] == found["rows"]


def test_a_hanging_case_meets_the_alarm(monkeypatch, few):
    alarms = []
    monkeypatch.setattr(signal, "alarm", alarms.append)
    run.survey(Path("mine.json"), GPU, few[:1], 100, 0)
    assert alarms == [run.CASE_SECONDS, 0]


def test_a_process_that_never_begins_is_an_error_and_no_loop(monkeypatch, few):
    monkeypatch.setattr(run, "start", lambda *given: 1)
    with pytest.raises(SystemExit, match="the process ended before its first case"):
        run.survey(Path("mine.json"), GPU, few, 100, 0)


def test_results_of_another_gpu_or_other_versions_are_not_mixed(monkeypatch, few):
    run.survey(Path("mine.json"), GPU, few, 100, 0)
    with pytest.raises(SystemExit, match=r"mine.json: it has the results of gpu NVIDIA H200, and"):
        run.survey(Path("mine.json"), "NVIDIA H100", few, 100, 0)
    monkeypatch.setattr(run, "versions", lambda: {"torch": "3"})
    with pytest.raises(SystemExit, match=r"here are \{'torch': '3'\}; name another file, or"):
        run.survey(Path("mine.json"), GPU, few, 100, 0)


def test_again_drops_the_families_and_keeps_the_others(monkeypatch, tmp_path):
    path, given = tmp_path / "mine.json", []
    monkeypatch.setattr(bench, "gpu_name", lambda: GPU)
    rows = [run._row(case, {"ratio": 1.0}) for case in CASES]

    def survey(path, gpu, cases, seconds, jobs):
        found = run.read(path, gpu)
        given.append({row["family"] for row in found["rows"]})
        return {"gpu": gpu, "rows": []}

    monkeypatch.setattr(run, "survey", survey)
    # Of all families, other versions do not matter.
    for names, versions in ((["rows"], run.versions()), ([], {"torch": "1"})):
        path.write_text(run.report.text({"gpu": GPU, "versions": versions, "rows": rows}))
        bench.main(["--survey", *names, "--again", "--output", str(path)])
    assert given == [{"matmul", "attention", "attention_backward"}, set()]


def test_what_is_compiled_is_compiled_side_by_side(monkeypatch, torch, capsys):
    parts = []

    def run_isolated(function, cases, timeout, env):
        parts.append((function, cases, timeout, env))
        if len(cases) == 1:
            raise TimeoutError("prepare timed out\nsomewhere")

    monkeypatch.setattr(run, "run_isolated", run_isolated)
    run.prepare_all(CASES[:5], 3, 7.0)
    assert sorted(len(cases) for _, cases, _, _ in parts) == [1, 2, 2]
    assert all(part[0] is run.prepare and part[2:] == (7.0, run.ENVIRONMENT) for part in parts)
    assert {case.key for part in parts for case in part[1]} == {case.key for case in CASES[:5]}
    assert capsys.readouterr().out == "preparing: TimeoutError: prepare timed out\n"


def test_preparing_calls_everything_once_and_nothing_stops_it(monkeypatch, torch, capsys):
    called = []

    def call_of(torch, case):
        if case == CASES[0]:
            raise LOST

        def fails():
            called.append("ours")
            raise LOST

        peers = {"cuBLAS": lambda: called.append("cuBLAS")}
        print("no such peer")
        return calls.Call(fails, None, peers, 0, 0)

    monkeypatch.setattr(run, "call_of", call_of)
    run.prepare(CASES[:2])
    assert called == ["ours", "cuBLAS"] and capsys.readouterr().out == ""
