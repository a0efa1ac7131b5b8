"""The page of a report: what it says is what the records say, and names stay text."""

import base64
import hashlib
import inspect
import json
import os
import re
import shlex
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from click.testing import CliRunner

from uqbench import api
from uqbench.boards import boards
from uqbench.cells import plan
from uqbench.cli import main
from uqbench.errors import UsageError
from uqbench.plots.pareto import front
from uqbench.records import Cost, Identity, Outcome, Record, RecordFile
from uqbench.report import report
from uqbench.report_ranks import cliques, critical_difference, friedman, mean_ranks, ranks
from uqbench.results import Results
from uqbench.run_commands import run_commands

NAN = float("nan")
HOSTILE = """</td></svg><script>alert(1)</script><img src=x onerror="alert(2)">'&"""


def record(method="a", seed=0, nll=1.0, *, problem="p", status="ok", error="", **changes):
    metrics = changes.pop("metrics", {"nll": nll, "rmse": nll + 10})
    cost = changes.pop("cost", Cost(8.0, 1.0, 0.5, 0.25, device="cpu", threads=1))
    ood = changes.pop("ood", {})
    values = {
        "suite": "s",
        "fingerprint": "f",
        "split": (0.7, 0.15, 0.15),
        "network": {"hidden": [5]},
        "map_checkpoint": f"map {seed}",
        "settings": {},
        "dtype": "float64",
        "quick": False,
        "training": {"task": "regression"},
    }
    identity = Identity(method=method, seed=seed, problem=problem, **(values | changes))
    return Record(
        key=f"{problem}-{method}-{seed}-{identity.quick}",
        identity=identity,
        status=status,
        outcome=Outcome(metrics, ood, sizes={"train": 70, "test": 15})
        if status == "ok"
        else Outcome(),
        cost=cost if status == "ok" else Cost(),
        error_type="ValueError" if error else "",
        error_message=error,
        provenance={"python": "3", "packages": {"torch": "1"}},
    )


class Page(HTMLParser):
    """Tags with their attributes, and the text outside scripts and styles."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text, self.scripts, self._inside = [], "", [], ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self._inside = tag

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, data):
        if self._inside == "script":
            self.scripts.append(data)
        elif self._inside != "style":
            self.text += data

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


def page(records):
    return Page(report(Results(tuple(records)), "uqbench leaderboard r"))


@pytest.fixture
def _no_pictures(monkeypatch):
    """Drawing takes most of a page's time, which a test of something else can save."""
    monkeypatch.setattr("uqbench.report_pictures.pictures", lambda results, board: ())


without_pictures = pytest.mark.usefixtures("_no_pictures")


@pytest.fixture(scope="module")
def ordinary():
    records = [record("b", s, 2.0 + 0.1 * s) for s in range(3)]
    records += [record("a", s, 1.0 + 0.3 * s * s) for s in range(3)]
    records += [record("c", s, 10.0 + s) for s in range(3)]
    records += [record("broken", s, status="failed", error="too big") for s in range(3)]
    return Results(tuple(records))


@pytest.fixture(scope="module")
def ordinary_html(ordinary):
    return report(ordinary, "uqbench leaderboard r --format html --out o")


# The page


def test_names_settings_and_errors_with_markup_stay_text():
    cells = [
        record(HOSTILE, problem=HOSTILE, suite=HOSTILE, settings={HOSTILE: HOSTILE}),
        record("b", problem=HOSTILE, status="failed", error=HOSTILE),
        record(HOSTILE, problem="q", quick=True, metrics={"nll": 1.0, HOSTILE: 2.0}),
        record(
            "c",
            problem="images",
            metrics={"nll": 1.0, "accuracy": 0.5},
            training={"task": "classification", HOSTILE: HOSTILE},
            ood={HOSTILE: {"ood_auc": 0.5}},
        ),
    ]
    shown = page(cells)
    assert shown.text.count("<script>alert(1)</script>") > 8
    assert len(shown.scripts) == len(shown.all("script")) == 2
    assert not shown.all("img")
    assert not [name for _, found in shown.tags for name in found if name.startswith("on")]
    in_notebook = Page(Results(tuple(cells))._repr_html_())
    assert {"script", "img"}.isdisjoint(tag for tag, _ in in_notebook.tags)


