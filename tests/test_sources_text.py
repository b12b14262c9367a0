"""Numbers in text: headers, delimiters, index columns, missing values, quotes, words among the numbers."""

from __future__ import annotations

import csv
import gzip
import io

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grassia.data import from_rows
from grassia.data.formats.csv import open_path
from grassia.data.formats.parsing import parse_with_arrow, parse_with_numpy
from grassia.data.formats.records import cut_records, fields_a_line, records_of
from grassia.errors import InvalidComponent, InvalidInput


@pytest.fixture
def write(tmp_path):
    def write(text, name="a.csv"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def rows(path, **options):
    components = from_rows(path, options=options)
    return np.vstack(list(components.blocks())), components.feature_names


@pytest.mark.parametrize(
    ("text", "options", "expected", "names"),
    [
        ("a,b\n1,2\n3,4\n", {}, [[1, 2], [3, 4]], ("a", "b")),
        ("1,2\n3,4", {}, [[1, 2], [3, 4]], None),
        ("1,2\r\n3,4\r\n", {}, [[1, 2], [3, 4]], None),
        ("\ufeffa,b\n1,2\n", {}, [[1, 2]], ("a", "b")),
        ("# made by hand\n\na , b\n\n1, 2\n\n\n3, 4\n\n", {}, [[1, 2], [3, 4]], ("a", "b")),
        ("a;b\n1;2\n", {}, [[1, 2]], ("a", "b")),
        ("a|b\n1|2\n", {}, [[1, 2]], ("a", "b")),
        ("a b\n1\n2\n", {}, [[1], [2]], ("a b",)),
        ("1.5 2\n3 4\n", {}, [[1.5, 2], [3, 4]], None),
        ("# a b\n1.5 2\n3 4\n", {}, [[1.5, 2], [3, 4]], None),
        ("a b\n1.5 2\n3 4\n", {}, [[1.5, 2], [3, 4]], ("a", "b")),
        ("0,1,2\n5,6,7\n", {}, [[5, 6, 7]], ("0", "1", "2")),
        ("0,1,2\n5,6,7\n", {"header": False}, [[0, 1, 2], [5, 6, 7]], None),
        ("1,2\n5,6\n", {"header": True}, [[5, 6]], ("1", "2")),
        (",a,b\n0,1,2\n1,3,4\n", {}, [[1, 2], [3, 4]], ("a", "b")),
        (",a,b\n0,1,2\n1,3,4\n", {"index": False}, [[0, 1, 2], [1, 3, 4]], ("", "a", "b")),
        ('"","a","b"\n"x",1,2\n"y",3,4\n', {}, [[1, 2], [3, 4]], ("a", "b")),
        (",a,b\n7,1,2\n8,3,4\n", {"columns": ["", "b"]}, [[7, 2], [8, 4]], ("", "b")),
        ("a,b\nx,1,2\ny,3,4\n", {}, [[1, 2], [3, 4]], ("a", "b")),
        ("id,a,b\nx,1,2\n", {"drop": "id"}, [[1, 2]], ("a", "b")),
        ("id,a,b\nx,1,2\n", {"columns": ["b", "a"]}, [[2, 1]], ("b", "a")),
        ("x,1,2\ny,3,4\n", {"columns": [2, 1], "header": False}, [[2, 1], [4, 3]], None),
        ("x,1,2\ny,3,4\n", {"index": True, "header": False}, [[1, 2], [3, 4]], None),
        ("a,b\n1,true\n2,False\n", {}, [[1, 1], [2, 0]], ("a", "b")),
        ("a,b\n1,\n,2\nNA,null\n", {}, [[1, np.nan], [np.nan, 2], [np.nan, np.nan]], ("a", "b")),
        (
            'a,b,t\n1,2,"x, y"\n3,4,"two\nlines"\n5,6,"say ""so"""\n',
            {"drop": ["t"]},
            [[1, 2], [3, 4], [5, 6]],
            ("a", "b"),
        ),
        ("a,b\n1e3,-.5\n+2.,1E-2\n", {}, [[1000, -0.5], [2, 0.01]], ("a", "b")),
        ("größe,b\n1,2\n", {}, [[1, 2]], ("größe", "b")),
        ("größe,b\n1,2\n".encode("latin-1"), {}, [[1, 2]], ("größe", "b")),
        ("a,b\n1,2\n3,4\n  \n5,7\n8,1\n", {}, [[1, 2], [3, 4], [5, 7], [8, 1]], ("a", "b")),
        ("1,2\n \t \r\n3,4\n\t", {}, [[1, 2], [3, 4]], None),
        ("a\n1\n  \n2\n", {}, [[1], [2]], ("a",)),
        ("1 2\n   \n3 4\n", {}, [[1, 2], [3, 4]], None),
        ("a\tb\n1\t2\n  \n\t\n3\t4\n", {}, [[1, 2], [np.nan, np.nan], [3, 4]], ("a", "b")),
        ("a\tb\n\t\n1\t2\n", {}, [[np.nan, np.nan], [1, 2]], ("a", "b")),
        ("\ufeff1,2\n3,true\n", {}, [[1, 2], [3, 1]], None),
        ('a,b,t\n1,2,x\n3,4,6" pipe\n5,6,y\n', {"drop": "t"}, [[1, 2], [3, 4], [5, 6]], ("a", "b")),
        ('t,a\n6" pipe,1\n"4"" pipe",2\n"x" y",3\nz,4\n', {"drop": "t"}, [[1], [2], [3], [4]], ("a",)),
        ('"two\nlines",b\n1,2\n3,4\n', {}, [[1, 2], [3, 4]], ("two\nlines", "b")),
        ('t;a\nx,"y;1\n2;2\n', {"drop": "t"}, [[1], [2]], ("a",)),
        ('"1";"2"\n"3";"4"\n', {}, [[1, 2], [3, 4]], None),
        ("1_000,b\n1,2\n", {}, [[1, 2]], ("1_000", "b")),
        ('# x,"y\na,b\n1,2\n', {}, [[1, 2]], ("a", "b")),
    ],
)
def test_text_as_people_write_it_is_understood(text, options, expected, names, write):
    found, found_names = rows(write(text), **options)
    np.testing.assert_array_equal(found, np.array(expected, dtype=float))
    assert found_names == names


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"a\.csv must not be empty; it has no lines"),
        ("\n \n", r"a\.csv must not be empty; it has no lines"),
        ("a,b\n", r"a\.csv must not be empty; it has a header and no rows"),
        (
            "city,b\nParis,2\n",
            r"numeric; column 'city' holds 'Paris' in row 0 \(line 2\); leave .*'drop': \['city'\]",
        ),
        ("a,b\n1,2\n\n3,x\n", r"column 'b' holds 'x' in row 1 \(line 4\)"),
        ("1,2\n3,4\n5,x\n", r"column 1 holds 'x' in row 2 \(line 3\); .*'drop': \[1\]"),
        ("a;b\n1,5;2\n", r"column 'a' holds '1,5' in row 0"),
        ("day,b\n2024-01-01,2\n", r"column 'day' holds '2024-01-01'"),
        ("a,b\n1,2\n3\n", r"lines of .*a\.csv must have 2 fields; line 3 has 1"),
        ("a,b\n1,2\n3,4,5\n", r"must have 2 fields; line 3 has 3"),
        ('a,b\n"1","2"\n"3"\n', r"must have 2 fields; line 3 has 1"),
        ("a,b\n1,2\n3,4\n".encode("utf-16"), r"a\.csv must be text, in UTF-8"),
        ("a,b\r1,2\r3,4\r", r"lines of .*a\.csv must end in"),
        ("a,b\n1,2\n3,inf\n", r"row 1 of .*a\.csv holds NaN or inf in column 'b'"),
        ("a,b\n1,2\n3,\n", r"row 1 of .*a\.csv holds NaN or inf in column 'b'"),
        ("a,b\n1,2\n3,1_000\n", r"column 'b' holds '1_000' in row 1 \(line 3\)"),
        ('a,b\n1,2\n3,"1_000"\n', r"column 'b' holds '1_000' in row 1 \(line 3\)"),
        ("a,b\n1,2\n３,4\n", r"column 'a' holds '３' in row 1 \(line 3\)"),
        ("a,b\n٣,4\n1,2\n", r"column 'a' holds '٣' in row 0 \(line 2\)"),
        ('a,b\n1,2\n"3\n,4\n5,6\n', r"quote that opens a field must be closed; in .*a\.csv .* line 3 or"),
        ('a,b\n"1,2\n3,4\n', r"quote that opens a field must be closed; in .*a\.csv .* line 2 or"),
        ('a,b\n1,2\n""\n3,4\n', r"must have 2 fields; line 3 has 1"),
        ("a,b\n1,2\n3,4\r5,6\n", r"line 3 of .*a\.csv cannot be read: it holds \\r"),
    ],
)
def test_what_is_not_a_table_of_numbers_is_refused_with_its_place(text, message, write):
    path = write(text)
    with pytest.raises(InvalidComponent, match=message):
        [loader.open().moments() for loader in from_rows(path)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": ["a", "z"]}, "has no column 'z'; its columns are 'a', 'b'"),
        ({"columns": [2]}, "has 2 columns; there is no column 2"),
        ({"columns": ["a", 0]}, "must name each column of .* once"),
        ({"drop": ["a", "b"]}, "at least one must be left"),
        ({"columns": []}, "must be names or numbers of columns"),
        ({"columns": [1.5]}, "must be names or numbers of columns"),
        ({"delimiter": "::"}, "must be one character"),
        ({"delimiter": '"'}, "must be neither a quote nor a line break"),
        ({"header": "yes"}, "`header` must be True, False or None"),
        ({"dtype": "int8"}, "must be float64 or float32; got int8"),
    ],
)
def test_options_that_cannot_be_met_are_refused(options, message, write):
    with pytest.raises(InvalidInput, match=message):
        from_rows(write("a,b\n1,2\n"), options=options)


