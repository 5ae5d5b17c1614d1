"""Runs a notebook through papermill, so that Ctrl-C ends it, its error is short and its copy clean; makes reports."""

import base64
import logging
import os
import re
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from textwrap import indent

import nbformat
import psutil

from lib.lab import atomic_file
from lib.lab.pictures import with_palette
from lib.lab.plan import Plan, Stage, StageFailed

PNG = "image/png"
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
LONG_CELL = 30  # characters from which a cell of a table is text, which is aligned left


def run(plan: Plan, stage: Stage, show_progress: bool = False) -> None:
    """Run a stage's notebook; its executed copy is written when it has finished.

    StageFailed with the cell's error. Any other exception (Ctrl-C) ends the kernel and is raised again.
    """
    final = plan.executed(stage.name)
    unfinished, failed = final.with_name(f".{stage.name}.partial.ipynb"), final.with_name(f"{stage.name}.failed.ipynb")
    final.parent.mkdir(parents=True, exist_ok=True)
    final.unlink(missing_ok=True)
    failed.unlink(missing_ok=True)
    others = set(psutil.Process().children(recursive=True))  # workers, which end by themselves
    with ThreadPoolExecutor(1) as pool:  # outside the main thread, where nbclient would take over Ctrl-C
        work = pool.submit(_papermill, plan, stage, unfinished, show_progress)
        try:
            error = work.result()
        except BaseException:
            while not work.done():
                _kill_children(but=others)
                wait([work], timeout=0.5)
            raise
    if error:
        if unfinished.exists():
            os.replace(unfinished, failed)
            error += f"\n  the notebook up to there: {os.path.relpath(failed, plan.layout.home)}"
        raise StageFailed(plan.as_typed(f"{stage.name} stopped {error}"))
    write_clean(nbformat.read(unfinished, as_version=4), final)
    unfinished.unlink()


def write_clean(notebook: nbformat.NotebookNode, path: Path) -> None:
    """Write a notebook with small figures, without widgets' views, and without paths and times of this machine."""
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
    atomic_file.replace(path, nbformat.writes(notebook).encode())


def report(notebook: Path, target: Path) -> None:
    """Write an executed notebook as one HTML file without code, in which the caption after each figure describes it."""
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
    style = page.new_tag("style")
    style.string = ".highlight pre { font-family: monospace }"  # commands, which the template leaves to the page's font
    page.head.append(style)
    for script in page.find_all("script", src=lambda source: source and "require" in source):
        script.decompose()  # serves interactive output, which the report does not have
    for table in page.find_all("table"):
        _align_text(table)
    atomic_file.replace(target, str(page).encode())


def _align_text(table) -> None:
    """Align columns that hold sentences or settings, and their heads, on the left; pandas aligns all on the right."""
    rows = [cells for cells in (row.find_all("td") for row in table.find_all("tr")) if cells]
    heads = table.find("tr").find_all("th") if table.find("tr") else []
    for place in range(-1, -1 - min(map(len, rows), default=0), -1):
        column = [cells[place] for cells in rows]
        if max(len(cell.get_text(strip=True)) for cell in column) > LONG_CELL:
            for cell in column + heads[place:][:1]:
                cell["style"] = "text-align: left"


class _Indented:
    """Prints what a notebook prints as it comes, so that long stages show their progress."""

    def write(self, text: str) -> None:
        """Prints lines of a notebook below its own line."""
        print(indent(text, "  "), end="")

    def flush(self) -> None:
        """Shows them at once, also where the output is a file."""
        print(end="", flush=True)


def _papermill(plan: Plan, stage: Stage, unfinished: Path, show_progress: bool) -> str | None:
    """None, or where and with which error the notebook stopped."""
    import papermill
    from nbclient.exceptions import CellTimeoutError, DeadKernelError
    from papermill.exceptions import PapermillExecutionError, strip_color

    logging.getLogger("papermill").setLevel(logging.CRITICAL)  # the error is shown once, by the runner
    try:
        papermill.execute_notebook(
            plan.layout.notebooks / f"{stage.name}.ipynb", unfinished, parameters=dict(stage.values),
            cwd=plan.layout.notebooks, progress_bar={"desc": stage.name, "leave": False} if show_progress else False,
            # At its end jupyter_client interrupts the kernel, which would log that as an error.
            kernel_name="python3", extra_arguments=[f"--IPKernelApp.log_level={logging.CRITICAL}"],
            stdout_file=_Indented(),
            request_save_on_cell_execute=False)  # saving per cell takes longer than many cells; errors save it too
    except PapermillExecutionError as error:
        # The cell's own line is the first that is marked in the last of the chained tracebacks.
        last = re.split(r"^(?:The above|During handling).*exception.*:$", strip_color("\n".join(error.traceback)),
                        flags=re.MULTILINE)[-1]
        line = next((f"\n  at {text.strip()}" for text in last.splitlines() if "-> " in text), "")
        return f"in cell {error.exec_count}: {error.ename}: {error.evalue.strip()}{line}"
    except DeadKernelError:
        return ("because its process ended, as it does when memory runs out; close other programs, or lower the "
                "notebook's parameters with --set")
    except OSError as error:
        return f"because {error.filename or f'a file in {plan.folder}'} cannot be written or read: {error.strerror}"
    except (CellTimeoutError, RuntimeError) as error:
        return f"because it could not be run: {error}"
    return None


def _kill_children(but: set[psutil.Process]) -> None:
    for child in set(psutil.Process().children(recursive=True)) - but:
        with suppress(psutil.NoSuchProcess):
            child.kill()
