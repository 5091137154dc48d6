"""Evaluate a trained model at every layer and noise level, and decide whether its constraints hold."""
