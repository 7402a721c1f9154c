"""The pipeline that docs/development/add-a-pipeline.md adds, in the simulator."""

import numpy as np

import numba_tma as tma
from tests.page_code import module_of


def test_the_pipeline_of_the_page(tmp_path):
    page = module_of("development/add-a-pipeline.md", tmp_path)
    x = np.arange(20 * 32, dtype=np.float32).reshape(20, 32)
    out = np.zeros(32, np.float32)
    page.column_sums[1, 32](tma.tensor_map(x, page.ROWS.tile), out, 5)
    np.testing.assert_array_equal(out, x.sum(axis=0))
