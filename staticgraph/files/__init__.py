"""Reading and writing files safely: kills, full disks and changed bytes never yield wrong
contents."""
