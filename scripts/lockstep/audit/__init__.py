"""Step: see what is wrong inside a venv or an image without running any of it."""
