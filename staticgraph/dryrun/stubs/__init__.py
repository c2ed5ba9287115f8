"""All patches of the dry run: the device, and Inductor."""
