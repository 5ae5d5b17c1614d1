"""Headless Chromium, for tests of widgets in JupyterLab and of pages: a page, by the DevTools protocol."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from itertools import count
from pathlib import Path

import nbformat
import websocket

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
PATIENCE = 60  # seconds until something that is waited for must be there


class Page:
    """A page of a browser. errors: what its console said of uncaught errors."""

    def __init__(self, address: str):
        self.socket, self.numbers, self.errors = websocket.create_connection(address, timeout=PATIENCE), count(1), []
        for domain in ("Page", "Runtime"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters) -> dict:
        """The answer to a command."""
        number = next(self.numbers)
        self.socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self.socket.recv())
            if message.get("method") == "Runtime.exceptionThrown":
                self.errors.append(message["params"]["exceptionDetails"])
            if message.get("id") == number:
                return message.get("result", {})

    def value(self, expression: str):
        """What an expression of the page's script gives."""
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True,
                         awaitPromise=True).get("result", {}).get("value")

    def wait(self, expression: str):
        """The value of an expression, once it is true."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            if value := self.value(expression):
                return value
            time.sleep(0.05)
        raise TimeoutError(f"{expression} is still false; errors: {self.errors}")

    def centre(self, selector: str) -> dict:
        """The middle of an element."""
        return self.value(f"(() => {{ const e = document.querySelector({selector!r}); e.scrollIntoView({{block:"
                          "'center'}); const r = e.getBoundingClientRect();"
                          "return {x: r.x + r.width / 2, y: r.y + r.height / 2} })()")

    def pointer(self, kind: str, place: dict) -> None:
        """The pointer is pressed, moved or released."""
        self.call("Input.dispatchMouseEvent", type=f"mouse{kind}", button="left", buttons=1, clickCount=1, **place)

    def click(self, selector: str) -> None:
        """A click on the middle of an element."""
        place = self.centre(selector)
        self.pointer("Pressed", place), self.pointer("Released", place)

    def write(self, selector: str, text: str) -> None:
        """A text in a field, in the place of its own; then the field is left."""
        self.value(f"(() => {{ const e = document.querySelector({selector!r}); e.focus(); e.select() }})()")
        self.call("Input.insertText", text=text)
        self.value("document.activeElement.blur()")

    def key(self, name: str) -> None:
        """A key is pressed and released."""
        text = {"text": name} if len(name) == 1 else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, **text)


@contextlib.contextmanager
def browser(folder: Path, width: int = 1280):
    """A page of a browser that keeps its profile in a folder."""
    port = _free_port()
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", f"--remote-debugging-port={port}",
               "--remote-allow-origins=*", f"--window-size={width},1000", f"--user-data-dir={folder / 'profile'}",
               "about:blank"]
    with _running(command, folder):
        pages = json.loads(_answer(f"http://127.0.0.1:{port}/json/list"))
        yield Page(next(one["webSocketDebuggerUrl"] for one in pages if one["type"] == "page"))


@contextlib.contextmanager
def lab(cells: list[str], folder: Path):
    """A page with JupyterLab, in which a notebook of these cells is open and runs."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, folder / "widgets.ipynb")
    port = _free_port()
    server = [sys.executable, "-m", "jupyterlab", "--no-browser", f"--port={port}", "--IdentityProvider.token=t",
              "--expose-app-in-browser", "--allow-root", f"--ServerApp.root_dir={folder}"]
    with _running(server, folder), browser(folder) as page:
        _answer(f"http://127.0.0.1:{port}/api?token=t")
        page.call("Page.navigate", url=f"http://127.0.0.1:{port}/lab/tree/widgets.ipynb?token=t")
        page.wait("window.jupyterapp && document.querySelectorAll('.jp-Notebook .jp-CodeCell').length > 0")
        page.wait("[...window.jupyterapp.shell.widgets('main')].some("
                  "one => one.sessionContext?.session?.kernel?.status === 'idle')")
        page.value("window.jupyterapp.commands.execute('notebook:run-all-cells'), true")
        yield page


@contextlib.contextmanager
def _running(command: list, folder: Path):
    """A process with settings of its own in a folder, until the end."""
    settings = {**os.environ, "JUPYTER_CONFIG_DIR": str(folder / "config"), "HOME": str(folder),
                "PYTHONPATH": str(Path(__file__).parents[3]), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=settings, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def _answer(url: str) -> str:
    """What a server says, once it does."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return urllib.request.urlopen(url, timeout=5).read().decode()
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)
