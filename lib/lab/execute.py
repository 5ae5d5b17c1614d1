"""One notebook through papermill, so that Ctrl-C ends it, its error is short, and its copy is clean; and the report."""

import base64
import logging
import os
import re
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

import nbformat
import psutil

from lib.lab.errors import StageFailed
from lib.lab.pictures import with_palette
from lib.lab.plan import Plan, Stage
from lib.lab.record import executed

PNG = "image/png"
PROSE = 30  # characters from which a table's column is text to read from the left, not figures in a column
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


def run(plan: Plan, stage: Stage, show_progress: bool = False) -> None:
    """Run a stage's notebook; its executed copy takes its place when it has finished.

    StageFailed with the cell's error. Whatever else stops it (Ctrl-C) ends the kernel and goes through.
    """
    final = executed(plan, stage.name)
    partial = final.with_name(f".{stage.name}.partial.ipynb")
    final.parent.mkdir(parents=True, exist_ok=True)
    final.unlink(missing_ok=True)
    failed_copy(final).unlink(missing_ok=True)
    with ThreadPoolExecutor(1) as pool:  # not in the main thread, where the engine would take over Ctrl-C
        work = pool.submit(_papermill, plan, stage, partial, show_progress)
        try:
            error = work.result()
        except BaseException:
            _end(work)
            raise
    if error:
        kept = ""
        if partial.exists():
            os.replace(partial, failed_copy(final))
            kept = f"\n  the notebook up to there: {os.path.relpath(failed_copy(final), plan.layout.home)}"
        raise StageFailed(f"{stage.name} stopped {error}{kept}")
    write_clean(nbformat.read(partial, as_version=4), final)
    partial.unlink()


def failed_copy(final: Path) -> Path:
    """Where the copy of a notebook is kept that stopped with an error."""
    return final.with_name(f"{final.stem}.failed.ipynb")


def write_clean(notebook: nbformat.NotebookNode, path: Path) -> None:
    """Write a notebook without widgets' state and views, which break its rendering elsewhere, without the paths and
    times of this machine, and with its figures as small files.
    """
    notebook.metadata.pop("widgets", None)
    notebook.metadata.pop("papermill", None)
    for cell in notebook.cells:
        for key in ("papermill", "execution"):
            cell.metadata.pop(key, None)
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            data.pop(WIDGET_VIEW, None)
            if PNG in data:
                data[PNG] = base64.b64encode(with_palette(base64.b64decode(data[PNG]))).decode()
    nbformat.write(notebook, path)


def report(notebook: Path, target: Path) -> None:
    """An executed notebook as one HTML file without its code; the caption that follows a figure describes it."""
    from bs4 import BeautifulSoup
    from nbconvert import HTMLExporter

    exporter = HTMLExporter(
        exclude_input=True, exclude_input_prompt=True, exclude_output_prompt=True, embed_images=True)
    read = nbformat.read(notebook, as_version=4)
    body, _ = exporter.from_notebook_node(read, resources={"metadata": {"name": read.metadata.get("title", "Report")}})
    page = BeautifulSoup(body, "html.parser")
    for image in page.find_all("img"):
        caption = image.find_next("strong")
        image["alt"] = caption.get_text(" ", strip=True) if caption else "figure"
    for script in page.find_all("script", src=lambda source: source and "require" in source):
        script.decompose()  # for interactive output, of which a report has none
    for table in page.find_all("table"):
        _align_prose(table)
    beside = target.with_name(f".{target.name}")
    beside.write_text(str(page), encoding="utf-8")
    os.replace(beside, target)


def _align_prose(table) -> None:
    """Columns of a table that hold sentences or settings start at the left, their heads too; pandas' all end right."""
    rows = [cells for cells in (row.find_all("td") for row in table.find_all("tr")) if cells]
    heads = table.find("tr").find_all("th") if table.find("tr") else []
    for place in range(-1, -1 - min(map(len, rows), default=0), -1):
        column = [cells[place] for cells in rows]
        if max(len(cell.get_text(strip=True)) for cell in column) > PROSE:
            for cell in column + heads[place:][:1]:
                cell["style"] = "text-align: left"


def _papermill(plan: Plan, stage: Stage, partial: Path, show_progress: bool) -> str | None:
    """None, or where and with what the notebook stopped."""
    import papermill
    from nbclient.exceptions import CellTimeoutError, DeadKernelError
    from papermill.exceptions import PapermillExecutionError, strip_color

    logging.getLogger("papermill").setLevel(logging.CRITICAL)  # what stops a notebook is said once, below
    try:
        papermill.execute_notebook(
            plan.layout.notebooks / f"{stage.name}.ipynb", partial, parameters=dict(stage.values),
            cwd=plan.layout.notebooks, progress_bar={"desc": stage.name, "leave": False} if show_progress else False,
            kernel_name="python3", extra_arguments=["--IPKernelApp.log_level=40"],  # errors, not warnings
            request_save_on_cell_execute=False)  # twice a cell, which takes longer than many cells; errors save it too
    except PapermillExecutionError as error:
        where = _cells_line(strip_color("\n".join(error.traceback)))
        return f"in cell {error.exec_count}: {error.ename}: {error.evalue.strip()}{where}"
    except DeadKernelError:
        return ("because its process ended, which is what too little memory looks like; close other programs, or lower "
                "the notebook's parameters with --set")
    except (CellTimeoutError, RuntimeError) as error:
        return f"because it could not be run: {error}"
    return None


def _cells_line(traceback: str) -> str:
    """The cell's own line, with which an error's traceback begins, behind those of what caused it."""
    own = re.split(r"^(?:The above|During handling).*exception.*:$", traceback, flags=re.MULTILINE)[-1]
    line = next((text for text in own.splitlines() if "-> " in text), "")
    return f"\n  at {line.strip()}" if line else ""


def _end(work: Future) -> None:
    """End the kernels that this process started, until the work that waits for them has ended too."""
    while not work.done():
        for child in psutil.Process().children(recursive=True):
            try:
                child.kill()
            except psutil.NoSuchProcess:
                continue
        wait([work], timeout=0.5)
