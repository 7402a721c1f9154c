"""The results file, its table and its picture, and the pages that show them."""

import ast
import datetime
import json
import re
import sys
import types
import xml.etree.ElementTree
from pathlib import Path

import pytest

from numba_tma.tools import bench
from numba_tma.tools.bench import compiled, figure, host, norms, peers, report, results, timing
from numba_tma.tools.bench.progress import progress

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/development/benchmarks.md"
H200 = ROOT / results.RESULTS / "h200.json"

RESULTS = {
    "gpu": "NVIDIA H200",
    "date": "2026-01-31",
    "versions": {"numba-cuda": "0.30.4", "numpy": "2.4.6", "torch": "2.11.0"},
    "rows": [
        {
            "kernel": "copy",
            "case": "u8 2 GiB",
            "unit": "GB/s",
            "numba_tma": 4200.5,
            "copy": 4000.0,
            "peers": {"torch": 4000.0},
        },
        {
            "kernel": "launch",
            "case": "one TensorMap",
            "unit": "us on the host",
            "numba_tma": 15.25,
            "copy": None,
            "peers": {"one integer": 14.5, "nothing": 12.0},
        },
    ],
}
TABLE = """\
Measured on an NVIDIA H200 on 2026-01-31, torch 2.11.0, numba-cuda 0.30.4; median of alternating \
runs with a cold L2 cache, the worse of two. In brackets: numba_tma's rate over that one's. \
`launch` is the host's time for a launch of an empty kernel with these arguments, ours by \
`tma.launcher`; `call` is its time for a call of a kernel's function.

| kernel | case | numba_tma | beside it | plain copy |
|---|---|---|---|---|
| copy | u8 2 GiB | 4,200.5 GB/s | torch 4,000 (1.05 x) | 4,000 (1.05 x) |
| launch | one TensorMap | 15.25 us on the host | one integer 14.5, nothing 12 |  |"""


LAYERS = [
    {
        "kernel": "layer matmul",
        "case": f"{name} 1 x 2 x 3",
        "unit": "TFLOP/s",
        "numba_tma": ours,
        "copy": None,
        "peers": peers,
    }
    for name, ours, peers in (
        ("qkv", 100.0, {"cuBLAS": 200.0, "Triton": 300.0}),
        ("o", 400.0, {"cuBLAS": 200.0}),
    )
]


def check_run(run):
    """Raise unless `run` says when and with what something was measured."""
    datetime.date.fromisoformat(run["date"])
    assert {"numba-cuda", "numpy"} <= set(run["versions"])
    assert all(re.match(r"\d+\.", version) for version in run["versions"].values())


def check_schema(results):
    """Raise unless `results` has the form that every results file has."""
    assert set(results) == {"gpu", "date", "versions", "rows"}
    assert isinstance(results["gpu"], str) and results["gpu"]
    check_run(results)
    assert results["rows"]
    for row in results["rows"]:
        own = {name: row[name] for name in ("date", "versions") if name in row}
        assert all(own[name] != results[name] for name in own)
        check_run(results | own)
        assert set(row) - set(own) == {"kernel", "case", "unit", "numba_tma", "peers", "copy"}
        assert all(isinstance(row[key], str) and row[key] for key in ("kernel", "case", "unit"))
        values = [row["numba_tma"], *row["peers"].values()]
        values += [] if row["copy"] is None else [row["copy"]]
        assert all(isinstance(value, int | float) and value > 0 for value in values)
    cases = [(row["kernel"], row["case"]) for row in results["rows"]]
    assert len(set(cases)) == len(cases)


def between_markers(text):
    found = re.findall(f"{re.escape(report.BEGIN)}\n(.*?){re.escape(report.END)}", text, re.DOTALL)
    assert len(found) == 1, "the page has one pair of markers"
    return found[0]


def test_the_table_has_a_line_for_each_row():
    assert report.table(RESULTS) == TABLE


def test_the_table_says_when_there_was_no_torch():
    versions = {"numba-cuda": "0.30.4"}
    assert "torch absent, numba-cuda 0.30.4" in report.table(RESULTS | {"versions": versions})


