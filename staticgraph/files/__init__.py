"""Files that are safe against kills, full disks and changed bytes."""
