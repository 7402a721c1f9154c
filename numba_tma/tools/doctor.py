"""`python -m numba_tma doctor`: can TMA work here, with which kernels, and if not, what to do.

`collect` looks at the machine and fills one flat dictionary; `diagnose` judges such a dictionary
and touches nothing, so that every bad combination can be tested anywhere.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numba_tma
from numba_tma.host.architectures import TMA
from numba_tma.host.environment import simulated
from numba_tma.kernels._host.availability import is_tested, kernels_of
from numba_tma.tools import testing

Facts = dict[str, Any]

# Package: supported versions, and why. They are the bounds of pyproject.toml (a test compares).
REQUIREMENTS = {
    "numba-cuda": (">=0.30.4,<0.31", "numba_tma uses internals of its compiler"),
    "numba": ("", "numba-cuda is built on it"),
    "numpy": ("<2.5", "numba-cuda 0.30 calls np.row_stack, which NumPy 2.5 removed"),
    "ml_dtypes": ("", "it names bf16 and fp8 for NumPy"),
    "greenlet": (">=3.2", "the simulator's threads are its fibers"),
    "cuda-core": (">=1.0,<2", "it passes tensor maps to the launch"),
    "cuda-bindings": (
        ">=13,<14",
        "the ptxas of CUDA 12 refuses static shared memory above 48 KiB",
    ),
}
TOOLKIT = {"nvvm": "libNVVM", "nvrtc": "NVRTC", "nvjitlink": "nvJitLink"}
TOOLKIT_REPAIR = 'pip install "numba-tma[cu13]", and take CUDA 12 out of CUDA_HOME and PATH'


@dataclass(frozen=True)
class Finding:
    """A problem and its repair; TMA works in spite of it unless `blocks`."""

    problem: str
    repair: str
    blocks: bool = True


# ---------------------------------------------------------------- facts


def collect() -> Facts:
    """Collect facts about this machine; a missing one is None, with its reason if it is known.

    Calls the driver, but creates no context on the GPU.
    """
    return {
        "numba-tma": numba_tma.__version__,
        "python": platform.python_version(),
        **{package: _version(package) for package in REQUIREMENTS},
        "simulator": simulated(),
        **_compiler_facts(),
        "nvrtc": _attempt(_nvrtc_version)[0],
        "nvjitlink": _attempt(_nvjitlink_version)[0],
        "ptxas": _attempt(_ptxas_version)[0],
        **_driver_facts(),
        **_device_facts(),
    }


def _attempt(look: Callable[[], Any]) -> tuple[Any, str | None]:
    """Return (value, None), or (None, the error) if a component is missing."""
    try:
        return look(), None
    except Exception as error:
        first_line = (str(error).strip().splitlines() or [""])[0]
        return None, f"{type(error).__name__}: {first_line}"


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _compiler_facts() -> Facts:
    """Compile an empty kernel, which tests that the compiler's parts fit together."""
    if simulated():
        return {"compiles": None, "compile_error": None, "nvvm": None}
    ptx, error = _attempt(lambda: testing.compile_ptx(_empty, ()))
    return {"compiles": ptx is not None, "compile_error": error, "nvvm": _release(ptx or "")}


def _empty() -> None:
    return


def _release(text: str) -> str | None:
    """Read the toolkit's version from the PTX and the --version of NVIDIA's compilers."""
    match = re.search(r"release (\d+\.\d+)", text)
    return match.group(1) if match else None


def _nvrtc_version() -> str:
    from cuda.bindings import nvrtc

    _, major, minor = nvrtc.nvrtcVersion()
    return f"{major}.{minor}"


def _nvjitlink_version() -> str:
    from cuda.bindings import nvjitlink

    major, minor = nvjitlink.version()
    return f"{major}.{minor}"


def _ptxas_version() -> str | None:
    tool = testing.find_tool("ptxas")
    if tool is None:
        return None
    done = subprocess.run([tool, "--version"], capture_output=True, text=True, timeout=60)
    return _release(done.stdout)


