"""Reading people's own tables: what is accepted, and how each fault is named."""

import os

import numpy as np
import pandas as pd
import pytest

from uqbench.datasets.tables import read_numeric_csv, read_table
from uqbench.errors import DataError, UsageError
from uqbench.method import Task


@pytest.fixture
def write(tmp_path):
    def write_file(text, name="houses.csv", encoding="utf-8"):
        path = tmp_path / name
        path.write_bytes(text.encode(encoding))
        return path

    return write_file


def message(error_type, path, target="price", task=None):
    """The error's text after the file's name; it must start with the name and have one line."""
    with pytest.raises(error_type) as caught:
        read_table(path, target, task)
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    assert "\n" not in text
    return text.removeprefix(f"{path}: ")


REGRESSION = "rooms,area,price\n" + "".join(
    f"{i % 4},{50 + 7.5 * i},{i * 1.25}\n" for i in range(9)
)


class TestFormats:
    def test_a_plain_csv_becomes_a_regression_table(self, write):
        table = read_table(write(REGRESSION), "price")
        assert table.task is Task.REGRESSION
        assert table.name == "houses"
        assert table.feature_names == ("rooms", "area")
        assert table.target_name == "price"
        assert table.class_names == ()
        np.testing.assert_array_equal(table.inputs[2], [2.0, 65.0])
        np.testing.assert_array_equal(table.targets, np.arange(9) * 1.25)

    @pytest.mark.parametrize("separator", [",", ";", "\t", "|", " ", "   "])
    def test_the_separator_is_detected(self, write, separator):
        expected = read_table(write(REGRESSION, "a.csv"), "price")
        table = read_table(write(REGRESSION.replace(",", separator), "b.csv"), "price")
        assert table.fingerprint == expected.fingerprint
        assert table.feature_names == expected.feature_names

    def test_ragged_blanks_separate_like_single_ones(self, write):
        table = read_table(write("a  price\n  1   2.5\n3\t\t4.5  \n\n", "x.txt"), "price")
        np.testing.assert_array_equal(table.inputs[:, 0], [1, 3])
        np.testing.assert_array_equal(table.targets, [2.5, 4.5])

    @pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
    def test_line_ends_do_not_matter(self, write, line_end):
        expected = read_table(write(REGRESSION, "a.csv"), "price")
        table = read_table(write(REGRESSION.replace("\n", line_end), "b.csv"), "price")
        assert table.fingerprint == expected.fingerprint

    @pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
    def test_the_encoding_is_detected(self, write, encoding):
        text = "größe,straße,price\n" + "".join(
            f"{i},{'Königsallee' if i % 2 else 'Mühlengäßchen'},{i}.5\n" for i in range(12)
        )
        table = read_table(write(text, encoding=encoding), "price")
        assert table.feature_names == ("größe", "straße=Königsallee", "straße=Mühlengäßchen")

    def test_quoted_fields_may_hold_separators_and_line_ends(self, write):
        text = 'note,area,price\n"old, but\nfine",1,2.5\n"new",2,3.5\n"new",3,4.5\n'
        table = read_table(write(text), "price")
        assert table.feature_names == ("note=new", "note=old, but\nfine", "area")

    def test_decimal_commas_are_read_where_a_semicolon_separates(self, write):
        table = read_table(write("a;b;price\n1,5;2;10,25\n-0,5;3;1000,5\n"), "price")
        np.testing.assert_array_equal(table.inputs, [[1.5, 2], [-0.5, 3]])
        np.testing.assert_array_equal(table.targets, [10.25, 1000.5])

    def test_a_point_among_decimal_commas_is_an_error(self, write):
        path = write("a;price\n1,5;2,5\n1.234;3,5\n2,5;4,5\n")
        assert message(DataError, path) == "line 3, column 'a': '1.234' is not a finite number"

    def test_a_comma_that_may_be_decimal_or_thousands_is_an_error(self, write):
        path = write("a;price\n3;2.5\n1,234;3.5\n2,345;4.5\n")
        found = message(DataError, path)
        assert found.startswith("line 3, column 'a': '1,234' may have a decimal comma or")

    def test_quoted_thousands_separators_are_an_error_not_categories(self, write):
        path = write('a,price\n"1,234",2.5\n"2,345",3.5\n"3,456",4.5\n')
        assert message(DataError, path).startswith("column 'a': '1,234' has a thousands separator")

    def test_parquet_gives_the_same_table_as_csv(self, write, tmp_path):
        csv = write(REGRESSION)
        parquet = tmp_path / "houses.parquet"
        pd.read_csv(csv).to_parquet(parquet)
        assert read_table(parquet, "price").fingerprint == read_table(csv, "price").fingerprint

    def test_parquet_categories_and_nullable_integers_are_read(self, tmp_path):
        path = tmp_path / "t.parquet"
        pd.DataFrame(
            {
                "kind": pd.Categorical(["b", "a", "b", "a"]),
                "count": pd.array([1, 2, 3, 4], dtype="Int64"),
                "price": [1.0, 2.0, 3.0, 4.5],
            }
        ).to_parquet(path)
        table = read_table(path, "price")
        assert table.feature_names == ("kind=a", "kind=b", "count")
        np.testing.assert_array_equal(table.inputs[:, 2], [1, 2, 3, 4])

    def test_floats_are_read_to_the_last_bit(self, write):
        values = np.random.default_rng(0).standard_normal(500) * 1e-20
        text = "a,price\n" + "".join(f"{value!r},{-value!r}\n" for value in values.tolist())
        np.testing.assert_array_equal(read_table(write(text), "price").inputs[:, 0], values)

    def test_reading_writes_nothing(self, write, tmp_path):
        read_table(write(REGRESSION), "price")
        assert os.listdir(tmp_path) == ["houses.csv"]


