"""The compiler takes plain Python; what the simulator makes of it stands in tests/sim."""

import pytest
from numba import float64

from numba_tma.tools.testing import compile_ptx
from tests.kernels.plain_python import KERNELS


@pytest.mark.parametrize("name", KERNELS)
def test_the_compiler_accepts(name):
    assert ".entry" in compile_ptx(KERNELS[name], (float64[::1],))
