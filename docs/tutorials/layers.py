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
# ``descend layers`` gives each layer its readout, fitted on training texts. The model itself is not trained. K is
# chosen on validation texts, and tested on 300 test texts. The lines are those that ``descend evaluate`` prints.

import os
import shlex

from descend.cli import main


def descend(line):
    """Do what ``descend LINE`` does in a shell."""
    main(shlex.split(line))


model, data = f"'{os.environ['DESCEND_PRETRAINED']}/minilm'", f"'{os.environ['DESCEND_DATA']}/imdb'"
descend(f"layers {model} --data {data} --limit 300 --max-length 64 --out runs/layers/as_it_is")

# %%
# Fine-tuned, plainly and so that fewer suffice
# ---------------------------------------------
# ``--method erm`` is plain training: only the last layer's loss counts. Without it ``train text`` trains all layers,
# each with a readout of its own. The runs are short so that this page is built in minutes.

words = f"--model {model} --data {data} --pooling mean --max-length 64 --noise 0 --quiet"
words += " --max-steps 100 --per-device-train-batch-size 16 --learning-rate 1e-4"
descend(f"train text {words} --method erm --out runs/layers/plain")
descend(f"train text {words} --out runs/layers/fewer")
descend("evaluate runs/layers/plain --noise 0 --limit 300")
descend("evaluate runs/layers/fewer --noise 0 --limit 300 --baseline runs/layers/plain")

# %%
# Compare, and keep the layers that suffice
# -----------------------------------------
# All are compared with the last layer of plain training, the untrained model with its fitted readouts too.
# ``export --layers auto`` writes the first K layers as a model that Transformers loads; its head reads the mean of the
# tokens, so Transformers needs ``trust_remote_code=True``. It warns where test texts do not certify that K.

descend("compare runs/layers/as_it_is runs/layers/plain runs/layers/fewer --out runs/layers/page")
descend("export runs/layers/fewer --layers auto --baseline runs/layers/plain --out runs/layers/first")

# %%
# What next
# ---------
# :doc:`/guides/layers` explains every line of the answer, and has language models and vision transformers.
# ``reproduction/records/layers.md`` compares five methods on two pretrained models.