def test_a_page_refers_to_nothing_outside_itself_and_allows_its_own_script_alone(ordinary_html):
    shown = Page(ordinary_html)
    addresses = [
        value
        for _, attributes in shown.tags
        for name, value in attributes.items()
        if name in ("src", "href", "xlink:href", "data", "action")
    ]
    assert addresses
    assert all(address.startswith("#") for address in addresses)
    styles = re.findall(r"<style.*?</style>", ordinary_html, re.DOTALL)
    assert not re.search(r"@import|url\((?!data:|#)", "".join(styles))
    (policy,) = (one["content"] for one in shown.all("meta") if "http-equiv" in one)
    digest = base64.b64encode(hashlib.sha256(shown.scripts[-1].encode()).digest()).decode()
    assert "default-src 'none'" in policy
    assert f"script-src 'sha256-{digest}' blob:" in policy


def test_best_and_equal_best_are_marked_as_on_the_board(ordinary, ordinary_html):
    (board,) = boards(ordinary.records)
    marks = [row.metrics[column].mark for row in board.shown_rows for column in board.columns]
    classes = [
        cell.get("class", "") for cell in Page(ordinary_html).all("td") if "data-order" in cell
    ]
    assert {"best", "equal best"} <= set(marks)
    assert classes.count("best") == marks.count("best")
    assert classes.count("equal-best") == marks.count("equal best")


def test_a_failure_is_shown_with_its_reason(ordinary_html):
    assert "broken: failed: ValueError: too big" in Page(ordinary_html).text


@without_pictures
def test_intervals_of_the_means_are_folded_below_the_table_where_the_seeds_suffice():
    cells = [record("a", s, v) for s, v in enumerate((1.0, 1.5, 1.25, 3.5, 2.0))]
    cells += [record("b", s, 1.0) for s in range(3)]
    cells += [record("c", s, 1.0 + s, problem="q") for s in range(4)]
    (first, second) = (Page(part) for part in report_parts(cells))
    assert "95% intervals of the means" in first.text
    assert len(first.all("details")) == 2
    low, high = boards(cells)[0].rows[0].metrics["nll", ""].interval
    assert f"{low:.2f} to {high:.2f}" in first.text
    assert "intervals" not in second.text
    assert len(second.all("details")) == 1


def report_parts(cells):
    """The page's sections of problems."""
    html = report(Results(tuple(cells)), "uqbench leaderboard r")
    return re.findall(r'<section class="problem".*?</section>', html, re.DOTALL)


@without_pictures
def test_columns_sort_by_number_with_the_undefined_as_the_worst():
    metrics = [
        {"accuracy": accuracy, "nll": nll}
        for accuracy, nll in ((0.5, 1.0), (0.9, float("inf")), (NAN, NAN))
    ]
    task = {"task": "classification"}
    shown = page([record(f"m{n}", metrics=one, training=task) for n, one in enumerate(metrics)])
    orders = [cell["data-order"] for cell in shown.all("td") if "data-order" in cell]
    rows = np.reshape(orders, (3, -1))
    assert rows[:, 1].tolist() == ["0.5", "0.9", "-Infinity"]
    assert rows[:, 2].tolist() == ["1.0", "Infinity", "Infinity"]
    first = [json.loads(c["data-order-sequence"])[0] for c in shown.all("th") if "data-type" in c]
    assert first[1:3] == ["desc", "asc"]


@without_pictures
def test_coverage_sorts_by_its_distance_from_the_target():
    values = {"a": 0.90, "b": 0.99}
    shown = page([record(m, metrics={"coverage95": v, "nll": 1.0}) for m, v in values.items()])
    orders = [float(cell["data-order"]) for cell in shown.all("td") if "data-order" in cell]
    coverage = np.reshape(orders, (2, -1))[:, 2]
    assert coverage == pytest.approx([0.05, 0.04])


