"""The native decoder: quantised weights in plain C, compiled for this processor at first use."""
