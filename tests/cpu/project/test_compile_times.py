"""The page of compile times shows the stored results."""

import json
import runpy
from pathlib import Path


def test_the_table_is_that_of_the_results():
    sweep = runpy.run_path("tests/benchmarks/sweeps/compile_times.py", run_name="sweep")
    results = json.loads(sweep["RESULTS"].read_text())
    assert sweep["table"](results) in Path("docs/development/compile-times.md").read_text()
    assert set(sweep["KERNELS"]) <= set(results["kernels"])
