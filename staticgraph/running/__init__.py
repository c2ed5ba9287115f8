"""One step of one bucket: how a model is called, compiled, recorded, checked and counted."""
