"""The example notebooks, run from top to bottom in a kernel, and what a run shows in one."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from grassia.report import Sample, Watch

FOLDER = Path(__file__).resolve().parent.parent / "examples" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
NAMES = [path.stem for path in NOTEBOOKS]
MACHINE_PATH = re.compile(r"(?<![\w.<])/(tmp|home|root|work|usr|var|opt|mnt|Users|private)/|\b[A-Z]:\\")


class Kernel(NotebookClient):
    """A client that notes what is shown, and how it is changed, while cells run."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.shown: list[tuple[str, str, dict[str, str]]] = []
        self.on_update = lambda text: None

    def process_message(self, msg, cell, cell_index):
        if msg["msg_type"] in ("display_data", "update_display_data"):
            content = msg["content"]
            place = content.get("transient", {}).get("display_id", "")
            self.shown.append((msg["msg_type"], place, content["data"]))
            self.on_update(content["data"].get("text/plain", ""))
        return super().process_message(msg, cell, cell_index)


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """Makes clients whose kernel is this interpreter, in an empty folder, with nobody's settings."""
    spec = tmp_path / "jupyter" / "kernels" / "python3"
    spec.mkdir(parents=True)
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    described = {"argv": command, "display_name": "Python 3", "language": "python"}
    (spec / "kernel.json").write_text(json.dumps(described), encoding="utf-8")
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.delenv("MPLBACKEND", raising=False)
    work = tmp_path / "work"
    work.mkdir()

    def client(notebook):
        return Kernel(
            notebook, kernel_name="python3", timeout=240, resources={"metadata": {"path": str(work)}}
        )

    return client


def cells(*sources: str):
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def said(cell) -> str:
    """All that a cell has printed or shown, pictures aside."""
    parts = []
    for output in cell.outputs:
        data = output.get("data", {})
        parts += [output.get("text", ""), *(str(data[kind]) for kind in data if kind.startswith("text/"))]
    return "\n".join(parts)


# -- what is stored -----------------------------------------------------------------------------------


