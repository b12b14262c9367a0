"""Check the documentation: relative links resolve, scripts are listed, the Python of pages and examples runs.

The Python blocks of a page are run together, from top to bottom, in an empty folder; a block with
`>>>` is a doctest. The `grassia` commands of the page for beginners are run, too. Run it with `make docs`, or
`python docs/check.py PAGE...` for some pages only.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
COMMANDS_RUN_IN = {"start.md"}
HEADING = re.compile(r"^#+\s+(.*?)\s*$", re.MULTILINE)


def pages() -> list[Path]:
    """Every page, the ones at the root first."""
    return sorted(ROOT.glob("*.md")) + sorted((ROOT / "docs").glob("**/*.md"))


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings."""
    prose = BLOCK.sub("", text)
    plain = (re.sub(r"[^\w\s-]", "", heading).lower() for heading in HEADING.findall(prose))
    return {re.sub(r"\s", "-", heading) for heading in plain}


def broken_links(page: Path) -> Iterator[str]:
    """Relative links of a page that lead nowhere."""
    for target in LINK.findall(BLOCK.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        found = page if not name else page.parent / name
        if not found.exists():
            yield f"{page.relative_to(ROOT)}: no such file: {target}"
        elif anchor and anchor not in anchors(found.read_text(encoding="utf-8")):
            yield f"{page.relative_to(ROOT)}: no such heading: {target}"


def unlisted() -> Iterator[str]:
    """Scripts that the page about them leaves out."""
    for folder in ("benchmarks", "examples"):
        page = ROOT / "docs" / f"{folder}.md"
        linked = set(LINK.findall(page.read_text(encoding="utf-8")))
        for script in sorted((ROOT / folder).glob("*.py")):
            if f"../{folder}/{script.name}" not in linked:
                yield f"docs/{folder}.md: nothing is said of {folder}/{script.name}"


def run_blocks(page: Path) -> int:
    """Run the Python of a page; errors propagate with the page's own line numbers."""
    text = page.read_text(encoding="utf-8")
    names: dict[str, object] = {"__name__": "__main__"}
    count = 0
    for match in BLOCK.finditer(text):
        language, code = match.groups()
        if language == "sh" and page.name in COMMANDS_RUN_IN:
            run_commands(page, code)
        if language != "python":
            continue
        count += 1
        line = text.count("\n", 0, match.start(2))
        if ">>>" in code:
            test = doctest.DocTestParser().get_doctest(code, names, page.name, str(page), line)
            runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
            if runner.run(test, clear_globs=False).failed:
                raise SystemExit(f"{page.relative_to(ROOT)}: a doctest failed")
            names = test.globs
        else:
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile("\n" * line + code, str(page), "exec"), names)
    return count


@contextlib.contextmanager
def empty_folder() -> Iterator[None]:
    """Work in a new folder, which is removed afterwards."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        yield


def run_commands(page: Path, code: str) -> None:
    """Run the lines of a block that call `grassia`."""
    for line in code.splitlines():
        words = shlex.split(line.partition(">")[0], comments=True)
        if words[:1] == ["grassia"]:
            done = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(f"{page.relative_to(ROOT)}: {line}: {done.stderr}")


def main(arguments: list[str]) -> int:
    """Check everything; the exit code says whether it holds."""
    chosen = [Path(name).resolve() for name in arguments] or pages()
    problems = [problem for page in chosen for problem in broken_links(page)]
    problems += [] if arguments else unlisted()
    for problem in problems:
        print(problem, file=sys.stderr)
    for page in chosen:
        with empty_folder():
            count = run_blocks(page)
        print(f"{page.relative_to(ROOT)}: {count} Python blocks")
    for script in [] if arguments else sorted((ROOT / "examples").glob("*.py")):
        with empty_folder():
            subprocess.run([sys.executable, script], check=True, stdout=subprocess.DEVNULL)
        print(f"{script.relative_to(ROOT)}: runs")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
