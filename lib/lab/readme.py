"""The README's findings: the report's own opening, put between two marks whenever a run becomes the reference."""

import nbformat

from lib.lab.errors import UsageError

BEGIN = "<!-- findings: from the committed run -->"
END = "<!-- end of findings -->"
OPENING = "**In short**"


def with_findings(readme: str, report: nbformat.NotebookNode) -> str:
    """The README with the executed report's opening between its marks. UsageError where either lacks its part."""
    begin, end = readme.find(BEGIN), readme.find(END)
    if not 0 <= begin < end:
        raise UsageError(f"README.md lacks the lines {BEGIN!r} and {END!r}, between which the findings go")
    return readme[: begin + len(BEGIN)] + "\n" + opening(report) + "\n" + readme[end:]


def opening(report: nbformat.NotebookNode) -> str:
    """What an executed report says first, as Markdown. UsageError where it has no such output."""
    for cell in report.cells:
        for output in cell.get("outputs", []):
            text = output.get("data", {}).get("text/markdown", "")
            if text.startswith(OPENING):
                return text
    raise UsageError(f"the report has no output that begins with {OPENING!r}; run it to its end first")
