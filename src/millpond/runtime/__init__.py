"""What carries out the decisions of the core: it starts handlers, watches them and ends them."""
