"""What the pages of the site tell people to do, done; and what they say about methods, checked.

Commands are in ``sh`` blocks. Those that say ``# needs ...`` are parsed only; of the others,
``uqbench run`` is planned and the rest is run.
"""

import contextlib
import importlib.util
import os
import re
import shlex
from pathlib import Path
from unittest import mock

import click
import nbclient
import nbformat
import pytest
from click.testing import CliRunner

from uqbench import api, registry, worker
from uqbench.cli import main
from uqbench.method import Task
from uqbench.metrics import METRICS
from uqbench.registry import find_method, method_names

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
TEXTS = {page.stem: page.read_text(encoding="utf-8") for page in sorted(DOCS.glob("*.md"))}
REPORTS = {"leaderboard-schema", "performance", "reproduction"}
"""Pages whose commands are parsed only: they made the numbers, or have tests of their own."""
INLINE = re.compile(r"(?<!`)`(?:\w+=\S+ )?(uqbench \w+ [^`\n]+)`(?!`)")


def blocks(language, text):
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def commands_of(text):
    lines = [line for block in blocks("sh", text) for line in block.splitlines()]
    indented = re.findall(r"^ {4}(?:\w+=\S+ )?(uqbench .*)$", text, re.MULTILINE)
    return [line for line in [*lines, *indented, *INLINE.findall(text)] if "uqbench" in line]


COMMANDS = list(dict.fromkeys(line for text in TEXTS.values() for line in commands_of(text)))
GUIDE = [text for page, text in TEXTS.items() if page not in REPORTS]
SHOWN = [line for text in GUIDE for block in blocks("sh", text) for line in block.split("\n")]
DONE = [line for line in dict.fromkeys(SHOWN) if "uqbench" in line and "# needs" not in line]
RUNS = [line for line in DONE if " run " in line]


def arguments_of(line):
    words = shlex.split(line, comments=True)
    return words[words.index("uqbench") + 1 :]


def parsed(arguments):
    """The context of the command, with every option understood; nothing is run."""
    contexts = []
    with mock.patch.object(click.Command, "invoke", lambda _, context: contexts.append(context)):
        main.main(list(arguments), prog_name="uqbench", standalone_mode=False)
    return contexts[-1]  # after those of its groups


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_is_understood(line):
    parsed(arguments_of(line))