def test_single_precision_is_kept_where_it_is_asked_for(write):
    components = from_rows(write("1.1,2\n3,4\n5,7\n"), options={"dtype": "float32"})
    assert components.dtype == np.float32
    assert components[0].open().moments().single
    np.testing.assert_array_equal(next(components.blocks())[0], np.float32([1.1, 2]))


def test_the_description_says_that_rows_were_counted_and_the_index_left_out(write):
    line = from_rows(write(",a,b\n0,1,2\n")).describe()
    assert "a.csv[0:1] (CSV; rows counted in one pass; index column left out), centred" in line
    line = from_rows(write("2019,2020\n1,2\n")).describe()
    assert "a.csv[0:2] (CSV; rows counted in one pass; no header), centred" in line


def test_a_quote_that_is_not_closed_is_noticed_without_reading_all_that_follows(write, monkeypatch):
    monkeypatch.setattr("grassia.data.formats.csv._PIECE", 64)
    monkeypatch.setattr("grassia.data.formats.csv._LONGEST", 1000)
    text = "a,b\n1,2\n3,4\n" + '"5,6\n' + "7,8\n" * 1000
    with pytest.raises(InvalidComponent, match=r"must be closed; in .* line 4 or after"):
        from_rows(write(text + '",9\n'))
    monkeypatch.setattr("grassia.data.formats.csv._LONGEST", 10_000)
    assert from_rows(write(text + '",9\n')).n_rows == 3


