"""Models under the names T5X gives them."""