@pytest.mark.parametrize("wrong", ["run --methods nuqls --seed 3", "data feetch", "run --seeds 3"])
def test_a_command_that_is_wrong_is_not(wrong, capsys):
    with pytest.raises(SystemExit) as ended:
        parsed(wrong.split())
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("Error: ")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the files that the pages name, where the Python of the first one was run."""
    import numpy as np
    from PIL import Image

    folder = tmp_path_factory.mktemp("site")
    rows = [f"{k},{'brick' if k % 2 else 'wood'},{100.5 + 7 * k}" for k in range(60)]
    (folder / "houses.csv").write_text("\n".join(["rooms,walls,price", *rows]))
    random = np.random.default_rng(0)
    for part, count in {"pets/train/cat": 6, "pets/train/dog": 6, "pets/test/cat": 2}.items():
        place = folder / part
        place.mkdir(parents=True)
        for k in range(count):
            pixels = random.integers(0, 256, (16, 16, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(place / f"{k}.png")
    (folder / "pets/test/dog").mkdir()
    (folder / "landscapes").mkdir()
    for place in ("pets/test/dog/0.png", "landscapes/0.png"):
        Image.fromarray(pixels).save(folder / place)
    (code,) = blocks("python", TEXTS["index"])
    with contextlib.chdir(folder):
        exec(code, {})
        Path("runs/python").rename("runs/starter")
    return folder


@pytest.mark.parametrize("line", RUNS)
def test_every_run_can_be_planned(line, folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(registry, "_plugins", {})
    for assignment in re.findall(r"\b([A-Z_]+=\S+) uqbench", line):
        monkeypatch.setenv(*assignment.split("="))
    asked = parsed(arguments_of(line)).params
    for name in ("dry_run", "out", "jobs", "timeout", "rerun"):
        asked.pop(name)
    plugins, device = asked.pop("plugins"), asked.pop("device")
    planned = worker.prepare(api.request(**asked), device, tuple(map(Path, plugins)))
    assert len(planned.cells) >= asked["seeds"]


@pytest.mark.parametrize("line", [line for line in DONE if line not in RUNS])
def test_every_other_command_succeeds(line, folder, monkeypatch):
    monkeypatch.chdir(folder)
    done = CliRunner().invoke(main, arguments_of(line), prog_name="uqbench")
    assert done.exit_code == 0, done.output


def test_the_targets_of_make_are_there():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = [line.split()[1] for line in SHOWN if line.startswith("make ")]
    assert targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)


def test_the_example_on_ones_own_network_runs(capsys):
    (code,) = blocks("python", TEXTS["own-network"])
    names = {}
    exec(code, names)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["map", "nuqls", "lla"]
    assert 0.5 < names["result"].metrics["coverage95"] <= 1


def test_no_other_page_has_python_that_is_not_run():
    assert {p for p, text in TEXTS.items() if blocks("python", text)} == {"index", "own-network"}


ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in re.findall(r"^\| `\w+` \|.*$", TEXTS["methods"], re.MULTILINE)
]
COSTS = {row[0].strip("`"): row for row in ROWS if row[1] in {"both", *Task}}


class TestWhatIsSaidOfMethods:
    def test_every_method_has_a_row_in_both_tables(self):
        built_in = [name for name in method_names() if "uqbench." in find_method(name).__module__]
        assert sorted(COSTS) == sorted(built_in)
        needs = [row[0].strip("`") for row in ROWS if len(row) == 3]
        assert sorted(needs) == sorted(built_in)

    @pytest.mark.parametrize("name", COSTS)
    def test_tasks_and_start_are_the_methods_own(self, name):
        method, (_, tasks, start, *_) = find_method(name), COSTS[name]
        assert method.tasks == (frozenset(Task) if tasks == "both" else {Task(tasks)})
        assert method.post_hoc == (start == "MAP")


@pytest.fixture(scope="module")
def pages():
    spec = importlib.util.spec_from_file_location("generated_pages", DOCS / "generated_pages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class TestGeneratedParts:
    def test_every_method_and_every_metric_is_there(self, pages):
        definitions = pages.on_page_markdown(TEXTS["definitions"])
        assert all(f"\n## {name}\n" in definitions for name in COSTS)
        metrics = pages.on_page_markdown(TEXTS["metrics"])
        assert all(f"| `{name}` |" in metrics for name in METRICS)
        assert "\n### interval_score\n" in metrics
        assert "\n### _errors\n" not in metrics

    def test_formulas_are_not_taken_for_markup(self, pages):
        docstring = "Sum of x_i*y_i* [z](1) < 0, see :func:`ece` and ``a_b``.\n\n    x = *y*"
        written = pages.as_markdown(docstring)
        plain = r"Sum of x\_i\*y\_i\* \[z\](1) &lt; 0, see `ece` and `a_b`."
        assert written == f"{plain}\n\n    x = *y*"

    def test_links_of_the_root_are_those_of_the_site(self, pages):
        text = "[a](docs/a.md#b), [c](leaderboards/README.md), [d](https://e.org) and [f](#f)"
        assert pages.from_docs(text) == "[a](a.md#b), c, [d](https://e.org) and [f](#f)"

    def test_settings_become_a_list(self, pages):
        written = pages.as_markdown("Said: x.\n\na: first\nline; e: inside.\nb_c, d: second.")
        listed = "- **a**: first\nline\n- **e**: inside.\n- **b\\_c, d**: second."
        assert written == f"Said: x.\n\n{listed}"


def test_the_pages_name_no_place_on_a_machine():
    for page in [*DOCS.glob("*.md"), *DOCS.glob("*.ipynb"), ROOT / "mkdocs.yml"]:
        assert not re.search(r"(?<![\w.])/(work|home|root|tmp)/", page.read_text(encoding="utf-8"))


def test_the_notebook_runs(tmp_path):
    notebook = nbformat.read(DOCS / "example.ipynb", as_version=4)
    saved = [len(cell.outputs) for cell in notebook.cells if cell.cell_type == "code"]
    where = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=300, resources=where).execute()
    outputs = [
        [one for one in cell.outputs if one.get("name") != "stderr"]
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]
    assert [len(one) for one in outputs] == saved
    _, board, frame, picture, _ = outputs
    assert "QUICK RUN" in board[0].text
    assert "nuqls" in frame[0].text
    assert "image/png" in picture[0].data
    assert os.listdir(tmp_path / "runs")
