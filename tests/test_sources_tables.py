"""Tables of pandas, polars and pyarrow, in memory and in Parquet: which columns are numbers, which not."""

from __future__ import annotations

import datetime
import decimal

import numpy as np
import pytest
import scipy.sparse as sp

from grassia.data import extent_of, from_rows
from grassia.errors import InvalidComponent, InvalidInput

pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def rows(source, **options):
    components = from_rows(source, options=options)
    found = np.vstack([b.toarray() if sp.issparse(b) else b for b in components.blocks()])
    assert found.dtype == components.dtype
    return found


def through_parquet(table, path):
    """The same as a file; pandas and polars write it themselves."""
    if isinstance(table, pd.DataFrame):
        table.to_parquet(path)
    elif isinstance(table, pl.DataFrame):
        table.write_parquet(path)
    else:
        pq.write_table(table, path)
    return path


def each_way(columns, tmp_path):
    """A table of these columns of each library, and what each writes."""
    made = [pd.DataFrame(columns), pl.DataFrame(columns), pa.table(columns)]
    return made + [through_parquet(table, tmp_path / f"{i}.parquet") for i, table in enumerate(made)]


@pytest.mark.parametrize(
    ("columns", "dtype"),
    [
        ({"a": np.float32([1, 2]), "b": np.float32([3, 4])}, "f4"),
        ({"a": np.float32([1, 2]), "b": np.float64([3, 4])}, "f8"),
        ({"a": np.int8([1, 2]), "b": np.float32([3, 4])}, "f4"),
        ({"a": np.int8([1, 2]), "b": np.array([True, False])}, "i1"),
        ({"a": np.int64([1, 2]), "b": np.float32([3, 4])}, "f8"),
        ({"a": np.uint8([1, 2]), "b": np.int16([3, 4])}, "i2"),
        ({"a": np.array([True, False]), "b": np.array([False, False])}, "?"),
    ],
)
def test_columns_become_one_array_of_the_dtype_that_holds_them(columns, dtype, tmp_path):
    for source in each_way(columns, tmp_path):
        found = rows(source)
        assert found.dtype == np.dtype(dtype)
        np.testing.assert_array_equal(found, np.column_stack(list(columns.values())))


@pytest.mark.parametrize("values", [[1, None, 3], [1.5, None, 3.0], [True, None, False]])
def test_values_that_are_missing_are_reported_with_their_row(values, tmp_path):
    columns = {"a": [1.0, 2.0, 3.0], "b": values}
    tables = [
        pd.DataFrame({"a": columns["a"], "b": pd.array(values)}),
        pl.DataFrame(columns),
        pa.table(columns),
    ]
    files = [through_parquet(table, tmp_path / f"{i}.parquet") for i, table in enumerate(tables)]
    for source in tables + files:
        expected = [np.nan if value is None else float(value) for value in values]
        np.testing.assert_array_equal(rows(source)[:, 1], expected)
        with pytest.raises(InvalidComponent, match=r"row 1 .*holds NaN or inf in column"):
            from_rows(source)[0].open().moments()


def test_integers_that_may_be_missing_but_are_not_stay_integers(tmp_path):
    table = pd.DataFrame(
        {"a": pd.array([1, 2], dtype="Int16"), "b": pd.array([True, False], dtype="boolean")}
    )
    for source in (table, through_parquet(table, tmp_path / "a.parquet")):
        assert rows(source).dtype == np.int16


