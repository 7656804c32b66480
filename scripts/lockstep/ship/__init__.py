"""Bring what was built to where it is used: a registry, a squashfs file, a Slurm cluster."""
