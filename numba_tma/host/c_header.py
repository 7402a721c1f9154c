"""The C header of an exported kernel: its parameters as a structure, and its launch.

A kernel of Numba takes the fields of an array, and the items of a tuple, as parameters of their
own. The structure has them as members, and the launch passes the address of each.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from string import Template

from numba_tma._version import __version__
from numba_tma.host.architectures import parts
from numba_tma.host.boxes import Copies
from numba_tma.host.driver import L2_PROMOTION, NBYTES, SWIZZLE
from numba_tma.host.dtypes import as_dtype
from numba_tma.host.exported_arguments import (
    ExportedArgument,
    ExportedArray,
    ExportedMap,
    ExportedNumber,
    ExportedTuple,
)
from numba_tma.host.kernel_image import KernelImage
from numba_tma.host.layout import Swizzle, Tile

_C_TYPES = {
    **{f"{kind}{bits}": f"{kind}{bits}_t" for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
    **{"float16": "uint16_t", "float32": "float", "float64": "double", "bool": "uint8_t"},
}
#: Words of C and C++, and macros of gcc, that a Python parameter can be called.
_RESERVED = set(
    "alignas alignof asm auto bool case catch char class const constexpr continue decltype default "
    "delete do double else enum explicit export extern false float for friend goto if inline int "
    "long mutable namespace new noexcept nullptr operator private protected public register "
    "restrict return short signed sizeof static struct switch template this throw true try typedef "
    "typeid typename typeof union unsigned using virtual void volatile while linux unix".split()
)


@dataclass(frozen=True)
class _Member:
    """A member of the structure."""

    name: str
    type: ExportedArgument

    @property
    def declaration(self) -> str:
        """The type and the name in C."""
        if isinstance(self.type, ExportedNumber):
            return f"{_C_TYPES[self.type.dtype]} {self.name}"
        if isinstance(self.type, ExportedArray):
            return f"numba_tma_array_{self.type.ndim} {self.name}"
        is_map = isinstance(self.type, ExportedMap)
        return f"{'CUtensorMap' if is_map else 'CUdeviceptr'} {self.name}"

    @property
    def parameters(self) -> list[tuple[str, int]]:
        """The kernel's parameters in the member, each with its bytes."""
        if isinstance(self.type, ExportedArray):
            fields = ["meminfo", "parent", "size", "itemsize", "data"]
            for field in ("shape", "strides"):
                fields += [f"{field}[{axis}]" for axis in range(self.type.ndim)]
            return [(f"{self.name}.{field}", 8) for field in fields]
        if isinstance(self.type, ExportedNumber):
            return [(self.name, self.type.itemsize)]
        return [(self.name, NBYTES if isinstance(self.type, ExportedMap) else 8)]


def _members(names: Iterable[str], types: Iterable[ExportedArgument]) -> list[_Member]:
    members: dict[str, _Member] = {}
    for argument, given in zip(names, types, strict=True):
        for name, item in _items(argument, given):
            while name in members:
                name += "_"
            members[name] = _Member(name, item)
    return list(members.values())


def _items(name: str, given: ExportedArgument) -> Iterator[tuple[str, ExportedArgument]]:
    """Yield an argument, or the items of a tuple, with their names in C."""
    if not isinstance(given, ExportedTuple):
        yield identifier(name), given
        return
    for i, item in enumerate(given.items):
        yield from _items(f"{name}_{i}", item)


def parameter_sizes(names: Iterable[str], types: Iterable[ExportedArgument]) -> tuple[int, ...]:
    """Return the bytes of each parameter that the structure has."""
    return tuple(n for member in _members(names, types) for _, n in member.parameters)


def identifier(name: str) -> str:
    """Return a name as C and C++ take it."""
    name = re.sub(r"[^0-9A-Za-z_]", "_", name)
    name = f"k{name}" if name[0] in "0123456789_" else name  # C++ reserves some with "_"
    return f"{name}_" if name in _RESERVED else name


