"""TODO toolrerank."""