class TestCategories:
    def test_text_and_booleans_are_one_hot_encoded_in_sorted_order(self, write):
        path = write("town,new,price\nUlm,True,1.5\nBonn,False,2.5\nUlm,True,3.5\n")
        table = read_table(path, "price")
        assert table.feature_names == ("town=Bonn", "town=Ulm", "new=False", "new=True")
        np.testing.assert_array_equal(table.inputs, [[0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1]])

    def test_too_many_categories_are_an_error_that_names_the_column(self, write):
        text = "street,price\n" + "".join(f"street {i % 60},{i}.5\n" for i in range(600))
        assert message(DataError, write(text)) == (
            "column 'street' is text with 60 different values in 600 rows (at most 50 can be "
            "one-hot encoded); drop the column, or turn it into numbers"
        )

    def test_an_identifier_column_is_an_error_that_names_the_column(self, write):
        text = "owner,price\n" + "".join(f"name {i},{i}.5\n" for i in range(30))
        assert message(DataError, write(text)).startswith(
            "column 'owner' is text with 30 different values in 30 rows (only values that recur"
        )

    def test_an_empty_cell_in_a_text_column_is_an_error(self, write):
        path = write("town,price\nUlm,1.5\n,2.5\nUlm,3.5\n")
        assert message(DataError, path) == "line 3, column 'town': the cell is empty"


class TestTaskAndClasses:
    def test_text_targets_are_classes_sorted_by_label(self, write):
        table = read_table(write("a,pet\n1,dog\n2,cat\n3,dog\n4,cat\n"), "pet")
        assert table.task is Task.CLASSIFICATION
        assert table.class_names == ("cat", "dog")
        np.testing.assert_array_equal(table.targets, [1, 0, 1, 0])

    def test_integer_labels_are_sorted_as_numbers_and_renumbered(self, write):
        labels = [10, 2, 5, 2, 10, 5]
        text = "a,label\n" + "".join(f"{i}.5,{label}\n" for i, label in enumerate(labels))
        table = read_table(write(text), "label")
        assert table.class_names == ("2", "5", "10")
        np.testing.assert_array_equal(table.targets, [2, 0, 1, 0, 2, 1])
        assert table.targets.dtype == np.int64

    def test_booleans_are_classes(self, write):
        table = read_table(write("a,sold\n1,True\n2,False\n3,True\n4,True\n"), "sold")
        assert table.class_names == ("False", "True")

    def test_whole_numbers_written_with_a_point_are_a_regression(self, write):
        text = "a,price\n" + "".join(f"{i},{i % 3}.0\n" for i in range(9))
        assert read_table(write(text), "price").task is Task.REGRESSION

    def test_many_different_whole_numbers_are_a_regression(self, write):
        text = "a,price\n" + "".join(f"{i},{i % 21}\n" for i in range(100))
        assert read_table(write(text), "price").task is Task.REGRESSION
        text = "a,price\n" + "".join(f"{i},{i % 20}\n" for i in range(100))
        assert read_table(write(text), "price").task is Task.CLASSIFICATION

    def test_the_task_can_be_said(self, write):
        text = "a,price\n" + "".join(f"{i},{i % 3}.0\n" for i in range(9))
        table = read_table(write(text), "price", "classification")
        assert table.class_names == ("0", "1", "2")
        text = "a,price\n" + "".join(f"{i},{i % 3}\n" for i in range(9))
        assert read_table(write(text), "price", Task.REGRESSION).task is Task.REGRESSION

    def test_a_regression_on_text_is_an_error(self, write):
        path = write("a,price\n1,low\n2,high\n3,low\n4,high\n")
        assert message(UsageError, path, task="regression").startswith(
            "column 'price' holds text ('low'); a regression needs numbers"
        )

    def test_classification_of_mostly_different_values_is_an_error(self, write):
        found = message(DataError, write(REGRESSION), task="classification")
        assert found.startswith("column 'price' has 9 different values in 9 rows")

    def test_a_single_class_is_an_error(self, write):
        path = write("a,pet\n1,cat\n2,cat\n")
        found = message(DataError, path, "pet")
        assert found == "column 'pet' has a single class ('cat'); there is nothing to predict"

    @pytest.mark.parametrize("value", ["5", "5.0", "0.1"])
    def test_a_constant_target_is_an_error_that_says_its_variance_is_zero(self, write, value):
        path = write("a,price\n" + "".join(f"{i},{value}\n" for i in range(10)))
        assert message(DataError, path).startswith("column 'price': its variance is zero")