@pytest.mark.parametrize(
    "broken",
    [
        {"gpu": ""},
        {"date": "31.1.2026"},
        {"versions": {"numba-cuda": "0.30.4"}},
        {"rows": []},
        {"rows": [RESULTS["rows"][0]] * 2},
        {"rows": [RESULTS["rows"][0] | {"numba_tma": None}]},
        {"rows": [RESULTS["rows"][0] | {"peers": {"torch": 0.0}}]},
        {"rows": [RESULTS["rows"][0] | {"note": "a quiet machine"}]},
        {"rows": [RESULTS["rows"][0] | {"date": RESULTS["date"]}]},
        {"rows": [RESULTS["rows"][0] | {"date": "yesterday"}]},
        {"rows": [RESULTS["rows"][0] | {"versions": {"numpy": "2.4.6"}}]},
        {"host": "a name"},
    ],
    ids=str,
)
def test_the_schema_is_checked(broken):
    check_schema(RESULTS)
    with pytest.raises((AssertionError, ValueError)):
        check_schema(RESULTS | broken)


def test_rows_are_made_in_the_form_of_the_schema():
    rate = results.rate(10**9, {"numba_tma": 0.25e-3, "copy": 0.5e-3, "torch": 1e-3})
    assert rate == {
        "unit": "GB/s",
        "numba_tma": 4000.0,
        "copy": 2000.0,
        "peers": {"torch": 1000.0},
    }
    host = results.host_time(15.2345, {"one integer": 14.0})
    assert host["numba_tma"] == 15.23 and host["copy"] is None
    flops = results.operations(2 * 10**12, {"numba_tma": 4e-3, "cuBLAS": 3e-3})
    assert flops == {
        "unit": "TFLOP/s",
        "numba_tma": 500.0,
        "copy": None,
        "peers": {"cuBLAS": 666.67},
    }
    first = results.host_seconds({"numba_tma": 1.2344, "Triton": 2.0})
    assert (first["unit"], first["numba_tma"]) == ("s on the host", 1.234)
    measured = {"copy": rate, "launch": host, "matmul": flops, "first call": first}
    rows = [{"kernel": kernel, "case": "1"} | row for kernel, row in measured.items()]
    check_schema(RESULTS | {"rows": rows})


def test_of_two_measurements_the_worse_for_us_counts(monkeypatch):
    better = {"numba_tma": 1.0, "torch": 1.2, "copy": 2.0}
    worse = {"numba_tma": 0.9, "torch": 0.8, "copy": 2.0}
    for order in ([better, worse], [worse, better]):
        measured = iter([{30: times} for times in order])
        monkeypatch.setattr(timing, "time_alternating", lambda runs, n: next(measured)[n])  # noqa: B023
        assert timing.worse_of_two(dict.fromkeys(better, list)) is worse
    for alone in ({"numba_tma": 1.0}, {"numba_tma": 1.0, "copy": 2.0}):
        monkeypatch.setattr(timing, "time_alternating", lambda runs, n: runs | {"repeats": n})
        assert timing.worse_of_two(alone, repeats=7) == alone | {"repeats": 7}


def test_of_tritons_only_the_fastest_is_compared(monkeypatch):
    seconds = {"Triton, 4 warps": 3.0, "Triton, 8 warps": 1.0, "Triton, 16 warps": 2.0}
    timed = []

    def time_alternating(runs, repeats):
        timed.append((set(runs), repeats))
        return {name: seconds[name] for name in runs}

    monkeypatch.setattr(timing, "time_alternating", time_alternating)
    runs = {name: object() for name in ("torch.compile", *seconds)}
    best = peers.with_fastest(runs, "Triton")
    assert best == {"torch.compile": runs["torch.compile"], "Triton": runs["Triton, 8 warps"]}
    assert timed == [(set(seconds), 5)]
    assert peers.with_fastest({"torch.compile": print}, "Triton") == {"torch.compile": print}
    assert len(timed) == 1