@pytest.mark.parametrize(
    "values",
    [
        ["x", "y"],
        [datetime.date(2024, 1, 1), datetime.date(2024, 1, 2)],
        [datetime.datetime(2024, 1, 1), datetime.datetime(2024, 1, 2)],
        [datetime.timedelta(1), datetime.timedelta(2)],
        [b"x", b"y"],
        [[1.0, 2.0], [3.0, 4.0]],
        [None, None],
    ],
)
def test_a_column_that_is_not_numeric_is_refused_by_its_name_and_can_be_left_out(values, tmp_path):
    for source in each_way({"a": [1.0, 2.0], "what": values}, tmp_path):
        with pytest.raises(
            InvalidComponent, match=r"must be numeric; column 'what' is .*'drop': \['what'\]"
        ) as e:
            from_rows(source)
        if not isinstance(source, pd.DataFrame | pl.DataFrame | pa.Table):
            assert source.name in str(e.value)
        np.testing.assert_array_equal(rows(source, drop=["what"]), [[1], [2]])
        np.testing.assert_array_equal(rows(source, columns="a"), [[1], [2]])


@pytest.mark.parametrize("kind", ["category", "complex128", "period[D]"])
def test_pandas_kinds_that_are_not_numbers_are_refused(kind):
    values = pd.Series([1, 2]) if kind != "period[D]" else pd.period_range("2024", periods=2, freq="D")
    with pytest.raises(InvalidComponent, match=f"column 'b' is {kind.split('[')[0]}"):
        from_rows(pd.DataFrame({"a": [1.0, 2.0], "b": pd.Series(values).astype(kind)}))


def test_decimals_are_numbers(tmp_path):
    values = [decimal.Decimal("1.25"), decimal.Decimal("2.50")]
    tables = [pl.DataFrame({"a": values}), pa.table({"a": values})]
    for source in [*tables, through_parquet(tables[1], tmp_path / "a.parquet")]:
        np.testing.assert_array_equal(rows(source), [[1.25], [2.5]])


def test_pandas_columns_backed_by_arrow_are_numbers():
    table = pd.DataFrame({"a": [1, 2], "b": [0.5, None]}).convert_dtypes(dtype_backend="pyarrow")
    np.testing.assert_array_equal(rows(table), [[1, 0.5], [2, np.nan]])
    with pytest.raises(InvalidComponent, match="column 't' is "):
        from_rows(table.assign(t=pd.array(["x", "y"], dtype="string[pyarrow]")))


def test_a_table_of_one_dtype_is_not_copied():
    X = np.arange(12.0).reshape(6, 2)
    (loader,) = from_rows(pd.DataFrame(X, copy=False))
    assert np.shares_memory(loader.rows, X)


def test_sparse_columns_stay_sparse():
    S = sp.random_array((50, 6), density=0.1, rng=0, format="csr")
    components = from_rows(pd.DataFrame.sparse.from_spmatrix(S), 2)
    assert components.sparse
    np.testing.assert_array_equal(np.vstack([b.toarray() for b in components.blocks()]), S.toarray())


def test_labels_of_rows_and_columns_of_any_kind_do_no_harm():
    table = pd.DataFrame([[1.0, 2.0], [3.0, 4.0]], index=["x", "y"], columns=[7, ("a", 1)])
    components = from_rows(table)
    assert components.feature_names == ("7", "('a', 1)")
    twice = pd.DataFrame([[1.0, 2.0]], columns=["a", "a"])
    np.testing.assert_array_equal(rows(twice), [[1, 2]])
    np.testing.assert_array_equal(rows(twice, columns=[1]), [[2]])
    with pytest.raises(InvalidInput, match=r"has 2 columns 'a'; name it by its number, of \[0, 1\]"):
        from_rows(twice, options={"columns": ["a"]})


