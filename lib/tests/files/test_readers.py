"""Whatever a user's file holds, it is read, or refused in one line: files with drawn faults."""

import json
import logging
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lib.tests.files import readers

EXAMPLES = int(os.environ.get("EXAMPLES", 40))  # of each reader and test
PLACE = st.integers(0, 1 << 30)
EDITS = st.one_of(
    st.tuples(st.just("cut"), PLACE),
    st.tuples(st.just("flip"), PLACE, st.integers(1, 255)),
    st.tuples(st.just("put"), PLACE, st.sampled_from([b"\0", b"\xff", b"\n", b'"', b"{", b"[" * 3000, b"-", b"9" * 400,
                                                      b"1e999", b"NaN", b"null", b"\\ud800", b"\r", b"<script>"])),
    st.tuples(st.just("twice"), PLACE, st.integers(1, 64)))
VALUES = st.sampled_from([None, True, -1, 0, 1, 10**30, 1.5, float("nan"), float("inf"), "", "x", "a\nb", "\ud800", [], {},
                          [1], ["x"], [[]], {"x": 1}, "../../x", "<script>alert(1)</script>"])


@pytest.fixture(autouse=True, scope="module")
def quiet():
    """Libraries log what a file holds, and a surrogate in a log stops tests that run in several processes."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def edited(data: bytes, edits) -> bytes:
    for edit, place, *rest in edits:
        at = place % (len(data) + 1)
        if edit == "cut":
            data = data[:at]
        elif edit == "flip" and at < len(data):
            data = data[:at] + bytes([data[at] ^ rest[0]]) + data[at + 1 :]
        elif edit == "put":
            data = data[:at] + rest[0] + data[at:]
        elif edit == "twice":
            data = data[: at + rest[0]] + data[at:]
    return data


def changed(value, draw):
    """A JSON value in which one part is another, or is missing."""
    inside = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    if not inside or draw(st.integers(0, 5)) == 0:
        return draw(VALUES)
    at = draw(st.sampled_from(inside))
    if isinstance(value, dict):
        return ({key: each for key, each in value.items() if key != at} if draw(st.booleans())
                else value | {at: changed(value[at], draw)})
    return value[:at] + [changed(value[at], draw)] + value[at + 1 :]


@pytest.mark.parametrize("name", sorted(readers.readers()))
def test_good_files_are_read(name):
    for data in readers.readers()[name].good():
        assert readers.checked(name, data) == ""


@pytest.mark.parametrize("name", sorted(readers.readers()))
@settings(deadline=None, max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow])
@given(edits=st.lists(EDITS, min_size=1, max_size=3), data=st.data())
def test_whatever_bytes_a_file_holds(name, edits, data):
    good = readers.readers()[name].good()
    readers.checked(name, edited(data.draw(st.sampled_from(good)), edits))


@pytest.mark.parametrize("name", sorted(readers.readers()))
@settings(deadline=None, max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_whatever_values_a_json_file_holds(name, data):
    good = [each for each in readers.readers()[name].good() if each[:1] == b"{"]
    for each in good:
        lines = each.decode().split("\n") if b"}\n{" in each else [each.decode()]
        at = data.draw(st.integers(0, len(lines) - 1))
        lines[at] = json.dumps(changed(json.loads(lines[at]), data.draw))
        readers.checked(name, "\n".join(lines).encode())