def test_peers_that_fail_or_are_wrong_are_left_out_and_said(capsys):
    def right(result):
        if result != 4:
            raise AssertionError("wrong values")

    def fails():
        raise ImportError("no such package")

    candidates = peers.offered("case", {"QuACK": fails, "Triton": lambda: {"Triton": lambda: 4}})
    assert capsys.readouterr().out == "case: no QuACK beside it: no such package\n"
    candidates |= {"cuBLAS": lambda: 5, "cuDNN": fails}
    assert list(peers.working(Torch(), "case", candidates, right)) == ["Triton"]
    assert capsys.readouterr().out == (
        "case: cuBLAS fails: wrong values\ncase: cuDNN fails: no such package\n"
    )
    assert list(peers.working(Torch(), "case", candidates)) == ["Triton", "cuBLAS"]


def test_a_kernel_that_is_not_there_leaves_its_case_out():
    assert peers.shipped("rows", "rmsnorm").__name__ == "rmsnorm"
    with pytest.raises(results.LeftOut, match="there is no sort in this version"):
        peers.shipped("sorting", "sort")


class Torch:
    """Stands for torch: compiles in one mode, and fails in the other where it is told to."""

    def __init__(self, failing=()):
        self.failing, self.resets = failing, 0
        self._dynamo = self.cuda = self

    def reset(self):
        self.resets += 1

    def synchronize(self):
        pass

    def compile(self, function, dynamic, mode):
        assert dynamic is False

        def run(*arguments):
            if mode in self.failing:
                raise RuntimeError("no such mode")
            return mode, function(*arguments)

        return run


def test_torch_compile_is_a_peer_in_two_modes(capsys):
    torch = Torch()
    runs = compiled.compiled_peers(torch, lambda x, y: x + y, 2, 3)
    assert {name: run() for name, run in runs.items()} == {
        "torch.compile": ("default", 5),
        "torch.compile max-autotune": ("max-autotune-no-cudagraphs", 5),
    }
    assert torch.resets == 1 and capsys.readouterr().out == ""
    assert list(compiled.compiled_peers(torch, abs, 2, modes={"mine": "default"})) == ["mine"]
    failing = Torch(["max-autotune-no-cudagraphs"])
    assert list(compiled.compiled_peers(failing, abs, 2)) == ["torch.compile"]
    assert "torch.compile max-autotune fails: no such mode" in capsys.readouterr().out


def test_host_costs_are_the_least_of_several_rounds(monkeypatch):
    times = iter([5.0, 3.004, 4.0, 2.0, 6.0, 9.0])
    called = []
    monkeypatch.setattr(host, "time_host", lambda run: next(times))
    runs = {name: lambda name=name: called.append(name) for name in ("numba_tma", "cuda.core")}
    assert host.host_costs(runs) == {"numba_tma": 4.0, "cuda.core": 2.0}
    assert called == ["numba_tma", "cuda.core"]


def test_progress_overwrites_its_line_on_a_terminal(capsys, monkeypatch):
    assert list(progress(["copy", "add"], width=4)) == ["copy", "add"]
    lines = re.sub(r"\d+ s", "n s", capsys.readouterr().err).splitlines()
    assert lines == [
        "[....] 0 of 2, n s: copy",
        "[##..] 1 of 2, n s: add",
        "[####] 2 of 2, n s: done",
    ]
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    list(progress(["copy", "add"]))
    written = capsys.readouterr().err
    assert written.count("\r") == 3 and written.endswith("\n") and written.count("\n") == 1


def drawn(picture):
    """Return the picture's bars (class and width in pixels) and its texts."""
    bars = re.findall(r'<rect class="(\w+)" x="\d+" y="\d+" width="(\d+)" height="20"/>', picture)
    return bars, re.findall(r"<text[^>]*>([^<]*)</text>", picture)


