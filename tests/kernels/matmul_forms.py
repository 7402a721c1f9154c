"""Forms of the matmul kernel, with the argument types that its wrapper launches them with."""

from __future__ import annotations

from typing import Any

from numba import types

from numba_tma.backend.lowering.types import TensorMapType
from numba_tma.host.dtypes import as_dtype
from numba_tma.host.tcgen05_rules import ScaleFactors
from numba_tma.kernels.matmul.arguments import (
    Epilogue,
    MatmulExtents,
    MatrixBytes,
    ReductionExtents,
    Terms,
    UnalignedMatrix,
)
from numba_tma.kernels.matmul.mma_plan import MmaPlan
from numba_tma.kernels.matmul.plan import (
    Config,
    MatmulPlan,
    MmaConfig,
    SwappedConfig,
    SwappedPlan,
    Tcgen05Config,
    UnalignedConfig,
)
from numba_tma.kernels.matmul.stream_k_plan import StreamK
from numba_tma.kernels.matmul.tcgen05_plan import Tcgen05Plan, Tcgen05ScaledPlan
from numba_tma.kernels.matmul.unaligned_plan import UnalignedPlan

INT, F32, BYTES = types.int64, types.float32, types.uint8[::1]
PLAIN, USUAL, FEW_ROWS = Epilogue(), Config(), SwappedConfig()
BLACKWELL, BY_MMA = Tcgen05Config(), MmaConfig()
EVERYTHING = Epilogue(True, True, True, True, as_dtype("bf16"), "gelu", True)
_HELD = {"f32": types.float32, "i32": types.uint32, "f16": types.uint16, "bf16": types.uint16}


def form(
    a: str = "bf16",
    b: str = "",
    out: str = "bf16",
    layout: str = "TN",
    epilogue: Epilogue = PLAIN,
    addressable: bool = True,
    config: Config = USUAL,
) -> MatmulPlan:
    """Return the form for these types; `layout` is BLAS's: "T" for a row-major a, "N" for b.T."""
    kinds = [as_dtype(name) for name in (a, b or a, out)]
    return MatmulPlan(*kinds[:2], *_majors(layout), kinds[2], config, epilogue, addressable)


def swapped_form(
    a: str = "bf16",
    b: str = "",
    out: str = "bf16",
    layout: str = "TN",
    epilogue: Epilogue = PLAIN,
    config: SwappedConfig = FEW_ROWS,
) -> SwappedPlan:
    """Return the form of the kernel whose factors change places, as `form`."""
    kinds = [as_dtype(name) for name in (a, b or a, out)]
    return SwappedPlan(*kinds[:2], *_majors(layout), kinds[2], config, epilogue)


def unaligned_form(
    a: str = "bf16",
    b: str = "",
    out: str = "bf16",
    layout: str = "TN",
    epilogue: Epilogue = PLAIN,
    config: UnalignedConfig = UnalignedConfig(),  # noqa: B008
) -> UnalignedPlan:
    """Return the form of the kernel whose threads load the operands, as `form`."""
    kinds = [as_dtype(name) for name in (a, b or a, out)]
    return UnalignedPlan(*kinds[:2], *_majors(layout), kinds[2], config, epilogue)


def tcgen05_form(
    a: str = "bf16",
    b: str = "",
    out: str = "bf16",
    layout: str = "TN",
    epilogue: Epilogue = PLAIN,
    addressable: bool = True,
    config: Tcgen05Config = BLACKWELL,
) -> Tcgen05Plan:
    """Return the form of the kernel of Blackwell's tensor cores, as `form`."""
    kinds = [as_dtype(name) for name in (a, b or a, out)]
    return Tcgen05Plan(*kinds[:2], *_majors(layout), kinds[2], config, epilogue, addressable)


#: Formats of block-scaled products: types of the operands, and their scale factors.
SCALED = {
    "mxfp8": ("e4m3", "e5m2", ScaleFactors("ue8m0", 32)),
    "mxfp4": ("e2m1", "e2m1", ScaleFactors("ue8m0", 32)),
    "nvfp4": ("e2m1", "e2m1", ScaleFactors("ue4m3", 16)),
    "mxfp6": ("e2m3", "e3m2", ScaleFactors("ue8m0", 32)),
    "mxfp8 with mxfp4": ("e4m3", "e2m1_unpacked", ScaleFactors("ue8m0", 32)),
}


def scaled_form(
    name: str = "mxfp8",
    out: str = "bf16",
    layout: str = "TN",
    epilogue: Epilogue = PLAIN,
    addressable: bool = True,
    config: Tcgen05Config = BLACKWELL,
) -> Tcgen05ScaledPlan:
    """Return the form of the kernel of block-scaled operands, as `form`."""
    *kinds, factors = SCALED[name]
    a, b, of_out = map(as_dtype, (*kinds, out))
    return Tcgen05ScaledPlan(
        *(a, b, *_majors(layout), of_out, config, epilogue, addressable), factors=factors
    )


