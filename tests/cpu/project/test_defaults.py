"""What parameters of device functions and of pipelines are where a call leaves them out."""

import ast
import importlib
import inspect
import pkgutil
from collections import defaultdict

from numba_tma import device, pipeline

#: A default, and the parameters that have it, whichever function they are of.
DEFAULTS = [
    # The first stage, row or column; nothing in flight, and nothing that is changed.
    (0, "column extra_columns in_flight iteration j k_step pending qk_stage registers row stage"),
    (1, "cluster count cta_group k_group num_qk_stages stages step turns"),
    (3, "slots"),  # the role that asks is up to two tiles ahead of the slowest
    (32, "block"),  # elements with one scale: those of the MX formats
    # What is done if it is asked for, and what is done unless the caller has done it.
    (False, "alternate initialised negate_a negate_b read saturate ws"),
    (True, "commit e fence quad scale_d sync units written"),
]


def parameters():
    """Yield the parameters with a number or a flag as their default, and that."""
    for room in (device, pipeline):
        for module in pkgutil.iter_modules(room.__path__, f"{room.__name__}."):
            source = inspect.getsource(importlib.import_module(module.name))
            for node in ast.walk(ast.parse(source)):
                if isinstance(node, ast.FunctionDef):
                    of, by_place = node.args, [*node.args.posonlyargs, *node.args.args]
                    given = zip(by_place[len(by_place) - len(of.defaults) :], of.defaults)
                    for parameter, value in (*given, *zip(of.kwonlyargs, of.kw_defaults)):
                        if isinstance(value, ast.Constant) and isinstance(value.value, int):
                            yield parameter.arg, value.value


def test_parameters_of_one_name_have_one_default():
    found = defaultdict(set)
    for name, value in parameters():
        found[name].add(repr(value))
    assert found == {name: {repr(value)} for value, names in DEFAULTS for name in names.split()}