def test_pictures_keep_their_ids_apart_and_their_labels_as_they_are():
    records = [record("#000000", problem=problem) for problem in ("p", "q")]
    html = report(Results(tuple(records)), "uqbench leaderboard r")
    assert html.count("<svg") == 2
    svgs = re.findall(r"<svg.*?</svg>", html, re.DOTALL)
    ids = [found for svg in svgs for found in re.findall(r' id="([^"]+)"', svg)]
    assert len(ids) == len(set(ids))
    used = {found for svg in svgs for found in re.findall(r'(?:url\(#|href="#)([^")]+)', svg)}
    assert used
    assert used <= set(ids)
    assert ">#000000: 1.00 in 9.75 s<" in svgs[0]
    assert not re.search(r"(stroke|fill): #000000", html)


def test_a_missing_picture_says_why():
    assert "Not drawn: p a seed 0: no predictions" in page([record()]).text


def test_the_same_results_give_the_same_page(ordinary, ordinary_html):
    assert report(ordinary, "uqbench leaderboard r --format html --out o") == ordinary_html


@without_pictures
def test_a_page_of_no_records_says_so():
    assert "No records." in page([]).text


# The command line


@without_pictures
def test_the_command_writes_a_folder_or_a_file(tmp_path, ordinary):
    file = RecordFile(tmp_path / "run")
    with file.locked():
        for one in ordinary.records[:1]:
            file.append(one)
    run = str(tmp_path / "run")
    for out, path in (("folder", "folder/index.html"), ("page.html", "page.html")):
        arguments = ["leaderboard", run, "--format", "html", "--out", str(tmp_path / out)]
        done = CliRunner().invoke(main, arguments)
        assert done.exit_code == 0, done.output
        assert shlex.join(["uqbench", *arguments]) in Page((tmp_path / path).read_text()).text
    without = CliRunner().invoke(main, ["leaderboard", run, "--format", "html"])
    assert without.exit_code == 2
    assert "--out" in without.output


@without_pictures
def test_a_page_that_cannot_be_written_is_an_error_of_one_line(tmp_path, ordinary):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        ordinary.report(tmp_path / "file" / "folder")


def test_the_commands_ask_for_the_same_cells_again():
    requests = [
        api.request("map,swag", problems="toy/cubic", seeds=2, settings=["swag.rank=7"]),
        api.request("map", problems="toy/cubic", seeds=1, quick=True),
    ]
    cells = [cell for request in requests for cell in plan(request)]
    lines = run_commands([Record(cell.key, cell.identity(), "ok") for cell in cells])
    repeated = [cell.key for line in lines for cell in plan(request_of(line))]
    assert sorted(repeated) == sorted(cell.key for cell in cells)
    assert "swag.rank=7" in " ".join(lines)


def request_of(line):
    """The request that ``uqbench run`` makes of its options."""
    program, command, *words = shlex.split(line)
    assert (program, command) == ("uqbench", "run")
    options = main.commands["run"].make_context("run", words).params
    accepted = inspect.signature(api.request).parameters
    return api.request(**{name: value for name, value in options.items() if name in accepted})


def test_a_command_names_the_ood_sets_that_are_not_the_suites_own():
    ood = {f"rotated:mnist:{degrees}": {"ood_auc": 0.9} for degrees in (15, 30)}
    cells = [
        record(suite="images", problem="mnist/slu-mlp", method="map", ood=ood, fingerprint="a"),
        record(suite="images", problem="mnist/slu-mlp", method="de", status="oom", fingerprint="a"),
        record(
            suite="images",
            problem="fashion-mnist/slu-lenet",
            method="map",
            ood={"mnist": {}, "rotated:fashion-mnist:15": {}},
            fingerprint="b",
        ),
    ]
    assert [line.partition("--suite images --problems ")[2] for line in run_commands(cells)] == [
        "mnist/slu-mlp --ood rotated:mnist --seeds 1",
        "fashion-mnist/slu-lenet --seeds 1",
    ]


def test_a_command_says_what_is_not_installed():
    lines = run_commands([record("mine", settings={"rate": 0.5, "label": "x y"})])
    assert any(line.startswith("# mine is not installed") for line in lines)
    assert "'mine.label=\"x y\"'" in lines[0]
    assert "mine.rate=0.5" in lines[0]


