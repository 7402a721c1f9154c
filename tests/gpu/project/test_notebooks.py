"""The notebooks run on a GPU, with the assertions in their cells; ladders have `test_ladders`."""

import json
import os
import subprocess
import sys

import pytest

from tests.ladders import LADDERS, NOTEBOOKS

LIMIT = 240  # seconds
SIMULATED = ("08_every_order",)  # everywhere
LESSONS = [
    path
    for path in sorted(NOTEBOOKS.glob("*.ipynb"))
    if path.name not in LADDERS.values() and path.stem not in SIMULATED
]


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_every_cell_runs(path, tmp_path):
    """In a process of its own: a cell chooses debug mode before it imports the library."""
    cells = json.loads(path.read_text())["cells"]
    if "matplotlib" in path.read_text():
        pytest.importorskip("matplotlib")
    script = tmp_path / f"{path.stem}.py"
    script.write_text("\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "code"))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    paths = [str(NOTEBOOKS.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, script],
        cwd=path.parent,
        env=kept | {"MPLBACKEND": "agg", "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert done.returncode == 0, done.stderr
    assert "running on the GPU" in done.stdout
