"""
Fine-tune a language model
==========================

Teach a small Llama to follow instructions, under layerwise descent constraints. The model here is new and tiny, so that
this page builds in seconds; a pretrained one takes its place by one setting.
"""

# %%
# Choose a recipe
# ---------------
# A recipe is a name for data, model, task and the settings they were tuned with. ``llm-sft`` fine-tunes with TRL's
# ``SFTTrainer``. ``data="generated"`` makes instructions up: to say some words again or backwards, or the first
# or the last of them.
#
# ``exit_share=0.25`` reads the inner layers on a quarter of the tokens, which makes a step cheaper.

import matplotlib.pyplot as plt
import torch

import descend

run = descend.configure(
    "llm-sft",
    data="generated",
    output_dir="runs/language_model",
    depth=3,
    hidden_size=32,
    max_length=48,
    noise=0.1,
    exit_share=0.25,
    num_train_epochs=3,
    learning_rate=2e-2,
    eval_strategy="no",
    save_strategy="no",
    logging_strategy="no",
    disable_tqdm=True,
    use_cpu=True,
)
run = run.recipe.resolve(run.arguments)  # with data and a new model
print(run.tokenizer.decode(run.data.train[0]["input_ids"]))

# %%
# Train and evaluate
# ------------------
# The model's own final norm and head read every layer, so each layer can answer.

trainer = run.trainer()
trainer.train()
summary = descend.evaluate(trainer, run.data.test, noise=(0, 0.1, 0.3), name="generated instructions")
print(summary.verdict)

figure, axis = plt.subplots(figsize=(6, 3.6), layout="constrained")
figure.suptitle("Accuracy of the next token by layer, at three noise levels")
for level, style in zip((0.0, 0.1, 0.3), ("o-", "s--", "^:"), strict=True):
    axis.plot(summary.layer_metrics[level], style, label=f"γ = {level:g}")
axis.set(xlabel="layer", ylabel="share of the answers' tokens", ylim=(0, 1))
axis.legend()
plt.show()

# %%
# Ask it
# ------
# A model of this size, trained for some seconds, is often wrong.

model, tokenizer = trainer.model.eval(), run.tokenizer
prompt = run.data.test[0]["input_ids"][: run.data.test[0]["labels"].count(-100)]
print(tokenizer.decode(prompt))
answer = model.generate(torch.tensor([prompt]), max_new_tokens=8, do_sample=False)
print("→", tokenizer.decode(answer[0, len(prompt) :], skip_special_tokens=True))

# %%
# What next
# ---------
# ``model="NAME_OR_FOLDER"`` starts from a pretrained model and ``data="alpaca_data.json"`` takes your instructions.
# :doc:`/guides/language` has the command line, adapters, ``DescentSFTTrainer`` for a script of your own, and the cost
# of an exit at every layer. ``reproduction/records/layers.md`` has what a pretrained model gave.