def tcgen05_signature(form: Tcgen05Plan) -> tuple[Any, ...]:
    """Return the argument types of the kernel of Blackwell's tensor cores."""
    read = (form.epilogue.beta, form.epilogue.residual)
    return (
        *(_map(form.a_tile), _map(form.b_tile), *map(_map, form.scale_tiles)),
        _map(form.out_tile) if form.addressable else _ROWS,
        *(_ROWS if given else types.NamedUniTuple(INT, 3, MatrixBytes) for given in read),
        types.NamedUniTuple(INT, len(MatmulExtents._fields), MatmulExtents),
        _terms(form.epilogue),
    )


def mma_form(
    a: str = "bf16",
    b: str = "",
    out: str = "bf16",
    layout: str = "TN",
    epilogue: Epilogue = PLAIN,
    addressable: bool = True,
    config: MmaConfig = BY_MMA,
) -> MmaPlan:
    """Return the form of the kernel by mma.sync, as `form`."""
    kinds = [as_dtype(name) for name in (a, b or a, out)]
    return MmaPlan(*kinds[:2], *_majors(layout), kinds[2], config, epilogue, addressable)


def mma_signature(form: MmaPlan) -> tuple[Any, ...]:
    """Return the argument types of the kernel by mma.sync."""
    read = (form.epilogue.beta, form.epilogue.residual)
    out = _HELD[form.out.name][:, :, ::1]
    return (
        *(_map(form.a_tile), _map(form.b_tile)),
        _map(form.out_tile) if form.addressable else out,
        *(_ROWS if given else types.NamedUniTuple(INT, 3, MatrixBytes) for given in read),
        types.NamedUniTuple(INT, len(MatmulExtents._fields), MatmulExtents),
        _terms(form.epilogue),
    )


def _majors(layout: str) -> tuple[str, str]:
    return "K" if layout[0] == "T" else "MN", "K" if layout[1] == "N" else "MN"


def signature(form: MatmulPlan) -> tuple[Any, ...]:
    """Return the argument types of the kernel of a form."""
    epilogue = form.epilogue
    out = _map(form.out_tile) if form.addressable else types.Array(_HELD[form.out.name], 3, "A")
    sources = (
        _map(form.source_tile) if read else INT for read in (epilogue.beta, epilogue.residual)
    )
    return (
        *(_map(form.a_copy), _map(form.b_copy), out, *sources),
        *(types.NamedUniTuple(INT, len(MatmulExtents._fields), MatmulExtents), _terms(epilogue)),
    )


def stream_k_signature(form: MatmulPlan) -> tuple[Any, ...]:
    """Return the argument types of the stream-K kernel."""
    return (*signature(form), types.NamedUniTuple(INT, len(StreamK._fields), StreamK))


def swapped_signature(form: SwappedPlan) -> tuple[Any, ...]:
    """Return the argument types of the kernel whose factors change places."""
    read = (form.epilogue.beta, form.epilogue.residual)
    return (
        *(_map(form.a_tile), _map(form.b_tile), types.Array(_HELD[form.out.name], 3, "A")),
        *(_ROWS if given else types.NamedUniTuple(INT, 3, MatrixBytes) for given in read),
        *(
            types.NamedUniTuple(INT, len(MatmulExtents._fields), MatmulExtents),
            _terms(form.epilogue),
        ),
    )


def unaligned_signature(form: UnalignedPlan) -> tuple[Any, ...]:
    """Return the argument types of the kernel whose threads load the operands."""
    read = (form.epilogue.beta, form.epilogue.residual)
    operand = types.NamedUniTuple(INT, len(UnalignedMatrix._fields), UnalignedMatrix)
    return (
        *(operand, operand, types.Array(_HELD[form.out.name], 3, "A")),
        *(_ROWS if given else types.NamedUniTuple(INT, 3, MatrixBytes) for given in read),
        types.NamedUniTuple(INT, len(MatmulExtents._fields), MatmulExtents),
        _terms(form.epilogue),
    )


def _terms(epilogue: Epilogue) -> types.NamedTuple:
    vectors = (epilogue.row_scale, epilogue.column_scale, epilogue.bias)
    return types.NamedTuple((F32, F32, *(BYTES if given else INT for given in vectors)), Terms)


_ROWS = types.NamedTuple((BYTES, INT, INT), MatrixBytes)
#: Of the kernel that adds up parts of K, with a bias.
ADDING = (
    *(_ROWS, _ROWS, types.NamedUniTuple(INT, 3, MatrixBytes)),
    types.NamedUniTuple(INT, len(ReductionExtents._fields), ReductionExtents),
    types.NamedTuple((F32, F32, INT, INT, BYTES), Terms),
)


def _map(tile: Any) -> TensorMapType:
    return TensorMapType(tile.ndim, tile)
