"""The compiled matmul kernel of Blackwell's tensor cores: registers, targets, the main loop."""

import re
from pathlib import Path

import pytest

from numba_tma.host.dtypes import as_dtype
from numba_tma.kernels.matmul.arguments import Epilogue
from numba_tma.kernels.matmul.choice import MatmulProblem, choose_tcgen05
from numba_tma.kernels.matmul.plan import Tcgen05Config
from numba_tma.kernels.matmul.tcgen05_kernel import tcgen05_kernel
from numba_tma.kernels.matmul.tcgen05_pair_kernel import tcgen05_pair_kernel
from numba_tma.tools.testing import compile_ptx
from tests.kernels.matmul_forms import EVERYTHING, tcgen05_form, tcgen05_signature
from tests.machine_code import all_in_registers
from tests.tiers import quick

form = tcgen05_form
TARGETS = [(10, 0, "a"), (10, 3, "a"), (11, 0, "a")]
FORMS = {
    "bf16": form(),
    "bias": form(epilogue=Epilogue(alpha=True, bias=as_dtype("bf16"), activation="gelu")),
    "everything": form(epilogue=EVERYTHING, out="f32"),
    "odd": form(epilogue=EVERYTHING, addressable=False),
    "NT": form(layout="NT"),
    "TT": form("f16", out="f16", layout="TT", config=Tcgen05Config(96)),
    "tf32": form("tf32", out="f32"),
    "fp8": form("e4m3", "e5m2", epilogue=Epilogue(alpha=True), config=Tcgen05Config(128)),
    "fp8 NT": form("e4m3", "e5m2", layout="NT", config=Tcgen05Config(128)),
    "fp8 TT pair": form("e5m2", "e4m3", layout="TT", config=Tcgen05Config(192, cta_group=2)),
    "narrow": form(config=Tcgen05Config(32)),
    "pair": form(config=Tcgen05Config(cta_group=2)),
    "pair of everything": form(
        epilogue=EVERYTHING, out="f32", layout="NT", config=Tcgen05Config(128, cta_group=2)
    ),
    "odd pair of fp8": form("e4m3", addressable=False, config=Tcgen05Config(192, cta_group=2)),
    "narrow pair": form(config=Tcgen05Config(32, cta_group=2)),
    "static": form(config=Tcgen05Config(scheduler="static")),
    "static pair": form(config=Tcgen05Config(cta_group=2, scheduler="static")),
}


def compiled(name, cc=TARGETS[0]):
    plan = FORMS[name]
    kernel = tcgen05_kernel if plan.config.cta_group == 1 else tcgen05_pair_kernel
    return compile_ptx(kernel(plan), tcgen05_signature(plan), cc=cc)


@pytest.mark.parametrize("name", quick(["narrow", "narrow pair"], FORMS))
def test_nothing_is_in_local_memory(name):
    all_in_registers(compiled(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bias", "pair", "fp8 NT", "fp8 TT pair"])
@pytest.mark.parametrize("cc", TARGETS[1:])
def test_every_target(cc, name):
    all_in_registers(compiled(name, cc))


@pytest.mark.slow
def test_a_stage_is_four_products_and_one_commit():
    ptx = compiled("bf16")
    assert len(re.findall(r"\btcgen05\.mma\.cta_group::1\.kind::f16 ", ptx)) == 4
    assert len(re.findall(r"\btcgen05\.commit\.", ptx)) >= 2  # of the stages, of the accumulator


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bf16", "pair", "static", "static pair"])
def test_tiles_come_from_launch_control_or_from_the_grid(name):
    requests = re.findall(r"\bclusterlaunchcontrol\.try_cancel\.\S*", compiled(name))
    assert bool(requests) != name.startswith("static")
    assert all((".multicast::cluster::all" in r) == (name == "pair") for r in requests)


@pytest.mark.slow
def test_a_pair_multiplies_in_one_block_and_commits_to_both():
    ptx = compiled("pair")
    assert len(re.findall(r"\btcgen05\.mma\.cta_group::2\.kind::f16 ", ptx)) == 4
    assert "tcgen05.mma.cta_group::1" not in ptx and "tcgen05.commit.cta_group::1" not in ptx
    commits = re.findall(r"\btcgen05\.commit\.\S*", ptx)
    assert len(commits) >= 2 and all(".multicast::cluster" in commit for commit in commits)
    loads = re.findall(r"\bcp\.async\.bulk\.tensor\.3d\.shared::cluster\S*", ptx)
    assert loads and all(load.endswith(".cta_group::2") for load in loads)


def test_a_pair_has_half_of_b_in_each_block():
    plan = form(config=Tcgen05Config(256, cta_group=2))
    assert (plan.rows, plan.a_tile.shape, plan.b_tile.shape) == (256, (1, 128, 64), (1, 128, 64))
    assert (plan.stages, plan.accumulators) == (6, 2)
    with pytest.raises(ValueError, match="cta_group is 1, or 2 for a CTA pair"):
        Tcgen05Config(cta_group=4)


def test_pairs_are_chosen_unless_many_of_their_rows_would_be_empty():
    def group(rows):
        return choose_tcgen05(MatmulProblem(rows, 8192, 4096, 4), 148).cta_group

    assert [group(rows) for rows in (128, 256, 300, 1024, 8192, 8200)] == [1, 2, 1, 2, 2, 2]


def test_plans():
    plan = form()
    assert (plan.stages, plan.accumulators, plan.out_columns) == (4, 2, 64)
    with pytest.raises(ValueError, match="n is a multiple of 32 up to 256"):
        Tcgen05Config(300)
    with pytest.raises(ValueError, match="scheduler='queue'.: scheduler is 'launch_control', or"):
        Tcgen05Config(scheduler="queue")


def test_the_widest_tile_that_occupies_all_sms():
    def n(rows, columns, batch=1):
        return choose_tcgen05(MatmulProblem(rows, columns, 4096, batch), 148).n

    assert [n(8192, 8192), n(2048, 2048), n(1024, 4096), n(8, 8), n(8, 4096)] == [
        *(256, 192, 192, 32, 64),
    ]  # fmt: skip


#: Bytes of shared memory and multiply-adds of bf16 that an SM of a B200 does in a cycle.
SHARED_RATE, PRODUCT_RATE = 128, 4096


@pytest.mark.parametrize(
    ("group", "n", "stages"), [(1, 128, 6), (1, 256, 4), (2, 128, 8), (2, 256, 6)]
)
def test_the_model_in_the_documentation(group, n, stages):
    plan = form(config=Tcgen05Config(n, cta_group=group))
    nbytes = plan.a_tile.nbytes + plan.b_tile.nbytes
    products = plan.accumulator.size * plan.k // PRODUCT_RATE
    cycles = nbytes // SHARED_RATE
    row = f"| {plan.rows} x {n} | {products} | {cycles} + {cycles} | {nbytes // 1024} KiB |"
    page = Path(__file__).parents[3] / "docs" / "kernels" / "matmul.md"
    assert row in page.read_text()
    assert plan.stages == stages
