"""The kernel of a run's notebooks: IPython's, in the command's interpreter, whatever kernels Jupyter's folders hold.
As `python -m lib.lab.kernel ... --imported=FILE` it runs one, which at its end writes what it imported as JSON.
"""

import json
import os
import sys
from pathlib import Path

from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager

from lib.lab import provenance

IMPORTED = "--imported="  # begins the argument with the file for what a kernel imported


class OwnKernel(AsyncKernelManager):
    """Starts kernels in this interpreter; one of their extra arguments is IMPORTED with a file."""

    @property
    def kernel_spec(self) -> KernelSpec:
        """How a kernel starts. It finds lib here, as this process does."""
        paths = [str(provenance.HOME), *filter(None, [os.environ.get("PYTHONPATH")])]
        return KernelSpec(argv=[sys.executable, "-m", __name__, "-f", "{connection_file}"], display_name="Python",
                          language="python", env={"PYTHONPATH": os.pathsep.join(paths)})


def main() -> None:
    """Runs a kernel until it is shut down."""
    from ipykernel.kernelapp import IPKernelApp

    arguments = [argument for argument in sys.argv[1:] if not argument.startswith(IMPORTED)]
    (path,) = {*sys.argv[1:]} - {*arguments}
    if sys.path[0] == os.getcwd():  # which IPython adds
        del sys.path[0]
    IPKernelApp.launch_instance(arguments)
    Path(path.removeprefix(IMPORTED)).write_text(json.dumps(provenance.imported()))


if __name__ == "__main__":
    main()
