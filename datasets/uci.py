"""The nine UCI regression sets of the NUQLS paper: ROOT/uci/NAME.csv, features then ``target``.

Each is checked against the fingerprint of its parsed array, which a downloaded set must match as
well: the archive has changed files in place before.
"""

from __future__ import annotations

import io
import re
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

import numpy as np
import pandas as pd

from uqbench.datasets.arrays import Table
from uqbench.datasets.delimited import exact_floats
from uqbench.datasets.downloads import failed_download
from uqbench.datasets.root import fetch_command
from uqbench.datasets.tables import read_numeric_csv
from uqbench.errors import DataError, UsageError
from uqbench.method import Task
from uqbench.replacement import replacement
from uqbench.suggestions import did_you_mean

TARGET = "target"


@dataclass(frozen=True)
class UCISet:
    """One data set: its size, where it comes from, and how its original file is read.

    member: name of the data file inside the downloaded zip archive (None: not an archive).
    parse: original bytes -> features, then the target in the last column.
    fingerprint: of the parsed array; None where no trusted copy was at hand to compute it.
    """

    rows: int
    features: int
    url: str
    member: str | None
    parse: Callable[[bytes], pd.DataFrame]
    fingerprint: str | None


def parse_energy(content: bytes) -> pd.DataFrame:
    """ENB2012_data.xlsx: X1..X8, then Y1 (heating load, the target) and Y2 (cooling load).

    Some editions of the workbook end in empty rows and columns.
    """
    sheet = pd.read_excel(io.BytesIO(content)).dropna(how="all").dropna(axis=1, how="all")
    return sheet[[*(f"X{i}" for i in range(1, 9)), "Y1"]]


def parse_concrete(content: bytes) -> pd.DataFrame:
    """Concrete_Data.xls: eight features, then the compressive strength.

    The benchmarks' CSV holds the numbers as the workbook displays them, rounded half up: features
    to one decimal, strength to two (the cells hold 222.36 and 79.98611076).
    """
    import xlrd  # pandas is giving up its use of it

    sheet = xlrd.open_workbook(file_contents=content).sheet_by_index(0)
    rows = [
        [_round_half_up(value, 2 if i == 8 else 1) for i, value in enumerate(sheet.row_values(row))]
        for row in range(1, sheet.nrows)
    ]
    return pd.DataFrame(rows, columns=sheet.row_values(0))


def parse_kin8nm(content: bytes) -> pd.DataFrame:
    """dataset_2175_kin8nm.arff: eight features, then ``y``."""
    header, rows = re.split(rb"(?im)^[ \t]*@data[^\n]*\n", content, maxsplit=1)
    names = re.findall(rb"(?im)^[ \t]*@attribute[ \t]+'?([^\s']+)'?", header)
    return _read_csv(rows, names=[name.decode() for name in names], comment="%")


def parse_naval(content: bytes) -> pd.DataFrame:
    """data.txt: 16 features, then the decay of the compressor (the target) and of the turbine."""
    return _read_csv(content, sep=r"\s+", header=None).iloc[:, :17]


def parse_ccpp(content: bytes) -> pd.DataFrame:
    """Folds5x2_pp.xlsx: five sheets with the same rows, shuffled; AT, V, AP, RH, then PE.

    The order matters to a seeded split. The benchmarks' CSV has that of the sheet which starts
    with 8.34, 40.77; a workbook without such a sheet gives its first.
    """
    sheets = list(pd.read_excel(io.BytesIO(content), sheet_name=None).values())
    for sheet in sheets:
        if list(sheet.iloc[0, :2].round(2)) == [8.34, 40.77]:
            return sheet.round(2)
    return sheets[0].round(2)


def parse_wine(content: bytes) -> pd.DataFrame:
    """winequality-red.csv: separated by semicolons, the quality last."""
    return _read_csv(content, sep=";")


def parse_yacht(content: bytes) -> pd.DataFrame:
    """yacht_hydrodynamics.data: separated by one or two blanks, no header, the resistance last."""
    return _read_csv(content, sep=r"\s+", header=None)


