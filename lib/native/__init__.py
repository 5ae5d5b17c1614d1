"""C++ for what few rows cost: products, and whole decoder layers over the nodes of a draft tree."""
