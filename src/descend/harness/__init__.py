"""lm-eval's tasks for a run: a model type with noise and an exit layer, curves over noise, runs compared."""
