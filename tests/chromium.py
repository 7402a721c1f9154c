"""Chromium without a window, by its DevTools protocol over a pipe: no package is needed.

Debian's package `chromium` has it. `CHROMIUM` is its path, "" where there is none.
"""

from __future__ import annotations

import contextlib
import functools
import http.server
import itertools
import json
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
MISSING = "Chromium is missing (Debian's package chromium): the explorer was not driven"
_FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")


class Page:
    """One page of a browser."""

    def __init__(self, requests: BinaryIO, answers: BinaryIO) -> None:
        self._requests, self._answers = requests, answers
        self._numbers, self._rest = itertools.count(1), b""
        self._session: dict[str, str] = {}
        self.problems: list[str] = []  #: errors that scripts and requests reported
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> Any:
        """Send a command and return its result."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params} | self._session
        self._requests.write(json.dumps(message).encode() + b"\0")
        self._requests.flush()
        while (answer := self._read()).get("id") != number:
            self._note(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def open(self, url: str) -> None:
        """Load a page and wait until its modules have run; forget the last page's problems."""
        self.problems.clear()
        if "loaderId" not in self.send("Page.navigate", url=url):
            return  # another fragment of the same page
        while (event := self._read()).get("method") != "Page.loadEventFired":
            self._note(event)

    def value(self, expression: str) -> Any:
        """Return the value of a JavaScript expression, of a promise too."""
        found = self.send(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"]["exception"]["description"])
        return found["result"].get("value")

    def wait(self, condition: str, seconds: float = 10) -> None:
        """Wait until a JavaScript expression is true, over the loads of other pages, too."""
        end = time.monotonic() + seconds
        while not self.value(f"Boolean({condition})"):
            if time.monotonic() > end:
                raise TimeoutError(condition)
            time.sleep(0.05)

    def resize(self, width: int, height: int = 800) -> None:
        """Give the page the size of a phone or of a desktop."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.send("Emulation.setDeviceMetricsOverride", **size)

    def press(self, key: str, code: int) -> None:
        """Press a key that has no text, such as Tab."""
        for kind in ("rawKeyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = os.read(self._answers.fileno(), 1 << 20)
            if not more:
                raise RuntimeError("Chromium ended")
            self._rest += more
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def _note(self, event: dict[str, Any]) -> None:
        if event.get("method") == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(event["params"]["exceptionDetails"]))
        entry = event.get("params", {}).get("entry", {})
        if event.get("method") == "Log.entryAdded" and entry["level"] == "error":
            self.problems.append(f"{entry['text']} {entry.get('url', '')}")


@contextlib.contextmanager
def opened() -> Iterator[Page]:
    """Start Chromium with one page, and end it with everything that it wrote."""
    commands, requests = os.pipe()
    answers, results = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        child = os.posix_spawn(
            CHROMIUM,
            [CHROMIUM, *_FLAGS, "--remote-debugging-pipe", f"--user-data-dir={profile}"],
            dict(os.environ),
            file_actions=[
                (os.POSIX_SPAWN_DUP2, commands, 3),
                (os.POSIX_SPAWN_DUP2, results, 4),
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
            ],
            setsid=True,
        )
        os.close(commands)
        os.close(results)
        try:
            with os.fdopen(requests, "wb") as sent, os.fdopen(answers, "rb", 0) as got:
                yield Page(sent, got)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder; yield its address."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
