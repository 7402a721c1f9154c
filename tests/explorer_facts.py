"""docs/site/static/explorer/facts.js: the library's tables for the explorer of the site."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from numba_tma.host import boxes, layout, packed_rules
from numba_tma.host.architectures import ARCHITECTURES
from numba_tma.host.dtypes import as_dtype, names
from numba_tma.pipeline import stage_layout

FILE = Path(__file__).parents[1] / "docs" / "site" / "static" / "explorer" / "facts.js"
HEAD = """\
// The library's tables, written by `make goldens`.

"""


def facts() -> dict[str, dict[str, Any]]:
    """Return the tables by the names that they have in JavaScript."""
    types = {name: as_dtype(name) for name in names}
    return {
        "DTYPES": {
            name: {
                "bits": d.bits,
                "sharedBits": d.shared_bits,
                "words": d.words,
                "maxInnerBox": d.max_inner_box,
                "tensorMap": d.tensor_map,
            }
            for name, d in types.items()
        },
        "SWIZZLES": {
            s.name: {"span": s.span, "atom": s.atom, "alignment": s.alignment}
            for s in layout.Swizzle
        },
        "SHARED": {f"sm_{a.number}a": a.shared for a in ARCHITECTURES.values() if a.cluster},
        "LIMITS": {
            "rank": layout.MAX_RANK,
            "box": layout.MAX_BOX,
            "copies": boxes.MAX_COPIES,
            "stages": stage_layout.MOST_STAGES,
        },
        "UNPACKED_SWIZZLES": {s.name: True for s in packed_rules._UNPACKED_SWIZZLES},
    }


def page() -> str:
    """Return what the file should say now."""
    parts = []
    for name, table in facts().items():
        rows = "".join(f"  {json.dumps(key)}: {json.dumps(row)},\n" for key, row in table.items())
        parts.append(f"export const {name} = {{\n{rows}}};\n")
    return HEAD + "\n".join(parts)


def write() -> bool:
    """Write the file anew; return whether it changed."""
    if FILE.exists() and FILE.read_text() == page():
        return False
    FILE.write_text(page())
    return True
