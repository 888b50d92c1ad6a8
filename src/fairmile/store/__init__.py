"""Bytes by content: objects, trees, pools, links, maintenance."""
