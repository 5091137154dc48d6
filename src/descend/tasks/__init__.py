"""Data, loss and metric of each task; none knows a model."""
