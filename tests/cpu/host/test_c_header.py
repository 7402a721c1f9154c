"""The C header: what C and C++ pass, and that it compiles without a warning."""

import subprocess

import numpy as np
import pytest
from cuda.bindings import driver as bindings
from numba import cuda, types

import numba_tma as tma
from numba_tma.host import c_header
from tests.exported import (
    F32,
    I32,
    I64,
    SCALE,
    TILE,
    compile_with,
    exported,
    nothing,
    recording,
    scale,
)
from tests.recording_driver import Array


@pytest.fixture
def gpu():
    """A driver that notes launches."""
    with recording() as driver:
        yield driver


#: A driver in C, which writes what it is given.
DRIVER = """
#include <stdio.h>
#include "first.h"
#include "second.h"
#undef cuLaunchKernel
#undef cuTensorMapEncodeTiled

#ifdef __cplusplus
extern "C" {{
#endif
CUresult CUDAAPI cuLaunchKernel(
    CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
    unsigned shared, CUstream stream, void **pointers, void **extra) {{
    static const int sizes[] = {{{sizes}}};
    printf("launch %u %u %u %u %u %u %u\\n", gx, gy, gz, bx, by, bz, shared);
    for (unsigned i = 0; i < FIRST_PARAMETERS; ++i) {{
        const unsigned char *bytes = (const unsigned char *)pointers[i];
        for (int byte = 0; byte < sizes[i]; ++byte) printf("%02x", bytes[byte]);
        printf("\\n");
    }}
    return f && !stream && !extra ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}}
CUresult CUDAAPI cuTensorMapEncodeTiled(
    CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
    const cuuint64_t *shape, const cuuint64_t *strides, const cuuint32_t *box,
    const cuuint32_t *steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
    CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {{
    printf("%d %u %llu", (int)type, rank, (unsigned long long)(size_t)address);
    for (cuuint32_t i = 0; i < rank; ++i)
        printf(" %d %d %d", (int)shape[i], (int)box[i], (int)steps[i]);
    for (cuuint32_t i = 0; i + 1 < rank; ++i) printf(" %d", (int)strides[i]);
    printf(" %d %d %d %d\\n", (int)interleave, (int)swizzle, (int)promotion, (int)fill);
    for (int i = 0; i < 16; ++i) map->opaque[i] = (cuuint64_t)i;
    return CUDA_SUCCESS;
}}
#ifdef __cplusplus
}}
#endif

int main(void) {{
    const uint64_t shape[] = {{64, 640}}, strides[] = {{2560, 4}};
    const int64_t extents[] = {{5, 6, 7}};
    const unsigned grid[] = {{4, 2, 1}}, block[] = {{96, 1, 1}};
    const unsigned odd[] = {{3, 1, 1}}, wide[] = {{128, 1, 1}};
    first_parameters parameters;
    CUfunction kernel = (CUfunction)&parameters;
    if (first_encode_x(&parameters.x, 4096, shape, strides)) return 1;
    parameters.register_ = numba_tma_contiguous_3(8192, 2, extents);
    parameters.f = 0.5f;
    parameters.n_0 = -3;
    parameters.n_1 = 200;
    parameters.n_1_ = 7;
    parameters.half = 0x3c00;
    parameters.flag = 1;
    if (first_launch(kernel, grid, block, 0, &parameters)) return 2;
    if (first_launch(kernel, odd, block, 0, &parameters) != CUDA_ERROR_INVALID_VALUE) return 3;
    if (first_launch(kernel, grid, wide, 0, &parameters) != CUDA_ERROR_INVALID_VALUE) return 4;
    return SECOND_COMPUTE_CAPABILITY != 90 || FIRST_THREADS != 96 || FIRST_CLUSTER_X != 2;
}}
"""
ROLES = tma.Roles(load=tma.Warps(1), work=tma.Warps(2))
IN_ROLES = tma.TilePipeline(2, producer=ROLES.load, consumer=ROLES.work, x=TILE)


@cuda.jit
@tma.cluster(2)
def first(x, register, f, n, n_1, half, flag):
    pipe = IN_ROLES.start()
    if pipe.is_producer():
        for tile, stage in pipe.produce(0, n[0], 1):
            x.load(stage.x, (tile * 8, 0), stage.barrier)
    elif pipe.is_consumer():
        for _, stage in pipe.consume(0, n[0], 1):
            register[0, 0, 0] = stage.x[0, 0] * f


