"""`cloudmesh.gpu.gpu`, answered by Fairmile."""

from fairmile.compat.gpu import Gpu

__all__ = ["Gpu"]
