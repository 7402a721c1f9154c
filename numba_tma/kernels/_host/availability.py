"""Which of the shipped kernels run on a GPU, by its tensor cores: what ``doctor`` reports."""

from __future__ import annotations

from numba_tma.host.architectures import TMA, architecture_of, target_of

#: Functions that every GPU with TMA runs.
EVERYWHERE = (
    "copy", "grouped_copy", "transpose", "pointwise", "add", "scale_add", "gelu", "swiglu",
    "rmsnorm", "layernorm", "softmax", "log_softmax", "rmsnorm_backward", "layernorm_backward",
    "row_sum", "row_max", "row_argmax", "column_sum", "stencil",
)  # fmt: skip
#: Functions that multiply: the tensor cores for which they have a kernel, each with the first part
#: of its goldens' names.
PRODUCTS: dict[str, dict[str, tuple[str, ...]]] = {
    "matmul": {
        "wgmma": ("matmul",),
        "tcgen05": ("matmul_tcgen05", "matmul_mxfp8", "matmul_nvfp4"),
        "mma": ("matmul_mma",),
    },
    "block_scaled_matmul": {"wgmma": ("block_scaled",)},
    "grouped_matmul": {"wgmma": ("grouped_matmul",)},
    "attention": {"wgmma": ("attention",), "tcgen05": ("attention_tcgen05",)},
    "attention_varlen": {"wgmma": ("attention",)},
    "attention_backward": {"wgmma": ("attention_backward",)},
}
#: Compute capabilities of GPUs that have run the tests.
TESTED = ((9, 0),)


def kernels_of(capability: tuple[int, ...]) -> tuple[list[str], dict[str, str]]:
    """Return the functions that run on GPUs of a compute capability, and why others do not.

    Parameters
    ----------
    capability
        Major and minor.
    """
    if not TMA.on(capability):
        why = "needs the Tensor Memory Accelerator of compute capability 9.0"
        return [], dict.fromkeys((*EVERYWHERE, *PRODUCTS), why)
    cores = architecture_of(target_of((capability[0], capability[1]))).tensor_cores
    found = [*EVERYWHERE, *(name for name, kernels in PRODUCTS.items() if cores in kernels)]
    return found, {
        name: f"has a kernel for {' and '.join(kernels)} alone"
        for name, kernels in PRODUCTS.items()
        if cores not in kernels
    }


def is_tested(capability: tuple[int, ...]) -> bool:
    """Return whether GPUs of a compute capability have run the kernels."""
    return capability[:2] in TESTED