def test_the_picture_has_our_share_of_the_fastest_peer(tmp_path, capsys):
    file, path = tmp_path / "results.json", tmp_path / "pictures" / "all.svg"
    base = RESULTS["rows"][0] | {"unit": "TFLOP/s", "copy": None}
    named = [dict(zip(("kernel", "case"), shown)) for shown in figure.SHOWN]
    won = base | named[0] | {"numba_tma": 660.0, "peers": {"cuDNN": 600.0, "torch <x>": 300.0}}
    lost = base | named[1] | {"numba_tma": 450.0, "peers": {"cuBLAS": 500.0, "Triton": 400.0}}
    far = base | named[2] | {"numba_tma": 900.0, "peers": {"torch <x>": 300.0}}
    alone = base | named[3] | {"peers": {}}
    results = RESULTS | {"rows": [*RESULTS["rows"], far, lost, won, alone]}
    file.write_text(json.dumps(results))
    assert bench.main(["--from-results", str(file), "--plot", str(path)]) == 0
    picture = path.read_text()
    width = figure.RIGHT - figure.LEFT
    bars, texts = drawn(picture)
    assert bars == [
        ("won", str(round(width * 1.1 / 1.2))),
        ("lost", str(round(width * 0.9 / 1.2))),
        ("won", str(width)),  # what is off the axis ends with it
    ]
    assert texts[0] == "NVIDIA H200, 2026-01-31, bf16: rate over that of the fastest peer"
    titles = [title for _, _, title in figure.SHOWN]
    assert [text for text in texts if text in titles] == titles[:3]
    assert "660 TFLOP/s, 1.10 of cuDNN" in texts and "450 TFLOP/s, 0.90 of cuBLAS" in texts
    assert "900 TFLOP/s, 3.00 of torch &lt;x&gt;" in texts
    xml.etree.ElementTree.fromstring(picture)
    with pytest.raises(SystemExit, match=r"all.png: the picture is SVG; give a path that ends in"):
        bench.main(["--from-results", str(file), "--plot", str(path.with_suffix(".png"))])
    file.write_text(json.dumps(RESULTS))
    with pytest.raises(SystemExit, match="the results have none of the rows that are drawn: att"):
        bench.main(["--from-results", str(file), "--plot", str(path)])


def test_the_readmes_picture_is_that_of_the_results_file():
    found = json.loads(H200.read_text())
    assert (ROOT / "docs/h200.svg").read_text() == figure.draw(found), (
        f"python -m numba_tma bench --from-results {H200.relative_to(ROOT)} --plot docs/h200.svg"
    )
    assert len(drawn(figure.draw(found))[0]) == len(figure.SHOWN) == 5
    rows = {(row["kernel"], row["case"]): row for row in found["rows"]}
    shares = [figure.shares(rows[kernel, case])[0] for kernel, case, _ in figure.SHOWN]
    assert min(shares) < 0.9 and max(shares) > 1, "losses are shown too"


def test_the_layers_have_a_mean_in_the_table():
    alone = {"kernel": "first call", "case": "matmul"} | results.host_seconds({"numba_tma": 1.5})
    lines = report.table(RESULTS | {"rows": [*LAYERS, alone]}).splitlines()[4:]
    assert [line.removeprefix("| layer matmul | ") for line in lines] == [
        "qkv 1 x 2 x 3 | 100 TFLOP/s | cuBLAS 200 (0.50 x), Triton 300 (0.33 x) |  |",
        "o 1 x 2 x 3 | 400 TFLOP/s | cuBLAS 200 (2.00 x) |  |",
        "geometric mean of 2 | 200 TFLOP/s | cuBLAS 200 (1.00 x) |  |",
        "| first call | matmul | 1.5 s on the host |  |  |",
    ]
    short = report.table(RESULTS | {"rows": [*LAYERS, alone]}, short=True).splitlines()[4:]
    assert short == [f"| layer matmul | {lines[2].removeprefix('| layer matmul | ')}", lines[3]]


def test_the_table_names_what_was_measured_at_another_time():
    copies, launch = RESULTS["rows"]
    later = {"date": "2026-02-01", "versions": RESULTS["versions"] | {"torch": "2.12.0"}}
    assert "on 2026-01-31, torch 2.11.0, numba-cuda 0.30.4; median" in report.table(RESULTS)
    rows = [copies, copies | {"case": "more"} | later, launch, launch | {"kernel": "call"} | later]
    assert (
        "on 2026-01-31, torch 2.11.0, numba-cuda 0.30.4; copy more, call on 2026-02-01, "
        "torch 2.12.0, numba-cuda 0.30.4; median" in report.table(RESULTS | {"rows": rows})
    )