def test_rows_can_be_read_from_any_place_and_backwards(write, monkeypatch):
    monkeypatch.setattr("grassia.data.formats.csv._PIECE", 64)  # so that marks are many and cut rows
    X = np.arange(600.0).reshape(200, 3)
    for name in ("a.csv", "a.csv.gz"):
        text = "\n".join(",".join(map(str, row)) for row in X.tolist()) + "\n"
        path = write(text, name) if name == "a.csv" else write(gzip.compress(text.encode()), name)
        opener = open_path(str(path))
        assert len(opener.marks) > 20
        store = opener.open()
        for start, stop in [(150, 170), (170, 171), (0, 200), (199, 200), (3, 100), (100, 101), (7, 9)]:
            np.testing.assert_array_equal(store.read(start, stop), X[start:stop])


def test_the_line_of_an_error_far_into_a_file_is_right(write, monkeypatch):
    monkeypatch.setattr("grassia.data.formats.csv._PIECE", 64)
    lines = ["a,b", *[f"{i},{i}" for i in range(300)]]
    lines[250] = "1,word"
    lines[100:100] = [""]
    path = write("\n".join(lines))
    with pytest.raises(InvalidComponent, match=r"column 'b' holds 'word' in row 249 \(line 252\)"):
        from_rows(path)[0].open().moments()


numbers = st.floats(allow_nan=False, width=64)


@settings(max_examples=60, deadline=None)
@given(
    table=st.lists(st.lists(numbers, min_size=3, max_size=3), min_size=1, max_size=20),
    delimiter=st.sampled_from(",;\t|"),
    end=st.sampled_from(["\n", "\r\n"]),
)
def test_both_parsers_give_back_every_number_exactly(table, delimiter, end):
    text = "".join(delimiter.join(map(repr, row)) + end for row in table).encode()
    for parse in (parse_with_numpy, parse_with_arrow):
        found = parse(text, delimiter, 3, (2, 0), np.dtype(float))
        np.testing.assert_array_equal(found, np.array(table)[:, [2, 0]])


@pytest.mark.parametrize("field", ["x", "", "1_000", "0x10", "1d5", "--1", "1 2", "１２", "٣"])
def test_both_parsers_decline_what_is_no_number(field):
    for parse in (parse_with_numpy, parse_with_arrow):
        assert parse(f"1,{field}\n".encode(), ",", 2, (0, 1), np.dtype(float)) is None


