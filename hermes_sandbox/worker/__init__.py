"""All code that runs on the other side: standard library only, Python 3.9. It travels as `hermes_worker` (see
bootstrap)."""
