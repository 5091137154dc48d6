"""Fine-tune a classifier on a GLUE-like task (sentence, label) so that every layer of it goes downhill.

python examples/glue_descent.py MODEL DATA OUT    a model, a folder with train.tsv and validation.tsv, a new folder
"""

import sys

from datasets import load_dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, TrainingArguments

from descend import DescentTrainer

name, folder, out = sys.argv[1:]
texts = load_dataset("csv", data_dir=folder, delimiter="\t")
tokenizer = AutoTokenizer.from_pretrained(name)
model = AutoModelForSequenceClassification.from_pretrained(name, num_labels=2)
data = texts.map(lambda rows: tokenizer(rows["sentence"], truncation=True, max_length=128), batched=True)
args = TrainingArguments(out, num_train_epochs=2, learning_rate=1e-3, eval_strategy="epoch", report_to="none")
trainer = DescentTrainer(
    model,
    args,
    train_dataset=data["train"],
    eval_dataset=data["validation"],
    processing_class=tokenizer,
)
trainer.train()
print(trainer.evaluate())
trainer.save_model()
