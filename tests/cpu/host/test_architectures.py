"""The table of architectures, the sets of targets, and that nothing else compares versions."""

import re
from pathlib import Path

import pytest

import numba_tma
from numba_tma.host import architectures as arch
from numba_tma.host.architectures import (
    TARGETS,
    at_least,
    loads_on,
    only,
    parts,
    refusal,
    runs_on,
)
from numba_tma.tools.testing import PtxasError, ptxas

#: The sets as the table of facts has them.
FIRST = {
    "TCGEN05": "100a=8.6 100f=8.8 103a=8.8 103f=8.8 107a=9.4 107f=9.4 110a=9.0 110f=9.0",
    "TCGEN05_A": "100a=8.6 103a=8.8 107a=9.4 110a=9.0",
    "TCGEN05_I8": "100a=8.6 110a=9.0",
    "TCGEN05_LD_RED": "103a=8.8 103f=8.8 107a=9.4 107f=9.4 110a=9.0 110f=9.0",
    "TCGEN05_SCALE_D": "100a=8.6 100f=8.8 103a=8.8 103f=8.8 107a=9.4 107f=9.4",
    "TCGEN05_K96": "103a=8.8 107a=9.4",
    "RUBIN": "107a=9.4 107f=9.4",
    "MMA_SCALED_120": "120a=8.7 120f=8.8 121a=8.8 121f=8.8",
    "MMA_SPARSE_NVF4_120": "120a=8.7 121a=8.8",
    "CVT_RS": "100a=8.6 103a=8.8 107a=9.4",
    "MULTIMEM_FP8": (
        "100a=8.6 100f=8.8 103a=8.8 103f=8.8 107a=9.4 107f=9.4 110a=9.0 110f=9.0 120a=8.7 121a=8.8"
    ),
}


#: The releases of the PTX ISA.
RELEASES = [
    (6, 5),
    *((major, n) for major in (7, 8) for n in range(9)),
    *((9, n) for n in range(5)),
]


@pytest.mark.parametrize("target", TARGETS)
def test_ptxas_takes_a_target_from_its_first_isa_on(target):
    module = ".version {}.{}\n.target sm_{}\n.address_size 64\n.visible .entry empty() {{ ret; }}"
    first = TARGETS[target]
    ptxas(module.format(*first, target))
    with pytest.raises(PtxasError, match="does not support .target"):
        ptxas(module.format(*RELEASES[RELEASES.index(first) - 1], target))


#: By GPU: KiB of shared memory that a block may have, in the table of technical specifications of
#: the CUDA programming guide; blocks of the largest cluster; and how it multiplies matrices.
HARDWARE = {
    80: (48, 0, "mma"), 89: (48, 0, "mma"), 90: (227, 16, "wgmma"), 100: (227, 16, "tcgen05"),
    103: (227, 16, "tcgen05"), 107: (227, 16, "tcgen05"), 110: (227, 8, "tcgen05"),
    120: (99, 8, "mma"), 121: (99, 8, "mma"),
}  # fmt: skip


def test_what_gpus_have():
    """Those without TMA have the static shared memory that all have, and no clusters."""
    every = arch.ARCHITECTURES.values()
    assert {a.number: (a.shared / 1024, a.cluster, a.tensor_cores) for a in every} == HARDWARE
    assert [a.number for a in every if a.loads_to_cta] == [120, 121]
    assert arch.architecture_of("75").targets == {"75": (9, 0)}
    assert {a.capability for a in every} >= {(9, 0), (10, 3), (12, 1)}


@pytest.mark.parametrize("name", FIRST)
def test_named_sets(name):
    said = {t: tuple(map(int, v.split("."))) for t, v in re.findall(r"(\w+)=(\S+)", FIRST[name])}
    assert dict(arch.NAMED[name]) == said


def test_family_and_accelerated():
    suffixed = {t for t in TARGETS if parts(t)[1] and parts(t)[0] >= 100}
    assert set(arch.FAMILY) == suffixed
    assert set(arch.ACCELERATED) == suffixed | {"90a"}
    assert set(arch.BLACKWELL) == {t for t in TARGETS if parts(t)[0] >= 100}


def test_every_named_set_is_held():
    assert arch.NAMED.keys() - FIRST.keys() == {"FAMILY", "ACCELERATED"}


def test_names_are_the_sets_names():
    assert all(getattr(arch, name) is of for name, of in arch.NAMED.items())
    assert all(arch.as_targets(of) is of for of in arch.NAMED.values())


@pytest.mark.parametrize(
    ("target", "gpus"),
    [
        ("90", [90, 100, 103, 107, 110, 120, 121]),
        ("90a", [90]),
        ("100a", [100]),
        ("100f", [100, 103, 107]),
        ("103f", [103, 107]),
        ("107f", [107]),
        ("110f", [110]),
        ("120f", [120, 121]),
        ("121f", [121]),
    ],
)
def test_where_code_of_a_target_runs(target, gpus):
    assert [n for n in arch.ARCHITECTURES if runs_on(target, n)] == gpus