# Ranks


@pytest.mark.parametrize(("methods", "q"), [(2, 1.960), (3, 2.343), (5, 2.728), (10, 3.164)])
def test_the_critical_difference_is_that_of_demsars_table(methods, q):
    """Table 5a of Demšar 2006, whose numbers have three decimals."""
    found = critical_difference(methods, 14) / np.sqrt(methods * (methods + 1) / (6 * 14))
    assert found == pytest.approx(q, abs=1e-3)


def test_friedman_is_the_tail_of_its_statistic():
    """Without ties: χ² = 12 N / (k (k + 1)) (Σ R² − k (k + 1)² / 4), here k = 3, exp(−χ²/2)."""
    losses = np.random.default_rng(0).normal([0, 0.5, 1], size=(8, 3))
    r = mean_ranks(losses)
    statistic = 12 * 8 / 12 * (np.sum(r**2) - 12)
    assert friedman(losses) == pytest.approx(np.exp(-statistic / 2), rel=1e-10)
    assert friedman(np.ones((6, 3))) == 1


def test_ties_share_the_mean_of_their_ranks():
    assert mean_ranks([[1, 1, 5], [3, 2, 1]]).tolist() == [2.25, 1.75, 2]


def test_bars_join_every_pair_that_does_not_differ_and_no_other():
    generator = np.random.default_rng(1)
    for _ in range(20):
        found = np.sort(generator.uniform(1, 8, size=8))
        joined = {
            (i, j)
            for first, last in cliques(found.tolist(), 1.5)
            for i in range(first, last + 1)
            for j in range(i + 1, last + 1)
        }
        assert joined == {
            (i, j) for i in range(8) for j in range(i + 1, 8) if found[j] - found[i] <= 1.5
        }


def some_boards(problems, **numbers):
    return boards(
        [record(m, nll=v, problem=f"p{n}") for n in range(problems) for m, v in numbers.items()]
    )


def test_ranks_are_of_methods_with_a_full_result_on_every_problem():
    full = some_boards(5, c=3.0, a=1.0, b=2.0)
    extra = boards(
        [record(m, nll=v, problem="q") for m, v in {"a": 1.0, "b": 0.5, "d": 9.0}.items()]
    )
    found = ranks([*full, *extra])[0]
    assert (found.metric, found.methods, found.left_out) == ("nll", ("a", "b"), ("c", "d"))
    assert found.mean_ranks == pytest.approx((7 / 6, 11 / 6))
    assert not found.tested


def test_higher_is_better_for_accuracy():
    cells = [
        record(m, problem=p, metrics={"accuracy": v}, training={"task": "classification"})
        for p in "pq"
        for m, v in {"low": 0.1, "high": 0.9}.items()
    ]
    (found,) = ranks(boards(cells))
    assert found.methods == ("high", "low")


@without_pictures
@pytest.mark.parametrize(("problems", "tested"), [(4, False), (5, True)])
def test_tests_take_five_problems(problems, tested):
    cells = [
        record(m, metrics={"nll": v, "rmse": v}, problem=f"p{n}")
        for n in range(problems)
        for m, v in {"a": 1.0, "b": 2.0, "c": 3.0}.items()
    ]
    assert {one.tested for one in ranks(boards(cells))} == {tested}
    text = page(cells).text
    assert ("Friedman: p = 0.0067" in text) is tested
    assert ("Critical-difference diagram of NLL" in text) is tested
    assert text.count("Not tested: that takes 3 methods and 5 problems.") == (0 if tested else 1)


@without_pictures
def test_quick_runs_are_not_ranked_beside_others():
    cells = [record(m, problem=p) for m in "ab" for p in "pq"]
    cells += [record(m, problem="r", quick=True) for m in "ab"]
    assert "Problems: p, q." in page(cells).text


# Quality against cost


