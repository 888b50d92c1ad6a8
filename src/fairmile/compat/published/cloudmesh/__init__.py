"""cloudmesh's calls, answered by Fairmile; what Fairmile does not answer comes from cloudmesh where it is installed."""

from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)
