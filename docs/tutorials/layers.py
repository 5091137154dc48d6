"""
How many layers does a pretrained model need?
=============================================

Measure it on the model as it is, then fine-tune the model so that fewer layers suffice. Here with MiniLM, an encoder of
six layers, and IMDb's film reviews.

This page trains a pretrained model. It has figures where the site was built with ``DESCEND_PRETRAINED``, the folder of
``minilm``, and ``DESCEND_DATA``, the folder of ``imdb``; elsewhere it shows the commands alone.
"""

# %%
# As it is
# --------
# ``--layers`` gives each layer its readout, fitted on training texts. The model itself is not trained. K is
# chosen on validation texts, and tested on 300 test texts. The lines are those that ``descend evaluate`` prints.

import os

from descend.cli import main

model, data = f"{os.environ['DESCEND_PRETRAINED']}/minilm", f"{os.environ['DESCEND_DATA']}/imdb"
main(
    [
        "evaluate",
        model,
        "--layers",
        "--data",
        data,
        "--most",
        "300",
        "--max-length",
        "64",
        "--out",
        "runs/layers/as_it_is",
    ]
)

# %%
# Fine-tuned, plainly and so that fewer suffice
# ---------------------------------------------
# ``probe`` is plain training: the model learns by its last layer, and readouts beside it learn to read the others.
# ``linear`` lets the model hear all layers, layer l with the weight l/L. Both get an own readout for each layer.

words = ["--model", model, "--data", data, "--pooling", "mean", "--max-length", "64"]
words += [
    "--max-steps",
    "100",
    "--per-device-train-batch-size",
    "16",
    "--learning-rate",
    "1e-4",
    "--noise",
    "0",
    "--quiet",
]
for method in ("probe", "linear"):
    main(["train", "text", *words, "--method", method, "--out", f"runs/layers/{method}"])
    main(["evaluate", f"runs/layers/{method}", "--noise", "0"])

# %%
# Compare, and keep the layers that suffice
# -----------------------------------------
# Both are held to the full depth of plain training. ``export --layers auto`` writes the first K layers as a model that
# Transformers loads; its head reads the mean of the tokens, so ``import descend.models`` comes before.

main(["compare", "runs/layers/probe", "runs/layers/linear", "--out", "runs/layers/page"])
main(
    [
        "export",
        "runs/layers/linear",
        "--layers",
        "auto",
        "--baseline",
        "runs/layers/probe",
        "--out",
        "runs/layers/first",
    ]
)

# %%
# What next
# ---------
# :doc:`/guides/layers` explains every line of the answer, and has language models and vision transformers.
# :doc:`/results/layers` compares seven recipes on three pretrained models.
