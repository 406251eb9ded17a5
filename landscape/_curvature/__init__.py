"""Eigenvalues, trace and density of the Hessian and the Gauss-Newton matrix."""
