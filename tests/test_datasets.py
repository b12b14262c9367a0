"""Public data sets: found, downloaded, checked, refused. No test leaves this machine."""

from __future__ import annotations

import functools
import gzip
import hashlib
import http.server
import io
import os
import pickle
import subprocess
import sys
import tarfile
import threading

import numpy as np
import pytest

from grassia import datasets
from grassia.datasets import DatasetUnavailable, File
from grassia.errors import InvalidInput

TEXT = b"+1 1:1 3:1 \n-1 2:1 \n-1 \n"


@pytest.fixture
def server(tmp_path):
    """A folder that is served over HTTP, and its address."""
    folder = tmp_path / "served"
    folder.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments):
            pass

    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield folder, f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, and no folder of data."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("GRASSIA_DATA", raising=False)
    return tmp_path / "cache"


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def test_every_name_has_files_with_a_sha256_and_a_public_address():
    assert datasets.names() == ["a1a", "cifar10", "mnist", "w1a", "w8a"]
    for name in datasets.names():
        for file in datasets._SOURCES[name].files:
            assert file.url.startswith("https://")
            assert file.url.endswith(file.name)
            assert len(bytes.fromhex(file.sha256)) == 32


@pytest.mark.parametrize("progress", [False, True])
def test_a_download_is_checked_kept_and_not_repeated(server, cache, progress, capsys):
    pytest.importorskip("pooch")
    folder, address = server
    data = np.random.default_rng(0).bytes(200_000)
    (folder / "bytes.bin").write_bytes(data)
    files = (File("bytes.bin", f"{address}/bytes.bin", sha256(data)),)
    path = datasets._download("some", files, progress)
    assert path.read_bytes() == data
    (folder / "bytes.bin").unlink()
    assert datasets._download("some", files, progress) == path


@pytest.mark.parametrize(
    "served",
    [TEXT, TEXT.replace(b"\n", b"\r\n"), TEXT + b"\n", TEXT.rstrip(b"\n")],
    ids=["lf", "crlf", "blank", "cut"],
)
def test_a_text_is_the_same_whatever_its_line_ends(server, cache, served):
    pytest.importorskip("pooch")
    folder, address = server
    (folder / "rows").write_bytes(served)
    path = datasets._download("rows", (File("rows", f"{address}/rows", sha256(TEXT), text=True),), False)
    assert path.read_bytes() == TEXT


def test_a_download_with_another_checksum_is_refused_and_not_kept(server, cache):
    pytest.importorskip("pooch")
    folder, address = server
    (folder / "rows").write_bytes(TEXT + b"+1 7:1 \n")
    file = File("rows", f"{address}/rows", sha256(TEXT), text=True)
    with pytest.raises(DatasetUnavailable, match=rf"{address}/rows .*GRASSIA_DATA"):
        datasets._download("rows", (file,), False)
    assert not [path for path in cache.rglob("*") if path.is_file()]


@pytest.mark.parametrize("address", ["http://127.0.0.1:9/rows", "missing"])
def test_without_the_site_the_error_names_both_remedies(server, cache, address):
    pytest.importorskip("pooch")
    url = f"{server[1]}/rows" if address == "missing" else address
    with pytest.raises(DatasetUnavailable, match=r"connection and try again.* GRASSIA_DATA") as caught:
        datasets._download("rows", (File("rows", url, sha256(TEXT)),), False)
    assert url in str(caught.value)


