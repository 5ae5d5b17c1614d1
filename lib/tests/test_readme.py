"""Every Python snippet of README.md runs as it stands, each by itself, as a reader would paste it into a file."""

import os
import re
import subprocess
import sys
from pathlib import Path

HOME = Path(__file__).resolve().parents[2]
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", (HOME / "README.md").read_text(encoding="utf-8"), re.M | re.S)
RUN = "import runpy, sys; [runpy.run_path(path, run_name='__main__') for path in sys.argv[1:]]"


def test_snippets_of_the_readme_run(tmp_path):
    """In one process, which imports torch once; the folder is a user's."""
    files = [tmp_path / f"snippet_{number}.py" for number, _ in enumerate(SNIPPETS)]
    for file, snippet in zip(files, SNIPPETS):
        file.write_text(snippet, encoding="utf-8")
    environ = os.environ | {"PYTHONPATH": str(HOME), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", RUN, *files], cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert files and done.returncode == 0, done.stderr
