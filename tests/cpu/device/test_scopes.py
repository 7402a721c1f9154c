"""`tma.scopes`: the compiled code, the rewritten function's attributes, and the errors."""

from __future__ import annotations

import functools
import inspect
import linecache
import re
from types import SimpleNamespace
from unittest import mock

import pytest
from numba import cuda, types
from numba.core.errors import TypingError
from numba.cuda.core.errors import TypingError as CudaTypingError

import numba_tma as tma
from numba_tma.backend.numba_cuda.scopes import enter_always
from numba_tma.device.scope import RETURNS
from numba_tma.tools.testing import compile_ptx, instructions, ptxas
from tests.kernels.scope_cases import CASES, Log, Scope

ROWS, I64 = types.int64[:, ::1], types.int64
FACTOR = 2


def lines_of(ptx):
    """Return {number: file name} and the source lines that instructions belong to."""
    files = dict(re.findall(r'^\s*\.file\s+(\d+) "([^"]+)"', ptx, re.M))
    return files, {int(line) for line in re.findall(r"^\s*\.loc\s+\d+ (\d+) ", ptx, re.M)}


def line_of(function, text):
    """Return the number of the line of `function` in its file that holds `text`."""
    source, first = inspect.getsourcelines(function)
    (found,) = [first + i for i, line in enumerate(source) if text in line]
    return found


# ---------------------------------------------------------------------------- the code


@pytest.mark.parametrize(("scoped", "explicit"), [c[1:3] for c in CASES], ids=[c[0] for c in CASES])
def test_scopes_cost_what_the_calls_cost(scoped, explicit):
    ours, theirs = (compile_ptx(kernel, (ROWS, I64)) for kernel in (scoped, explicit))
    assert instructions(ours) == instructions(theirs)
    report = ptxas(ours)
    assert (report.spill_stores, report.spill_loads, report.stack_frame) == (0, 0, 0)


@pytest.mark.parametrize("value", ["n", "n > 2", "(1.5, n)", "None"])
@pytest.mark.parametrize("scopes", ["Scope(log, 1)", "Scope(log, 1), Scope(log, 2)"])
def test_a_scope_that_all_enter_returns_a_value_and_never_none(scopes, value):
    """A value or None would be an optional one, which is another type."""

    def type_of(statement):
        source = f"def f(rows, n):\n    log = Log(rows[0])\n    {statement}\n"
        names = {"Log": Log, "Scope": Scope}
        function = tma.scopes(define(source, "f", f"<{statement}>", **names))
        called = cuda.jit(device=True)(function)

        def kernel(rows, n):
            called(rows, n)

        compile_ptx(kernel, (ROWS, I64))
        (overload,) = called.overloads.values()
        return overload.signature.return_type

    assert type_of(f"with {scopes}: return {value}") == type_of(f"return {value}")


@cuda.jit(lineinfo=True)
@tma.scopes
def on_lines(rows, n):
    log = Log(rows[cuda.threadIdx.x])
    for k in range(n):
        with Scope(log, k) as s:
            if rows[0, k] == 5:
                break
            rows[1, k] = 70 + s.number
    rows[2, 2] = 80


def test_lines_are_those_of_the_users_file():
    files, lines = lines_of(compile_ptx(on_lines, (ROWS, I64)))
    assert __file__ in files.values()
    at = functools.partial(line_of, on_lines.py_func)
    assert {at("rows[0, k] == 5"), at("rows[1, k] = 70"), at("rows[2, 2] = 80")} <= lines


def test_an_error_within_a_scope_names_its_line():
    @tma.scopes
    def kernel(rows, n):
        log = Log(rows[0])
        with Scope(log, n) as s:
            s.vanish()

    with pytest.raises((TypingError, CudaTypingError)) as caught:
        compile_ptx(kernel, (ROWS, I64))
    text = str(caught.value)
    assert "Unknown attribute 'vanish'" in text
    assert f"{__file__} ({line_of(kernel, 's.vanish()')})" in text


@pytest.mark.parametrize("over", ["rows", "n + 1", "log"])
def test_what_is_no_scope_is_named(over):
    source = (
        f"def kernel(rows, n):\n    log = Log(rows[0])\n    with {over} as s:\n        s.x = 1\n"
    )
    kernel = tma.scopes(define(source, "kernel", Log=Log))
    with pytest.raises((TypingError, CudaTypingError)) as caught:
        compile_ptx(kernel, (ROWS, I64))
    text = re.sub(r"\s+", " ", str(caught.value))
    assert re.search(r"line 3, with over \S.*: a scope is what a pipeline's producer\(\) and", text)
    assert (
        "consumer() return and what acquire() returns on them, or a device object of your own "
        "with methods enters() and close()"
    ) in text


# ------------------------------------------------------------------ the function as it was


def define(source, name, filename="<a cell>", **namespace):
    """Execute `source` as a notebook does a cell: its text is known to linecache alone."""
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    exec(compile(source, filename, "exec"), namespace)
    return namespace[name]