def test_subclasses_of_a_table_are_tables():
    class Mine(pd.DataFrame):
        pass

    np.testing.assert_array_equal(rows(Mine({"a": [1.0, 2.0]})), [[1], [2]])


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (lambda: pd.DataFrame({"a": []}), "empty; got 0 rows"),
        (lambda: pd.DataFrame(), "at least one must be left|empty"),
        (lambda: pl.DataFrame({"a": []}, schema={"a": pl.Float64}), "empty; got 0 rows"),
        (lambda: pl.DataFrame(), "at least one|empty"),
        (lambda: pa.table({"a": pa.array([], pa.float64())}), "empty; got 0 rows"),
        (lambda: pd.Series([1.0, 2.0]), r"must be a table .*got pandas\.Series"),
        (lambda: pl.Series([1.0]), r"must be a table .*got polars\.Series"),
        (lambda: pl.LazyFrame({"a": [1.0]}), r"got polars\.LazyFrame; collect\(\) it"),
        (lambda: pa.array([1.0]), r"must be a table .*got pyarrow"),
    ],
)
def test_what_is_no_table_of_rows_is_refused(source, text):
    with pytest.raises(InvalidInput, match=text):
        from_rows(source())


def test_an_empty_parquet_file_is_refused_by_name(tmp_path):
    path = through_parquet(pa.table({"a": pa.array([], pa.float64())}), tmp_path / "none.parquet")
    with pytest.raises(InvalidComponent, match=r"none\.parquet must not be empty; it has 0 rows x 1"):
        from_rows(path)


def test_the_index_that_pandas_writes_is_left_out_unless_it_is_asked_for(tmp_path):
    table = pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0]}, index=pd.Index([7, 8], name="id"))
    path = through_parquet(table, tmp_path / "a.parquet")
    np.testing.assert_array_equal(rows(path), [[1, 3], [2, 4]])
    np.testing.assert_array_equal(rows(path, columns=["id", "a"]), [[7, 1], [8, 2]])


def test_columns_come_in_the_order_asked_for(tmp_path):
    columns = {name: np.arange(3.0) + i for i, name in enumerate("abc")}
    for source in each_way(columns, tmp_path):
        expected = np.column_stack([columns["c"], columns["a"]])
        np.testing.assert_array_equal(rows(source, columns=["c", "a"]), expected)
        np.testing.assert_array_equal(rows(source, columns=[-1, 0]), expected)
        assert from_rows(source, options={"drop": [1]}).feature_names == ("a", "c")


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.float32()), pa.large_list(pa.float32()), pa.list_(pa.float32(), 5)]
)
def test_a_column_of_lists_is_rows_by_itself(kind, tmp_path):
    X = np.random.default_rng(0).standard_normal((70, 5)).astype("f4")
    table = pa.table({"id": [str(i) for i in range(70)], "embedding": pa.array(list(X), kind)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=30)
    for source in (table, tmp_path / "a.parquet"):
        with pytest.raises(InvalidComponent, match="must be numeric; column 'id' is string"):
            from_rows(source)
        components = from_rows(source, 2, options={"columns": "embedding"})
        assert components.feature_names is None
        np.testing.assert_array_equal(np.vstack(list(components.blocks(200))), X)
        found = [loader.open().moments() for loader in components]
        mean = np.average([part.mean for part in found], axis=0, weights=[part.count for part in found])
        np.testing.assert_allclose(mean, X.mean(axis=0, dtype=float), rtol=1e-12)


@pytest.mark.parametrize(("bad", "text"), [([1.0], "row 1 has one of 1"), (None, "row 1 has none")])
def test_lists_of_other_lengths_are_refused_with_their_row(bad, text, tmp_path):
    table = pa.table({"v": [[1.0, 2.0], bad, [3.0, 4.0]]})
    for source in (table, through_parquet(table, tmp_path / "a.parquet")):
        with pytest.raises(InvalidComponent, match=f"lists of column 'v' .*length, 2 as the first; {text}"):
            list(from_rows(source).blocks())


@pytest.mark.parametrize("number", [pa.int32(), pa.int64(), pa.uint8()])
@pytest.mark.parametrize("kind", [pa.list_, pa.large_list, lambda number: pa.list_(number, 2)])
def test_integers_missing_from_lists_are_refused_with_their_row(number, kind, tmp_path):
    table = pa.table({"e": pa.array([[1, 2], [3, 4], [5, 6], [7, None]], kind(number))})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=3)
    for source in (table, table.slice(1), tmp_path / "a.parquet"):
        row = 2 if source is not table and isinstance(source, pa.Table) else 3
        with pytest.raises(InvalidComponent, match=f"lists of column 'e' .*missing; one of row {row} is"):
            list(from_rows(source).blocks())
    np.testing.assert_array_equal(rows(table.slice(0, 3)), [[1, 2], [3, 4], [5, 6]])