def test_the_pareto_front_is_what_nothing_dominates():
    points = [(1.0, 5.0), (2.0, 3.0), (2.0, 4.0), None, (3.0, 3.0), (0.5, 9.0), (4.0, 1.0)]
    assert front(points) == [5, 0, 1, 6]
    assert front([None]) == []
    assert front([(1.0, 1.0), (1.0, 1.0)]) == [0, 1]


def shown_points(axes):
    markers = [line for line in axes.lines if line.get_marker() != "None"]
    return {(float(x), float(y)) for line in markers for x, y in line.get_xydata()}


def test_pareto_shows_mean_nll_against_mean_seconds_in_total_and_post_hoc():
    cells = [record("a", s, nll) for s, nll in enumerate((1.0, 3.0))]
    own = replace(record("own", 0, 1.5).identity, map_checkpoint="")
    cells += [replace(record("own", 0, 1.5), identity=own)]
    total, post_hoc = Results(tuple(cells)).plot("pareto").axes
    assert shown_points(total) == {(9.75, 2.0), (1.75, 1.5)}
    assert shown_points(post_hoc) == {(1.75, 2.0)}
    total, _ = Results(tuple(cells)).plot("pareto", seed=1).axes
    assert shown_points(total) == {(9.75, 3.0)}


def test_pareto_has_bars_of_the_deviation_over_seeds_which_outliers_do_not_stretch():
    numbers = {"a": (1.0, 1.2, 1.4), "b": (1.1, 1.2, 1.3), "c": (-99.0, 1.2, 101.4)}
    cells = [record(m, s, nll) for m, nlls in numbers.items() for s, nll in enumerate(nlls)]
    picture = Results((*cells, record("one", 0, 1.25))).plot("pareto")
    axes = picture.axes[0]
    bars = [bar.get_segments()[0][:, 1] for bar in axes.collections]
    ends = {(low.round(9), high.round(9)) for low, high in bars}
    assert len(ends) == 3
    assert ends >= {(1.0, 1.4), (1.1, 1.3)}
    low, high = axes.get_ylim()
    assert 0 < low < 1.0 < 1.4 < high < 2
    assert axes.get_title().endswith("bars: ± std")
    alone = Results(tuple(cells)).plot("pareto", seed=1).axes[0]
    assert not alone.collections
    assert "bars" not in alone.get_title()


def test_methods_worse_than_base_stand_at_the_upper_end():
    numbers = {"a": 1.0, "b": 2.0, "base": 5.0, "bad": 1e6}
    picture = Results(tuple(record(m, nll=v) for m, v in numbers.items())).plot("pareto")
    low, high = picture.axes[0].get_ylim()
    assert low < 1 < 2 < high < 5
    assert shown_points(picture.axes[0]) == {(9.75, 1.0), (9.75, 2.0), (9.75, high)}
    texts = [text.get_text().replace("\n", " ") for text in picture.legends[0].get_texts()]
    assert [text for text in texts if "above the axis" in text] == texts[2:]


def test_pareto_without_numbers_or_seed_says_so():
    with pytest.raises(UsageError, match="no problem has a result with an NLL and a time"):
        Results((record(status="failed"),)).plot("pareto")
    with pytest.raises(UsageError, match="no seed 7 in these results; there is 0"):
        Results((record(),)).plot("pareto", seed=7)


# The page in a browser