@pytest.mark.parametrize(
    ("only", "shapes", "expected"),
    [
        (None, None, list(bench.CASES)),
        (["softmax"], None, [("softmax", norms.named(shape)) for shape in norms.SHAPES]),
        (
            ["softmax", "layernorm"],
            ["8192 x 65536", "4096x262144"],
            [
                (kernel, f"bf16 {shape}")
                for kernel in ("layernorm", "softmax")
                for shape in ("8192 x 65536", "4096 x 262144")
            ],
        ),
        (["add"], ["f32 2^28"], [("add", "f32 2^28")]),
        (None, ["1 GiB"], [("copy", "u8 1 GiB")]),
        (["call"], ["w) of 64x1024"], [("call", "rmsnorm(x, w) of 64 x 1024")]),
    ],
)
def test_a_run_is_limited_to_kernels_and_shapes(only, shapes, expected):
    assert bench.chosen(only, shapes) == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "add", "--shape", "1 GiB"], "there are bf16 2^29; f32 2^28"),
        (["--only", "copy", "--shape", "1 GiB", "--shape", "3 GiB"], "'3 GiB': no case ends so"),
        (["--shape", ""], "--shape '': no case ends so"),
        (["--only", "sort"], "invalid choice: 'sort'"),
    ],
)
def test_a_run_of_nothing_is_refused(arguments, message, capsys):
    with pytest.raises(SystemExit):
        bench.main(arguments)
    assert message in capsys.readouterr().err


def full_row(kernel, case, rate, date="2026-01-31", torch="2.11.0"):
    """Return a row as a run yields it."""
    measured = {"unit": "GB/s", "numba_tma": rate, "copy": None, "peers": {}}
    versions = RESULTS["versions"] | {"torch": torch}
    return {"kernel": kernel, "case": case, **measured, "date": date, "versions": versions}


def on_disk(path):
    """Return {(kernel, case): (rate, date, torch)} of a results file, in its order."""
    found = json.loads(Path(path).read_text())
    check_schema(found)
    return {
        (row["kernel"], row["case"]): (row["numba_tma"], row["date"], row["versions"]["torch"])
        for row in results.full_rows(found)
    }


@pytest.fixture
def runs(monkeypatch, tmp_path):
    """Return what runs of bench were asked for, and the lists of rows that they take in turn."""
    asked, rows = [], []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench, "gpu_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(bench, "measure", lambda cases: asked.append(cases) or rows.pop(0))
    return asked, rows


def test_a_measurement_is_written_and_printed(runs, capsys):
    asked, rows = runs
    rows += [results.full_rows(RESULTS)] * 2
    assert bench.main([]) == 0
    assert bench.main(["--only", "add", "--shape", "2^28", "--output", "here/mine.json"]) == 0
    assert asked == [list(bench.CASES), [("add", "f32 2^28")]]
    for path in (results.RESULTS / "h200.json", Path("here/mine.json")):
        assert json.loads(path.read_text()) == RESULTS
        assert list(path.parent.iterdir()) == [path]
    assert capsys.readouterr().out == f"{TABLE}\n" * 2


def test_what_is_not_measured_again_keeps_its_date_and_versions(runs):
    first = ("2026-01-31", "2.11.0")
    later = ("2026-02-01", "2.12.0")
    last = ("2026-03-01", "2.12.0")
    runs[1].append([full_row("copy", "1 GiB", 1, *first), full_row("add", "2^28", 2, *first)])
    runs[1].append([full_row("add", "2^28", 3, *later), full_row("copy", "2 GiB", 4, *later)])
    runs[1].append([full_row("copy", "1 GiB", 5, *last), full_row("gelu", "2^28", 6, *last)])
    for _ in range(3):
        bench.main(["--output", "mine.json"])
    rows = on_disk("mine.json")
    assert rows == {
        ("copy", "1 GiB"): (5, *last),
        ("copy", "2 GiB"): (4, *later),
        ("add", "2^28"): (3, *later),
        ("gelu", "2^28"): (6, *last),
    }
    assert [kernel for kernel, _ in rows] == ["copy", "copy", "add", "gelu"]


