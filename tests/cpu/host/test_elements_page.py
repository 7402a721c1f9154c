"""docs/guide/elements.md: its table is that of the library, and it says what it shows."""

import re

from numba_tma.host.dtypes import as_dtype, names
from tests.page_code import DOCS

TEXT = (DOCS / "guide/elements.md").read_text()


def test_the_table_of_types():
    rows = re.findall(r'^\| `"(\w+)"` \| (\w+) \| (\w+) \| (.*?) \| (.*?) \|$', TEXT, flags=re.M)
    expected = []
    for dtype in map(as_dtype, names[: names.index("ue8m0")]):
        words = f"{dtype.words} x " if dtype.words > 1 else ""
        expected.append(
            (dtype.name, dtype.numpy.name, dtype.compute, ", ".join(dtype.reductions) or "–")
            + (words + dtype.tensor_map,)
        )
    assert rows == expected
