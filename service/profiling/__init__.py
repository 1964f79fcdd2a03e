"""Measuring the real operator and the real collectives; torch and FBGEMM are imported here."""