def test_the_file_says_once_what_most_rows_share(runs):
    cases = ("1 GiB", "2 GiB", "4 GiB")
    runs[1].append([full_row("copy", case, 1) for case in cases])
    runs[1].append([full_row("copy", "2 GiB", 2, "2026-02-01")])
    runs[1].append([full_row("copy", case, 3, "2026-03-01") for case in cases])
    found = []
    for _ in range(3):
        bench.main(["--output", "mine.json"])
        found.append(json.loads(Path("mine.json").read_text()))
    assert [f["date"] for f in found] == ["2026-01-31", "2026-01-31", "2026-03-01"]
    own = [[{"date", "versions"} & set(row) for row in f["rows"]] for f in found]
    assert own == [[set()] * 3, [set(), {"date"}, set()], [set()] * 3]


def test_a_run_that_fails_keeps_what_it_and_others_measured(runs):
    def fails():
        yield full_row("add", "2^28", 3, "2026-02-01")
        raise RuntimeError("an illegal instruction")

    runs[1].extend([[full_row("copy", "1 GiB", 1), full_row("add", "2^28", 2)], fails()])
    bench.main(["--output", "mine.json"])
    with pytest.raises(RuntimeError):
        bench.main(["--output", "mine.json"])
    assert on_disk("mine.json") == {
        ("copy", "1 GiB"): (1, "2026-01-31", "2.11.0"),
        ("add", "2^28"): (3, "2026-02-01", "2.11.0"),
    }


def test_results_of_another_gpu_are_not_mixed(runs):
    other = json.dumps(RESULTS | {"gpu": "NVIDIA H100"})
    Path("mine.json").write_text(other)
    with pytest.raises(SystemExit, match=r"mine.json: it has the results of an NVIDIA H100, and"):
        bench.main(["--output", "mine.json"])
    assert runs[0] == [] and Path("mine.json").read_text() == other


def test_a_run_says_when_and_with_what_it_measured(monkeypatch, capsys):
    freed = []
    torch = types.SimpleNamespace(cuda=types.SimpleNamespace(empty_cache=lambda: freed.append(1)))
    monkeypatch.setitem(sys.modules, "torch", torch)
    given = []

    def without_kernel(torch):
        raise results.LeftOut("there is no kernel")

    cases = {
        ("matmul", "4"): without_kernel,
        ("copy", "1 GiB"): lambda torch: given.append(torch) or results.host_time(1.0, {}),
        ("copy", "2 GiB"): lambda torch: results.host_time(2.0, {"numpy": 3.0}),
        ("add", "2^28"): lambda torch: pytest.fail("was not asked for"),
    }
    monkeypatch.setattr(bench, "CASES", cases)
    rows = list(bench.measure(list(cases)[:3]))
    assert [(row["kernel"], row["case"], row["numba_tma"]) for row in rows] == [
        ("copy", "1 GiB", 1.0),
        ("copy", "2 GiB", 2.0),
    ]
    assert given == [torch] and freed == [1, 1]
    said = capsys.readouterr()
    assert "1 of 3" in said.err and said.out == "matmul 4 is left out: there is no kernel\n"
    written = {"gpu": "NVIDIA H200", "rows": []}
    for row in rows:
        written = results.with_row(written, row)
    check_schema(written)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(SystemExit, match="bench measures beside torch, which is not here"):
        next(bench.measure(cases))


def test_the_page_gets_the_table_and_keeps_the_rest(tmp_path):
    page, file = tmp_path / "page.md", tmp_path / "results.json"
    page.write_text(PAGE.read_text())
    file.write_text(json.dumps(RESULTS))
    other = RESULTS | {"gpu": "NVIDIA H100", "rows": RESULTS["rows"][:1]}
    report.write_table(page, other)
    assert between_markers(page.read_text()) == report.table(other) + "\n"
    for _ in range(2):
        assert bench.main(["--from-results", str(file), "--page", str(page)]) == 0
        assert between_markers(page.read_text()) == TABLE + "\n"
    was, now = PAGE.read_text(), page.read_text()
    assert now.replace(between_markers(now), "") == was.replace(between_markers(was) or "\0", "")


