"""Runs a notebook through papermill, so that Ctrl-C ends it, its error is short and its copy clean; makes its page."""

import base64
import hashlib
import json
import logging
import os
import re
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
import psutil

from lib.lab import atomic_file, provenance, tables
from lib.lab.parameters import defaults_of
from lib.lab.plan import REPORT
from lib.lab.theme import with_palette

PNG, MARKDOWN = "image/png", "text/markdown"
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
PAGE = Path(__file__).with_name("page.html.j2")
# Scripts by the mark of the parts of a page that need them: frames, and the tree designer.
SCRIPTS = {'class=\\"frames': Path(__file__).with_name("page.js"),
           'class=\\"designer': Path(__file__).parents[1] / "explorers" / "designer.js"}
LINK = re.compile(r"\]\((?![a-z]+:|#)(\S+?)\)")  # of Markdown, to a file
DESIGNER = "designer"  # the page that has the report's designer alone


def run(notebook: Path, folder: Path, values: Mapping[str, object]) -> dict[str, str]:
    """Runs a notebook where it stands, in this interpreter, with the values that differ from its defaults; its executed
    copy is written into the folder when it has finished. Returns the versions of the packages that it imported.

    RuntimeError says in which cell and with which error it stopped. Any other exception (Ctrl-C) ends the kernel and is
    raised again.
    """
    import papermill
    from nbclient.exceptions import DeadKernelError
    from papermill.exceptions import PapermillExecutionError

    from lib.lab.kernel import IMPORTED, OwnKernel

    defaults = defaults_of(notebook)
    changed = {name: value for name, value in values.items() if name in defaults and value != defaults[name]}
    final, unfinished = folder / notebook.name, folder / f"unfinished_{notebook.name}"
    folder.mkdir(parents=True, exist_ok=True)
    final.unlink(missing_ok=True)
    logging.getLogger("papermill").setLevel(logging.CRITICAL)  # the error is shown once, by the command
    others = set(psutil.Process().children(recursive=True))  # workers, which end by themselves
    # outside the main thread, where nbclient would take over Ctrl-C
    with TemporaryDirectory() as scratch, ThreadPoolExecutor(1) as pool:
        work = pool.submit(
            papermill.execute_notebook, notebook, unfinished, changed, cwd=notebook.parent, kernel_name="python3",
            kernel_manager_class=OwnKernel,
            progress_bar={"desc": notebook.stem, "leave": False, "disable": None},  # only on a terminal
            # At its end jupyter_client interrupts the kernel, which would log that as an error.
            extra_arguments=[f"--IPKernelApp.log_level={logging.CRITICAL}", f"{IMPORTED}{scratch}/imported.json"],
            stdout_file=sys.stdout,
            request_save_on_cell_execute=False)  # saving per cell takes longer than many cells; errors save it too
        try:
            work.result()
        except PapermillExecutionError as error:
            raise RuntimeError(f"{notebook.stem} stopped in cell {error.exec_count}: {error.ename}: "
                               f"{error.evalue.strip()}\n  the notebook up to there: {unfinished}") from None
        except DeadKernelError:
            raise RuntimeError(f"{notebook.stem} stopped because its process ended, as it does when memory runs out; "
                               "close other programs, or lower the notebook's parameters with --set") from None
        except BaseException:
            while not work.done():
                for child in set(psutil.Process().children(recursive=True)) - others:
                    with suppress(psutil.NoSuchProcess):
                        child.kill()
                wait([work], timeout=0.5)
            raise
        imported = Path(scratch, "imported.json")
        versions = json.loads(imported.read_text()) if imported.exists() else {}  # of a kernel that ended by itself
    write_clean(nbformat.read(unfinished, as_version=4), final)
    unfinished.unlink()
    return versions


