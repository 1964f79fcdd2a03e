"""Training of cost models on stored measurements, and what is reported of them."""
