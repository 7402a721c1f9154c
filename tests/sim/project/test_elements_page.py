"""docs/guide/elements.md: its blocks, in order, compute what they check themselves."""

from tests.page_code import module_of


def test_the_code_of_the_page(tmp_path):
    page = module_of("guide/elements.md", tmp_path)
    assert page.turned.shape == page.signal.shape
