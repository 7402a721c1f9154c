"""The page of narrow types: its code, in order, with its own assertions; its tables."""

import re

from numba_tma.host.dtypes import as_dtype, names
from numba_tma.host.scale_factors import FORMATS
from tests.page_code import DOCS, module_of

PAGE = "guide/narrow_types.md"


def test_the_code_of_the_page(tmp_path):
    page = module_of(PAGE, tmp_path)
    assert page.stage.size == page.SFB.nbytes


def test_the_tables_of_the_page():
    text = (DOCS / PAGE).read_text()
    rows = re.findall(r"^\| (`.*?) \|.* (\w+) \|$", text, flags=re.M)
    types = {name: kind for cell, kind in rows for name in re.findall(r'"(\w+)"', cell)}
    types = {name: kind for name, kind in types.items() if name not in FORMATS}
    assert types == {name: as_dtype(name).tensor_map for name in names[names.index("ue8m0") :]}
    assert all(f'`"{name}"`' in text for name in FORMATS)
