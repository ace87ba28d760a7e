"""Record a trace when a job recorded by `events` becomes slower, or when somebody asks for one."""
