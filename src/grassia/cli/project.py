"""`grassia project`: coordinates of new rows along the components of a model."""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import IO, Annotated

import numpy as np
import typer
from numpy.typing import NDArray

from grassia.cli import _options as opt
from grassia.cli._fitting import fitting_rows, wrong_width
from grassia.cli._inputs import Source, format_options
from grassia.cli._model import Model, complete_file, plain
from grassia.cli._partial import SUFFIXES, PartialTable, partial_table
from grassia.cli._row_names import RowNames
from grassia.cli._scores import score_blocks, score_dtype, write_scores
from grassia.cli._writing import CsvRows, component_names
from grassia.data import Components
from grassia.data.loaders import file_stamp
from grassia.errors import InvalidInput

_LINES = 1000


def project(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A folder that grassia pca wrote.")],
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT",
            help="Files of rows, as for grassia pca; or one row as 1.5,2,0.3; or -, for rows on stdin.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="File to write: .csv, .tsv, .npy or .parquet. Default: CSV on stdout."
        ),
    ] = None,
    overwrite: opt.Overwrite = False,
    resume: opt.Resume = False,
    header: Annotated[
        bool, typer.Option("--header/--no-header", help="Whether text begins with names.")
    ] = True,
    dataset: opt.Dataset = None,
    columns: opt.Columns = None,
    drop: opt.Drop = None,
    id_column: Annotated[
        str | None,
        typer.Option(
            "--id", metavar="COLUMN", help="The column that names the rows.", rich_help_panel="Reading"
        ),
    ] = None,
    option: opt.Option = None,
    as_json: opt.Json = False,
    debug: opt.Debug = False,
) -> int:
    """Project new rows on the components of a model: one sample, or files of any size.

    The mean of the model is removed. Tables may have their columns in any order, and more of them:
    those of the model are taken by name.

    Examples:

    grassia project model/ new.csv > scores.csv
    grassia project model/ 5.1,3.5,1.4,0.2
    tail -n 3 new.csv | grassia project model/ - --no-header
    grassia project model/ 'data/*.parquet' -o scores.npy

    Interrupted with -o, it keeps the rows that are done; the same command and --resume goes on.

    Exit codes: 0 done; 2 bad input or usage; 130 interrupted.
    """
    if output is not None and output.suffix not in SUFFIXES:
        raise InvalidInput(f"--output must end in {', '.join(SUFFIXES)}; got {output}.")
    if as_json and output is not None:
        raise InvalidInput("--json prints the scores; give it or --output, not both.")
    if resume and (output is None or inputs == ["-"]):
        raise InvalidInput("--resume goes on with a file of scores of files; give --output, and files.")
    if output is not None and output.exists() and output.resolve().parent == model.resolve():
        raise InvalidInput(f"--output must not be a file of the model; got {output}.")
    found = Model.load(model)
    if inputs == ["-"]:
        blocks = _lines(sys.stdin, found)
    elif (sample := _sample(inputs)) is not None:
        blocks = iter([_checked(sample[None, :], found, "the sample")])
    else:
        left_out = list(drop or [])
        if id_column is not None and (left_out or found.feature_names is None):
            left_out.append(id_column)  # where columns are taken by name it is not among them
        options = format_options(dataset, columns, left_out, option or [])
        source, components = fitting_rows(found, inputs, options, 1)
        names = RowNames(components, id_column)
        if output is not None:
            kept = {"header": header, "overwrite": overwrite, "resume": resume}
            _write(output, found, source, components, names, **kept)
            return 0
        if not as_json:
            table = CsvRows(sys.stdout, [*names.header, *component_names(found.k)] if header else [])
            with source.telling():
                write_scores(found, components, names, [table.add])
            return 0
        with source.telling():
            blocks = iter(list(score_blocks(found, components, inputs[0])))
    if output is not None:
        _write_blocks(output, overwrite, header, found, blocks)
    elif as_json:
        rows = [row for block in blocks for row in block.tolist()]
        print(json.dumps(plain({"components": component_names(found.k), "scores": rows})))
    else:
        table = CsvRows(sys.stdout, component_names(found.k) if header else [], names_too=False)
        for block in blocks:
            table.add(block, [])
            sys.stdout.flush()
    return 0


