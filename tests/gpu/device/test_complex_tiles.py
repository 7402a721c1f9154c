"""Complex tiles on a GPU: elements, copies of one and of several boxes, and sums."""

import pytest

from tests.gpu.worker import on_gpu
from tests.kernels.complex_tiles import STARTS, TILES, check_copies, check_model


@pytest.mark.parametrize("fold", [False, True], ids=["boxes", "folded"])
@pytest.mark.parametrize("tile", TILES, ids=str)
@on_gpu
def test_complex_tiles_are_loaded_changed_stored_and_added(tile, fold):
    check_copies(tile, fold)


@pytest.mark.parametrize("start", STARTS)
@on_gpu
def test_complex_tiles_are_those_of_the_model(start):
    check_model(start)
