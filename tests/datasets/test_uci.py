"""The UCI sets: original formats, fingerprints, downloads that succeed, fail, or lie."""

import io
import os
import struct
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pandas as pd
import pytest

from uqbench.datasets import uci
from uqbench.errors import DataError, UsageError
from uqbench.method import Task

FINGERPRINTED = [name for name in uci.SETS if name != "song"]


def zipped(**members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def xlsx(*sheets):
    buffer = io.BytesIO()
    with pd.ExcelWriter(buffer, engine="openpyxl") as writer:
        for i, sheet in enumerate(sheets, 1):
            sheet.to_excel(writer, sheet_name=f"Sheet{i}", index=False)
    return buffer.getvalue()


def xls(frame):
    """A worksheet in Excel's oldest binary format (BIFF2), which is a plain list of records."""

    def record(kind, body):
        return struct.pack("<HH", kind, len(body)) + body

    parts = [record(0x0009, struct.pack("<HH", 7, 0x10))]
    for column, (name, values) in enumerate(frame.items()):
        text = name.encode("ascii")
        parts.append(record(0x0004, struct.pack("<HH3xB", 0, column, len(text)) + text))
        for row, value in enumerate(values, 1):
            parts.append(record(0x0003, struct.pack("<HH3xd", row, column, value)))
    return b"".join([*parts, record(0x000A, b"")])


class TestParsers:
    def test_energy_has_the_heating_load_for_a_target(self):
        sheet = pd.DataFrame({f"X{i}": [i + 0.5, i + 0.25] for i in range(1, 9)})
        sheet = sheet.assign(Y1=[15.55, 20.84], Y2=[21.33, 28.28])
        empty_edges = sheet.reindex(range(5)).assign(extra=np.nan)
        frame = uci.parse_energy(xlsx(empty_edges))
        assert list(frame.columns) == [*(f"X{i}" for i in range(1, 9)), "Y1"]
        assert frame["Y1"].tolist() == [15.55, 20.84]

    def test_concrete_is_rounded_half_up_as_the_workbook_displays_it(self):
        row = [222.36, 98.05, 121.75, 6.65, 188.45, 1040.0, 676.0, 28.0, 79.98611076]
        sheet = pd.DataFrame([row], columns=[f"feature {i}" for i in range(8)] + ["strength"])
        frame = uci.parse_concrete(xls(sheet))
        expected = [222.4, 98.1, 121.8, 6.7, 188.5, 1040.0, 676.0, 28.0, 79.99]
        assert frame.iloc[0].tolist() == expected

    def test_kin8nm_is_an_arff_file(self):
        content = (
            b"% a comment\n@relation kin8nm\n@attribute 'theta1' numeric\n"
            b"@ATTRIBUTE theta2 REAL\n@attribute y numeric\n\n@DATA\n"
            b"% another\n-0.015119208,0.36,0.5365\n0.36047801,-0.3,0.308\n"
        )
        frame = uci.parse_kin8nm(content)
        assert list(frame.columns) == ["theta1", "theta2", "y"]
        assert frame.to_numpy().tolist() == [
            [-0.015119208, 0.36, 0.5365],
            [0.36047801, -0.3, 0.308],
        ]

    def test_naval_has_the_compressor_decay_for_a_target(self):
        rows = ["   " + "   ".join(f"{v:.7e}" for v in [*range(16), 0.95, 0.975])] * 2
        frame = uci.parse_naval("\n".join(rows).encode())
        assert frame.shape == (2, 17)
        assert frame.iloc[:, -1].tolist() == [0.95, 0.95]

    def test_ccpp_takes_the_sheet_with_the_known_order(self):
        columns = ["AT", "V", "AP", "RH", "PE"]
        known = [8.34, 40.77, 1010.84, 90.01, 480.48]
        other = [14.96, 41.76, 1024.07, 73.17, 463.26]
        first = pd.DataFrame([other, known], columns=columns)
        second = pd.DataFrame([known, other], columns=columns)
        assert uci.parse_ccpp(xlsx(first, second)).iloc[0].tolist() == known
        assert uci.parse_ccpp(xlsx(first)).iloc[0].tolist() == other

    def test_wine_is_separated_by_semicolons(self):
        content = b'"fixed acidity";"alcohol";"quality"\n7.4;9.4;5\n7.8;9.8;6\n'
        assert uci.parse_wine(content).to_numpy().tolist() == [[7.4, 9.4, 5], [7.8, 9.8, 6]]

    def test_yacht_is_separated_by_ragged_blanks(self):
        content = (
            b"-2.3 0.568 4.78 3.99 3.17 0.125 0.11 \n-2.3  0.568 4.78 3.99 3.17 0.150  0.27\n\n"
        )
        frame = uci.parse_yacht(content)
        assert frame.shape == (2, 7)
        assert frame.iloc[:, -1].tolist() == [0.11, 0.27]

    def test_protein_has_its_first_column_for_a_target(self):
        content = b"RMSD,F1,F2\n17.284,13558.30,4305.35\n6.021,6191.96,1623.16\n"
        frame = uci.parse_protein(content)
        assert list(frame.columns) == ["F1", "F2", "RMSD"]

    def test_song_has_its_first_column_for_a_target_and_no_header(self):
        frame = uci.parse_target_first(b"2001,49.9,21.5\n1999,48.7,18.4\n")
        assert frame.to_numpy().tolist() == [[49.9, 21.5, 2001], [48.7, 18.4, 1999]]


@pytest.mark.parametrize("name", FINGERPRINTED)
def test_the_set_loads_and_has_its_known_fingerprint(name, shared_data):
    table = uci.load(name, shared_data)
    assert table.name == f"uci/{name}"
    assert table.task is Task.REGRESSION
    assert table.inputs.shape == (uci.SETS[name].rows, uci.SETS[name].features)
    assert table.target_name == "target"


def original(name, values):
    """The set's original download, rebuilt from its numbers."""
    described = uci.SETS[name]
    features, target = values[:, :-1], values[:, -1:]
    if name == "energy":
        columns = [*(f"X{i}" for i in range(1, 9)), "Y1", "Y2"]
        content = xlsx(pd.DataFrame(np.hstack([values, target + 5]), columns=columns))
    elif name == "concrete":
        # 0.04 and 0.004 are lost when rounding to one and two decimals
        unrounded = np.hstack([features + 0.04, target + 0.004])
        content = xls(pd.DataFrame(unrounded, columns=[f"c{i}" for i in range(9)]))
    elif name == "ccpp":
        sheet = pd.DataFrame(values, columns=["AT", "V", "AP", "RH", "PE"])
        content = xlsx(sheet)
    elif name == "kin8nm":
        attributes = "".join(f"@attribute a{i} numeric\n" for i in range(9))
        rows = pd.DataFrame(values).to_csv(index=False, header=False)
        content = f"@relation kin8nm\n{attributes}@data\n{rows}".encode()
    elif name == "protein":
        frame = pd.DataFrame(np.hstack([target, features]))
        content = frame.to_csv(index=False, header=["RMSD", *(f"F{i}" for i in range(1, 10))])
    elif name == "wine":
        content = pd.DataFrame(values).to_csv(index=False, sep=";")
    else:
        last = [np.ones_like(target)] if name == "naval" else []
        content = pd.DataFrame(np.hstack([values, *last])).to_csv(
            index=False, header=False, sep=" "
        )
    return content if described.member is None else zipped(**{f"inner/{described.member}": content})


@pytest.mark.parametrize("name", FINGERPRINTED)
def test_the_original_format_gives_the_fingerprinted_array(name, shared_data, tmp_path):
    table = uci.load(name, shared_data)
    content = original(name, np.column_stack([table.inputs, table.targets]))
    asked = []
    assert uci.fetch(name, tmp_path, lambda url: asked.append(url) or content)
    assert asked == [uci.SETS[name].url]
    assert uci.load(name, tmp_path).fingerprint == table.fingerprint
    assert os.listdir(tmp_path / "uci") == [f"{name}.csv"]
    header = (tmp_path / "uci" / f"{name}.csv").read_text().splitlines()[0].split(",")
    assert header == [*(f"x{i}" for i in range(table.inputs.shape[1])), "target"]


@pytest.fixture
def yacht(shared_data, tmp_path):
    """A data root of one's own that holds a copy of the yacht set; returns (root, its file)."""
    file = tmp_path / "uci" / "yacht.csv"
    file.parent.mkdir()
    file.write_bytes((shared_data / "uci" / "yacht.csv").read_bytes())
    return tmp_path, file


class TestLoad:
    def test_a_missing_set_is_an_error_with_the_command_that_gets_it(self, tmp_path, monkeypatch):
        monkeypatch.setenv("UQBENCH_DATA", str(tmp_path))
        with pytest.raises(DataError) as caught:
            uci.load("energy", tmp_path)
        path = tmp_path / "uci" / "energy.csv"
        assert str(caught.value) == (
            f"{path}: no such file; get it with `uqbench data fetch uci/energy`"
        )

    def test_the_command_names_a_data_folder_that_is_not_the_usual_one(self, tmp_path, monkeypatch):
        monkeypatch.delenv("UQBENCH_DATA", raising=False)
        with pytest.raises(DataError, match=f"fetch uci/energy --data-dir {tmp_path}`$"):
            uci.load("energy", tmp_path)

    def test_an_unknown_name_is_suggested(self, tmp_path):
        with pytest.raises(UsageError, match=r"'yatch'\. Did you mean 'yacht'\?"):
            uci.load("yatch", tmp_path)

    def test_a_changed_number_is_found(self, yacht):
        root, file = yacht
        file.write_text(file.read_text().replace("0.568", "0.569", 1))
        with pytest.raises(DataError, match="its numbers are not the known ones") as caught:
            uci.load("yacht", root)
        assert str(caught.value).startswith(f"{file}: ")
        assert "uqbench data fetch uci/yacht" in str(caught.value)

    def test_a_missing_row_is_found(self, yacht):
        root, file = yacht
        file.write_text("\n".join(file.read_text().splitlines()[:-1]))
        with pytest.raises(DataError, match="307 rows and 6 features, not the known 308 and 6"):
            uci.load("yacht", root)

    def test_a_bad_cell_is_named_by_line_and_column(self, yacht):
        root, file = yacht
        lines = file.read_text().splitlines()
        lines[9] = lines[9].replace("0.568", "x")
        file.write_text("\n".join(lines))
        with pytest.raises(DataError, match=r"line 10, column 'x1': 'x' is not a finite number"):
            uci.load("yacht", root)

    def test_the_target_must_be_the_last_column(self, yacht):
        root, file = yacht
        file.write_text(file.read_text().replace("target", "resistance", 1))
        with pytest.raises(DataError, match="the last column is 'resistance', not 'target'"):
            uci.load("yacht", root)


class TestFetch:
    def test_a_set_that_is_there_is_not_downloaded_again(self, yacht):
        root, _ = yacht
        assert not uci.fetch("yacht", root, download=lambda url: pytest.fail("downloaded"))

    def test_a_wrong_file_that_is_there_is_an_error_and_is_not_overwritten(self, yacht):
        root, file = yacht
        file.write_text("x0,target\n1,2\n2,3\n")
        with pytest.raises(DataError, match="move it away"):
            uci.fetch("yacht", root, download=lambda url: pytest.fail("downloaded"))
        assert file.read_text() == "x0,target\n1,2\n2,3\n"

    @pytest.mark.parametrize(
        ("content", "complaint"),
        [
            (b"<html>busy</html>", "not in the expected format"),
            (zipped(other="1 2"), "the archive has no file 'yacht_hydrodynamics.data'"),
            (zipped(**{"yacht_hydrodynamics.data": "a b c"}), "not in the expected format"),
            (zipped(**{"yacht_hydrodynamics.data": "1 2 3 4 5 6 7\n"}), "1 rows and 6 features"),
        ],
    )
    def test_data_that_is_not_the_known_data_is_refused(self, tmp_path, content, complaint):
        with pytest.raises(DataError) as caught:
            uci.fetch("yacht", tmp_path, download=lambda url: content)
        assert str(caught.value).startswith(f"{uci.SETS['yacht'].url}: ")
        assert complaint in str(caught.value)
        assert "\n" not in str(caught.value)
        assert list(tmp_path.iterdir()) == []

    def test_a_nested_archive_is_looked_into(self):
        inner = zipped(**{"data/yacht_hydrodynamics.data": "1 2"})
        content = zipped(**{"readme.txt": "x", "inner.zip": inner})
        assert uci._member(content, "yacht_hydrodynamics.data") == b"1 2"

    def test_a_folder_that_cannot_be_made_is_an_error(self, shared_data, tmp_path):
        table = uci.load("yacht", shared_data)
        content = original("yacht", np.column_stack([table.inputs, table.targets]))
        (tmp_path / "uci").write_text("a file where the folder should be")
        with pytest.raises(DataError, match="cannot write"):
            uci.fetch("yacht", tmp_path, download=lambda url: content)

    def test_a_write_that_fails_half_way_leaves_nothing(self, shared_data, tmp_path, monkeypatch):
        table = uci.load("yacht", shared_data)
        content = original("yacht", np.column_stack([table.inputs, table.targets]))

        def full_disk(descriptor):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("os.fsync", full_disk)
        with pytest.raises(DataError, match=r"cannot write \(No space left on device\)"):
            uci.fetch("yacht", tmp_path, download=lambda url: content)
        assert os.listdir(tmp_path / "uci") == []


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        found = self.path == "/good.zip"
        self.send_response(200 if found else 404)
        self.end_headers()
        self.wfile.write(b"content" if found else b"")

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with HTTPServer(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


class TestDownload:
    def test_it_returns_what_lies_at_the_url(self, server):
        assert uci.download_bytes(f"{server}/good.zip") == b"content"

    def test_a_missing_page_is_one_clear_line(self, server):
        with pytest.raises(DataError) as caught:
            uci.download_bytes(f"{server}/missing.zip")
        assert str(caught.value) == (
            f"{server}/missing.zip: 127.0.0.1 answered 404 Not Found; run the command again later"
        )

    def test_a_server_that_does_not_answer_is_one_clear_line(self, monkeypatch):
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        with pytest.raises(DataError) as caught:
            uci.download_bytes("http://127.0.0.1:9/x.zip")
        assert str(caught.value) == (
            "http://127.0.0.1:9/x.zip: could not reach 127.0.0.1 (connection refused); check the "
            "network connection and run the command again"
        )
