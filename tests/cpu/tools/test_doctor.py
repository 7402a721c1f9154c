"""The doctor names every known-bad combination with its repair, and never crashes."""

import itertools
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import numba_tma
from numba_tma import __main__ as command_line
from numba_tma.kernels._host import availability
from numba_tma.tools import doctor
from numba_tma.tools.testing import gpu_available

ROOT = Path(__file__).parents[3]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

GOOD = {
    "numba-tma": "0.1.0",
    "python": "3.12.7",
    "numba-cuda": "0.30.4",
    "numba": "0.68.1",
    "numpy": "2.4.6",
    "ml_dtypes": "0.6.0",
    "greenlet": "3.5.6",
    "cuda-core": "1.2.2",
    "cuda-bindings": "13.5.0",
    "simulator": False,
    "compiles": True,
    "compile_error": None,
    "nvvm": "13.4",
    "nvrtc": "13.4",
    "nvjitlink": "13.5",
    "ptxas": "13.5",
    "driver_cuda": "13.0",
    "driver_error": None,
    "driver": "580.95.05",
    "device": "NVIDIA H200",
    "compute_capability": "9.0",
    "shared_memory": 232448,
    "tensor_maps": True,
    "device_error": None,
}
NO_DRIVER = {"driver_cuda": None, "driver_error": "RuntimeError: not found", "driver": None}
NO_DEVICE = {"device": None, "compute_capability": None, "device_error": "no device"}


def test_a_good_machine_has_no_findings():
    assert doctor.diagnose(GOOD) == []


@pytest.mark.parametrize(
    ("change", "problem", "repair"),
    [
        ({"numpy": "2.5.0"}, "numpy 2.5.0 is installed", 'pip install "numpy<2.5"'),
        ({"numpy": "2.5.0rc1"}, "np.row_stack", 'pip install "numpy<2.5"'),
        ({"numpy": "3.0"}, "needs <2.5", 'pip install "numpy<2.5"'),
        ({"numpy": None}, "numpy is not installed", "pip install"),
        ({"numba-cuda": "0.29.2"}, "needs >=0.30.4,<0.31", '"numba-cuda>=0.30.4,<0.31"'),
        ({"numba-cuda": "0.30.3"}, "numba-cuda 0.30.3", '"numba-cuda>=0.30.4,<0.31"'),
        ({"numba-cuda": "0.31.0"}, "numba-cuda 0.31.0", '"numba-cuda>=0.30.4,<0.31"'),
        ({"numba-cuda": None}, "numba-cuda is not installed", "pip install"),
        ({"numba": None}, "numba is not installed", "pip install"),
        ({"cuda-core": "0.7.0"}, "needs >=1.0,<2", '"cuda-core>=1.0,<2"'),
        ({"cuda-bindings": "12.9.4"}, "static shared memory above 48 KiB", '"cuda-bindings>=13'),
        ({"ml_dtypes": None}, "ml_dtypes is not installed", "pip install"),
        ({"simulator": True}, "NUMBA_ENABLE_CUDASIM is set", "unset NUMBA_ENABLE_CUDASIM"),
        ({"compiles": False, "compile_error": "E: no libNVVM"}, "E: no libNVVM", "[cu13]"),
        ({"nvvm": "12.9"}, "libNVVM is of CUDA 12.9", "[cu13]"),
        ({"nvrtc": "12.8"}, "NVRTC is of CUDA 12.8", "[cu13]"),
        ({"nvjitlink": "12.9"}, "nvJitLink is of CUDA 12.9", "[cu13]"),
        ({"nvjitlink": None}, "nvJitLink was not found", "[cu13]"),
        ({"nvrtc": None}, "NVRTC was not found", "[cu13]"),
        ({"nvjitlink": "13.0"}, "older than libNVVM 13.4", '"nvidia-nvjitlink>=13.4,<14"'),
        (NO_DRIVER, "no NVIDIA driver answers: RuntimeError: not found", "H200"),
        ({"driver_cuda": "12.8"}, "supports CUDA 12.8; numba_tma needs 13.0", "580 or newer"),
        (NO_DEVICE, "the driver shows no GPU: no device", "simulator (NUMBA_ENABLE_CUDASIM=1)"),
        ({"compute_capability": "8.9"}, "compute capability 8.9; TMA came with 9.0", "Hopper"),
        ({"tensor_maps": False}, "does not support tensor maps", "Hopper"),
    ],
)
def test_a_bad_combination_is_named_with_its_repair(change, problem, repair):
    findings = [f for f in doctor.diagnose(GOOD | change) if problem in f.problem]
    assert len(findings) == 1
    assert repair in findings[0].repair
    assert findings[0].blocks


