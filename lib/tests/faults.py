"""Planted faults that the tests find: `python -m lib.tests.faults [PART OF A NAME ...]`.

Each row changes one line of a copy of `lib` and runs the tests of its folder, which have to fail. It prints the faults
that no test found.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

HOME = Path(__file__).parents[2]


class Fault(NamedTuple):
    """A change of a file of `lib` from one text, which stands there once, to another; `tests` have to notice it."""

    file: str
    before: str
    after: str
    tests: str


FAULTS = (
    # A draft tree and its shapes
    Fault("trees/tree.py", "mask[node] |= mask[self.parents[node]]", "mask[node] |= mask[ROOT]", "trees"),
    Fault("trees/tree.py", "depth[node] = depth[self.parents[node]] + 1", "depth[node] = depth[node - 1] + 1", "trees"),
    Fault("trees/tree.py", "(parents >= np.arange(len(parents)))", "(parents > np.arange(len(parents)))", "trees"),
    Fault("trees/tree.py", "rank.append(choice[-1])", "rank.append(choice[0])", "trees"),
    Fault("trees/shapes.py", "missing = budget + 1 - len(parents)", "missing = budget + 2 - len(parents)", "trees"),
    Fault("trees/shapes.py", "acceptance[branch - 1] * below[1:size]", "acceptance[0] * below[1:size]", "trees"),
    Fault("trees/growth.py", "(self.reach[nodes, None] * probs).ravel()", "probs.ravel()", "trees"),
    Fault("trees/growth.py", "full = len(candidates.reach) > self.budget", "full = False", "trees"),
    Fault("trees/growth.py", "growing = candidates.best(self.budget - full)", "growing = candidates.best(2)", "trees"),
    # Verification rules
    Fault("verify/rules.py", "p = _normalised(_excess(p, q), p)  # p <- norm (p - q)+", "pass", "verify"),
    Fault("verify/rules.py", "    return without(draft.proposal_probs()[node].to(p), draft.tokens_of(earlier))",
          "    return draft.proposal_probs()[node].to(p)", "verify"),
    Fault("verify/rules.py", "return mass / total if total > 0 else otherwise", "return torch.softmax(mass, 0)", "verify"),
    Fault("verify/rules.py", "w[node] = _odds(excess, w[node])", "w[node] = float(excess.sum())", "verify"),
    Fault("verify/rules.py", "accepted = i  # the last", "accepted = accepted or i  # the last", "verify"),
    Fault("verify/rules.py", "_ratio(p, q, draft.token_list[child]) / rho", "_ratio(p, q, draft.token_list[child])",
          "verify"),
    Fault("verify/rules.py", "return accepted, draws.categorical(rest)", "return accepted, draws.categorical(target_probs[node])",
          "verify"),
    Fault("verify/draft.py", "for _ in range(int(counts[child]))", "for _ in range(1)", "verify"),
)


def found(fault: Fault) -> bool:
    """Whether the tests fail on a copy of `lib` with the fault."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        shutil.copytree(HOME / "lib", copy / "lib", ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("data", "notebooks", ".pytest.ini", "README.md", "requirements.txt", "figures"):
            (copy / name).symlink_to(HOME / name)
        path = copy / "lib" / fault.file
        source = path.read_text(encoding="utf-8")
        if source.count(fault.before) != 1:
            raise ValueError(f"{fault.before!r} stands {source.count(fault.before)} times in {fault.file}; name a text "
                             "that stands there once")
        path.write_text(source.replace(fault.before, fault.after), encoding="utf-8")
        tests = [copy / "lib" / "tests" / part for part in fault.tests.split()]
        done = subprocess.run([sys.executable, "-m", "pytest", "-x", "-q", "-c", copy / ".pytest.ini", "--rootdir", copy,
                               *tests], cwd=copy, env=os.environ | {"PYTHONPATH": folder}, capture_output=True, text=True)
        if done.returncode not in (0, 1):
            raise RuntimeError(f"pytest ended with {done.returncode}:\n{done.stdout[-2000:]}")
        return done.returncode == 1


def main(parts: list[str]) -> int:
    """Tries the faults whose file or text has one of the parts; all without parts."""
    chosen = [fault for fault in FAULTS if not parts or any(part in fault.file + fault.before for part in parts)]
    missed = []
    for fault in chosen:
        hit = found(fault)
        print("found " if hit else "MISSED", fault.file, "|", fault.before.strip(), "->", fault.after.strip(), flush=True)
        missed += [] if hit else [fault]
    print(f"{len(chosen) - len(missed)} of {len(chosen)} faults are found")
    return len(missed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
