"""Tiles of records on a GPU: fields, copies of records, and copies of tiles."""

import pytest

from tests.gpu.worker import on_gpu
from tests.kernels.record_tiles import TILES, check_records


@pytest.mark.parametrize("tile", TILES, ids=str)
@on_gpu
def test_fields_and_records_are_read_and_written(tile):
    check_records(tile)
