"""Request traces run through the real Scheduler and pool, in virtual time and without a model."""
