"""Made runs of hosts that compute: steps of a training thread, and threads that take turns on cores."""
