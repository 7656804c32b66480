"""`make bump`: edit versions.yaml, relock, and say what will break before anything is built."""