@pytest.mark.parametrize("version", [None, "12.9"])
def test_ptxas_is_for_tests_only(version):
    (finding,) = doctor.diagnose(GOOD | {"ptxas": version})
    assert "nvidia-cuda-nvcc" in finding.repair
    assert not finding.blocks


@pytest.mark.parametrize(
    "change",
    [
        {"numpy": "2.4.99"},
        {"numba-cuda": "0.30.9"},
        {"compute_capability": "10.0"},
        {"compute_capability": "12.0", "shared_memory": 101376},
        {"driver_cuda": "13.4", "driver": None},
        {"nvvm": "13.0", "nvrtc": "13.0", "nvjitlink": "13.0", "ptxas": "13.0"},
    ],
)
def test_a_good_combination_is_left_alone(change):
    assert doctor.diagnose(GOOD | change) == []


def test_compiling_is_promised_only_where_it_works():
    def repair(facts):
        return doctor.diagnose(facts | NO_DRIVER)[-1].repair

    assert "compile_ptx" in repair(GOOD)
    assert "compile_ptx" not in repair(GOOD | {"compiles": False})


def test_the_bounds_are_those_of_pyproject():
    declared = {r.name: r for r in map(Requirement, PYPROJECT["project"]["dependencies"])}
    for package, (bounds, _) in doctor.REQUIREMENTS.items():
        if package != "numba":  # comes with numba-cuda
            assert Requirement(package + bounds).specifier == declared.pop(package).specifier
    assert not declared


def test_the_version_is_that_of_pyproject():
    assert numba_tma.__version__ == PYPROJECT["project"]["version"]


def test_collect_fills_exactly_the_facts_that_are_judged():
    facts = doctor.collect()
    assert list(facts) == list(GOOD)
    assert facts["compiles"] is True and facts["nvvm"].startswith("13.")
    assert facts["ptxas"].startswith("13.")
    assert facts["tensor_maps"] in ((True,) if gpu_available() else (None, False))


