"""Scale factors: where tcgen05.cp finds an atom, and in which columns a product expects it."""

import numpy as np
import pytest

from numba_tma import Swizzle, Tile
from numba_tma.host.matrix_layout import decode_descriptor, matrix_addresses
from numba_tma.host.scale_factors import scale_offset, scale_tile
from numba_tma.host.scale_layout import ScaleLayout


@pytest.mark.parametrize(("rows", "k", "name"), [(128, 256, "nvfp4"), (256, 512, "mxfp8")])
def test_an_atom_s_rows_reach_their_lanes(rows, k, name):
    layout = ScaleLayout(scale_tile(rows, k, name))
    scales = 4 * layout.k_atoms
    for row_atom in range(layout.row_atoms):
        for k_atom in range(layout.k_atoms):
            descriptor = layout.descriptor(2048, k_atom, row_atom)
            first = matrix_addresses(descriptor, 32, 1)[:, :16] - 2048
            for r in range(128):  # lane r % 32, byte r // 32 of the row's 16, four scales each
                row, scale = 128 * row_atom + r, 4 * k_atom
                wanted = scale_offset(row, scale + np.arange(4), scales)
                found = first[r % 32, 4 * (r // 32) : 4 * (r // 32) + 4]
                np.testing.assert_array_equal(found, wanted)
    assert decode_descriptor(layout.descriptor(2048)).swizzle is Swizzle.NONE


@pytest.mark.parametrize("method", ["offset", "column", "descriptor"])
def test_the_first_atom_is_meant_where_no_place_is_given(method):
    layout = ScaleLayout(scale_tile(256, 512, "mxfp8"))

    def at(**places):
        return getattr(layout, method)(*[2048] * (method == "descriptor"), **places)

    assert at() == at(k=0, row=0) != at(k=1, row=0) != at(k=0, row=1) != at()
    assert at(k=1) == at(k=1, row=0) and at(row=1) == at(k=0, row=1)


def test_columns():
    layout = ScaleLayout(scale_tile(192, 512, "mxfp8"))  # 192 rows take two atoms
    assert (layout.row_atoms, layout.k_atoms, layout.columns) == (2, 4, 8)
    assert [layout.column(k, row) for k in range(4) for row in range(2)] == [*range(0, 32, 4)]


@pytest.mark.parametrize(
    ("tile", "said"),
    [
        (Tile((1, 4, 512), "ue8m0"), "is no tile of scale factors: its shape is"),
        (Tile((1, 4, 2, 256), "u8"), "holds u8: scale factors are ue8m0 or ue4m3"),
    ],
)
def test_what_holds_no_scale_factors(tile, said):
    with pytest.raises(ValueError, match=said):
        ScaleLayout(tile)


def test_places_that_there_are_not():
    layout = ScaleLayout(scale_tile(128, 256, "nvfp4"))
    with pytest.raises(ValueError, match="has 4 atoms along K and 1 along the rows"):
        layout.descriptor(0, 4)
    with pytest.raises(ValueError, match="k is 4 and row is 0; .* 4 atoms along K and 1 along the"):
        layout.column(4)
    for address in (64, -128, 1 << 18):
        with pytest.raises(ValueError, match="start at a multiple of 128 B below 256 KiB"):
            layout.descriptor(address)
    with pytest.raises(ValueError, match="start at a multiple of 128 B below 256 KiB"):
        layout.descriptor((1 << 18) - layout.offset(3), 3)  # the tile begins there, not its atom
    for address in (0, 128, (1 << 18) - 128):
        assert matrix_addresses(layout.descriptor(address), 1, 1)[0, 0] == address