def parse_target_first(content: bytes) -> pd.DataFrame:
    """YearPredictionMSD.txt: no header, the year (the target) first."""
    frame = _read_csv(content, header=None)
    return frame[[*frame.columns[1:], frame.columns[0]]]


def parse_protein(content: bytes) -> pd.DataFrame:
    """CASP.csv: the target RMSD first, then F1..F9."""
    frame = _read_csv(content)
    return frame[[*frame.columns.drop("RMSD"), "RMSD"]]


_ARCHIVE = "https://archive.ics.uci.edu/static/public"

SETS: dict[str, UCISet] = {
    "energy": UCISet(
        768,
        8,
        f"{_ARCHIVE}/242/energy+efficiency.zip",
        "ENB2012_data.xlsx",
        parse_energy,
        "20b99c9454b6821a243341a3df610e7c4243fc418bf58fcc691a90c379f38da3",
    ),
    "concrete": UCISet(
        1030,
        8,
        f"{_ARCHIVE}/165/concrete+compressive+strength.zip",
        "Concrete_Data.xls",
        parse_concrete,
        "275dc8eab25283529dd081f4d2ec4075b9543ff4b46b615c5e159164be9f683b",
    ),
    "kin8nm": UCISet(
        8192,
        8,
        "https://www.openml.org/data/download/3626/dataset_2175_kin8nm.arff",
        None,
        parse_kin8nm,
        "b487c4b7637666580ab499eca44c1d18aa65d721f9c1d5941063ca77c414044f",
    ),
    "naval": UCISet(
        11934,
        16,
        f"{_ARCHIVE}/316/condition+based+maintenance+of+naval+propulsion+plants.zip",
        "data.txt",
        parse_naval,
        "a6d44bae6f3a91c2bc116499656b8758029b6149e626a1da39305c6a1e558b4c",
    ),
    "ccpp": UCISet(
        9568,
        4,
        f"{_ARCHIVE}/294/combined+cycle+power+plant.zip",
        "Folds5x2_pp.xlsx",
        parse_ccpp,
        "a8c4435d2538d48152f11711a1b288cf53774324c2ae470c0116897f3c6f3c4a",
    ),
    "wine": UCISet(
        1599,
        11,
        f"{_ARCHIVE}/186/wine+quality.zip",
        "winequality-red.csv",
        parse_wine,
        "8d3a26cf01b6f578bc92db0d33905953d0ecc7513fa43fdc0ca0451a6a105c98",
    ),
    "yacht": UCISet(
        308,
        6,
        f"{_ARCHIVE}/243/yacht+hydrodynamics.zip",
        "yacht_hydrodynamics.data",
        parse_yacht,
        "cfca4889c13a03ba371bddab51fa27da848df24388fb0d655ccffac1d873749b",
    ),
    "protein": UCISet(
        45730,
        9,
        f"{_ARCHIVE}/265/physicochemical+properties+of+protein+tertiary+structure.zip",
        "CASP.csv",
        parse_protein,
        "8673bbf6109e1abab79d43b2bf888483f18c85e4667b40e19a8331bf82178883",
    ),
    "song": UCISet(
        515345,
        90,
        f"{_ARCHIVE}/203/yearpredictionmsd.zip",
        "YearPredictionMSD.txt",
        parse_target_first,
        None,
    ),
}


def known(name: str) -> UCISet:
    """Return a set's description; raise a UsageError with a suggestion for an unknown name."""
    if name not in SETS:
        raise UsageError(f"no UCI data set named '{name}'.{did_you_mean(name, SETS)}")
    return SETS[name]


def path_of(name: str, root: Path) -> Path:
    """The file that holds a set."""
    return root / "uci" / f"{name}.csv"


def load(name: str, root: Path) -> Table:
    """Read a set and check it; a missing or different file is a DataError with the command to run.

    ``song`` is checked for its number of rows and columns alone.
    """
    expected = known(name)
    path = path_of(name, root)
    command = fetch_command(f"uci/{name}", root)
    if not path.exists():
        raise DataError(f"{path}: no such file; get it with `{command}`")
    remedy = f"move it away and get the right one with `{command}`"
    try:
        names, values = read_numeric_csv(path)
    except DataError as error:
        raise DataError(f"{error}; {remedy}") from None
    if names[-1] != TARGET:
        raise DataError(f"{path}: the last column is '{names[-1]}', not '{TARGET}'; {remedy}")
    table = _table(name, names, values, str(path))
    if difference := _difference(table, expected):
        raise DataError(f"{path}: {difference}; {remedy}")
    return table


