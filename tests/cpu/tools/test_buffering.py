"""The table of circular buffering: its kernels compile, its page shows the results file."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from numba import types

from numba_tma import TensorMapType
from numba_tma.tools import bench
from numba_tma.tools.bench import buffering, report, results
from numba_tma.tools.testing import compile_ptx
from tests.kernels.buffering import CASES
from tests.tiers import every

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/guide/circular_buffering.md"
H200 = ROOT / results.RESULTS / "h200.json"
ARGUMENTS = TensorMapType(2, buffering.TILE), types.float32[:, ::1], types.int64


@pytest.mark.parametrize(("work", "form", "stages"), every(3, CASES))
def test_each_kernel_compiles(work, form, stages):
    text = compile_ptx(buffering.kernel_of(work, form, stages), ARGUMENTS)
    assert "cp.async.bulk.tensor.2d" in text
    assert ".f64" not in text and ".local" not in text
    hands_back = re.search(r"mbarrier\.arrive\.(?!expect_tx)", text) is not None
    assert hands_back == (form in ("circular, mbarrier", "warp-specialised"))


def test_all_cases_of_the_table_are_measured():
    assert len(CASES) == len(buffering.CASES) == 20
    assert bench.chosen(["buffering"]) == list(buffering.CASES)
    assert bench.chosen(["buffering"], ["warp-specialised 4"]) == [
        ("buffering", f"{work} warp-specialised 4") for work in ("silu", "rmsnorm")
    ]


def test_a_wrong_result_is_found():
    x = np.linspace(-4, 4, 4 * 1024, dtype=np.float32).reshape(4, 1024)
    for work in buffering.WORK:
        right = buffering.exact(work, x).astype(np.float32)
        buffering.check(work, x, right)
        right[3, 1023] *= np.float32(1.001)
        with pytest.raises(AssertionError):
            buffering.check(work, x, right)


def row(case, rate):
    return {"kernel": "buffering", "case": case, "unit": "GB/s", "numba_tma": rate, "copy": 4000.0}


def test_the_table_has_a_line_for_each_form(tmp_path):
    rows = [row("silu synchronous 1", 2000.0), row("rmsnorm warp-specialised 4", 4200.5)]
    found = {"gpu": "NVIDIA H200", "rows": [{"kernel": "copy"}, *rows]}
    assert buffering.table(found) == (
        "GB/s on an NVIDIA H200; in brackets the ratio to torch's copy of the same bytes.\n\n"
        "| kernel | form | 1 stage | 2 stages | 4 stages |\n"
        "|---|---|---|---|---|\n"
        "| silu | synchronous | 2,000 (0.50 x) |  |  |\n"
        "| silu | circular, barrier |  |  |  |\n"
        "| silu | circular, mbarrier |  |  |  |\n"
        "| silu | warp-specialised |  |  |  |\n"
        "| rmsnorm | synchronous |  |  |  |\n"
        "| rmsnorm | circular, barrier |  |  |  |\n"
        "| rmsnorm | circular, mbarrier |  |  |  |\n"
        "| rmsnorm | warp-specialised |  |  | 4,200.5 (1.05 x) |"
    )
    page = tmp_path / PAGE.name
    page.write_text(PAGE.read_text())
    report.write_table(page, found)
    assert shown(page.read_text()) == buffering.table(found) + "\n"
    assert shown(PAGE.read_text()) not in page.read_text()


def test_the_page_shows_the_results_file_as_it_is():
    assert shown(PAGE.read_text()) == buffering.table(json.loads(H200.read_text())) + "\n", (
        f"python -m numba_tma bench --from-results {H200.relative_to(ROOT)} "
        f"--page {PAGE.relative_to(ROOT)}"
    )


def shown(text):
    begin, end = (re.escape(marker) for marker in report.markers(buffering.KERNEL))
    (found,) = re.findall(f"{begin}\n(.*?){end}", text, re.DOTALL)
    return found
