"""The README's code is run as it stands there."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from uqbench import registry
from uqbench.cli import main
from uqbench.problems import Recipe
from uqbench.training import squared_error, train

README = Path(__file__).parents[1] / "README.md"


@pytest.fixture(scope="module")
def blocks():
    return re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def test_the_example_on_ones_own_network_prints_its_numbers(blocks, truths, capsys):
    (code,) = [block for block in blocks if "uqbench.evaluate" in block]
    data = truths.regression_data()
    names = {
        "network": train(truths.mlp(3, 1), data.train, Recipe(epochs=20), squared_error, 0),
        "x_train": data.train.inputs,
        "y_train": data.train.targets,
        "x_val": data.validation.inputs,
        "y_val": data.validation.targets,
        "x_test": data.validation.inputs,
        "y_test": data.validation.targets,
    }
    exec(code, names)
    assert float(capsys.readouterr().out.split()[0]) == names["result"].metrics["nll"]


def test_the_example_method_runs_beside_the_built_in_ones(blocks, tmp_path):
    (code,) = [block for block in blocks if "class Constant(Method)" in block]
    plugin = tmp_path / "constant.py"
    plugin.write_text(code, encoding="utf-8")
    arguments = ["run", "--methods", "constant,nuqls,lla", "--plugin", str(plugin), "--quick"]
    arguments += ["--problems", "sklearn/diabetes", "--seeds", "2", "--out", str(tmp_path / "run")]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    for name in ("constant", "nuqls", "lla"):
        assert re.search(rf"^{name} +2 ", result.output, re.MULTILINE)


def test_the_example_method_keeps_the_contract(blocks, tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_plugins", {})
    (code,) = [block for block in blocks if "class Constant(Method)" in block]
    plugin = tmp_path / "constant.py"
    plugin.write_text(code, encoding="utf-8")
    result = CliRunner().invoke(main, ["check", "constant", "--plugin", str(plugin)])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("folder", ["uqbench", "methods", "metrics", "datasets", "benchmarks"])
def test_the_folders_that_the_readme_names_are_there(folder):
    assert f"`{folder}/`" in README.read_text(encoding="utf-8")
    assert (README.parent / folder).is_dir()
