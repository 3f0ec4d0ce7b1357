"""Whose a project of Docker's is."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from tests.chaos.owned import Owner


def test_a_name_says_whose_it_is() -> None:
    own = Owner.own()
    assert Owner.of(own.project()) == own
    assert own.project() != own.project()
    assert own.pid == os.getpid()
    assert not own.is_gone()


@pytest.mark.parametrize("name", ["quire", "", "quirechaos", "quirechaos-1-2-3-4-5", "quirechaos-0123456789ab-1-2-3"])
def test_other_projects_are_nobodys(name: str) -> None:
    assert Owner.of(name) is None


def test_gone_is_who_has_ended() -> None:
    code = "from tests.chaos.owned import Owner; print(Owner.own().project())"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    ended = Owner.of(told.stdout.strip())
    assert ended is not None
    assert ended.is_gone()
    assert replace(ended, pid=os.getpid()).is_gone(), "its number was given to another process"


def test_of_whom_it_cannot_be_known_it_is_not_said() -> None:
    nobody = replace(Owner.own(), started_ticks=0)
    assert nobody.is_gone()
    assert not replace(nobody, boot="0" * 12).is_gone()
    assert not replace(nobody, pid_namespace=1).is_gone()
