"""Print the GPU's behaviour that manuals leave open: ``python -m tests.gpu.measure_im2col``.

Interleaved tensors: the places of elements in shared memory. Copies that break a rule: their
faults, and the bytes that they leave. Nothing is asserted here: the output is the basis of a model
or a rule with its own test.
"""

from dataclasses import replace

import numpy as np
from numba import cuda

import numba_tma as tma
from numba_tma.host.driver import encode_im2col
from numba_tma.host.dtypes import as_dtype
from numba_tma.tools.pytest_plugin.worker import WorkerLost
from tests.gpu import copies, im2col_copies
from tests.gpu.copies import THREADS, Tensor
from tests.gpu.worker import WORKER, on_gpu

WINDOW = 8192
U16 = as_dtype("u16")


def numbered():
    """Return memory whose every 16-bit element is its own index."""
    return cuda.to_device(np.arange(1 << 16, dtype=np.uint16))


def runs(image):
    """Describe an image of numbered elements as runs: where, first number, how many."""
    words = image.view(np.uint16)
    canary = copies.canaries(image.nbytes).view(np.uint16)
    found, at = [], 0
    while at < words.size:
        end = at + 1
        if words[at] == canary[at]:
            while end < words.size and words[end] == canary[end]:
                end += 1
            found.append(f"@{2 * at} -- x{end - at}")
        else:
            step = 1 if end < words.size and int(words[end]) == int(words[at]) + 1 else 0
            while end < words.size and int(words[end]) == int(words[end - 1]) + step:
                if words[end] == canary[end]:
                    break
                end += 1
            found.append(f"@{2 * at} {words[at]}{'..' if step else ' x'}{end - at}")
        at = end
    return " | ".join(found)


@on_gpu
def interleaved_im2col(shape, strides, column, coords, offsets, interleave, swizzle, expected):
    memory = numbered()
    axes = len(shape) - 2
    box = tma.PixelBox((0,) * axes, (0,) * axes, (1,) * axes)
    try:
        value = encode_im2col(
            *(U16, memory.device_ctypes_pointer.value, shape, (*strides, 2)),
            *(column, box, interleave, swizzle, None, "zeros"),
        )
    except RuntimeError as error:
        return f"the driver refuses: {str(error)[:60]}"
    image, completed = cuda.device_array(WINDOW // 4, np.uint32), cuda.device_array(1, np.uint32)
    shifts = tuple(np.uint16(o) for o in offsets)
    im2col_copies.load_raw[1, THREADS](value, coords, shifts, expected, image, completed)
    came = f"{expected} B came" if completed.copy_to_host()[0] else f"not {expected} B"
    return f"{came}: {runs(image.copy_to_host().view(np.uint8))}"


@on_gpu
def tiled_load_through_an_im2col_map():
    return _load_with(copies.load_raw, im2col=True)


@on_gpu
def im2col_load_through_a_tiled_map():
    return _load_with(im2col_copies.load_raw, im2col=False)


def _load_with(kernel, im2col):
    array = cuda.to_device(np.arange(2 * 8 * 8 * 16, dtype=np.uint16).reshape(2, 8, 8, 16))
    if im2col:
        value = tma.im2col_map(array, (16, 16)).value
    else:
        value = tma.tensor_map(array, (1, 2, 8, 16)).value
    image, completed = cuda.device_array(WINDOW // 4, np.uint32), cuda.device_array(1, np.uint32)
    offsets = () if im2col else ((np.uint16(0), np.uint16(0)),)
    kernel[1, THREADS](value, (0, 0, 0, 0), *offsets, 512, image, completed)
    cuda.synchronize()
    came = bool(completed.copy_to_host()[0])
    return f"512 B came: {came}; {runs(image.copy_to_host().view(np.uint8))}"


@on_gpu
def load_of(case):
    image, completed = im2col_copies.load(case, numbered(), WINDOW)
    return f"{case.tile.nbytes} B came: {completed}; {runs(image)}"


@on_gpu
def store_of(case):
    device = cuda.to_device(np.zeros(1 << 16, np.uint16))
    image = np.arange(1, case.tile.size + 1, dtype=np.uint16)
    im2col_copies.store(case, device, image)
    written = device.copy_to_host()
    places = np.flatnonzero(written)
    return f"{places.size} elements written, at {places[:8].tolist()}: {written[places][:8]}"


def show(title, measure, *args):
    try:
        result = measure(*args)
    except WorkerLost as lost:
        result = "LOST: " + str(lost).strip().splitlines()[-1]
    print(f"{title}\n    {result}", flush=True)


def interleaves():
    none = tma.Swizzle.NONE
    for column in ((4, 8), (4, 16), (4, 1), (4, 2)):
        for expected in (column[0] * column[1] * 2, column[0] * column[1] * 16):
            show(
                f"im2col, interleave 16, shape (2, 4, 4, 16), column {column}, {expected} B",
                *(interleaved_im2col, (2, 4, 4, 16), (4096, 512, 64), column),
                *((0, 0, 0, 0), (0, 0), 16, none, expected),
            )


def broken_rules():
    case = im2col_copies.Case(
        tile=tma.Tile((8, 8), "u16"),
        tensor=Tensor((2, 4, 4, 8), (256, 64, 16, 2), 2),
        box=tma.PixelBox((0, 0), (0, 0), (1, 1)),
        coords=(0, 0, 0, 0),
        offsets=(0, 0),
    )
    padded = replace(case, box=tma.PixelBox((-1, -1), (1, 1), (1, 1)))
    show("tiled load through an im2col map", tiled_load_through_an_im2col_map)
    show("im2col load through a tiled map", im2col_load_through_a_tiled_map)
    show("a legal load", load_of, case)
    show("first pixel left of the box", load_of, replace(case, coords=(0, 0, -1, 0)))
    show("first pixel right of the box", load_of, replace(case, coords=(0, 0, 4, 0)))
    show("first pixel below the box", load_of, replace(case, coords=(0, 4, 0, 0)))
    show("channel 4, 8 B into the pixel", load_of, replace(case, coords=(0, 0, 0, 4)))
    show("offset 256, past its 8 bits", load_of, replace(case, offsets=(0, 256)))
    show("a legal store", store_of, case)
    show("store at w = -1", store_of, replace(padded, coords=(0, 0, -1, 0)))
    show("store at (0, 0) of a padded box", store_of, padded)
    show("store at image -1", store_of, replace(case, coords=(-1, 0, 0, 0)))
    show("store at image 2, past the last", store_of, replace(case, coords=(2, 0, 0, 0)))


def main():
    broken_rules()
    interleaves()
    WORKER.stop()


if __name__ == "__main__":
    from tests.gpu import measure_im2col  # by this name the worker finds the cases

    measure_im2col.main()
