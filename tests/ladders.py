"""The kernels of the notebooks that climb a ladder, without the cells that run and show them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
LADDERS = {"matmul": "01_matmul_ladder.ipynb", "attention": "02_attention_ladder.ipynb"}
RUNGS = {
    "matmul": [
        *("threads multiply", "tensor cores", "loads ahead", "roles", "persistent"),
        *("pairs share B", "stores overlap"),
    ],
    "attention": ["two loops", "one loop", "loads ahead", "overlapped", "longest first"],
}


def executed(ladder: str, *parts: str, **given: Any) -> dict[str, Any]:
    """Execute the cells whose id begins with one of `parts`, in order; return what they define.

    "where" chooses between GPU and simulator, "tiles" has sizes and host objects, "arrays" what is
    on the device, and "rung" the kernels, which it puts into RUNGS.
    """
    names = {"__name__": ladder, **given}
    for cell in json.loads((NOTEBOOKS / LADDERS[ladder]).read_text())["cells"]:
        if cell["cell_type"] == "code" and cell["id"].startswith(parts):
            exec(compile("".join(cell["source"]), f"{ladder}, cell {cell['id']}", "exec"), names)
    return names
