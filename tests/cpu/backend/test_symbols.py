"""Kernels without PTX: which they are, and that LLVM's text states what the PTX states."""

import re
import threading

import pytest
from numba import cuda, types
from numba.cuda.core import config
from numba.cuda.cudadrv import nvvm
from numba.cuda.dispatcher import _Kernel

from numba_tma.backend.numba_cuda import images
from numba_tma.backend.numba_cuda.kernels import parameter_sizes
from numba_tma.backend.numba_cuda.requirements import read
from numba_tma.backend.numba_cuda.symbols import reads_llvm, without_ptx
from numba_tma.backend.numba_cuda.targeting import compiling_for
from tests.cpu.backend.test_compiler import hopper_that_loads_nothing
from tests.kernels.golden_kernels import GOLDENS
from tests.kernels.shipped_kernels import SHIPPED
from tests.tiers import quick

#: A ring, one of roles, no ring, and a ring of a cluster.
QUICK = ("copy_tiles", "kv_pipeline", "rmsnorm_1024", "ring_cluster_2x1")


def sizes_in(ptx):
    """Return the bytes of a kernel's parameters, as its PTX declares them."""
    (declared,) = re.findall(r"(?s)\.entry\s+\S+\s*\((.*?)\)\s*[.{]", ptx)
    found = re.findall(r"\.param\s[^,]*?\.[busf](\d+)(?:\s[^,\[]*)?(?:\[(\d+)\])?", declared)
    return tuple(int(count or 1) * int(bits) // 8 for bits, count in found)


@pytest.mark.parametrize("name", quick(lambda name: name in QUICK, GOLDENS))
def test_llvm_states_what_the_ptx_states(name):
    make, target = GOLDENS[name]
    kernel, signature = make()
    with compiling_for(target):
        # Which holds also that no kernel asks for registers that it cannot have.
        compiled = _Kernel(kernel.py_func, signature, **kernel.targetoptions)
        library = compiled._codelibrary
        ptx = library.get_asm_str()
        with without_ptx():
            llvm = library.get_asm_str()
    assert llvm == library.get_llvm_str() and ".entry" in ptx and ".entry" not in llvm
    assert read(llvm) == read(ptx) == compiled.numba_tma_requirements
    assert parameter_sizes(compiled) == sizes_in(ptx)


def test_another_name_states_nothing():
    assert read("my_numba_tma_ring384_0 numba_tma_shared_0").blocks == frozenset()
    assert read("@numba_tma_ring384_0 %numba_tma_ring_1").blocks == {384, 0}


@cuda.jit
def user_kernel(x):
    x[0] = 1


@pytest.mark.parametrize("case", ["ours", "a user's", "memory manager", "no LTO"])
def test_the_librarys_kernels_are_compiled_once(monkeypatch, case):
    kernel, signature = SHIPPED["copy_tiles"]
    kernel = kernel.kernel
    if case == "a user's":
        kernel, signature = user_kernel, (types.uint8[::1],)
    if case == "memory manager":
        monkeypatch.setattr(config, "CUDA_ENABLE_NRT", True)
    if case == "no LTO":
        monkeypatch.setitem(kernel.targetoptions, "lto", False)
    compiles, compile_ir = [], nvvm.compile_ir
    monkeypatch.setattr(
        nvvm, "compile_ir", lambda ir, **given: compiles.append(given) or compile_ir(ir, **given)
    )
    with hopper_that_loads_nothing():
        image = images.compile_image(kernel, signature)
    assert image.code.startswith(b"\x7fELF") and not reads_llvm()
    lto = ["gen-lto" in given for given in compiles]
    assert lto == {"ours": [True], "no LTO": [False]}.get(case, [False, True])


def test_other_threads_read_ptx():
    seen = []
    with without_ptx():
        with pytest.raises(KeyError), without_ptx():
            raise KeyError
        assert reads_llvm()
        other = threading.Thread(target=lambda: seen.append(reads_llvm()))
        other.start()
        other.join()
    assert seen == [False] and not reads_llvm()
