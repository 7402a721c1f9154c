"""docs/reference/api.md, which `make goldens` writes from signatures and docstrings.

The page has every public name of `numba_tma`, and the classes that their methods return: the sides,
stages and handles that a kernel meets without naming their class.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import pkgutil
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba_tma as tma
from numba_tma.host.lazy_names import homes_of

FILE = Path(__file__).parents[1] / "docs" / "reference" / "api.md"
#: Rooms of the package whose names are listed: heading and what stands below it.
ROOMS = {
    "host": ("Before a launch", "Tiles, tensor maps, launches and errors. They need no GPU."),
    "device": ("In kernels", "Shared memory, barriers, products and schedulers."),
    "pipeline": ("Pipelines", "Pipelines, roles, and the handles that a started pipeline is."),
    "kernels": ("Kernels", "[All others](../kernels/README.md) are in `tma.kernels`."),
    "ptx": ("Instructions", "[All others](instructions.md) are in `tma.ptx`."),
    "backend": ("Compiler", "Types, for signatures of kernels that are compiled without a GPU."),
    "tools": ("Signatures", "Compiling and testing: [`tma.testing`](../guide/testing.md)."),
    "simulator": ("In the simulator", "With `NUMBA_ENABLE_CUDASIM=1`, on a CPU."),
}
HEAD = """\
# API

The public names of `numba_tma` (`import numba_tma as tma`), written by `make goldens` from their
signatures and docstrings. `help(tma.NAME)` prints the same. A class whose name is in *italics* is
made by methods of other classes: kernels use it and do not import it.
"""


def names() -> dict[str, Any]:
    """Return the public names and what they are."""
    return {name: getattr(tma, name) for name in sorted(dir(tma), key=str.lower)}


def public() -> dict[str, Any]:
    """Return the public functions and classes."""
    return {name: thing for name, thing in names().items() if callable(thing)}


def others() -> dict[str, str]:
    """Return the other public names, modules and constants, with what is said of them."""
    found = names()
    return {name: _remark(name, found[name]) for name in found.keys() - public().keys()}


def _remark(name: str, thing: Any) -> str:
    """Return the first paragraph of a module's docstring, or the comment above a constant."""
    if inspect.ismodule(thing):
        return (inspect.getdoc(thing) or "").split("\n\n")[0]
    home = importlib.import_module(homes_of(tma.__file__)[name])
    above = re.search(rf"((?:^#: .*\n)+){name}\b", inspect.getsource(home), re.M)
    return above[1].replace("#: ", "").rstrip() if above else ""


def classes() -> dict[str, type]:
    """Return the classes of device and pipeline by name: what a method may return."""
    found = {}
    for room in ("device", "pipeline"):
        package = importlib.import_module(f"numba_tma.{room}")
        for place in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            module = importlib.import_module(place.name)
            for name, thing in vars(module).items():
                if inspect.isclass(thing) and thing.__module__ == module.__name__ and shown(name):
                    found[name] = thing
    return found


def shown(name: str) -> bool:
    """Tell whether a name is for users."""
    return not name.startswith("_")


def members(cls: type) -> dict[str, Any]:
    """Return the methods and properties of a class that have a docstring, and of its bases here."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.startswith("numba_tma."):
            found |= {n: thing for n, thing in vars(base).items() if shown(n) and described(thing)}
    return found


def described(thing: Any) -> bool:
    """Tell whether a member is a method or a property with a docstring."""
    return bool(function(thing) and inspect.getdoc(function(thing)))


def function(thing: Any) -> Callable[..., Any] | None:
    """Return the function behind a method or property."""
    if isinstance(thing, property):
        return thing.fget
    if isinstance(thing, staticmethod | classmethod):
        return thing.__func__
    return thing if inspect.isfunction(thing) else None


def returned(cls: type) -> set[str]:
    """Return the names in the return annotations of a class's methods."""
    annotations = [
        _annotation(function(m).__annotations__.get("return", "")) for m in members(cls).values()
    ]
    return {word for text in annotations for word in re.findall(r"\w+", text)}


def listed() -> dict[str, type | Callable[..., Any]]:
    """Return everything that the page has by the name that it is shown under."""
    found = public()
    index = classes()
    new = [thing for thing in found.values() if inspect.isclass(thing)]
    while new:
        names = set().union(*(returned(cls) for cls in new)) & index.keys() - found.keys()
        new = [index[name] for name in sorted(names)]
        found |= {cls.__name__: cls for cls in new}
    return found