def test_floats_missing_from_lists_are_refused_with_their_row(tmp_path):
    table = pa.table({"e": pa.array([[1, 2], [3, 4], [5, None]], pa.list_(pa.float32()))})
    for source in (table, through_parquet(table, tmp_path / "a.parquet")):
        with pytest.raises(InvalidComponent, match=r"row 2 .*holds NaN or inf in column 1"):
            from_rows(source)[0].open().moments()


@pytest.mark.parametrize("dtype", ["uint64", "int64"])
@pytest.mark.parametrize("beside", [{"b": np.array([0.5, 1.5, 2.5])}, {"b": np.array([-1, 2, 3])}, {}])
def test_integers_that_float64_would_round_are_refused(dtype, beside, tmp_path):
    exact = {"a": np.array([1, 2**53, 3], dtype), **beside}
    for source in each_way(exact, tmp_path):
        from_rows(source)[0].open().moments()
        assert [int(value) for value in rows(source)[:, 0]] == [1, 2**53, 3]
    rounded = {"a": np.array([1, 2**53 + 1, 3], dtype), **beside}
    for source in each_way(rounded, tmp_path):
        with pytest.raises(InvalidComponent, match=r"at most 2\*\*53 .*9007199254740993; subtract"):
            from_rows(source)[0].open().moments()


@pytest.mark.parametrize("value", [2**53 + 1, -(2**53) - 1])
def test_integers_that_float64_would_round_are_refused_beside_missing_ones(value, tmp_path):
    tables = [
        pd.DataFrame({"a": pd.array([value, None], dtype="Int64")}),
        pl.DataFrame({"a": [value, None]}),
        pa.table({"a": pa.array([value, None], pa.int64())}),
    ]
    files = [through_parquet(table, tmp_path / f"{i}.parquet") for i, table in enumerate(tables)]
    for source in tables + files:
        with pytest.raises(InvalidComponent, match=r"2\*\*53 .*column 'a' of .* size 9007199254740993"):
            list(from_rows(source).blocks())


def test_a_column_without_any_integer_is_missing_and_not_too_large(tmp_path):
    tables = [
        pd.DataFrame({"a": pd.array([None, None], dtype="Int64")}),
        pl.DataFrame({"a": [None, None]}, schema={"a": pl.Int64}),
        pa.table({"a": pa.array([None, None], pa.int64())}),
    ]
    for source in [*tables, through_parquet(tables[2], tmp_path / "a.parquet")]:
        np.testing.assert_array_equal(rows(source), [[np.nan], [np.nan]])


def test_row_groups_of_any_size_are_read_from_any_row(tmp_path):
    X = np.arange(300.0).reshape(100, 3)
    with pq.ParquetWriter(tmp_path / "a.parquet", pa.schema([(n, pa.float64()) for n in "abc"])) as writer:
        for a, b in [(0, 10), (10, 50), (50, 51), (51, 100)]:
            writer.write_table(pa.table({n: X[a:b, j] for j, n in enumerate("abc")}))
    (loader,) = from_rows(tmp_path / "a.parquet")
    store = loader.opener.open()
    assert store.boundaries == [0, 10, 50, 51]
    for start, stop in [(0, 100), (5, 60), (60, 61), (61, 99), (9, 12), (50, 51), (99, 100), (0, 1)]:
        np.testing.assert_array_equal(store.read(start, stop), X[start:stop])
    assert extent_of(loader).n_rows == 100
