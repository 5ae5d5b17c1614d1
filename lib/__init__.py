"""Which draft tree should speculative decoding use? Fifteen packages, each importing only those before it:

lab, kernels, trees, verify, attention, models, forward, drafters, decoding, replay, engines, cost, measure, explorers,
training. Each package's docstring says what it is for and where to start. Nothing is loaded before it is needed.
"""

from importlib import import_module
from typing import Callable, Iterable


def lazy_exports(package: str, **names_by_module: Iterable[str]) -> tuple[Callable[[str], object], list[str]]:
    """`__getattr__` (PEP 562) and `__all__` of a package whose public names live in its modules.

    A name's module is imported when the name is first read, so that importing a package loads nothing else.
    """
    home = {name: module for module, names in names_by_module.items() for name in names}

    def getattr_of_package(name: str) -> object:
        """The public name from its module; AttributeError for any other."""
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{home[name]}"), name)

    return getattr_of_package, sorted(home)