def _annotation(annotation: Any) -> str:
    """Return an annotation as it is written, without the modules of its names."""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    text = re.sub(r"\b(?:\w+\.)+(?=\w)", "", text)
    return re.sub(r"\bOptional\[((?:[^\[\]]|\[[^\]]*\])*)\]", r"\1 | None", text)


def signature(name: str, thing: Any) -> str:
    """Return a call with its annotations."""
    if inspect.isclass(thing) and issubclass(thing, enum.Enum):
        return f"{name}: {', '.join(member.name for member in thing)}"
    found = inspect.signature(thing)
    parameters = [
        p.replace(
            annotation=p.empty if p.annotation is p.empty else _Words(_annotation(p.annotation))
        )
        for p in found.parameters.values()
        if p.name != "self" and shown(p.name)
    ]
    back = found.return_annotation
    arrow = "" if inspect.isclass(thing) or back is found.empty else f" -> {_annotation(back)}"
    listed = str(inspect.Signature(parameters))
    return f"{name}{re.sub(r' at 0x[0-9a-f]+', '', listed)}{arrow}"


class _Words:
    """An annotation that is printed as it stands."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def prose(thing: Any) -> str:
    """Return a docstring as Markdown: its sections as lists."""
    text = re.sub(r"::\n\n((?: {4}.*\n?|\n)+)", _code, inspect.getdoc(thing) or "")
    first, *sections = re.split(r"^([A-Z][\w ]+)\n-{3,}\n", text, flags=re.M)
    parts = [first.strip()]
    for title, body in zip(sections[::2], sections[1::2]):
        parts.append(f"*{title}*\n\n{_section(body.strip())}")
    return re.sub(r"(?<!`)``(?!`)", "`", "\n\n".join(parts))


def _code(block: re.Match[str]) -> str:
    return f":\n\n```python\n{textwrap.dedent(block[1]).strip()}\n```\n\n"


def _section(body: str) -> str:
    """Return a section as a list, as a session of Python, or as prose, which has no indents."""
    if body.startswith(">>>"):
        return f"```pycon\n{body}\n```"
    if not re.search(r"^ ", body, flags=re.M):
        return body
    items = re.split(r"^(?=\S)", body, flags=re.M)
    return "\n".join(_item(item) for item in items if item.strip())


def _item(item: str) -> str:
    name, _, rest = item.partition("\n")
    about = " ".join(textwrap.dedent(rest).split())
    return f"- `{name.strip()}`: {about}" if about else f"- {name.strip()}"


def entry(name: str, thing: Any) -> str:
    """Return what the page says of a name."""
    title = f"`tma.{name}`" if name in tma.__all__ else f"*{name}*"
    lines = [f"### {title}\n", f"```python\n{signature(name, thing)}\n```\n", prose(thing), ""]
    if inspect.isclass(thing) and not issubclass(thing, enum.Enum | Exception):
        lines += ["*Methods and properties*\n"] if members(thing) else []
        for member, what in members(thing).items():
            call = member if isinstance(what, property) else signature(member, function(what))
            about = (inspect.getdoc(function(what)) or "").split("\n\n")[0]
            lines.append(f"- `{call}`: {' '.join(about.split())}".replace("``", "`"))
        lines.append("")
    return "\n".join(lines)


def room(thing: Any) -> str:
    """Return the room of the package where a thing is defined."""
    return thing.__module__.split(".")[1]


def page() -> str:
    """Return what the page should say now."""
    everything = listed()
    lines = [HEAD]
    for key, (title, about) in ROOMS.items():
        names = [name for name, thing in everything.items() if room(thing) == key]
        lines += [f"## {title}\n", f"{about}\n"]
        lines += [entry(name, everything[name]) for name in sorted(names, key=str.lower)]
    lines.append("## Modules and constants\n")
    for name, about in sorted(others().items()):
        lines.append(f"### `tma.{name}`\n\n{about}\n".replace("``", "`"))
    assert {room(thing) for thing in everything.values()} <= ROOMS.keys()
    return "\n".join(lines).rstrip() + "\n"


def write() -> bool:
    """Write the page anew; return whether it changed."""
    text = page()
    if FILE.exists() and FILE.read_text() == text:
        return False
    FILE.write_text(text)
    return True
