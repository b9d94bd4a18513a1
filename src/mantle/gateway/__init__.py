"""Wire formats: one file each, both ways; nowhere else."""
