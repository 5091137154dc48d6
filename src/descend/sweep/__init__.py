"""A sweep: the settings of a recipe searched for every method alike, by Optuna, and chosen on validation data."""