@pytest.mark.parametrize(
    ("target", "gpus"),
    [
        *(("80", [80, 89]), ("89", [89]), ("90", [90]), ("90a", [90]), ("100", [100, 103, 107])),
        *(("103", [103, 107]), ("100a", [100]), ("100f", [100, 103, 107]), ("120", [120, 121])),
    ],
)
def test_where_a_cubin_of_a_target_loads(target, gpus):
    assert [n for n in arch.ARCHITECTURES if loads_on(target, n)] == gpus


def test_an_architecture_outside_the_table_has_what_all_have():
    assert at_least(90).allow("130a") and at_least(90).on((13, 0))
    assert not arch.TCGEN05.allow("130a") and not only("90a").allow("130")
    assert arch.static_shared("130a") == 48 << 10
    assert arch.architecture_of("75").cluster == 0


def test_common_targets_keep_the_later_version():
    both = arch.TCGEN05_I8 & arch.TCGEN05_SCALE_D
    assert dict(both) == {"100a": (8, 6)} and both.name == "100a"
    assert (arch.TCGEN05 & arch.TCGEN05_A) is arch.TCGEN05_A
    assert (at_least(90) & arch.TCGEN05).name == "TCGEN05"
    assert (at_least(90) & at_least(100)).since == 100


@pytest.mark.parametrize("wrong", ["sm_90", "90b", "", "a", "100fa"])
def test_what_is_no_target(wrong):
    with pytest.raises(ValueError, match='is no target: write "90a", "100" or "100f"'):
        parts(wrong)


@pytest.mark.parametrize(
    ("having", "target", "said"),
    [
        (arch.TCGEN05, "100a", ""),
        (
            arch.TCGEN05,
            "90a",
            "it needs sm_100a, 100f, 103a, 103f, 107a, 107f, 110a or 110f; this kernel is compiled "
            "for sm_90a: no GPU of compute capability 9.0 has it",
        ),
        (
            arch.TCGEN05_A,
            "100f",
            "it needs sm_100a, 103a, 107a or 110a; this kernel is compiled for sm_100f: compile it "
            "for sm_100a",
        ),
        (
            arch.TCGEN05,
            "103",
            "it needs sm_100a, 100f, 103a, 103f, 107a, 107f, 110a or 110f; this kernel is compiled "
            "for sm_103: compile it for sm_103a or sm_103f",
        ),
        (
            at_least(100),
            "90a",
            "it needs compute capability 10.0 or newer; this kernel is compiled for 9.0",
        ),
        (
            at_least(90),
            "80",
            "it needs compute capability 9.0 (Hopper) or newer; this kernel is compiled for 8.0, "
            "which has no Tensor Memory Accelerator",
        ),
        (
            only("90a"),
            "120a",
            "it needs sm_90a; this kernel is compiled for sm_120a: no GPU of compute capability "
            "12.0 has it",
        ),
    ],
)
def test_refusals_name_both_sides_and_the_repair(having, target, said):
    assert refusal("it", having, target) == said


@pytest.mark.parametrize(
    ("having", "target", "said"),
    [
        (arch.TCGEN05, "90a", "there use wgmma, whose accumulators are fragments in registers"),
        (arch.TCGEN05, "120a", "there use mma.sync (tma.ptx.mma_m16n8k16 and its kin), whose acc"),
        (arch.WGMMA, "100a", "there use tcgen05_mma, whose accumulators are in tensor memory"),
        (arch.WGMMA, "90", "compile it for sm_90a"),
        (arch.TCGEN05, "100", "compile it for sm_100a or sm_100f"),
        (arch.TCGEN05, "103f", ""),
    ],
)
def test_products_that_a_gpu_never_has_name_those_that_it_has(having, target, said):
    error = arch.product_refusal("it", having, target)
    assert error.startswith(refusal("it", having, target)) and said in error
    assert ("; there " in error) == said.startswith("there ")


#: Comparisons of a compute capability, of its parts or of a target's name.
COMPARED = re.compile(
    r"(?<!len\()capability\S*\s*(==|!=|<=?|>=?|in|not in)\s*\(?\d"
    r"|\bmajor\s*(==|!=|<=?|>=?|in)\s*\(?\d"
    r"|(==|!=|<=?|>=?)\s*\(\d+, \d\)|\(1[0-2], \d(, \"[af]?\")?\)\s*[:\]]"
    r"|startswith\(\"(sm_)?(9|1[0-2])|(==|!=)\s*\"(sm_)?(90|1[0-2]\d)[af]?\"|sm=\"1\d\d[af]?\""
)


def comparisons(text):
    return [line.strip() for line in text.splitlines() if COMPARED.search(line)]


def test_no_other_module_compares_architectures():
    folder = Path(numba_tma.__file__).parent
    allowed = {"architectures.py"}
    found = {
        str(path.relative_to(folder)): lines
        for path in folder.rglob("*.py")
        if path.name not in allowed and (lines := comparisons(path.read_text()))
    }
    assert found == {}, "ask numba_tma.host.architectures"


@pytest.mark.parametrize(
    "line",
    [
        "if capability >= (10, 0):",
        "if compute_capability()[0] != 9:",
        "if major in (10, 11):",
        'if target.startswith("10"):',
        "LIMITS = {(10, 0): 232448}",
        'return sm == "100a"',
    ],
)
def test_comparisons_are_found(line):
    assert comparisons(line) == [line]