class TestFaults:
    def test_a_missing_column_is_suggested(self, write):
        found = message(UsageError, write(REGRESSION), "Prise")
        assert found == "no column named 'Prise'. Did you mean 'price'?"
        found = message(UsageError, write(REGRESSION), "zzz")
        assert found == "no column named 'zzz'. Known: area, price, rooms."

    def test_a_file_without_a_header_is_told_so(self, write):
        found = message(UsageError, write("1,2.5\n2,3.5\n"))
        assert found == (
            "no column named 'price'. The first line holds numbers only; it must name the columns."
        )

    @pytest.mark.parametrize("name", ["houses.csv", "houses.parquet", "houses.xlsx"])
    def test_a_missing_file_is_an_error(self, tmp_path, name):
        assert message(DataError, tmp_path / name) == "no such file"

    def test_a_folder_is_not_a_table(self, tmp_path):
        (tmp_path / "x.csv").mkdir()
        assert message(DataError, tmp_path / "x.csv") == "a folder, not a file"

    @pytest.mark.parametrize("text", ["", "\n \n", "\ufeff"])
    def test_an_empty_file_is_an_error(self, write, text):
        assert message(DataError, write(text)) == "the file is empty"

    def test_a_header_alone_is_an_error(self, write):
        assert message(DataError, write("a,price\n")) == "a header but no rows"

    def test_an_unsupported_suffix_is_an_error_that_lists_the_known_ones(self, write):
        found = message(UsageError, write(REGRESSION, "houses.xlsx"))
        assert found.startswith("cannot read '.xlsx' files as a table (known: .csv")

    def test_a_binary_file_is_an_error(self, tmp_path):
        path = tmp_path / "x.csv"
        path.write_bytes(b"a,b\n\x00\x01\x02")
        assert message(DataError, path).startswith("not a text file")

    def test_a_damaged_parquet_file_is_an_error(self, tmp_path):
        path = tmp_path / "x.parquet"
        path.write_bytes(b"PAR1 and then nothing")
        assert message(DataError, path).startswith("not a readable Parquet file (")

    def test_two_columns_of_one_name_are_an_error(self, write):
        found = message(DataError, write("a,price, a\n1,2,3\n"))
        assert found == "line 1: two columns are named 'a'"

    def test_a_column_without_a_name_is_an_error(self, write):
        found = message(DataError, write(",a,price\n0,1,2\n"))
        assert found.startswith("line 1: column 1 has no name")

    def test_a_single_column_is_an_error(self, write):
        assert message(DataError, write("price\n1\n2\n")).startswith("line 1: a single column")

    @pytest.mark.parametrize(
        ("row", "fields"), [("1,2", 2), ("1,2,3,4", 4), ("town", 1), ("1,2,3,", 4)]
    )
    @pytest.mark.parametrize("position", [0, 1, 3])
    def test_a_ragged_row_is_an_error_that_names_its_line(self, write, row, fields, position):
        rows = ["1,2,3.5", "2,3,4.5", "3,4,5.5"]
        rows.insert(position, row)
        path = write("\n".join(["a,b,price", *rows]) + "\n")
        noun = "field" if fields == 1 else "fields"
        assert message(DataError, path) == (
            f"line {position + 2}: {fields} {noun}, but the header names 3 columns"
        )

    @pytest.mark.parametrize("first", [0, 1])
    def test_rows_that_are_all_longer_than_the_header_are_an_error(self, write, first):
        found = message(DataError, write(f"a,price\n{first},2,3\n{first + 1},5,6\n"))
        assert found == "line 2: 3 fields, but the header names 2 columns"

    @pytest.mark.parametrize(
        ("cell", "complaint"),
        [
            ("", "the cell is empty"),
            ("  ", "the cell is empty"),
            ("NaN", "'NaN' is not a finite number"),
            ("inf", "'inf' is not a finite number"),
            ("-Infinity", "'-Infinity' is not a finite number"),
            ("abc", "'abc' is not a finite number"),
            ("1e999", "'1e999' is not a finite number"),
        ],
    )
    @pytest.mark.parametrize("column", ["a", "price"])
    def test_a_cell_that_is_no_finite_number_is_named(self, write, cell, complaint, column):
        rows = [{"a": i, "price": f"{i}.5"} for i in range(6)]
        rows[3][column] = cell
        text = "a,price\n" + "".join(f"{row['a']},{row['price']}\n" for row in rows)
        found = message(DataError, write(text))
        assert found == f"line 5, column '{column}': {complaint}"

    def test_an_infinite_cell_among_floats_is_named(self, write):
        found = message(DataError, write("a,price\n1.5,2.5\ninf,3.5\n"))
        assert found == "line 3, column 'a': 'inf' is not a finite number"

    def test_a_missing_class_label_is_an_error(self, write):
        path = write("a,pet\n1,dog\n2,\n3,dog\n4,cat\n")
        assert message(DataError, path, "pet") == "line 3, column 'pet': the cell is empty"

    def test_lines_are_counted_in_the_file_not_in_rows(self, write):
        text = '\n"note","price"\n"two\nlines",1.5\n\n"x",2.5\n"x",\n'
        assert message(DataError, write(text)) == "line 7, column 'price': the cell is empty"

    def test_a_fault_far_down_is_named_by_its_line(self, write):
        lines = ["a,price", *(f"{i},{i}.5" for i in range(60_000))]
        lines[54_321 - 1] = "7,oops"
        found = message(DataError, write("\n".join(lines)))
        assert found == "line 54321, column 'price': 'oops' is not a finite number"

    def test_a_quote_that_is_never_closed_is_named_by_its_line(self, write):
        found = message(DataError, write('a,price\nx,1.5\n"y,2.5\nz,3.5\n'))
        assert found.startswith("line 3: quotes do not match")

    def test_parquet_faults_are_named_by_row(self, tmp_path):
        path = tmp_path / "x.parquet"
        pd.DataFrame({"a": [1.0, np.nan, 3.0], "price": [1.5, 2.5, 3.5]}).to_parquet(path)
        assert message(DataError, path) == "row 2, column 'a': 'nan' is not a finite number"
        pd.DataFrame({"a": ["x", None, "x"], "price": [1.5, 2.5, 3.5]}).to_parquet(path)
        assert message(DataError, path) == "row 2, column 'a': the cell is empty"

    def test_parquet_dates_are_an_error(self, tmp_path):
        path = tmp_path / "x.parquet"
        when = pd.to_datetime(["2020-01-01", "2020-01-02"])
        pd.DataFrame({"when": when, "price": [1.5, 2.5]}).to_parquet(path)
        assert message(DataError, path).startswith("column 'when' holds dates or times")

    @pytest.mark.parametrize(
        "first", ["2020-01-0{}", "2020-01-0{}T12:30:00", "0{}/01/20", "{}.1.2020"]
    )
    def test_dates_written_as_text_are_an_error(self, write, first):
        rows = "".join(f"{first.format(1 + i % 2)},{i}.5\n" for i in range(8))
        path = write(f"when,price\n{rows}")
        assert message(DataError, path).startswith("column 'when' holds dates or times")

    def test_text_that_only_looks_like_dates_here_and_there_is_kept(self, write):
        path = write("when,price\n1-2-b,1.5\n2020-01-01,2.5\n1-2-b,2.5\n2020-01-01,2.5\n")
        assert read_table(path, "price").feature_names == ("when=1-2-b", "when=2020-01-01")


