"""The commands in the page on the command line work as they are written there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from grassia.cli import main

PAGE = Path(__file__).resolve().parent.parent / "docs" / "command-line.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OPTION = re.compile(r"`(--[a-z-]+)")


def test_every_command_of_the_page_ends_with_code_0(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    lines = []
    for language, code in blocks:
        if language == "python":
            exec(compile(code, str(PAGE), "exec"), {})
        else:
            lines += [line for line in code.splitlines() if line.startswith("grassia ")]
    assert len(lines) > 8
    for line in lines:
        words = shlex.split(line.partition(">")[0])
        assert main(words[1:]) == 0, f"{line}: {capsys.readouterr().err}"


def test_every_option_of_the_page_is_one_of_some_command(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    for command in ([], ["pca"], ["project"], ["check"], ["plan"], ["bench"], ["simulate"]):
        assert main([*command, "--help"]) == 0
    known = set(re.findall(r"(--[a-z-]+) ", capsys.readouterr().out))
    said = set(OPTION.findall(PAGE.read_text(encoding="utf-8")))
    assert len(said) > 20
    assert said <= known