def fetch(name: str, root: Path, download: Callable[[str], bytes] | None = None) -> bool:
    """Download a set from its public source to ROOT/uci/NAME.csv, unless a good one is there.

    Returns whether anything was downloaded. The file appears whole or not at all; data that is not
    the known data is refused with a DataError.
    """
    expected = known(name)
    path = path_of(name, root)
    if path.exists():
        load(name, root)
        return False
    content = (download or download_bytes)(expected.url)
    try:
        frame = expected.parse(_member(content, expected.member))
        values = frame.to_numpy(dtype=np.float64)
    except Exception as error:  # whatever five parsers make of an error page or a truncated file
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DataError(f"{expected.url}: not in the expected format ({reason})") from None
    names = (*(f"x{i}" for i in range(values.shape[1] - 1)), TARGET)
    if difference := _difference(_table(name, names, values, expected.url), expected):
        raise DataError(f"{expected.url}: {difference}; nothing was written")
    _write_atomically(path, pd.DataFrame(values, columns=list(names)))
    return True


def download_bytes(url: str) -> bytes:
    """Return what lies at a URL; a failure is a DataError that names the URL and what to do."""
    import pooch

    pooch.get_logger().setLevel("ERROR")
    with tempfile.TemporaryDirectory() as folder:
        try:
            downloader = pooch.HTTPDownloader(timeout=60)
            file = pooch.retrieve(
                url, known_hash=None, fname="download", path=folder, downloader=downloader
            )
        except (OSError, ValueError) as error:  # requests' errors are OSErrors
            raise failed_download(url, error) from None
        return Path(file).read_bytes()


def _table(name: str, names: tuple[str, ...], values: np.ndarray, source: str) -> Table:
    return Table(
        name=f"uci/{name}",
        inputs=np.ascontiguousarray(values[:, :-1]),
        targets=values[:, -1].copy(),
        feature_names=names[:-1],
        target_name=TARGET,
        task=Task.REGRESSION,
        source=source,
    )


def _difference(table: Table, expected: UCISet) -> str:
    """How a table differs from the known one; empty if it does not."""
    shape, wanted = table.inputs.shape, (expected.rows, expected.features)
    if shape != wanted:
        return f"{shape[0]} rows and {shape[1]} features, not the known {wanted[0]} and {wanted[1]}"
    if expected.fingerprint not in (None, table.fingerprint):
        return (
            f"its numbers are not the known ones (fingerprint {table.fingerprint[:12]}, "
            f"expected {expected.fingerprint[:12]})"
        )
    return ""


def _member(content: bytes, name: str | None) -> bytes:
    """Return a file of a zip archive by its base name, looking into nested archives as well."""
    if name is None:
        return content
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = [member for member in archive.namelist() if "__MACOSX" not in member]
        for member in members:
            if member.rsplit("/", 1)[-1].lower() == name.lower():
                return archive.read(member)
        for member in members:
            if member.lower().endswith(".zip"):
                return _member(archive.read(member), name)
    raise ValueError(f"the archive has no file '{name}'")


def _read_csv(content: bytes, **options: object) -> pd.DataFrame:
    return pd.read_csv(io.BytesIO(content), **options, **exact_floats())


def _round_half_up(value: float, decimals: int) -> float:
    # by its shortest decimal digits, as a spreadsheet does: 98.05 is displayed as 98.1
    step = Decimal(1).scaleb(-decimals)
    return float(Decimal(repr(float(value))).quantize(step, ROUND_HALF_UP))


def _write_atomically(path: Path, frame: pd.DataFrame) -> None:
    try:
        with replacement(path) as file:
            file.write(frame.to_csv(index=False).encode())
    except OSError as error:
        raise DataError(f"{path}: cannot write ({error.strerror})") from None
