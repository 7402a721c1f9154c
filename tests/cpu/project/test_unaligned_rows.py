"""The page of norms shows the stored rates of rows that begin anywhere."""

import json
import runpy
from pathlib import Path


def test_the_table_is_that_of_the_results():
    sweep = runpy.run_path("tests/benchmarks/sweeps/unaligned_rows.py")
    results = json.loads(sweep["RESULTS"].read_text())
    page = Path("docs/kernels/norms.md").read_text()
    assert sweep["table"](results) in page and results["gpu"].split()[1] in page
