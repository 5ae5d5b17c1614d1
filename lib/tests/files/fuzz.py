"""Fuzzing of one reader by coverage, with atheris, which is installed by hand (`pip install atheris`):

    python -m lib.tests.files.fuzz READER [libFuzzer's options, such as -max_total_time=600]

It stops at the first error that the reader may not raise, and keeps the file that raised it.
"""

import sys
from pathlib import Path
from tempfile import mkdtemp


def main() -> None:
    """The command."""
    import atheris

    with atheris.instrument_imports(include=["lib"]):
        from lib.tests.files import readers

    if sys.argv[1:2] == [] or sys.argv[1] not in readers.readers():
        sys.exit(f"give one of {', '.join(sorted(readers.readers()))}; {__doc__}")
    name, corpus = sys.argv[1], Path(mkdtemp())
    for place, data in enumerate(readers.readers()[name].good()):
        (corpus / str(place)).write_bytes(data)
    atheris.Setup([sys.argv[0], *sys.argv[2:], str(corpus)], lambda data: readers.checked(name, data))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
