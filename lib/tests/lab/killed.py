"""Runs that are killed at random moments and resumed: `python -m lib.tests.lab.killed --kills 20`.

Each run of the notebooks is killed (SIGKILL, with its whole process group) `each` times and then finished. Its tables
have to be those of a run that was not stopped, byte for byte, but for times and what timings decided; and no process of
it may remain. The runs are in data/runs, under names that begin with `killed-`, and are removed where all is well.
"""

import argparse
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time

import psutil

from lib.lab import provenance, tables
from lib.lab.plan import Layout

HOME = provenance.HOME
# Tables whose rows are timings, or follow from them.
TIMED = re.compile("advice_|attention|speed|form|sampled|peaks|costs|source_grid")  # at its beginning
SECONDS = 10.0  # in which kernels notice that their runner is gone
MOST = 3600.0  # of a run


def start(words: list[str], run: str) -> subprocess.Popen:
    """The runner in a process group of its own."""
    return subprocess.Popen([sys.executable, "-m", "lib", *words, "--run", run], cwd=HOME, start_new_session=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(words: list[str], run: str) -> float:
    """Runs to the end; the seconds that it took. AssertionError with the error's text where it fails."""
    begun = time.monotonic()
    process = start(words, run)
    said, _ = process.communicate(timeout=MOST)
    assert process.returncode == 0, f"{run}: {said[-2000:]}"
    return time.monotonic() - begun


def kill(words: list[str], run: str, after: float) -> bool:
    """Runs for some seconds, then kills the process group. False where the run had ended by itself before."""
    process = start(words, run)
    try:
        process.wait(after)
    except subprocess.TimeoutExpired:
        family = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        _, alive = psutil.wait_procs(family, timeout=SECONDS)
        assert not alive, f"{run}: {[each.cmdline()[:4] for each in alive]} outlived the runner"
        return True
    assert process.returncode == 0, f"{run}: {process.stdout.read()[-2000:]}"
    return False


def rows_of(run: str) -> dict[str, str]:
    """By table the rows as text, without what timings decide."""
    folder, found = Layout(HOME).runs / run, {}
    for name in tables.schemas():
        if TIMED.match(name) or not tables.path_of(folder, name).exists():
            continue
        rows = tables.read(folder, name)
        timed = [column for column in rows if column.endswith("_ms")]
        found[name] = rows.drop(columns=timed).to_csv(index=False)
    return found


def check(kills: int, each: int, words: list[str], seed: int, say=print) -> None:
    """Kills runs of these notebooks so many times in all, `each` times a run. AssertionError where one goes wrong."""
    draw, prefix, done = random.Random(seed), f"killed-{seed}", 0
    seconds = finish(words, f"{prefix}-whole")
    wanted = rows_of(f"{prefix}-whole")
    say(f"a whole run takes {seconds:.0f} s and has {len(wanted)} tables that no timing decides")
    names = [f"{prefix}-whole"]
    while done < kills:
        name = f"{prefix}-{len(names)}"
        names.append(name)
        stops = 0
        while stops < min(each, kills - done):
            if not kill(words, name, draw.uniform(0.1, seconds / each)):
                shutil.rmtree(Layout(HOME).runs / name)  # it had ended: killed anew from its beginning
                continue
            stops += 1
        finish(words, name)
        found = rows_of(name)
        wrong = [table for table in wanted if found.get(table) != wanted[table]]
        assert not wrong, f"{name}: {', '.join(wrong)} differ from those of the run that was not stopped"
        done += stops
        say(f"{done} of {kills} kills: resumed to the same tables")
    for name in names:
        shutil.rmtree(Layout(HOME).runs / name)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--each", type=int, default=4, help="kills of one run (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (default: %(default)s)")
    parser.add_argument("words", nargs="*", default=["quick"], help="profile and notebooks (default: the whole quick)")
    given = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    check(given.kills, given.each, given.words, given.seed)


if __name__ == "__main__":
    main()
