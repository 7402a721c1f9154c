"""What a survey draws, and what it makes of its rows: numbers, tables, and a picture."""

import collections
import json
import math
import re
import xml.etree.ElementTree
from pathlib import Path

import numpy as np
import pytest

from numba_tma.tools import bench
from numba_tma.tools.bench import results
from numba_tma.tools.bench.report import markers
from numba_tma.tools.bench.survey import draw, report

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/development/benchmarks.md"
COUNTS = {family: count for family, (_, count) in draw.FAMILIES.items()}
CASES = draw.cases(COUNTS, 0)


def of(family):
    return [case for case in CASES if case.family == family]


# --------------------------------------------------------------------------------- drawing


def test_a_survey_is_large_and_every_case_is_another():
    assert COUNTS["matmul"] >= 150 and COUNTS["attention"] >= 60 and COUNTS["rows"] >= 150
    assert collections.Counter(case.family for case in CASES) == COUNTS
    assert len({case.key for case in CASES}) == len(CASES)


def test_the_draw_follows_from_the_seed_and_a_longer_one_begins_as_a_shorter_one():
    for family in draw.FAMILIES:
        longer = draw.cases_of(family, 40, 7)
        assert draw.cases_of(family, 15, 7) == longer[:15]
        assert draw.cases_of(family, 40, 8) != longer


def test_what_is_drawn_twice_is_one_case(monkeypatch):
    drawn = iter("aabab")
    same = lambda rng, n: draw.Case("rows", "add", "f32", (1, 2), next(drawn))  # noqa: E731
    monkeypatch.setitem(draw.FAMILIES, "rows", (same, 1))
    assert [case.form for case in draw.cases_of("rows", 2, 0)] == ["a", "b"]


