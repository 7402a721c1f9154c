"""Pictures that Jupyter shows for tiles, maps, pipelines and traces: SVG inside of HTML.

`install` registers them with IPython by the names of the classes, so that none is imported. They
need no JavaScript. Text and lines have the colour of the page's text, and areas are translucent,
so that they can be read in light and dark themes.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable

#: The modules and names of classes, and where the function is that draws one.
SHOWN = {
    ("numba_tma.host.layout", "Tile"): "tile",
    ("numba_tma.host.tensor_map", "TensorMap"): "tensor_map",
    ("numba_tma.host.im2col", "Im2colMap"): "tensor_map",
    ("numba_tma.host.gather", "GatherMap"): "tensor_map",
    ("numba_tma.host.ragged", "RaggedTensorMap"): "tensor_map",
    ("numba_tma.pipeline.tile", "TilePipeline"): "pipeline",
    ("numba_tma.pipeline.circular", "CircularBuffer"): "pipeline",
    ("numba_tma.pipeline.store", "StorePipeline"): "pipeline",
    ("numba_tma.pipeline.kv", "KVPipeline"): "pipeline",
    ("numba_tma.host.fragment_layout", "FragmentLayout"): "fragment",
    ("numba_tma.simulator.trace", "EventTrace"): "trace",
    ("numba_tma.tools.trace", "Trace"): "launch",
}


def install() -> None:
    """Let the running IPython, if there is one, show pictures."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if shell is None or shell.display_formatter is None:
        return
    html = shell.display_formatter.formatters["text/html"]
    for (module, name), kind in SHOWN.items():
        html.for_type_by_name(module, name, _drawing(kind))


def picture(thing: object) -> str:
    """Return the HTML that Jupyter shows for a tile, a map, a pipeline or a trace."""
    for cls in type(thing).__mro__:
        if kind := SHOWN.get((cls.__module__, cls.__name__)):
            return _drawing(kind)(thing)
    raise TypeError(f"picture(): a {type(thing).__name__} has no picture")


def _drawing(kind: str) -> Callable[[object], str]:
    def draw(thing: object) -> str:
        module = importlib.import_module(f"{__name__}.{kind}")
        return str(module.draw(thing))

    return draw
