"""Searches the settings of a recipe with Optuna, with the same budget for every method, on validation data."""
