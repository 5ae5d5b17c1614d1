"""Pieces of work that worker processes can import."""

import os
import signal
from pathlib import Path

import torch


def where(number: int, shared: str) -> tuple[int, int, int]:
    return number, os.getpid(), torch.get_num_threads()


def dies_once(number: int, marker: str) -> int:
    """Kills its process at piece 3, unless that happened before."""
    if number == 3 and not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def always_dies(number: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fails(number: int) -> int:
    if number == 2:
        raise ValueError(f"piece {number} cannot be done")
    return number
