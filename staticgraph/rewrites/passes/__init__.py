"""What brings a captured graph into canonical form before any operator is put in."""