class Browser:
    """A headless Chromium, spoken to by its debugging protocol over a pair of pipes."""

    def __init__(self, program, folder):
        read, self._write = os.pipe()
        self._read, write = os.pipe()
        options = ["--headless", "--no-sandbox", "--remote-debugging-pipe"]
        options.append(f"--user-data-dir={folder}")
        # the protocol's pipes are the descriptors 3 and 4
        connected = f'exec "$@" 3<&{read} 4>&{write}'
        self._process = subprocess.Popen(
            ["bash", "-c", connected, "bash", program, *options, "about:blank"],
            pass_fds=(read, write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read)
        os.close(write)
        self._unread, self._calls, self._session = b"", 0, {}
        targets = self.call("Target.getTargets")["targetInfos"]
        target = next(one["targetId"] for one in targets if one["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": attached["sessionId"]}

    def call(self, method, **parameters):
        self._calls += 1
        message = {"id": self._calls, "method": method, "params": parameters, **self._session}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self._unread:
                part = os.read(self._read, 1 << 16)
                assert part, "the browser has gone"
                self._unread += part
            line, self._unread = self._unread.split(b"\0", 1)
            answer = json.loads(line)
            if answer.get("id") == self._calls:
                return answer["result"]

    def value(self, expression):
        found = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def eventually(self, expression, expected):
        """The value of an expression once it is as expected, or after ten seconds at the latest."""
        return self.value(f"""new Promise((done) => {{
          const look = () => {{
            const value = {expression};
            const there = JSON.stringify(value) === JSON.stringify({json.dumps(expected)});
            there || performance.now() > 10000 ? done(value) : setTimeout(look, 20);
          }};
          look();
        }})""")

    def close(self):
        self._process.kill()
        self._process.wait()
        os.close(self._read)
        os.close(self._write)


@pytest.fixture
def browser(tmp_path):
    names = ("chromium", "chromium-browser", "google-chrome")
    program = next(filter(None, map(shutil.which, names)), None)
    if program is None or shutil.which("bash") is None:
        pytest.skip("no Chromium here")
    opened = Browser(program, tmp_path / "profile")
    yield opened
    opened.close()


READY = "Boolean(document.documentElement?.dataset.ready)"
METHODS = "[...document.querySelectorAll('table.board tbody th')].map((cell) => cell.textContent)"
PRESS_RMSE = """(() => {
  const head = [...document.querySelectorAll('table.board thead th')]
    .find((one) => one.textContent.startsWith('RMSE'));
  const button = head.querySelector('[role=button]');
  button.focus();
  return document.activeElement === button;
})()"""
FILTER = """(() => {
  const box = document.querySelector('.dt-search input');
  box.value = 'broken';
  box.dispatchEvent(new Event('input', { bubbles: true }));
})()"""


@without_pictures
def test_in_a_browser_the_keyboard_sorts_and_the_filter_filters(browser, tmp_path):
    rmse = {"a": 3.0, "b": 1.0, HOSTILE: 2.0, "broken": NAN} | {
        "c": 4.0,
        "d": 5.0,
        "e": 6.0,
        "f": 7.0,
    }
    cells = [record(m, metrics={"nll": n, "rmse": v}) for n, (m, v) in enumerate(rmse.items())]
    path = Results(tuple(cells)).report(tmp_path)
    browser.call("Page.navigate", url=path.as_uri())
    assert browser.eventually(READY, True)
    assert browser.value(METHODS) == ["a", "b", HOSTILE, "broken", *"cdef"]
    best_first = ["b", HOSTILE, "a", *"cdef", "broken"]
    orders = [best_first, best_first[::-1]]
    for order in orders:
        assert browser.value(PRESS_RMSE)
        for kind in ("keyDown", "keyUp"):
            key = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"}
            browser.call("Input.dispatchKeyEvent", type=kind, **key)
        assert browser.eventually(METHODS, order) == order
    browser.value(FILTER)
    assert browser.eventually(METHODS, ["broken"]) == ["broken"]
    assert browser.value("document.querySelectorAll('img').length") == 0


@without_pictures
def test_in_a_browser_all_tables_sort_though_nobody_scrolled_and_only_long_ones_filter(
    browser, tmp_path
):
    cells = [record(m, problem=f"p{n}") for n in range(12) for m in "ab"]
    cells += [record(m, problem="long") for m in "abcdefgh"]
    path = Results(tuple(cells)).report(tmp_path)
    browser.call("Page.navigate", url=path.as_uri())
    tables = 13 + 2  # of problems, and of mean ranks
    sortable = """[...document.querySelectorAll('table')]
      .filter((table) => table.querySelector('thead [role=button]')).length"""
    assert browser.eventually(sortable, tables) == tables
    assert browser.value("scrollY") == 0
    filters = """[...document.querySelectorAll('.dt-search')]
      .map((one) => one.closest('section').querySelector('h2').textContent.split(':')[0])"""
    assert browser.value(filters) == ["long"]