def _driver_facts() -> Facts:
    def cuda_version() -> str:
        from cuda.bindings import driver

        status, number = driver.cuDriverGetVersion()
        if status != driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"cuDriverGetVersion: {status.name}")
        return f"{number // 1000}.{number % 1000 // 10}"

    def release() -> str | None:
        text = Path("/proc/driver/nvidia/version").read_text()
        match = re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)\s", text)
        return match.group(1) if match else None

    version, error = _attempt(cuda_version)
    return {"driver_cuda": version, "driver_error": error, "driver": _attempt(release)[0]}


def _device_facts() -> Facts:
    def look() -> Facts:
        from cuda.core import Device

        device = Device(0)
        properties = device.properties
        return {
            "device": device.name,
            "compute_capability": ".".join(map(str, device.compute_capability)),
            "shared_memory": properties.max_shared_memory_per_block_optin,
            "tensor_maps": bool(properties.tensor_map_access_supported),
        }

    names = ("device", "compute_capability", "shared_memory", "tensor_maps")
    facts, error = _attempt(look)
    return {**dict.fromkeys(names), **(facts or {}), "device_error": error}


# ---------------------------------------------------------------- checks


def diagnose(facts: Facts) -> list[Finding]:
    """Check the facts of `collect` for known-bad combinations, each with its repair."""
    return [finding for check in CHECKS for finding in check(facts)]


def why_no_gpu() -> str:
    """Return the first reason why kernels reach no GPU with TMA from here; "" if they do."""
    facts = {"simulator": simulated(), "compiles": None, **_driver_facts(), **_device_facts()}
    found = [*check_simulator(facts), *check_driver(facts)]
    return f"{found[0].problem}; {found[0].repair}" if found else ""


def check_requirements(facts: Facts) -> Iterator[Finding]:
    """Check that every package is installed in a supported version."""
    for package, (bounds, reason) in REQUIREMENTS.items():
        version, repair = facts[package], f'pip install "{package}{bounds}"'
        if version is None:
            yield Finding(f"{package} is not installed; {reason}", repair)
        elif not _satisfies(version, bounds):
            problem = f"{package} {version} is installed; numba_tma needs {bounds}: {reason}"
            yield Finding(problem, repair)


def check_simulator(facts: Facts) -> Iterator[Finding]:
    """Check that kernels run on the GPU and not in the simulator."""
    if facts["simulator"]:
        yield Finding(
            "NUMBA_ENABLE_CUDASIM is set: kernels run in the simulator and never reach a GPU",
            "unset NUMBA_ENABLE_CUDASIM and start Python again",
        )


def check_compiler(facts: Facts) -> Iterator[Finding]:
    """Check that a kernel compiles, with parts of CUDA 13 that fit together."""
    if facts["compiles"] is False:
        problem = f"an empty kernel does not compile: {facts['compile_error']}"
        yield Finding(problem, "the other findings first; then " + TOOLKIT_REPAIR)
    for part, name in TOOLKIT.items():
        version = facts[part]
        if version is None and part != "nvvm":  # without libNVVM nothing compiles, see above
            yield Finding(f"{name} was not found", TOOLKIT_REPAIR)
        elif version is not None and _numbers(version) < (13,):
            problem = (
                f"{name} is of CUDA {version}; numba_tma needs CUDA 13, because the ptxas of "
                f"CUDA 12 refuses static shared memory above 48 KiB"
            )
            yield Finding(problem, TOOLKIT_REPAIR)
    nvvm, linker = facts["nvvm"], facts["nvjitlink"]
    if nvvm and linker and _numbers(linker) < _numbers(nvvm):
        problem = f"nvJitLink {linker} is older than libNVVM {nvvm} and cannot read its PTX"
        yield Finding(problem, f'pip install --upgrade "nvidia-nvjitlink>={nvvm},<14"')


def check_ptxas(facts: Facts) -> Iterator[Finding]:
    """Check for the assembler, which only tests and goldens use."""
    version, repair = facts["ptxas"], 'pip install "nvidia-cuda-nvcc>=13,<14"'
    if version is None:
        yield Finding("ptxas was not found; numba_tma.tools.testing needs it", repair, blocks=False)
    elif _numbers(version) < (13,):
        problem = f"ptxas is of CUDA {version}; numba_tma.tools.testing needs CUDA 13"
        yield Finding(problem, repair, blocks=False)


