"""`export`: a kernel compiled ahead of time, for launches from C, C++, and Python without Numba."""

from __future__ import annotations

import os
from pathlib import Path

from numba_tma.host.annotations import ComputeCapability, Kernel, Signature
from numba_tma.host.architectures import (
    TARGETS,
    architecture_of,
    capability_of,
    own_target,
    target_of,
)
from numba_tma.host.backend import exported_image
from numba_tma.host.c_header import c_header, parameter_sizes
from numba_tma.host.cached_kernel import CachedKernel
from numba_tma.host.driver import present_capability
from numba_tma.host.environment import check_compiles
from numba_tma.host.exported_files import write
from numba_tma.host.host_only import host_only
from numba_tma.host.values import checked, whole

_HOPPER = "90a"


@host_only
def export(
    kernel: Kernel,
    signature: Signature,
    path: str | os.PathLike[str],
    *,
    cc: ComputeCapability | None = None,
    shared: int = 0,
) -> None:
    """Compile a kernel, and write what launches it without a compiler.

    Three files are written, or replaced:

    - ``path.cubin``: the GPU's code;
    - ``path.h``: a header for C and C++ with the structure of the parameters, its launch, and
      functions that encode tensor maps;
    - ``path.json``: what `load` needs beside the code.

    No GPU is needed::

        tma.export(scale, (tma.map_type(TILE), float32[:, ::1], float32), "build/scale")

    Parameters
    ----------
    kernel
        A ``@cuda.jit`` kernel, or one of `cached`.
    signature
        The argument types: a tuple of Numba types, a signature, or its text. A tuple may have
        arguments, such as a tensor map, in the place of their types. Arguments are tensor maps,
        arrays, pointers, numbers of up to 64 bits, and tuples of these.
    path
        The files' path without a suffix. Its last part names the functions of the header.
    cc
        Compute capability, with "a" or "f" for the architecture- or family-specific target, as in
        `testing.compile_ptx`; by default the current GPU's own, and (9, 0, "a") without a GPU.
    shared
        Bytes of dynamic shared memory of each launch. A kernel that has ``cuda.shared.array(0,
        ...)`` needs it; the pipelines and tiles of this library are static.

    Raises
    ------
    TypeError
        When `kernel` is no kernel, or an argument's type is none of these.
    ValueError
        When the signature has another number of types than the kernel has parameters, `cc` is
        unknown, or the kernel's code is bound to this process: in debug mode, with
        ``debug=True`` or extensions, or with an array of the device among its globals.
    FileNotFoundError
        When the folder of `path` does not exist.
    RuntimeError
        In the simulator, which has no compiler.
    """
    check_compiles("export")
    stem = Path(os.fspath(path))
    if not stem.name or not stem.parent.is_dir():
        raise FileNotFoundError(
            f"export(path={os.fspath(path)!r}): the folder {stem.parent} does not exist: make it "
            "first; path is a folder and the beginning of the files' names"
        )
    target = _target(cc)
    shared = checked("export", "shared", shared, whole(0, architecture_of(target).shared))
    if isinstance(kernel, CachedKernel):
        kernel = kernel.kernel
    try:
        image, types = exported_image(kernel, signature, capability_of(target), shared)
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"export: {error}") from error
    if parameter_sizes(image.arguments, types) != image.sizes:
        raise RuntimeError(
            f"export: {image.name} has parameters of {image.sizes} B, and the header of "
            f"{parameter_sizes(image.arguments, types)} B: this is an error of numba_tma"
        )
    write(stem, image, target, types, c_header(stem.name, image, target, types))


def _target(cc: ComputeCapability | None) -> str:
    """Return the target of a compute capability; by default that of the GPU."""
    if cc is None:
        present = present_capability()
        return own_target(10 * present[0] + present[1]) if present else _HOPPER
    if isinstance(cc, tuple) and 2 <= len(cc) <= 3 and target_of(cc) in TARGETS:
        return target_of(cc)
    known = ", ".join(str(capability_of(target)) for target in TARGETS)
    raise ValueError(f"export(cc={cc!r}): cc is one of {known}")
