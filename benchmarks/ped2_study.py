"""UT and DUST on UCSD Ped2: depths, seeds, two noise regimes, ERM against constrained.

    python benchmarks/ped2_study.py tune  --data PATH/ped2 --out DIR    settings, on the validation split
    python benchmarks/ped2_study.py study --data PATH/ped2 --out DIR    the table, on the test split

Every run is one ``descend train`` and one ``descend evaluate``; runs that are done are not repeated.
"""

import argparse
import json
import statistics
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from runs import carry_out

REGIMES = {"paper": ("0.15", "0,0.05,0.1,0.15,0.2,0.3,0.4,0.5"), "strong": ("0.8", "0:2.8:0.4")}
DEPTHS, SEEDS = (3, 5, 7), (0, 1, 2)

# Settings that the tuning stage compares, at depth 7 and seed 0; "erm" fixes what both methods share.
CANDIDATES = {
    "video-ut": {
        "erm": ("--learning-rate 1e-3", "--learning-rate 2e-3", "--learning-rate 3e-3", "--learning-rate 4e-3"),
        "constrained": (
            "--alpha 0.01 --alpha-decay 1",
            "--alpha 0.02 --alpha-decay 1",
            "--alpha 0.05 --alpha-decay 1",
            "--alpha 0.1 --alpha-decay 1",
            "--alpha 0.2 --alpha-decay 1",
            "--alpha 0.3 --alpha-decay 1",
            "--alpha 0.5 --alpha-decay 1",
            "--alpha 0.65 --alpha-decay 0.35",
            "--alpha 0.68 --alpha-decay 0.5",
            "--alpha 0.2 --alpha-decay 0.58 --first-layer 1",
            "--alpha 0.2 --alpha-decay 0.5 --first-layer 1",
            "--alpha 0.21 --alpha-decay 0.4 --first-layer 1",
            "--alpha 0.22 --alpha-decay 0.5 --first-layer 1",
            "--alpha 0.22 --alpha-decay 0.55 --first-layer 1",
            "--alpha 0.06 --alpha-decay 0.6 --first-layer 1",
            "--alpha 0.03 --alpha-decay 0.6 --first-layer 1",
            "--alpha 0.1 --alpha-decay 1 --stop-gradient false",
            "--alpha 0.1 --alpha-decay 1 --stop-gradient false --first-layer 1",
        ),
    },
    "video-dust": {
        "erm": (
            "--learning-rate 1e-3",
            "--learning-rate 2e-3",
            "--learning-rate 1e-3 --l2 1",
            "--learning-rate 2e-3 --l2 1",
            "--learning-rate 2e-3 --l2 3",
            "--learning-rate 4e-3 --l2 1",
        ),
        "constrained": (
            "--alpha 0.05 --alpha-decay 1",
            "--alpha 0.1 --alpha-decay 1",
            "--alpha 0.2 --alpha-decay 1",
            "--alpha 0.3 --alpha-decay 1",
            "--alpha 0.5 --alpha-decay 1",
            "--alpha 0.3 --alpha-decay 1 --dual-warmup-steps 0.12",
            "--alpha 0.3 --alpha-decay 1 --dual-warmup-steps 0.12 --dual-lr 0.1",
            "--alpha 0.6 --alpha-decay 0.6 --dual-warmup-steps 0.12",
            "--alpha 0.85 --alpha-decay 0.4",
            "--alpha 0.1 --alpha-decay 1 --stop-gradient false",
        ),
    },
}


def job(data: Path, out: Path, recipe: str, regime: str, method: str, depth: int, seed: int, flags: str, split: str):
    gamma, levels = REGIMES[regime]
    train = [recipe, "--method", method, "--data", str(data), "--depth", str(depth), "--noise", gamma]
    train += ["--seed", str(seed), *flags.split()]
    return carry_out(train, ["--noise", levels, "--split", split], out)


def row(summary: dict) -> str:
    return (
        f"mean {summary['mean']:.2f}  at γ {summary['train_value']:.2f}  feasible {summary['feasible']}  "
        f"share {summary['descending_share']:.2f}  losses "
        + " ".join(f"{value:.2f}" for value in summary["layer_losses"][str(summary["train_noise"])])
        + f"  λ {' '.join(f'{value:.2f}' for value in summary['multipliers'])}  {summary['seconds']:.0f} s"
    )


def tune(options: argparse.Namespace) -> None:
    for recipe in options.recipes:
        for regime in options.regimes:
            with ThreadPoolExecutor(options.jobs) as pool:
                for method in options.methods:
                    flags = [f"{options.flags} {one}".strip() for one in CANDIDATES[recipe][method]]
                    folders = [
                        options.out / "tune" / f"{recipe}-{regime}-{method}-{one.replace(' ', '')}" for one in flags
                    ]
                    runs = [
                        pool.submit(job, options.data, folder, recipe, regime, method, 7, 0, one, "validation")
                        for one, folder in zip(flags, folders, strict=True)
                    ]
                    for one, run in zip(flags, runs, strict=True):
                        print(f"{recipe} {regime} {method} {one}: {row(run.result())}", flush=True)


def study(options: argparse.Namespace) -> None:
    chosen = json.loads(options.settings.read_text())
    with ThreadPoolExecutor(options.jobs) as pool:
        rows = {}
        for recipe in options.recipes:
            for regime in options.regimes:
                arms = dict(chosen[recipe][regime])
                both = arms.pop("both")
                for depth in DEPTHS:
                    for arm, flags in arms.items():
                        rows[recipe, regime, depth, arm] = [
                            pool.submit(
                                job,
                                options.data,
                                # By its flags: a run of other settings is another run.
                                options.out / recipe / regime / f"{arm}-{depth}-{seed}-{both}{flags}".replace(" ", ""),
                                recipe,
                                regime,
                                "erm" if arm == "erm" else "constrained",
                                depth,
                                seed,
                                f"{both} {flags}",
                                "test",
                            )
                            for seed in SEEDS
                        ]
        print("| model | regime | L | method | mean RMSE | RMSE at training γ | feasible | descending | seconds |")
        print("|---|---|---|---|---|---|---|---|---|")
        for (_, regime, depth, arm), runs in rows.items():
            found = [run.result() for run in runs]
            mean, trained, share, seconds = (
                [each[key] for each in found] for key in ("mean", "train_value", "descending_share", "seconds")
            )
            print(
                f"| {found[0]['model'].split('-')[0]} | {regime} | {depth} | {arm} "
                f"| {statistics.mean(mean):.2f} ± {statistics.stdev(mean):.2f} "
                f"| {statistics.mean(trained):.2f} ± {statistics.stdev(trained):.2f} "
                f"| {sum(each['feasible'] for each in found)}/{len(found)} | {100 * statistics.mean(share):.1f} % "
                f"| {statistics.mean(seconds):.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=("tune", "study"))
    parser.add_argument("--data", type=Path, required=True, help="the ped2 folder")
    parser.add_argument("--out", type=Path, required=True, help="folder of all runs")
    parser.add_argument("--recipes", nargs="+", default=list(CANDIDATES))
    parser.add_argument("--regimes", nargs="+", default=list(REGIMES))
    parser.add_argument("--methods", nargs="+", default=["erm", "constrained"])
    parser.add_argument("--flags", default="", help="further flags of every run of the tuning stage")
    parser.add_argument("--settings", type=Path, default=Path(__file__).with_name("ped2_settings.json"))
    parser.add_argument("--jobs", type=int, default=2)
    {"tune": tune, "study": study}[(parsed := parser.parse_args()).stage](parsed)