def write_clean(notebook: nbformat.NotebookNode, path: Path) -> None:
    """Writes a notebook with small figures, without widgets' views, and without paths and times of this machine.

    A figure is described (alt text) by the next sentence that its section computes, which in the report is its caption.
    """
    notebook.metadata.pop("widgets", None)
    notebook.metadata.pop("papermill", None)
    sentence = ""
    for cell in reversed(notebook.cells):
        for key in ("papermill", "execution"):
            cell.metadata.pop(key, None)
        for output in reversed(cell.get("outputs", [])):
            data = output.get("data", {})
            data.pop(WIDGET_VIEW, None)
            sentence = data.get(MARKDOWN, sentence)
            if PNG in data:
                data[PNG] = base64.b64encode(with_palette(base64.b64decode(data[PNG]))).decode()
                plain = re.sub(r"\[(.*?)\]\(\S*?\)", r"\1", sentence).translate({42: None, 96: None})  # without links
                output.metadata.setdefault(PNG, {})["alt"] = plain or "figure"
        if cell.cell_type == "markdown":  # of another section
            sentence = ""
    atomic_file.replace(path, nbformat.writes(notebook).encode())


def pages(executed: Path, target: Path) -> None:
    """Writes the executed report as target/report.html, every other executed notebook as target/chapters/NAME.html, all
    of them linked from the report; and where the report has a tree designer, this alone as target/designer.html.

    A page is whole in itself: code is folded, figures are part of it, and it may load nothing. Its policy lets it run
    those of SCRIPTS that it needs, and no others.
    """
    from nbconvert import HTMLExporter

    read = {path.stem: nbformat.read(path, as_version=4) for path in sorted(executed.glob("[0-9]*.ipynb"))}
    outputs = [output for cell in read[REPORT].cells for output in cell.get("outputs", [])] if REPORT in read else []
    for output in outputs:
        if 'class="designer"' in output.get("data", {}).get("text/html", ""):
            read[DESIGNER] = nbformat.v4.new_notebook(metadata={"title": "Tree designer"}, cells=[
                nbformat.v4.new_markdown_cell("# Which draft tree? The tree designer"),
                nbformat.v4.new_code_cell("", outputs=[output])])
    titles = {name: notebook.metadata.get("title") or notebook.cells[0].source.partition("\n")[0].lstrip("# ")
              for name, notebook in read.items()}
    exporter = HTMLExporter(template_name="classic", template_file=str(PAGE), exclude_input_prompt=True,
                            exclude_output_prompt=True)
    if REPORT in read:
        fold_code(read[REPORT])
    addresses = {name: target / ("report.html" if name == REPORT else f"{name}.html" if name == DESIGNER
                                 else f"chapters/{name}.html") for name in read}
    for name, notebook in read.items():
        path = addresses[name]
        path.parent.mkdir(parents=True, exist_ok=True)
        others = [other for other in read if other != REPORT] if name == REPORT else [REPORT]
        links = {os.path.relpath(addresses[other], path.parent): titles[other] for other in others if other in read}
        links |= {os.path.relpath(tables.DECLARED, path.parent): "What the columns of all tables mean"}
        for cell in notebook.cells:
            if cell.cell_type == "markdown":
                cell.source = LINK.sub(lambda link: f"]({address_of(link[1], path.parent, addresses)})", cell.source)
        written = nbformat.writes(notebook)
        scripts = [path.read_text(encoding="utf-8") for mark, path in SCRIPTS.items() if mark in written]
        hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
        body, _ = exporter.from_notebook_node(notebook, {
            "metadata": {"name": titles[name]}, "links": links, "scripts": scripts, "hashes": hashes})
        atomic_file.replace(path, body.encode())


def address_of(link: str, folder: Path, pages_of_run: Mapping[str, Path]) -> str:
    """From a folder, what a notebook links to: a page of the same run, else the file beside the project's notebooks."""
    page = pages_of_run.get(Path(link).stem) if link.endswith(".ipynb") else None
    return os.path.relpath(page or provenance.HOME / "notebooks" / link, folder)


def fold_code(notebook: nbformat.NotebookNode) -> None:
    """Moves the code of each section, from one heading "## " to the next, into the section's first code cell."""
    first = None
    for cell in notebook.cells:
        if cell.cell_type == "code" and first:
            first.source, cell.source = f"{first.source}\n\n{cell.source}", ""
        elif cell.cell_type == "code" or re.search(r"^## ", cell.source, re.MULTILINE):
            first = cell if cell.cell_type == "code" else None