class TestFingerprint:
    def test_it_is_of_the_numbers_not_of_their_spelling(self, write):
        a = read_table(write("a,price\n1,2.5\n2,3.5\n", "a.csv"), "price")
        b = read_table(write("b;price\n1.0;2.50\n2.0;3.5\n", "b.csv"), "price")
        c = read_table(write("a,price\n1,2.5\n2,3.6\n", "c.csv"), "price")
        assert a.fingerprint == b.fingerprint != c.fingerprint

    def test_it_depends_on_the_class_names(self, write):
        a = read_table(write("a,y\n1,cat\n2,dog\n3,cat\n4,dog\n", "a.csv"), "y")
        b = read_table(write("a,y\n1,cat\n2,fox\n3,cat\n4,fox\n", "b.csv"), "y")
        assert a.fingerprint != b.fingerprint

    def test_a_tables_arrays_cannot_be_changed(self, write):
        table = read_table(write(REGRESSION), "price")
        with pytest.raises(ValueError, match="read-only"):
            table.inputs[0, 0] = 1.0


def test_the_numeric_reader_refuses_text_columns(write):
    names, values = read_numeric_csv(write("a,b\n1,2\n3,4\n"))
    assert names == ("a", "b")
    np.testing.assert_array_equal(values, [[1, 2], [3, 4]])
    path = write("a,b\n1,x\n3,y\n")
    with pytest.raises(DataError, match=r"line 2, column 'b': 'x' is not a finite number"):
        read_numeric_csv(path)
