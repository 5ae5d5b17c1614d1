"""Environments of engines: made once, resumed where they stopped, named with their command where they are missing."""

from pathlib import Path

import pytest

from lib.engines import environments
from lib.engines.environments import Environment

PYTHON = """#!/bin/sh
# As `python -m venv FOLDER` and `python -m pip ...` for the tests: each call is a line of the file CALLS.
echo "$@" >> "{calls}"
case "$*" in
*venv*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
*broken*) echo "no such package"; exit 1 ;;
esac
"""


@pytest.fixture
def base(tmp_path, monkeypatch) -> Path:
    """A Python that only writes down how it is called, and a home of environments beside it."""
    monkeypatch.setattr(environments, "HOME", tmp_path / "engines")
    python = tmp_path / "python"
    python.write_text(PYTHON.format(calls=tmp_path / "calls"))
    python.chmod(0o755)
    return python


def calls(base: Path) -> list[str]:
    """The arguments of each call, without those that all have."""
    lines = (base.parent / "calls").read_text().splitlines()
    return [line.replace("-m pip --disable-pip-version-check ", "") for line in lines]


def made_of(*steps: str, gigabytes: float = 0.0) -> Environment:
    return Environment("some", [step.split() for step in steps], "MIT", gigabytes, 3)


def test_size_time_and_licence_are_told_before_anything_is_installed_and_packages_once(base):
    told, some = [], made_of("install one==1", "uninstall -y two")
    some.make(told.append, str(base))
    assert all(part in told[0] for part in ("MIT", "0 GB", "3 minutes"))
    assert calls(base)[1:] == ["install one==1", "uninstall -y two"] and some.python.exists()
    some.make(told.append, str(base))
    assert len(calls(base)) == 3 and "is there" in told[-1]


def test_a_step_that_failed_is_told_and_done_again_by_the_same_command(base, capfd):
    with pytest.raises(RuntimeError, match="install broken failed, as it says above; the same command resumes"):
        made_of("install one==1", "install broken").make(print, str(base))
    assert "no such package" in capfd.readouterr().out
    with pytest.raises(FileNotFoundError, match="engines some installs it under .*engines/some"):
        made_of("install one==1").python
    mended = made_of("install one==1", "install two==2")
    mended.make(print, str(base))
    assert mended.is_there


def test_other_packages_are_another_environment_and_a_full_disk_is_told_first(base):
    made_of("install one==1").make(print, str(base))
    assert not made_of("install one==2").is_there
    with pytest.raises(RuntimeError, match="needs 1e\\+09 GB, .* are free; make room"):
        made_of("install one==2", gigabytes=1e9).make(print, str(base))
    assert len(calls(base)) == 2
