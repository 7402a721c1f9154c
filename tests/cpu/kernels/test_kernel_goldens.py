"""The goldens of kernels: reviewed instructions, no spills, no local memory."""

import difflib

import pytest

from numba_tma.tools.testing import instructions, ptxas
from tests import update_goldens as goldens
from tests.kernels.golden_kernels import GOLDENS, compiled
from tests.kernels.shipped_kernels import SHIPPED
from tests.tiers import quick

#: Much like others. A ring's golden is like that of its twin, and their costs are compared.
LIKE_OTHERS = {
    *(name for name in GOLDENS if name.startswith("ring_")),
    *("scale_add", "add_row", "layernorm_odd", "output_pipeline_tmem"),
    # compiled narrower by their own tests
    *("matmul_tcgen05", "matmul_tcgen05_pair", "matmul_mma", "matmul_mxfp8", "matmul_nvfp4_pair"),
    # compiled in other forms by their own tests
    *("matmul_unaligned", "matmul_stream_k", "grouped_matmul", "attention_tcgen05"),
} - {"ring_cluster_2x1", "ring_block_scaled"}


@pytest.mark.parametrize("name", quick(lambda name: name not in LIKE_OTHERS, GOLDENS))
def test_the_golden_holds(name):
    if difference := goldens.difference():
        pytest.skip(f"goldens hold for the compiler of constraints.txt, but here {difference}")
    file = goldens.path(name)
    assert file.exists(), f"{file.name} is missing: `make goldens` writes it"
    was, now = file.read_text().splitlines(), goldens.golden(name).splitlines()
    changes = list(difflib.unified_diff(was, now, file.name, "now", lineterm="", n=2))
    assert not changes, "\n".join(
        ["what the GPU is told has changed; if that is meant, `make goldens` and review:", *changes]
    )


def test_no_golden_is_left_over():
    assert set(goldens.FOLDER.iterdir()) == {goldens.path(name) for name in GOLDENS}


ON = [((major, 0, "a"), name) for name in SHIPPED for major in (9, 10)]
QUICK_NAMES = ("copy_tiles", "rmsnorm_stages", "transpose_2")
#: Bytes that a thread may spill. No GPU of compute capability 10.0 has run the kernel.
SPILLED = {("layernorm_unaligned", 10): 44}


@pytest.mark.parametrize(("cc", "name"), quick(lambda case: case[1] in QUICK_NAMES, ON))
def test_nothing_is_spilled(name, cc):
    ptx = compiled(name, cc)
    report, most = ptxas(ptx), SPILLED.get((name, cc[0]), 0)
    assert max(report.spill_stores, report.spill_loads, report.stack_frame) <= most
    assert report.warnings == ()
    assert [i for i in instructions(ptx) if ".local" in i] == []


def test_the_skeleton_is_the_same_for_equal_kernels():
    kernel, signature = SHIPPED["copy_tiles"]
    compiled.cache_clear()
    again = compiled("copy_tiles")
    assert again != (first := compiled.__wrapped__("copy_tiles"))
    assert goldens.skeleton(again) == goldens.skeleton(first)
    assert "numba" not in goldens.skeleton(again)


def test_another_compiler_is_named(monkeypatch):
    here = goldens.pinned() | {"ptxas": "12.9.86"}
    monkeypatch.setattr(goldens, "installed", lambda: here)
    assert goldens.difference() == f"ptxas is 12.9.86, not {goldens.pinned()['ptxas']}"
    monkeypatch.setattr(goldens, "installed", goldens.pinned)
    assert goldens.difference() == ""
