"""
A classifier that leaves early
==============================

Train a text classifier whose every layer can be read. Then let each text leave at the layer where the model is sure.
"""

# %%
# Texts and a tokenizer
# ---------------------
# These reviews are generated: each praises or criticises parts of a film, sometimes with a negation.

import matplotlib.pyplot as plt
import torch
from datasets import Dataset
from transformers import DistilBertConfig, DistilBertForSequenceClassification, TrainingArguments

import descend
from descend import DescentClassifier, DescentTrainer
from descend.tasks.text import generate_reviews, learn_tokenizer

rows = generate_reviews(1900, seed=0)
print(rows[1])
tokenizer = learn_tokenizer(row["text"] for row in rows)
tokenizer.model_input_names = ["input_ids", "attention_mask"]
texts = Dataset.from_list(rows)
texts = texts.map(lambda batch: tokenizer(batch["text"], truncation=True, max_length=80), batched=True)
train, validation, test = (texts.select(range(*ends)) for ends in ((0, 1300), (1300, 1500), (1500, 1900)))

# %%
# Train
# -----
# The model is a plain DistilBERT of Transformers. Only the trainer differs from a script that you may have: it was
# ``Trainer`` before. ``noise=0.5`` adds Gaussian noise to the word embeddings, in units of their standard deviation.

torch.manual_seed(0)
config = DistilBertConfig(vocab_size=len(tokenizer), dim=64, hidden_dim=128, n_layers=4, n_heads=4, dropout=0.2)
config.attention_dropout = 0.0  # which is what takes longest on a CPU
config.id2label, config.label2id = {0: "bad", 1: "good"}, {"bad": 0, "good": 1}
args = TrainingArguments(
    "runs/early_exits",
    num_train_epochs=3,
    learning_rate=2e-3,
    per_device_train_batch_size=32,
    eval_strategy="epoch",
    save_strategy="no",
    logging_strategy="no",
    disable_tqdm=True,
    report_to="none",
    use_cpu=True,
)
trainer = DescentTrainer(
    DistilBertForSequenceClassification(config),
    args,
    train_dataset=train,
    eval_dataset=validation,
    processing_class=tokenizer,
    noise=0.5,
)
trainer.train()
summary = descend.evaluate(trainer, test, noise=(0, 0.5, 1), name="generated reviews")
print(summary.verdict)
print("accuracy by layer, without noise:", [round(value, 2) for value in summary.layer_metrics[0.0]])

# %%
# After so few steps a deep layer misses its bound. On 400 texts that may be chance. The inner layers predict well, and
# early exits need no more.

# %%
# Leave early
# -----------
# ``exit_threshold=0.7`` lets a text leave after the first layer that gives its class a probability of at least 0.7. The
# layers after it are not computed for this text.

classifier = DescentClassifier(trainer.model, tokenizer)
new = ["the plot was good .", "the plot was not good . the cast was bad ."]
for answer in classifier.predict(new, exit_threshold=0.7):
    print(answer)

# %%
# A lower threshold saves more layers. What it costs depends on how much the first layers know; in this small task they
# know nearly as much as the last.

thresholds = (0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.9)
layers, accuracy = [], []
for threshold in thresholds:
    answers = classifier.predict([row["text"] for row in rows[1500:]], exit_threshold=threshold)
    layers.append(sum(answer.layer for answer in answers) / len(answers))
    accuracy.append(sum(answer.index == row["label"] for answer, row in zip(answers, rows[1500:], strict=True)) / 400)

figure, axis = plt.subplots(figsize=(6, 3.6), layout="constrained")
figure.suptitle("Accuracy against layers used, by exit threshold")
axis.plot(layers, accuracy, "o-")
for threshold, x, y in zip(thresholds, layers, accuracy, strict=True):
    axis.annotate(f"{threshold:g}", (x, y), textcoords="offset points", xytext=(4, -12))
axis.set(xlabel="layers used, mean over 400 test texts", ylabel="accuracy", ylim=(0.5, 1))
plt.show()

# %%
# What next
# ---------
# These thresholds were read off the test texts. :doc:`/guides/exits` chooses one on validation data, with a bound on
# what it costs. :doc:`/guides/export` writes the first layers as a smaller model.
