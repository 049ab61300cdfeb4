"""The main job, shown on this machine by `make demo`."""
