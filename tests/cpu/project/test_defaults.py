"""What parameters are where a call leaves them out."""

import ast
import importlib
import pkgutil
from collections import defaultdict
from pathlib import Path

import pytest

from numba_tma import device, kernels, pipeline

#: A default, and the parameters that have it, whichever function they are of.
OF_DEVICES = [
    # The first stage, row or column; nothing in flight, and nothing that is changed.
    (0, "column extra_columns in_flight iteration j k_step pending qk_stage registers row stage"),
    (1, "cluster count cta_group k_group num_qk_stages radius stages step turns"),
    (3, "slots"),  # the role that asks is up to two tiles ahead of the slowest
    (32, "block"),  # elements with one scale: those of the MX formats
    # What is done if it is asked for, and what is done unless the caller has done it.
    (False, "alternate initialised negate_a negate_b read saturate ws"),
    (True, "commit e fence quad scale_d sync units written"),
]
OF_KERNELS = [
    (0, "cval first offset part"),
    (1, "group heads splits"),
    (16, "width"),  # bytes of the widest access
    (False, "causal deterministic fp8 packed pdl return_lse scaled tune"),
    # Of `rmsnorm_pipelined`: two blocks of 16 warps share an SM, each with a ring of four rows.
    (2, "blocks"),
    (4, "stages"),
    (512, "threads"),
]


def parameters(room):
    """Yield the parameters with a number or a flag as their default, and that."""
    for module in pkgutil.walk_packages(room.__path__, f"{room.__name__}."):
        path = importlib.import_module(module.name).__file__
        for node in ast.walk(ast.parse(Path(path).read_text())):
            if isinstance(node, ast.FunctionDef):
                of, by_place = node.args, [*node.args.posonlyargs, *node.args.args]
                given = zip(by_place[len(by_place) - len(of.defaults) :], of.defaults)
                for parameter, value in (*given, *zip(of.kwonlyargs, of.kw_defaults)):
                    if isinstance(value, ast.Constant) and isinstance(value.value, int):
                        yield parameter.arg, value.value


@pytest.mark.parametrize(
    ("rooms", "defaults"),
    [((device, pipeline), OF_DEVICES), ((kernels,), OF_KERNELS)],
    ids=["devices", "kernels"],
)
def test_parameters_of_one_name_have_one_default(rooms, defaults):
    found = defaultdict(set)
    for name, value in (one for room in rooms for one in parameters(room)):
        found[name].add(repr(value))
    assert found == {name: {repr(value)} for value, names in defaults for name in names.split()}
