"""`suggest_launch`: the rule for grid and block, from a kernel's needs and a GPU's SMs."""

import pytest

from numba_tma.host import launch_advice
from numba_tma.host.launch_advice import Processors, advise
from numba_tma.host.launch_rules import Requirements, Resources

H200 = Processors(132)


def test_an_sm_of_hopper():
    """The row of compute capability 9.0 in the CUDA programming guide, and in cuda_occupancy.h."""
    assert Processors(1) == Processors(
        1, registers=64 << 10, shared=228 << 10, reserved=1 << 10, threads=64 * 32, blocks=32
    )


def needs(shared=131152, registers=24, most=1024, blocks=(0,), line=False, cluster=None):
    requirements = Requirements(frozenset(blocks), line, cluster, watched=False)
    return Resources(registers, shared, most, requirements)


def test_the_readme_s_kernel_has_512_consumers_and_a_loading_warp():
    advice = advise(needs(), H200)
    assert (advice.grid, advice.block) == (132, 544)
    assert repr(advice) == (
        "LaunchAdvice(grid=132, block=544): 132 SMs run 1 block each, by their shared memory "
        "(131,152 B a block); 512 threads of a block work and 32 load"
    )


@pytest.mark.parametrize(
    ("given", "grid", "block"),
    [
        (needs(shared=98384), 264, 288),  # two blocks share the 512
        (needs(shared=65616), 396, 192),
        (needs(shared=16400), 1584, 160),  # 13 fit by shared memory, 12 by threads
        (needs(registers=168, most=384), 132, 384),  # 352 work: a block has no more registers
        (needs(registers=40, blocks=(384,)), 132, 384),  # the roles'
        (needs(shared=65616, registers=168, blocks=(0, 384)), 132, 384),  # registers of one block
        (needs(blocks=(), line=True), 132, 512),  # all threads work
        (needs(shared=0, blocks=()), 2112, 128),
        (needs(cluster=(2, 1, 1)), 132, 544),
        (needs(cluster=(2, 2, 1)), (58, 2, 1), 544),
        (needs(cluster=(3, 1, 1)), 99, 544),  # 33 clusters, where GPCs of 18 SMs would have 44
        (needs(cluster=(6, 1, 1)), 96, 544),
        (needs(most=64), 132, 64),
        (needs(shared=1024, registers=64, blocks=(512,)), 264, 512),  # all registers of an SM
        (needs(shared=1024, registers=65, blocks=(512,)), 132, 512),  # in steps of 8
        (needs(shared=115712, blocks=(128,)), 264, 128),  # all of its shared memory
        (needs(shared=115713, blocks=(128,)), 132, 128),
        (needs(shared=0, blocks=(64,)), 32 * 132, 64),  # all of its threads, and of its blocks
        (needs(shared=0, blocks=(96,)), 21 * 132, 96),
        (needs(shared=0, blocks=(32,)), 32 * 132, 32),
    ],
)
def test_known_kernels(given, grid, block):
    advice = advise(given, H200)
    assert (advice.grid, advice.block) == (grid, block)


def test_the_reason_names_the_limit():
    few = advise(needs(registers=168, most=384), H200).reason
    assert "352 threads of a block work and 32 load, since 168 registers a thread allow no" in few
    assert "by their registers (168 a thread)" in advise(
        needs(shared=1024, registers=168, blocks=(384,)), H200
    ).reason
    assert "hold 29 clusters of 4 at once" in advise(needs(cluster=(2, 2, 1)), H200).reason
    assert "2 blocks each" in advise(needs(shared=98384), H200).reason
    assert "the block is that of the roles, 384 threads" in advise(
        needs(blocks=(384,)), H200
    ).reason


def test_clusters_of_two_are_counted_as_such():
    assert "which hold 66 clusters of 2 at once" in advise(needs(cluster=(2, 1, 1)), H200).reason
    assert "clusters" not in advise(needs(cluster=(1, 1, 1)), H200).reason


def test_a_gpu_of_few_sms_runs_one_cluster():
    assert advise(needs(cluster=(8, 1, 1)), Processors(2)).grid == 8


def test_roles_of_two_sizes_fit_no_block():
    with pytest.raises(ValueError, match=r"roles of \[128, 384\] threads: no block has all"):
        advise(needs(blocks=(128, 384)), H200)


def test_what_is_no_kernel():
    with pytest.raises(TypeError, match="suggest_launch: 3 is no kernel"):
        launch_advice.suggest_launch(3, ())


def test_an_argument_too_few():
    from numba_tma.tools.bench import readme

    rule = r"scale\(\) takes 4 arguments \(x, y, factor, n_tiles\), and is given 1"
    with pytest.raises(TypeError, match=rule):
        launch_advice.suggest_launch(readme.scale, (1,))


def test_the_properties_of_the_present_gpu(monkeypatch):
    asked = []

    def attribute(device, name):
        asked.append(name)
        return {"MULTIPROCESSOR_COUNT": 78}.get(name, 4096)

    monkeypatch.setattr(launch_advice, "launching_device", lambda: 0)
    monkeypatch.setattr(launch_advice, "device_attribute", attribute)
    assert launch_advice._present() == Processors(78, 4096, 4096, 4096, 4096, 4096)
    from cuda.bindings import driver

    for name in asked:
        assert hasattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