def test_the_page_shows_the_results_file_as_it_is():
    shown = between_markers(PAGE.read_text())
    assert H200.exists() == bool(shown.strip()), (
        f"{H200.name} and the table of {PAGE.name} come together: python -m numba_tma bench "
        f"--from-results {H200.relative_to(ROOT)} --page {PAGE.relative_to(ROOT)}"
    )
    if H200.exists():
        assert shown == report.table(json.loads(H200.read_text()), short=True) + "\n"


#: Results files of sweeps; surveys' files are checked in test_survey.py.
NOT_OF_BENCH = (
    *("attention_errors", "ladder", "profile", "compile_times", "unaligned_rows", "stencil_h200"),
    *("attention_plans", "attention_plans_h200", "attention_plans_e4m3_h100", "stream_k"),
    *("matmul_times_h200", "matmul_times_h100", "matmul_times_large_h100"),
    *("matmul_times_fresh_h100", "matmul_times_short_h100"),
    *("matmul_times_pairs_h100", "matmul_times_layers_h100"),
    *("trace_h200", "trace_matmul_h200", "trace_attention_h200"),
)


def test_every_results_file_has_the_schema():
    folder = ROOT / results.RESULTS
    others = {folder / f"{name}.json" for name in NOT_OF_BENCH} | {*folder.glob("survey_*.json")}
    for path in {*folder.glob("*.json")} - others:
        found = json.loads(path.read_text())
        check_schema(found)
        assert path.stem == found["gpu"].split()[-1].lower()
        assert {(row["kernel"], row["case"]) for row in found["rows"]} <= set(bench.CASES)


def test_attentions_errors_are_those_of_its_best_peer():
    """As docs/kernels/attention.md says: what was measured, beside cuDNN and torch FLASH."""
    found = json.loads((ROOT / results.RESULTS / "attention_errors.json").read_text())["errors"]
    assert len(found) == 64
    for case, errors in found.items():
        (mean, largest), *peers = errors.pop("numba_tma"), *errors.values()
        assert mean <= 1.006 * min(peer[0] for peer in peers), case
        assert largest <= 1.25 * min(peer[1] for peer in peers), case
        if "cuDNN" in errors and not case.startswith("d"):  # dq, dk and dv
            assert mean <= errors["cuDNN"][0], case


def test_the_readmes_numbers_stand_in_its_picture():
    prose = (ROOT / "README.md").read_text()
    assert not re.findall(r"[\d.,]+ *(?:[GT]B/s|TFLOP|%|us\b|x faster)", prose)


def test_the_measured_kernel_is_the_readme_s():
    def bodies(source):
        trees = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef)]
        (body,) = [tree.body for tree in trees if tree.name == "scale"]
        return [ast.dump(n) for n in body if not isinstance(getattr(n, "value", n), ast.Constant)]

    (block,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.S | re.M)
    assert bodies(block) == bodies(Path(bench.readme.__file__).read_text())
    for name in ("TILE = ", "PIPE = "):
        lines = [
            line.partition("  #")[0]
            for text in (block, Path(bench.readme.__file__).read_text())
            for line in text.splitlines()
            if line.startswith(name)
        ]
        assert len(lines) == 2 and len(set(lines)) == 1


@pytest.mark.parametrize("arguments", [["--only", "add"], ["--survey", "matmul"]])
def test_without_a_gpu_a_line_says_why(monkeypatch, arguments):
    monkeypatch.setattr(bench, "why_no_gpu", lambda: "no NVIDIA driver answers")
    with pytest.raises(SystemExit) as ended:
        bench.main(arguments)
    assert ended.value.code == "bench measures on a GPU: no NVIDIA driver answers"


def test_an_error_is_a_line_of_the_report():
    assert results.first_line(ValueError("one\ntwo")) == "one"
    assert results.first_line(ValueError()) == "ValueError"
    assert results.first_line(ValueError("x" * 300)) == "x" * 200
