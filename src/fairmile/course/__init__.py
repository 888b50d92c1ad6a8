"""The course: lessons as text, the notebooks made from them, and what judges the answers."""
