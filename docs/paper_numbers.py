"""Transcribe the paper's tables to leaderboards/paper/: python docs/paper_numbers.py FOLDER

FOLDER holds the tables as they are printed: uci.csv (Tables 1, 8 and 9), image_predictive.csv
(Table 2), small_tables.csv (3 to 7) and vmsp.csv (10 and 11). Numbers are copied as text.
"""

import csv
import sys
from collections.abc import Iterator
from decimal import Decimal
from math import log, pi
from pathlib import Path

from uqbench.paper import FIELDS

HALF_LOG_2PI = 0.5 * log(2 * pi)

METHODS = {
    "LLA-K": "lla",
    "LLA-D": "lla",
    "LLA*": "lla_last",
    "MC-Dropout": "mc_dropout",
    "MC": "mc_dropout",
    "Sampled LLA": "sampling_lla",
    "VaLLA 100": "valla",
    "VaLLA 200": "valla",
}
STRUCTURES = {"LLA-K": "Kronecker factors", "LLA-D": "diagonal"}

OOD_SETS = {
    "mnist": "fashion-mnist",
    "fashion-mnist": "mnist",
    "cifar-10": "cifar-100",
    "cifar-100": "cifar-10",
    "svhn": "cifar-10",
    "imagenet": "imagenet-o",
}
SMALL_PROBLEMS = {
    "mlp mnist": "mnist/mlp",
    "resnet20 cifar-10": "cifar-10/resnet20",
    "resnet32 cifar-10": "cifar-10/resnet32",
}
SLU_PROBLEMS = {"mlp mnist": "mnist/slu-mlp", "lenet fashion-mnist": "fashion-mnist/slu-lenet"}
PAPER = "arXiv 2502.02870"
OTHERS_ARE_QUOTED = ("table5", "table6", "table7")


def uci(folder: Path) -> Iterator[dict[str, object]]:
    for row in rows_of(folder / "uci.csv"):
        base = {
            "table": row["table"],
            "problem": f"uci/{row['dataset']}",
            **method(row["method"]),
            "seeds": (3 if row["dataset"] == "song" else 10) if row["table"] != "table8" else "",
        }
        for metric in ("rmse", "nll", "ece"):
            number = (
                base | printed(row[f"{metric}_mean"], row[f"{metric}_std"]) | {"metric": metric}
            )
            if metric == "nll":
                number["offset"] = repr(HALF_LOG_2PI)
            yield number
        for column, metric in (
            ("time_total_s", "total_seconds"),
            ("time_posthoc_s", "post_hoc_seconds"),
        ):
            if row[column]:
                yield base | printed(row[column]) | {"metric": metric}


def image_predictive(folder: Path) -> Iterator[dict[str, object]]:
    columns = {"nll": "nll", "accuracy": "acc", "ece": "ece", "ood_auc": "ood_auc"}
    columns["auc_roc"] = "auc_roc"
    for row in rows_of(folder / "image_predictive.csv"):
        base = {
            "table": row["table"],
            "problem": f"{row['dataset']}/{row['model']}",
            **method(row["method"]),
            "seeds": 5,
        }
        for metric, column in columns.items():
            mean, std = row[f"{column}_mean"], row[f"{column}_std"]
            note = {}
            if metric == "accuracy" and std == "0.3":  # of accuracies that are at most 1
                std, note = "0.003", {"note": "std misprinted as 0.3"}
            ood_set = OOD_SETS[row["dataset"]] if metric in ("ood_auc", "auc_roc") else ""
            yield base | printed(mean, std) | {"metric": metric, "ood_set": ood_set} | note
        # NUQLS and LLA* take less time than MAP: what is printed is their own
        own = row["method"] in ("NUQLS", "SWAG", "LLA*", "VaLLA")
        metric = "post_hoc_seconds" if own else "total_seconds"
        yield base | printed(row["time_s"]) | {"metric": metric}


def small_tables(folder: Path) -> Iterator[dict[str, object]]:
    for row in rows_of(folder / "small_tables.csv"):
        table, metric, ood_set = row["table"], row["metric"], ""
        seeds: int | str = ""
        if table in ("table3", "table4"):
            size = row["setting"].replace("=", "").replace(" ", "-")
            problem = f"intervals/{size}" + ("-wide" if table == "table3" else "")
            seeds = 100 if int(size.split("-")[0].removeprefix("d")) <= 4 else 50
        elif table == "table5":
            network, against = row["setting"].split(" vs ")
            problem, metric = SLU_PROBLEMS[network], "logit_var_auc"
            dataset = problem.split("/")[0]
            ood_set = f"rotated:{dataset}" if against == "rotation" else against
        else:
            problem = SMALL_PROBLEMS[row["setting"]]
            ood_set = OOD_SETS["mnist"] if metric == "ood_auc" else ""
        base = {"table": table, "problem": problem, **method(row["method"]), "seeds": seeds}
        if table in OTHERS_ARE_QUOTED and row["method"] != "NUQLS":
            first = "Miani et al. 2024" if table == "table5" else "Ortega et al. 2023"
            base["source"] = f"{first}, quoted in {PAPER}"
        yield base | printed(row["mean"], row["std"]) | {"metric": metric, "ood_set": ood_set}


def vmsp(folder: Path) -> Iterator[dict[str, object]]:
    for row in rows_of(folder / "vmsp.csv"):
        model, dataset = row["model"], row["id_dataset"]
        base = {
            "table": row["table"],
            "problem": f"{dataset}/{'wrn' if model.startswith('wrn') else model}",
            **method(row["method"]),
            "metric": f"vmsp_{row['group']}_{row['statistic']}",
            "ood_set": OOD_SETS[dataset] if row["group"] == "ood" else "",
        }
        if row["method"] == "LLA":  # "LLA with a last-layer and KFAC approximation", Section 4.4
            base["method"] = "lla_last"
        if model == "wrn-34-1":
            base["note"] = "printed as WRN-34-1; Appendix I.6.4 says depth 10, width 1"
        yield base | printed(row["value"])


def method(name: str) -> dict[str, object]:
    return {
        "method": METHODS.get(name, name.lower()),
        "printed_method": name,
        "source": PAPER,
        "note": STRUCTURES.get(name, ""),
    }


def printed(mean: str, std: str = "") -> dict[str, object]:
    return {"mean": mean, "std": std, "decimals": -int(Decimal(mean).as_tuple().exponent)}


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def transcribe(source: Path, target: Path) -> None:
    tables: dict[str, list[dict[str, object]]] = {}
    for read in (uci, image_predictive, small_tables, vmsp):
        for number in read(source):
            tables.setdefault(str(number["table"]), []).append(number)
    for table, numbers in tables.items():
        with (target / f"{table}.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, FIELDS, restval="", lineterminator="\n")
            writer.writeheader()
            writer.writerows(numbers)


if __name__ == "__main__":
    transcribe(Path(sys.argv[1]), Path(__file__).parents[1] / "leaderboards" / "paper")