def test_without_pooch_the_error_names_the_extra_and_the_folder(tmp_path):
    code = (
        "import sys; sys.modules['pooch'] = None\n"
        "from grassia import datasets\n"
        "try: datasets.load('a1a')\n"
        "except datasets.DatasetUnavailable as error: print(error)\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "GRASSIA_DATA"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    assert "grassia[data]" in done.stdout
    assert "GRASSIA_DATA" in done.stdout


def test_a_damaged_local_file_is_refused_by_its_name(tmp_path, monkeypatch):
    monkeypatch.setenv("GRASSIA_DATA", str(tmp_path))
    (tmp_path / "a1a").write_bytes(TEXT)
    with pytest.raises(DatasetUnavailable, match=r"/a1a must have the SHA-256 eb54"):
        datasets.load("a1a")
    np.savez(
        tmp_path / "cifar10_train_5000.npz", images=np.zeros((5000, 3072), np.uint8), labels=np.zeros(5000)
    )
    with pytest.raises(DatasetUnavailable, match=r"cifar10_train_5000\.npz must have the SHA-256"):
        datasets.load("cifar10")
    whole = (tmp_path / "cifar10_train_5000.npz").read_bytes()
    for damaged in (whole[:1000], b"PK no more", b""):
        (tmp_path / "cifar10_train_5000.npz").write_bytes(damaged)
        with pytest.raises(DatasetUnavailable, match=r"cifar10_train_5000\.npz must be an \.npz file"):
            datasets.load("cifar10")


def test_idx_files_are_read_as_they_are_defined(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (3, 4, 5), dtype=np.uint8)
    head = b"\0\0\x08\x03" + b"".join(size.to_bytes(4, "big") for size in images.shape)
    with gzip.open(tmp_path / "images.gz", "wb") as file:
        file.write(head + images.tobytes())
    np.testing.assert_array_equal(datasets._read_idx(tmp_path / "images.gz"), images)
    with gzip.open(tmp_path / "wrong.gz", "wb") as file:
        file.write(b"\0\0\x0d\x03" + bytes(64))
    with pytest.raises(DatasetUnavailable, match=r"wrong\.gz"):
        datasets._read_idx(tmp_path / "wrong.gz")


def test_the_archive_of_images_is_read_batch_by_batch(tmp_path):
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (20, 3072), dtype=np.uint8), rng.integers(0, 10, 20)
    content = pickle.dumps({b"data": images, b"labels": labels.tolist()}, protocol=2)
    with tarfile.open(tmp_path / "cifar-10-python.tar.gz", "w:gz") as archive:
        member = tarfile.TarInfo("cifar-10-batches-py/data_batch_1")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    found = datasets._read_cifar("cifar10", tmp_path / "cifar-10-python.tar.gz", 12)
    np.testing.assert_array_equal(found.X, images[:12])
    np.testing.assert_array_equal(found.y, labels[:12])


def test_rows_are_read_alike_from_either_kind_of_line_ends(tmp_path):
    read = []
    for text in (TEXT, TEXT.replace(b"\n", b"\r\n") + b"\r\n"):
        (tmp_path / "rows").write_bytes(text)
        read.append(datasets._read_libsvm("a1a", tmp_path / "rows", 3))
    expected = np.zeros((3, 123))
    expected[[0, 0, 1], [0, 2, 1]] = 1.0
    for found in read:
        np.testing.assert_array_equal(found.X.toarray(), expected)
        np.testing.assert_array_equal(found.y, [1, -1, -1])


def test_an_unknown_name_and_too_many_rows_are_refused(cache):
    with pytest.raises(InvalidInput, match="'a1a', 'cifar10'"):
        datasets.load("a2a")
    with pytest.raises(InvalidInput, match="at most 1605; got 1606"):
        datasets.load("a1a", rows=1606)
    with pytest.raises(InvalidInput, match="`rows`"):
        datasets.load("a1a", rows=0)


@pytest.mark.parametrize(
    ("name", "shape", "entries"),
    [("a1a", (1605, 123), 22249), ("w1a", (2477, 300), 28410), ("w8a", (49749, 300), 579586)],
)
def test_the_local_libsvm_files_are_the_published_ones(name, shape, entries):
    if datasets.local(name) is None:
        pytest.skip(f"{name} is not in GRASSIA_DATA")
    found = datasets.load(name)
    assert found.X.shape == shape
    assert found.X.nnz == entries
    assert set(np.unique(found.y)) == {-1.0, 1.0}
    assert datasets.fetch(name) == datasets.local(name)
    assert datasets.load(name, rows=60).X.shape == (60, shape[1])


def test_the_local_images_are_the_first_of_cifar():
    if datasets.local("cifar10") is None:
        pytest.skip("cifar10 is not in GRASSIA_DATA")
    found = datasets.load("cifar10")
    assert (found.X.shape, found.X.dtype) == ((5000, 3072), np.uint8)
    assert set(found.y) == set(range(10))
    assert datasets.load("cifar10", rows=7).X.shape == (7, 3072)


def test_a_folder_variable_that_names_no_folder_is_called_so(monkeypatch, tmp_path):
    monkeypatch.setenv("GRASSIA_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(DatasetUnavailable, match="must name a folder"):
        datasets.load("a1a")


def test_labels_are_checked_like_images(monkeypatch, tmp_path):
    images = np.zeros((5000, 3072), dtype=np.uint8)
    np.savez(tmp_path / "cifar10_train_5000.npz", images=images, labels=np.zeros(5000, dtype=np.uint8))
    monkeypatch.setenv("GRASSIA_DATA", str(tmp_path))
    # The images pass, so it is the labels that are refused.
    monkeypatch.setattr(datasets, "_EXTRACT_SHA256", hashlib.sha256(images.tobytes()).hexdigest())
    with pytest.raises(DatasetUnavailable, match="5000 labels"):
        datasets.load("cifar10", rows=10)
