"""Every row is assembled, and every row that Hopper has is executed by a test."""

import ast

import pytest

from numba_tma import ptx
from tests import coverage


@pytest.fixture(scope="module", name="found")
def rows_found():
    return coverage.coverage()


def test_every_row_is_assembled(found):
    assert [row for row in found if "assembled" not in found[row]] == []


def test_every_row_that_hopper_has_is_executed(found):
    missing = [
        row for row, tiers in found.items() if coverage.runs_on_hopper(row) and "GPU" not in tiers
    ]
    assert not missing, f"no test in tests/gpu calls {', '.join(missing)}"


@pytest.mark.parametrize("family", sorted(coverage.SIMULATED))
def test_every_row_of_a_simulated_family_is_simulated(found, family):
    rows = [row for row in found if ptx.TABLE[row].family == family]
    assert len(rows) > 1
    assert {row: found[row] for row in rows} == dict.fromkeys(rows, ["simulator", "assembled"])


def test_rows_count_as_called(tmp_path, monkeypatch):
    (tmp_path / "case").mkdir()
    (tmp_path / "case" / "test_x.py").write_text(
        "from numba_tma import ptx\n"
        "def kernel(barrier, x):\n"
        "    barrier.arrive_expect_tx(4)\n"
        "    ptx.laneid()\n"
        "    x.prefetch()\n"
        "KERNELS = [make(ptx.tid_x), 'ctaid_x', 'out = ptx.nctaid_y()', 'laneid_y', 'ntid_x x']\n"
        "make(1)[1, 2](3)\n"
        "getattr(ptx, f'createpolicy_evict_{kind}')()\n"
    )
    monkeypatch.setattr(coverage, "TESTS", tmp_path)
    assert coverage.exercised("case") == {
        "mbarrier_arrive_expect_tx",
        "laneid",
        "prefetch_tensormap",
        "tid_x",
        "ctaid_x",
        "nctaid_y",
        "createpolicy_evict_first",
        "createpolicy_evict_normal",
        "createpolicy_evict_last",
    }


def test_a_pipeline_reaches_what_it_is_made_of(tmp_path, monkeypatch):
    (tmp_path / "case").mkdir()
    (tmp_path / "case" / "test_x.py").write_text("def kernel():\n    PIPE.start().produce(0, 1)\n")
    monkeypatch.setattr(coverage, "TESTS", tmp_path)
    assert {"mbarrier_init", "fence_mbarrier_init", "elect_sync"} <= coverage.exercised("case")


def test_a_method_calls_the_function_that_it_is_assigned():
    code = "if x:\n    TensorMap.load, TensorMap.reduce = _load, _reduce\n    x.y = z; X.y = f(1)"
    assert dict(coverage.edges(ast.parse(code))) == {"load": {"_load"}, "reduce": {"_reduce"}}


def test_a_loop_calls_what_its_iterator_has(tmp_path, monkeypatch):
    (tmp_path / "case").mkdir()
    (tmp_path / "case" / "test_x.py").write_text("for x in pipe.consume_from(): pass")
    monkeypatch.setattr(coverage, "TESTS", tmp_path)
    assert "ld_shared_u32" in coverage.exercised("case")


def test_a_launch_of_a_factory_counts():
    code = "make(1)[2, 3](4); plain[1, 2](3); module.kernel[1, 2](3)"
    assert set(coverage.mentioned(ast.parse(code))) == {"make", "plain", "kernel"}


def test_the_report(capsys):
    coverage.main()
    text = capsys.readouterr().out
    assert all(row in text for row in ptx.TABLE)
    assert "mbarrier_init" in text and "TMATensorTile" in text