def test_there_are_three_notebooks():
    assert [name[:2] for name in NAMES] == ["01", "02", "03"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
def test_a_stored_notebook_was_run_in_order_without_errors_and_tells_nothing_of_a_machine(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert path.stat().st_size < 300_000
    code = code_cells(notebook)
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert not [output for cell in code for output in cell.outputs if output.output_type == "error"]
    for cell in code:
        text = said(cell)
        assert not MACHINE_PATH.search(text), text
        assert not re.search(r"\bat 0x[0-9a-f]{6,}", text), text
        assert "Traceback" not in text
    assert notebook.cells[0].cell_type == "markdown"
    assert notebook.metadata.kernelspec.name == "python3"


# -- what happens when they are run -------------------------------------------------------------------

# One more cell for each, which knows the truth from elsewhere and prints how far the notebook is from it.
TRUTH = {
    # The covariance of the rows is the identity, plus that of the centres, plus that of the trend.
    "01": """
        span = np.linalg.qr(np.vstack([centres[1:] - centres[0], trend]).T.astype(float))[0]
        found = [pca.components_.T.astype(float), result.vectors]
        [float(np.linalg.norm(F - span @ (span.T @ F), 2)) for F in found]
    """,
    "02": """
        V = np.linalg.svd(X - X.mean(axis=0))[2][:3].T
        found = [run[0].vectors for run in runs.values()] + [reloaded.vectors, real.vectors]
        [float(np.linalg.norm(F - V @ (V.T @ F), 2)) for F in found]
    """,
    "03": """
        V = np.linalg.eigh(sum(matrices) / len(matrices))[1][:, -5:]
        found = [run[0].vectors for run in runs.values() if run[0].converged]
        [float(np.linalg.norm(F - V @ (V.T @ F), 2)) for F in found]
    """,
}
# The first compares a sample with its population: its sine is about sqrt(500 features / (160000 rows * 130)).
CLOSE = {"01": (2, 2e-2), "02": (4, 1e-6), "03": (6, 1e-7)}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
def test_a_notebook_runs_in_a_fresh_kernel_and_its_answers_are_true(path, kernel):
    stored = nbformat.read(path, as_version=4)
    notebook = nbformat.read(path, as_version=4)
    for cell in code_cells(notebook):
        cell.outputs, cell.execution_count = [], None
    number = path.stem[:2]
    lines = [line.strip() for line in TRUTH[number].strip().splitlines()]
    notebook.cells.append(nbformat.v4.new_code_cell("\n".join(lines)))
    kernel(notebook).execute()  # raises where a cell does, the notebook's own assertions among them

    *code, check = code_cells(notebook)
    sines = json.loads(check.outputs[0]["data"]["text/plain"])
    count, close = CLOSE[number]
    assert len(sines) == count
    assert max(sines) <= close
    for then, now in zip(code_cells(stored), code, strict=True):
        assert not [output for output in now.outputs if output.output_type == "error"]
        pictures = [
            sum("image/png" in output.get("data", {}) for output in cell.outputs) for cell in (then, now)
        ]
        assert pictures[0] == pictures[1], now.source
        assert bool(said(then).strip()) == bool(said(now).strip()), now.source


# -- what a run shows in a notebook -------------------------------------------------------------------

PROBLEM = """
import numpy as np, grassia
from grassia import backends
from grassia.report import Show
X = np.random.default_rng(3).standard_normal((600, 12)) * np.r_[4.0, 3.0, np.linspace(1.5, 0.5, 10)]
parts = grassia.from_rows(X, n_components=3)
engine = backends.Threads(faults=["delay:*:10ms", "crash:1@20"])
"""


def test_show_keeps_one_output_of_the_cell_up_to_date(kernel):
    run = "result = grassia.eigenspace(parts, 2, solver='grassia', backend=engine, callbacks=show, rng=0)"
    notebook = cells(
        PROBLEM,
        f"show = Show(every=0.05)\n{run}",
        "print(result.status.name, len(result.stats['answers']), sum(result.stats['answers']))",
        f"{run}\nshow",
    )
    client = kernel(notebook)
    client.execute()

    first = client.shown[0][1]
    of_first = [entry for entry in client.shown if entry[1] == first]
    kinds = [kind for kind, _, _ in of_first]
    texts = [data["text/plain"] for _, _, data in of_first]
    assert kinds == ["display_data"] + ["update_display_data"] * (len(kinds) - 1)
    phases = [re.split(r"[ :]", text)[0] for text in texts]
    assert "solving" in phases
    assert phases[-1] == "CONVERGED"
    updates = [int(re.search(r"(\d+) updates", text)[1]) for text in texts]
    assert updates == sorted(updates)
    assert len(set(updates)) >= 3  # it was seen to move

    _, shown, printed, again = notebook.cells
    (output,) = shown.outputs  # what was there before has been replaced
    assert output["data"]["text/plain"] == texts[-1]
    status, workers, answers = printed.outputs[0]["text"].split()
    assert status == "CONVERGED"
    rows = re.findall(r"<td>worker \d</td><td>(\d+)</td>", output["data"]["text/html"])
    assert len(rows) == int(workers)
    assert sum(map(int, rows)) == int(answers)

    another = {place for _, place, _ in client.shown} - {first, ""}
    assert len(another) == 1  # the second run has an output of its own
    assert [o.output_type for o in again.outputs] == ["display_data", "execute_result"]
    assert "CONVERGED" in again.outputs[1]["data"]["text/plain"]


def test_an_estimator_shows_its_progress_and_an_interrupted_cell_gives_the_best_so_far(kernel):
    notebook = cells(
        PROBLEM,
        "import warnings; warnings.simplefilter('ignore')\n"
        "show = Show(every=0.05)\n"
        "pca = grassia.PCA(2, solver='grassia', backend=engine, n_shards=3, tol=1e-13, callbacks=show)\n"
        "pca.fit(X);",
        "print(pca.result_.status.name, pca.components_.shape)",
        "print('still', 'here')",
    )
    client = kernel(notebook)
    seen: list[str] = []

    def interrupt(text: str) -> None:
        if text.startswith("solving") and not seen:
            seen.append(text)
            os.kill(client.km.provisioner.pid, signal.SIGINT)

    client.on_update = interrupt
    client.execute()
    assert seen
    assert notebook.cells[2].outputs[0]["text"] == "INTERRUPTED (2, 12)\n"
    assert notebook.cells[3].outputs[0]["text"] == "still here\n"


def test_a_command_in_a_cell_does_not_move_the_cursor(kernel):
    """A notebook gives it a terminal, but cannot draw over what was drawn."""
    options = "-k 2 --solver grassia --workers 3 --backend threads --fault delay:*:10ms -o model"
    notebook = cells(
        f"{PROBLEM}\nnp.save('x.npy', X)\nimport sys, shlex\npython = shlex.quote(sys.executable)",
        f"!{{python}} -m grassia pca x.npy {options}",
    )
    kernel(notebook).execute()
    text = said(notebook.cells[1])
    assert "CONVERGED" in text
    assert re.search(r"solving +updates \d+ +passes", text)
    assert not re.findall(r"\x1b\[\d*[A-HJKf]", text)


def test_the_table_marks_the_lost_and_the_slow_even_where_there_is_no_room_for_all():
    n = 40
    busy = [1.0] * n
    busy[33] = 25.0
    states = "".join("l" if worker == 37 else "i" if worker == 0 else "b" for worker in range(n))
    watch = Watch()
    watch.samples.append(
        Sample(
            time=9.0, phase="solving", version=7, passes=3.0, residual=1e-3, target=1e-6, estimate=1e-3,
            bound=math.nan, answers=[10] * n, busy=busy, states=states, waited=[0.0] * n,
            staleness=[2] * n, sent=0, received=0, events=1,
        )
    )  # fmt: skip
    rows = re.findall(r"<tr><td>worker (\d+)</td>.*?<td>([^<]*)</td></tr>", watch._repr_html_())
    said = {int(worker): state for worker, state in rows}
    assert said[37] == "lost"
    assert said[33] == "straggler 25x"
    assert (said[0], said[1]) == ("idle", "busy")
    assert f"{n - len(said)} more" in watch._repr_html_()
    assert "1 workers lost" in str(watch)


SCRIPT = f"{PROBLEM}\ngrassia.eigenspace(parts, 2, solver='nystrom', backend=engine, callbacks=Show(), rng=0)"


def test_where_there_is_neither_notebook_nor_terminal_nothing_is_shown():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, timeout=120, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")


def test_on_a_terminal_one_line_is_drawn_over():
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stdout=subprocess.DEVNULL, stderr=theirs, env=os.environ
    )
    os.close(theirs)
    seen = b""
    try:
        while chunk := _read(ours):
            seen += chunk
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        os.close(ours)
    text = seen.decode()
    assert text.count("\n") == 1
    assert text.count("\r\x1b[K") >= 2
    assert text.rpartition("\x1b[K")[2].startswith("CONVERGED: ")


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # the other end is closed: Linux says so with an error
        return b""
