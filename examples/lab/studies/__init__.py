"""Many runs put together: one file per study."""
