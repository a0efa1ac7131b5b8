"""How error messages end when a name is unknown."""

from uqbench.suggestions import did_you_mean


def test_a_close_name_is_suggested():
    assert did_you_mean("nuqsl", ["de", "lla", "nuqls"]) == " Did you mean 'nuqls'?"


def test_upper_and_lower_case_do_not_matter():
    assert (
        did_you_mean("medhouseval", ["MedHouseVal", "AveRooms"]) == " Did you mean 'MedHouseVal'?"
    )


def test_without_a_close_name_the_known_ones_are_listed():
    assert did_you_mean("xyz", ["de", "base"]) == " Known: base, de."


def test_a_long_list_is_cut():
    known = [f"column{i:02}" for i in range(25)]
    text = did_you_mean("zzz", known)
    assert text.endswith("column19, and 5 more.")


def test_nothing_known_nothing_said():
    assert did_you_mean("x", []) == ""
