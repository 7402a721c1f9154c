"""Sizes of clusters, in every form and on both sides of each bound; the grids that they divide."""

import functools
import itertools
import math

import numpy as np
import pytest

from numba_tma.host import cluster_rules as rules

EXTENTS = 1, 2, 3, 4, 7, 8, 9, 16


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_a_cluster_has_up_to_eight_blocks(axes):
    for size in itertools.product(EXTENTS, repeat=axes):
        forms = [size, list(size), tuple(map(np.int32, size))] + [size[0]] * (axes == 1)
        for given in forms:
            if math.prod(size) <= 8:  # the portable size
                found = rules.cluster_size(given)
                assert found == (*size, *[1] * (3 - axes))
                assert all(type(n) is int for n in found)
            else:
                with pytest.raises(ValueError, match=f": {math.prod(size)} blocks are more than t"):
                    rules.cluster_size(given)


@pytest.mark.parametrize("axis", range(3))
def test_a_cluster_has_a_block_along_each_axis(axis):
    for extent in (0, -1):
        size = tuple(extent if i == axis else 2 for i in range(3))
        with pytest.raises(ValueError, match="there is at least 1 block along each axis"):
            rules.cluster_size(size)


@pytest.mark.parametrize("given", [(), (1,) * 4, 2.0, (2, None), "2", True, (2, True), None, {2}])
def test_what_is_no_size(given):
    with pytest.raises(ValueError, match="the size is an integer or a tuple of 1 to 3 integers"):
        rules.cluster_size(given)


def test_an_error_names_whose_argument_it_is():
    with pytest.raises(ValueError, match=r"^cluster\(9\): "):
        rules.cluster_size(9)
    with pytest.raises(ValueError, match=r"^TilePipeline\(cluster=9\): "):
        rules.cluster_size(9, "TilePipeline")
    with pytest.raises(ValueError, match="stands without a size: write @tma.cluster"):
        rules.cluster_size(lambda: None)


def test_clusters_divide_the_grid_along_each_axis():
    for axis, blocks, extent in itertools.product(range(3), range(1, 13), (1, 2, 3, 4)):
        grid, size = [6, 10, 14], [1, 2, 1]
        grid[axis], size[axis] = blocks, extent
        check = functools.partial(rules.check_grid, tuple(grid), tuple(size))
        if blocks % extent == 0:
            check()
        else:
            whole = blocks + extent - blocks % extent
            with pytest.raises(ValueError, match=f": launch {whole} blocks along {'xyz'[axis]}$"):
                check()


@pytest.mark.parametrize("group", [-1, 0, 1, 2, 3, None, "1"])
def test_a_group_is_a_block_or_a_pair(group):
    if group in (1, 2):
        rules.check_group("load", group)
    else:
        with pytest.raises(ValueError, match=r"^load\(cta_group=.*\): 1, or 2 for a CTA pair"):
            rules.check_group("load", group)


def test_pairs_lie_along_x_of_a_cluster():
    assert rules.pair_cluster("f", 1, None) == (1, 1)
    assert rules.pair_cluster("f", 2, None) == (2, 1)
    for group, x, y in itertools.product((1, 2), range(1, 9), range(1, 4)):
        if x * y > 8:
            continue
        if x % group:
            with pytest.raises(ValueError, match=rf"^f\(cta_group=2, cluster=\({x}, {y}\)\): "):
                rules.pair_cluster("f", group, (x, y))
        else:
            assert rules.pair_cluster("f", group, (x, y)) == (x, y)


def test_a_function_keeps_its_cluster():
    def kernel():
        pass

    assert rules.cluster_of(kernel) is None
    rules.check_device_function(kernel)
    assert rules.set_cluster(kernel, (2, 1, 1)) is kernel
    assert rules.cluster_of(kernel) == (2, 1, 1)
    with pytest.raises(ValueError, match=r"kernel is called .* under @tma.cluster\(\(2, 1, 1\)\)"):
        rules.check_device_function(kernel)
    with pytest.raises(TypeError, match="belongs on the plain function"):
        rules.set_cluster(functools.partial(kernel), (2, 1, 1))
