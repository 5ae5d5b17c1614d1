"""The instruction sets that a processor's flags stand for, and the compiled library's place in the user's cache."""

import pytest

from lib.kernels import build
from lib.lab import processor

needs_kernels = pytest.mark.skipif(build.unavailable() is not None, reason=str(build.unavailable()))


@pytest.mark.parametrize("flags, options", [
    ({"avx2", "fma", "f16c", "sse2"}, ("-mavx2", "-mf16c", "-mfma")),
    ({"fp", "asimd"}, ()),
    ({"fp", "asimd", "bf16"}, ("-march=armv8.2-a+bf16",)),
    ({"sse2"}, None),
    (set(), None),
])
def test_the_best_instruction_set_may_need_no_options(flags, options):
    assert build.instructions(frozenset(flags)) == options


@pytest.mark.parametrize("system, facts, flags", [
    ("x86_64", {"processor": "0", "flags": "fpu avx2"}, {"avx2"}), ("arm64", {}, {"asimd"}), ("x86_64", {}, set()),
    ("aarch64", {"processor": "0", "Features": "fp asimd bf16"}, {"asimd", "bf16"}),
])
def test_a_processor_s_flags_are_linux_s_or_those_of_macos_on_arm(system, facts, flags, monkeypatch):
    monkeypatch.setattr(processor, "info", lambda: facts)
    monkeypatch.setattr("platform.machine", lambda: system)
    found = processor.flags.__wrapped__()
    assert flags <= found and (flags or not found)


def test_why_it_cannot_be_compiled_is_quoted_with_the_remedy(tmp_path, monkeypatch):
    complaining = tmp_path / "g++"
    complaining.write_text("#!/bin/sh\necho 'in file included' >&2\necho 'fatal error: no such header' >&2\nexit 3\n")
    complaining.chmod(0o755)
    monkeypatch.setenv("CXX", str(complaining))
    for folder, reason in ((tmp_path, "compiled: fatal error: no such header (set"), (complaining, "draft_trees' (")):
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
        assert reason in build._library.__wrapped__((), build.SOURCES)


@needs_kernels
def test_it_is_compiled_once_into_the_user_s_cache(monkeypatch, tmp_path):
    monkeypatch.setattr(build, "_library", build._library.__wrapped__)  # without what this process has loaded
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source = tmp_path / "one.cpp"
    source.write_text('extern "C" int one() { return 1; }')
    assert build.library(source).one() == 1
    made, = (path for path in (tmp_path / "draft_trees").iterdir() if path.suffix != ".lock")  # nothing else is left
    monkeypatch.setattr(build.subprocess, "run", lambda *a, **k: pytest.fail("compiled again"))
    assert build.library(source)._name == str(made) and made.suffix == ".so"