def check_driver(facts: Facts) -> Iterator[Finding]:
    """Check for a driver of CUDA 13 and a GPU with TMA."""
    elsewhere = "run on a machine with a Hopper GPU (H100, H200) or newer"
    if facts["compiles"]:
        elsewhere += (
            "; without one, the simulator (NUMBA_ENABLE_CUDASIM=1) and compiling "
            "(numba_tma.tools.testing.compile_ptx) work here"
        )
    version = facts["driver_cuda"]
    if version is None:
        yield Finding(f"no NVIDIA driver answers: {facts['driver_error']}", elsewhere)
        return
    if _numbers(version) < (13,):
        yield Finding(
            f"the driver supports CUDA {version}; numba_tma needs 13.0 or newer",
            "update the NVIDIA driver to release 580 or newer",
        )
    capability = facts["compute_capability"]
    if capability is None:
        yield Finding(f"the driver shows no GPU: {facts['device_error']}", elsewhere)
    elif not TMA.on(_numbers(capability)):
        yield Finding(
            f"{facts['device']} has compute capability {capability}; TMA came with 9.0", elsewhere
        )
    elif not facts["tensor_maps"]:
        yield Finding(
            f"the driver says that {facts['device']} does not support tensor maps", elsewhere
        )


CHECKS = (check_requirements, check_simulator, check_compiler, check_ptxas, check_driver)


def _numbers(version: str) -> tuple[int, ...]:
    release = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in release.group().split(".")) if release else ()


def _satisfies(version: str, bounds: str) -> bool:
    for bound in filter(None, bounds.split(",")):
        limit = _numbers(bound.lstrip("<>="))
        if (_numbers(version) < limit) != bound.startswith("<"):
            return False
    return True


# ---------------------------------------------------------------- report


def main(argv: Sequence[str] | None = None) -> int:
    """Print the report; return 0 only when TMA can work here."""
    parser = argparse.ArgumentParser(
        prog="python -m numba_tma doctor",
        description="Tell whether TMA can work here. Exit status 0 means that it can.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(argv)
    facts = collect()
    findings = diagnose(facts)
    works = not any(finding.blocks for finding in findings)
    if options.json:
        report = {
            "works": works,
            "facts": facts,
            "kernels": _kernels(facts),
            "findings": [asdict(f) for f in findings],
        }
        print(json.dumps(report, indent=2))
    else:
        print(report_text(facts, findings, works))
    return 0 if works else 1


def report_text(facts: Facts, findings: Sequence[Finding], works: bool) -> str:
    """Format the report as text."""
    width = max(map(len, facts))
    known = {name: value for name, value in facts.items() if not name.endswith("_error")}
    lines = [
        f"{name:{width}}  {'not found' if value is None else value}"
        for name, value in known.items()
    ]
    lines += ["", *kernel_lines(facts)]
    lines += ["TMA can work here." if works else "TMA cannot work here."]
    for finding in findings:
        lines += [f"- {finding.problem}", f"  repair: {finding.repair}"]
    return "\n".join(lines)


def _kernels(facts: Facts) -> list[str] | None:
    """Return the shipped functions that run on the GPU; None without a GPU."""
    capability = facts["compute_capability"]
    return None if capability is None else kernels_of(_numbers(capability))[0]


def kernel_lines(facts: Facts) -> list[str]:
    """Say which shipped kernels run on the GPU, which do not, and whether such a GPU ran them."""
    if facts["compute_capability"] is None:
        return []
    capability = _numbers(facts["compute_capability"])
    found, missing = kernels_of(capability)
    gpu = f"{facts['device']} ({facts['compute_capability']})"
    lines = [f"Kernels for {gpu}: {', '.join(found) or 'none'}."]
    if found and not is_tested(capability):
        lines.append("They are assembled for it and simulated; no such GPU has run them.")
    lines += [f"- {name} {why}" for name, why in missing.items() if found]
    return [*lines, ""]
