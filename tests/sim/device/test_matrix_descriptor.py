"""Descriptors in the simulator: a loaded tile, read through them."""

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import Swizzle, Tile
from numba_tma.simulator import SimulatorError
from tests.kernels.matrix_operands import Operand, noise

OPERANDS = [
    Operand(64, 128, "bf16"),
    Operand(64, 96, "tf32", "K", Swizzle.B64),
    Operand(32, 64, "i8", "K", Swizzle.B32),
    Operand(128, 32, "f16", "MN"),
    Operand(40, 48, "bf16", "MN", Swizzle.B64),
    Operand(64, 64, "e4m3", "K", Swizzle.NONE),
    Operand(64, 32, "f16", "MN", Swizzle.NONE),
]


@cuda.jit
def describe(x, before, tile, major, row, descriptors, image, place):
    """Load a tile; give its bytes, its address, and the descriptor of each k step."""
    tma.shared_tile(before)  # so that the tile is not at 0
    shared, full = tma.shared_tile(tile), tma.shared_barrier()
    if cuda.threadIdx.x == 0:
        full.init(1)
        tma.fence_mbarrier_init()
        full.arrive_expect_tx(tile.nbytes)
        x.load(shared, (0,) * tile.ndim, full)
        full.wait(0)
        place[0] = shared.address
        descriptor = shared.matrix_descriptor(major)
        for k_step in range(descriptors.size):
            descriptors[k_step] = descriptor.advance(k_step, row).value
        for i in range(image.size):
            image[i] = tma.ptx.ld_shared_u32(shared.address + 4 * i)


def described(operand, matrix, row=0):
    tile, layout = operand.tile, operand.layout()
    tensor = np.ascontiguousarray(operand.as_tensor(matrix))
    descriptors = np.zeros(layout.num_k_steps, np.uint64)
    image, place = np.zeros(tile.shared_nbytes // 4, np.uint32), np.zeros(1, np.int64)
    x_map = tma.tensor_map(tensor, tile, dtype=tile.dtype)
    describe[1, 1](x_map, Tile(100, "u8"), tile, operand.major, row, descriptors, image, place)
    memory = np.full(place[0] + image.nbytes, 0xA5, np.uint8)
    memory[place[0] :] = image.view(np.uint8)
    return memory, [int(d) for d in descriptors]


@pytest.mark.parametrize("operand", OPERANDS, ids=str)
def test_descriptors_denote_what_was_loaded(operand):
    # small numbers, which every type holds and no load changes
    matrix = np.random.default_rng(0).integers(1, 99, (operand.rows, operand.k))
    matrix = matrix.astype(operand.tile.dtype.numpy)
    layout = operand.layout()
    for row in {0, (operand.rows - 1) // layout.row_unit * layout.row_unit}:
        memory, descriptors = described(operand, matrix, row)
        assert len(descriptors) == layout.num_k_steps
        read = [
            tma.reference_matrix(memory, d, operand.rows - row, operand.dtype, operand.major)
            for d in descriptors
        ]
        np.testing.assert_array_equal(np.concatenate(read, axis=1), matrix[row:])


def test_pairs_and_bytes():
    matrix = noise("bf16", (64, 128))
    _, descriptors = described(Operand(64, 128, "bf16"), matrix)
    pair = tma.MatrixDescriptorPair(descriptors[0] & 0xFFFFFFFF, descriptors[0] >> 32)
    assert (pair + 32).value == descriptors[1]
    assert (pair + 64 + -64).value == pair.value


SQUARE = Tile((64, 64), "bf16", Swizzle.B128)


def refused(use, tile=SQUARE):
    @cuda.jit
    def kernel():
        use(tma.shared_tile(tile))

    with pytest.raises(SimulatorError) as caught:
        kernel[1, 1]()
    return str(caught.value)


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (lambda t: t.matrix_descriptor("N"), "SharedTile.matrix_descriptor: major is 'N': use"),
        (lambda t: t.matrix_descriptor().advance(4), "MatrixDescriptor.advance: k_step is 4;"),
        (lambda t: t.matrix_descriptor().advance(row=12), "MatrixDescriptor.advance: row is 12;"),
        (lambda t: t.matrix_descriptor() + 8, "a matrix descriptor + 8: descriptors count chunks"),
        (lambda t: t.matrix_descriptor().pair + 8, "a matrix descriptor + 8: descriptors count"),
    ],
)
def test_mistakes(use, said):
    assert said in refused(use)


def test_a_tile_that_cannot_be_read():
    text = refused(lambda t: t.matrix_descriptor("MN"), Tile((64, 32), "f32", Swizzle.B128))
    assert "only types of 16 bits can be MN-major" in text and "wgmma reads:" in text


def test_a_tile_that_starts_inside_the_swizzles_pattern():
    def use(tile):
        tma.SharedTile(tile.tile, tile.address + 256, tile.accesses).matrix_descriptor()

    assert "a matrix starts at a multiple of 1024 B" in refused(use)
