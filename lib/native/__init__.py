"""C++ for what few rows cost: products, whole decoder layers over a draft tree, and what rejections leave of p."""
