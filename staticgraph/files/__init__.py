"""Files that neither a kill, a full disk nor a changed byte turns into something else."""