def c_header(stem: str, image: KernelImage, target: str, types: Sequence[ExportedArgument]) -> str:
    """Return the header of a kernel whose files have this stem."""
    name = identifier(stem)
    members = _members(image.arguments, types)
    axes = sorted({m.type.ndim for m in members if isinstance(m.type, ExportedArray)})
    encoders = [_encoder(name, m.name, m.type) for m in members if isinstance(m.type, ExportedMap)]
    pointers = [f"*pointers++ = &parameters->{p};" for m in members for p, _ in m.parameters]
    macro = name.upper()
    rules = list(_rules(image, macro))
    arguments = zip(image.arguments, types)
    return _HEADER.substitute(
        name=name,
        macro=macro,
        kernel=f"{image.name}, exported by numba_tma {__version__} for sm_{target}: {stem}.cubin",
        arguments="".join(f" * {argument}: {given}\n" for argument, given in arguments),
        rules="".join(f" * {rule}\n" for rule, _ in rules),
        entry=image.entry,
        capability=parts(target)[0],
        parameters=len(pointers),
        shared=image.shared,
        constants="".join(f"#define {macro}_{key} {n}\n" for key, n in _constants(image)),
        arrays="".join(map(_array, axes)),
        members="\n    ".join(f"{m.declaration};" for m in members) or "char none;",
        encoders="".join(encoders),
        pointers="\n    ".join(pointers) or "(void)parameters, (void)pointers;",
        checks="".join(_CHECK.format(wrong) for _, wrong in rules),
        allow=_ALLOW.substitute(macro=macro) if image.shared else "",
        launch="cuLaunchCooperativeKernel" if image.cooperative else "cuLaunchKernel",
        extra="" if image.cooperative else ", 0",
    )


def _rules(image: KernelImage, macro: str) -> Iterator[tuple[str, str]]:
    """Yield the rules of `Requirements.check`, each with its negation in C."""
    needs, line = image.requirements, "block[1] != 1 || block[2] != 1"
    for n in sorted(needs.blocks - {0}):
        yield f"Blocks have {n} threads in one dimension.", f"block[0] != {n} || {line}"
    if 0 in needs.blocks:
        rule = "Blocks have 64, 96, 128, ... 1024 threads in one dimension."
        yield rule, f"block[0] < 64 || block[0] % 32 || {line}"
    if needs.line:
        yield "Blocks have whole warps in one dimension.", f"block[0] % 32 || {line}"
    if needs.cluster:
        wrong = [f"grid[{i}] % {macro}_CLUSTER_{axis}" for i, axis in enumerate("XYZ")]
        yield f"The grid is a multiple of the cluster, {needs.cluster}.", " || ".join(wrong)


def _constants(image: KernelImage) -> Iterator[tuple[str, int]]:
    yield from (("THREADS", n) for n in sorted(image.requirements.blocks - {0})[:1])
    if image.requirements.cluster:
        yield from zip(("CLUSTER_X", "CLUSTER_Y", "CLUSTER_Z"), image.requirements.cluster)


def _array(ndim: int) -> str:
    fields = f"\n    int64_t shape[{ndim}], strides[{ndim}];" if ndim else ""
    axis = (
        "\n    array.shape[{0}] = shape[{0}];\n    array.strides[{0}] = array.size * itemsize;"
        "\n    array.size *= shape[{0}];"
    )
    filled = "".join(axis.format(i) for i in reversed(range(ndim)))
    shape = ", const int64_t *shape" if ndim else ""
    return _ARRAY.substitute(n=ndim, fields=fields, shape=shape, filled=filled)


