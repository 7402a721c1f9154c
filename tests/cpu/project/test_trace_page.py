"""The page about traces shows what the stored traces and measurements say."""

import pytest

from tests import trace_page


def test_the_page_is_fresh():
    page = trace_page.FILE.read_text()
    assert page == trace_page.fresh(page)


@pytest.mark.parametrize("name", trace_page.TRACES)
def test_the_pictures_are_fresh(name):
    assert trace_page.drawing(name).read_text() == trace_page.drawn(name)


def test_what_the_page_says_of_costs_and_counters():
    """A record costs at most 60 ns, a traced matmul a tenth; loads bring what ncu counts."""
    found = trace_page.measured()
    assert f"{found['record_ns']:.0f} ns" in trace_page.FILE.read_text()
    assert found["record_ns"] <= 60
    for row in found["rows"]:
        assert row["trace_bytes"] == row["ncu_bytes"]
        assert row["trace_us"] == pytest.approx(row["ncu_us"], rel=0.15)
        if row["case"].startswith("matmul"):
            assert row["traced_1_us"] <= 1.1 * row["plain_us"]
