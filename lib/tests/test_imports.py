"""The order of the packages: each imports only those before it, and nothing imports the command."""

import ast
from pathlib import Path

import pytest

import lib

LIB = Path(lib.__file__).parent
ORDER = ("lab", "kernels", "trees", "verify", "attention", "models", "forward", "drafters", "decoding", "replay",
         "engines", "study", "explorers", "training")
IMPORTS_LAB_ALONE = "kernels"


def imported(source: str) -> set[str]:
    """The packages of lib that a Python source imports, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("lib.")}
    return found & {*ORDER, "__main__"}


@pytest.mark.parametrize("package", ORDER)
def test_a_package_imports_only_those_before_it(package):
    allowed = set(ORDER[: ORDER.index(package) + 1]) if package != IMPORTS_LAB_ALONE else {"lab", package}
    wrong = [f"{path.relative_to(LIB.parent)} imports lib.{other}" for path in sorted((LIB / package).rglob("*.py"))
             for other in sorted(imported(path.read_text(encoding="utf-8")) - allowed)]
    assert not wrong, "; ".join(wrong)


def test_lib_holds_these_packages_alone():
    assert {path.name for path in LIB.iterdir()} - {"__pycache__"} == {*ORDER, "tests", "__init__.py", "__main__.py"}