def _sample(inputs: Sequence[str]) -> NDArray[np.float64] | None:
    """One row given as numbers; None for what is the name of something."""
    if any(os.path.exists(text) for text in inputs):
        return None
    fields = [field for text in inputs for field in text.split(",")]
    wrong = [field for field in fields if not _is_number(field)]
    if len(inputs) > 1 and not wrong:
        raise InvalidInput(f"a sample must be one argument, with commas: {','.join(fields).strip()}.")
    if len(inputs) > 1 or len(wrong) == len(fields):
        return None
    if wrong:
        raise InvalidInput(
            f"a sample must be numbers with commas; {wrong[0]!r} in {inputs[0].strip()} is none, and there "
            "is no file of this name."
        )
    return np.array([float(field) for field in fields])


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _lines(stream: IO[str], model: Model) -> Iterator[NDArray[np.float64]]:
    """Scores of rows as lines of text, some at a time; a first line of names says which column is which."""
    rows = _numbers(csv.reader(stream), model)
    while chunk := list(islice(rows, _LINES)):
        yield _checked(np.array(chunk), model, "stdin")


def _numbers(lines: Iterable[list[str]], model: Model) -> Iterator[list[float]]:
    count, taken = 0, list(range(model.n_features))
    width = model.n_features
    for number, fields in enumerate(lines, 1):
        if not any(field.strip() for field in fields):
            continue
        if number == 1 and model.feature_names is not None and not all(map(_is_number, fields)):
            taken, width = _named(fields, model.feature_names), len(fields)
            continue
        if len(fields) != width:
            raise InvalidInput(wrong_width(f"line {number} of stdin", len(fields), model))
        try:
            row = [float(fields[j]) for j in taken]
        except ValueError as error:
            raise InvalidInput(
                f"rows on stdin must be numbers with commas; line {number}: {error}."
            ) from error
        count += 1
        yield row
    if not count:
        raise InvalidInput("there must be at least one row; stdin has none.")


def _named(fields: list[str], wanted: list[str]) -> list[int]:
    """Where the columns of the model are in lines that begin with such names."""
    missing = [name for name in wanted if name not in fields]
    if missing:
        raise InvalidInput(
            f"the names on the first line of stdin must have all columns of the model; {missing[0]!r} is not "
            f"among {', '.join(fields[:10])}."
        )
    return [fields.index(name) for name in wanted]


def _checked(rows: NDArray[np.float64], model: Model, told: str) -> NDArray[np.float64]:
    if rows.shape[1] != model.n_features:
        raise InvalidInput(wrong_width(told, rows.shape[1], model))
    if not np.isfinite(rows).all():
        raise InvalidInput(f"rows must be finite; {told} holds NaN or inf.")
    return model.project(rows)


def _write(
    output: Path,
    found: Model,
    source: Source,
    components: Components,
    names: RowNames,
    *,
    header: bool,
    overwrite: bool,
    resume: bool,
) -> None:
    source.refuse_as_output(output, "--output")
    stamps = [[file, *(file_stamp(file) or ())] for file in source.files]
    asked = {"the model": _digest(found), "the input": [*source.inputs, repr(dict(source.options)), stamps]}
    shape, dtype = (components.n_rows or 0, found.k), score_dtype(components)
    with (
        partial_table(
            output, asked, shape, dtype, names.header, header=header, overwrite=overwrite, resume=resume
        ) as table,
        source.telling(),
    ):
        write_scores(found, components, names, [table.add], skip=table.rows)


def _digest(model: Model) -> str:
    """Of what scores depend on."""
    found = sha256(np.ascontiguousarray(model.components).tobytes())
    if model.mean is not None:
        found.update(np.ascontiguousarray(model.mean).tobytes())
    return found.hexdigest()


def _write_blocks(
    output: Path, overwrite: bool, header: bool, model: Model, blocks: Iterable[NDArray[np.float64]]
) -> None:
    """Rows of the command line or of stdin, which are few."""
    scores = np.concatenate(list(blocks))
    with complete_file(output, overwrite) as path:
        table = PartialTable(path, path.suffix, scores.shape, scores.dtype, ["row"], header)
        table.add(scores, [(str(i),) for i in range(len(scores))])
        table.close()
