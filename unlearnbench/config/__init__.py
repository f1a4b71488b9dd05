"""YAML read into a frozen `SweepConfig`; all mistakes are reported at once, with their lines."""