def _encoder(name: str, member: str, given: ExportedMap) -> str:
    """Return the function that encodes a map; "" where `tensor_map` does more than the driver."""
    facts, described = given.facts, given.facts["tile"]
    if facts["mode"] != "tiled" or facts["fold"] or facts["interleave"] or facts["sequences"]:
        return ""
    tile = Tile(described["shape"], described["dtype"], Swizzle[described["swizzle"]])
    if tile.dtype.words > 1:
        return ""
    steps = tuple(facts["element_strides"])
    box = [e * step for e, step in zip(Copies(tile, steps).box.shape, steps, strict=True)]
    return _ENCODER.substitute(
        name=name,
        member=member,
        rank=len(box),
        box=", ".join(map(str, reversed(box))),
        steps=", ".join(map(str, reversed(steps))),
        element=as_dtype(described["dtype"]).tensor_map,
        swizzle=SWIZZLE[tile.swizzle],
        promotion=L2_PROMOTION[128],
    )


# --------------------------------------------------------------------------------- the text

_HEADER = Template("""\
/* $kernel
 *
$arguments *
$rules * Shapes and strides begin with the outermost axis; strides are in bytes.
 */
#ifndef ${macro}_H
#define ${macro}_H

#include <stdint.h>

#include <cuda.h>

#define ${macro}_ENTRY "$entry"
#define ${macro}_COMPUTE_CAPABILITY $capability
#define ${macro}_PARAMETERS $parameters
#define ${macro}_SHARED_BYTES $shared
$constants
${arrays}typedef struct {
    $members
} ${name}_parameters;

$encoders/* Fills the array of addresses that cuLaunchKernel and cuLaunchKernelEx take. */
static inline void ${name}_pointers(${name}_parameters *parameters, void **pointers) {
    $pointers
}

/* Launches the function ${macro}_ENTRY of the module. */
static inline CUresult ${name}_launch(
    CUfunction kernel, const unsigned grid[3], const unsigned block[3], CUstream stream,
    ${name}_parameters *parameters) {
    void *pointers[${macro}_PARAMETERS + 1];
$checks$allow    ${name}_pointers(parameters, pointers);
    return $launch(
        kernel, grid[0], grid[1], grid[2], block[0], block[1], block[2],
        ${macro}_SHARED_BYTES, stream, pointers$extra);
}

#endif
""")

_CHECK = "    if ({}) return CUDA_ERROR_INVALID_VALUE;\n"

_ALLOW = Template("""\
    CUresult allowed = cuFuncSetAttribute(
        kernel, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, ${macro}_SHARED_BYTES);
    if (allowed) return allowed;
""")

#: Headers of several kernels define the arrays of a number of axes once.
_ARRAY = Template("""\
#ifndef NUMBA_TMA_ARRAY_$n
#define NUMBA_TMA_ARRAY_$n
/* An array of $n axes; meminfo and parent are null. */
typedef struct {
    void *meminfo, *parent;
    int64_t size, itemsize;
    CUdeviceptr data;$fields
} numba_tma_array_$n;

/* Describes a C-contiguous array, whose elements have itemsize bytes. */
static inline numba_tma_array_$n numba_tma_contiguous_$n(
    CUdeviceptr data, int64_t itemsize$shape) {
    numba_tma_array_$n array;
    array.meminfo = array.parent = 0;
    array.size = 1;
    array.itemsize = itemsize;
    array.data = data;$filled
    return array;
}
#endif

""")

_ENCODER = Template("""\
/* Encodes $member, a map of the array at data, with the defaults of tensor_map. */
static inline CUresult ${name}_encode_$member(
    CUtensorMap *map, CUdeviceptr data, const uint64_t *shape, const uint64_t *strides) {
    const cuuint32_t box[] = {$box}, steps[] = {$steps}; /* of the innermost axis first */
    cuuint64_t extents[$rank], bytes[$rank + 1] = {0};
    for (int axis = 0; axis < $rank; ++axis) {
        extents[axis] = shape[$rank - 1 - axis];
        bytes[axis] = strides[$rank - 1 - axis];
    }
    return cuTensorMapEncodeTiled(
        map, CU_TENSOR_MAP_DATA_TYPE_$element, $rank, (void *)(uintptr_t)data, extents, bytes + 1,
        box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_$swizzle,
        CU_TENSOR_MAP_L2_PROMOTION_$promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

""")
