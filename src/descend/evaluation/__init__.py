"""What a trained model does at every layer and noise level, and whether its constraints hold."""