class Plain:
    """A scope for Python, which notes what happens."""

    def __init__(self, events, name="scope", enters=True):
        self.events, self.name, self.entered = events, name, enters

    def enters(self):
        self.events.append(f"enter {self.name}")
        return self.entered

    def close(self):
        self.events.append(f"close {self.name}")


def test_identity_is_kept():
    def function(a: int, /, b: float = 2.5, *, c: str = "x") -> int:
        """Say what it is."""
        with a as s:
            return s

    function.mark = "kept"
    scoped = tma.scopes(function)
    assert scoped is not function
    for name in ("__name__", "__qualname__", "__doc__", "__module__", "__annotations__",
                 "__defaults__", "__kwdefaults__", "__dict__"):  # fmt: skip
        ours = getattr(scoped, name)
        if name == "__dict__":
            ours = {k: v for k, v in ours.items() if not k.startswith("__numba_tma")}
        assert ours == getattr(function, name), name
    assert inspect.signature(scoped) == inspect.signature(function)
    assert inspect.getsource(scoped) == inspect.getsource(function)
    assert scoped.__globals__ is function.__globals__
    ours, theirs = scoped.__code__, function.__code__
    for name in ("co_filename", "co_firstlineno", "co_name", "co_argcount", "co_kwonlyargcount"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert getattr(ours, "co_qualname", "") == getattr(theirs, "co_qualname", "")


def test_a_function_without_scopes_is_left_alone():
    def function(a):
        return a

    assert tma.scopes(function) is function


def test_other_decorators_may_stand_between():
    events = []

    def mark(function):
        function.marked = True
        return function

    @mark
    @tma.scopes
    @tma.cluster(2)
    @mark
    def function():
        with Plain(events):
            events.append("body")

    assert function.marked and function.__numba_tma_cluster__ == (2, 1, 1)
    function()
    assert events == ["enter scope", "body", "close scope"]


def test_closures_are_shared_also_when_set_later():
    events = []

    @tma.scopes
    def function():
        nonlocal count
        with Plain(events) as s:
            count += 1
            events.append(late)
            return s.name

    count, late = 1, "first"
    assert function() == "scope" and count == 2
    late = "second"
    function()
    assert count == 3
    assert [e for e in events if "scope" not in e] == ["first", "second"]


def test_globals_are_live():
    @tma.scopes
    def function():
        with Plain([]):
            return FACTOR

    with mock.patch.dict(globals(), FACTOR=3):
        assert function() == 3
    assert function() == 2


def test_private_names_of_a_class_are_found():
    class Holder:
        def make(self):
            __hidden = "found"

            @tma.scopes
            def function():
                with Plain([]):
                    return __hidden

            return function

    assert Holder().make()() == "found"


@pytest.mark.parametrize(
    "start",
    [
        "def f(_as_scope, scope):", "def f(*_as_scope, scope):", "def f(_, *, scope, _as_scope=3):",
        "def f(_, scope, **_as_scope):", "def f(_, scope):\n    _as_scope = 1",
        "def f(_, scope):\n    for _as_scope in range(3): pass",
    ],
)  # fmt: skip
def test_names_that_the_function_never_reads_are_not_taken_either(start):
    source = f"{start}\n    with scope as s:\n        return s.name\n"
    function = tma.scopes(define(source, "f", f"<{start}>"))
    assert function(1, scope=Plain([])) == "scope"


def test_names_of_the_function_are_not_taken():
    events = []

    @tma.scopes
    def function(_as_scope):
        _scope_1 = 1
        with Plain(events) as s, Plain(events, "b"):
            _result_1 = 5
            return _as_scope, _scope_1, _result_1, s.name

    assert function(4) == (4, 1, 5, "scope")


def test_a_string_over_several_lines_keeps_its_indentation():
    @tma.scopes
    def function():
        with Plain([]):
            text = """
  two
"""
        # The last line of the function follows a comment
        # that is not indented like it.
        return text  # fmt: skip

    assert function() == "\n  two\n"


def test_a_function_defined_in_a_cell():
    source = "await_it = 3\n\n\ndef function(n):\n    with Plain(n, 'a'):\n        return len(n)\n"
    function = tma.scopes(define(source, "function", Plain=Plain))
    events = []
    assert function(events) == 1 and events == ["enter a", "close a"]
    assert function.__code__.co_filename == "<a cell>" and function.__code__.co_firstlineno == 4


def test_a_cell_that_awaits_at_its_top():
    source = "def function(n):\n    with Plain(n, 'a'):\n        pass\n"
    function = define(source, "function", "<awaiting>", Plain=Plain)
    text = source + "await something\n"
    linecache.cache["<awaiting>"] = (len(text), None, text.splitlines(True), "<awaiting>")
    events = []
    tma.scopes(function)(events)
    assert events == ["enter a", "close a"]


def test_a_decorator_of_several_lines_moves_no_line():
    @functools.lru_cache(
        maxsize=3,
    )
    @tma.scopes
    def function(events):
        with Plain(events):
            raise KeyError

    with pytest.raises(KeyError) as caught:
        function.__wrapped__([])
    assert caught.traceback[-1].lineno + 1 == line_of(function.__wrapped__, "raise KeyError")


def test_a_scope_that_is_not_entered_is_closed():
    events = []

    @tma.scopes
    def function(entered):
        while True:
            with Plain(events, "a", entered), Plain(events, "b"):
                events.append("body")
                return 1
            return 2

    assert function(False) == 2 and events == ["enter a", "close a"]
    events.clear()
    assert function(True) == 1
    assert events == ["enter a", "enter b", "body", "close b", "close a"]


def test_a_return_computes_its_value_first():
    events = []

    @tma.scopes
    def function():
        with Plain(events):
            return list(events)

    assert function() == ["enter scope"] and events == ["enter scope", "close scope"]


def test_a_function_that_returns_from_a_scope_is_marked():
    """The compiler removes the branch around such a scope: see `scopes.enter_always`."""
    inside = define("def f(scope):\n    with scope as x:\n        return x\n", "f", "<one>")
    source = "def f(scope):\n    with scope as x:\n        y = x\n    return y\n"
    after = define(source, "f", "<two>")
    assert getattr(tma.scopes(inside), RETURNS, None) is True
    assert not hasattr(tma.scopes(after), RETURNS)
    for unmarked in (tma.scopes(after), after):  # whose types are not inferred a second time
        enter_always(SimpleNamespace(func_id=SimpleNamespace(func=unmarked)))


def test_functions_within_have_scopes_of_their_own():
    events = []

    @tma.scopes
    def function():
        with Plain(events, "outer"):

            def inner():
                with Plain(events, "inner"):
                    return 5

            return inner()

    assert function() == 5
    assert events == ["enter outer", "enter inner", "close inner", "close outer"]


def test_an_exception_closes_nothing():
    events = []

    @tma.scopes
    def function():
        with Plain(events):
            raise KeyError

    with pytest.raises(KeyError):
        function()
    assert events == ["enter scope"]


# ----------------------------------------------------------------------------- refusals


def test_it_stands_below_jit():
    with pytest.raises(TypeError, match=r"@tma.scopes is given .*: it belongs on the plain "
                       r"function, so write it below @cuda.jit"):  # fmt: skip
        tma.scopes(cuda.jit(test_it_stands_below_jit))


def test_methods_lambdas_and_async_functions_are_refused():
    with pytest.raises(
        TypeError, match=r"Holder.method is a method; kernels and device functions are plain "
        r"functions: write it outside of class Holder"
    ):  # fmt: skip

        class Holder:
            @tma.scopes
            def method(self):
                with self:
                    pass

    with pytest.raises(TypeError, match="a lambda, which holds no with statement: use def"):
        tma.scopes(lambda: 0)

    with pytest.raises(TypeError, match="is an async function, and no thread of a GPU awaits"):

        @tma.scopes
        async def function(a):
            async with a:
                pass


def test_source_that_is_not_to_be_had():
    namespace = {}
    exec("def function(a):\n    with a:\n        pass\n", namespace)
    with pytest.raises(ValueError) as caught:
        tma.scopes(namespace["function"])
    text = str(caught.value)
    assert "rewrites the source of a function, and that of function is not to be had" in text
    assert "could not get source code" in text
    assert "if scope.enters():\n        ...\n    scope.close()" in text


def test_source_that_has_changed():
    function = define("def function(a):\n    with a:\n        pass\n", "function", "<changed>")
    text = "# a line before\ndef function(a):\n    with a:\n        pass\n"
    linecache.cache["<changed>"] = (len(text), None, text.splitlines(True), "<changed>")
    with pytest.raises(ValueError, match="line 1 of <changed> no longer defines it"):
        tma.scopes(function)


# -------------------------------------------------------------------------------- cache


def test_the_cache_finds_it_by_the_users_file(tmp_path):
    path = tmp_path / "user_kernel.py"
    path.write_text(
        "from numba import cuda\nimport numba_tma as tma\n"
        "from tests.kernels.scope_cases import Log, Scope\n\n\n"
        "@cuda.jit(cache=True)\n@tma.scopes\n"
        "def kernel(rows, n):\n    log = Log(rows[0])\n    with Scope(log, n):\n        pass\n"
    )
    namespace = {"__name__": "user_kernel", "__file__": str(path)}
    exec(compile(path.read_text(), str(path), "exec"), namespace)
    kernel = namespace["kernel"]
    assert str(tmp_path) in kernel._cache.cache_path
    codegen = mock.Mock(magic_tuple=lambda: ("a", (9, 0)))
    assert "numba_tma" in str(kernel._cache._index_key((ROWS, I64), codegen))