def run(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "numba_tma", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_json_is_one_object_and_the_status_agrees():
    done = run("doctor", "--json")
    report = json.loads(done.stdout)
    assert set(report) == {"works", "facts", "kernels", "findings"}
    assert (report["kernels"] is None) == (report["facts"]["compute_capability"] is None)
    assert report["works"] == gpu_available()
    assert done.returncode == (0 if report["works"] else 1)
    assert done.stderr == ""


def test_the_report_for_a_person(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "collect", lambda: GOOD)
    assert doctor.main([]) == 0
    printed = capsys.readouterr().out
    assert "NVIDIA H200" in printed and printed.endswith("TMA can work here.\n")
    monkeypatch.setattr(doctor, "collect", lambda: GOOD | {"numpy": "2.5.0", "ptxas": None})
    assert doctor.main([]) == 1
    printed = capsys.readouterr().out
    assert "TMA cannot work here.\n- numpy 2.5.0" in printed
    assert '  repair: pip install "numpy<2.5"' in printed
    assert "ptxas" in printed and "not found" in printed


B200 = {"device": "NVIDIA B200", "compute_capability": "10.0"}
RTX = {"device": "NVIDIA RTX PRO 6000", "compute_capability": "12.0"}


@pytest.mark.parametrize(
    ("gpu", "first", "others"),
    [
        ({}, "stencil, matmul, block_scaled_matmul, grouped_matmul, attention,", []),
        (B200, "stencil, matmul, attention.", ["no such GPU has", "- attention_varlen has a"]),
        (RTX, "stencil, matmul.", ["no such GPU has run them", "for wgmma alone"]),
        ({"compute_capability": "8.9"}, "Kernels for NVIDIA H200 (8.9): none.", []),
        (NO_DEVICE, "", []),
    ],
)
def test_the_kernels_of_a_gpu(gpu, first, others):
    head, *rest = doctor.kernel_lines(GOOD | gpu) or [""]
    assert first in head
    text = "\n".join(rest)
    assert all(part in text for part in others) and bool(text) == bool(others)


def goldens(arch):
    return {path.name.split(".")[0] for path in (ROOT / "ptx" / "kernels").glob(f"*.{arch}.txt")}


#: Goldens of pipelines, which are no function to call.
PIPELINES = ("launch_control", "output_pipeline", "ring")


@pytest.mark.parametrize(("cores", "arch"), [("tcgen05", "sm_100a"), ("mma", "sm_120a")])
def test_the_kernels_of_a_gpu_are_those_that_have_a_golden(cores, arch):
    said = [kernels[cores] for kernels in availability.PRODUCTS.values() if cores in kernels]
    shipped = {name for name in goldens(arch) if not name.startswith(PIPELINES)}
    assert all(name.startswith(tuple(itertools.chain(*said))) for name in shipped), shipped
    assert all(any(name.startswith(each) for name in shipped) for each in itertools.chain(*said))


def test_every_function_to_call_is_listed():
    page = (ROOT / "docs" / "kernels" / "README.md").read_text()
    rows = re.findall(r"^\| `numba_tma\.kernels\.\w+` \| ([^|]*) \|", page, re.M)
    named = {name for row in rows for name in re.findall(r"`([a-z]\w+)`", row)}
    assert named == {*availability.EVERYWHERE, *availability.PRODUCTS}


def test_a_note_alone_does_not_fail(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "collect", lambda: GOOD | {"ptxas": None})
    assert doctor.main([]) == 0
    assert "nvidia-cuda-nvcc" in capsys.readouterr().out


def test_the_simulator_is_found_on():
    done = run("doctor", NUMBA_ENABLE_CUDASIM="1")
    assert done.returncode == 1
    assert "unset NUMBA_ENABLE_CUDASIM" in done.stdout


# `import numba_tma` itself needs numpy and ml_dtypes, and nothing else.
@pytest.mark.parametrize("missing", [("numba",), ("cuda",), ("numba", "cuda")])
def test_a_missing_component_is_a_finding_and_no_crash(missing):
    source = f"""
import importlib.metadata, sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {missing!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
version = importlib.metadata.version
def installed(package):
    if package.split("-")[0] in {missing!r}:
        raise importlib.metadata.PackageNotFoundError(package)
    return version(package)
importlib.metadata.version = installed
from numba_tma.__main__ import main
sys.exit(main(["doctor"]))
"""
    done = subprocess.run(
        [sys.executable, "-c", source], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (1, "")
    for package in missing:
        assert f"- {package}" in done.stdout and "is not installed" in done.stdout


# ---------------------------------------------------------------- python -m numba_tma


def test_no_command_prints_help(capsys):
    assert command_line.main([]) == 0
    printed = capsys.readouterr().out
    assert all(command in printed for command in ("doctor", "demo", "bench"))


@pytest.mark.parametrize("arguments", [["heal"], ["--json"]])
def test_an_unknown_command_is_refused(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        command_line.main(arguments)
    assert stopped.value.code == 2
    assert arguments[0] in capsys.readouterr().err


def test_options_after_the_command_reach_it(monkeypatch):
    received = []

    def main(argv):
        received.append(argv)
        return 7

    monkeypatch.setattr(doctor, "main", main)
    assert command_line.main(["doctor", "--json", "-h", "3"]) == 7
    assert received == [["--json", "-h", "3"]]
