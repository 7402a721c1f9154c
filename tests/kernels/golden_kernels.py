"""Every kernel with a golden in ptx/kernels: the shipped kernels, and one per pipeline."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from numba_tma.host.dtypes import as_dtype
from numba_tma.kernels.matmul import block_scaled
from numba_tma.kernels.matmul.arguments import Epilogue
from numba_tma.kernels.matmul.block_scaled_kernel import block_scaled_kernel
from numba_tma.kernels.matmul.choice import CONFIGS
from numba_tma.kernels.matmul.grouped_kernel import grouped_kernel
from numba_tma.kernels.matmul.kernel import matmul_kernel
from numba_tma.kernels.matmul.mma_kernel import mma_kernel
from numba_tma.kernels.matmul.plan import StreamKConfig, SwappedConfig, Tcgen05Config
from numba_tma.kernels.matmul.stream_k_kernel import stream_k_kernel
from numba_tma.kernels.matmul.swapped_kernel import swapped_kernel
from numba_tma.kernels.matmul.tcgen05_kernel import tcgen05_kernel
from numba_tma.kernels.matmul.tcgen05_pair_kernel import tcgen05_pair_kernel
from numba_tma.kernels.matmul.tcgen05_scaled_kernel import tcgen05_scaled_kernel
from numba_tma.kernels.matmul.unaligned_kernel import unaligned_kernel
from numba_tma.tools.testing import compile_ptx
from tests.kernels import (
    attention_backward_forms,
    attention_forms,
    attention_tcgen05_forms,
    block_forms,
    kv_kernels,
    launch_control,
    matmul_forms,
    output_kernels,
    ring_twins,
)
from tests.kernels.circular_kernels import CIRCULAR
from tests.kernels.pipeline_kernels import PIPELINES
from tests.kernels.shipped_kernels import SHIPPED

HOPPER, BLACKWELL, WORKSTATION = (9, 0, "a"), (10, 0, "a"), (12, 0, "a")


def _matmul() -> tuple[Any, Any]:
    form = matmul_forms.form(epilogue=Epilogue(bias=as_dtype("bf16")), config=CONFIGS[0])
    return matmul_kernel(form), matmul_forms.signature(form)


def _matmul_stream_k() -> tuple[Any, Any]:
    config = StreamKConfig(cluster=2)
    form = matmul_forms.form(epilogue=Epilogue(bias=as_dtype("bf16")), config=config)
    return stream_k_kernel(form), matmul_forms.stream_k_signature(form)


def _matmul_swapped() -> tuple[Any, Any]:
    config = SwappedConfig(64, 8, cluster=2)
    form = matmul_forms.swapped_form(epilogue=Epilogue(bias=as_dtype("bf16")), config=config)
    return swapped_kernel(form), matmul_forms.swapped_signature(form)


def _matmul_unaligned() -> tuple[Any, Any]:
    form = matmul_forms.unaligned_form(epilogue=Epilogue(bias=as_dtype("bf16")))
    return unaligned_kernel(form), matmul_forms.unaligned_signature(form)


def _matmul_tcgen05() -> tuple[Any, Any]:
    form = matmul_forms.tcgen05_form(epilogue=Epilogue(bias=as_dtype("bf16")))
    return tcgen05_kernel(form), matmul_forms.tcgen05_signature(form)


def _matmul_tcgen05_pair() -> tuple[Any, Any]:
    form = matmul_forms.tcgen05_form(
        epilogue=Epilogue(bias=as_dtype("bf16")), config=Tcgen05Config(cta_group=2)
    )
    return tcgen05_pair_kernel(form), matmul_forms.tcgen05_signature(form)


def _matmul_scaled(name: str, config: Tcgen05Config) -> tuple[Any, Any]:
    form = matmul_forms.scaled_form(name, epilogue=Epilogue(alpha=True), config=config)
    return tcgen05_scaled_kernel(form), matmul_forms.tcgen05_signature(form)


def _matmul_mma() -> tuple[Any, Any]:
    form = matmul_forms.mma_form(epilogue=Epilogue(bias=as_dtype("bf16")))
    return mma_kernel(form), matmul_forms.mma_signature(form)


def _grouped() -> tuple[Any, Any]:
    form = matmul_forms.form(config=CONFIGS[0])
    return grouped_kernel(form, False, False, False), block_forms.grouped_signature(form)


def _block_scaled() -> tuple[Any, Any]:
    form = block_forms.scaled_form(block_scaled.CONFIGS[0])
    return block_scaled_kernel(form), block_forms.scaled_signature(form)


def _ring(name: str) -> tuple[Any, Any]:
    ours, _, signature = ring_twins.TWINS[name]()
    return ours, signature


#: By the golden's name: what returns the kernel and its argument types, and what it is for.
GOLDENS: dict[str, tuple[Callable[[], tuple[Any, Any]], tuple[Any, ...]]] = {
    **{name: (functools.partial(SHIPPED.__getitem__, name), HOPPER) for name in SHIPPED},
    **{
        name: (ours, HOPPER)
        for pipelines in (PIPELINES, CIRCULAR, kv_kernels.PIPELINES)
        for name, (ours, _) in pipelines.items()
    },
    **{f"ring_{name}": (functools.partial(_ring, name), HOPPER) for name in ring_twins.TWINS},
    # wgmma is Hopper's alone.
    "matmul": (_matmul, HOPPER),
    "matmul_stream_k": (_matmul_stream_k, HOPPER),
    "matmul_swapped": (_matmul_swapped, HOPPER),
    "matmul_unaligned": (_matmul_unaligned, HOPPER),
    "matmul_tcgen05": (_matmul_tcgen05, BLACKWELL),
    "matmul_tcgen05_pair": (_matmul_tcgen05_pair, BLACKWELL),
    "launch_control": (launch_control.golden, BLACKWELL),
    "matmul_mxfp8": (
        functools.partial(_matmul_scaled, "mxfp8", Tcgen05Config(192)),
        BLACKWELL,
    ),
    "matmul_nvfp4_pair": (
        functools.partial(_matmul_scaled, "nvfp4", Tcgen05Config(256, cta_group=2)),
        BLACKWELL,
    ),
    "matmul_mma": (_matmul_mma, WORKSTATION),
    "grouped_matmul": (_grouped, HOPPER),
    "block_scaled": (_block_scaled, HOPPER),
    "attention": (functools.partial(attention_forms.form, "d128"), HOPPER),
    "attention_tcgen05": (
        functools.partial(attention_tcgen05_forms.tcgen05_form, "d128 causal"),
        BLACKWELL,
    ),
    "attention_backward": (functools.partial(attention_backward_forms.form, "d128"), HOPPER),
    "attention_backward_prepare": (
        functools.partial(attention_backward_forms.prepare, "d128"),
        HOPPER,
    ),
    "attention_backward_finish": (
        functools.partial(attention_backward_forms.finish, "d128"),
        HOPPER,
    ),
    "attention_backward_add_splits": (
        functools.partial(attention_backward_forms.add_splits, "d128 splits"),
        HOPPER,
    ),
    **output_kernels.GOLDEN,
}


def arch(name: str) -> str:
    """Return the architecture that a golden is for, as ptxas calls it."""
    major, minor, suffix = GOLDENS[name][1]
    return f"sm_{major}{minor}{suffix}"


@functools.cache
def compiled(name: str, cc: tuple[Any, ...] | None = None) -> str:
    """Return the PTX of a kernel that has a golden."""
    make, usual = GOLDENS[name]
    return compile_ptx(*make(), cc=cc or usual)
