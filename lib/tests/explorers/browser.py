"""Headless Chromium, for tests of pages."""

import json
import re
import shutil
import subprocess
from functools import partial
from html import unescape
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import nbformat
import pytest

from lib.lab import execute

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
HARNESS = """<iframe src="PAGE" width="1200" height="900"></iframe><pre id="result"></pre><script>
onload = async () => {
  const page = document.querySelector("iframe").contentWindow, all = (css) => [...page.document.querySelectorAll(css)];
  const act = (target, kind, more = {}) => target.dispatchEvent(
    new page[kind.startsWith("pointer") ? "PointerEvent" : "KeyboardEvent"](kind, { bubbles: true, ...more }));
  let result;
  try { result = await (async () => { SCRIPT })(); } catch (error) { result = String(error); }
  document.querySelector("#result").textContent = JSON.stringify(result);
};</script>"""


def write_report(html: str, folder: Path) -> None:
    """The page report.html of a report in which a cell displays this HTML, and the pages beside it."""
    output = nbformat.v4.new_output("display_data", {"text/html": html})
    cells = [nbformat.v4.new_markdown_cell("# Report"), nbformat.v4.new_code_cell("", outputs=[output])]
    (folder / "executed").mkdir()
    nbformat.write(nbformat.v4.new_notebook(cells=cells), folder / "executed" / "06_report.ipynb")
    execute.pages(folder / "executed", folder)


def result_of(script: str, page: str, folder: Path):
    """What JavaScript returns that acts on a page of a folder: `page` is its window, all(css) its elements, and
    act(element, kind, more) dispatches an event of the pointer or of a key.
    """
    (folder / "harness.html").write_text(HARNESS.replace("PAGE", page).replace("SCRIPT", script), encoding="utf-8")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=folder)) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/harness.html"
        done = subprocess.run([
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000", "--dump-dom",
            f"--user-data-dir={folder / 'profile'}", address], capture_output=True, text=True, timeout=120)
        server.shutdown()
    return json.loads(unescape(re.search('<pre id="result">(.*?)</pre>', done.stdout, re.DOTALL)[1]))