@settings(max_examples=100, deadline=None)
@given(
    lines=st.lists(st.sampled_from(["1,2", "", '"a\nb",3', '"say ""x""",4', "5,6\r"]), max_size=12),
    ends=st.booleans(),
    most=st.none() | st.integers(1, 5),
    size=st.integers(1, 30),
)
def test_records_are_cut_alike_however_the_text_arrives(lines, ends, most, size):
    text = "\n".join(lines).encode() + (b"\n" if ends else b"")
    whole, buffer, found = io.BytesIO(text), b"", []
    ended = False
    while not (ended and not buffer):
        n, used = cut_records(buffer, ended, most)
        if n:
            assert most is None or n <= most
            found.append((n, buffer[:used]))
            buffer = buffer[used:]
        elif ended:
            assert not buffer.strip()
            break
        else:
            more = whole.read(size)
            buffer, ended = buffer + more, not more
    assert sum(n for n, _ in found) == sum(bool(line) for line in lines)
    assert b"".join(piece for _, piece in found).strip() == text.strip()


@settings(max_examples=200, deadline=None)
@given(
    lines=st.lists(
        st.tuples(
            st.lists(
                st.sampled_from(["x", '6" pipe', '"two\nlines"', '"6"" pipe"', '"a,b"', '"a"b"', "", ' "c"']),
                min_size=2,
                max_size=2,
            ),
            st.sampled_from(["", " ", "\t ", "\r", "  \r"]),
        ),
        max_size=8,
    ),
    size=st.integers(1, 40),
)
def test_records_are_those_of_the_csv_module(lines, size):
    text = "".join(f"{a},{b}\n{blank}\n" for (a, b), blank in lines)
    expected = [fields for fields in csv.reader(io.StringIO(text, newline="")) if len(fields) > 1]
    data = text.encode()
    n, used = cut_records(data, True)
    assert (n, data[used:].strip()) == (len(expected), b"")
    found = [next(csv.reader([record.decode()])) for _, record in records_of(data, ",")]
    assert found == expected
    first, used = cut_records(data[:size], False)
    assert first + cut_records(data[used:], True)[0] == len(expected)


numerals = st.floats(allow_nan=False, allow_infinity=False).map(repr) | st.integers(-999, 999).map(str)


@st.composite
def written_tables(draw):
    """The text of a table of numbers, as various programs might write it, and its delimiter."""
    width, delimiter = draw(st.integers(1, 4)), draw(st.sampled_from(",;\t|"))
    end = draw(st.sampled_from(["\n", "\r\n"]))
    blank = st.sampled_from(["", " ", "   ", " \r"] + ["\t", " \t"] * (delimiter != "\t"))
    field = st.tuples(numerals, st.sampled_from(["{}", "{}", "{}", '"{}"', " {}", "{} ", '" {} "']))
    row = st.lists(field.map(lambda pair: pair[1].format(pair[0])), min_size=width, max_size=width)
    lines = [delimiter.join(f"c{j}" for j in range(width))] * draw(st.booleans())
    for fields in draw(st.lists(row, min_size=1, max_size=30)):
        lines += draw(st.just([]) | st.lists(blank, max_size=2))
        lines.append(delimiter.join(fields))
    lines += draw(st.lists(blank, max_size=2))
    return end.join(lines) + end * draw(st.booleans()), delimiter


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    written=written_tables(),
    piece=st.sampled_from([7, 64, 4 << 20]),
    packed=st.booleans(),
    parse=st.sampled_from([parse_with_numpy, parse_with_arrow]),
)
def test_every_number_is_that_of_the_csv_module_in_any_number_of_shards(
    written, piece, packed, parse, tmp_path
):
    text, delimiter = written
    read = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    fields = [row for row in read if any(field.strip() for field in row)]
    header = fields[0][0].startswith("c")
    expected = np.array([[float(field) for field in row] for row in fields[header:]])
    data = text.encode()
    path = tmp_path / ("a.csv.gz" if packed else "a.csv")
    path.write_bytes(gzip.compress(data) if packed else data)
    options = {"delimiter": delimiter, "header": header}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("grassia.data.formats.csv._PIECE", piece)
        patch.setattr("grassia.data.formats.csv.parse_numbers", parse)
        for n in {1, 2, 3, len(expected)}:
            if n <= len(expected):
                components = from_rows(path, n, options=options)
                assert components.n_rows == len(expected)
                np.testing.assert_array_equal(np.vstack(list(components.blocks(64))), expected)


def test_fields_are_not_counted_where_quotes_could_hide_delimiters():
    assert fields_a_line(b'1,"2,3"\n', ",") is None
    assert fields_a_line(b"1,2\n\n3\n", ",") is None
    assert fields_a_line(b"1,2\n \t\r\n3\n", ",") is None
    np.testing.assert_array_equal(fields_a_line(b"1,2\n3,4", ","), [2, 2])