def test_a_run_that_is_cut_has_some_of_each_family():
    first = collections.Counter(case.family for case in CASES[: len(CASES) // 4])
    assert all(abs(first[family] - count / 4) <= 1 for family, count in COUNTS.items())


def test_sizes_are_log_uniform():
    rng = draw.Random(1)
    drawn = [draw.log_uniform(rng, 64, 8192) for _ in range(4000)]
    octaves = collections.Counter(int(math.log2(number / 64)) for number in drawn)
    assert min(drawn) >= 64 and max(drawn) <= 8192
    assert all(abs(octaves[i] - 4000 / 7) < 100 for i in range(7))


def test_lengths_are_tiles_multiples_of_16_bytes_and_odd():
    rng = draw.Random(1)
    drawn = [draw.length(rng, 64, 8192) for _ in range(3000)]
    assert abs(sum(n % 2 for n in drawn) - 1000) < 100
    assert sum(n % 64 == 0 for n in drawn) > 1000 and sum(n % 8 == 0 for n in drawn) > 1900
    assert {draw.length(rng, 1, 60, 64) for _ in range(50)} == {64}
    assert all(draw.length(rng, 1, 8, 1) % 2 for _ in range(50))


def test_matmuls_have_all_types_layouts_and_skinny_ones():
    matmuls = of("matmul")
    wide = [case for case in matmuls if case.dtype != "e4m3"]
    kinds = {(case.dtype, case.form) for case in wide}
    assert kinds == {(dtype, form) for dtype in ("bf16", "f16") for form in draw.LAYOUTS}
    narrow = [case for case in matmuls if case.dtype == "e4m3"]
    assert len(narrow) == 30 and {case.form for case in narrow} == {"KK"}
    assert all(n % 16 == 0 for case in narrow for n in case.shape[1:])
    for axis in range(3):
        lengths = [case.shape[axis] for case in wide]
        assert {n % 2 for n in lengths} == {0, 1} and min(lengths) >= (1, 16 - 1, 63)[axis]
    assert sum(case.shape[0] <= 128 for case in matmuls) > 25
    assert sum(case.shape[1] <= 128 for case in matmuls) > 25
    assert all(math.prod(case.shape) <= 8192**3 for case in matmuls)


@pytest.mark.parametrize("family", ["attention", "attention_backward"])
def test_attention_has_all_its_forms_within_the_limits(family):
    cases = of(family)
    depths = draw.HEAD_DIMS if family == "attention" else draw.BACKWARD_HEAD_DIMS
    assert {case.shape[3] for case in cases} == set(depths)
    assert {case.dtype for case in cases} == {"bf16", "f16"}
    assert {case.form for case in cases} == {"full", "causal"}
    for case in cases:
        batch, queries, heads, depth, keys, kv_heads = case.shape
        assert heads % kv_heads == 0 and (case.form == "full" or queries == keys)
        assert 2 * batch * heads * max(queries, keys) * depth <= draw.ATTENTION_BYTES
        products = {"attention": 2, "attention_backward": 5}[family]
        operations = 2 * products * batch * heads * queries * keys * depth
        assert draw.ATTENTION_OPERATIONS[0] <= operations <= draw.ATTENTION_OPERATIONS[1]
    assert any(case.shape[2] != case.shape[5] for case in cases), "grouped heads"
    assert any(case.shape[1] % 2 for case in cases), "odd lengths"
    assert any(case.shape[1] != case.shape[4] for case in cases), "unequal lengths"
    assert any(case.shape[0] * case.shape[2] > 100 and case.shape[4] < 1000 for case in cases)


def test_rows_have_all_kernels_types_and_alignments():
    rows = of("rows")
    assert set(collections.Counter(case.kernel for case in rows).values()) == {15}
    assert {case.kernel for case in rows} == set(draw.ROW_KERNELS)
    assert {(case.dtype, case.form) for case in rows} == {
        (dtype, form) for dtype in draw.ROW_DTYPES for form in draw.ALIGNMENTS
    }
    for case in rows:
        size, columns = draw.SIZES[case.dtype], case.shape[1]
        assert math.prod(case.shape) * size <= 1.1 * draw.ROW_BYTES[1]
        if case.form == "aligned":
            assert columns * size % 16 == 0
            assert case.kernel != "transpose" or case.shape[0] * size % 16 == 0
        if case.form == "odd":
            assert columns % 2
    assert max(case.shape[1] for case in rows) > 65536 and min(case.shape[1] for case in rows) < 64


def test_a_case_is_named_by_all_that_it_is():
    assert draw.Case("matmul", "matmul", "bf16", (3, 4, 5), "KN").name == "bf16 3 x 4 x 5, KN"
    shape = (2, 17, 8, 64, 33, 4)
    case = draw.Case("attention", "attention", "f16", shape, "full")
    assert case.name == "f16 2 x 17 x 8 x 64 on 33 x 4, full"
    assert case.key == ("attention", case.name)


# ------------------------------------------------------------------------------- statistics


def row(family, ratio, case="1", **rest):
    measured = {"unit": "us", "numba_tma": 10.0, "copy": None, "peers": {"torch": 10.0 * ratio}}
    ours = {"ratio": ratio, "limit": "memory", "reached": 0.8}
    names = {"family": family, "kernel": family, "case": case, "date": "2026-01-31"}
    return names | measured | ours | rest


def failed(family, case, error):
    names = {"family": family, "kernel": family, "case": case, "date": "2026-02-01"}
    return names | {"error": error}


ROWS = [row("rows", ratio, f"{i}") for i, ratio in enumerate(np.linspace(0.9, 1.9, 21).tolist())]
RESULTS = {
    "gpu": "NVIDIA H200",
    "versions": {"torch": "2.11.0"},
    "rows": [*ROWS, row("matmul", 0.5), row("matmul", 2.0, "2"), failed("matmul", "3", "a | b")],
}


def test_the_distribution_of_each_family():
    found = report.families(RESULTS["rows"])
    assert found["matmul"] == {
        "cases": 2,
        "errors": 1,
        "geomean": 1.0,
        "p5": 0.575,
        "worst": 0.5,
    }
    rows = found["rows"]
    assert (rows["cases"], rows["errors"], rows["p5"], rows["worst"]) == (21, 0, 0.95, 0.9)
    assert rows["geomean"] == pytest.approx(math.prod(r["ratio"] for r in ROWS) ** (1 / 21), 1e-4)
    assert report.families([failed("matmul", "3", "no")]) == {"matmul": {"cases": 0, "errors": 1}}


@pytest.mark.parametrize(
    ("gpu", "dtype", "nbytes", "operations", "seconds", "expected"),
    [
        ("NVIDIA H200", "bf16", 48 * 10**8, 10**9, 2e-3, ("memory", 0.5)),
        ("NVIDIA H100 80GB HBM3", "bf16", 335 * 10**7, 0, 2e-3, ("memory", 0.5)),
        ("NVIDIA H200", "bf16", 10**6, 989 * 10**9, 2e-3, ("arithmetic", 0.5)),
        ("NVIDIA H200", "e4m3", 10**6, 989 * 10**9, 2e-3, ("arithmetic", 0.25)),
        ("NVIDIA H200", "bf16", 48 * 10**5, 10**6, 4e-6, ("latency", 0.25)),
        ("NVIDIA H100 PCIe", "bf16", 10**6, 10**9, 1e-3, (None, None)),
    ],
)
def test_what_limits_a_case(gpu, dtype, nbytes, operations, seconds, expected):
    assert report.limit(gpu, dtype, nbytes, operations, seconds) == expected


def test_a_results_file_has_families_and_a_line_for_each_row():
    text = report.text(RESULTS)
    found = json.loads(text)
    assert found.pop("families") == report.families(RESULTS["rows"]) and found == RESULTS
    assert len(text.splitlines()) == len(RESULTS["rows"]) + 3
    empty = RESULTS | {"rows": []}
    assert json.loads(report.text(empty)) == empty | {"families": {}}
    # A file that has been read has families, of the rows that it had then.
    assert report.text(json.loads(report.text(RESULTS)) | {"rows": []}) == report.text(empty)


# ----------------------------------------------------------------------- tables and picture


def test_the_tables_have_the_worst_of_each_family_and_what_failed():
    assert report.summary(RESULTS).splitlines()[2:] == [
        "| rows | 21 | 1.366 | 0.950 | 0.900 | 0 |",
        "| matmul | 2 | 1.000 | 0.575 | 0.500 | 1 |",
    ]
    lines = report.worst(RESULTS).splitlines()[2:]
    assert len(lines) == 10 + 2 + 1
    assert lines[0] == "| rows 0 | 0.900 | 10 | torch 9 | memory | 0.80 |"
    assert lines[9].startswith("| rows 9 | 1.350 |")
    assert lines[10] == "| matmul 1 | 0.500 | 10 | torch 5 | memory | 0.80 |"
    assert lines[12] == "| matmul 3 | failed: a / b ||||||"
    unknown = row("rows", 1.0, limit=None, reached=None)
    unknown["peers"] = {"QuACK": 10.0, "torch": 12.5}
    only = report.worst(RESULTS | {"rows": [unknown]}).splitlines()[2:]
    assert only == ["| rows 1 | 1.000 | 10 | QuACK 10 |  |  |"]


def bars(picture):
    """Return (class, left, number of cases) of the picture's bars, by their base."""
    found = collections.defaultdict(list)
    pattern = (
        r'<rect class="(won|lost)" x="([\d.]+)" y="(\d+)" width="[\d.]+" height="(\d+)">'
        r"<title>(\d+) from"
    )
    for side, left, top, height, count in re.findall(pattern, picture):
        found[int(top) + int(height)].append((side, float(left), int(count)))
    return dict(found)


def test_the_picture_has_every_case_on_its_side_of_1():
    extreme = [row("matmul", ratio, f"{ratio}") for ratio in (0.1, 0.999, 1.0, 1.001, 4.0, 9.0)]
    found = RESULTS | {"rows": [*ROWS, *extreme, failed("attention", "1", "no")]}
    picture = report.draw(found)
    xml.etree.ElementTree.fromstring(picture)
    of_rows, of_matmul = bars(picture).values()
    assert sum(n for _, _, n in of_rows) == 21
    assert sum(n for side, _, n in of_rows if side == "lost") == 2
    assert [(side, n) for side, _, n in of_matmul] == [
        ("lost", 1),
        ("lost", 1),
        ("won", 2),
        ("won", 2),
    ]
    one = float(re.search(r'<line x1="([\d.]+)" x2="\1"', picture).group(1))
    assert of_matmul[2][1] == one and of_matmul[0][1] == report.LEFT
    assert "prefers-color-scheme:dark" in picture
    assert "6 cases, mean 1.238" in picture and "worst 0.100" in picture
    assert "attention" not in picture
    with pytest.raises(SystemExit, match="--plot: the results have no ratios"):
        report.draw(RESULTS | {"rows": [failed("matmul", "1", "no")]})


def test_the_page_and_the_picture_are_made_of_a_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    file, page = Path("found.json"), Path("docs/development/page.md")
    page.parent.mkdir(parents=True)
    begin, end = markers("survey h200")
    page.write_text(f"before\n{begin}\n{end}\nafter\n")
    file.write_text(report.text(RESULTS))
    arguments = ["--survey", "--from-results", str(file), "--page", str(page)]
    for _ in range(2):
        assert bench.main([*arguments, "--plot", "docs/survey_h200.svg"]) == 0
    text = page.read_text()
    assert text == f"before\n{begin}\n{report.section(RESULTS, page)}\n{end}\nafter\n"
    assert "![The ratios on an NVIDIA H200](../survey_h200.svg)" in text
    assert "on 2026-01-31 to 2026-02-01, torch 2.11.0" in text
    assert Path("docs/survey_h200.svg").read_text() == report.draw(RESULTS)
    assert report.summary(RESULTS) in capsys.readouterr().out
    with pytest.raises(SystemExit, match=r"--plot a.png: the picture is SVG"):
        bench.main([*arguments, "--plot", "a.png"])
    file.write_text(report.text(RESULTS | {"gpu": "NVIDIA B200"}))
    with pytest.raises(SystemExit, match=r"page.md: it has no lines <!-- survey b200: begin -->"):
        bench.main(arguments)


@pytest.mark.parametrize(
    ("gpu", "tag"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA RTX Ada", "ada"),
    ],
)
def test_a_gpu_has_a_short_name(gpu, tag):
    assert report.tag(gpu) == tag


@pytest.mark.parametrize("gpu", ["h200", "h100"])
def test_the_page_shows_the_results_file_and_nothing_without_one(gpu):
    file = ROOT / results.RESULTS / f"survey_{gpu}.json"
    picture = ROOT / f"docs/survey_{gpu}.svg"
    begin, end = map(re.escape, markers(f"survey {gpu}"))
    (shown,) = re.findall(f"{begin}\n(.*?){end}", PAGE.read_text(), re.DOTALL)
    if not file.exists():
        assert shown == "" and not picture.exists()
        return
    found = json.loads(file.read_text())
    assert report.tag(found["gpu"]) == gpu
    assert file.read_text() == report.text(found)
    again = (
        f"python -m numba_tma bench --survey --from-results {file.relative_to(ROOT)} "
        f"--plot {picture.relative_to(ROOT)} --page {PAGE.relative_to(ROOT)}"
    )
    assert shown == report.section(found, PAGE.relative_to(ROOT)) + "\n", again
    assert picture.read_text() == report.draw(found), again