FIRST = (
    tma.TensorMapType(2, TILE),
    types.float16[:, :, ::1],
    F32,
    types.Tuple((I32, types.uint8)),
    I64,
    types.float16,
    types.boolean,
)


@pytest.mark.parametrize(
    ("compiler", "suffix", "standard"),
    [("gcc", "c", "c99"), ("gcc", "c", "gnu17"), ("g++", "cpp", "c++11"), ("g++", "cpp", "c++20")],
)
def test_c_passes_the_same_bytes_as_python(gpu, tmp_path, compiler, suffix, standard):
    tma.export(first, FIRST, tmp_path / "first")
    tma.export(scale, SCALE, tmp_path / "second")
    kernel = tma.load(tmp_path / "first")
    source = tmp_path / f"main.{suffix}"
    source.write_text(DRIVER.format(sizes=", ".join(map(str, kernel.image.sizes))))
    compile_with(compiler, source, f"-std={standard}", "-o", "main")
    done = subprocess.run([str(tmp_path / "main")], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout
    encoded, launch, *packed = done.stdout.splitlines()
    assert launch == "launch 4 2 1 96 1 1 0"
    float32 = int(bindings.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT32)
    # type, rank, address; of each axis from the innermost: extent, box, step; strides; options
    assert encoded == f"{float32} 2 4096 640 32 1 64 8 1 2560 0 0 2 0"
    x = tma.tensor_map(Array(1, (64, 640), "f4"), TILE)
    y = Array(1, (5, 6, 7), "f2")
    y.__cuda_array_interface__["data"] = (8192, False)
    arguments = x, y, 0.5, (-3, 200), 7, np.float16(1), True
    gpu.sizes[kernel.image.entry] = kernel.image.sizes
    kernel[(4, 2), 96](*arguments)
    wanted = [one.hex() for one in gpu.launches[0].packed]
    assert packed[1:] == wanted[1:]
    assert packed[0] == np.arange(16, dtype="<u8").tobytes().hex()


def test_a_wide_tile_is_encoded_by_the_box_of_a_copy(gpu, tmp_path):
    tile = tma.Tile((8, 512), "f32")
    wide = tma.tensor_map(Array(1, (64, 640), "f4"), tile, element_strides=(2, 1))
    tma.export(nothing, (wide,), tmp_path / "kernel")
    rows, columns = wide.box
    assert wide.copies.count > 1 and columns == 256
    text = (tmp_path / "kernel.h").read_text()
    assert f"box[] = {{{columns}, {rows}}}, steps[] = {{1, 2}};" in text


@pytest.mark.parametrize("name", ["α", "2d", "_x", "a b", "int", "x-y", "class", "linux", "-"])
def test_names_are_identifiers_of_c(name):
    found = c_header.identifier(name)
    assert found.isidentifier() and found.isascii() and found[0] != "_"
    assert found not in ("int", "class", "linux")


def test_the_header_of_a_kernel_without_parameters(tmp_path):
    @cuda.jit
    def kernel():
        pass

    tma.export(kernel, (), tmp_path / "kernel")
    for compiler, suffix in (("gcc", "c"), ("g++", "cpp")):
        source = tmp_path / f"main.{suffix}"
        source.write_text('#include "kernel.h"\n')
        compile_with(compiler, source, "-fsyntax-only")


def test_cooperative_and_dynamic_launches_in_c(tmp_path):
    @cuda.jit
    def kernel(x):
        buffer = cuda.shared.array(0, F32)
        buffer[0] = x[0]
        cuda.cg.this_grid().sync()
        x[0] = buffer[0]

    found = exported(kernel, (F32[::1],), tmp_path, shared=64)
    text = (tmp_path / "kernel.h").read_text()
    assert found.image.cooperative and "cuLaunchCooperativeKernel(" in text
    assert "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, KERNEL_SHARED_BYTES" in text
    source = tmp_path / "main.cpp"
    source.write_text('#include "kernel.h"\nint main() { return kernel_launch == nullptr; }\n')
    compile_with("g++", source, "-fsyntax-only", "-Wno-address")
