"""DeepCAM: cyclones and atmospheric rivers in climate fields, marked by DeepLabV3+."""
