"""How much one PostgreSQL server carries: a model, its measured costs, and a comparison of both."""
