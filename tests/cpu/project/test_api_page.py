"""docs/reference/api.md agrees with the signatures and docstrings."""

import inspect
import pathlib

import pytest

from tests import api_page

NAMES = api_page.listed()


def test_the_page_is_fresh():
    assert api_page.FILE.read_text() == api_page.page(), (
        f"docs/reference/{api_page.FILE.name} is stale: `make goldens` writes it"
    )


def test_every_public_name_is_there():
    page = api_page.FILE.read_text()
    for name in api_page.names():
        assert page.count(f"### `tma.{name}`\n") == 1, name


def test_every_module_and_constant_has_a_remark():
    assert {"DESCRIPTOR", "kernels"} <= api_page.others().keys()
    assert all(api_page.others().values())


@pytest.mark.parametrize("name", NAMES)
def test_a_listed_name_and_its_members_have_docstrings(name):
    assert inspect.getdoc(NAMES[name])


def test_code_of_a_docstring_is_highlighted():
    def f():
        """Do it so::

            with ``this``:

                pass

        Then that.

        Examples
        --------
        >>> f()
        1
        """

    assert api_page.prose(f) == (
        "Do it so:\n\n```python\nwith `this`:\n\n    pass\n```\n\nThen that.\n\n"
        "*Examples*\n\n```pycon\n>>> f()\n1\n```"
    )


def test_sections_of_a_docstring_become_lists():
    def f(a: "int", b: "pathlib.Path | None" = None) -> "pathlib.PurePath":
        """Do it with ``a``.

        More.

        Parameters
        ----------
        a
            The first,
            on two lines.

        Raises
        ------
        ValueError
            Never.

        Notes
        -----
        A sentence that goes
        on.
        """

    assert api_page.signature("f", f) == "f(a: int, b: Path | None = None) -> PurePath"
    assert api_page.prose(f) == (
        "Do it with `a`.\n\nMore.\n\n*Parameters*\n\n- `a`: The first, on two lines.\n\n"
        "*Raises*\n\n- `ValueError`: Never.\n\n*Notes*\n\nA sentence that goes\non."
    )
