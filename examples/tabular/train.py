"""Boost trees on a table that scikit-learn makes; an epoch is ten more trees."""

import argparse
import json
import os

import joblib
from sklearn.datasets import make_classification
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--learning-rate", type=float, default=0.1)
    parser.add_argument("--max-leaf-nodes", type=int, default=31)
    parser.add_argument("--min-samples-leaf", type=int, default=20)
    parser.add_argument("--l2", type=float, default=0.0)
    parser.add_argument("--max-features", type=float, default=1.0)
    parser.add_argument("--trees", type=int, default=10, help="trees an epoch")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", default="out")
    parser.add_argument("--resume", help="a model to go on from")
    args = parser.parse_args()

    table, classes = make_classification(
        8000, n_features=30, n_informative=12, n_classes=4, flip_y=0.05, random_state=0
    )
    train_x, valid_x, train_y, valid_y = train_test_split(
        table, classes, test_size=0.25, random_state=0
    )
    if args.resume:
        model = joblib.load(args.resume)
    else:
        model = HistGradientBoostingClassifier(
            learning_rate=args.learning_rate,
            max_leaf_nodes=args.max_leaf_nodes,
            min_samples_leaf=args.min_samples_leaf,
            l2_regularization=args.l2,
            max_features=args.max_features,
            max_iter=0,
            early_stopping=False,
            warm_start=True,
            random_state=args.seed,
        )

    os.makedirs(args.output, exist_ok=True)
    while model.max_iter < args.trees * args.epochs:
        model.set_params(max_iter=model.max_iter + args.trees)
        model.fit(train_x, train_y)
        joblib.dump(model, f"{args.output}/model.joblib")
        row = {
            "epoch": model.max_iter // args.trees,
            "log_loss": log_loss(valid_y, model.predict_proba(valid_x)),
            "accuracy": model.score(valid_x, valid_y),
        }
        with open("metrics.jsonl", "a") as file:
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
